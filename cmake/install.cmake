# SPDX-License-Identifier: MIT
# Two layouts: a C++ prefix for find_package and pkg-config, and the Python wheel, where the
# libraries lie inside the package.

if(SKBUILD)
  install(TARGETS transformer_kernels transformer_kernels_torch
          LIBRARY DESTINATION transformer_kernels/lib)
  return()
endif()

set(TFK_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/transformer_kernels)
install(TARGETS transformer_kernels EXPORT transformer_kernels
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY csrc/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT transformer_kernels NAMESPACE transformer_kernels::
        FILE transformer_kernels-targets.cmake DESTINATION ${TFK_PACKAGE_DIR})
write_basic_package_version_file(transformer_kernels-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
configure_package_config_file(
  cmake/transformer_kernels-config.cmake.in transformer_kernels-config.cmake
  INSTALL_DESTINATION ${TFK_PACKAGE_DIR} NO_SET_AND_CHECK_MACRO
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
install(FILES ${PROJECT_BINARY_DIR}/transformer_kernels-config.cmake
              ${PROJECT_BINARY_DIR}/transformer_kernels-config-version.cmake
        DESTINATION ${TFK_PACKAGE_DIR})

# What a program that links the archive has to link as well; the shared library brings its own.
set(TFK_PC_LIBS "-pthread")
foreach(library IN LISTS CMAKE_DL_LIBS)
  string(APPEND TFK_PC_LIBS " -l${library}")
endforeach()
if(TFK_CUDA)
  string(APPEND TFK_PC_LIBS " ${CUDA_cudart_static_LIBRARY} -lrt")
endif()
set(TFK_PC_PUBLIC "")
if(NOT BUILD_SHARED_LIBS)
  set(TFK_PC_PUBLIC " ${TFK_PC_LIBS}")
endif()
file(RELATIVE_PATH TFK_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/transformer_kernels.pc.in transformer_kernels.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/transformer_kernels.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
