# SPDX-License-Identifier: Apache-2.0
# Whether the CUDA module is built: FP_HAS_CUDA. A machine without nvcc builds everything else.
set(FP_HAS_CUDA OFF)
if(FP_CUDA STREQUAL "AUTO" AND (FP_SANITIZE OR FP_FUZZ))
  return() # host sanitizers do not work with the module
endif()
if(NOT FP_CUDA STREQUAL "OFF")
  # Machine code for the two architectures that were tested, and PTX for later ones. Must be set
  # before the language is enabled.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;90-virtual")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit 12.0)
    if(CUDAToolkit_FOUND AND TARGET CUDA::cublas AND TARGET CUDA::cusolver)
      set(FP_HAS_CUDA ON)
    endif()
  endif()
  if(NOT FP_HAS_CUDA AND FP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FP_CUDA is ON, but nvcc with cuBLAS and cuSOLVER of CUDA 12 or later was not found; add nvcc to PATH")
  endif()
endif()
message(STATUS "CUDA module: ${FP_HAS_CUDA}")
