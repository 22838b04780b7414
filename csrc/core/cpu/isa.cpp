// SPDX-License-Identifier: MIT
#include "core/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/check.h"
#include "transformer_kernels/cpu.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace transformer_kernels::cpu {
namespace {

constexpr bool kIsBuilt[] = {TFK_BUILDS_SCALAR != 0,      TFK_BUILDS_NEON != 0,
                             TFK_BUILDS_AVX2 != 0,        TFK_BUILDS_AVX512 != 0,
                             TFK_BUILDS_AVX512_BF16 != 0, TFK_BUILDS_AMX != 0};

std::string names_of(const std::vector<Isa>& isas) {
  std::string names;
  for (const Isa isa : isas) names += concat(names.empty() ? "" : ", ", name_of(isa));
  return names.empty() ? "none" : names;
}

#ifdef __x86_64__

// Clang 17's __builtin_cpu_supports does not know F16C.
bool processor_has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool processor_has_amx_bf16() {
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0;
}

// Linux gives a process the tile registers when it asks, for all its threads. A process that has
// asked before is told yes again; a system without AMX says no.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return processor_has_amx_bf16() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Each set has all of the one before. The compiler's run-time support also asks the operating
// system whether it saves the registers.
bool processor_has(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kNeon: return false;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             processor_has_f16c();
    case Isa::kAvx512:
      return processor_has(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
    case Isa::kAvx512Bf16:
      return processor_has(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16") &&
             __builtin_cpu_supports("avx512vnni");
    case Isa::kAmx: return processor_has(Isa::kAvx512Bf16) && may_use_tiles();
  }
  return false;
}

#elif defined(__aarch64__)

bool processor_has(Isa isa) { return isa == Isa::kScalar || isa == Isa::kNeon; }

#else

bool processor_has(Isa isa) { return isa == Isa::kScalar; }

#endif

// Emulated sets run wherever AVX2 does.
Isa needed_of_processor(Isa isa) {
#ifdef TFK_EMULATE_AVX512
  return std::min(isa, Isa::kAvx2);
#else
  return isa;
#endif
}

}  // namespace

std::vector<Isa> usable_isas() {
  std::vector<Isa> usable;
  for (int i = 0; i <= static_cast<int>(Isa::kAmx); ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (kIsBuilt[i] && processor_has(needed_of_processor(isa))) usable.push_back(isa);
  }
  return usable;
}

Isa choose_isa(const char* requested, const std::vector<Isa>& usable) {
  const std::string_view name = requested == nullptr ? "" : requested;
  if (name.empty() && !usable.empty()) return usable.back();
  for (const Isa isa : usable) {
    if (name == name_of(isa)) return isa;
  }
  if (name.empty()) {
    throw Error(
        Error::Kind::kValue,
        "this CPU has none of the instruction sets that the library was built for, expected a "
        "build with -DTFK_ISAS=all");
  }
  throw Error(Error::Kind::kValue, concat("TFK_CPU_ISA is ", name, ", expected one of ",
                                          names_of(usable), " (what this CPU and build have)"));
}

Isa isa() {
  static const Isa chosen = choose_isa(std::getenv("TFK_CPU_ISA"), usable_isas());
  return chosen;
}

bool multiplies_pairs_fast() {
#if defined(TFK_EMULATE_AVX512)
  return isa() >= Isa::kAvx512Bf16;
#elif defined(__x86_64__)
  return isa() == Isa::kAmx || (isa() == Isa::kAvx512Bf16 && __builtin_cpu_is("amd"));
#else
  return false;
#endif
}

}  // namespace transformer_kernels::cpu

namespace transformer_kernels {

std::vector<std::string> cpu_instruction_sets() {
  std::vector<std::string> names;
  for (const cpu::Isa isa : cpu::usable_isas()) names.emplace_back(cpu::name_of(isa));
  return names;
}

std::string cpu_instruction_set() { return cpu::name_of(cpu::isa()); }

}  // namespace transformer_kernels
