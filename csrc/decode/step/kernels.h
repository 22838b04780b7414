// SPDX-License-Identifier: MIT
// The kernels of a step: the exports of kernels_isa.cpp, which is compiled once per instruction
// set. Every row of activations lies in room for whole vectors of 16, whose rest is 0.
#pragma once

#include "core/cpu/isa.h"
#include "core/types.h"
#include "decode/step/tiles.h"
#include "transformer_kernels/decode/step.h"

namespace transformer_kernels::decode {

// Rows that meet a weight: as they are, and for weights in blocks as whole numbers of 16 or 8 bits,
// which stand in an order of the set's own, with a scale and a sum for each block.
struct Activations {
  const float* numbers;
  std::int64_t stride;  // of all rows, in terms
  std::byte* codes;     // 2 bytes a term
  float* scales;        // `groups` a row
  std::int32_t* sums;
  std::int64_t groups;
};

struct ProductTask {
  const PackedMatrix& matrix;
  const Activations& x;
  std::int64_t rows;
  float* out;  // (rows, padded_rows of the matrix)
  std::int64_t out_stride;
};

// A block of the cache holds 64 positions of one key-value head, in float16: keys [16 positions at
// a time][dim][position], then values [position][dim]. `dim` has room for whole vectors.
inline constexpr std::int64_t kBlockPositions = 64;
inline constexpr std::int64_t kMostDim = 1024;
constexpr std::int64_t padded_dim(std::int64_t dim) { return rounded_up(dim, kTileRows); }
constexpr std::int64_t block_numbers(std::int64_t dim) {
  return 2 * kBlockPositions * padded_dim(dim);
}

// The largest score so far and the sum of exponentials relative to it.
struct SoftmaxState {
  float top;
  float sum;
};

struct AttendTask {
  const float* q;  // (heads, dim), scaled
  const Half* block;
  std::int64_t heads;  // of one key-value head
  std::int64_t dim;
  std::int64_t begin;  // positions of the block
  std::int64_t end;
  bool first;           // no block was attended to before
  float softcap;        // 0 for none
  SoftmaxState* state;  // one a head
  float* out;           // (heads, padded dim)
};

struct Best {
  float value;
  std::int64_t index;
};

struct StepKernels {
  // By format; the second of each for codes of 8 bits.
  void (*product[kTileFormats][2])(const ProductTask& task);
  // Rounds row `row` of x to 16 or 8 bits, `terms` in blocks of `group`.
  void (*quantize[2])(const Activations& x, std::int64_t row, std::int64_t terms,
                      std::int64_t group);
  // y = x / sqrt(mean(x^2) + eps) * weight
  void (*norm)(const float* x, const float* weight, std::int64_t count, float eps, float* y);
  // x += y
  void (*add)(float* x, const float* y, std::int64_t count);
  // y = x * factor
  void (*multiply)(const float* x, float factor, std::int64_t count, float* y);
  // Turns a head in place; `pairs` of its elements, and the rest stays.
  void (*rotate)(float* head, const float* cosines, const float* sines, std::int64_t pairs,
                 bool interleaved);
  // out = activation(gate) * up
  void (*gate)(StepActivation activation, const float* gate, const float* up, std::int64_t count,
               float* out);
  void (*softcap)(float* x, float cap, std::int64_t count);
  // Stores a key and a value at a position of their block.
  void (*append)(const float* k, const float* v, std::int64_t dim, std::int64_t position,
                 Half* block);
  void (*attend)(const AttendTask& task);
  // The largest number that is not NaN, and its place; the first of equals.
  Best (*best)(const float* x, std::int64_t count);
  // The sum over words, which are 8 bytes each.
  std::uint64_t (*sum)(const std::byte* data, std::int64_t bytes);
};

}  // namespace transformer_kernels::decode

namespace transformer_kernels::cpu {

TFK_DECLARE_PER_ISA(extern const decode::StepKernels step_kernels)

const decode::StepKernels& step_kernels_in_use();

}  // namespace transformer_kernels::cpu
