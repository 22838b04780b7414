// SPDX-License-Identifier: MIT
#include "transformer_kernels/graph/segment_softmax.h"

#include "torch/graph/edges.h"

namespace transformer_kernels::torch_ops {
namespace {

// offsets and order alone: the rows across the edges have no part in it.
template <class A>
constexpr auto segment_fields() {
  return std::tuple(tensor("offsets", edge<A>(&Edges::offsets), packed_indices),
                    optional("order", edge<A>(&Edges::order), packed_indices));
}

struct Forward {
  using Arguments = SegmentSoftmaxForward;
  static constexpr const char* kOp = "segment_softmax";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = segment_softmax_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("x", &Arguments::x, with_even_rows)), segment_fields<Arguments>());
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, rows_like, &Arguments::x));
};

struct Backward {
  using Arguments = SegmentSoftmaxBackward;
  static constexpr const char* kOp = "segment_softmax";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = segment_softmax_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                                tensor("y", &Arguments::y, with_even_rows)),
                     segment_fields<Arguments>());
  static constexpr auto kResults =
      std::tuple(result("dx", &Arguments::dx, rows_like, &Arguments::y));
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
