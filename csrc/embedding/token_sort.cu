// SPDX-License-Identifier: MIT
// The stable sort of tokens by their index: of a few by their ranks, of more by CUB, in as many
// bits as the indices have.
#include <cub/device/device_radix_sort.cuh>

#include "core/cuda/direct_row.cuh"
#include "core/cuda/launch.cuh"
#include "embedding/embedding_index.cuh"
#include "embedding/embedding_kernels.h"

namespace transformer_kernels::cuda {
namespace {

constexpr std::size_t kAlignment = 256;  // of arrays in the memory

// What a token is sorted by. Those that have no part in the gradient go behind all rows.
__device__ __forceinline__ std::uint32_t key_of(const EmbeddingBackwardProblem& p,
                                                std::uint32_t token) {
  const std::int64_t index = index_of(p.indices, p.tokens, token);
  const bool takes_part = is_row(index, p.rows) && index != p.padding_idx;
  return static_cast<std::uint32_t>(takes_part ? index : p.rows);
}

bool may_overlap_launches(const Context& context) {
  return device_limits(context.device.index).architecture >= 90;
}

// ---------------------------------------------------------------------------- by ranks

constexpr int kRankThreads = 512;
constexpr int kRankTokens = 64;  // of a CTA
constexpr int kRankParts = kRankThreads / kRankTokens;
constexpr std::uint32_t kBehindAll = 0xffffffffu;

// A CTA has the keys of all tokens, and ranks kRankTokens of them: a thread counts, in one part of
// the keys, those that go before its token's. Equal ones do where their token is earlier.
__global__ void __launch_bounds__(kRankThreads)
    token_ranks_kernel(const __grid_constant__ EmbeddingBackwardProblem p, std::uint32_t* indices,
                       std::uint32_t* tokens) {
  __shared__ uint4 packed[kMostRankedTokens / 4];
  __shared__ std::uint32_t counts[kRankParts][kRankTokens];
  auto* const keys = reinterpret_cast<std::uint32_t*>(packed);
  follow_previous_kernel();
  const auto count = static_cast<std::uint32_t>(p.tokens);
  const std::uint32_t packs_a_part = (count + 4 * kRankParts - 1) / (4 * kRankParts);
  for (std::uint32_t i = threadIdx.x; i < packs_a_part * kRankParts * 4; i += kRankThreads) {
    keys[i] = i < count ? key_of(p, i) : kBehindAll;
  }
  __syncthreads();
  const std::uint32_t part = threadIdx.x / kRankTokens;
  const std::uint32_t own = threadIdx.x % kRankTokens;
  const std::uint32_t token = blockIdx.x * kRankTokens + own;
  const std::uint32_t key = token < count ? keys[token] : 0;
  std::uint32_t before = 0;
  // Over the packs [begin, end) of this part; limit(i) is above all keys that go before.
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

// A thread a token.
__global__ void __launch_bounds__(kKeyThreads)
    token_keys_kernel(const __grid_constant__ EmbeddingBackwardProblem p, std::uint32_t* indices,
                      std::uint32_t* tokens) {
  follow_previous_kernel();
  const std::uint32_t token = blockIdx.x * kKeyThreads + threadIdx.x;
  if (token >= p.tokens) return;
  indices[token] = key_of(p, token);
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
  LaunchShape shape{.after_previous = may_overlap_launches(context)};
  if (p.tokens <= kMostRankedTokens) {
    shape.ctas = divide_up(p.tokens, kRankTokens);
    shape.threads = kRankThreads;
    launch(p.op, context, shape, &token_ranks_kernel, p, indices.Current(), tokens.Current());
  } else {
    shape.ctas = divide_up(p.tokens, kKeyThreads);
    shape.threads = kKeyThreads;
    launch(p.op, context, shape, &token_keys_kernel, p, indices.Current(), tokens.Current());
    std::size_t bytes = temporary_bytes_;
    radix_sort(p, memory + kArrays * array_bytes_, bytes, indices, tokens, context.stream);
  }
  return {.indices = indices.Current(),
          .tokens = tokens.Current(),
          .count = static_cast<std::uint32_t>(p.tokens),
          .repeats = 1,
          .period = 0,
          .first = 0};
}

}  // namespace transformer_kernels::cuda
