# SPDX-License-Identifier: Apache-2.0
# Everything that is not ours, as one target: fp_dependencies.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
if(FP_FUZZ)
  # The fuzz build runs on one thread: clang has no OpenMP without a package of its own, and threads would hide what an input does.
  add_library(fp_openmp INTERFACE)
  target_include_directories(fp_openmp INTERFACE ${PROJECT_SOURCE_DIR}/tests/fuzz/serial)
elseif(FP_STATIC)
  add_library(fp_openmp INTERFACE)
  target_compile_options(fp_openmp INTERFACE -fopenmp) # its archive is linked below
else()
  find_package(OpenMP REQUIRED COMPONENTS C)
  add_library(fp_openmp ALIAS OpenMP::OpenMP_C)
endif()

# out ← the path of lib<name>.a: in `folder`, where the compiler keeps its own, or where libraries are.
function(fp_find_archive out name folder)
  set(path "${folder}/lib${name}.a")
  if(NOT EXISTS ${path})
    execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=lib${name}.a OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  if(NOT EXISTS ${path})
    message(FATAL_ERROR "lib${name}.a was not found, which a static program needs; run ./setup")
  endif()
  set(${out} ${path} PARENT_SCOPE)
endfunction()

# OpenBLAS comes in forms that are exchangeable by Debian's alternatives; this project wants the OpenMP one and names it by its own
# folder. Our loops run on OpenMP's threads. The pthread form brings a second pool, and two pools that spin on the same processors
# slow each other down: on two cores a 512×512×512 product followed by a small parallel loop reached 95 GFLOP/s with one pool and 56
# with two, a 128×512×64 one 125 against 28. It also knows when it is called inside a parallel region, on which attention relies.
# Not settled: large products alone read faster in the pthread form (2048³: 197 against 98 GFLOP/s; under heavy load 32 against 26), but
# on a machine that others used at the same time. Measure again on an idle one.
set(FP_OPENBLAS_FOLDER "/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp" CACHE PATH "The folder of OpenBLAS's OpenMP form")
if(FP_STATIC)
  set(CMAKE_SKIP_RPATH ON)
else()
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # an installed program must find the same form again
endif()
find_file(FP_OPENBLAS_PC openblas.pc PATHS "${FP_OPENBLAS_FOLDER}/pkgconfig" NO_DEFAULT_PATH NO_CACHE)
if(NOT FP_OPENBLAS_PC)
  message(FATAL_ERROR "${FP_OPENBLAS_FOLDER}/pkgconfig/openblas.pc is not there; run ./setup (libopenblas-openmp-dev), "
                      "or set FP_OPENBLAS_FOLDER to an OpenBLAS built with USE_OPENMP=1")
endif()
pkg_check_modules(FP_LIBS REQUIRED IMPORTED_TARGET ${FP_OPENBLAS_PC} jansson libpcre2-8 libutf8proc zlib libzstd)

add_library(fp_dependencies INTERFACE)
target_link_libraries(fp_dependencies INTERFACE fp_openmp Threads::Threads m ${CMAKE_DL_LIBS})
if(FP_STATIC)
  # Everything but glibc as archives, each by its path, so that no shared library is picked up by accident. glibc stays shared: a
  # program needs it to load the CUDA module, and no system is without it.
  target_include_directories(fp_dependencies INTERFACE ${FP_LIBS_INCLUDE_DIRS})
  target_compile_definitions(fp_dependencies INTERFACE PCRE2_STATIC UTF8PROC_STATIC)
  foreach(name openblas gfortran quadmath gomp jansson pcre2-8 utf8proc z zstd)
    fp_find_archive(archive ${name} "${FP_OPENBLAS_FOLDER}")
    list(APPEND FP_ARCHIVES ${archive})
  endforeach()
  target_link_libraries(fp_dependencies INTERFACE -static-libgcc ${FP_ARCHIVES} Threads::Threads m ${CMAKE_DL_LIBS})
else()
  target_link_libraries(fp_dependencies INTERFACE PkgConfig::FP_LIBS)
endif()
