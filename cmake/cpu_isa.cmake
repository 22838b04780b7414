# SPDX-License-Identifier: MIT
# Sources that are compiled once per instruction set. The library picks one set when it runs, so
# each set's code lives in a namespace of its own (TFK_ISA) and shares no inline symbol with
# another; tools/check_isa_symbols.py proves that on the object files.

# In the order of `enum class Isa` (csrc/core/cpu/isa.h).
set(TFK_ALL_ISAS scalar neon avx2 avx512 avx512_bf16 amx)
# What tells sources the set. A level has all that those below it have, but for NEON's.
set(TFK_ISA_DEFINITIONS_scalar TFK_ISA_LEVEL=0)
set(TFK_ISA_DEFINITIONS_neon TFK_ISA_LEVEL=0 TFK_ISA_NEON)
set(TFK_ISA_DEFINITIONS_avx2 TFK_ISA_LEVEL=1)
set(TFK_ISA_DEFINITIONS_avx512 TFK_ISA_LEVEL=2)
set(TFK_ISA_DEFINITIONS_avx512_bf16 TFK_ISA_LEVEL=3)
set(TFK_ISA_DEFINITIONS_amx TFK_ISA_LEVEL=4)

set(TFK_COMPILER_ISAS scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(TFK_COMPILER_ISAS scalar avx2 avx512 avx512_bf16)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-mamx-tile -mamx-bf16" TFK_COMPILER_HAS_AMX)
  if(TFK_COMPILER_HAS_AMX)
    list(APPEND TFK_COMPILER_ISAS amx)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(TFK_COMPILER_ISAS scalar neon)
endif()

# tfk_native_isa(result): the best instruction set that this CPU and this compiler have.
function(tfk_native_isa result)
  set(flags "")
  if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  endif()
  set(needs_scalar "")
  set(needs_neon "")
  set(needs_avx2 " avx2 ")
  set(needs_avx512 " avx512dq ")
  set(needs_avx512_bf16 " avx512_bf16 ")
  set(needs_amx " amx_bf16 ")
  set(best scalar)
  foreach(isa IN LISTS TFK_COMPILER_ISAS)
    if("${flags} " MATCHES "${needs_${isa}}")
      set(best ${isa})
    endif()
  endforeach()
  set(${result} ${best} PARENT_SCOPE)
endfunction()
tfk_native_isa(TFK_NATIVE_ISA)

# Each set takes as long to compile as the next. What is built for one machine has the best set of
# its CPU, and AVX2, which most others have; beside AMX, whose tiles a system may refuse, the next.
set(TFK_USUAL_ISAS all)
if(NOT CMAKE_CROSSCOMPILING AND "avx2" IN_LIST TFK_COMPILER_ISAS)
  set(TFK_USUAL_ISAS avx2 native)
  if(TFK_NATIVE_ISA STREQUAL "amx")
    list(APPEND TFK_USUAL_ISAS avx512_bf16)
  endif()
endif()
set(TFK_ISAS "${TFK_USUAL_ISAS}" CACHE STRING
    "CPU instruction sets to build: all, or a list of ${TFK_ALL_ISAS} and native (this CPU's best)")

set(TFK_BUILT_ISAS ${TFK_COMPILER_ISAS})
if(NOT TFK_ISAS STREQUAL "all")
  set(TFK_BUILT_ISAS ${TFK_ISAS})
  list(TRANSFORM TFK_BUILT_ISAS REPLACE "^native$" ${TFK_NATIVE_ISA})
  list(REMOVE_DUPLICATES TFK_BUILT_ISAS)
  foreach(isa IN LISTS TFK_BUILT_ISAS)
    if(NOT isa IN_LIST TFK_COMPILER_ISAS)
      message(FATAL_ERROR "TFK_ISAS has ${isa}, expected native or some of ${TFK_COMPILER_ISAS}")
    endif()
  endforeach()
endif()
message(STATUS "CPU instruction sets: ${TFK_BUILT_ISAS}")

# Without contraction, a value does not depend on whether the compiler saw a product next to a sum.
set(TFK_ISA_FLAGS_scalar -ffp-contract=off)
set(TFK_ISA_FLAGS_neon ${TFK_ISA_FLAGS_scalar})
set(TFK_ISA_FLAGS_avx2 ${TFK_ISA_FLAGS_scalar} -mavx2 -mfma -mf16c)
set(TFK_ISA_FLAGS_avx512 ${TFK_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # The compiler's own AVX-512 headers draw false warnings (GCC bug 105593).
  list(APPEND TFK_ISA_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(TFK_ISA_FLAGS_avx512_bf16 ${TFK_ISA_FLAGS_avx512} -mavx512bf16 -mavx512vnni)
set(TFK_ISA_FLAGS_amx ${TFK_ISA_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16)
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(TFK_ISA_FLAGS_scalar "")
endif()

option(TFK_EMULATE_AVX512
       "Run AVX-512 and AMX kernels on AVX2, slowly, to test them (needs SIMDe)" OFF)
if(TFK_EMULATE_AVX512)
  find_path(TFK_SIMDE simde/x86/avx512.h REQUIRED)
  # Few of these tests run for long, and -O3 would take twice as long to compile.
  set(TFK_ISA_FLAGS_avx512 ${TFK_ISA_FLAGS_avx2} -I${PROJECT_SOURCE_DIR}/tests/cpp/emulation
                           -Wno-psabi -O1 -fexpensive-optimizations)
  set(TFK_ISA_FLAGS_avx512_bf16 ${TFK_ISA_FLAGS_avx512})
  set(TFK_ISA_FLAGS_amx ${TFK_ISA_FLAGS_avx512})
endif()

# tfk_name_built_isas(target): tells the target's sources that ask which sets there are. All others
# compile alike whatever there is, so that a compiler's cache serves builds of other sets.
function(tfk_name_built_isas target)
  set(builds "")
  foreach(isa IN LISTS TFK_ALL_ISAS)
    string(TOUPPER TFK_BUILDS_${isa} name)
    list(FIND TFK_BUILT_ISAS ${isa} place)
    list(APPEND builds ${name}=$<NOT:$<EQUAL:${place},-1>>)
  endforeach()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source)
    file(STRINGS ${source} asks REGEX "TFK_PER_ISA|TFK_BUILDS_" LIMIT_COUNT 1)
    if(asks)
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS ${builds})
    endif()
  endforeach()
endfunction()

# tfk_add_isa_sources(target file...): adds the files to `target`, once per instruction set, with
# the target's own options, and names the sets to the target's sources. Once per target.
function(tfk_add_isa_sources target)
  tfk_name_built_isas(${target})
  target_compile_definitions(${target} PRIVATE $<$<BOOL:${TFK_EMULATE_AVX512}>:TFK_EMULATE_AVX512>)
  # Objects of an object library reach those who link it only as a part of its interface.
  get_target_property(type ${target} TYPE)
  set(scope PRIVATE)
  if(type STREQUAL "OBJECT_LIBRARY")
    set(scope INTERFACE)
  endif()
  foreach(isa IN LISTS TFK_BUILT_ISAS)
    set(objects ${target}_${isa})
    add_library(${objects} OBJECT ${ARGN})
    target_compile_definitions(
      ${objects} PRIVATE TFK_ISA=${isa} ${TFK_ISA_DEFINITIONS_${isa}}
                         $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>
                                              ${TFK_ISA_FLAGS_${isa}})
    target_include_directories(${objects}
                               PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_sources(${target} ${scope} $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()
