// SPDX-License-Identifier: MIT
// The backward pass on CUDA, after the sort. First it adds up blocks of tokens that all have one
// index (plan.h), level by level; then it writes every row of the gradient once.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "embedding/kernels.h"
#include "pointwise/pack.cuh"

namespace transformer_kernels::cuda {

template <class A>
struct EmbeddingSums {
  EmbeddingBackwardProblem problem;
  SortedTokens sorted;
  RowChunks row;
  int own_per_cta;  // rows; sorted tokens where rows are zeros already
  int levels;
  A* block[kMostLevels];  // [blocks of level i + 1][pitch]
  std::int64_t pitch;     // a multiple of a pack's elements
};

// ---------------------------------------------------------------------------- sorted tokens

__device__ __forceinline__ std::int64_t index_at(const SortedTokens& sorted, std::uint32_t place) {
  if (sorted.indices != nullptr) return sorted.indices[place];
  return sorted.first + place / sorted.repeats;
}

__device__ __forceinline__ std::uint32_t token_at(const SortedTokens& sorted, std::uint32_t place) {
  if (sorted.indices != nullptr) return sorted.tokens[place];
  return place % sorted.repeats * sorted.period + place / sorted.repeats;
}

// The first place of an index of `row` or more.
__device__ __forceinline__ std::uint32_t first_place(const SortedTokens& sorted, std::int64_t row) {
  if (sorted.indices == nullptr) {
    const std::int64_t ahead = row - sorted.first;
    if (ahead <= 0) return 0;
    return ahead < sorted.period ? static_cast<std::uint32_t>(ahead) * sorted.repeats
                                 : sorted.count;
  }
  std::uint32_t low = 0;
  std::uint32_t high = sorted.count;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (sorted.indices[middle] < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// ---------------------------------------------------------------------------- sums

template <int kSize, class A>
__device__ __forceinline__ void load_sums(const A* from, A (&value)[kSize]) {
  if constexpr (kSize == 1) {
    value[0] = *from;
  } else {
#pragma unroll
    for (int e = 0; e < kSize; e += 4) {
      *reinterpret_cast<float4*>(value + e) = *reinterpret_cast<const float4*>(from + e);
    }
  }
}

template <int kSize, class A>
__device__ __forceinline__ void store_sums(A* to, const A (&value)[kSize]) {
  if constexpr (kSize == 1) {
    *to = value[0];
  } else {
#pragma unroll
    for (int e = 0; e < kSize; e += 4) {
      *reinterpret_cast<float4*>(to + e) =
          make_float4(value[e], value[e + 1], value[e + 2], value[e + 3]);
    }
  }
}

// A thread's columns in one chunk of a row: a few packs, as far as the row has them.
template <int kSize>
struct PackColumns {
  std::int64_t first;
  int step;
  std::int64_t end;

  __device__ __forceinline__ PackColumns(const RowChunks& row, std::int64_t cols, int chunk,
                                         int lane)
      : first((static_cast<std::int64_t>(chunk) * kSumPacks * row.lanes() + lane) * kSize),
        step(row.lanes() * kSize),
        end(cols) {}

  // Calls body(pack, its first column).
  template <class Body>
  __device__ __forceinline__ void for_each(Body&& body) const {
#pragma unroll
    for (int i = 0; i < kSumPacks; ++i) {
      if (first + i * step < end) body(i, first + i * step);
    }
  }
};

// The sums of these columns.
template <class T, int kSize>
struct PackSums {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  static constexpr int kTokens = 4;  // whose loads are under way together
  static constexpr int kBlocks = 2;

  const EmbeddingSums<A>& s;
  PackColumns<kSize> columns;
  A sum[kSumPacks][kSize] = {};

  __device__ __forceinline__ void add_term(int pack, const A (&term)[kSize]) {
#pragma unroll
    for (int e = 0; e < kSize; ++e) sum[pack][e] += term[e];
  }

  __device__ __forceinline__ void add_tokens(std::uint32_t begin, std::uint32_t end) {
    const Rows& dy = s.problem.dy;
    for (std::uint32_t place = begin; place < end; place += kTokens) {
      std::uint32_t token[kTokens];
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        token[k] = place + k < end ? token_at(s.sorted, place + k) : 0;
      }
      typename P::Raw raw[kTokens][kSumPacks];
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
        const T* const row = static_cast<const T*>(dy.data) + token[k] * dy.stride;
#pragma unroll
        for (int i = 0; i < kSumPacks; ++i) raw[k][i] = {};
        columns.for_each([&](int i, std::int64_t col) {
          if (place + k < end) raw[k][i] = load_pack<T, kSize>(row + col, kSize);
        });
      }
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
#pragma unroll
        for (int i = 0; i < kSumPacks; ++i) {
          A term[kSize];
          P::unpack(raw[k][i], term);
          add_term(i, term);
        }
      }
    }
  }

