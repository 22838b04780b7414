// SPDX-License-Identifier: MIT
// The bits of dropout, a block of 64 queries by the tile's 128 keys at a time, which consumers find
// in shared memory. Drawing takes about 60 instructions for 8 scores, most of which wait for the
// one before, so consumers leave it to another warpgroup.
//
// 8 keys of a query are a byte. The bytes of queries 8 i + 2 j and the next, for i = 0 to 7, lie
// side by side: these 16 bytes are the bits that all lanes of a consumer's warp with lane % 4 = j
// need for these keys.
#pragma once

#include "attention/common/scores.cuh"
#include "attention/sm90/backward/storage.cuh"
#include "attention/sm90/kept_bits.cuh"

namespace transformer_kernels::cuda {

template <class C>
struct BackwardDrawer {
  using S = BackwardShared<C>;
  static constexpr int kOctets = kTileKeys / 8;
  static constexpr int kThreads = 32 * C::kDqWarps;
  static constexpr int kOctetsAtOnce = kThreads / 16;

  const HopperBackward& p;
  const Dropout<float> dropout;
  const KeptBits kept;
  const int warp, lane;
  std::uint32_t drawn = 0;  // blocks

  __device__ BackwardDrawer(const HopperBackward& problem, int warp_, int lane_)
      : p(problem),
        dropout(problem.features.problem),
        kept(problem.features.problem),
        warp(warp_),
        lane(lane_) {}

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
          kept.bytes_of(dropout.bits(call), dropout.bits(call + row)),
          kept.bytes_of(dropout.bits(call + 8 * row), dropout.bits(call + 9 * row))};
      store_shared_int(to, static_cast<int>(__byte_perm(bytes[0], bytes[1], 0x7632)));
      call += kOctetsAtOnce;
      to += kThreads * 4;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(S::template barrier<C::kBitStages>(C::kBitsFull, drawn));
    ++drawn;
  }
};

// Stands in for the drawer in variants without one.
struct NoDrawer {
  __device__ __forceinline__ NoDrawer(const HopperBackward&, int, int) {}
};

}  // namespace transformer_kernels::cuda
