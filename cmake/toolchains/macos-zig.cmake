# SPDX-License-Identifier: MIT
# Compiles for macOS on another system with zig's Clang, which brings the system's headers and stubs
# of its libraries: `pip install ziglang==0.14.1`.
#
# This proves that the sources compile and link. zig puts a libc++ of its own into each library;
# libraries to hand on are made on a Mac, where both share the system's. zig lacks what asks the
# processor of an Intel Mac for its instruction sets (__cpu_model).
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_DEPLOYMENT_TARGET 13.0)

file(GLOB TFK_ZIG_FOLDERS ${CMAKE_CURRENT_LIST_DIR}/../../.venv/lib/python3*/site-packages/ziglang)
find_program(TFK_ZIG zig HINTS ${TFK_ZIG_FOLDERS} REQUIRED)
set(CMAKE_C_COMPILER ${TFK_ZIG} cc -target aarch64-macos)
set(CMAKE_CXX_COMPILER ${TFK_ZIG} c++ -target aarch64-macos)
# What CMake knows by itself on a Mac alone: that libraries find each other by search paths. It asks
# for the program that changes them at an installation.
set(CMAKE_USER_MAKE_RULES_OVERRIDE_CXX ${CMAKE_CURRENT_LIST_DIR}/macos-search-paths.cmake)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
find_program(CMAKE_INSTALL_NAME_TOOL NAMES install_name_tool llvm-install-name-tool true REQUIRED)
