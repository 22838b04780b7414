// SPDX-License-Identifier: MIT
// The family's ops as types, and its checked arguments as plain rows.
#pragma once

#include <string>

#include "core/math/activation.h"
#include "core/rows.h"
#include "transformer_kernels/pointwise/pointwise.h"

namespace transformer_kernels {

template <Pointwise kOp>
struct PointwiseOp;

#define TFK_POINTWISE_OP(enumerator, name, activation, gated) \
  template <>                                                 \
  struct PointwiseOp<Pointwise::enumerator> {                 \
    using Activation = math::activation;                      \
    static constexpr bool kGated = gated;                     \
  };
TFK_POINTWISE_OPS(TFK_POINTWISE_OP)
#undef TFK_POINTWISE_OP

constexpr bool is_gated(Pointwise op) {
#define TFK_POINTWISE_GATED(enumerator, name, activation, gated) gated,
  constexpr bool kGated[] = {TFK_POINTWISE_OPS(TFK_POINTWISE_GATED)};
#undef TFK_POINTWISE_GATED
  return kGated[static_cast<int>(op)];
}

struct PointwiseForwardProblem {
  Pointwise op;
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t cols;
  Rows x;
  Rows up;  // null for plain ops
  Rows y;
  const void* bias;  // either may be null
  const void* up_bias;

  bool has_bias() const { return bias != nullptr || up_bias != nullptr; }
};

struct PointwiseBackwardProblem {
  Pointwise op;
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t cols;
  Rows dy;
  Rows x;
  Rows up;
  Rows dx;
  Rows dup;
  Rows y;            // null where it is not wanted
  const void* bias;  // each of these may be null
  const void* up_bias;
  void* dbias;
  void* dup_bias;
  bool accumulates_dbias = false;  // gradients of biases are added to what is there

  bool has_bias() const {
    return bias != nullptr || up_bias != nullptr || dbias != nullptr || dup_bias != nullptr;
  }
};

std::string describe(const PointwiseForwardProblem& problem);
std::string describe(const PointwiseBackwardProblem& problem);

namespace cpu {
void pointwise_forward(const Context& context, const PointwiseForwardProblem& problem);
void pointwise_backward(const Context& context, const PointwiseBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void pointwise_forward(const Context& context, const PointwiseForwardProblem& problem);
void pointwise_backward(const Context& context, const PointwiseBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
