// SPDX-License-Identifier: MIT
// The stable sort of tokens by their index: few tokens by their ranks, more by CUB, which sorts as
// many bits as the indices have.
#include <cub/device/device_radix_sort.cuh>

#include "core/cuda/direct_row.cuh"
#include "core/cuda/launch.cuh"
#include "embedding/index.cuh"
#include "embedding/kernels.h"

namespace transformer_kernels::cuda {
namespace {

constexpr std::size_t kAlignment = 256;  // of arrays in the memory

// The sort key of a token. Tokens without a part in the gradient come after all rows.
__device__ __forceinline__ std::uint32_t key_of(const EmbeddingBackwardProblem& p,
                                                std::int64_t index) {
  const bool takes_part = is_row(index, p.rows) && index != p.padding_idx;
  return static_cast<std::uint32_t>(takes_part ? index : p.rows);
}

// The memory that is zeroed beside the sort, in parts of kClearBytes of a row; without gaps the
// whole matrix is one row.
struct Clearing {
  char* data;
  std::int64_t row_bytes;
  std::int64_t stride_bytes;
  std::int64_t parts_of_row;
  std::int64_t parts;
  bool aligned;  // in 16 bytes; else in 2, of which all types are made
};

Clearing clearing_of(const EmbeddingBackwardProblem& p) {
  if (!sums_go_over_tokens(p.tokens, p.rows)) return {};
  const bool has_gaps = p.rows > 1 && p.dweight.stride != p.cols;
  const std::int64_t rows = has_gaps ? p.rows : 1;
  Clearing c{.data = static_cast<char*>(p.dweight.data),
             .row_bytes = p.rows / rows * p.cols * size_of(p.dtype),
             .stride_bytes = has_gaps ? p.dweight.stride * size_of(p.dtype) : 0,
             .parts_of_row = 0,
             .parts = 0,
             .aligned = false};
  c.parts_of_row = divide_up(c.row_bytes, kClearBytes);
  c.parts = rows * c.parts_of_row;
  const auto address = reinterpret_cast<std::uintptr_t>(c.data);
  c.aligned = address % 16 == 0 && c.row_bytes % 16 == 0 && c.stride_bytes % 16 == 0;
  return c;
}

template <class Piece>
__device__ __forceinline__ void clear_pieces(char* to, std::int64_t bytes) {
  auto* const piece = reinterpret_cast<Piece*>(to);
  const auto count = static_cast<int>(bytes / sizeof(Piece));
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) piece[i] = Piece{};
}

__device__ __forceinline__ void clear_part(const Clearing& c, std::int64_t part) {
  const std::int64_t row = part / c.parts_of_row;
  const std::int64_t offset = (part - row * c.parts_of_row) * kClearBytes;
  char* const to = c.data + row * c.stride_bytes + offset;
  const std::int64_t bytes = min(kClearBytes, c.row_bytes - offset);
  if (c.aligned) {
    clear_pieces<uint4>(to, bytes);
  } else {
    clear_pieces<std::uint16_t>(to, bytes);
  }
}

bool may_overlap_launches(const Context& context) {
  return device_limits(context.device.index).architecture >= 90;
}

// ---------------------------------------------------------------------------- by ranks

constexpr int kRankThreads = 512;
constexpr int kRankTokens = 64;  // of a CTA
constexpr int kRankParts = kRankThreads / kRankTokens;
constexpr std::uint32_t kBehindAll = 0xffffffffu;

// The keys of all tokens, so many loads at a time.
template <class Index>
__device__ __forceinline__ void load_keys(const EmbeddingBackwardProblem& p, std::uint32_t padded,
                                          std::uint32_t* keys) {
  constexpr int kInFlight = 8;
  const auto count = static_cast<std::uint32_t>(p.tokens);
  const auto period = static_cast<std::uint32_t>(p.indices.period);
  const auto* const indices = static_cast<const Index*>(p.indices.data);
  for (std::uint32_t i = threadIdx.x; i < padded; i += kInFlight * kRankThreads) {
    Index index[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const std::uint32_t token = i + k * kRankThreads;
      index[k] = token < count ? indices[period == count ? token : token % period] : Index{-1};
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const std::uint32_t token = i + k * kRankThreads;
      if (token < padded) keys[token] = token < count ? key_of(p, index[k]) : kBehindAll;
    }
  }
}

// A CTA has the keys of all tokens, and ranks kRankTokens of them: a thread counts, in one part of
// the keys, those that go before its token's. Equal ones do where their token is earlier. The CTAs
// behind clear a part of the gradient each.
__global__ void __launch_bounds__(kRankThreads)
    token_ranks_kernel(const __grid_constant__ EmbeddingBackwardProblem p,
                       const __grid_constant__ Clearing clearing, std::uint32_t* indices,
                       std::uint32_t* tokens) {
  __shared__ uint4 packed[kMostRankedTokens / 4];
  __shared__ std::uint32_t counts[kRankParts][kRankTokens];
  auto* const keys = reinterpret_cast<std::uint32_t*>(packed);
  follow_previous_kernel();
  const std::int64_t part_to_clear = std::int64_t{blockIdx.x} + clearing.parts - gridDim.x;
  if (part_to_clear >= 0) return clear_part(clearing, part_to_clear);
  const auto count = static_cast<std::uint32_t>(p.tokens);
  const std::uint32_t packs_a_part = (count + 4 * kRankParts - 1) / (4 * kRankParts);
  if (p.indices.is_int64) {
    load_keys<std::int64_t>(p, packs_a_part * kRankParts * 4, keys);
  } else {
    load_keys<std::int32_t>(p, packs_a_part * kRankParts * 4, keys);
  }
  __syncthreads();
  const std::uint32_t part = threadIdx.x / kRankTokens;
  const std::uint32_t own = threadIdx.x % kRankTokens;
  const std::uint32_t token = blockIdx.x * kRankTokens + own;
  const std::uint32_t key = token < count ? keys[token] : 0;
  std::uint32_t before = 0;
  // Counts keys in the packs [begin, end) of this part; limit(i) is above all keys that go before.
  const auto count_packs = [&](std::uint32_t begin, std::uint32_t end, auto limit) {
    begin = max(begin, part * packs_a_part);
    end = min(end, (part + 1) * packs_a_part);
    for (std::uint32_t i = begin; i < end; ++i) {
      const uint4 others = packed[i];
      before += (others.x < limit(4 * i)) + (others.y < limit(4 * i + 1)) +
                (others.z < limit(4 * i + 2)) + (others.w < limit(4 * i + 3));
    }
  };
  const std::uint32_t first_of_warp = token / kWarp * kWarp / 4;
  const std::uint32_t end_of_warp = first_of_warp + kWarp / 4;
  count_packs(0, first_of_warp, [&](std::uint32_t) { return key + 1; });
  count_packs(first_of_warp, end_of_warp,
              [&](std::uint32_t other) { return key + (other < token ? 1 : 0); });
  count_packs(end_of_warp, kBehindAll, [&](std::uint32_t) { return key; });
  counts[part][own] = before;
  __syncthreads();
  if (part != 0 || token >= count) return;
  std::uint32_t rank = 0;
#pragma unroll
  for (int i = 0; i < kRankParts; ++i) rank += counts[i][own];
  indices[rank] = key;
  tokens[rank] = token;
}

// ---------------------------------------------------------------------------- by CUB

constexpr int kKeyThreads = 256;

using Buffer = cub::DoubleBuffer<std::uint32_t>;

// A thread a token; the CTAs behind clear a part of the gradient each.
__global__ void __launch_bounds__(kKeyThreads)
    token_keys_kernel(const __grid_constant__ EmbeddingBackwardProblem p,
                      const __grid_constant__ Clearing clearing, std::uint32_t* indices,
                      std::uint32_t* tokens) {
  follow_previous_kernel();
  const std::int64_t part_to_clear = std::int64_t{blockIdx.x} + clearing.parts - gridDim.x;
  if (part_to_clear >= 0) return clear_part(clearing, part_to_clear);
  const std::uint32_t token = blockIdx.x * kKeyThreads + threadIdx.x;
  if (token >= p.tokens) return;
  indices[token] = key_of(p, index_of(p.indices, p.tokens, token));
  tokens[token] = token;
}

// Asks for the size of the temporary storage where `temporary` is null.
void radix_sort(const EmbeddingBackwardProblem& p, void* temporary, std::size_t& bytes,
                Buffer& indices, Buffer& tokens, void* stream) {
  check_cuda(p.op, cub::DeviceRadixSort::SortPairs(
                       temporary, bytes, indices, tokens, static_cast<int>(p.tokens), 0,
                       index_bits(p.rows), static_cast<cudaStream_t>(stream)));
}

}  // namespace

