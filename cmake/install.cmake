# SPDX-License-Identifier: MIT
# Two layouts: a C++ prefix for find_package, and the Python wheel, where the libraries lie inside
# the package.

if(SKBUILD)
  install(TARGETS transformer_kernels LIBRARY DESTINATION transformer_kernels/lib)
  if(TARGET transformer_kernels_torch)
    install(TARGETS transformer_kernels_torch LIBRARY DESTINATION transformer_kernels/lib)
  endif()
  return()
endif()

set(TFK_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/transformer_kernels)
install(TARGETS transformer_kernels EXPORT transformer_kernels
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY csrc/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT transformer_kernels NAMESPACE transformer_kernels::
        FILE transformer_kernels-config.cmake DESTINATION ${TFK_PACKAGE_DIR})
write_basic_package_version_file(transformer_kernels-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/transformer_kernels-config-version.cmake
        DESTINATION ${TFK_PACKAGE_DIR})
