# SPDX-License-Identifier: Apache-2.0
# FP_PORTABLE: a library, a program and a CUDA module that need nothing of the system but glibc 2.17,
# for the Python wheel. gcc and nvcc compile as in every other build; only the links differ:
#
# - zig (PyPI: ziglang) links, because it has the symbols of old versions of glibc.
# - OpenBLAS and the small libraries are Debian's archives. They were compiled for programs, so they
#   fit into a shared library only if that exports nothing of them, which the version script ensures.
# - libgomp.a does not fit: it addresses its thread-local variables as only a program can. It is
#   built again from gcc's source (gcc-12-source), with position-independent code.
# - python/portable_symbols.c has the few symbols that no archive and no old glibc has.
set(FP_GLIBC 2.17)
set(FP_PORTABLE_FOLDER ${PROJECT_BINARY_DIR}/portable)

find_program(FP_ZIG zig)
if(NOT FP_ZIG)
  find_program(FP_PYTHON NAMES python3 python)
  execute_process(COMMAND ${FP_PYTHON} -c "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
                  OUTPUT_VARIABLE FP_ZIG OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT FP_ZIG)
  message(FATAL_ERROR "FP_PORTABLE needs zig: pip install ziglang")
endif()

# Everything that is linked is a C object, a CUDA object or an archive, so one command fits all.
function(fp_link_by_zig)
  file(WRITE ${FP_PORTABLE_FOLDER}/exports.map "{ global: fp_*; local: *; };\n")
  set(zig "\"${FP_ZIG}\" cc -target x86_64-linux-gnu.${FP_GLIBC} -O2 -s -Wl,--gc-sections -Wl,-z,defs")
  set(shared "${zig} -shared -Wl,-Bsymbolic -Wl,--version-script=${FP_PORTABLE_FOLDER}/exports.map")
  set(CMAKE_C_LINK_EXECUTABLE "${zig} <LINK_FLAGS> -o <TARGET> <OBJECTS> <LINK_LIBRARIES>" PARENT_SCOPE)
  set(CMAKE_C_CREATE_SHARED_LIBRARY
      "${shared} <LINK_FLAGS> <SONAME_FLAG><TARGET_SONAME> -o <TARGET> <OBJECTS> <LINK_LIBRARIES>" PARENT_SCOPE)
  set(CMAKE_CUDA_CREATE_SHARED_MODULE "${shared} <LINK_FLAGS> -o <TARGET> <OBJECTS> <LINK_LIBRARIES>" PARENT_SCOPE)
endfunction()

# out ← the path of libgomp.a with position-independent code, built while CMake configures (about
# 20 s, once). Its variables need no static thread-local storage, of which a library that Python
# loads gets too little.
function(fp_build_openmp out)
  set(folder ${FP_PORTABLE_FOLDER}/libgomp)
  set(archive ${folder}/build/.libs/libgomp.a)
  set(${out} ${archive} PARENT_SCOPE)
  if(EXISTS ${archive})
    return()
  endif()
  string(REGEX MATCH "^[0-9]+" major ${CMAKE_C_COMPILER_VERSION})
  file(GLOB source /usr/src/gcc-${major}/gcc-*.tar.xz)
  if(NOT source)
    message(FATAL_ERROR "FP_PORTABLE needs gcc's source in /usr/src/gcc-${major}; run ./setup --wheel (gcc-${major}-source)")
  endif()
  message(STATUS "Building libgomp from ${source}")
  file(REMOVE_RECURSE ${folder})
  file(MAKE_DIRECTORY ${folder}/build)
  set(names libgomp config include libbacktrace config* *.m4 *-sh missing depcomp ltmain.sh mkinstalldirs compile gcc/BASE-VER)
  list(TRANSFORM names PREPEND "gcc-*/")
  set(flags "XCFLAGS=-Wall -pthread") # without gcc's own -ftls-model=initial-exec
  foreach(step
      "tar;-xJf;${source};--strip-components=1;--exclude=*/testsuite/*/*;--no-wildcards-match-slash;--wildcards;${names}"
      "env;-C;build;../libgomp/configure;--disable-multilib;--disable-shared;--with-pic;CC=${CMAKE_C_COMPILER};CFLAGS=-O2 -fPIC"
      "env;-C;build;make;-j2;${flags};libgomp.la")
    execute_process(COMMAND ${step} WORKING_DIRECTORY ${folder} RESULT_VARIABLE failed OUTPUT_FILE log ERROR_FILE log)
    if(failed)
      message(FATAL_ERROR "libgomp could not be built; ${folder}/log says why")
    endif()
  endforeach()
endfunction()

# out ← the path of a copy of libjansson.a. The original compares a stream with stdin by an address
# that only a program may use; nothing here reads JSON from a stream.
function(fp_adapt_jansson out archive)
  set(copy ${FP_PORTABLE_FOLDER}/libjansson.a)
  execute_process(COMMAND ${CMAKE_OBJCOPY} --redefine-sym stdin=fp_jansson_stdin ${archive} ${copy} COMMAND_ERROR_IS_FATAL ANY)
  set(${out} ${copy} PARENT_SCOPE)
endfunction()
