// SPDX-License-Identifier: MIT
#include "core/cpu/isa.h"

#include <cstdlib>
#include <string_view>

#include "core/check.h"

namespace transformer_kernels::cpu {
namespace {

std::string names_up_to(Isa best) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(best); ++i) {
    names += concat(i ? ", " : "", name_of(static_cast<Isa>(i)));
  }
  return names;
}

}  // namespace

// The compiler's run-time support also asks the operating system whether it saves the registers.
Isa best_isa() {
#if TFK_ISA_COUNT > 1
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (!avx2) return Isa::kScalar;
#ifdef TFK_EMULATE_AVX512
  return Isa::kAvx512Bf16;
#endif
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return Isa::kAvx2;
  const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  return bf16 ? Isa::kAvx512Bf16 : Isa::kAvx512;
#else
  return Isa::kScalar;
#endif
}

Isa choose_isa(const char* requested, Isa best) {
  const std::string_view name = requested == nullptr ? "" : requested;
  if (name.empty()) return best;
  for (int i = 0; i <= static_cast<int>(best); ++i) {
    if (name == name_of(static_cast<Isa>(i))) return static_cast<Isa>(i);
  }
  throw Error(Error::Kind::kValue, concat("TFK_CPU_ISA is ", name, ", expected one of ",
                                          names_up_to(best), " (what this CPU and build have)"));
}

Isa isa() {
  static const Isa chosen = choose_isa(std::getenv("TFK_CPU_ISA"), best_isa());
  return chosen;
}

}  // namespace transformer_kernels::cpu
