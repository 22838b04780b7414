# SPDX-License-Identifier: MIT
# PyTorch bindings through LibTorch's stable ABI. They are built against copies of its headers, so
# that a build needs no PyTorch; the result loads into every PyTorch from 2.10 on.

add_library(transformer_kernels_torch SHARED ${TFK_TORCH_SOURCES})
target_compile_definitions(transformer_kernels_torch
                           PRIVATE TORCH_TARGET_VERSION=0x020a000000000000ULL # 2.10
                                   $<$<BOOL:${TFK_CUDA}>:TFK_WITH_CUDA>)
target_compile_options(transformer_kernels_torch PRIVATE -Wall -Wextra)
target_include_directories(transformer_kernels_torch PRIVATE csrc)
target_include_directories(transformer_kernels_torch SYSTEM PRIVATE third_party/torch/include)
target_link_libraries(transformer_kernels_torch PRIVATE transformer_kernels)

if(APPLE)
  # As in PyTorch's own extensions: the loader looks in all libraries that are already loaded.
  set(TFK_OWN_FOLDER "@loader_path")
  target_link_options(transformer_kernels_torch PRIVATE -Wl,-undefined,dynamic_lookup)
else()
  # Python loads torch's libraries with local symbols, so the linker must record them as needed even
  # where a symbol could come from elsewhere: here empty libraries of their names stand for them.
  # The loader finds the copies that are already loaded.
  set(TFK_OWN_FOLDER "$ORIGIN")
  target_link_options(transformer_kernels_torch PRIVATE -Wl,--no-as-needed)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/torch/empty.cpp CONTENT "")
  foreach(name IN ITEMS torch torch_cpu c10)
    add_library(tfk_stub_${name} SHARED ${PROJECT_BINARY_DIR}/torch/empty.cpp)
    set_target_properties(tfk_stub_${name} PROPERTIES OUTPUT_NAME ${name}
                          LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/torch)
    target_link_libraries(transformer_kernels_torch PRIVATE tfk_stub_${name})
  endforeach()
endif()

tfk_limit_exports(transformer_kernels_torch)
set_target_properties(
  transformer_kernels_torch
  PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${TFK_LIBRARY_DIR} SKIP_BUILD_RPATH OFF
             BUILD_RPATH ${TFK_OWN_FOLDER} INSTALL_RPATH ${TFK_OWN_FOLDER}
             BUILD_WITH_INSTALL_RPATH ON)
tfk_check_symbols(transformer_kernels_torch)
