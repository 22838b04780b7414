// SPDX-License-Identifier: MIT
// Checked arguments of the family: heads of tokens with plain strides, and where their angles are.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/rope/rope.h"

namespace transformer_kernels {

// The rows of a tensor (batch, time, heads, dim): strides in elements.
struct Heads {
  void* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t time = 0;
  std::int64_t head = 0;
};

// An array of int32 or int64.
struct Integers {
  const void* data = nullptr;
  bool is_wide = false;

  constexpr std::int64_t operator[](std::int64_t i) const {
    return is_wide ? static_cast<const std::int64_t*>(data)[i]
                   : static_cast<const std::int32_t*>(data)[i];
  }
};

inline constexpr int kRopeAxes = 3;

struct AngleTables {
  DType dtype;
  Rows cos;
  Rows sin;
  std::int64_t positions;
  std::int64_t frequencies;  // R / 2
  bool interleaved;

  Integers ids{};            // or null, and positions are counted
  std::int64_t id_axis = 0;  // strides
  std::int64_t id_batch = 0;
  std::int64_t id_time = 0;
  std::int64_t axis_end[kRopeAxes - 1]{};  // frequencies of the axes before and including this one

  std::int64_t offset = 0;
  Integers offsets{};                        // or null
  const std::int32_t* cu_seqlens = nullptr;  // or null
  std::int64_t sequences = 0;

  constexpr bool has_axes() const { return ids.data != nullptr && axis_end[0] < frequencies; }
};

struct RopeProblem {
  DType dtype;
  std::int64_t batch;
  std::int64_t time;
  std::int64_t q_heads;
  std::int64_t k_heads;
  std::int64_t dim;
  Heads q;
  Heads k{};
  Heads q_rotated{};
  Heads k_rotated{};
  AngleTables angles{};
  bool inverse = false;  // by the opposite angles

  constexpr std::int64_t heads() const { return q_heads + k_heads; }
  constexpr std::int64_t tokens() const { return batch * time; }
  constexpr std::int64_t rotary_dim() const { return 2 * angles.frequencies; }
  constexpr bool in_place() const {
    return q.data == q_rotated.data && (k_heads == 0 || k.data == k_rotated.data);
  }
};

std::string describe(const RopeProblem& problem);

// Where positions are read from, for messages.
const char* source_of(const AngleTables& angles);

namespace cpu {
void rope(const Context& context, const RopeProblem& problem);
}  // namespace cpu
namespace cuda {
void rope(const Context& context, const RopeProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
