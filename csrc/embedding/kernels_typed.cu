// SPDX-License-Identifier: MIT
#include <optional>
#include <type_traits>

#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "embedding/backward.cuh"
#include "embedding/forward.cuh"

namespace transformer_kernels::cuda {
namespace {

bool may_overlap_launches(const Context& context) {
  return device_limits(context.device.index).architecture >= 90;
}

// Calls body.operator()<kSize>(), the elements of a pack. There are no packs of double.
template <class T, class Body>
void dispatch_packs(bool packs, Body&& body) {
  if constexpr (!std::is_same_v<T, double>) {
    if (packs) return body.template operator()<16 / sizeof(T)>();
  }
  body.template operator()<1>();
}

}  // namespace

template <class T>
void run_embedding(const Context& context, const EmbeddingForwardProblem& p, bool packs) {
  dispatch_packs<T>(packs, [&]<int kSize>() {
    const PointwiseGrid grid = pointwise_grid(p.tokens, divide_up(p.cols, kSize), kEmbeddingRows);
    launch(p.op, context,
           {.ctas = grid.column_blocks,
            .threads = grid.threads,
            .threads_y = grid.threads_y,
            .ctas_y = grid.ctas_y(),
            .ctas_z = grid.ctas_z(),
            .after_previous = may_overlap_launches(context)},
           &embedding_forward_kernel<T, kSize>, p);
  });
}

template <class T>
void run_embedding(const Context& context, const EmbeddingBackwardProblem& p,
                   const SortedTokens& sorted, bool packs) {
  using A = accumulate_t<T>;
  dispatch_packs<T>(packs, [&]<int kSize>() {
    EmbeddingSums<A> sums{.problem = p,
                          .sorted = sorted,
                          .row = row_chunks(divide_up(p.cols, kSize)),
                          .own_per_cta = 0,
                          .levels = block_levels(sorted.count, p.rows),
                          .block = {},
                          .pitch = rounded_up(p.cols, kSize)};
    sums.own_per_cta = sorted.rows_are_zeros ? sum_places(p.tokens) : sum_rows(p.rows, sums.row);
    std::int64_t blocks = 0;
    for (int level = 1; level <= sums.levels; ++level) blocks += sorted.count / block_tokens(level);
    std::optional<Scratch> memory;
    if (blocks > 0) memory.emplace(p.op, context, blocks * sums.pitch * sizeof(A));
    A* next = blocks > 0 ? memory->template as<A>() : nullptr;
    for (int level = 1; level <= sums.levels; ++level) {
      sums.block[level - 1] = next;
      next += sorted.count / block_tokens(level) * sums.pitch;
    }
    LaunchShape shape{.threads = kSumThreads, .after_previous = may_overlap_launches(context)};
    for (int level = 1; level <= sums.levels; ++level) {
      const std::int64_t count = sorted.count / block_tokens(level);
      shape.ctas = divide_up(count * sums.row.chunks * sums.row.lanes(), kSumThreads);
      launch(p.op, context, shape, &embedding_blocks_kernel<T, kSize>, sums, level, count);
    }
    shape.ctas = divide_up(sorted.rows_are_zeros ? p.tokens : p.rows, sums.own_per_cta);
    launch(p.op, context, shape, &embedding_rows_kernel<T, kSize>, sums);
  });
}

template void run_embedding<TFK_TYPE>(const Context&, const EmbeddingForwardProblem&, bool);
template void run_embedding<TFK_TYPE>(const Context&, const EmbeddingBackwardProblem&,
                                      const SortedTokens&, bool);

}  // namespace transformer_kernels::cuda
