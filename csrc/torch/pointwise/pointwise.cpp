// SPDX-License-Identifier: MIT
// The raw ops of the pointwise family, two for each row of its list. A gated op whose `up` is
// absent takes gate and up packed along the last dimension, [gate | up], and so its bias and
// gradients.
#include "transformer_kernels/pointwise/pointwise.h"

#include <string>
#include <tuple>
#include <utility>

#include "core/backends.h"
#include "pointwise/pointwise_problem.h"
#include "torch/convert.h"

namespace transformer_kernels::torch_ops {
namespace {

using OptionalTensor = std::optional<Tensor>;

// Memory for the gradient of `like`, or for nothing.
Tensor new_if(bool wanted, const OptionalTensor& like, const Tensor& x) {
  return wanted && like ? new_rows_like(*like) : absent(x);
}

TensorView view_if(bool wanted, const char* op, const char* name, const Tensor& tensor) {
  return wanted ? view_of(op, name, tensor) : TensorView{};
}

template <Pointwise kOp>
struct PlainOp {
  static constexpr const char* kName = name_of(kOp);
  static constexpr const char* kForwardSchema = "(Tensor x, Tensor? bias) -> Tensor y";
  static constexpr const char* kBackwardSchema =
      "(Tensor dy, Tensor x, Tensor? bias, bool need_dbias, bool need_y)"
      " -> (Tensor dx, Tensor dbias, Tensor y)";

  static Tensor forward(const Tensor& x_in, OptionalTensor bias) {
    return translate_errors([&] {
      const Tensor x = with_even_rows(kName, "x", x_in);
      const CallContext context(x);
      Tensor y = new_rows_like(x);
      pointwise_forward(context, {.op = kOp,
                                  .x = view_of(kName, "x", x),
                                  .bias = view_of(kName, "bias", bias),
                                  .y = view_of(kName, "y", y)});
      return y;
    });
  }

  static std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& dy_in, const Tensor& x_in,
                                                     OptionalTensor bias, bool need_dbias,
                                                     bool need_y) {
    return translate_errors([&]() -> std::tuple<Tensor, Tensor, Tensor> {
      const Tensor x = with_even_rows(kName, "x", x_in);
      const Tensor dy = with_even_rows(kName, "dy", dy_in);
      const CallContext context(x);
      Tensor dx = new_rows_like(x);
      Tensor dbias = new_if(need_dbias, bias, x);
      Tensor y = new_if(need_y, x, x);
      pointwise_backward(context, {.op = kOp,
                                   .dy = view_of(kName, "dy", dy),
                                   .x = view_of(kName, "x", x),
                                   .bias = view_of(kName, "bias", bias),
                                   .dx = view_of(kName, "dx", dx),
                                   .dbias = view_if(need_dbias && bias, kName, "dbias", dbias),
                                   .y = view_if(need_y, kName, "y", y)});
      return {dx, dbias, y};
    });
  }
};

// Two views of one kind: of two tensors, or the halves of a packed one.
struct GateAndUp {
  TensorView gate;
  TensorView up;
};

GateAndUp halves_of(TensorView packed) {
  if (!packed.defined()) return {};
  packed.sizes[packed.rank - 1] /= 2;
  TensorView up = packed;
  up.data = static_cast<char*>(up.data) + up.sizes[up.rank - 1] * size_of(up.dtype);
  return {packed, up};
}

// What halves_of() does not ask.
void check_packed(const char* op, const TensorView& gate, const TensorView& bias,
                  const OptionalTensor& up_bias) {
  check_value(gate.rank >= 1, op, ": gate has 0 dimensions, expected at least 1");
  const std::int64_t cols = gate.sizes[gate.rank - 1];
  check_value(cols % 2 == 0, op, ": gate has a last dimension of ", cols,
              ", expected an even number (gate and up side by side)");
  check_value(!up_bias, op, ": up_bias is present, expected none (bias is of gate and up)");
  if (!bias.defined()) return;
  check_value(bias.rank == 1, op, ": bias has ", bias.rank, " dimensions, expected 1");
  check_value(bias.sizes[0] == cols, op, ": bias has ", bias.sizes[0], " elements, expected ", cols,
              " (the last dimension of gate)");
}

// The inputs of a gated op, but for dy.
struct GatedInputs {
  const char* op;
  Tensor gate;
  OptionalTensor up;
  const OptionalTensor& bias;
  const OptionalTensor& up_bias;
  GateAndUp x;
  GateAndUp biases;

