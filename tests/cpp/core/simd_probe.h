// SPDX-License-Identifier: MIT
// The vector layer of one instruction set, operation by operation, for the tests. Each function
// takes arrays of any length, so that whole and partial vectors are both used.
#pragma once

#include <cstdint>

#include "core/cpu/isa.h"
#include "core/types.h"

namespace transformer_kernels::cpu {

struct SimdProbe {
  int float_lanes;
  int double_lanes;
  void (*widen_half)(const Half* in, float* out, std::int64_t count);
  void (*widen_bfloat16)(const BFloat16* in, float* out, std::int64_t count);
  void (*narrow_half)(const float* in, Half* out, std::int64_t count);
  void (*narrow_bfloat16)(const float* in, BFloat16* out, std::int64_t count);
  void (*copy_float)(const float* in, float* out, std::int64_t count);
  void (*copy_double)(const double* in, double* out, std::int64_t count);
  void (*exp_float)(const float* in, float* out, std::int64_t count);
  void (*exp_double)(const double* in, double* out, std::int64_t count);
  void (*exp2_float)(const float* in, float* out, std::int64_t count);
  void (*exp2_double)(const double* in, double* out, std::int64_t count);
  // For rows of Half and of BFloat16.
  void (*exp_for_16_bits[2])(const float* in, float* out, std::int64_t count);
  void (*stream_float)(const float* in, float* out, std::int64_t count);
  void (*stream_bfloat16)(const float* in, BFloat16* out, std::int64_t count);
  // out[i] = mask[i] ? in[i] : -1, in the vectors of float and of BFloat16 rows
  void (*select_float[2])(const std::uint8_t* mask, const float* in, float* out,
                          std::int64_t count);
  void (*select_double)(const std::uint8_t* mask, const double* in, double* out,
                        std::int64_t count);
  float (*sum_float[2])(const float* in, std::int64_t count);
  double (*sum_double)(const double* in, std::int64_t count);
  float (*largest_float[2])(const float* in, std::int64_t count);
  double (*largest_double)(const double* in, std::int64_t count);
  // of rows of float, of BFloat16 and of double
  void (*swap_float[2])(const float* in, float* out, std::int64_t count);
  void (*swap_double)(const double* in, double* out, std::int64_t count);
  // Matrices of as many rows and columns as a vector has lanes.
  void (*transpose_float)(const float* in, float* out);
  void (*transpose_double)(const double* in, double* out);
  // 64 numbers, of 8 counters.
  void (*philox_block)(std::uint64_t key, std::uint64_t first, std::uint64_t offset,
                       std::uint16_t* numbers);
  // 2^x for 16 bits; null where there is none.
  void (*short_exp2)(const float* in, float* out, std::int64_t count);
};

TFK_DECLARE_PER_ISA(extern const SimdProbe simd_probe)

}  // namespace transformer_kernels::cpu
