// SPDX-License-Identifier: MIT
#include "norm/cpu/kernels.h"

#include <algorithm>
#include <optional>

#include "core/cpu/columns.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/stores.h"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "norm/dropout_problem.h"
#include "pointwise/dropout_cpu.h"

namespace transformer_kernels::cpu {
namespace {

const NormKernels& kernels() {
  constexpr const NormKernels* kTables[] = TFK_PER_ISA(norm_kernels);
  return *kTables[static_cast<int>(isa())];
}

constexpr int index_of(DType dtype) { return static_cast<int>(dtype); }

template <class Problem>
Parameter weight_of(const Problem& p) {
  const bool shifted = p.weight != nullptr && p.zero_centered_weight;
  return {.data = p.weight,
          .cols = p.cols,
          .is_wide = p.weight_dtype != p.dtype,
          .fill = 1.0,
          .offset = shifted ? 1.0 : -0.0};
}

Parameter bias_of(const NormForwardProblem& p) {
  return {
      .data = p.bias, .cols = p.bias != nullptr ? p.cols : 0, .is_wide = p.weight_dtype != p.dtype};
}

// Rows of no columns may have any stride and no memory; kernels still compute their addresses.
template <class Problem, class... Members>
Problem without_empty_strides(Problem problem, Members... members) {
  if (problem.cols == 0) ((problem.*members = Rows{}), ...);
  return problem;
}

// Row loops shared with the norms of dropout: `prepare` makes a row before it is normalised,
// `proceed` takes a chunk's gradients while they are cached.

template <class Prepare>
void forward_rows(const Context& context, const NormForwardProblem& problem, bool stream,
                  Prepare&& prepare) {
  using P = NormForwardProblem;
  const P p = without_empty_strides(problem, &P::x, &P::residual, &P::y, &P::sum);
  const WideParameter weight(context, p.dtype, weight_of(p));
  const WideParameter bias(context, p.dtype, bias_of(p));
  const NormForwardTask task{p, weight.data(), p.bias != nullptr ? bias.data() : nullptr, stream};
  const auto run = kernels().forward[index_of(p.dtype)];
  parallel_for(context, p.rows, rows_per_range(p.cols), [&](std::int64_t begin, std::int64_t end) {
    RowScratch scratch(stream && p.sum.data ? p.cols * size_of(p.dtype) : 0);
    prepare(begin, end,
            [&](std::int64_t first, std::int64_t last) { run(task, scratch.data(), first, last); });
  });
}

std::int64_t chunk_rows_of(const NormBackwardProblem& p) {
  constexpr std::int64_t kGroup = 4;  // rows that the kernel takes at once
  return rounded_up(rows_per_chunk(p.rows, p.cols, p.dtype), kGroup);
}

template <class Proceed>
void backward_chunks(const Context& context, const NormBackwardProblem& problem, bool stream,
                     Proceed&& proceed) {
  using P = NormBackwardProblem;
  const P p = without_empty_strides(problem, &P::dy, &P::dsum, &P::x, &P::dx);
  const std::int64_t chunk_rows = chunk_rows_of(p);
  const std::int64_t chunks = divide_up(p.rows, chunk_rows);
  const bool wanted = p.dweight != nullptr || p.dbias != nullptr;
  const std::int64_t wide = wide_cols(p.cols);
  const Scratch partials(context,
                         wanted ? chunks * 2 * wide * size_of(accumulate_dtype(p.dtype)) : 0);
  const WideParameter weight(context, p.dtype, weight_of(p));
  const NormBackwardTask task{p, weight.data(), partials.data(), wide, chunk_rows, stream};
  const auto run = kernels().backward[index_of(p.dtype)];
  parallel_for(context, chunks, rows_per_range(chunk_rows * p.cols),
               [&](std::int64_t begin, std::int64_t end) {
                 proceed(begin, end,
                         [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
               });
  if (!wanted) return;
  add_chunks(context, {.dtype = p.dtype,
                       .cols = p.cols,
                       .chunks = chunks,
                       .partials = partials.data(),
                       .totals = {p.dweight, p.dbias},
                       .is_wide = p.weight_dtype != p.dtype});
}

// Rows of a branch of 16 bits beside float32, as float32 where they are computed. `matrix` is what
// a problem without a branch of its own has.
class WideBranch {
 public:
  template <class Problem>
  WideBranch(const Context& context, const Problem& p)
      : dtype_(index_of(p.branch_dtype)),
        rows_(p.norm.rows),
        cols_(p.norm.cols),
        memory_(context, rows_ * cols_ * size_of(DType::kFloat32)) {}

  Rows matrix() const { return {memory_.data(), cols_}; }

  // Rows [begin, end), or those of them that there are.
  void read(const Rows& branch, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t r = begin; r < std::min(end, rows_); ++r) {
      kernels().widen[dtype_](narrow_row(branch, r), wide_row(r), cols_);
    }
  }
  void write(const Rows& branch, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t r = begin; r < std::min(end, rows_); ++r) {
      kernels().narrow[dtype_](wide_row(r), narrow_row(branch, r), cols_);
    }
  }

 private:
  static void* narrow_row(const Rows& matrix, std::int64_t row) {
    return static_cast<std::uint16_t*>(matrix.data) + row * matrix.stride;
  }
  void* wide_row(std::int64_t row) const {
    return static_cast<float*>(memory_.data()) + row * cols_;
  }

  int dtype_;
  std::int64_t rows_;
  std::int64_t cols_;
  Scratch memory_;
};

constexpr auto kAllAtOnce = [](std::int64_t begin, std::int64_t end, auto&& run) {
  run(begin, end);
};

}  // namespace

void norm_forward(const Context& context, const NormForwardProblem& p) {
  log_cpu_kernel(p.op, p);
  forward_rows(context, p, streams(p.op, p), kAllAtOnce);
}

void norm_backward(const Context& context, const NormBackwardProblem& p) {
  log_cpu_kernel(p.op, p);
  backward_chunks(context, p, streams(p.op, p), kAllAtOnce);
}

// Each row of the sum is made, and normalised from the cache.
void dropout_norm_forward(const Context& context, const DropoutNormForwardProblem& p) {
  log_cpu_kernel(p.norm.op, p);
  const bool mixed = is_mixed(p);
  const bool stream = !mixed && leaves_cache(p.norm);
  NormForwardProblem norm = p.norm;
  norm.x = p.norm.sum;
  norm.residual = norm.sum = {};
  DropoutForwardProblem of_sum = p.dropout;
  std::optional<WideBranch> branch;  // a row of x makes room for that of y
  if (mixed) of_sum.x = norm.y = branch.emplace(context, p).matrix();
  const DropoutForwardRows dropout(context, of_sum, false);
  forward_rows(context, norm, stream, [&](std::int64_t begin, std::int64_t end, auto&& run) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (branch) branch->read(p.norm.x, row, row + 1);
      dropout.row(row);
      run(row, row + 1);
      if (branch) branch->write(p.norm.y, row, row + 1);
    }
  });
}

void dropout_norm_backward(const Context& context, const DropoutNormBackwardProblem& p) {
  log_cpu_kernel(p.norm.op, p);
  const std::int64_t chunk_rows = chunk_rows_of(p.norm);
  NormBackwardProblem norm = p.norm;
  DropoutBackwardProblem of_sum = p.dropout;
  std::optional<WideBranch> branch;  // a row of dy makes room for that of dx
  if (is_mixed(p)) norm.dy = of_sum.dx = branch.emplace(context, p).matrix();
  const DropoutBackwardRows dropout(context, of_sum, !branch && leaves_cache(p.norm), chunk_rows);
  backward_chunks(context, norm, false, [&](std::int64_t begin, std::int64_t end, auto&& run) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t first = chunk * chunk_rows;
      if (branch) branch->read(p.norm.dy, first, first + chunk_rows);
      run(chunk, chunk + 1);
      dropout.chunk(chunk);
      if (branch) branch->write(p.dropout.dx, first, first + chunk_rows);
    }
  });
  dropout.finish(context);
}

}  // namespace transformer_kernels::cpu
