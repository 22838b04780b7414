// SPDX-License-Identifier: MIT
// wgmma: D (64, N) += A (64, 16) B (16, N) by the four warps of a warpgroup, with sums in float32.
//
// A thread holds N / 2 sums: d[4 i + 2 r + c] is row 16 warp + lane / 4 + 8 r, column 8 i + 2 (lane
// % 4) + c. A comes from shared memory or from four registers. Each register holds two neighbouring
// columns, in the order of the sums: a[r + 2 i] is row 8 r, column 8 i. So sums, packed by twos,
// are an operand A. B always comes from shared memory.
//
// asm needs the name of every register, and the length of the list depends on N: the macros below
// make the lists, and are undefined at the end of this file.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace transformer_kernels::cuda {

// The dimension along which a matrix in shared memory is contiguous: k, or the other one.
enum class Major : int { kK = 0, kOther = 1 };

// Offsets within a tile of shared memory that TMA has filled under the 128-byte swizzle: rows of
// 128 bytes, 8 to a group of 1024. A tile starts at a multiple of 1024.
inline constexpr std::uint32_t kSwizzleRow = 128;
inline constexpr std::uint32_t kSwizzleGroup = 8 * kSwizzleRow;

// Where a matrix lies. `leading` is used by Major::kOther only: the bytes from 64 columns to the
// next 64. Descriptors can be added to: + 1 is 16 bytes.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address,
                                                           std::uint32_t leading = 16) {
  constexpr std::uint64_t kSwizzle128 = 1ull << 62;
  return (address & 0x3ffff) >> 4 | static_cast<std::uint64_t>(leading >> 4) << 16 |
         static_cast<std::uint64_t>(kSwizzleGroup >> 4) << 32 | kSwizzle128;
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Orders what was written to registers and shared memory before the products that read it.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `kPending` groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving what reads or writes these registers across this place: it does
// not know that wgmma goes on writing them.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

template <class T>
struct WgmmaElement;
template <>
struct WgmmaElement<BFloat16> {
  static constexpr const char text[] = "f32.bf16.bf16";
};
template <>
struct WgmmaElement<Half> {
  static constexpr const char text[] = "f32.f16.f16";
};

// The text of the first operands: %0, %1, ...
#define TFK_NUMBERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TFK_NUMBERS_32 \
  TFK_NUMBERS_16       \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TFK_NUMBERS_40 \
  TFK_NUMBERS_32       \
  ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TFK_NUMBERS_48 \
  TFK_NUMBERS_40       \
  ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TFK_NUMBERS_64 \
  TFK_NUMBERS_48       \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TFK_NUMBERS_80 \
  TFK_NUMBERS_64       \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define TFK_NUMBERS_96 \
  TFK_NUMBERS_80       \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TFK_NUMBERS_128                                                          \
  TFK_NUMBERS_96                                                                 \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// The operands themselves, each under the constraint c.
#define TFK_EIGHT(c, d, i) \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define TFK_OPERANDS_16(c, d) TFK_EIGHT(c, d, 0), TFK_EIGHT(c, d, 8)
#define TFK_OPERANDS_32(c, d) TFK_OPERANDS_16(c, d), TFK_EIGHT(c, d, 16), TFK_EIGHT(c, d, 24)
#define TFK_OPERANDS_40(c, d) TFK_OPERANDS_32(c, d), TFK_EIGHT(c, d, 32)
#define TFK_OPERANDS_48(c, d) TFK_OPERANDS_40(c, d), TFK_EIGHT(c, d, 40)
#define TFK_OPERANDS_64(c, d) TFK_OPERANDS_48(c, d), TFK_EIGHT(c, d, 48), TFK_EIGHT(c, d, 56)
#define TFK_OPERANDS_80(c, d) TFK_OPERANDS_64(c, d), TFK_EIGHT(c, d, 64), TFK_EIGHT(c, d, 72)
#define TFK_OPERANDS_96(c, d) TFK_OPERANDS_80(c, d), TFK_EIGHT(c, d, 80), TFK_EIGHT(c, d, 88)
#define TFK_OPERANDS_128(c, d)                                                            \
  TFK_OPERANDS_96(c, d), TFK_EIGHT(c, d, 96), TFK_EIGHT(c, d, 104), TFK_EIGHT(c, d, 112), \
      TFK_EIGHT(c, d, 120)

// form(N, sums of a thread, the numbers of the operands behind them)
#define TFK_EACH_WIDTH(form)                                                                    \
  form(32, 16, 16, 17, 18, 19, 20, 21, 22, 23) form(64, 32, 32, 33, 34, 35, 36, 37, 38, 39)     \
      form(80, 40, 40, 41, 42, 43, 44, 45, 46, 47) form(96, 48, 48, 49, 50, 51, 52, 53, 54, 55) \
          form(128, 64, 64, 65, 66, 67, 68, 69, 70, 71)                                         \
              form(160, 80, 80, 81, 82, 83, 84, 85, 86, 87)                                     \
                  form(192, 96, 96, 97, 98, 99, 100, 101, 102, 103)                             \
                      form(256, 128, 128, 129, 130, 131, 132, 133, 134, 135)

#define TFK_WGMMA(n, sums, element) \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.%" #element " {" TFK_NUMBERS_##sums "}, "

// Whether there is a form below for so many sums of a thread: without one nothing would be done.
#define TFK_FORM(n, sums, ...) kSums == sums ||
template <int kSums>
inline constexpr bool kHasWgmma = TFK_EACH_WIDTH(TFK_FORM) false;
#undef TFK_FORM

// d (+)= a b, both from shared memory. Without `accumulate` the old sums do not count.
template <class T, Major kMajorA = Major::kK, Major kMajorB = Major::kK, int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], std::uint64_t a, std::uint64_t b,
                                      bool accumulate = true) {
  static_assert(kHasWgmma<kSums>);
#define TFK_FORM(n, sums, i0, i1, i2, i3, i4, i5, i6, i7)                                         \
  if constexpr (kSums == sums)                                                                    \
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" #i1 ", 0;\n" TFK_WGMMA(                       \
                     n, sums, i0) "%" #i2 ", %" #i3 ", p, 1, 1, %" #i4 ", %" #i5 ";}"             \
                 : TFK_OPERANDS_##sums("+f", d)                                                   \
                 : "C"(WgmmaElement<T>::text), "r"(static_cast<int>(accumulate)), "l"(a), "l"(b), \
                   "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)));
  TFK_EACH_WIDTH(TFK_FORM)
