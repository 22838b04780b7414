// SPDX-License-Identifier: MIT
// The raw ops of the pointwise family, two for each row of its list. Where a gated op has no `up`,
// gate and up are packed along the last dimension of its argument, [gate | up], and so are its bias
// and gradients.
#include "transformer_kernels/pointwise/pointwise.h"

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "pointwise/problem.h"
#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

struct BackwardArguments : PointwiseBackward {
  bool need_dbias;
  bool need_y;
};

template <Pointwise kRow>
struct ForwardOf {
  using Arguments = PointwiseForward;
  static constexpr const char* kOp = name_of(kRow);
  static constexpr auto kLike = &Arguments::x;
  static std::string name() { return std::string(kOp) + "_forward"; }
  static std::string returns() { return "Tensor y"; }
};

template <Pointwise kRow>
struct BackwardOf {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = name_of(kRow);
  static constexpr auto kLike = &Arguments::x;
  static std::string name() { return std::string(kOp) + "_backward"; }
};

// ---- plain ops ----------------------------------------------------------------------------------

template <Pointwise kRow>
struct PlainForward : ForwardOf<kRow> {
  using Arguments = PointwiseForward;
  static constexpr auto kFields =
      std::tuple(tensor("x", &Arguments::x, with_even_rows), parameter("bias", &Arguments::bias));

  static auto run(const Context& context, Arguments& a) {
    a.op = kRow;
    auto y = result(a.y, new_rows_like, a.x);
    pointwise_forward(context, a);
    return y;
  }
};

template <Pointwise kRow>
struct PlainBackward : BackwardOf<kRow> {
  using Arguments = BackwardArguments;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 tensor("x", &Arguments::x, with_even_rows), parameter("bias", &Arguments::bias),
                 flag("need_dbias", &Arguments::need_dbias), flag("need_y", &Arguments::need_y));
  static std::string returns() { return "(Tensor dx, Tensor dbias, Tensor y)"; }

  static auto run(const Context& context, Arguments& a) {
    a.op = kRow;
    const Tensor dx = result_if(true, a.dx, a.x, a.x);
    const Tensor dbias = result_if(a.need_dbias && a.bias.defined(), a.dbias, a.bias, a.x);
    const Tensor y = result_if(a.need_y, a.y, a.x, a.x);
    pointwise_backward(context, a);
    return std::tuple(dx, dbias, y);
  }
};

// ---- gated ops ----------------------------------------------------------------------------------

// The checks of packed operands that halve() leaves out.
void check_packed(const char* op, const TensorView& gate, const TensorView& bias,
                  const TensorView& up_bias) {
  check_value(gate.rank >= 1, op, ": gate has 0 dimensions, expected at least 1");
  const std::int64_t cols = gate.sizes[gate.rank - 1];
  check_value(cols % 2 == 0, op, ": gate has a last dimension of ", cols,
              ", expected an even number (gate and up side by side)");
  check_value(!up_bias.defined(), op,
              ": up_bias is present, expected none (bias is of gate and up)");
  if (!bias.defined()) return;
  check_value(bias.rank == 1, op, ": bias has ", bias.rank, " dimensions, expected 1");
  check_value(bias.sizes[0] == cols, op, ": bias has ", bias.sizes[0], " elements, expected ", cols,
              " (the last dimension of gate)");
}

// Leaves the first half of the last dimension in `packed`, where it is defined, and returns the
// second.
TensorView halve(TensorView& packed) {
  if (!packed.defined()) return {};
  packed.sizes[packed.rank - 1] /= 2;
  TensorView second = packed;
  second.data =
      static_cast<char*>(second.data) + second.sizes[second.rank - 1] * size_of(second.dtype);
  return second;
}

template <Pointwise kRow>
struct GatedForward : ForwardOf<kRow> {
  using Arguments = PointwiseForward;
  static constexpr auto kFields = std::tuple(
      tensor("gate", &Arguments::x, with_even_rows), optional("up", &Arguments::up, with_even_rows),
      parameter("bias", &Arguments::bias), parameter("up_bias", &Arguments::up_bias));

  static auto run(const Context& context, Arguments& a) {
    a.op = kRow;
    if (!a.up.defined()) {
      check_packed(name_of(kRow), a.x, a.bias, a.up_bias);
      a.up = halve(a.x);
      a.up_bias = halve(a.bias);
    }
    auto y = result(a.y, new_rows_like, a.x);
    pointwise_forward(context, a);
    return y;
  }
};

template <Pointwise kRow>
struct GatedBackward : BackwardOf<kRow> {
  using Arguments = BackwardArguments;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_even_rows), tensor("gate", &Arguments::x, with_even_rows),
      optional("up", &Arguments::up, with_even_rows), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias), flag("need_dbias", &Arguments::need_dbias),
      flag("need_y", &Arguments::need_y));
  static std::string returns() {
    return "(Tensor dgate, Tensor dup, Tensor dbias, Tensor dup_bias, Tensor y)";
  }

  static auto run(const Context& context, Arguments& a) {
    a.op = kRow;
    const bool packed = !a.up.defined();
    if (packed) check_packed(name_of(kRow), a.x, a.bias, a.up_bias);
    const auto sum_if = [&](TensorView& view, const TensorView& bias) {
      return result_if(a.need_dbias && bias.defined(), view, bias, a.x);
    };
    const Tensor dgate = result_if(true, a.dx, a.x, a.x);
    const Tensor dup = result_if(!packed, a.dup, a.up, a.x);
    const Tensor dbias = sum_if(a.dbias, a.bias);
    const Tensor dup_bias = sum_if(a.dup_bias, a.up_bias);
    if (packed) {
      a.up = halve(a.x);
      a.dup = halve(a.dx);
      a.up_bias = halve(a.bias);
      a.dup_bias = halve(a.dbias);
    }
    const Tensor y = result_if(a.need_y, a.y, a.x, a.x);
    pointwise_backward(context, a);
    return std::tuple(dgate, dup, dbias, dup_bias, y);
  }
};

// ---- of every row -------------------------------------------------------------------------------

template <Pointwise kRow>
using Forward =
    std::conditional_t<PointwiseOp<kRow>::kGated, GatedForward<kRow>, PlainForward<kRow>>;
template <Pointwise kRow>
using Backward =
    std::conditional_t<PointwiseOp<kRow>::kGated, GatedBackward<kRow>, PlainBackward<kRow>>;

// Calls visit.operator()<RawOps<...>>() with the raw ops of each row of the list.
template <class Visit>
void for_each_row(Visit&& visit) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (visit.template operator()<RawOps<Forward<static_cast<Pointwise>(kIndex)>,
                                      Backward<static_cast<Pointwise>(kIndex)>>>(),
     ...);
  }
  (std::make_index_sequence<kPointwiseCount>());
}

template <class Library>
void implement(Library& library) {
  for_each_row([&]<class Ops>() { Ops::implement(library); });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  for_each_row([&]<class Ops>() { Ops::define(m); });
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) implement(m);
}

}  // namespace transformer_kernels::torch_ops
