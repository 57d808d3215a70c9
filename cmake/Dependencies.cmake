# SPDX-License-Identifier: Apache-2.0
# The libraries that the project uses, as one target: fp_dependencies.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
if(FP_FUZZ)
  # The fuzz build has one thread: clang needs another package for OpenMP, and runs must be
  # repeatable.
  add_library(fp_openmp INTERFACE)
  target_include_directories(fp_openmp INTERFACE ${PROJECT_SOURCE_DIR}/tests/fuzz/serial)
elseif(FP_STATIC OR FP_PORTABLE)
  add_library(fp_openmp INTERFACE)
  target_compile_options(fp_openmp INTERFACE -fopenmp) # the archive is linked below
else()
  find_package(OpenMP REQUIRED COMPONENTS C)
  add_library(fp_openmp ALIAS OpenMP::OpenMP_C)
endif()

# out ← the path of lib<name>.a, from `folder` or the compiler's search path.
function(fp_find_archive out name folder)
  set(path "${folder}/lib${name}.a")
  if(NOT EXISTS ${path})
    execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=lib${name}.a OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  if(NOT EXISTS ${path})
    message(FATAL_ERROR "a static program needs lib${name}.a, which was not found; run ./setup")
  endif()
  set(${out} ${path} PARENT_SCOPE)
endfunction()

# Debian has several builds of OpenBLAS. This project needs the OpenMP build and names its folder.
# The project's own loops run on OpenMP's threads. The pthread build would start a second set of
# threads, and two sets that spin on the same processors slow each other down: on two cores a
# 512×512×512 product followed by a small parallel loop reached 95 GFLOP/s with one set and 56 with
# two, a 128×512×64 product 125 and 28. The OpenMP build also detects that it is called inside a
# parallel region, which attention relies on. Open question: large products alone were faster with
# the pthread build (2048³: 197 against 98 GFLOP/s; under heavy load 32 against 26), but that was
# measured on a busy machine.
set(FP_OPENBLAS_FOLDER "/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp" CACHE PATH "The folder of OpenBLAS's OpenMP build")
if(FP_STATIC)
  set(CMAKE_SKIP_RPATH ON)
elseif(NOT FP_PORTABLE)
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # an installed program must find the same build
endif()
find_file(FP_OPENBLAS_PC openblas.pc PATHS "${FP_OPENBLAS_FOLDER}/pkgconfig" NO_DEFAULT_PATH NO_CACHE)
find_library(FP_OPENBLASO openblaso NO_CACHE) # the OpenMP build on Fedora
if(NOT FP_OPENBLAS_PC AND FP_OPENBLASO)
  find_path(FP_OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas REQUIRED NO_CACHE)
  set(FP_OPENBLAS_PC)
elseif(NOT FP_OPENBLAS_PC)
  if(NOT CMAKE_LIBRARY_ARCHITECTURE) # not Debian; Arch has one build only, and the program warns if it is not on OpenMP
    pkg_check_modules(FP_OPENBLAS openblas)
    set(FP_OPENBLAS_PC openblas)
  endif()
  if(NOT FP_OPENBLAS_FOUND)
    message(FATAL_ERROR "OpenBLAS was not found, neither ${FP_OPENBLAS_FOLDER}/pkgconfig/openblas.pc nor libopenblaso.so; "
                        "run ./setup --build, or set FP_OPENBLAS_FOLDER to an OpenBLAS built with USE_OPENMP=1")
  endif()
endif()
pkg_check_modules(FP_LIBS REQUIRED IMPORTED_TARGET ${FP_OPENBLAS_PC} jansson libpcre2-8 libutf8proc zlib libzstd)
if(FP_OPENBLAS_INCLUDE)
  target_include_directories(PkgConfig::FP_LIBS INTERFACE ${FP_OPENBLAS_INCLUDE})
  target_link_libraries(PkgConfig::FP_LIBS INTERFACE ${FP_OPENBLASO})
endif()

add_library(fp_dependencies INTERFACE)
target_link_libraries(fp_dependencies INTERFACE fp_openmp Threads::Threads m ${CMAKE_DL_LIBS})
if(FP_STATIC OR FP_PORTABLE)
  # Everything but glibc is linked as an archive, by its path, so that no shared library is used by
  # accident. glibc stays shared, because the program needs it to load the CUDA module and every
  # system has it.
  target_include_directories(fp_dependencies INTERFACE ${FP_LIBS_INCLUDE_DIRS})
  target_compile_definitions(fp_dependencies INTERFACE FP_OWN_BLAS PCRE2_STATIC UTF8PROC_STATIC)
  if(FP_PORTABLE)
    fp_build_openmp(FP_OPENMP_ARCHIVE)
    set(names openblas jansson pcre2-8 utf8proc z zstd gcc)
  else()
    set(names openblas gfortran quadmath gomp jansson pcre2-8 utf8proc z zstd)
    target_link_libraries(fp_dependencies INTERFACE -static-libgcc)
  endif()
  foreach(name ${names})
    fp_find_archive(archive ${name} "${FP_OPENBLAS_FOLDER}")
    if(FP_PORTABLE AND name STREQUAL "jansson")
      fp_adapt_jansson(archive ${archive})
      set(FP_JANSSON_ARCHIVE ${archive})
    endif()
    list(APPEND FP_ARCHIVES ${archive})
    if(FP_PORTABLE AND name STREQUAL "openblas")
      list(APPEND FP_ARCHIVES ${FP_OPENMP_ARCHIVE})
    endif()
  endforeach()
  target_link_libraries(fp_dependencies INTERFACE ${FP_ARCHIVES} Threads::Threads m ${CMAKE_DL_LIBS})
else()
  target_link_libraries(fp_dependencies INTERFACE PkgConfig::FP_LIBS)
endif()
