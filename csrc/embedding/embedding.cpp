// SPDX-License-Identifier: MIT
#include "transformer_kernels/embedding/embedding.h"

#include "core/backends.h"
#include "core/overlap.h"
#include "embedding/problem.h"

namespace transformer_kernels {
namespace {

constexpr Backends<EmbeddingForwardProblem> kForward{
    .cpu = cpu::embedding_forward,
    .cuda = kHasCuda ? cuda::embedding_forward : nullptr,
    .numbers = cpu::check_numbers};
constexpr Backends<EmbeddingBackwardProblem> kBackward{
    .cpu = cpu::embedding_backward,
    .cuda = kHasCuda ? cuda::embedding_backward : nullptr,
    .numbers = cpu::check_numbers};

// Kernels count tokens and rows in 32 bits.
constexpr std::int64_t kMostTokens = 2147483647;
constexpr std::int64_t kMostRows = 2147483648;

class Checker {
 public:
  Checker(const char* op, Device device) : op_(op), check_(op, device) {}

  const ArgumentChecker& arguments() const { return check_; }

  // A table or its gradient.
  void table(const char* name, const TensorView& view) const {
    check_.floating(name, view);
    check_value(view.rank == 2, op_, ": ", name, " has ", view.rank, " dimensions, expected 2");
    check_value(view.sizes[0] <= kMostRows, op_, ": ", name, " has ", view.sizes[0],
                " rows, expected at most ", kMostRows);
  }

  // One of the dtype and the columns of another tensor.
  void table_like(const char* name, const TensorView& view, const char* like_name,
                  const TensorView& like) const {
    table(name, view);
    check_type(view.dtype == like.dtype, op_, ": ", name, " is ", name_of(view.dtype),
               ", expected ", name_of(like.dtype), " (the dtype of ", like_name, ")");
    const std::int64_t cols = like.sizes[like.rank - 1];
    check_value(view.sizes[1] == cols, op_, ": ", name, " has ", view.sizes[1],
                " columns, expected ", cols, " (the last dimension of ", like_name, ")");
  }

  void indices(const char* name, const TensorView& view) const {
    check_.indices(name, view);
    check_.packed(name, view, view.numel(), "its shape");
    check_value(view.numel() <= kMostTokens, op_, ": ", name, " has ", view.numel(),
                " elements, expected at most ", kMostTokens);
  }

  // y or dy: the shape of `tokens` and a row for each.
  void rows_of(const char* name, const TensorView& view, const char* tokens_name,
               const TensorView& tokens, std::int64_t cols) const {
    bool fits = view.rank == tokens.rank + 1 && view.sizes[tokens.rank] == cols;
    for (int i = 0; fits && i < tokens.rank; ++i) fits = view.sizes[i] == tokens.sizes[i];
    if (fits) return;
    check_value(false, op_, ": ", name, " has shape ", shape_of(view), ", expected that of ",
                tokens_name, ", ", shape_of(tokens), ", with ", cols, " behind it");
  }

  // The indices of tokens, positions or types: `view` has the shape of tokens, or repeats along its
  // leading dimensions.
  EmbeddingIndices indices_of(const char* name, const TensorView& view,
                              const TensorView& tokens) const {
    indices(name, view);
    int first = 0;  // leading dimensions of 1 repeat
    while (first < view.rank && view.sizes[first] == 1) ++first;
    bool fits = view.rank <= tokens.rank;
    for (int i = first; fits && i < view.rank; ++i) {
      fits = view.sizes[i] == tokens.sizes[tokens.rank - view.rank + i];
    }
    if (!fits) {
      check_value(false, op_, ": ", name, " has shape ", shape_of(view), ", expected ",
                  shape_of(tokens), " (the shape of tokens) or its last dimensions");
    }
    return {name, view.data, view.dtype == DType::kInt64, 0, view.numel()};
  }

