// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/grouped_linear.h"

#include <array>

#include "core/dispatch.h"
#include "torch/linear/operands.h"
#include "torch/linear/rows.h"

namespace transformer_kernels::torch_ops {
namespace {

// Sizes of tensors whose ranks are checked later, with all else.
std::int64_t size_or_0(const TensorView& view, int dim) {
  return view.rank > dim ? view.sizes[dim] : 0;
}
// Rows of all groups: an index has as many, or else the tensor itself.
std::int64_t rows_of(const TensorView& tensor, const TensorView& index) {
  return size_or_0(index.defined() ? index : tensor, 0);
}
TensorView matrix(const TensorView& like, std::int64_t rows, std::int64_t cols) {
  return layout_of(like.device, std::array{rows, cols}, like.dtype);
}

struct Forward {
  using Arguments = GroupedLinearForward;
  static constexpr const char* kOp = "grouped_linear";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = grouped_linear_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_aligned_rows), tensor("weight", &Arguments::weight),
      parameter("bias", &Arguments::bias), tensor("offsets", &Arguments::offsets),
      optional("x_rows", &Arguments::x_rows), optional("factors", &Arguments::factors));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, [](const Arguments& a) {
    return matrix(a.x, rows_of(a.x, a.x_rows), size_or_0(a.weight, 1));
  }));
};

struct BackwardArguments : GroupedLinearBackward {
  TensorView bias;  // for its dtype
  bool need_dx;
  bool need_dweight;
  bool need_dbias;
};

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = "grouped_linear";
  static constexpr const char* kPass = "_backward";
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_aligned_rows),
      optional("x", &Arguments::x, with_aligned_rows), optional("weight", &Arguments::weight),
      parameter("bias", &Arguments::bias), tensor("offsets", &Arguments::offsets),
      optional("x_rows", &Arguments::x_rows), optional("dy_rows", &Arguments::dy_rows),
      optional("factors", &Arguments::factors), flag("need_dx", &Arguments::need_dx),
      flag("need_dweight", &Arguments::need_dweight), flag("need_dbias", &Arguments::need_dbias));
  static constexpr auto kResults = std::tuple(
      result("dx", &Arguments::dx,
             [](const Arguments& a) {
               if (!a.need_dx) return TensorView{};
               return matrix(a.dy, rows_of(a.dy, a.dy_rows), size_or_0(a.weight, 2));
             }),
      result("dweight", &Arguments::dweight,
             [](const Arguments& a) {
               if (!a.need_dweight) return TensorView{};
               const std::array sizes{a.offsets.numel() - 1, size_or_0(a.dy, 1), size_or_0(a.x, 1)};
               return layout_of(a.dy.device, sizes, a.dy.dtype);
             }),
      result("dbias", &Arguments::dbias, [](const Arguments& a) {
        if (!a.need_dbias) return TensorView{};
        TensorView like = a.dy;
        if (a.bias.defined()) like.dtype = a.bias.dtype;
        return matrix(like, a.offsets.numel() - 1, size_or_0(a.dy, 1));
      }));

  static void call(const Context& context, Arguments& a) { grouped_linear_backward(context, a); }
  static constexpr auto* kCall = call;
};

// The passes of a layer of rows in order, without factors: an op with gradients.
struct LayerForward : Forward {
  static std::string name() { return "grouped_layer_forward"; }
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_aligned_rows), tensor("weight", &Arguments::weight),
      parameter("bias", &Arguments::bias), tensor("offsets", &Arguments::offsets, packed_indices));
};

struct LayerBackward : Backward {
  static std::string name() { return "grouped_layer_backward"; }
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_aligned_rows),
      tensor("x", &Arguments::x, with_aligned_rows), tensor("weight", &Arguments::weight),
      parameter("bias", &Arguments::bias), tensor("offsets", &Arguments::offsets, packed_indices),
      flag("need_dx", &Arguments::need_dx), flag("need_dweight", &Arguments::need_dweight),
      flag("need_dbias", &Arguments::need_dbias));
};