  __device__ __forceinline__ void add_blocks(int level, std::uint32_t begin, std::uint32_t end) {
    const A* const blocks = s.block[level - 1];
    for (std::uint32_t block = begin; block < end; block += kBlocks) {
      A term[kBlocks][kSumPacks][kSize] = {};
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) {
        columns.for_each([&](int i, std::int64_t col) {
          if (block + k < end) load_sums(blocks + (block + k) * s.pitch + col, term[k][i]);
        });
      }
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) {
#pragma unroll
        for (int i = 0; i < kSumPacks; ++i) add_term(i, term[k][i]);
      }
    }
  }

  // Sorted tokens [begin, end), both at blocks of the level, 0 for single tokens.
  __device__ __forceinline__ void add(int level, std::uint32_t begin, std::uint32_t end) {
    if (level == 0) {
      add_tokens(begin, end);
    } else {
      add_blocks(level, begin >> kBlockBits * level, end >> kBlockBits * level);
    }
  }

  // Sorted tokens [begin, end) of one index: up to where larger blocks begin, and at last down
  // again.
  __device__ __forceinline__ void add_all(std::uint32_t begin, std::uint32_t end) {
    int level = 0;
    bool up = s.levels > 0;
    while (level >= 0) {
      const int bits = kBlockBits * level;
      std::uint32_t stop = begin + ((end - begin) >> bits << bits);
      if (up) {
        const std::uint32_t next = 1u << (bits + kBlockBits);
        const std::uint32_t start_of_next = (begin + next - 1) & ~(next - 1);
        up = start_of_next + next <= end;
        if (up) stop = start_of_next;
      }
      add(level, begin, stop);
      begin = stop;
      level += up ? 1 : -1;
      up = up && level < s.levels;
    }
  }
};

// ---------------------------------------------------------------------------- kernels

// A few neighbouring threads own a chunk of the row of one block.
template <class T, int kSize>
__global__ void __launch_bounds__(kSumThreads, kSumCtas)
    embedding_blocks_kernel(const __grid_constant__ EmbeddingSums<accumulate_t<T>> s, int level,
                            std::int64_t blocks) {
  follow_previous_kernel();
  const std::int64_t thread = std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  const std::int64_t unit = thread >> s.row.lane_bits;
  const std::int64_t block = unit / s.row.chunks;
  if (block >= blocks) return;
  const int bits = kBlockBits * level;
  const auto begin = static_cast<std::uint32_t>(block << bits);
  const std::uint32_t end = begin + (1u << bits);
  const std::int64_t index = index_at(s.sorted, begin);
  if (index != index_at(s.sorted, end - 1) || !(index < s.problem.rows)) return;
  const PackColumns<kSize> columns(s.row, s.problem.cols, static_cast<int>(unit % s.row.chunks),
                                   static_cast<int>(thread & (s.row.lanes() - 1)));
  PackSums<T, kSize> sums{s, columns};
  sums.add(level - 1, begin, end);
  columns.for_each([&](int i, std::int64_t col) {
    store_sums(s.block[level - 1] + block * s.pitch + col, sums.sum[i]);
  });
}

// The rows that a CTA sums up, and where the tokens of each are. Found by its first warp.
struct OwnRows {
  std::uint32_t row[kMostSumRows];
  std::uint32_t begin[kMostSumRows];
  std::uint32_t end[kMostSumRows];
  int count;
  unsigned named;  // bits of the CTA's rows, where it owns rows

