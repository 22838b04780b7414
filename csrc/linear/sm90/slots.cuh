// SPDX-License-Identifier: MIT
// The shared memory through which a chunk's tensors pass (staged_writer.cuh): slots that are used
// in turn, each for all of a chunk.
//
//   storage of the CTA | init, by one thread | open | what leaves it is written | settle
//                      | TMA stores, by one lane of a warp | proceed
#pragma once

#include "linear/cuda/chain.cuh"
#include "linear/sm90/shape.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Slots of a warpgroup, for results alone.
template <class Shape, class Chain>
class ResultSlots {
  static constexpr int kTensors = Chain::kResults + Chain::kKeeps;
  static constexpr int kChunks = Shape::kBands * Shape::kOutCols / kChunkCols;
  static constexpr int kSlots = kTensors == 3 ? 2 : kTensors == 2 || Shape::kCols == 128 ? 4 : 3;
  static_assert(kChunks % kSlots == 0);

 public:
  struct Storage {
    unsigned char slots[2][kSlots][kTensors][kChunkBytes];
  };

  static __device__ __forceinline__ void init(Storage&) {}

  __device__ __forceinline__ ResultSlots(Storage& storage, int group)
      : storage_(storage),
        group_(group) {}

  // The slot of a chunk of this warpgroup's tile number `tile`.
  __device__ __forceinline__ void open(int chunk, int /*tile*/) {
    slot_ = shared_address(storage_.slots[group_][chunk % kSlots]);
  }
  __device__ __forceinline__ std::uint32_t result(int i) const { return slot_ + i * kChunkBytes; }
  __device__ __forceinline__ std::uint32_t kept(int i) const {
    return slot_ + (Chain::kResults + i) * kChunkBytes;
  }

  // Frees the slot of the next chunk.
  __device__ __forceinline__ void settle(int lane) const {
    fence_async_shared();
    if (lane == 0) bulk_wait_read<kSlots - 2>();
    __syncwarp();
  }
  __device__ __forceinline__ void free(int /*chunk*/) const {}
  __device__ __forceinline__ void proceed() const {}

 private:
  Storage& storage_;
  int group_;
  std::uint32_t slot_;
};

// Slots of both warpgroups, in which tensors arrive: results leave from the slot that these came
// in, and what is kept beside them from slots of the warpgroup. Chunk i of every tile goes to slot
// i % kSlots, in the order in which chunks are used, so that a slot waits for an epilogue that
// needs nothing loaded after it.
template <class Shape, class Chain>
class ReadSlots {
  static constexpr int kReads = Chain::kReads;
  static constexpr int kChunks = Shape::kBands * Shape::kOutCols / kChunkCols;
  static constexpr int kSlots = kChunks / kReads;
  static constexpr int kRounds = kChunks / kSlots;  // that a tile makes over its slots
  static constexpr int kKeptSlots = 2;
  static_assert(Chain::kResults <= kReads && kChunks % kSlots == 0 && kChunks % kKeptSlots == 0);

 public:
  struct Storage {
    unsigned char slots[kSlots][kReads][kChunkBytes];
    unsigned char kept[2][kKeptSlots][Chain::kKeeps > 0 ? Chain::kKeeps* kChunkBytes : 1];
    // One for each warpgroup: a parity alone could not tell the tile of one from that of the other.
    std::uint64_t full[2][kSlots];
    std::uint64_t empty[kSlots];
  };

  static __device__ __forceinline__ void init(Storage& storage) {
    for (int i = 0; i < kSlots; ++i) {
      mbarrier_init(shared_address(&storage.full[0][i]), 1);
      mbarrier_init(shared_address(&storage.full[1][i]), 1);
      mbarrier_init(shared_address(&storage.empty[i]), kGemmWarps);
    }
  }

  // One thread: brings the tensors of all tiles of this CTA.
  template <class Tiles>
  static __device__ __forceinline__ void load(const CUtensorMap (&tensors)[kReads],
                                              const Tiles& tiles, Storage& storage) {
    constexpr int kUnroll = kReads == 1 ? kChunks : 1;  // two inputs want too many registers
    int count = 0;
    for (int tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x, ++count) {
      const auto unit = tiles[tile];
#pragma unroll kUnroll
      for (int i = 0; i < kChunks; ++i) {
        const int at = i % kSlots;
        const int round = count * kRounds + i / kSlots;
        const std::uint32_t full = shared_address(&storage.full[count % 2][at]);
        const MatrixOrigin box{unit.place.col * Shape::kOutCols + i / Shape::kBands * kChunkCols,
                               first_row<Shape>(unit) + i % Shape::kBands * 64};
        mbarrier_wait(shared_address(&storage.empty[at]), round % 2 ^ 1);
        mbarrier_arrive_expect(full, kReads * kChunkBytes);
#pragma unroll
        for (int k = 0; k < kReads; ++k) {
          tensor_load(shared_address(storage.slots[at][k]), tensors[k], box, full);
        }
      }
    }
  }

  __device__ __forceinline__ ReadSlots(Storage& storage, int group)
      : storage_(storage),
        group_(group) {}

  // Waits until the chunk's tensors are there.
  __device__ __forceinline__ void open(int chunk, int tile) {
    const int at = chunk % kSlots;
    slot_ = shared_address(storage_.slots[at]);
    kept_ = shared_address(storage_.kept[group_][chunk % kKeptSlots]);
    const int round = tile * kRounds + chunk / kSlots;
    mbarrier_wait(shared_address(&storage_.full[group_][at]), round & 1);
  }
  __device__ __forceinline__ std::uint32_t read(int i) const { return slot_ + i * kChunkBytes; }
  __device__ __forceinline__ std::uint32_t result(int i) const { return slot_ + i * kChunkBytes; }
  __device__ __forceinline__ std::uint32_t kept(int i) const { return kept_ + i * kChunkBytes; }

  __device__ __forceinline__ void settle(int) const {
    fence_async_shared();
    __syncwarp();
  }
  // One lane, behind its stores: gives back the slots that have been read.
  __device__ __forceinline__ void free(int chunk) const {
    const auto give_back = [&](int i) {
      mbarrier_arrive(shared_address(&storage_.empty[i % kSlots]));
    };
    bulk_wait_read<1>();
    if (chunk > 0) give_back(chunk - 1);
    if (chunk == kChunks - 1) {
      bulk_wait_read<0>();
      give_back(chunk);
    }
  }
  // The next chunk writes where this one's predecessor has been read.
  __device__ __forceinline__ void proceed() const { __syncwarp(); }

 private:
  Storage& storage_;
  int group_;
  std::uint32_t slot_;
  std::uint32_t kept_;
};

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
