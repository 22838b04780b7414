// SPDX-License-Identifier: MIT
#include "core/cpu/columns.h"
#include "core/cpu/huge_pages.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
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

const ProductKernels& product_kernels(DType dtype) {
  const bool in_pairs = dtype == DType::kBFloat16 && multiplies_pairs_fast();
  return in_pairs ? kernels().product_of_pairs : kernels().product[static_cast<int>(dtype)];
}

// An operand in order.
class Packed {
 public:
  Packed(const Context& context, const ProductKernels& kernels, const Product& p, bool is_left)
      : bytes_(rounded_up(is_left ? p.rows : p.cols,
                          is_left ? kernels.left_width : kernels.right_width) *
               rounded_up(p.terms, kernels.term_step) * kernels.term_bytes),
        memory_(context, bytes_) {
    advise_huge_pages(memory_.data(), bytes_);
    const std::int64_t lines = is_left ? p.rows : p.cols;
    const std::int64_t width = is_left ? kernels.left_width : kernels.right_width;
    const PackTask task{is_left ? p.a : p.b.transposed(), lines, p.terms, width, memory_.data()};
    const auto pack = is_left ? kernels.pack_left : kernels.pack_right;
    parallel_for(context, divide_up(lines, width) * divide_up(p.terms, kernels.block.terms),
                 rows_per_range(width * kernels.block.terms),
                 [&](std::int64_t begin, std::int64_t end) { pack(task, begin, end); });
  }

  const void* data() const { return memory_.data(); }

 private:
  std::size_t bytes_;
  AlignedScratch memory_;
};

// The size of parts of `count`, as few as `most` allows and alike, so that threads get the same
// work.
std::int64_t even_part(std::int64_t count, std::int64_t most, std::int64_t step) {
  return rounded_up(divide_up(count, divide_up(count, most)), step);
}

void run(const Context& context, const Product& p) {
  if (leaves_out(p)) return;
  if (has_few_rows(p)) return multiply_few_rows(context, p, activations());
  const ProductKernels& k = product_kernels(p.dtype);
  const Packed left(context, k, p, true);
  const Packed right(context, k, p, false);
  const std::int64_t rows = even_part(p.rows, k.block.rows, k.left_width);
  const std::int64_t cols = even_part(p.cols, k.block.cols, k.col_step);
  const ProductTask task{p, left.data(), right.data(), rows, cols, activations()};
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

void multiply(const Context& context, const Product& product) { run(context, product); }

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
