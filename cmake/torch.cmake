# SPDX-License-Identifier: MIT
# PyTorch bindings through LibTorch's stable ABI. Any PyTorch >= 2.10 will do to build, without CUDA
# as well; the result loads into all of them. find_package(Torch) would bring CUDA flags and
# libraries that are not wanted.

find_package(Python3 COMPONENTS Interpreter REQUIRED)
# Found, not imported: that takes no second and no CUDA.
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "from importlib.util import find_spec
torch = find_spec('torch')
print(torch.submodule_search_locations[0] if torch else '')"
  OUTPUT_VARIABLE TFK_TORCH_FOUND OUTPUT_STRIP_TRAILING_WHITESPACE)
set(TFK_TORCH_DIR ${TFK_TORCH_FOUND} CACHE PATH "The folder of the torch package")
if(NOT TFK_TORCH_DIR)
  if(SKBUILD)
    message(FATAL_ERROR "A wheel needs PyTorch to build against: install it beside "
                        "${Python3_EXECUTABLE} and pass --no-build-isolation to pip")
  endif()
  message(STATUS "PyTorch not found by ${Python3_EXECUTABLE}: building without its bindings")
  return()
endif()

add_library(transformer_kernels_torch SHARED ${TFK_TORCH_SOURCES})
target_compile_definitions(transformer_kernels_torch
                           PRIVATE TORCH_TARGET_VERSION=0x020a000000000000ULL # 2.10
                                   $<$<BOOL:${TFK_CUDA}>:TFK_WITH_CUDA>)
target_compile_options(transformer_kernels_torch PRIVATE -Wall -Wextra)
target_include_directories(transformer_kernels_torch PRIVATE csrc)
target_include_directories(transformer_kernels_torch SYSTEM PRIVATE ${TFK_TORCH_DIR}/include)
target_link_libraries(transformer_kernels_torch PRIVATE transformer_kernels)

# Python loads torch's libraries with local symbols, so the linker must record them as needed even
# where a symbol could come from elsewhere. The loader finds the copies that are already loaded.
target_link_directories(transformer_kernels_torch PRIVATE ${TFK_TORCH_DIR}/lib)
target_link_options(transformer_kernels_torch PRIVATE -Wl,--no-as-needed)
target_link_libraries(transformer_kernels_torch PRIVATE torch torch_cpu c10)
set_target_properties(
  transformer_kernels_torch
  PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${TFK_LIBRARY_DIR} SKIP_BUILD_RPATH OFF
             BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
