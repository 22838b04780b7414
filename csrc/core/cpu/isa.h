// SPDX-License-Identifier: MIT
// The instruction set that the CPU kernels use. A source named *_isa.cpp is compiled once per set,
// each time into a namespace named after the set, and exports a table of kernels; the rest of the
// library picks the table of isa(). TFK_CPU_ISA=scalar|neon|avx2|avx512|avx512_bf16|amx asks for a
// lower set than the best. A build may lack some sets (TFK_ISAS of cmake/cpu_isa.cmake).
#pragma once

#include <cstdint>
#include <vector>

#include "core/log.h"

namespace transformer_kernels::cpu {

enum class Isa : std::uint8_t { kScalar, kNeon, kAvx2, kAvx512, kAvx512Bf16, kAmx };

constexpr const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"scalar", "neon", "avx2", "avx512", "avx512_bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

// The sets that both this build and this CPU have, the best last.
std::vector<Isa> usable_isas();

// The set named `requested`; the last of `usable` where it is null or empty. Throws Error when
// there is no such set.
Isa choose_isa(const char* requested, const std::vector<Isa>& usable);

// The set in use: choose_isa(TFK_CPU_ISA, usable_isas()), evaluated once.
Isa isa();

// Whether the set in use multiplies pairs of bfloat16 at twice the rate of float: AMX by far, and
// AVX512-BF16 on AMD's processors. On Intel's its products take twice as long as those of float.
bool multiplies_pairs_fast();

// For TFK_LOG=dispatch; `plan` names the choice of the kernel, where there is one.
template <class Problem, class... Plan>
void log_cpu_kernel(const char* op, const Problem& problem, const Plan&... plan) {
  if (!log_dispatch()) return;
  const std::string name =
      std::string("cpu_") + name_of(isa()) + ((' ' + describe(plan)) + ... + "");
  log_line(std::string(op) + ' ' + describe(problem) + ": " + name + " runs");
}

}  // namespace transformer_kernels::cpu

// Declares something once in the namespace of each instruction set.
#define TFK_DECLARE_IN(isa, declaration) \
  namespace isa {                        \
  declaration;                           \
  }
#define TFK_DECLARE_PER_ISA(declaration)   \
  TFK_DECLARE_IN(scalar, declaration)      \
  TFK_DECLARE_IN(neon, declaration)        \
  TFK_DECLARE_IN(avx2, declaration)        \
  TFK_DECLARE_IN(avx512, declaration)      \
  TFK_DECLARE_IN(avx512_bf16, declaration) \
  TFK_DECLARE_IN(amx, declaration)

// The addresses of what was declared, in the order of Isa; null where this build lacks the set. The
// build defines TFK_BUILDS_<set> as 1 or 0, for sources alone that have one of these names in them.
#define TFK_ADDRESS_1(name) &name
#define TFK_ADDRESS_0(name) nullptr
#define TFK_ADDRESS_OF_BUILT(built, name) TFK_ADDRESS_##built(name)
#define TFK_ADDRESS_IF(built, name) TFK_ADDRESS_OF_BUILT(built, name)
#define TFK_PER_ISA(name)                                                                         \
  {                                                                                               \
    TFK_ADDRESS_IF(TFK_BUILDS_SCALAR, scalar::name), TFK_ADDRESS_IF(TFK_BUILDS_NEON, neon::name), \
        TFK_ADDRESS_IF(TFK_BUILDS_AVX2, avx2::name),                                              \
        TFK_ADDRESS_IF(TFK_BUILDS_AVX512, avx512::name),                                          \
        TFK_ADDRESS_IF(TFK_BUILDS_AVX512_BF16, avx512_bf16::name),                                \
        TFK_ADDRESS_IF(TFK_BUILDS_AMX, amx::name)                                                 \
  }