#undef TFK_FORM
}

// d = a b. The old sums are no operands, so no register has to hold them until here.
template <class T, Major kMajorA = Major::kK, Major kMajorB = Major::kK, int kSums>
__device__ __forceinline__ void wgmma_first(float (&d)[kSums], std::uint64_t a, std::uint64_t b) {
  static_assert(kHasWgmma<kSums>);
#define TFK_FORM(n, sums, i0, i1, i2, i3, i4, i5, i6, i7)                                      \
  if constexpr (kSums == sums)                                                                 \
    asm volatile(TFK_WGMMA(n, sums, i0) "%" #i1 ", %" #i2 ", 0, 1, 1, %" #i3 ", %" #i4 ";"     \
                 : TFK_OPERANDS_##sums("=f", d)                                                \
                 : "C"(WgmmaElement<T>::text), "l"(a), "l"(b), "n"(static_cast<int>(kMajorA)), \
                   "n"(static_cast<int>(kMajorB)));
  TFK_EACH_WIDTH(TFK_FORM)
#undef TFK_FORM
}

// d (+)= a b, a from four registers.
template <class T, Major kMajorB, int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], const std::uint32_t* a, std::uint64_t b,
                                      bool accumulate = true) {
  static_assert(kHasWgmma<kSums>);
#define TFK_FORM(n, sums, i0, i1, i2, i3, i4, i5, i6, i7)                                          \
  if constexpr (kSums == sums)                                                                     \
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" #i1                                            \
                 ", 0;\n" TFK_WGMMA(n, sums, i0) "{%" #i2 ", %" #i3 ", %" #i4 ", %" #i5 "}, %" #i6 \
                                                 ", p, 1, 1, %" #i7 ";}"                           \
                 : TFK_OPERANDS_##sums("+f", d)                                                    \
                 : "C"(WgmmaElement<T>::text), "r"(static_cast<int>(accumulate)), "r"(a[0]),       \
                   "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kMajorB)));
  TFK_EACH_WIDTH(TFK_FORM)
#undef TFK_FORM
}

// d = a b, a from four registers.
template <class T, Major kMajorB, int kSums>
__device__ __forceinline__ void wgmma_first(float (&d)[kSums], const std::uint32_t* a,
                                            std::uint64_t b) {
  static_assert(kHasWgmma<kSums>);
#define TFK_FORM(n, sums, i0, i1, i2, i3, i4, i5, i6, i7)                                          \
  if constexpr (kSums == sums)                                                                     \
    asm volatile(TFK_WGMMA(n, sums, i0) "{%" #i1 ", %" #i2 ", %" #i3 ", %" #i4 "}, %" #i5          \
                                        ", 0, 1, 1, %" #i6 ";"                                     \
                 : TFK_OPERANDS_##sums("=f", d)                                                    \
                 : "C"(WgmmaElement<T>::text), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), \
                   "n"(static_cast<int>(kMajorB)));
  TFK_EACH_WIDTH(TFK_FORM)
#undef TFK_FORM
}

#undef TFK_EACH_WIDTH
#undef TFK_WGMMA
#undef TFK_EIGHT
#undef TFK_NUMBERS_16
#undef TFK_OPERANDS_16
#undef TFK_NUMBERS_32
#undef TFK_OPERANDS_32
#undef TFK_NUMBERS_40
#undef TFK_OPERANDS_40
#undef TFK_NUMBERS_48
#undef TFK_OPERANDS_48
#undef TFK_NUMBERS_64
#undef TFK_OPERANDS_64
#undef TFK_NUMBERS_80
#undef TFK_OPERANDS_80
#undef TFK_NUMBERS_96
#undef TFK_OPERANDS_96
#undef TFK_NUMBERS_128
#undef TFK_OPERANDS_128

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