TokenSort::TokenSort(const EmbeddingBackwardProblem& p)
    : problem_(p),
      array_bytes_(rounded_up(p.tokens * sizeof(std::uint32_t), kAlignment)) {
  if (p.tokens <= kMostRankedTokens) return;
  Buffer none;
  radix_sort(p, nullptr, temporary_bytes_, none, none, nullptr);
}

SortedTokens TokenSort::run(const Context& context, char* memory) const {
  const EmbeddingBackwardProblem& p = problem_;
  const auto array = [&](int i) {
    return reinterpret_cast<std::uint32_t*>(memory + i * array_bytes_);
  };
  Buffer indices(array(0), array(1));
  Buffer tokens(array(2), array(3));
  const Clearing clearing = clearing_of(p);
  LaunchShape shape{.after_previous = may_overlap_launches(context)};
  if (p.tokens <= kMostRankedTokens) {
    shape.ctas = divide_up(p.tokens, kRankTokens) + clearing.parts;
    shape.threads = kRankThreads;
    launch(p.op, context, shape, &token_ranks_kernel, p, clearing, indices.Current(),
           tokens.Current());
  } else {
    shape.ctas = divide_up(p.tokens, kKeyThreads) + clearing.parts;
    shape.threads = kKeyThreads;
    launch(p.op, context, shape, &token_keys_kernel, p, clearing, indices.Current(),
           tokens.Current());
    std::size_t bytes = temporary_bytes_;
    radix_sort(p, memory + kArrays * array_bytes_, bytes, indices, tokens, context.stream);
  }
  return {.indices = indices.Current(),
          .tokens = tokens.Current(),
          .count = static_cast<std::uint32_t>(p.tokens),
          .repeats = 1,
          .period = 0,
          .first = 0,
          .rows_are_zeros = clearing.parts > 0};
}

}  // namespace transformer_kernels::cuda
