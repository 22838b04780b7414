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
  static constexpr auto* kCall = fpga::linear_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(tensor("x", &Arguments::x, with_even_rows),
                                             tensor("weight", &Arguments::weight, with_even_rows),
                                             parameter("bias", &Arguments::bias));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, [](const Arguments& a) {
    TensorView layout = a.x;
    if (layout.rank > 0) layout.sizes[a.x.rank - 1] = a.weight.rank == 2 ? a.weight.sizes[0] : 0;
    return rows_like(layout);
  }));

  static std::int64_t head_dim(const Arguments&) { return 0; }
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

TFK_RAW_OPS_ON_ARRAY(Ops)
STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { m.def("fpga_counters() -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CompositeExplicitAutograd, m) {
  m.impl("fpga_counters", TORCH_BOX(&counters));
}

}  // namespace transformer_kernels::torch_ops
