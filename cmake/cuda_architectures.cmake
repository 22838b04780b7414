# SPDX-License-Identifier: MIT
# Whether there are CUDA kernels, and for which cards. Settled before project(), because CMake fixes
# the architectures when it enables CUDA.

# sm_90a and sm_100f carry the instructions of one architecture (family); the PTX of the last entry
# is what later cards compile at load time.
set(TFK_ALL_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90a-real 100f-real 120)

# tfk_cards(result): the architectures of this machine's cards; empty where there is none that the
# kernels run on.
function(tfk_cards result)
  set(architectures "")
  find_program(TFK_NVIDIA_SMI nvidia-smi)
  if(TFK_NVIDIA_SMI)
    execute_process(
      COMMAND ${TFK_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE answer RESULT_VARIABLE status ERROR_QUIET)
    if(status EQUAL 0)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${answer}")
      foreach(capability IN LISTS capabilities)
        string(REPLACE "." "" number ${capability})
        if(number EQUAL 90)
          list(APPEND architectures 90a-real)
        elseif(number EQUAL 100 OR number EQUAL 103)
          list(APPEND architectures 100f-real)
        elseif(number GREATER_EQUAL 75)
          list(APPEND architectures ${number}-real)
        endif()
      endforeach()
      list(REMOVE_DUPLICATES architectures)
    endif()
  endif()
  set(${result} "${architectures}" PARENT_SCOPE)
endfunction()

find_program(TFK_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
             PATH_SUFFIXES bin)
tfk_cards(TFK_CARDS)
set(TFK_CUDA_DEFAULT OFF)
if(TFK_NVCC)
  set(CMAKE_CUDA_COMPILER ${TFK_NVCC} CACHE FILEPATH "nvcc")
  if(TFK_CARDS)
    set(TFK_CUDA_DEFAULT ON)
  endif()
endif()

set(TFK_CUDA_ARCHITECTURES native CACHE STRING
    "CUDA architectures to build for: a list, all, or native (this machine's cards; all without)")
set(CMAKE_CUDA_ARCHITECTURES ${TFK_CUDA_ARCHITECTURES})
if(TFK_CUDA_ARCHITECTURES STREQUAL "native")
  set(CMAKE_CUDA_ARCHITECTURES ${TFK_CARDS})
endif()
if(TFK_CUDA_ARCHITECTURES STREQUAL "all" OR NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${TFK_ALL_CUDA_ARCHITECTURES})
endif()
foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
  if(NOT architecture MATCHES "^[0-9]+[af]?(-real|-virtual)?$" OR architecture MATCHES "^90(-|$)")
    message(FATAL_ERROR "TFK_CUDA_ARCHITECTURES has ${architecture}, expected all, native, or "
                        "numbers from 75 on (90a for Hopper), maybe with -real or -virtual")
  endif()
endforeach()
