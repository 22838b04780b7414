// SPDX-License-Identifier: MIT
// Checked arguments of cross-entropy, as plain rows.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/loss/cross_entropy.h"

namespace transformer_kernels {

// The arguments of both passes.
struct CrossEntropyProblem {
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  const void* x;
  std::int64_t x_stride;
  const void* target;  // labels; null where there are probabilities
  DType target_dtype;
  const void* probabilities;
  std::int64_t probabilities_stride;
  const void* weight;  // null: none
  DType weight_dtype;
  std::int64_t ignore_index;
  double label_smoothing;
  double z_loss;
  double softcap;
  Reduction reduction;
  void* dx;  // of a forward pass: null if not wanted
  std::int64_t dx_stride;

  constexpr bool has_labels() const { return target != nullptr || probabilities == nullptr; }
  constexpr std::int64_t label(std::int64_t row) const {
    return target_dtype == DType::kInt64 ? static_cast<const std::int64_t*>(target)[row]
                                         : static_cast<const std::int32_t*>(target)[row];
  }
  constexpr bool is_class(std::int64_t label) const { return label >= 0 && label < cols; }
  constexpr double uniform_share() const { return label_smoothing / static_cast<double>(cols); }
};

struct CrossEntropyForwardProblem : CrossEntropyProblem {
  void* loss;
  DType loss_dtype;
  void* top;  // null, as the next three: not wanted
  void* spread;
  void* share;
  void* total;
  const void* divisor;
};

// The losses of rows that are not here: x and dx are null. Its total and its loss may be.
struct ReduceLossesProblem : CrossEntropyForwardProblem {
  const void* losses;
};

struct CrossEntropyBackwardProblem : CrossEntropyProblem {
  const void* dloss;
  DType dloss_dtype;
  const void* top;
  const void* spread;
  const void* share;
  const void* total;
};

struct ScaleGradientProblem {
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  void* x;
  std::int64_t stride;
  const void* by;
  DType by_dtype;
};

std::string describe(const CrossEntropyForwardProblem& problem);
std::string describe(const CrossEntropyBackwardProblem& problem);
std::string describe(const ReduceLossesProblem& problem);
std::string describe(const ScaleGradientProblem& problem);

namespace cpu {
void cross_entropy_forward(const Context& context, const CrossEntropyForwardProblem& problem);
void cross_entropy_backward(const Context& context, const CrossEntropyBackwardProblem& problem);
void reduce_losses(const Context& context, const ReduceLossesProblem& problem);
void scale_gradient(const Context& context, const ScaleGradientProblem& problem);
}  // namespace cpu
namespace cuda {
void cross_entropy_forward(const Context& context, const CrossEntropyForwardProblem& problem);
void cross_entropy_backward(const Context& context, const CrossEntropyBackwardProblem& problem);
void reduce_losses(const Context& context, const ReduceLossesProblem& problem);
void scale_gradient(const Context& context, const ScaleGradientProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