  GatedInputs(const char* name, const Tensor& gate_in, const OptionalTensor& up_in,
              const OptionalTensor& bias_in, const OptionalTensor& up_bias_in)
      : op(name),
        gate(with_even_rows(op, "gate", gate_in)),
        up(with_even_rows(op, "up", up_in)),
        bias(bias_in),
        up_bias(up_bias_in) {
    const TensorView gate_view = view_of(op, "gate", gate);
    const TensorView bias_view = view_of(op, "bias", bias);
    if (!up) check_packed(op, gate_view, bias_view, up_bias);
    x = split(gate_view, view_of(op, "up", up));
    biases = split(bias_view, view_of(op, "up_bias", up_bias));
  }

  // What lies as the inputs do: `second` is empty where they are packed.
  GateAndUp split(const TensorView& first, const TensorView& second) const {
    return up ? GateAndUp{first, second} : halves_of(first);
  }

  Tensor new_result() const {
    return empty(gate, {x.gate.sizes.data(), static_cast<std::size_t>(x.gate.rank)}, x.gate.dtype);
  }
};

template <Pointwise kOp>
struct GatedOp {
  static constexpr const char* kName = name_of(kOp);
  static constexpr const char* kForwardSchema =
      "(Tensor gate, Tensor? up, Tensor? bias, Tensor? up_bias) -> Tensor y";
  static constexpr const char* kBackwardSchema =
      "(Tensor dy, Tensor gate, Tensor? up, Tensor? bias, Tensor? up_bias, bool need_dbias,"
      " bool need_y)"
      " -> (Tensor dgate, Tensor dup, Tensor dbias, Tensor dup_bias, Tensor y)";

  static Tensor forward(const Tensor& gate, OptionalTensor up, OptionalTensor bias,
                        OptionalTensor up_bias) {
    return translate_errors([&] {
      const GatedInputs in(kName, gate, up, bias, up_bias);
      const CallContext context(in.gate);
      Tensor y = in.new_result();
      pointwise_forward(context, {.op = kOp,
                                  .x = in.x.gate,
                                  .up = in.x.up,
                                  .bias = in.biases.gate,
                                  .up_bias = in.biases.up,
                                  .y = view_of(kName, "y", y)});
      return y;
    });
  }

  using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

  static Gradients backward(const Tensor& dy_in, const Tensor& gate, OptionalTensor up,
                            OptionalTensor bias, OptionalTensor up_bias, bool need_dbias,
                            bool need_y) {
    return translate_errors([&]() -> Gradients {
      const GatedInputs in(kName, gate, up, bias, up_bias);
      const Tensor dy = with_even_rows(kName, "dy", dy_in);
      const CallContext context(in.gate);
      Tensor dgate = new_rows_like(in.gate);
      Tensor dup = new_if(true, in.up, in.gate);
      Tensor dbias = new_if(need_dbias, bias, in.gate);
      Tensor dup_bias = new_if(need_dbias, up_bias, in.gate);
      Tensor y = need_y ? in.new_result() : absent(in.gate);
      const GateAndUp dx = in.split(view_of(kName, "dgate", dgate), view_of(kName, "dup", dup));
      const GateAndUp sums = in.split(view_if(need_dbias && bias, kName, "dbias", dbias),
                                      view_if(need_dbias && up_bias, kName, "dup_bias", dup_bias));
      pointwise_backward(context, {.op = kOp,
                                   .dy = view_of(kName, "dy", dy),
                                   .x = in.x.gate,
                                   .up = in.x.up,
                                   .bias = in.biases.gate,
                                   .up_bias = in.biases.up,
                                   .dx = dx.gate,
                                   .dup = dx.up,
                                   .dbias = sums.gate,
                                   .dup_bias = sums.up,
                                   .y = view_if(need_y, kName, "y", y)});
      return {dgate, dup, dbias, dup_bias, y};
    });
  }
};

// Calls visit.operator()<Op>() with the raw op of each row of the list.
template <class Visit>
void for_each_op(Visit&& visit) {
  const auto visit_row = [&]<Pointwise kOp>() {
    if constexpr (PointwiseOp<kOp>::kGated) {
      visit.template operator()<GatedOp<kOp>>();
    } else {
      visit.template operator()<PlainOp<kOp>>();
    }
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (visit_row.template operator()<static_cast<Pointwise>(kIndex)>(), ...);
  }
  (std::make_index_sequence<kPointwiseCount>());
}

template <class Library>
void define(Library& library) {
  for_each_op([&]<class Op>() {
    const std::string name = Op::kName;
    library.def((name + "_forward" + Op::kForwardSchema).c_str());
    library.def((name + "_backward" + Op::kBackwardSchema).c_str());
  });
}

template <class Library>
void implement(Library& library) {
  for_each_op([&]<class Op>() {
    const std::string name = Op::kName;
    library.impl((name + "_forward").c_str(), TORCH_BOX(&Op::forward));
    library.impl((name + "_backward").c_str(), TORCH_BOX(&Op::backward));
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) implement(m);
}

}  // namespace transformer_kernels::torch_ops
