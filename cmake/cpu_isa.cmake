# SPDX-License-Identifier: MIT
# Sources that are compiled once per instruction set. The library picks one set when it runs, so
# each set's code lives in a namespace of its own (TFK_ISA) and shares no inline symbol with
# another; tools/check_isa_symbols.py proves that on the object files.

set(TFK_ISAS scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(TFK_ISAS scalar avx2 avx512 avx512_bf16)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-mamx-tile -mamx-bf16" TFK_COMPILER_HAS_AMX)
  if(TFK_COMPILER_HAS_AMX)
    list(APPEND TFK_ISAS amx)
  endif()
endif()

# In the order of `enum class Isa` (csrc/core/cpu/isa.h). Without contraction, a value does not
# depend on whether the compiler saw a product next to a sum.
set(TFK_ISA_FLAGS_scalar -ffp-contract=off)
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
  set(TFK_ISA_FLAGS_avx512 ${TFK_ISA_FLAGS_avx2} -I${PROJECT_SOURCE_DIR}/tests/cpp/emulation
                           -Wno-psabi)
  set(TFK_ISA_FLAGS_avx512_bf16 ${TFK_ISA_FLAGS_avx512})
  set(TFK_ISA_FLAGS_amx ${TFK_ISA_FLAGS_avx512})
endif()

# tfk_add_isa_sources(target file...): adds the files to `target`, once per instruction set, with
# the target's own options, and tells the rest of the target how many sets there are. Once per
# target.
function(tfk_add_isa_sources target)
  list(LENGTH TFK_ISAS count)
  target_compile_definitions(
    ${target} PRIVATE TFK_ISA_COUNT=${count}
                      $<$<BOOL:${TFK_EMULATE_AVX512}>:TFK_EMULATE_AVX512>)
  # Objects of an object library reach those who link it only as a part of its interface.
  get_target_property(type ${target} TYPE)
  set(scope PRIVATE)
  if(type STREQUAL "OBJECT_LIBRARY")
    set(scope INTERFACE)
  endif()
  set(level 0)
  foreach(isa IN LISTS TFK_ISAS)
    set(objects ${target}_${isa})
    add_library(${objects} OBJECT ${ARGN})
    target_compile_definitions(
      ${objects} PRIVATE TFK_ISA=${isa} TFK_ISA_LEVEL=${level} TFK_ISA_COUNT=${count}
                         $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>
                                              ${TFK_ISA_FLAGS_${isa}})
    target_include_directories(${objects}
                               PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_sources(${target} ${scope} $<TARGET_OBJECTS:${objects}>)
    math(EXPR level "${level} + 1")
  endforeach()
endfunction()
