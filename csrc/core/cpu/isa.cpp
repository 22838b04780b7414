// SPDX-License-Identifier: MIT
#include "core/cpu/isa.h"

#include <cstdlib>
#include <string_view>

#include "core/check.h"

#if TFK_ISA_COUNT >= 5 && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace transformer_kernels::cpu {
namespace {

std::string names_up_to(Isa best) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(best); ++i) {
    names += concat(i ? ", " : "", name_of(static_cast<Isa>(i)));
  }
  return names;
}

#if TFK_ISA_COUNT >= 5 && defined(TFK_EMULATE_AVX512)

bool may_use_tiles() { return true; }

#elif TFK_ISA_COUNT >= 5 && defined(__linux__) && defined(SYS_arch_prctl)

bool processor_has_amx_bf16() {
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0;
}

// Linux gives a process the tile registers when it asks, for all its threads. Whoever has asked
// before is told yes again; a system without AMX says no.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return processor_has_amx_bf16() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else

bool may_use_tiles() { return false; }

#endif

}  // namespace

// The compiler's run-time support also asks the operating system whether it saves the registers.
Isa best_isa() {
#if TFK_ISA_COUNT > 1
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (!avx2) return Isa::kScalar;
#ifdef TFK_EMULATE_AVX512
  return may_use_tiles() ? Isa::kAmx : Isa::kAvx512Bf16;
#endif
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return Isa::kAvx2;
  const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  if (!bf16) return Isa::kAvx512;
  return may_use_tiles() ? Isa::kAmx : Isa::kAvx512Bf16;
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

bool multiplies_pairs_fast() {
#if defined(TFK_EMULATE_AVX512)
  return isa() >= Isa::kAvx512Bf16;
#elif TFK_ISA_COUNT > 1
  return isa() == Isa::kAmx || (isa() == Isa::kAvx512Bf16 && __builtin_cpu_is("amd"));
#else
  return false;
#endif
}

}  // namespace transformer_kernels::cpu
