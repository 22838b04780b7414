// SPDX-License-Identifier: MIT
// The bits of dropout, a block of 64 queries by the tile's 128 keys at a time, which consumers find
// in shared memory. Drawing takes about 60 instructions for 8 scores, of which most wait for the
// one before: whoever makes scores has better to do meanwhile.
//
// 8 keys of a query are a byte. Those of queries 8 i + 2 j and the next, for i = 0 to 7, lie side
// by side: the 16 bytes that all lanes of a consumer's warp with lane % 4 = j want of these keys.
#pragma once

#include "attention/common/scores.cuh"
#include "attention/sm90/backward/storage.cuh"

namespace transformer_kernels::cuda {

// Which bit of their byte is that of key n of 8.
__device__ __forceinline__ int bit_of_kept(int n) { return n / 2 + (n % 2 == 0 ? 4 : 0); }

template <class C>
struct BackwardDrawer {
  using S = BackwardShared<C>;
  static constexpr int kOctets = kTileKeys / 8;
  static constexpr int kThreads = 32 * C::kDqWarps;
  static constexpr int kOctetsAtOnce = kThreads / 16;

  const HopperBackward& p;
  const Dropout<float> dropout;
  const std::uint32_t dropped;  // the largest number that drops its score, in either half
  const std::uint32_t minus_dropped;
  const int warp, lane;
  std::uint32_t drawn = 0;  // blocks

  __device__ BackwardDrawer(const HopperBackward& problem, int warp_, int lane_)
      : p(problem),
        dropout(problem.features.problem),
        dropped((problem.features.problem.drop_below - 1) * 0x10001u),
        minus_dropped((0x10001 - problem.features.problem.drop_below & 0xffff) * 0x10001u),
        warp(warp_),
        lane(lane_) {}

  // For either half of a word 1 where it stays, else 0.
  __device__ __forceinline__ std::uint32_t kept_of_pair(std::uint32_t random) const {
    return __viaddmin_u16x2(__vmaxu2(random, dropped), minus_dropped, 0x10001);
  }
  // A bit for each of 8 keys: the even ones from bit 0 on, the odd ones from bit 16 on.
  __device__ __forceinline__ std::uint32_t kept_of(const PhiloxWords& random) const {
    std::uint32_t kept = 0;
#pragma unroll
    for (int n = 3; n >= 0; --n) kept = 2 * kept + kept_of_pair(random.word[n]);
    return kept;
  }
  // The bytes of two queries, in the upper half of a word.
  __device__ __forceinline__ std::uint32_t bytes_of(const PhiloxWords& first,
                                                    const PhiloxWords& second) const {
    const std::uint32_t nibbles = kept_of(first) + (kept_of(second) << 8);
    return nibbles + (nibbles << 20);
  }

  // The next block in the consumers' order. A thread draws for the four queries of a word.
  __device__ __forceinline__ void draw(const WorkItem& item, int block) {
    const int thread = warp * kWarp + lane;
    const int query = block * kBlockQueries + thread % 4 * 16 + thread / 4 % 4 * 2;
    const int key = item.tile.first_key() + thread / 16 * 8;
    const std::int64_t head = item.tile.batch * p.geometry.heads + item.head;
    std::uint64_t call = dropout.call(head * p.geometry.queries + query, key);
    const std::uint64_t row = dropout.calls_per_row();
    std::uint32_t to = S::bits(drawn) + thread * 4;
#pragma unroll 1
    for (int octet = 0; octet < kOctets; octet += kOctetsAtOnce) {
      const std::uint32_t bytes[2] = {
          bytes_of(dropout.bits(call), dropout.bits(call + row)),
          bytes_of(dropout.bits(call + 8 * row), dropout.bits(call + 9 * row))};
      store_shared_int(to, static_cast<int>(__byte_perm(bytes[0], bytes[1], 0x7632)));
      call += kOctetsAtOnce;
      to += kThreads * 4;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(S::template barrier<C::kBitStages>(C::kBitsFull, drawn));
    ++drawn;
  }
};

// What the other variants have instead.
struct NoDrawer {
  __device__ __forceinline__ NoDrawer(const HopperBackward&, int, int) {}
};

}  // namespace transformer_kernels::cuda