  // first, first + 1, ... along the last dimension of tokens.
  EmbeddingIndices places(const TensorView& tokens, std::int64_t first, const char* table_name,
                          std::int64_t rows) const {
    const std::int64_t count = tokens.rank == 0 ? 1 : tokens.sizes[tokens.rank - 1];
    check_value(first >= 0, op_, ": first_position is ", first, ", expected 0 or more");
    check_value(first + count <= rows || tokens.numel() == 0, op_, ": ", table_name, " has ", rows,
                " rows, expected at least ", first + count,
                " (first_position and the last dimension of tokens)");
    return {"positions", nullptr, false, first, count};
  }

  EmbeddingTable table_of(const char* name, const TensorView& view,
                          const EmbeddingIndices& indices) const {
    return {{view.data, checked_row_stride(op_, name, view)}, view.sizes[0], indices};
  }

  Rows input(const char* name, const TensorView& view) const {
    return {view.data, checked_row_stride(op_, name, view)};
  }
  Rows output(const char* name, const TensorView& view) const {
    return {view.data, checked_output_stride(op_, name, view)};
  }

 private:
  const char* op_;
  ArgumentChecker check_;
};

EmbeddingForwardProblem check_forward(Device device, const EmbeddingForward& a) {
  const Checker check("embedding", device);
  check.table("weight", a.weight);
  const EmbeddingIndices indices = check.indices_of("indices", a.indices, a.indices);
  const std::int64_t cols = a.weight.sizes[1];
  check.arguments().typed("y", a.y, a.weight.dtype, "the dtype of weight");
  check.rows_of("y", a.y, "indices", a.indices, cols);
  check_apart("embedding", {{"y", a.y}}, {{"weight", a.weight}, {"indices", a.indices}});
  return {.op = "embedding",
          .dtype = a.weight.dtype,
          .tokens = a.indices.numel(),
          .cols = cols,
          .tables = 1,
          .table = {check.table_of("weight", a.weight, indices)},
          .y = check.output("y", a.y)};
}

EmbeddingForwardProblem check_forward(Device device, const EmbeddingAddForward& a) {
  const Checker check("embedding_add", device);
  check.table("weight", a.weight);
  const EmbeddingIndices tokens = check.indices_of("tokens", a.tokens, a.tokens);
  check.table_like("position_weight", a.position_weight, "weight", a.weight);
  const EmbeddingIndices positions =
      a.positions.defined()
          ? check.indices_of("positions", a.positions, a.tokens)
          : check.places(a.tokens, a.first_position, "position_weight", a.position_weight.sizes[0]);
  const std::int64_t cols = a.weight.sizes[1];
  EmbeddingForwardProblem p{
      .op = "embedding_add",
      .dtype = a.weight.dtype,
      .tokens = a.tokens.numel(),
      .cols = cols,
      .tables = 2,
      .table = {check.table_of("weight", a.weight, tokens),
                check.table_of("position_weight", a.position_weight, positions)},
      .y = {}};
  check_value(a.types.defined() == a.type_weight.defined(),
              "embedding_add: ", a.types.defined() ? "type_weight" : "types",
              " is missing, expected it beside ", a.types.defined() ? "types" : "type_weight");
  if (a.types.defined()) {
    check.table_like("type_weight", a.type_weight, "weight", a.weight);
    const EmbeddingIndices types = check.indices_of("types", a.types, a.tokens);
    p.table[p.tables++] = check.table_of("type_weight", a.type_weight, types);
  }
  check.arguments().typed("y", a.y, a.weight.dtype, "the dtype of weight");
  check.rows_of("y", a.y, "tokens", a.tokens, cols);
  p.y = check.output("y", a.y);
  check_apart("embedding_add", {{"y", a.y}},
              {{"weight", a.weight},
               {"tokens", a.tokens},
               {"position_weight", a.position_weight},
               {"positions", a.positions},
               {"type_weight", a.type_weight},
               {"types", a.types}});
  return p;
}

// dy, which says dtype and columns, and the tokens that it has a row for.
EmbeddingBackwardProblem check_gradient(const Checker& check, const char* op, const TensorView& dy,
                                        const char* tokens_name, const TensorView& tokens) {
  check.arguments().floating("dy", dy);
  check.indices(tokens_name, tokens);
  const std::int64_t cols = dy.sizes[dy.rank - 1];
  check.rows_of("dy", dy, tokens_name, tokens, cols);
  return {.op = op,
          .dtype = dy.dtype,
          .tokens = tokens.numel(),
          .cols = cols,
          .dy = check.input("dy", dy),
          .indices = {},
          .padding_idx = -1,
          .scale_grad_by_freq = false,
          .rows = 0,
          .dweight = {}};
}

// The problem of one table's gradient.
EmbeddingBackwardProblem of_table(EmbeddingBackwardProblem p, const Checker& check,
                                  const TensorView& dy, const char* name, const TensorView& view,
                                  const EmbeddingIndices& indices) {
  check.table_like(name, view, "dy", dy);
  p.indices = indices;
  p.rows = view.sizes[0];
  p.dweight = check.output(name, view);
  return p;
}

void run(const Context& context, const EmbeddingForwardProblem& problem) {
  if (problem.tokens == 0 || problem.cols == 0) return;
  run_on(problem.op, kForward, context, problem);
}

void run(const Context& context, const EmbeddingBackwardProblem& problem) {
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(problem.op, kBackward, context, problem);
}

}  // namespace

std::string describe(const EmbeddingForwardProblem& p) {
  std::string text =
      concat("forward ", name_of(p.dtype), " ", p.tokens, "x", p.cols, " of ", p.table[0].rows);
  for (int i = 1; i < p.tables; ++i) text += concat(" + ", p.table[i].rows);
  return text + " rows";
}

std::string describe(const EmbeddingBackwardProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.tokens, "x", p.cols, " to ", p.rows,
                " rows by ", p.indices.name);
}

