// SPDX-License-Identifier: MIT
// Products of few rows on Hopper, with their epilogue, whose weight streams through shared memory:
//
//   out = epilogue(x w)        x at most 16 rows; w lines of columns, of 16, 8 or 4 bits a number
//
// As many bytes have to be under way as memory brings in its latency, which registers do not hold
// (sm80/few_rows.cuh). Here they wait in shared memory, where TMA puts them.
//
//   CTA    tiles of 16 columns, in strips whose sums fit into registers: over all terms
//   warp   every n-th block of terms, 128 bytes of a line, so that a CTA's warps read on along its
//          lines together. Each has a ring of slots of its own and fills it itself, so that warps
//          meet only at the end of a strip, to add up their sums in the order of the warps
//   slot   of a block the terms of x, once for a strip, then a tile of the weight after the other
//   lane   4 g + t: pieces t and t + 4 of the eight of 16 bytes in a block of a line, for the lines
//          StreamedLine::of(g) and 8 lines on. The terms of an mma may stand in any order that both
//          operands share, and lines in any order that the sums are written in
#pragma once

#include "core/cuda/direct_row.cuh"
#include "core/cuda/hopper.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/reduce.cuh"
#include "linear/cuda/epilogue.cuh"
#include "linear/cuda/packed_numbers.cuh"
#include "linear/cuda/scale.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kStreamedTile = 16;        // columns, which are lines of the weight
inline constexpr int kStreamedLineBytes = 128;  // of a block
inline constexpr int kStreamedSlotBytes = kStreamedTile * kStreamedLineBytes;
inline constexpr int kStreamedXBox = 64;  // terms of a box of x, of 8 rows
inline constexpr int kStreamedXBoxBytes = 8 * kStreamedLineBytes;

// Which of eight lines lanes 4 g to 4 g + 3 read: two neighbouring g are 4 lines apart, whose
// swizzled pieces lie in different banks.
struct StreamedLine {
  static __host__ __device__ constexpr int of(int g) { return g / 2 + g % 2 * 4; }
  static __host__ __device__ constexpr int group(int line) { return line % 4 * 2 + line / 4; }
};

// kTiles: of a strip, at most. kResident: CTAs for which a processor has room. The second one is of
// the next kernel, which brings the begin of its weight to L2 while this one ends.
template <class T_, class Numbers_, int kXTiles_, int kWarps_, int kTiles_, int kResident_ = 1>
struct StreamedShape {
  using T = T_;
  using Numbers = Numbers_;
  static constexpr int kXTiles = kXTiles_;  // of 8 rows
  static constexpr int kWarps = kWarps_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kResident = kResident_;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr bool kScaled = Numbers::kScaled;

  static constexpr int kPieceTerms = 4 * Numbers::kPerWord;
  static constexpr int kBlockTerms = 8 * kPieceTerms;
  static constexpr int kBlockElements = kScaled ? kStreamedLineBytes : kBlockTerms;  // of the map
  static constexpr int kXWords = kPieceTerms / 2;  // of a piece's terms
  static constexpr int kXBoxesOfTile = kBlockTerms / kStreamedXBox;
  static constexpr int kXBoxes = kXTiles * kXBoxesOfTile;
  static constexpr int kXSlots = (kXBoxes + 1) / 2;

  static constexpr int kSumTiles = kTiles / kXTiles / kResident;  // that are added up at once
  static constexpr int kSums = kSumTiles * kXTiles * 4 * kThreads;
  static constexpr int kScalesOfSlot = kScaled ? 2 * kStreamedTile : 0;
  static constexpr int kSharedBytes = (228 / kResident - 1) * 1024;
  static constexpr int kSlots =
      (kSharedBytes - 1024 - kSums * 4) / (kWarps * (kStreamedSlotBytes + kScalesOfSlot * 4 + 8));

  struct alignas(1024) Storage {
    unsigned char slots[kWarps][kSlots][kStreamedSlotBytes];
    float sums[kSums];
    std::uint64_t full[kWarps][kSlots];
    std::uint32_t scales[kWarps][kSlots][kScaled ? 2 * kStreamedTile : 1];
  };
  static_assert(sizeof(Storage) <= kSharedBytes && kXSlots < kSlots);
};

struct StreamedRows {
  CUtensorMap weight;
  CUtensorMap x;
  Product product;
  GroupScales scales;
  int groups;  // of a line
  int tiles;
  int blocks;
  int prefetched;  // slots of a warp
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The tiles of a CTA, in strips of `size` tiles; the last one may have fewer.
struct StreamedStrips {
  int begin;
  int end;
  int size;

