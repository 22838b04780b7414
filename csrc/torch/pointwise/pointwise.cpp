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

template <Pointwise kRow>
void forward(const Context& context, PointwiseForward& a) {
  a.op = kRow;
  pointwise_forward(context, a);
}

struct BackwardArguments : PointwiseBackward {
  bool need_dbias;
  bool need_y;
};

template <Pointwise kRow>
void backward(const Context& context, BackwardArguments& a) {
  a.op = kRow;
  pointwise_backward(context, a);
}

// ---- plain ops ----------------------------------------------------------------------------------

template <Pointwise kRow>
struct PlainForward {
  using Arguments = PointwiseForward;
  static constexpr const char* kOp = name_of(kRow);
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = forward<kRow>;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(tensor("x", &Arguments::x, with_even_rows), parameter("bias", &Arguments::bias));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, rows_like, &Arguments::x));
};

template <Pointwise kRow>
struct PlainBackward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = name_of(kRow);
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = backward<kRow>;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 tensor("x", &Arguments::x, with_even_rows), parameter("bias", &Arguments::bias),
                 flag("need_dbias", &Arguments::need_dbias), flag("need_y", &Arguments::need_y));
  static constexpr auto kResults = std::tuple(
      result("dx", &Arguments::dx, rows_like, &Arguments::x),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias),
      result_if(&Arguments::need_y, "y", &Arguments::y, rows_like, &Arguments::x));
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

TensorView half_of(TensorView packed) {
  packed.sizes[packed.rank - 1] /= 2;
  return packed;
}

// Leaves the first half of the last dimension in `packed`, where it is defined, and returns the
// second.
TensorView halve(TensorView& packed) {
  if (!packed.defined()) return {};
  packed = half_of(packed);
  TensorView second = packed;
  second.data =
      static_cast<char*>(second.data) + second.sizes[second.rank - 1] * size_of(second.dtype);
  return second;
}

template <Pointwise kRow>
struct GatedForward {
  using Arguments = PointwiseForward;
  static constexpr const char* kOp = name_of(kRow);
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = forward<kRow>;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("gate", &Arguments::x, with_even_rows), optional("up", &Arguments::up, with_even_rows),
      parameter("bias", &Arguments::bias), parameter("up_bias", &Arguments::up_bias));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, rows_like, &Arguments::x));

  static void prepare(Arguments& a) {
    if (a.up.defined()) return;
    check_packed(kOp, a.x, a.bias, a.up_bias);
    a.up = halve(a.x);
    a.up_bias = halve(a.bias);
  }
};

// The gate of packed arguments has the columns of both until its gradient is made.
template <Pointwise kRow>
struct GatedBackward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = name_of(kRow);
  static constexpr const char* kPass = "_backward";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_even_rows), tensor("gate", &Arguments::x, with_even_rows),
      optional("up", &Arguments::up, with_even_rows), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias), flag("need_dbias", &Arguments::need_dbias),
      flag("need_y", &Arguments::need_y));
  static constexpr auto kResults = std::tuple(
      result("dgate", &Arguments::dx, rows_like, &Arguments::x),
      result("dup", &Arguments::dup, rows_like, &Arguments::up),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias),
      result_if(&Arguments::need_dbias, "dup_bias", &Arguments::dup_bias, rows_like,
                &Arguments::up_bias),
      result("y", &Arguments::y, [](const Arguments& a) {
        return a.need_y ? rows_like(a.up.defined() ? a.x : half_of(a.x)) : TensorView{};
      }));

  static void prepare(Arguments& a) {
    if (!a.up.defined()) check_packed(kOp, a.x, a.bias, a.up_bias);
  }
  static void call(const Context& context, Arguments& a) {
    if (!a.up.defined()) {
      a.up = halve(a.x);
      a.dup = halve(a.dx);
      a.up_bias = halve(a.bias);
      a.dup_bias = halve(a.dbias);
    }
    backward<kRow>(context, a);
  }
  static constexpr auto* kCall = call;
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

struct Ops {
  template <class Library>
  static void define(Library& library) {
    for_each_row([&]<class Row>() { Row::define(library); });
  }
  template <class Library>
  static void implement(Library& library) {
    for_each_row([&]<class Row>() { Row::implement(library); });
  }
};

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
