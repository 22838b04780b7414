# SPDX-License-Identifier: MIT
# Read by CMake behind its own file on macOS, which sets this where it runs on a Mac.
set(CMAKE_SHARED_LIBRARY_RUNTIME_C_FLAG -Wl,-rpath,)
