# SPDX-License-Identifier: Apache-2.0
# The build identity: a digest of all sources, and the git commit if it is known. A program loads
# modules and resumes runs only of its own build (src/base/build_identity.c). There is no timestamp,
# so the same sources give the same bytes.
#
# When CMakeLists.txt includes this file, it defines the target fp_build_identity. That target runs
# this file as a script in every build, because the commit may change when no source does. The
# header is written only if it changes.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(FP_GENERATED_FOLDER ${PROJECT_BINARY_DIR}/generated)
  add_custom_target(fp_build_identity
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
            -DHEADER=${FP_GENERATED_FOLDER}/base/build_identity_values.h -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${FP_GENERATED_FOLDER}/base/build_identity_values.h
    COMMENT "Checking the build identity" VERBATIM)
  return()
endif()

file(GLOB_RECURSE files RELATIVE ${SOURCE} ${SOURCE}/src/*.[ch] ${SOURCE}/src/*.cu ${SOURCE}/src/*.cuh ${SOURCE}/include/*.h
     ${SOURCE}/cmake/*.cmake)
list(APPEND files CMakeLists.txt src/CMakeLists.txt)
list(SORT files)
set(text "${VERSION}\n")
foreach(file ${files})
  file(SHA256 ${SOURCE}/${file} digest)
  string(APPEND text "${digest} ${file}\n")
endforeach()
string(SHA256 digest "${text}")
string(SUBSTRING ${digest} 0 16 digest)

# In a tarball that was unpacked inside another repository the prefix is not empty; the commit there
# is not ours.
set(commit "")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse --show-prefix WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE prefix
                  RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND prefix STREQUAL "")
    execute_process(COMMAND ${GIT} --no-optional-locks describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()

set(text "/* written by cmake/BuildIdentity.cmake; do not edit */\n#define FP_BUILD_ID \"${digest}\"\n#define FP_BUILD_COMMIT \"${commit}\"\n")
set(before "")
if(EXISTS ${HEADER})
  file(READ ${HEADER} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${HEADER} "${text}")
endif()
