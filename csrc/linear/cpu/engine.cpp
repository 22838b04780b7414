// SPDX-License-Identifier: MIT
#include <algorithm>
#include <optional>

#include "core/cpu/columns.h"
#include "core/cpu/huge_pages.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/plans.h"
#include "linear/cpu/few_rows.h"

namespace transformer_kernels::cpu {
namespace {

const LinearKernels& kernels() {
  constexpr const LinearKernels* kTables[] = TFK_PER_ISA(linear_kernels);
  return *kTables[static_cast<int>(isa())];
}

const PointwiseKernels& activations() {
  constexpr const PointwiseKernels* kTables[] = TFK_PER_ISA(pointwise_kernels);
  return *kTables[static_cast<int>(isa())];
}

std::size_t bytes_in_order(const ProductKernels& k, std::int64_t lines, std::int64_t terms,
                           std::int64_t width) {
  return rounded_up(lines, width) * rounded_up(terms, k.term_step) * k.term_bytes;
}

void pack(const Context& context, const ProductKernels& k, bool is_left, const PackTask& task) {
  const auto run = is_left ? k.pack_left : k.pack_right;
  parallel_for(context, divide_up(task.lines, task.width) * divide_up(task.terms, k.block.terms),
               rows_per_range(task.width * k.block.terms),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
}

// An operand in order, for the time of a call.
class Packed {
 public:
  Packed(const Context& context, const ProductKernels& k, const Product& p, bool is_left)
      : Packed(context, k, is_left, is_left ? p.a : p.b.transposed(), is_left ? p.rows : p.cols,
               p.terms, is_left ? k.left_width : k.right_width) {}

  const void* data() const { return memory_.data(); }

 private:
  Packed(const Context& context, const ProductKernels& k, bool is_left, const Matrix& source,
         std::int64_t lines, std::int64_t terms, std::int64_t width)
      : memory_(context, bytes_in_order(k, lines, terms, width)) {
    advise_huge_pages(memory_.data(), bytes_in_order(k, lines, terms, width));
    pack(context, k, is_left, {source, lines, terms, width, memory_.data()});
  }

  AlignedScratch memory_;
};

// The size of parts of `count`, as few as `most` allows and alike, so that threads get the same
// work.
std::int64_t even_part(std::int64_t count, std::int64_t most, std::int64_t step) {
  return rounded_up(divide_up(count, divide_up(count, most)), step);
}

// The size of a product's blocks, as a share of the largest.
struct BlockPlan {
  const char* name;
  std::int64_t rows;
  std::int64_t cols;
};

constexpr BlockPlan kBlockPlans[] = {
    {"whole blocks", 1, 1}, {"low blocks", 2, 1}, {"narrow blocks", 1, 2}, {"small blocks", 2, 2}};

// The most that is a multiple of the step.
std::int64_t part_of(std::int64_t most, std::int64_t share, std::int64_t step) {
  return std::max(step, most / share / step * step);
}

void multiply_few_panels(const Context& context, const ProductKernels& k, const Product& p) {
  if (log_dispatch()) log_line("linear: few rows: the packed weight is read once");
  const AlignedScratch left(
      context, padded_rows(p.rows) * padded_terms(p.terms) * size_of(accumulate_dtype(p.dtype)));
  const FewRowsTask task{p, left.data(), &activations()};
  few_rows_kernels_of(p.dtype).arrange(task);
  parallel_for(context, divide_up(p.cols, k.col_step), rows_per_range(p.terms * k.col_step),
               [&](std::int64_t begin, std::int64_t end) { k.multiply_few(task, begin, end); });
}

void run(const Context& context, const Product& p) {
  if (leaves_out(p)) return;
  const ProductKernels& k = product_kernels(p.dtype);
  const bool is_packed = p.packed_b != nullptr;
  if (is_packed && p.rows <= k.few_rows) return multiply_few_panels(context, k, p);
  if (!is_packed && has_few_rows(p)) return multiply_few_rows(context, p, activations());
  const Packed left(context, k, p, true);
  std::optional<Packed> copy;
  const void* const right = is_packed ? p.packed_b : copy.emplace(context, k, p, false).data();
  const BlockPlan& plan = plan_of(p.op, kBlockPlans, p, 0);
  const std::int64_t rows =
      even_part(p.rows, part_of(k.block.rows, plan.rows, k.left_width), k.left_width);
  const std::int64_t cols =
      even_part(p.cols, part_of(k.block.cols, plan.cols, k.col_step), k.col_step);
  const ProductTask task{p, left.data(), right, rows, cols, activations()};
  // Most blocks take a thousand times what waking a thread does.
  const std::int64_t grain = rows_per_range(p.terms * rows * cols / 32);
  parallel_for(context, divide_up(p.rows, rows) * divide_up(p.cols, cols), grain,
               [&](std::int64_t begin, std::int64_t end) { k.multiply(task, begin, end); });
}

// A result whose columns lie together is computed as its transpose.
void run_in_order(const Context& context, const Product& p) {
  const bool is_by_rows = p.out.col_step == 1 || p.cols == 1;
  run(context, is_by_rows ? p : p.transposed());
}

void sum_columns(const Context& context, const LinearBackwardProblem& p, const Rows& dz) {
  if (p.cols == 0) return;
  const std::int64_t chunk_rows = rows_per_chunk(p.rows, p.cols, p.dtype);
  const std::int64_t chunks = divide_up(p.rows, chunk_rows);
  const Scratch partials(context,
                         chunks * 2 * wide_cols(p.cols) * size_of(accumulate_dtype(p.dtype)));
  const ColumnSumTask task{dz, p.rows, p.cols, chunk_rows, partials.data()};
  const auto run = kernels().sum_columns[static_cast<int>(p.dtype)];
  parallel_for(context, chunks, rows_per_range(chunk_rows * p.cols),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
  add_chunks(context, {.dtype = p.dtype,
                       .cols = p.cols,
                       .chunks = chunks,
                       .partials = partials.data(),
                       .totals = {p.dbias, nullptr},
                       .is_wide = p.bias_dtype != p.dtype,
                       .accumulates = p.accumulates_dbias});
}

// dz, and the gradient of the bias with it.
void differentiate_activation(const Context& context, const LinearBackwardProblem& p,
                              const Rows& dz) {
  PointwiseBackwardProblem slope{};
  slope.op = *p.activation;
  slope.dtype = p.dtype;
  slope.bias_dtype = p.bias_dtype;
  slope.rows = p.rows;
  slope.cols = p.cols;
  slope.dy = p.dy;
  slope.x = p.z;
  slope.dx = dz;
  slope.dbias = p.dbias;
  slope.accumulates_dbias = p.accumulates_dbias;
  pointwise_backward(context, slope);
}

}  // namespace

const ProductKernels& product_kernels(DType dtype) {
  const bool in_pairs = dtype == DType::kBFloat16 && multiplies_pairs_fast();
  return in_pairs ? kernels().product_of_pairs : kernels().product[static_cast<int>(dtype)];
}

void multiply(const Context& context, const Product& product) { run(context, product); }

std::int64_t packed_bytes(DType dtype, std::int64_t terms, std::int64_t cols) {
  const ProductKernels& k = product_kernels(dtype);
  return static_cast<std::int64_t>(bytes_in_order(k, cols, terms, k.right_width));
}

void pack_weight(const Context& context, const PackWeightProblem& p) {
  log_cpu_kernel("pack_weight", p);
  const ProductKernels& k = product_kernels(p.dtype);
  advise_huge_pages(p.packed, bytes_in_order(k, p.cols, p.terms, k.right_width));
  pack(context, k, false, {p.weight, p.cols, p.terms, k.right_width, p.packed});
}

void linear_forward(const Context& context, const LinearForwardProblem& p) {
  log_cpu_kernel("linear", p);
  const WideParameter bias(
      context, p.dtype,
      {.data = p.bias, .cols = p.bias != nullptr ? p.cols : 0, .is_wide = p.bias_dtype != p.dtype});
  run(context, {.op = p.activation ? "linear_act" : "linear",
                .dtype = p.dtype,
                .rows = p.rows,
                .cols = p.cols,
                .terms = p.terms,
                .a = matrix_of(p.x),
                .b = p.weight.transposed(),
                .packed_b = p.packed,
                .out = matrix_of(p.y),
                .kept = matrix_of(p.z),
                .bias = p.bias != nullptr ? bias.data() : nullptr,
                .activation = p.activation});
}

void linear_backward(const Context& context, const LinearBackwardProblem& p) {
  log_cpu_kernel("linear", p);
  const char* const op = p.activation ? "linear_act" : "linear";
  const Scratch dz_memory(context, p.activation ? p.rows * p.cols * size_of(p.dtype) : 0);
  Rows dz = p.dy;
  if (p.activation) {
    dz = {dz_memory.data(), p.cols};
    differentiate_activation(context, p, dz);
  } else if (p.dbias != nullptr) {
    sum_columns(context, p, dz);
  }
  if (p.dx.data != nullptr) {
    run(context, {.op = op,
                  .dtype = p.dtype,
                  .accumulates = p.accumulates_dx,
                  .rows = p.rows,
                  .cols = p.terms,
                  .terms = p.cols,
                  .a = matrix_of(dz),
                  .b = p.weight,
                  .out = matrix_of(p.dx)});
  }
  if (p.dweight.data != nullptr) {
    run_in_order(context, {.op = op,
                           .dtype = p.dtype,
                           .out_dtype = p.dweight_dtype,
                           .accumulates = p.accumulates_dweight,
                           .rows = p.cols,
                           .cols = p.terms,
                           .terms = p.rows,
                           .a = matrix_of(dz).transposed(),
                           .b = matrix_of(p.x),
                           .out = p.dweight});
  }
}

// The gradient of h lies where that of z will, or, if this lies over z, where h will.
void linear_dact(const Context& context, const LinearDactProblem& p) {
  log_cpu_kernel("linear_dact", p);
  const bool is_over = p.dz.data == p.z.data;
  const bool has_place = !is_over || p.h.data != nullptr;
  const AlignedScratch memory(context, has_place ? 0 : p.rows * p.cols * size_of(p.dtype));
  const Rows dh = !is_over ? p.dz : has_place ? p.h : Rows{memory.data(), p.cols};
  run(context, {.op = "linear_dact",
                .dtype = p.dtype,
                .rows = p.rows,
                .cols = p.cols,
                .terms = p.terms,
                .a = matrix_of(p.dy),
                .b = p.weight,
                .out = matrix_of(dh)});
  PointwiseBackwardProblem slope{};
  slope.op = p.activation;
  slope.dtype = p.dtype;
  slope.bias_dtype = p.bias_dtype;
  slope.rows = p.rows;
  slope.cols = p.cols;
  slope.dy = dh;
  slope.dx = p.dz;
  slope.x = p.z;
  slope.y = p.h;
  slope.dbias = p.dbias;
  slope.accumulates_dbias = p.accumulates_dbias;
  pointwise_backward(context, slope);
}

}  // namespace transformer_kernels::cpu
