// SPDX-License-Identifier: MIT
// Checked arguments of the family, as plain rows: the problems that its engines take.
#pragma once

#include <array>
#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels {

enum class MaskKind : std::uint8_t { kNone, kBool, kSameDType, kFloat32 };

// A broadcast mask: row r of x meets the mask row at sum_i(index_i(r) * strides[i]), where index_i
// are r's coordinates over `sizes`, outermost first. `col_stride` is 1 or 0.
struct RowMask {
  MaskKind kind = MaskKind::kNone;
  const void* data = nullptr;
  int rank = 0;
  std::array<std::int64_t, TensorView::kMaxRank> sizes{};
  std::array<std::int64_t, TensorView::kMaxRank> strides{};
  std::int64_t col_stride = 0;

  constexpr std::int64_t row_offset(std::int64_t row) const {
    std::int64_t offset = 0;
    for (int i = rank - 1; i >= 0; --i) {
      offset += row % sizes[i] * strides[i];
      row /= sizes[i];
    }
    return offset;
  }
};

struct SoftmaxForwardProblem {
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  const void* x;
  std::int64_t x_stride;
  void* y;
  std::int64_t y_stride;
  RowMask mask;
  std::int64_t causal_rows;  // T where the causal mask is on, else 0
  double scale;
  bool log;

  // Columns [0, visible_cols(row)) take part under the causal mask.
  constexpr std::int64_t visible_cols(std::int64_t row) const {
    if (causal_rows == 0) return cols;
    const std::int64_t end = row % causal_rows + 1 + cols - causal_rows;
    return end < 0 ? 0 : end;
  }
  constexpr bool masked() const { return mask.kind != MaskKind::kNone || causal_rows != 0; }
};

struct SoftmaxBackwardProblem {
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  const void* dy;
  std::int64_t dy_stride;
  const void* y;
  std::int64_t y_stride;
  void* dx;
  std::int64_t dx_stride;
  double scale;
  bool masked;
  bool log;
};

std::string describe(const SoftmaxForwardProblem& problem);
std::string describe(const SoftmaxBackwardProblem& problem);

namespace cpu {
void softmax_forward(const Context& context, const SoftmaxForwardProblem& problem);
void softmax_backward(const Context& context, const SoftmaxBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void softmax_forward(const Context& context, const SoftmaxForwardProblem& problem);
void softmax_backward(const Context& context, const SoftmaxBackwardProblem& problem);
}  // namespace cuda
namespace fpga {
void softmax_forward(const Context& context, const SoftmaxForwardProblem& problem);
}  // namespace fpga

}  // namespace transformer_kernels