void embedding_forward(const Context& context, const EmbeddingForward& arguments) {
  run(context, check_forward(context.device, arguments));
}

void embedding_add_forward(const Context& context, const EmbeddingAddForward& arguments) {
  run(context, check_forward(context.device, arguments));
}

void embedding_backward(const Context& context, const EmbeddingBackward& a) {
  const Checker check("embedding", context.device);
  EmbeddingBackwardProblem p = check_gradient(check, "embedding", a.dy, "indices", a.indices);
  p.padding_idx = a.padding_idx;
  p.scale_grad_by_freq = a.scale_grad_by_freq;
  const EmbeddingIndices indices = check.indices_of("indices", a.indices, a.indices);
  p = of_table(p, check, a.dy, "dweight", a.dweight, indices);
  check_apart("embedding", {{"dweight", a.dweight}}, {{"dy", a.dy}, {"indices", a.indices}});
  run(context, p);
}

void embedding_add_backward(const Context& context, const EmbeddingAddBackward& a) {
  const Checker check("embedding_add", context.device);
  const EmbeddingBackwardProblem p =
      check_gradient(check, "embedding_add", a.dy, "tokens", a.tokens);
  EmbeddingBackwardProblem wanted[EmbeddingForwardProblem::kMostTables];
  int count = 0;
  if (a.dweight.defined()) {
    EmbeddingBackwardProblem& of_tokens = wanted[count++];
    of_tokens = of_table(p, check, a.dy, "dweight", a.dweight,
                         check.indices_of("tokens", a.tokens, a.tokens));
    of_tokens.padding_idx = a.padding_idx;
  }
  if (a.dposition_weight.defined()) {
    const EmbeddingIndices positions =
        a.positions.defined() ? check.indices_of("positions", a.positions, a.tokens)
                              : check.places(a.tokens, a.first_position, "dposition_weight",
                                             a.dposition_weight.sizes[0]);
    wanted[count++] = of_table(p, check, a.dy, "dposition_weight", a.dposition_weight, positions);
  }
  if (a.dtype_weight.defined()) {
    wanted[count++] = of_table(p, check, a.dy, "dtype_weight", a.dtype_weight,
                               check.indices_of("types", a.types, a.tokens));
  }
  check_apart("embedding_add",
              {{"dweight", a.dweight},
               {"dposition_weight", a.dposition_weight},
               {"dtype_weight", a.dtype_weight}},
              {{"dy", a.dy}, {"tokens", a.tokens}, {"positions", a.positions}, {"types", a.types}});
  for (int i = 0; i < count; ++i) run(context, wanted[i]);
}

}  // namespace transformer_kernels
