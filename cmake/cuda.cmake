# SPDX-License-Identifier: MIT
# The CUDA kernels, as objects of the core: every .cu under csrc, and those that are made from the
# lists of csrc/*/instances.cmake.
#
# A source is compiled for the architectures that can run its kernels, which its path says:
#   sm90a  Hopper alone          sm90  9.0 and later          sm80  8.0 and later          else all
# *_typed.cu are compiled once per storage type (TFK_TYPE), so that no unit is much longer than
# another; float64 only has kernels for all architectures.

# The first CMake of PyPI that knows sm_100f. 4.0 and later know it too.
if(CMAKE_VERSION VERSION_LESS 3.31.10)
  message(FATAL_ERROR "CMake is ${CMAKE_VERSION}, expected at least 3.31.10 for the CUDA kernels: "
                      "`pip install cmake` has it, and -DTFK_CUDA=OFF needs no more than 3.25")
endif()
list(JOIN CMAKE_CUDA_ARCHITECTURES " " TFK_CUDA_WORDS)
message(STATUS "CUDA architectures: ${TFK_CUDA_WORDS}")

enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

# A register spill fails the build: a kernel that needs one wants another configuration. Kernels of
# one template are much alike: this compression makes a quarter of what the default one does.
set(TFK_NVCC_OPTIONS --expt-relaxed-constexpr --compress-mode=size -Xptxas=-warn-spills
                     -Xptxas=-Werror)
if(TFK_PTXAS_VERBOSE)
  list(APPEND TFK_NVCC_OPTIONS -Xptxas=-v)
endif()

set(TFK_PATH_sm90a "[/_]sm90a[/_.]")
set(TFK_PATH_sm90 "[/_]sm90[/_.]")
set(TFK_PATH_sm80 "[/_]sm80[/_.]")
set(TFK_PATH_all ".")
set(TFK_NUMBER_sm90a "^90$")
set(TFK_NUMBER_sm90 "^(9[0-9]|1[0-9][0-9])$")
set(TFK_NUMBER_sm80 "^([89][0-9]|1[0-9][0-9])$")
set(TFK_NUMBER_all ".")

# tfk_add_cuda_objects(name architectures definitions sources): compiles into the core's objects.
function(tfk_add_cuda_objects name architectures definitions sources)
  add_library(${name} OBJECT)
  foreach(source IN LISTS sources)
    if(source IN_LIST TFK_CUDA_MADE)
      string(PREPEND source ${PROJECT_BINARY_DIR}/)
    endif()
    target_sources(${name} PRIVATE ${source})
  endforeach()
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
  target_include_directories(${name} PRIVATE csrc/include csrc)
  target_compile_definitions(${name} PRIVATE TFK_WITH_CUDA ${TFK_CUDA_SETS} ${definitions})
  target_compile_options(${name} PRIVATE ${TFK_NVCC_OPTIONS})
  target_sources(tfk_objects INTERFACE $<TARGET_OBJECTS:${name}>)
endfunction()

option(TFK_CUDA_EACH_ONCE
       "Build each kernel for the first architecture that has it: to check them, not to run" OFF)

# Which architectures each set has, and how many, for the code that names its kernels.
set(TFK_CUDA_SETS "")
foreach(set IN ITEMS sm90a sm90 sm80 all)
  set(TFK_ARCHITECTURES_${set} "")
  foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
    string(REGEX MATCH "^[0-9]+" number "${architecture}")
    if(number MATCHES "${TFK_NUMBER_${set}}")
      list(APPEND TFK_ARCHITECTURES_${set} ${architecture})
    endif()
  endforeach()
  if(TFK_CUDA_EACH_ONCE)
    list(SUBLIST TFK_ARCHITECTURES_${set} 0 1 TFK_ARCHITECTURES_${set})
  endif()
  list(LENGTH TFK_ARCHITECTURES_${set} count)
  string(TOUPPER TFK_CUDA_${set} name)
  list(APPEND TFK_CUDA_SETS ${name}=${count})
endforeach()

# tfk_cuda_instances(unit header instance...): a unit that only instantiates function templates of
# `header`. `unit` names it as a path below csrc names a source; the file is in the build folder.
set_property(GLOBAL PROPERTY TFK_CUDA_INSTANCES "")
function(tfk_cuda_instances unit header)
  set(body "")
  foreach(instance IN LISTS ARGN)
    string(APPEND body "template void ${instance};\n")
  endforeach()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/csrc/${unit}.cu @ONLY
       CONTENT "#include \"${header}\"

namespace transformer_kernels::cuda {

${body}
}  // namespace transformer_kernels::cuda
")
  set_property(GLOBAL APPEND PROPERTY TFK_CUDA_INSTANCES csrc/${unit}.cu)
endfunction()

file(GLOB TFK_CUDA_INSTANCE_LISTS CONFIGURE_DEPENDS csrc/*/instances.cmake)
foreach(instances IN LISTS TFK_CUDA_INSTANCE_LISTS)
  include(${instances})
endforeach()

file(GLOB_RECURSE TFK_CUDA_SOURCES CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} csrc/*.cu)
get_property(TFK_CUDA_MADE GLOBAL PROPERTY TFK_CUDA_INSTANCES)
list(APPEND TFK_CUDA_SOURCES ${TFK_CUDA_MADE})
foreach(set IN ITEMS sm90a sm90 sm80 all)
  set(sources ${TFK_CUDA_SOURCES})
  list(FILTER sources INCLUDE REGEX "${TFK_PATH_${set}}")
  list(REMOVE_ITEM TFK_CUDA_SOURCES ${sources})
  set(architectures "${TFK_ARCHITECTURES_${set}}")
  if(NOT architectures OR NOT sources)
    continue()
  endif()
  set(typed ${sources})
  list(FILTER typed INCLUDE REGEX "_typed.cu$")
  list(REMOVE_ITEM sources ${typed})
  if(sources)
    tfk_add_cuda_objects(tfk_cuda_${set} "${architectures}" "" "${sources}")
  endif()
  foreach(type IN ITEMS Half BFloat16 float double)
    if(typed AND (set STREQUAL all OR NOT type STREQUAL double))
      tfk_add_cuda_objects(tfk_cuda_${set}_${type} "${architectures}" TFK_TYPE=${type} "${typed}")
    endif()
  endforeach()
endforeach()

target_compile_definitions(tfk_objects PUBLIC TFK_WITH_CUDA ${TFK_CUDA_SETS})
target_link_libraries(tfk_objects PUBLIC CUDA::cudart_static)
