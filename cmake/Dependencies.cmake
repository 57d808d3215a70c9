# SPDX-License-Identifier: Apache-2.0
# Everything that is not ours, as one target: fp_dependencies.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
pkg_check_modules(FP_LIBS REQUIRED IMPORTED_TARGET openblas jansson libpcre2-8 libutf8proc zlib libzstd)

add_library(fp_dependencies INTERFACE)
target_link_libraries(fp_dependencies INTERFACE OpenMP::OpenMP_C Threads::Threads m ${CMAKE_DL_LIBS})
if(FP_STATIC)
  # The archives, named one by one: a static glibc program must not pick a shared library up by accident.
  target_include_directories(fp_dependencies INTERFACE ${FP_LIBS_INCLUDE_DIRS})
  target_compile_definitions(fp_dependencies INTERFACE FP_STATIC PCRE2_STATIC UTF8PROC_STATIC)
  target_link_directories(fp_dependencies INTERFACE ${FP_LIBS_STATIC_LIBRARY_DIRS})
  target_link_libraries(fp_dependencies INTERFACE -static openblas gfortran quadmath jansson pcre2-8 utf8proc z zstd m)
else()
  target_link_libraries(fp_dependencies INTERFACE PkgConfig::FP_LIBS)
endif()