  __device__ __forceinline__ StreamedStrips(int tiles, int most) {
    const auto share = [tiles](unsigned cta) {
      return static_cast<int>(std::int64_t{tiles} * cta / gridDim.x);
    };
    begin = share(blockIdx.x);
    end = share(blockIdx.x + 1);
    const int strips = (end - begin + most - 1) / most;
    size = (end - begin + strips - 1) / strips;
  }
  __device__ __forceinline__ int tiles(int first) const { return min(size, end - first); }
};

// The loads of a warp, slot by slot.
template <class Shape>
class StreamedLoads {
 public:
  __device__ __forceinline__ StreamedLoads(const StreamedRows& p, const StreamedStrips& strips,
                                           int warp, int lane)
      : p_(p),
        strips_(strips),
        warp_(warp),
        lane_(lane),
        first_(warp < p.blocks ? strips.begin : strips.end),
        slots_(Shape::kXSlots + strips.tiles(first_)),
        cols_(static_cast<int>(p.product.cols)) {
    open_block(warp);
  }

  // Brings the next slot's bytes to `slot`, and the scales of a tile to `scales`.
  __device__ __forceinline__ void load(std::uint32_t slot, std::uint32_t scales, std::uint32_t full,
                                       std::uint64_t policy) {
    if (first_ < strips_.end) {
      if (lane_ == 0) {
        if (at_ < Shape::kXSlots) {
          load_x(slot, full);
        } else {
          mbarrier_arrive_expect(full, kStreamedSlotBytes);
          tensor_load(slot, p_.weight, box(), full, policy);
        }
      }
      if constexpr (Shape::kScaled) {
        if (at_ >= Shape::kXSlots) load_scales(scales);
      }
      advance();
    }
    if constexpr (Shape::kScaled) cp_async_commit_group();
  }

  // Brings the next slot's part of the weight to L2.
  __device__ __forceinline__ void prefetch() {
    if (first_ >= strips_.end) return;
    if (lane_ == 0 && at_ >= Shape::kXSlots) tensor_prefetch(p_.weight, box());
    advance();
  }

 private:
  __device__ __forceinline__ MatrixOrigin box() const {
    return {block_ * Shape::kBlockElements, (first_ + at_ - Shape::kXSlots) * kStreamedTile};
  }

  __device__ __forceinline__ void load_x(std::uint32_t slot, std::uint32_t full) const {
    const int first = 2 * at_;
    const int count = min(2, Shape::kXBoxes - first);
    mbarrier_arrive_expect(full, count * kStreamedXBoxBytes);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int term =
          block_ * Shape::kBlockTerms + (first + i) % Shape::kXBoxesOfTile * kStreamedXBox;
      tensor_load(slot + i * kStreamedXBoxBytes, p_.x,
                  MatrixOrigin{term, (first + i) / Shape::kXBoxesOfTile * 8}, full);
    }
  }

  // A lane brings the word of a scale: that of line lane / 2 and half lane % 2 of the block. Of
  // scales of 16 bits a word has two.
  __device__ __forceinline__ void load_scales(std::uint32_t to) const {
    const int line = (first_ + at_ - Shape::kXSlots) * kStreamedTile + lane_ / 2;
    const bool valid = line < cols_ && group_ < p_.groups;
    const std::byte* const word =
        static_cast<const std::byte*>(p_.scales.data) + (group_ * p_.scales.bytes & ~3);
    cp_async<4>(to + lane_ * 4, advanced(word, valid ? line : 0, p_.scales.step_bytes), valid);
  }

  __device__ __forceinline__ void open_block(int block) {
    block_ = block;
    at_ = 0;
    if constexpr (Shape::kScaled) group_ = p_.scales.group_of(2 * block + lane_ % 2);
  }

  __device__ __forceinline__ void advance() {
    if (++at_ < slots_) return;
    if (block_ + Shape::kWarps < p_.blocks) return open_block(block_ + Shape::kWarps);
    open_block(warp_);
    first_ += strips_.size;
    slots_ = Shape::kXSlots + strips_.tiles(first_);
  }

  const StreamedRows& p_;
  StreamedStrips strips_;
  int warp_;
  int lane_;
  int first_;  // tile of the strip
  int slots_;  // of a block
  int cols_;
  int block_;
  int at_;
  int group_;  // of this lane's scale
};

template <class Shape>
class StreamedWarp {
  using T = typename Shape::T;
  using Numbers = typename Shape::Numbers;
  using Sums = float[Shape::kTiles][Shape::kXTiles][4];
  using X = std::uint32_t[Shape::kXTiles][2][Shape::kXWords];
  struct Selectors {
    std::uint32_t of[2];  // the halves of a block
  };

