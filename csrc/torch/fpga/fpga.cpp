// SPDX-License-Identifier: MIT
// Raw ops that exist for the FPGA array alone: the linear layer, and the counters of the arrays.
#include <array>
#include <cstring>

#include "torch/on_array.h"
#include "transformer_kernels/fpga/linear.h"

namespace transformer_kernels::torch_ops {
namespace {

struct Linear {
  using Arguments = fpga::LinearForward;
  static constexpr const char* kOp = "linear";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(tensor("x", &Arguments::x, with_even_rows),
                                             tensor("weight", &Arguments::weight, with_even_rows),
                                             parameter("bias", &Arguments::bias));
  static std::string name() { return "linear_forward"; }
  static std::string returns() { return "Tensor y"; }
  static std::int64_t head_dim(const Arguments&) { return 0; }

  static auto run(const Context& context, Arguments& a) {
    TensorView like = a.x;
    if (like.rank > 0) like.sizes[like.rank - 1] = a.weight.rank == 2 ? a.weight.sizes[0] : 0;
    auto y = result(a.y, new_rows_like, like);
    fpga::linear_forward(context, a);
    return y;
  }
};

using Ops = RawOps<OnArray<Linear>>;

// Counters in the order of their struct.
Tensor counters() {
  return translate_errors([] {
    const fpga::Counters c = fpga::environment_counters();
    const std::array numbers = {c.cycles,    c.commands, c.bytes_in,
                                c.bytes_out, c.useful,   c.possible};
    const std::int64_t sizes[] = {static_cast<std::int64_t>(numbers.size())};
    const Tensor tensor = empty({}, sizes, DType::kInt64);
    std::memcpy(tensor.data_ptr(), numbers.data(), sizeof(numbers));
    return tensor;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  Ops::define(m);
  m.def("fpga_counters() -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CompositeExplicitAutograd, m) {
  m.impl("fpga_counters", TORCH_BOX(&counters));
}

}  // namespace transformer_kernels::torch_ops
