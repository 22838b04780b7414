// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/linear.h"

#include <algorithm>

#include "core/check.h"
#include "torch/linear/operands.h"
#include "torch/linear/rows.h"
#include "transformer_kernels/linear/packed_weight.h"

namespace transformer_kernels::torch_ops {
namespace {

// The leading dimensions of x, and as many columns as weight has rows. What either lacks is found
// with all else.
template <class A>
TensorView layout_of_y(const A& a) {
  return rows_like(a.weight.rank > 0 ? with_columns(a.x, a.weight.sizes[0]) : a.x);
}

// The gradient has the weight's layout in memory.
TensorView layout_of_dweight(const TensorView& weight) {
  const bool by_columns = weight.rank == 2 && weight.strides[0] == 1 && weight.strides[1] > 1;
  TensorView layout = rows_like(weight);
  if (by_columns) layout.strides = {1, std::max<std::int64_t>(weight.sizes[0], 1)};
  return layout;
}

struct BackwardArguments : LinearBackward {
  TensorView bias;  // for its dtype
  bool need_dx;
  bool need_dweight;
  bool need_dbias;
};

constexpr auto kOperands =
    std::tuple(tensor("x", &LinearForward::x, with_aligned_rows),
               tensor("weight", &LinearForward::weight), parameter("bias", &LinearForward::bias));
constexpr auto kY = result("y", &LinearForward::y, layout_of_y<LinearForward>);

struct Forward {
  using Arguments = LinearForward;
  static constexpr const char* kOp = "linear";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = linear_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = kOperands;
  static constexpr auto kResults = std::tuple(kY);
};

// The op with a choice of cuBLASLt's algorithm.
struct ForwardByAlgorithm : Forward {
  static constexpr const char* kPass = "_algorithm_forward";
  static constexpr auto kFields =
      std::tuple_cat(kOperands, std::tuple(integer("algorithm", &LinearForward::algorithm)));
};

struct ActInference : Forward {
  static constexpr const char* kOp = "linear_act";
  static constexpr const char* kPass = "_inference";
  static constexpr auto kFields = std::tuple_cat(
      kOperands, std::tuple(choice("activation", &LinearForward::activation, activation_of)));
};

// The weight as pack_weight() leaves it.
constexpr auto kPackedOperands = std::tuple(
    tensor("x", &LinearForward::x, with_aligned_rows), tensor("weight", &LinearForward::weight),
    tensor("packed", &LinearForward::packed), parameter("bias", &LinearForward::bias));

struct PackedForward : Forward {
  static constexpr const char* kPass = "_packed";
  static constexpr auto kFields = kPackedOperands;
};

struct PackedActForward : PackedForward {
  static constexpr const char* kOp = "linear_act";
  static constexpr auto kFields = std::tuple_cat(
      kPackedOperands, std::tuple(choice("activation", &LinearForward::activation, activation_of)));
};

struct PackArguments {
  TensorView weight;
  TensorView packed;
};

TensorView layout_of_packed(const TensorView& weight) {
  TensorView layout = weight;
  layout.dtype = DType::kUInt8;
  layout.rank = 1;
  layout.sizes[0] = packed_bytes(weight);
  layout.strides[0] = 1;
  return layout;
}

struct Pack {
  using Arguments = PackArguments;
  static constexpr const char* kOp = "pack_weight";
  static constexpr const char* kPass = "";
  static void call(const Context& context, const PackArguments& a) {
    pack_weight(context, a.weight, a.packed);
  }
  static constexpr auto* kCall = call;
  static constexpr auto kLike = &Arguments::weight;
  static constexpr auto kFields = std::tuple(tensor("weight", &Arguments::weight));
  static constexpr auto kResults =
      std::tuple(result("packed", &Arguments::packed, layout_of_packed, &Arguments::weight));
};

struct ActForward : ActInference {
  static constexpr const char* kPass = "_forward";
  static constexpr auto kResults =
      std::tuple(kY, result("z", &LinearForward::z, layout_of_y<LinearForward>));
};

constexpr auto kBackwardOperands = std::tuple(
    tensor("dy", &BackwardArguments::dy, with_aligned_rows),
    tensor("x", &BackwardArguments::x, with_aligned_rows),
    tensor("weight", &BackwardArguments::weight), parameter("bias", &BackwardArguments::bias));
constexpr auto kNeeds = std::tuple(flag("need_dx", &BackwardArguments::need_dx),
                                   flag("need_dweight", &BackwardArguments::need_dweight),
                                   flag("need_dbias", &BackwardArguments::need_dbias));

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = "linear";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = linear_backward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple_cat(kBackwardOperands, kNeeds);
  static constexpr auto kResults = std::tuple(
      result_if(&Arguments::need_dx, "dx", &Arguments::dx, rows_like, &Arguments::x),
      result_if(&Arguments::need_dweight, "dweight", &Arguments::dweight, layout_of_dweight,
                &Arguments::weight),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias));
};

struct BackwardByAlgorithm : Backward {
  static constexpr const char* kPass = "_algorithm_backward";
  static constexpr auto kFields = std::tuple_cat(
      Backward::kFields, std::tuple(integer("dx_algorithm", &Arguments::dx_algorithm),
                                    integer("dweight_algorithm", &Arguments::dweight_algorithm)));
};

// Writes the gradient of a weight where it is wanted, or adds it to what is there.
struct WriteDweight {
  using Arguments = LinearBackward;
  static constexpr const char* kOp = "linear_dweight";
  static constexpr const char* kPass = "_";
  static constexpr auto* kCall = linear_backward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(written("dweight", &Arguments::dweight),
                                             tensor("dy", &Arguments::dy, with_aligned_rows),
                                             tensor("x", &Arguments::x, with_aligned_rows),
                                             flag("accumulate", &Arguments::accumulate_dweight));
  static constexpr auto kResults = std::tuple<>();
};

struct ActBackward : Backward {
  static constexpr const char* kOp = "linear_act";
  static constexpr auto kFields =
      std::tuple_cat(kBackwardOperands,
                     std::tuple(tensor("z", &Arguments::z, with_aligned_rows),
                                choice("activation", &Arguments::activation, activation_of)),
                     kNeeds);
};

struct DactArguments : LinearDact {
  TensorView bias;  // for its dtype
  bool need_dbias;
  bool need_h;
};

struct Dact {
  using Arguments = DactArguments;
  static constexpr const char* kOp = "linear_dact";
  static constexpr const char* kPass = "";
  static constexpr auto* kCall = linear_dact;
  static constexpr auto kLike = &Arguments::z;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_aligned_rows), tensor("weight", &Arguments::weight),
      parameter("bias", &Arguments::bias), tensor("z", &Arguments::z, with_aligned_rows),
      choice("activation", &Arguments::activation, activation_of),
      flag("need_dbias", &Arguments::need_dbias), flag("need_h", &Arguments::need_h));
  static constexpr auto kResults = std::tuple(
      result("dz", &Arguments::dz, rows_like, &Arguments::z),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias),
      result_if(&Arguments::need_h, "h", &Arguments::h, rows_like, &Arguments::z));
};

using Ops =
    RawOps<Forward, ForwardByAlgorithm, Backward, BackwardByAlgorithm, WriteDweight, ActForward,
           ActInference, ActBackward, Dact, PackedForward, PackedActForward, Pack>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
