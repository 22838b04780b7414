# SPDX-License-Identifier: MIT
# Settled before project(), because CMake fixes the architectures when it enables CUDA.

include(CheckLanguage)

# sm_90a and sm_100f carry the instructions of one architecture (family); the PTX of the last entry
# is what later cards compile at load time.
set(TFK_CUDA_ARCHITECTURES "75-real;80-real;86-real;89-real;90a-real;100f-real;120" CACHE STRING
    "CUDA architectures to build for")
foreach(architecture IN LISTS TFK_CUDA_ARCHITECTURES)
  if(NOT architecture MATCHES "^[0-9]+[af]?(-real|-virtual)?$" OR architecture MATCHES "^90(-|$)")
    message(FATAL_ERROR "TFK_CUDA_ARCHITECTURES has ${architecture}, expected a number from 75 on "
                        "(90a for Hopper), maybe with -real or -virtual")
  endif()
endforeach()
set(CMAKE_CUDA_ARCHITECTURES ${TFK_CUDA_ARCHITECTURES})

find_program(TFK_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
             PATH_SUFFIXES bin)
if(TFK_NVCC)
  set(TFK_CUDA_DEFAULT ON)
  set(CMAKE_CUDA_COMPILER ${TFK_NVCC} CACHE FILEPATH "nvcc")
else()
  set(TFK_CUDA_DEFAULT OFF)
endif()