struct GatedArguments : GroupedGatedLinearForward {
  bool keep;

  bool in_one() const { return !up_weight.defined(); }
  std::int64_t rows() const { return rows_of(x, x_rows); }
  std::int64_t lines() const { return size_or_0(weight, 1); }
};

// Without up_weight each group's weight has the rows of both, as its bias has, and gate the columns
// of both.
struct Gated {
  using Arguments = GatedArguments;
  static constexpr const char* kOp = "grouped_gated_linear";
  static constexpr const char* kPass = "_forward";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_aligned_rows), tensor("weight", &Arguments::weight),
      optional("up_weight", &Arguments::up_weight), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias), tensor("offsets", &Arguments::offsets),
      optional("x_rows", &Arguments::x_rows), choice("activation", &Arguments::activation, gate_of),
      flag("keep", &Arguments::keep));
  static constexpr auto kResults =
      std::tuple(result("y", &Arguments::y,
                        [](const Arguments& a) {
                          return matrix(a.x, a.rows(), a.in_one() ? a.lines() / 2 : a.lines());
                        }),
                 result("gate", &Arguments::gate,
                        [](const Arguments& a) {
                          return a.keep ? matrix(a.x, a.rows(), a.lines()) : TensorView{};
                        }),
                 result("up", &Arguments::up, [](const Arguments& a) {
                   return a.keep && !a.in_one() ? matrix(a.x, a.rows(), a.lines()) : TensorView{};
                 }));

  static void prepare(Arguments& a) {
    if (!a.in_one()) return;
    check_value(!a.bias.defined() && !a.up_bias.defined(), kOp,
                ": bias is present, expected none (up_weight is missing)");
    check_value(a.lines() % 2 == 0, kOp, ": weight has ", a.lines(),
                " rows, expected an even number (those of gate, then of up)");
  }

  static void call(const Context& context, Arguments& a) {
    if (a.in_one() && a.weight.rank == 3) {
      a.up_weight = split(a.weight, 1);
      if (a.keep) a.up = split(a.gate, 1);
    }
    grouped_gated_linear_forward(context, a);
  }
  static constexpr auto* kCall = call;
};

struct DgatedArguments : GroupedLinearDgated {
  bool need_h;
  bool need_dfactors;
};

struct Dgated {
  using Arguments = DgatedArguments;
  static constexpr const char* kOp = "grouped_linear_dgated";
  static constexpr const char* kPass = "";
  static constexpr auto kLike = &Arguments::gate;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_aligned_rows), tensor("weight", &Arguments::weight),
      tensor("gate", &Arguments::gate, with_aligned_rows),
      tensor("up", &Arguments::up, with_aligned_rows), tensor("offsets", &Arguments::offsets),
      optional("dy_rows", &Arguments::dy_rows), optional("factors", &Arguments::factors),
      choice("activation", &Arguments::activation, gate_of), flag("need_h", &Arguments::need_h),
      flag("need_dfactors", &Arguments::need_dfactors));
  static constexpr auto kResults =
      std::tuple(result("dgate", &Arguments::dgate, rows_like, &Arguments::gate),
                 result("dup", &Arguments::dup, rows_like, &Arguments::gate),
                 result_if(&Arguments::need_h, "h", &Arguments::h, rows_like, &Arguments::gate),
                 result("dfactors", &Arguments::dfactors, [](const Arguments& a) {
                   if (!a.need_dfactors) return TensorView{};
                   const DType dtype = accumulate_dtype(a.gate.dtype);
                   return layout_of(a.gate.device, std::array{size_or_0(a.gate, 0)}, dtype);
                 }));

  static void call(const Context& context, Arguments& a) { grouped_linear_dgated(context, a); }
  static constexpr auto* kCall = call;
};

using Ops = RawOps<Forward, Backward, LayerForward, LayerBackward, Gated, Dgated>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
