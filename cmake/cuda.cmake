# SPDX-License-Identifier: MIT
# The CUDA kernels: every *_cuda.cu of a family, built into the core's objects.

enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

file(GLOB_RECURSE TFK_CUDA_SOURCES CONFIGURE_DEPENDS csrc/core/cuda/*.cu csrc/*_cuda.cu)
target_sources(tfk_objects PRIVATE ${TFK_CUDA_SOURCES})
target_compile_definitions(tfk_objects PUBLIC TFK_WITH_CUDA)
target_link_libraries(tfk_objects PUBLIC CUDA::cudart_static)

# A register spill fails the build: a kernel that needs one wants another configuration.
set(TFK_NVCC_OPTIONS --expt-relaxed-constexpr -Xptxas=-warn-spills -Xptxas=-Werror)
if(TFK_PTXAS_VERBOSE)
  list(APPEND TFK_NVCC_OPTIONS -Xptxas=-v)
endif()
target_compile_options(tfk_objects PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${TFK_NVCC_OPTIONS}>)
