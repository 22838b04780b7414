// SPDX-License-Identifier: MIT
#include "transformer_kernels/moe/dispatch.h"

#include <algorithm>
#include <array>

#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

std::int64_t size_or_0(const TensorView& view, int dim) {
  return view.rank > dim ? view.sizes[dim] : 0;
}

TensorView integers(const TensorView& like, std::int64_t count) {
  return layout_of(like.device, std::array{count}, DType::kInt32);
}

// Rows like those of x, one for each token or one for each assignment.
TensorView rows_of_tokens(const TensorView& x, const TensorView& places) {
  return layout_of(x.device, std::array{size_or_0(places, 0), size_or_0(x, 1)}, x.dtype);
}
TensorView rows_of_places(const TensorView& x, const TensorView& places) {
  return layout_of(x.device, std::array{places.numel(), size_or_0(x, 1)}, x.dtype);
}

struct Sort {
  using Arguments = MoeSort;
  static constexpr const char* kOp = "moe_sort";
  static constexpr const char* kPass = "";
  static constexpr auto* kCall = moe_sort;
  static constexpr auto kLike = &Arguments::indices;
  static constexpr auto kFields = std::tuple(tensor("indices", &Arguments::indices, packed_indices),
                                             integer("num_experts", &Arguments::experts),
                                             integer("capacity", &Arguments::capacity));
  static constexpr auto kResults =
      std::tuple(result("offsets", &Arguments::offsets,
                        [](const Arguments& a) {
                          return integers(a.indices, std::max<std::int64_t>(a.experts, 0) + 1);
                        }),
                 result("tokens", &Arguments::tokens,
                        [](const Arguments& a) { return integers(a.indices, a.indices.numel()); }),
                 result("places", &Arguments::places, rows_like, &Arguments::indices));
};

struct PermuteForward {
  using Arguments = MoePermuteForward;
  static constexpr const char* kOp = "moe_permute";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = moe_permute_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(tensor("x", &Arguments::x, with_even_rows),
                                             tensor("places", &Arguments::places, packed_indices));
  static constexpr auto kResults = std::tuple(
      result("y", &Arguments::y, [](const Arguments& a) { return rows_of_places(a.x, a.places); }));
};

struct PermuteBackward {
  using Arguments = MoePermuteBackward;
  static constexpr const char* kOp = "moe_permute";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = moe_permute_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                                             tensor("places", &Arguments::places, packed_indices));
  static constexpr auto kResults = std::tuple(result(
      "dx", &Arguments::dx, [](const Arguments& a) { return rows_of_tokens(a.dy, a.places); }));
};

struct UnpermuteForward {
  using Arguments = MoeUnpermuteForward;
  static constexpr const char* kOp = "moe_unpermute";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = moe_unpermute_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(tensor("x", &Arguments::x, with_even_rows),
                                             tensor("places", &Arguments::places, packed_indices),
                                             optional("weights", &Arguments::weights, contiguous));
  static constexpr auto kResults = std::tuple(
      result("y", &Arguments::y, [](const Arguments& a) { return rows_of_tokens(a.x, a.places); }));
};

struct UnpermuteBackwardArguments : MoeUnpermuteBackward {
  bool need_dx;
  bool need_dweights;
};

struct UnpermuteBackward {
  using Arguments = UnpermuteBackwardArguments;
  static constexpr const char* kOp = "moe_unpermute";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = moe_unpermute_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_even_rows), tensor("x", &Arguments::x, with_even_rows),
      tensor("places", &Arguments::places, packed_indices),
      optional("weights", &Arguments::weights, contiguous), flag("need_dx", &Arguments::need_dx),
      flag("need_dweights", &Arguments::need_dweights));
  static constexpr auto kResults =
      std::tuple(result("dx", &Arguments::dx,
                        [](const Arguments& a) {
                          return a.need_dx ? rows_of_places(a.dy, a.places) : TensorView{};
                        }),
                 result_if(&Arguments::need_dweights, "dweights", &Arguments::dweights, rows_like,
                           &Arguments::weights));
};

using Ops = RawOps<Sort, PermuteForward, PermuteBackward, UnpermuteForward, UnpermuteBackward>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
