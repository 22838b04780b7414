// SPDX-License-Identifier: MIT
#include "norm/row_norm_cpu.h"

#include <algorithm>

#include "core/cpu/cache.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"

namespace transformer_kernels::cpu {
namespace {

const NormKernels& kernels() {
  constexpr const NormKernels* kTables[] = TFK_PER_ISA(norm_kernels);
  return *kTables[static_cast<int>(isa())];
}

constexpr int index_of(DType dtype) { return static_cast<int>(dtype); }

std::int64_t accumulate_size(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

// A parameter as the kernels read it, one accumulate_t a column: the caller's memory where it is of
// that form already, else a converted copy.
class WideParameter {
 public:
  WideParameter(const Context& context, const void* parameter, DType dtype, std::int64_t cols,
                double offset)
      : in_place_(parameter != nullptr && size_of(dtype) == accumulate_size(dtype) && offset == 0
                      ? parameter
                      : nullptr),
        copy_(context, in_place_ ? 0 : cols * accumulate_size(dtype)) {
    if (in_place_ == nullptr) fill(parameter, dtype, cols, offset);
  }

  const void* data() const { return in_place_ ? in_place_ : copy_.data(); }

 private:
  // An absent weight is a weight of ones.
  void fill(const void* parameter, DType dtype, std::int64_t cols, double offset) const {
    if (parameter != nullptr) {
      kernels().widen[index_of(dtype)](parameter, cols, offset, copy_.data());
    } else if (dtype == DType::kFloat64) {
      std::fill_n(static_cast<double*>(copy_.data()), cols, 1.0);
    } else {
      std::fill_n(static_cast<float*>(copy_.data()), cols, 1.0f);
    }
  }

  const void* in_place_;
  Scratch copy_;
};

// Rows of no columns may have any stride and no memory; kernels still compute their addresses.
template <class Problem, class... Members>
Problem without_empty_strides(Problem problem, Members... members) {
  if (problem.cols == 0) ((problem.*members = Rows{}), ...);
  return problem;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Large enough that adding up the chunks costs little; small enough that many threads share the
// rows and that the rounding error of a chunk's sums stays small; few enough to bound their memory.
std::int64_t rows_per_chunk(const NormBackwardProblem& p) {
  constexpr std::int64_t kMaxChunks = 64;
  constexpr std::int64_t kMaxPartialBytes = 16 << 20;
  constexpr std::int64_t kUsualRows = 128;
  constexpr std::int64_t kGroup = 4;  // rows that the kernel takes at once
  const std::int64_t chunk_bytes = std::max<std::int64_t>(1, 2 * p.cols * accumulate_size(p.dtype));
  const std::int64_t chunks =
      std::clamp<std::int64_t>(kMaxPartialBytes / chunk_bytes, 4, kMaxChunks);
  const std::int64_t rows =
      std::max(ceil_div(p.rows, chunks), std::min(kUsualRows, rows_per_range(p.cols)));
  return ceil_div(rows, kGroup) * kGroup;
}

void reduce_partials(const Context& context, const NormBackwardTask& task, std::int64_t chunks) {
  const NormBackwardProblem& p = task.problem;
  const std::int64_t bytes = p.cols * accumulate_size(p.dtype);
  void* const gradients[] = {p.dweight, p.dbias};
  for (int i = 0; i < 2; ++i) {
    if (gradients[i] == nullptr) continue;
    const NormReduction reduction{static_cast<const char*>(task.partials) + i * bytes, chunks,
                                  p.cols, gradients[i]};
    parallel_for(context, p.cols, rows_per_range(chunks),
                 [&](std::int64_t begin, std::int64_t end) {
                   kernels().reduce[index_of(p.weight_dtype)](reduction, begin, end);
                 });
  }
}

}  // namespace

void norm_forward(const char* op, const Context& context, const NormForwardProblem& problem) {
  using P = NormForwardProblem;
  const P p = without_empty_strides(problem, &P::x, &P::residual, &P::y, &P::sum);
  log_cpu_kernel(op, p);
  const WideParameter weight(context, p.weight, p.weight_dtype, p.cols,
                             p.zero_centered_weight ? 1.0 : 0.0);
  const bool has_bias = p.bias != nullptr;
  const WideParameter bias(context, p.bias, p.weight_dtype, has_bias ? p.cols : 0, 0.0);
  const bool stream = exceeds_cache(p.rows * p.cols * size_of(p.dtype));
  const NormForwardTask task{p, weight.data(), has_bias ? bias.data() : nullptr, stream};
  parallel_for(context, p.rows, rows_per_range(p.cols), [&](std::int64_t begin, std::int64_t end) {
    RowScratch scratch(stream && p.sum.data ? p.cols * size_of(p.dtype) : 0);
    kernels().forward[index_of(p.dtype)](task, scratch.data(), begin, end);
  });
}

void norm_backward(const char* op, const Context& context, const NormBackwardProblem& problem) {
  using P = NormBackwardProblem;
  const P p = without_empty_strides(problem, &P::dy, &P::dsum, &P::x, &P::dx);
  log_cpu_kernel(op, p);
  const std::int64_t chunk_rows = rows_per_chunk(p);
  const std::int64_t chunks = ceil_div(p.rows, chunk_rows);
  const bool wanted = p.dweight != nullptr || p.dbias != nullptr;
  const Scratch partials(context, wanted ? chunks * 2 * p.cols * accumulate_size(p.dtype) : 0);
  const WideParameter weight(context, p.weight, p.weight_dtype, p.cols,
                             p.zero_centered_weight ? 1.0 : 0.0);
  const NormBackwardTask task{p, weight.data(), partials.data(), chunk_rows,
                              exceeds_cache(p.rows * p.cols * size_of(p.dtype))};
  const std::int64_t grain = rows_per_range(chunk_rows * p.cols);
  parallel_for(context, chunks, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels().backward[index_of(p.dtype)](task, begin, end);
  });
  if (wanted) reduce_partials(context, task, chunks);
}

}  // namespace transformer_kernels::cpu