 public:
  __device__ __forceinline__ StreamedWarp(const StreamedRows& p, typename Shape::Storage& storage)
      : p_(p),
        storage_(storage),
        strips_(p.tiles, Shape::kTiles),
        warp_(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0)),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        loads_(p, strips_, warp_, lane_),
        policy_(l2_evict_first()),
        slots_(shared_address(storage.slots[warp_])),
        scales_(shared_address(storage.scales[warp_])),
        full_(shared_address(storage.full[warp_])) {
    const int line = StreamedLine::of(lane_ / 4);
    own_ = line * kStreamedLineBytes + (lane_ % 4 ^ line) * 16;
    own_scale_ = line * 8;
  }

  // Before anything else; the kernel before may still be running.
  __device__ __forceinline__ void init() {
    if (lane_ == 0) {
      for (int i = 0; i < Shape::kSlots; ++i) mbarrier_init(full_ + 8 * i, 1);
      fence_mbarrier_init();
    }
    __syncwarp();
    StreamedLoads<Shape> ahead(p_, strips_, warp_, lane_);
#pragma unroll 1
    for (int i = 0; i < p_.prefetched; ++i) ahead.prefetch();
  }

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (int i = 0; i < Shape::kSlots; ++i) {
      refill();
      turn();
    }
    phase_ = 0;
    for (int first = strips_.begin; first < strips_.end; first += strips_.size) {
      const int tiles = strips_.tiles(first);
      Sums sums = {};
      for (int block = warp_; block < p_.blocks; block += Shape::kWarps) {
        X x;
        load_x(x);
        const Selectors selectors = selectors_of(block);
#pragma unroll
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
          if (tile < tiles) multiply(x, selectors, sums[tile]);
        }
      }
      add_up(sums, first * kStreamedTile, tiles);
    }
  }

 private:
  __device__ __forceinline__ void turn() {
    if (++slot_ == Shape::kSlots) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }
  __device__ __forceinline__ std::uint32_t slot() const {
    return slots_ + slot_ * kStreamedSlotBytes;
  }
  __device__ __forceinline__ std::uint32_t scales() const {
    return scales_ + slot_ * static_cast<int>(sizeof(storage_.scales[0][0]));
  }
  __device__ __forceinline__ void refill() {
    loads_.load(slot(), scales(), full_ + 8 * slot_, policy_);
  }

  __device__ __forceinline__ Selectors selectors_of(int block) const {
    if constexpr (!Shape::kScaled) return {};
    const GroupScales& scales = p_.scales;
    return {{scales.selector(scales.group_of(2 * block)),
             scales.selector(scales.group_of(2 * block + 1))}};
  }

  // Waits until the slot is full. Every slot is one group of copies.
  __device__ __forceinline__ void open() const {
    mbarrier_wait(full_ + 8 * slot_, phase_);
    if constexpr (Shape::kScaled) {
      cp_async_wait_group<Shape::kSlots - 1>();
      __syncwarp();
    }
  }
  // The warp has read the slot.
  __device__ __forceinline__ void close() {
    __syncwarp();
    refill();
    turn();
  }

  // Terms of x as an operand has them: of row g, and those of pieces t and t + 4 of a line.
  __device__ __forceinline__ void load_x(X& x) {
    constexpr int kBoxes = Shape::kXBoxesOfTile;
    constexpr int kEights = Shape::kPieceTerms / 8;
    const int row = lane_ / 4;
#pragma unroll
    for (int slot_of_x = 0; slot_of_x < Shape::kXSlots; ++slot_of_x) {
      open();
#pragma unroll
      for (int tile = 0; tile < Shape::kXTiles; ++tile) {
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          if ((tile * kBoxes + q * kBoxes / 2) / 2 != slot_of_x) continue;
#pragma unroll
          for (int i = 0; i < kEights; ++i) {
            const int eight = (lane_ % 4 + 4 * q) * kEights + i;
            const int box = (tile * kBoxes + eight / 8) % 2;
            const uint4 v = load_shared(slot() + box * kStreamedXBoxBytes +
                                        row * kStreamedLineBytes + (eight % 8 ^ row) * 16);
            x[tile][q][4 * i] = v.x, x[tile][q][4 * i + 1] = v.y;
            x[tile][q][4 * i + 2] = v.z, x[tile][q][4 * i + 3] = v.w;
          }
          Numbers::arrange(x[tile][q]);
        }
      }
      close();
    }
  }

  // Adds the products of a block with a tile. Sums of integers are scaled when their group is
  // through: half a block is of one group.
  __device__ __forceinline__ void multiply(const X& x, const Selectors& selectors,
                                           float (&sums)[Shape::kXTiles][4]) {
    open();
    std::uint32_t lines[2][2][4];  // by half of the block, and of the tile
#pragma unroll
    for (int q = 0; q < 2; ++q) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 v = load_shared(slot() + (own_ ^ 64 * q) + i * (8 * kStreamedLineBytes));
        lines[q][i][0] = v.x, lines[q][i][1] = v.y, lines[q][i][2] = v.z, lines[q][i][3] = v.w;
      }
    }
    if constexpr (Shape::kScaled) {
      const float2 words[2] = {load_shared_float2(scales() + own_scale_),
                               load_shared_float2(scales() + own_scale_ + 64)};
      float own[2][Shape::kXTiles][4] = {};
      add_products(lines, x, own[0], own[1]);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float word = q == 0 ? words[i].x : words[i].y;
          const float scale = p_.scales.value(__float_as_uint(word), selectors.of[q]);
#pragma unroll
          for (int tile = 0; tile < Shape::kXTiles; ++tile) {
#pragma unroll
            for (int e = 2 * i; e < 2 * i + 2; ++e) {
              sums[tile][e] = fmaf(scale, own[q][tile][e], sums[tile][e]);
            }
          }
        }
      }
    } else {
      add_products(lines, x, sums, sums);
    }
    close();
  }

  // To sums of each half of the block, which take turns: an mma waits for the sum of the one
  // before.
  static __device__ __forceinline__ void add_products(const std::uint32_t (&lines)[2][2][4],
                                                      const X& x, float (&first)[Shape::kXTiles][4],
                                                      float (&second)[Shape::kXTiles][4]) {
#pragma unroll
    for (int step = 0; step < Numbers::kPerWord; ++step) {
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        std::uint32_t upper[2], lower[2];
        Numbers::step(lines[q][0], step, upper);
        Numbers::step(lines[q][1], step, lower);
        const std::uint32_t a[4] = {upper[0], lower[0], upper[1], lower[1]};
#pragma unroll
        for (int tile = 0; tile < Shape::kXTiles; ++tile) {
          mma_m16n8k16<T>((q == 0 ? first : second)[tile], a, x[tile][q][2 * step],
                          x[tile][q][2 * step + 1]);
        }
      }
    }
  }

  // Adds up the warps' sums of a strip, in their order.
  __device__ __forceinline__ void add_up(const Sums& sums, int first_col, int tiles) const {
    constexpr int kOfTile = Shape::kXTiles * 4 * Shape::kThreads;
#pragma unroll
    for (int first = 0; first < Shape::kTiles; first += Shape::kSumTiles) {
      if (first >= tiles) break;
      __syncthreads();
#pragma unroll
      for (int tile = 0; tile < Shape::kSumTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4 * Shape::kXTiles; ++i) {
          storage_.sums[tile * kOfTile + i * Shape::kThreads + threadIdx.x] =
              sums[first + tile][i / 4][i % 4];
        }
      }
      __syncthreads();
      write(first_col + first * kStreamedTile, min(tiles - first, Shape::kSumTiles));
    }
  }

  __device__ __forceinline__ void write(int first_col, int tiles) const {
    const Product& p = p_.product;
    const int cols = tiles * kStreamedTile;
    const int count = cols * static_cast<int>(p.rows);
    for (int i = threadIdx.x; i < count; i += Shape::kThreads) {
      const int col = i % cols;
      const int row = i / cols;
      if (first_col + col >= p.cols) continue;
      const int tile = col / kStreamedTile;
      const int sum = col / 8 % 2 * 2 + row % 2;
      const int lane = 4 * StreamedLine::group(col % 8) + row % 8 / 2;
      const float* const own =
          storage_.sums + ((tile * Shape::kXTiles + row / 8) * 4 + sum) * Shape::kThreads + lane;
      float total = 0;
#pragma unroll
      for (int warp = 0; warp < Shape::kWarps; ++warp) total += own[warp * kWarp];
      epilogue<T>(p, row, first_col + col, total);
    }
  }

  const StreamedRows& p_;
  typename Shape::Storage& storage_;
  StreamedStrips strips_;
  int warp_;
  int lane_;
  StreamedLoads<Shape> loads_;
  std::uint64_t policy_;
  std::uint32_t slots_;
  std::uint32_t scales_;
  std::uint32_t full_;
  int own_;        // bytes of a slot before piece t of line of(g)
  int own_scale_;  // and of scales
  int slot_ = 0;
  int phase_ = 0;
};

#endif  // sm_90

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kResident)
    streamed_rows_kernel(const __grid_constant__ StreamedRows p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char streamed_rows_shared[];
  auto& storage = *reinterpret_cast<typename Shape::Storage*>(streamed_rows_shared);
  StreamedWarp<Shape> warp(p, storage);
  warp.init();
  follow_previous_kernel();
  warp.run();
#endif
}

}  // namespace transformer_kernels::cuda