  // Finds `rows` rows from first_row on: a lane finds the first token of a row, and one lane the
  // end of the last row.
  __device__ __forceinline__ void find_among_rows(const SortedTokens& sorted,
                                                  std::int64_t first_row, int rows) {
    const int lane = threadIdx.x;
    const std::uint32_t first = first_place(sorted, first_row + min(lane, rows));
    const std::uint32_t last = __shfl_down_sync(kAllLanes, first, 1);
    keep(lane < rows && first < last, static_cast<std::uint32_t>(first_row + lane), first, last);
  }

  // Finds the rows whose tokens begin among `places` sorted tokens from `first` on: one lane a
  // token.
  __device__ __forceinline__ void find_among_tokens(const SortedTokens& sorted, std::int64_t rows,
                                                    std::uint32_t first, int places) {
    const int lane = threadIdx.x;
    const std::uint32_t place = first + lane;
    const bool is_own = lane < places && place < sorted.count;
    const std::uint32_t index = is_own ? sorted.indices[place] : 0;
    const bool begins = is_own && (place == 0 || sorted.indices[place - 1] != index);
    const unsigned later = __ballot_sync(kAllLanes, begins) & ~((2u << lane) - 1);
    const bool has_row = begins && index < rows;
    std::uint32_t last = first + __ffs(later) - 1;
    if (has_row && later == 0) last = first_place(sorted, std::int64_t{index} + 1);
    keep(has_row, index, place, last);
  }

 private:
  __device__ __forceinline__ void keep(bool has_tokens, std::uint32_t own_row, std::uint32_t first,
                                       std::uint32_t last) {
    const unsigned all = __ballot_sync(kAllLanes, has_tokens);
    if (has_tokens) {
      const int slot = __popc(all & ((1u << threadIdx.x) - 1));
      row[slot] = own_row;
      begin[slot] = first;
      end[slot] = last;
    }
    if (threadIdx.x != 0) return;
    count = __popc(all);
    named = all;
  }
};

// A CTA owns a few rows of the gradient, or those of a few tokens; neighbouring threads a chunk of
// one at a time. Zeros are stored first, because no thread waits for a store.
template <class T, int kSize>
__global__ void __launch_bounds__(kSumThreads, kSumCtas)
    embedding_rows_kernel(const __grid_constant__ EmbeddingSums<accumulate_t<T>> s) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  __shared__ OwnRows own;
  follow_previous_kernel();
  const EmbeddingBackwardProblem& p = s.problem;
  const std::int64_t first = std::int64_t{blockIdx.x} * s.own_per_cta;
  const int rows = s.sorted.rows_are_zeros
                       ? 0
                       : static_cast<int>(min(std::int64_t{s.own_per_cta}, p.rows - first));
  if (threadIdx.x < kWarp) {
    if (s.sorted.rows_are_zeros) {
      own.find_among_tokens(s.sorted, p.rows, static_cast<std::uint32_t>(first), s.own_per_cta);
    } else {
      own.find_among_rows(s.sorted, first, rows);
    }
  }
  __syncthreads();
  const int lane = threadIdx.x & (s.row.lanes() - 1);
  const int group = threadIdx.x >> s.row.lane_bits;
  const int groups = kSumThreads >> s.row.lane_bits;
  T* const dweight = static_cast<T*>(p.dweight.data);
  for (int unit = group; unit < rows * s.row.chunks; unit += groups) {
    const int row = unit / s.row.chunks;
    if (own.named >> row & 1) continue;
    const PackColumns<kSize> columns(s.row, p.cols, unit - row * s.row.chunks, lane);
    columns.for_each([&](int, std::int64_t col) {
      P::store(dweight + (first + row) * p.dweight.stride + col, typename P::Raw{});
    });
  }
  for (int unit = group; unit < own.count * s.row.chunks; unit += groups) {
    const int slot = unit / s.row.chunks;
    const PackColumns<kSize> columns(s.row, p.cols, unit - slot * s.row.chunks, lane);
    PackSums<T, kSize> sums{s, columns};
    sums.add_all(own.begin[slot], own.end[slot]);
    T* const to = dweight + own.row[slot] * p.dweight.stride;
    columns.for_each([&](int i, std::int64_t col) {
      if (p.scale_grad_by_freq) {
#pragma unroll
        for (A& v : sums.sum[i]) v /= static_cast<A>(own.end[slot] - own.begin[slot]);
      }
      P::store(to + col, P::pack(sums.sum[i]));
    });
  }
}

}  // namespace transformer_kernels::cuda
