// SPDX-License-Identifier: MIT
#include "transformer_kernels/embedding/embedding.h"

#include "core/check.h"
#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

// One row of D for each index. That weight is a matrix is checked with all else.
Tensor rows_for(const char* op, const char* name, const TensorView& indices,
                const TensorView& weight) {
  check_value(indices.rank < TensorView::kMaxRank, op, ": ", name, " has ", indices.rank,
              " dimensions, expected at most ", TensorView::kMaxRank - 1);
  std::array<std::int64_t, TensorView::kMaxRank> sizes = indices.sizes;
  sizes[indices.rank] = weight.sizes[1];
  return empty(weight.device, {sizes.data(), static_cast<std::size_t>(indices.rank) + 1},
               weight.dtype);
}

// The gradient of a table of `rows`, with a view of it; of no elements where it is not wanted.
Tensor gradient_if(bool wanted, const char* op, const char* rows_name, TensorView& view,
                   const TensorView& dy, std::int64_t rows) {
  if (!wanted) return absent(dy);
  check_value(dy.rank >= 1, op, ": dy has 0 dimensions, expected at least 1");
  check_value(rows >= 0, op, ": ", rows_name, " is ", rows, ", expected 0 or more");
  const std::int64_t sizes[] = {rows, dy.sizes[dy.rank - 1]};
  const Tensor tensor = empty(dy.device, sizes, dy.dtype);
  view = view_of(op, "result", tensor);
  return tensor;
}

struct EmbeddingForwardArguments : EmbeddingForward {
  std::int64_t padding_idx;  // of the backward pass alone, and so the next
  bool scale_grad_by_freq;
};

struct EmbeddingForwardOp {
  using Arguments = EmbeddingForwardArguments;
  static constexpr const char* kOp = "embedding";
  static constexpr auto kLike = &Arguments::weight;
  static constexpr auto kFields =
      std::tuple(tensor("weight", &EmbeddingForward::weight, with_even_rows),
                 tensor("indices", &EmbeddingForward::indices, packed_indices),
                 integer("padding_idx", &Arguments::padding_idx),
                 flag("scale_grad_by_freq", &Arguments::scale_grad_by_freq));
  static std::string name() { return "embedding_forward"; }
  static std::string returns() { return "Tensor y"; }

  static auto run(const Context& context, Arguments& a) {
    const Tensor y = rows_for(kOp, "indices", a.indices, a.weight);
    a.y = view_of(kOp, "y", y);
    embedding_forward(context, a);
    return std::tuple(y);
  }
};

struct EmbeddingBackwardArguments : EmbeddingBackward {
  std::int64_t rows;
};

struct EmbeddingBackwardOp {
  using Arguments = EmbeddingBackwardArguments;
  static constexpr const char* kOp = "embedding";
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &EmbeddingBackward::dy, with_even_rows),
      tensor("indices", &EmbeddingBackward::indices, packed_indices),
      integer("rows", &Arguments::rows), integer("padding_idx", &EmbeddingBackward::padding_idx),
      flag("scale_grad_by_freq", &EmbeddingBackward::scale_grad_by_freq));
  static std::string name() { return "embedding_backward"; }
  static std::string returns() { return "Tensor dweight"; }

  static auto run(const Context& context, Arguments& a) {
    const Tensor dweight = gradient_if(true, kOp, "rows", a.dweight, a.dy, a.rows);
    embedding_backward(context, a);
    return std::tuple(dweight);
  }
};

struct AddForwardArguments : EmbeddingAddForward {
  std::int64_t padding_idx;  // of the backward pass alone
};

struct AddForwardOp {
  using Arguments = AddForwardArguments;
  static constexpr const char* kOp = "embedding_add";
  static constexpr auto kLike = &Arguments::weight;
  static constexpr auto kFields =
      std::tuple(tensor("weight", &EmbeddingAddForward::weight, with_even_rows),
                 tensor("tokens", &EmbeddingAddForward::tokens, packed_indices),
                 tensor("position_weight", &EmbeddingAddForward::position_weight, with_even_rows),
                 optional("positions", &EmbeddingAddForward::positions, packed_indices),
                 optional("type_weight", &EmbeddingAddForward::type_weight, with_even_rows),
                 optional("types", &EmbeddingAddForward::types, packed_indices),
                 integer("first_position", &EmbeddingAddForward::first_position),
                 integer("padding_idx", &Arguments::padding_idx));
  static std::string name() { return "embedding_add_forward"; }
  static std::string returns() { return "Tensor y"; }

  static auto run(const Context& context, Arguments& a) {
    const Tensor y = rows_for(kOp, "tokens", a.tokens, a.weight);
    a.y = view_of(kOp, "y", y);
    embedding_add_forward(context, a);
    return std::tuple(y);
  }
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
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &EmbeddingAddBackward::dy, with_even_rows),
      tensor("tokens", &EmbeddingAddBackward::tokens, packed_indices),
      optional("positions", &EmbeddingAddBackward::positions, packed_indices),
      optional("types", &EmbeddingAddBackward::types, packed_indices),
      integer("rows", &Arguments::rows), integer("position_rows", &Arguments::position_rows),
      integer("type_rows", &Arguments::type_rows),
      integer("first_position", &EmbeddingAddBackward::first_position),
      integer("padding_idx", &EmbeddingAddBackward::padding_idx),
      flag("need_dweight", &Arguments::need_dweight),
      flag("need_dposition_weight", &Arguments::need_dposition_weight),
      flag("need_dtype_weight", &Arguments::need_dtype_weight));
  static std::string name() { return "embedding_add_backward"; }
  static std::string returns() {
    return "(Tensor dweight, Tensor dposition_weight, Tensor dtype_weight)";
  }

  static auto run(const Context& context, Arguments& a) {
    const Tensor dweight = gradient_if(a.need_dweight, kOp, "rows", a.dweight, a.dy, a.rows);
    const Tensor dposition_weight = gradient_if(a.need_dposition_weight, kOp, "position_rows",
                                                a.dposition_weight, a.dy, a.position_rows);
    const Tensor dtype_weight = gradient_if(a.need_dtype_weight && a.types.defined(), kOp,
                                            "type_rows", a.dtype_weight, a.dy, a.type_rows);
    embedding_add_backward(context, a);
    return std::tuple(dweight, dposition_weight, dtype_weight);
  }
};

using Ops = RawOps<EmbeddingForwardOp, EmbeddingBackwardOp, AddForwardOp, AddBackwardOp>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
