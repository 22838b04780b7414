// SPDX-License-Identifier: MIT
#include "norm/row_norm_cpu.h"

#include <algorithm>

#include "core/cpu/cache.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/rounding.h"

namespace transformer_kernels::cpu {
namespace {

const NormKernels& kernels() {
  constexpr const NormKernels* kTables[] = TFK_PER_ISA(norm_kernels);
  return *kTables[static_cast<int>(isa())];
}

constexpr int index_of(DType dtype) { return static_cast<int>(dtype); }

// A whole number of any vectors, and the columns of a cache line of gradients.
constexpr std::int64_t kColumnBlock = wide_cols(1);

std::int64_t accumulate_size(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

// A parameter as the kernels read it: the caller's memory where elements of x are as wide as the
// lanes they are computed in, else a wide copy.
class WideParameter {
 public:
  WideParameter(const Context& context, DType dtype, const NormParameter& p)
      : in_place_(p.offset == 0 && size_of(dtype) == accumulate_size(dtype) ? p.data : nullptr),
        copy_(context, in_place_ ? 0 : wide_cols(p.cols) * accumulate_size(dtype)) {
    if (in_place_ == nullptr) kernels().widen[index_of(dtype)](p, copy_.data());
  }

  const void* data() const { return in_place_ ? in_place_ : copy_.data(); }

 private:
  const void* in_place_;
  Scratch copy_;
};

template <class Problem>
NormParameter weight_of(const Problem& p) {
  const bool shifted = p.weight != nullptr && p.zero_centered_weight;
  return {p.weight, p.cols, shifted ? 1.0 : 0.0, p.weight_dtype != p.dtype};
}

NormParameter bias_of(const NormForwardProblem& p) {
  return {p.bias, p.bias != nullptr ? p.cols : 0, 0.0, p.weight_dtype != p.dtype};
}

// Rows of no columns may have any stride and no memory; kernels still compute their addresses.
template <class Problem, class... Members>
Problem without_empty_strides(Problem problem, Members... members) {
  if (problem.cols == 0) ((problem.*members = Rows{}), ...);
  return problem;
}

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
      std::max(divide_up(p.rows, chunks), std::min(kUsualRows, rows_per_range(p.cols)));
  return rounded_up(rows, kGroup);
}

void reduce_partials(const Context& context, const NormBackwardTask& task, std::int64_t chunks) {
  const NormBackwardProblem& p = task.problem;
  const std::int64_t bytes = task.wide_cols * accumulate_size(p.dtype);
  const std::int64_t blocks = divide_up(p.cols, kColumnBlock);
  void* const gradients[] = {p.dweight, p.dbias};
  for (int i = 0; i < 2; ++i) {
    if (gradients[i] == nullptr) continue;
    const NormReduction reduction{static_cast<const char*>(task.partials) + i * bytes, chunks,
                                  2 * task.wide_cols, gradients[i], p.weight_dtype != p.dtype};
    parallel_for(context, blocks, rows_per_range(chunks * kColumnBlock),
                 [&](std::int64_t begin, std::int64_t end) {
                   kernels().reduce[index_of(p.dtype)](reduction, begin * kColumnBlock,
                                                       std::min(end * kColumnBlock, p.cols));
                 });
  }
}

}  // namespace

void norm_forward(const Context& context, const NormForwardProblem& problem) {
  using P = NormForwardProblem;
  const P p = without_empty_strides(problem, &P::x, &P::residual, &P::y, &P::sum);
  log_cpu_kernel(p.op, p);
  const WideParameter weight(context, p.dtype, weight_of(p));
  const WideParameter bias(context, p.dtype, bias_of(p));
  const bool stream = exceeds_cache(p.rows * p.cols * size_of(p.dtype));
  const NormForwardTask task{p, weight.data(), p.bias != nullptr ? bias.data() : nullptr, stream};
  parallel_for(context, p.rows, rows_per_range(p.cols), [&](std::int64_t begin, std::int64_t end) {
    RowScratch scratch(stream && p.sum.data ? p.cols * size_of(p.dtype) : 0);
    kernels().forward[index_of(p.dtype)](task, scratch.data(), begin, end);
  });
}

void norm_backward(const Context& context, const NormBackwardProblem& problem) {
  using P = NormBackwardProblem;
  const P p = without_empty_strides(problem, &P::dy, &P::dsum, &P::x, &P::dx);
  log_cpu_kernel(p.op, p);
  const std::int64_t chunk_rows = rows_per_chunk(p);
  const std::int64_t chunks = divide_up(p.rows, chunk_rows);
  const bool wanted = p.dweight != nullptr || p.dbias != nullptr;
  const std::int64_t wide = wide_cols(p.cols);
  const Scratch partials(context, wanted ? chunks * 2 * wide * accumulate_size(p.dtype) : 0);
  const WideParameter weight(context, p.dtype, weight_of(p));
  const NormBackwardTask task{
      p,    weight.data(), partials.data(),
      wide, chunk_rows,    exceeds_cache(p.rows * p.cols * size_of(p.dtype))};
  const std::int64_t grain = rows_per_range(chunk_rows * p.cols);
  parallel_for(context, chunks, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels().backward[index_of(p.dtype)](task, begin, end);
  });
  if (wanted) reduce_partials(context, task, chunks);
}

}  // namespace transformer_kernels::cpu
