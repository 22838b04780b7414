// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/cpu/cache.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "pointwise/pointwise_isa.h"

namespace transformer_kernels::cpu {
namespace {

const PointwiseKernels& kernels() {
  constexpr const PointwiseKernels* kTables[] = TFK_PER_ISA(pointwise_kernels);
  return *kTables[static_cast<int>(isa())];
}

template <class Problem>
const PointwiseOpKernels& kernels_of(const Problem& p) {
  return kernels().op[static_cast<int>(p.op)];
}

template <class Problem>
bool leaves_cache(const Problem& p) {
  return exceeds_cache(p.rows * p.cols * size_of(p.dtype));
}

// Both biases as the kernels read them; null where the problem has none.
class WideBiases {
 public:
  template <class Problem>
  WideBiases(const Context& context, const Problem& p)
      : bytes_(p.has_bias() ? wide_cols(p.cols) * size_of(accumulate_dtype(p.dtype)) : 0),
        memory_(context, 2 * bytes_) {
    if (!p.has_bias()) return;
    const auto widen = kernels().widen[static_cast<int>(p.dtype)];
    widen(p.bias, p.bias_dtype != p.dtype, p.cols, memory_.data());
    widen(p.up_bias, p.bias_dtype != p.dtype, p.cols, second());
  }

  const void* bias() const { return bytes_ > 0 ? memory_.data() : nullptr; }
  const void* up_bias() const { return bytes_ > 0 ? second() : nullptr; }

 private:
  void* second() const { return static_cast<char*>(memory_.data()) + bytes_; }

  std::int64_t bytes_;
  Scratch memory_;
};

// Enough rows that adding up the chunks costs little, few enough that many threads share them and
// that the rounding error of a chunk's sums stays small.
std::int64_t rows_per_chunk(const PointwiseBackwardProblem& p) {
  constexpr std::int64_t kMaxChunks = 64;
  constexpr std::int64_t kMaxPartialBytes = 16 << 20;
  constexpr std::int64_t kUsualRows = 128;
  const std::int64_t chunk_bytes = 2 * wide_cols(p.cols) * size_of(accumulate_dtype(p.dtype));
  const std::int64_t chunks =
      std::clamp<std::int64_t>(kMaxPartialBytes / chunk_bytes, 4, kMaxChunks);
  return std::max(
      {divide_up(p.rows, chunks), std::min(kUsualRows, rows_per_range(p.cols)), std::int64_t{1}});
}

void add_chunks(const Context& context, const PointwiseBackwardTask& task, std::int64_t chunks) {
  constexpr std::int64_t kColumnBlock = wide_cols(1);
  const PointwiseBackwardProblem& p = task.problem;
  const std::int64_t bytes = task.wide_cols * size_of(accumulate_dtype(p.dtype));
  void* const gradients[] = {p.dbias, p.dup_bias};
  for (int i = 0; i < 2; ++i) {
    if (gradients[i] == nullptr) continue;
    const BiasReduction reduction{static_cast<const char*>(task.partials) + i * bytes, chunks,
                                  2 * task.wide_cols, gradients[i], p.bias_dtype != p.dtype};
    parallel_for(context, divide_up(p.cols, kColumnBlock), rows_per_range(chunks * kColumnBlock),
                 [&](std::int64_t begin, std::int64_t end) {
                   kernels().reduce[static_cast<int>(p.dtype)](
                       reduction, begin * kColumnBlock, std::min(end * kColumnBlock, p.cols));
                 });
  }
}

void backward_with_sums(const Context& context, const PointwiseBackwardProblem& p,
                        const WideBiases& biases) {
  const std::int64_t wide = wide_cols(p.cols);
  const std::int64_t chunk_rows = rows_per_chunk(p);
  const std::int64_t chunks = divide_up(p.rows, chunk_rows);
  const Scratch partials(context, chunks * 2 * wide * size_of(accumulate_dtype(p.dtype)));
  const PointwiseBackwardTask task{
      p, biases.bias(), biases.up_bias(), leaves_cache(p), partials.data(), wide, chunk_rows};
  const auto run = kernels_of(p).backward_chunks[static_cast<int>(p.dtype)];
  parallel_for(context, chunks, rows_per_range(chunk_rows * p.cols),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
  add_chunks(context, task, chunks);
}

}  // namespace

void pointwise_forward(const Context& context, const PointwiseForwardProblem& p) {
  log_cpu_kernel(name_of(p.op), p);
  const WideBiases biases(context, p);
  const PointwiseForwardTask task{p, biases.bias(), biases.up_bias(), leaves_cache(p)};
  const auto run = kernels_of(p).forward[static_cast<int>(p.dtype)];
  parallel_for(context, p.rows * tiles_of_row(p.cols), rows_per_range(std::min(p.cols, kTileCols)),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
}

void pointwise_backward(const Context& context, const PointwiseBackwardProblem& p) {
  log_cpu_kernel(name_of(p.op), p);
  const WideBiases biases(context, p);
  if (p.dbias != nullptr || p.dup_bias != nullptr) return backward_with_sums(context, p, biases);
  const PointwiseBackwardTask task{p, biases.bias(), biases.up_bias(), leaves_cache(p), nullptr, 0,
                                   0};
  const auto run = kernels_of(p).backward[static_cast<int>(p.dtype)];
  parallel_for(context, p.rows * tiles_of_row(p.cols), rows_per_range(std::min(p.cols, kTileCols)),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
}

}  // namespace transformer_kernels::cpu
