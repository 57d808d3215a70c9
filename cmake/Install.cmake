# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the program, the libraries, the files for pkg-config and find_package, the
# manual page and the demo's models. Installed files refer to each other by relative paths, so that
# the prefix can be chosen at install time or moved later.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Dependencies of the static library besides OpenBLAS and OpenMP.
set(FP_MODULES "jansson libpcre2-8 libutf8proc zlib libzstd")
set(FP_PACKAGE_FOLDER "${CMAKE_INSTALL_LIBDIR}/cmake/fistapruner")
# With the prefix /usr the library folder is one level deeper.
file(RELATIVE_PATH FP_PREFIX_FROM_PC "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" FP_PREFIX_FROM_PC "${FP_PREFIX_FROM_PC}")

install(TARGETS fistapruner RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(FP_HAS_CUDA)
  install(TARGETS fistapruner_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(FP_HAS_MPI)
  install(TARGETS fistapruner_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(TARGETS fistapruner_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET fistapruner_shared)
  # Exported without dependencies: a program that links the shared library needs no other.
  set_target_properties(fistapruner_shared PROPERTIES EXPORT_NAME fistapruner)
  install(TARGETS fistapruner_shared EXPORT fistapruner_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT fistapruner_targets NAMESPACE fistapruner:: FILE fistapruner-targets.cmake DESTINATION ${FP_PACKAGE_FOLDER})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fistapruner DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/docs/fistapruner.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN "fistapruner.1" EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/llama-demo ${PROJECT_SOURCE_DIR}/models/opt-demo
        ${PROJECT_SOURCE_DIR}/models/moe-demo
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fistapruner/models)
install(FILES ${PROJECT_SOURCE_DIR}/models/calibration.jsonl ${PROJECT_SOURCE_DIR}/models/evaluation.jsonl
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fistapruner/models)

# The program generates its completion scripts.
if(NOT CMAKE_CROSSCOMPILING)
  set(FP_COMPLETIONS bash:bash-completion/completions:fistapruner zsh:zsh/site-functions:_fistapruner
      fish:fish/vendor_completions.d:fistapruner.fish)
  foreach(row ${FP_COMPLETIONS})
    string(REPLACE ":" ";" row ${row})
    list(GET row 0 shell)
    list(GET row 1 folder)
    list(GET row 2 name)
    set(script ${PROJECT_BINARY_DIR}/completion/${name})
    add_custom_command(OUTPUT ${script} COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/completion
                       COMMAND fistapruner help --completion ${shell} > ${script} DEPENDS fistapruner VERBATIM)
    list(APPEND FP_COMPLETION_SCRIPTS ${script})
    install(FILES ${script} DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder})
  endforeach()
  add_custom_target(fp_completion ALL DEPENDS ${FP_COMPLETION_SCRIPTS})
endif()

configure_file(${CMAKE_CURRENT_LIST_DIR}/fistapruner.pc.in ${PROJECT_BINARY_DIR}/fistapruner.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fistapruner.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/fistapruner-config.cmake.in ${PROJECT_BINARY_DIR}/fistapruner-config.cmake
                              INSTALL_DESTINATION ${FP_PACKAGE_FOLDER} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
# Before 1.0 every minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fistapruner-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fistapruner-config.cmake ${PROJECT_BINARY_DIR}/fistapruner-config-version.cmake
        DESTINATION ${FP_PACKAGE_FOLDER})

# `cpack` in the build directory of the preset `static` makes an archive. It runs on systems with a
# C library at least as new as this machine's.
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_VENDOR "the FISTAPruner contributors")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_FILE_NAME "fistapruner-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
include(CPack)
