# SPDX-License-Identifier: Apache-2.0
# Whether the MPI module is built: FP_HAS_MPI. A machine without MPI builds everything else.
set(FP_HAS_MPI OFF)
if(FP_MPI STREQUAL "AUTO" AND (FP_SANITIZE OR FP_FUZZ))
  return() # MPI itself leaks memory, and the fuzz targets have no ranks
endif()
if(NOT FP_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI COMPONENTS C QUIET)
  set(FP_HAS_MPI ${MPI_C_FOUND})
  if(NOT FP_HAS_MPI AND FP_MPI STREQUAL "ON")
    message(FATAL_ERROR "FP_MPI is ON, but no MPI was found; install libopenmpi-dev, or add mpicc to PATH")
  endif()
endif()
message(STATUS "MPI module: ${FP_HAS_MPI}")
