// SPDX-License-Identifier: MIT
// Which instruction set the CPU kernels use. Sources named *_isa.cpp are compiled once per set,
// each into a namespace named after it, and export a table of kernels; the rest of the library
// picks the table of isa(). TFK_CPU_ISA=scalar|avx2|avx512|avx512_bf16|amx asks for a lower set
// than the best. Builds by a compiler without AMX end at avx512_bf16.
#pragma once

#include <cstdint>

#include "core/log.h"

#ifndef TFK_ISA_COUNT
#define TFK_ISA_COUNT 1
#endif

namespace transformer_kernels::cpu {

enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };

inline constexpr int kIsaCount = TFK_ISA_COUNT;

constexpr const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

// The best set that both this build and this CPU have.
Isa best_isa();

// The set named `requested`; `best` where it is null or empty. Throws Error when the name is
// unknown or above `best`.
Isa choose_isa(const char* requested, Isa best);

// The set in use: choose_isa(TFK_CPU_ISA, best_isa()), evaluated once.
Isa isa();

// Whether the set in use multiplies pairs of bfloat16 at twice the rate of float: AMX by far, and
// AVX512-BF16 on AMD's processors. On Intel's its products take twice as long as those of float.
bool multiplies_pairs_fast();

// For TFK_LOG=dispatch; `plan` is what the kernel was chosen with, where there is a choice.
template <class Problem, class... Plan>
void log_cpu_kernel(const char* op, const Problem& problem, const Plan&... plan) {
  if (!log_dispatch()) return;
  const std::string name =
      std::string("cpu_") + name_of(isa()) + ((' ' + describe(plan)) + ... + "");
  log_line(std::string(op) + ' ' + describe(problem) + ": " + name + " runs");
}

}  // namespace transformer_kernels::cpu

// Declares something once in the namespace of each instruction set of this build, and lists the
// addresses of what was declared in the order of Isa.
#define TFK_DECLARE_IN(isa, declaration) \
  namespace isa {                        \
  declaration;                           \
  }
#if TFK_ISA_COUNT >= 5
#define TFK_DECLARE_IN_AMX(declaration) TFK_DECLARE_IN(amx, declaration)
#define TFK_AND_AMX(name) , &amx::name
#else
#define TFK_DECLARE_IN_AMX(declaration)
#define TFK_AND_AMX(name)
#endif
#if TFK_ISA_COUNT > 1
#define TFK_DECLARE_PER_ISA(declaration)   \
  TFK_DECLARE_IN(scalar, declaration)      \
  TFK_DECLARE_IN(avx2, declaration)        \
  TFK_DECLARE_IN(avx512, declaration)      \
  TFK_DECLARE_IN(avx512_bf16, declaration) \
  TFK_DECLARE_IN_AMX(declaration)
#define TFK_PER_ISA(name) \
  { &scalar::name, &avx2::name, &avx512::name, &avx512_bf16::name TFK_AND_AMX(name) }
#else
#define TFK_DECLARE_PER_ISA(declaration) TFK_DECLARE_IN(scalar, declaration)
#define TFK_PER_ISA(name) \
  { &scalar::name }
#endif
