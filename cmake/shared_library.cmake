# SPDX-License-Identifier: MIT
# The rules of a shared library that lives in one process with PyTorch: the C++ runtime is the
# shared one, and nothing is exported but the API.

# Two copies of the C++ runtime in a process mistake each other's objects (locale facets, exceptions
# in flight). A compiler whose folder has no libstdc++.so links the archive instead, silently.
function(tfk_links_shared_runtime result)
  set(folder ${PROJECT_BINARY_DIR}/shared_runtime)
  file(CONFIGURE OUTPUT ${folder}/probe.cpp
       CONTENT "#include <string>\nstd::string twice(std::string s) { return s + s; }\n")
  separate_arguments(options NATIVE_COMMAND "${CMAKE_SHARED_LINKER_FLAGS}")
  # With CUDA, CMake also links from the folders of nvcc's host compiler, which may be another.
  set(folders ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
  list(REMOVE_ITEM folders ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES})
  list(TRANSFORM folders PREPEND -L)
  try_compile(built ${folder} SOURCES ${folder}/probe.cpp COMPILE_DEFINITIONS -fPIC
              LINK_OPTIONS -shared ${options} ${folders} LINK_LIBRARIES ${ARGN}
              COPY_FILE ${folder}/probe.so OUTPUT_VARIABLE log)
  if(NOT built)
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} does not link a shared library:\n${log}")
  endif()
  execute_process(COMMAND ${CMAKE_READELF} -d ${folder}/probe.so OUTPUT_VARIABLE needed)
  set(shared OFF)
  if(needed MATCHES "NEEDED[^\n]*lib(std)?c\\+\\+\\.so")
    set(shared ON)
  endif()
  set(${result} ${shared} PARENT_SCOPE)
endfunction()

# macOS has one libc++ alone, in the system.
set(TFK_CXX_RUNTIME "")
if(CMAKE_READELF AND NOT APPLE)
  tfk_links_shared_runtime(TFK_RUNTIME_IS_SHARED)
  if(NOT TFK_RUNTIME_IS_SHARED)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so.6
                    OUTPUT_VARIABLE TFK_CXX_RUNTIME OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(IS_ABSOLUTE "${TFK_CXX_RUNTIME}")
      tfk_links_shared_runtime(TFK_RUNTIME_IS_SHARED ${TFK_CXX_RUNTIME})
    endif()
    if(NOT TFK_RUNTIME_IS_SHARED)
      message(FATAL_ERROR "${CMAKE_CXX_COMPILER} links libstdc++ statically, expected the shared "
                          "libstdc++.so: beside PyTorch's copy a second one ends in crashes. Leave "
                          "out -static-libstdc++, or use a compiler that has libstdc++.so")
    endif()
    message(STATUS "C++ runtime: ${TFK_CXX_RUNTIME}, which the linker would not choose")
  endif()
endif()

# tfk_limit_exports(target): a shared library of the project exports the API alone.
function(tfk_limit_exports target)
  target_link_libraries(${target} PRIVATE ${TFK_CXX_RUNTIME})
  if(APPLE)
    return()
  endif()
  set(map ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(${target} PRIVATE -Wl,--version-script=${map} -Wl,--exclude-libs,ALL)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
endfunction()

# tfk_check_symbols(target): the build fails where the library exports or needs what it should not.
# Instrumentation adds symbols of its own.
find_package(Python3 COMPONENTS Interpreter QUIET)
function(tfk_check_symbols target)
  if(CMAKE_NM AND Python3_FOUND AND NOT TFK_INSTRUMENTATION AND NOT APPLE)
    add_custom_command(
      TARGET ${target} POST_BUILD
      COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_symbols.py --quiet
              --nm ${CMAKE_NM} $<TARGET_FILE:${target}>
      VERBATIM)
  endif()
endfunction()
