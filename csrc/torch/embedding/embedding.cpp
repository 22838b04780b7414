// SPDX-License-Identifier: MIT
#include "transformer_kernels/embedding/embedding.h"

#include "core/check.h"
#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

// One row of D for each index. That weight is a matrix is checked with all else.
template <class A, class Indices>
constexpr auto rows_of(const char* op, const char* name, Indices indices) {
  return result("y", &A::y, [=](const A& a) {
    TensorView layout = a.*indices;
    check_value(layout.rank < TensorView::kMaxRank, op, ": ", name, " has ", layout.rank,
                " dimensions, expected at most ", TensorView::kMaxRank - 1);
    layout.sizes[layout.rank++] = a.weight.sizes[1];
    layout.dtype = a.weight.dtype;
    layout.device = a.weight.device;
    return rows_like(layout);
  });
}

// The gradient of a table of as many rows as the argument `rows_name` says, where `wanted`.
template <class A>
constexpr auto gradient_of_table(const char* op, const char* name, TensorView A::*member,
                                 const char* rows_name, auto rows, auto wanted) {
  return result(name, member, [=](const auto& a) {
    if (!wanted(a)) return TensorView{};
    check_value(a.dy.rank >= 1, op, ": dy has 0 dimensions, expected at least 1");
    check_value(a.*rows >= 0, op, ": ", rows_name, " is ", a.*rows, ", expected 0 or more");
    return layout_of(a.dy.device, std::array{a.*rows, a.dy.sizes[a.dy.rank - 1]}, a.dy.dtype);
  });
}

struct EmbeddingForwardOp {
  using Arguments = EmbeddingForward;
  static constexpr const char* kOp = "embedding";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = embedding_forward;
  static constexpr auto kLike = &Arguments::weight;
  static constexpr auto kFields =
      std::tuple(tensor("weight", &Arguments::weight, with_even_rows),
                 tensor("indices", &Arguments::indices, packed_indices),
                 unused<std::int64_t>("padding_idx"), unused<bool>("scale_grad_by_freq"));
  static constexpr auto kResults =
      std::tuple(rows_of<Arguments>(kOp, "indices", &Arguments::indices));
};

struct EmbeddingBackwardArguments : EmbeddingBackward {
  std::int64_t rows;
};

struct EmbeddingBackwardOp {
  using Arguments = EmbeddingBackwardArguments;
  static constexpr const char* kOp = "embedding";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = embedding_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 tensor("indices", &Arguments::indices, packed_indices),
                 integer("rows", &Arguments::rows), integer("padding_idx", &Arguments::padding_idx),
                 flag("scale_grad_by_freq", &Arguments::scale_grad_by_freq));
  static constexpr auto kResults =
      std::tuple(gradient_of_table(kOp, "dweight", &Arguments::dweight, "rows", &Arguments::rows,
                                   [](const Arguments&) { return true; }));
};

struct AddForwardOp {
  using Arguments = EmbeddingAddForward;
  static constexpr const char* kOp = "embedding_add";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = embedding_add_forward;
  static constexpr auto kLike = &Arguments::weight;
  static constexpr auto kFields = std::tuple(
      tensor("weight", &Arguments::weight, with_even_rows),
      tensor("tokens", &Arguments::tokens, packed_indices),
      tensor("position_weight", &Arguments::position_weight, with_even_rows),
      optional("positions", &Arguments::positions, packed_indices),
      optional("type_weight", &Arguments::type_weight, with_even_rows),
      optional("types", &Arguments::types, packed_indices),
      integer("first_position", &Arguments::first_position), unused<std::int64_t>("padding_idx"));
  static constexpr auto kResults =
      std::tuple(rows_of<Arguments>(kOp, "tokens", &Arguments::tokens));
};

struct AddBackwardArguments : EmbeddingAddBackward {
  std::int64_t rows;
  std::int64_t position_rows;
  std::int64_t type_rows;
  bool need_dweight;
  bool need_dposition_weight;
  bool need_dtype_weight;
};

struct AddBackwardOp {
  using Arguments = AddBackwardArguments;
  static constexpr const char* kOp = "embedding_add";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = embedding_add_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_even_rows),
      tensor("tokens", &Arguments::tokens, packed_indices),
      optional("positions", &Arguments::positions, packed_indices),
      optional("types", &Arguments::types, packed_indices), integer("rows", &Arguments::rows),
      integer("position_rows", &Arguments::position_rows),
      integer("type_rows", &Arguments::type_rows),
      integer("first_position", &Arguments::first_position),
      integer("padding_idx", &Arguments::padding_idx),
      flag("need_dweight", &Arguments::need_dweight),
      flag("need_dposition_weight", &Arguments::need_dposition_weight),
      flag("need_dtype_weight", &Arguments::need_dtype_weight));
  static constexpr auto kResults = std::tuple(
      gradient_of_table(kOp, "dweight", &Arguments::dweight, "rows", &Arguments::rows,
                        [](const Arguments& a) { return a.need_dweight; }),
      gradient_of_table(kOp, "dposition_weight", &Arguments::dposition_weight, "position_rows",
                        &Arguments::position_rows,
                        [](const Arguments& a) { return a.need_dposition_weight; }),
      gradient_of_table(
          kOp, "dtype_weight", &Arguments::dtype_weight, "type_rows", &Arguments::type_rows,
          [](const Arguments& a) { return a.need_dtype_weight && a.types.defined(); }));
};

using Ops = RawOps<EmbeddingForwardOp, EmbeddingBackwardOp, AddForwardOp, AddBackwardOp>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
