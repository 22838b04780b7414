// SPDX-License-Identifier: MIT
// The choice of tokens on the CPU: the exports of the source that is compiled once per instruction
// set. A row is walked in blocks, whose largest number and sum of weights are kept: what follows
// skips most of them.
#pragma once

#include <bit>

#include "core/cpu/isa.h"
#include "decode/sampling/problem.h"
#include "decode/sampling/weighing.h"

namespace transformer_kernels::cpu {

inline constexpr std::int64_t kBlock = 256;  // elements

// The whole number of a weight; ties go to even.
inline std::int64_t whole_weight(float w) {
  return std::bit_cast<std::int64_t>(static_cast<double>(w) + 0x1p52) -
         std::bit_cast<std::int64_t>(0x1p52);
}

struct Penalties {
  const std::int64_t* previous;
  std::int64_t count;
  std::int64_t prompt;  // the first of them
  float repetition;
  float presence;
  float frequency;
};

struct SamplingKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType: of logits

  // Writes elements [begin, end) of a row of logits as float, with the bias and without what is not
  // allowed; all three rows begin at element 0.
  void (*read[kDTypes])(const void* x, const float* bias, const void* allowed, bool allowed_bits,
                        std::int64_t begin, std::int64_t end, float* z);
  // Changes z of the previous tokens. All `seen` are 0, before and after.
  void (*penalise)(const Penalties& by, std::int64_t vocabulary, std::uint32_t* seen, float* z);
  // Writes the largest number of each block, of those that are not NaN; returns whether some are.
  bool (*largest)(const float* z, std::int64_t count, float* of_block);
  // Writes the numbers of one block that are not less than `bound`, and their places, in order;
  // returns how many they are.
  std::int64_t (*above)(const float* z, std::int64_t count, float bound, float* numbers,
                        std::int32_t* places);
  // Writes the weights of one block, not yet rounded.
  void (*weigh)(const float* z, std::int64_t count, const Weighing& by, float* w);
  // Writes the sum of weights of each block.
  void (*sums)(const float* z, std::int64_t count, const Weighing& by, std::int64_t* of_block);
  // Returns the sum of weight times its logarithm of base 2, as a multiple of 2^-32.
  std::int64_t (*moment)(const float* z, std::int64_t count, const Weighing& by);
  // Writes the distances of one block from the mean.
  void (*distances)(const float* z, std::int64_t count, const Weighing& by, float* d);
  // Writes max(p a - q b, 0) of one block of weights, rounded.
  void (*excess)(const float* p, const float* q, std::int64_t count, double a, double b,
                 std::int64_t* w);
};

TFK_DECLARE_PER_ISA(extern const SamplingKernels sampling_kernels)

}  // namespace transformer_kernels::cpu
