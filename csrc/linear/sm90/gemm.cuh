// SPDX-License-Identifier: MIT
// Hopper's GEMM, with an epilogue on the tile that is still in registers:
//
//   out = epilogue(a b)        a is rows x terms, b terms x cols; 16-bit operands, float32 sums
//
// It is persistent: one CTA an SM, three warpgroups.
//
//   warpgroup 0   warp 0 loads stages of a and b into a ring (TMA); warp 1 loads the z that an
//                 epilogue reads: a tile ahead, or half a tile ahead for gate and up
//   warpgroups    take tiles of kRows x kCols in turn: products, then the epilogue, which runs
//   1 and 2       while the other multiplies
//
//   1:  | products | epilogue   | products | epilogue   |
//   2:             | products | epilogue   | products | epilogue   |
//
// The epilogue goes over chunks of 64 rows and 32 columns. Each warp owns 16 rows of a chunk: it
// moves them from registers to a slot of shared memory, and from there by TMA, without a barrier of
// the warpgroup. Where columns are summed, each warp has sums of its rows of a tile
// (core/cuda/column_sum.h).
#pragma once

#include "core/cuda/hopper.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/sm90/accumulator.cuh"
#include "core/cuda/sm90/pipeline.cuh"
#include "core/cuda/sm90/swizzle.cuh"
#include "core/cuda/sm90/turn.cuh"
#include "core/math/activation.h"
#include "linear/sm90/gemm_shape.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kGemmThreads = 384;
inline constexpr int kGemmWarps = 4;  // of a warpgroup

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class S>
__device__ __forceinline__ int units(const GemmParameters& p) {
  return S::kEpilogue == Epilogue::kPartial ? p.tiles.count() * p.parts : p.tiles.count();
}

template <class S>
__device__ __forceinline__ GemmUnit unit(const GemmParameters& p, int i) {
  if constexpr (S::kEpilogue != Epilogue::kPartial) return {p.tiles[i], 0, 0, p.blocks};
  const int part = i / p.tiles.count();
  const int first = part * p.blocks_of_part;
  return {p.tiles[i % p.tiles.count()], part, first, min(p.blocks_of_part, p.blocks - first)};
}

template <class S>
using GemmPipeline = Pipeline<S::kStages, S::kStageBytes>;

// A box of 64 terms where terms are together, else boxes of 64 rows or columns by 64 terms.
template <Major kMajor, int kExtent>
__device__ __forceinline__ void load_operand(std::uint32_t to, const CUtensorMap& map, int term,
                                             int first, std::uint32_t barrier) {
  if constexpr (kMajor == Major::kK) {
    tensor_load(to, map, {term, first}, barrier);
  } else {
#pragma unroll
    for (int i = 0; i < (kExtent + 63) / 64; ++i) {
      tensor_load(to + i * 64 * kSwizzleRow, map, {first + 64 * i, term}, barrier);
    }
  }
}

// One thread.
template <class S>
__device__ __forceinline__ void load_operands(const GemmParameters& p, GemmPipeline<S> pipeline) {
  for (int i = blockIdx.x; i < units<S>(p); i += gridDim.x) {
    const auto [place, part, first_block, blocks] = unit<S>(p, i);
    for (int block = 0; block < blocks; ++block) {
      pipeline.acquire();
      pipeline.commit(S::kStageBytes);
      const int term = (first_block + block) * S::kBlock;
      load_operand<S::kMajorA, S::kRows>(pipeline.data(), p.a, term, place.row * S::kRows,
                                         pipeline.full());
      const std::uint32_t b = pipeline.data() + S::kBytesOfA;
      const int col = place.col * S::kOutCols;
      load_operand<S::kMajorB, S::kOutCols>(b, p.b, term, col, pipeline.full());
      if constexpr (S::kGated) {
        load_operand<S::kMajorB, S::kOutCols>(b + S::kBytesOfB / 2, p.b_up, term, col,
                                              pipeline.full());
      }
      pipeline.advance();
    }
  }
}

// One thread. Chunk i of every tile goes to slot i % kSlots, in the order in which chunks are used,
// so that a slot waits for an epilogue that needs nothing loaded after it.
template <class S>
__device__ __forceinline__ void load_z(const GemmParameters& p, GemmStorage<S>& storage) {
  constexpr int kUnroll = S::kInputs == 1 ? S::kChunks : 1;  // two inputs want too many registers
  int count = 0;
  for (int tile = blockIdx.x; tile < p.tiles.count(); tile += gridDim.x, ++count) {
    const TilePlace place = p.tiles[tile];
#pragma unroll kUnroll
    for (int i = 0; i < S::kChunks; ++i) {
      const int at = i % S::kSlots;
      const int round = count * S::kRounds + i / S::kSlots;
      const std::uint32_t slot = shared_address(storage.slots[0][at]);
      const std::uint32_t full = shared_address(&storage.z_full[count % 2][at]);
      const MatrixOrigin box{place.col * S::kOutCols + i / S::kBands * S::kChunkCols,
                             place.row * S::kRows + i % S::kBands * 64};
      mbarrier_wait(shared_address(&storage.z_empty[at]), round % 2 ^ 1);
      mbarrier_arrive_expect(full, S::kSlotBytes);
      tensor_load(slot, p.z, box, full);
      if constexpr (S::kInputs == 2) tensor_load(slot + S::kChunkBytes, p.z_up, box, full);
    }
  }
}

// A consumer warpgroup: multiplies tiles and runs their epilogue. In each band of 64 rows a thread
// owns, in two rows, two columns of every eight.
template <class S>
class GemmConsumer {
  using T = typename S::T;

 public:
  __device__ __forceinline__ GemmConsumer(const GemmParameters& p, GemmStorage<S>& storage,
                                          GemmPipeline<S> pipeline, int group)
      : p_(p),
        storage_(storage),
        pipeline_(pipeline),
        turn_(group),
        group_(group),
        own_{__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % kGemmWarps, 0),
             static_cast<int>(threadIdx.x) % 32} {}

  __device__ __forceinline__ void run() {
    const int first = blockIdx.x;
    const int step = gridDim.x;
    const int last = units<S>(p_) - 1;
    const int count = first <= last ? (last - first) / step + 1 : 0;
    const auto skip = [&](int i) {
      if (i < count) pipeline_.skip(unit<S>(p_, first + i * step).blocks);
    };
    if (group_ == 1) skip(0);
    for (int i = group_; i < count; i += 2) {
      const GemmUnit own = unit<S>(p_, first + i * step);
      const int row = own.place.row * S::kRows;
      const int col = own.place.col * S::kOutCols;
      if constexpr (S::kAddsBias) touch_bias(p_.bias, col);
      if constexpr (S::kAddsUpBias) touch_bias(p_.up_bias, col);
      multiply(own.blocks);
      if constexpr (S::kEpilogue == Epilogue::kPartial) {
        store_partial(row, col, own.part);
      } else if constexpr (S::kEpilogue == Epilogue::kBiasUneven) {
        store_uneven(row, col);
      } else {
        epilogue(row, col, i / 2);
      }
      skip(i + 1);
    }
    if (count % 2 == group_) turn_.wait();
    if (own_.lane == 0) bulk_wait_read<0>();
  }

 private:
  __device__ __forceinline__ void release(std::uint32_t empty) const {
    if (own_.lane == 0) mbarrier_arrive(empty);
  }

  // One group of products is always on its way while the next stage is waited for. Without the turn
  // a warpgroup could take a stage's last round for the one that it waits for: parities are equal.
  __device__ __forceinline__ void multiply(int blocks) {
    constexpr int kStepOfA = S::kMajorA == Major::kK ? 2 : 128;  // 16 terms, in 16 bytes
    constexpr int kStepOfB = S::kMajorB == Major::kK ? 2 : 128;
    constexpr int kBand = 64 * kSwizzleRow / 16;
    turn_.wait();
    std::uint32_t previous = 0;
    for (int block = 0; block < blocks; ++block) {
      const std::uint32_t data = __shfl_sync(~0u, pipeline_.data(), 0);
      const std::uint64_t a = matrix_descriptor(data, leading(S::kMajorA));
      const std::uint64_t b = matrix_descriptor(data + S::kBytesOfA, leading(S::kMajorB));
      pipeline_.wait();
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < S::kBlock / 16; ++k) {
#pragma unroll
        for (int band = 0; band < S::kBands; ++band) {
          wgmma<T, S::kMajorA, S::kMajorB>(sums_[band], a + band * kBand + k * kStepOfA,
                                           b + k * kStepOfB, (block | k) != 0);
        }
      }
      wgmma_commit();
      if (block > 0) {
        wgmma_wait<1>();
        release(previous);
      }
      previous = pipeline_.empty();
      pipeline_.advance();
    }
    turn_.pass();
    wgmma_wait<0>();
#pragma unroll
    for (auto& band : sums_) pin(band);
    release(previous);
  }
  static constexpr std::uint32_t leading(Major major) {
    return major == Major::kK ? 16 : 64 * kSwizzleRow;
  }

  // `tile` counts those of this warpgroup.
  __device__ __forceinline__ void epilogue(int row, int col, int tile) {
#pragma unroll
    for (int c = 0; c < S::kOutCols / S::kChunkCols; ++c) {
      float bias[kPairs][2];
      float up_bias[kPairs][2];
      if constexpr (S::kAddsBias) load_bias(p_.bias, col + c * S::kChunkCols, bias);
      if constexpr (S::kAddsUpBias) load_bias(p_.up_bias, col + c * S::kChunkCols, up_bias);
      float totals[2 * kPairs];  // of columns, where they are wanted
#pragma unroll
      for (int band = 0; band < S::kBands; ++band) {
        const int chunk = c * S::kBands + band;
        const float* sums = sums_[band] + c * S::kChunkCols / 2;
        const MatrixOrigin box{col + c * S::kChunkCols, row + band * 64 + 16 * own_.warp};
        if constexpr (S::kReadsZ) {
          store_chunk_with_z(sums, bias, up_bias, box, chunk, tile, totals);
        } else if constexpr (S::kGated) {
          store_gated_chunk(sums, sums + S::kOutCols / 2, bias, up_bias, box, chunk);
        } else {
          store_chunk(sums, bias, box, chunk);
        }
      }
      if constexpr (S::kSumsColumns) store_totals(totals, row, col + c * S::kChunkCols);
    }
  }

  static constexpr int kPairs = S::kChunkCols / 8;

  __device__ __forceinline__ void load_bias(const void* from, int col,
                                            float (&bias)[kPairs][2]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = min(col + own_.col(i), p_.cols - 2);
      if (from == nullptr) {
        bias[i][0] = bias[i][1] = -0.0f;  // changes nothing that it is added to
      } else if (p_.bias_is_wide) {
        const float2 two = __ldg(static_cast<const float2*>(from) + at / 2);
        bias[i][0] = two.x;
        bias[i][1] = two.y;
      } else {
        widen_word<T>(__ldg(static_cast<const std::uint32_t*>(from) + at / 2), bias[i]);
      }
    }
  }

  // Brings a tile's bias to L1 while its products are made. A lane takes a sector of 32 bytes. It
  // is a load, as prefetches to L1 bring nothing there.
  __device__ __forceinline__ void touch_bias(const void* bias, int col) const {
    if (bias == nullptr) return;
    const int bytes = p_.bias_is_wide ? 4 : 2;
    const int at = min(col + own_.lane * 32 / bytes, p_.cols - 2);
    std::uint32_t unused;
    asm volatile("ld.global.nc.u32 %0, [%1];"
                 : "=r"(unused)
                 : "l"(static_cast<const char*>(bias) + at * bytes));
  }

  // This lane's row of 16 columns of a slot, as ldmatrix and stmatrix take it.
  __device__ __forceinline__ std::uint32_t cell(std::uint32_t slot, int sixteen) const {
    return swizzled_16x16<S::kChunkRowBytes>(slot, 16 * own_.warp, 2 * sixteen, own_.lane);
  }
  __device__ __forceinline__ void put(std::uint32_t slot, int sixteen,
                                      const std::uint32_t (&words)[4]) const {
    store_matrices(cell(slot, sixteen), words[0], words[1], words[2], words[3]);
  }
  static __device__ __forceinline__ void narrow(const float (&v)[8], std::uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = narrow_word<T>(v + 2 * i);
  }
  static __device__ __forceinline__ void widen(const std::uint32_t (&words)[4], float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) widen_word<T>(words[i], v + 2 * i);
  }
  __device__ __forceinline__ std::uint32_t rows_of_warp(std::uint32_t slot) const {
    return slot + 16 * own_.warp * S::kChunkRowBytes;
  }

  // z is rounded before f, as the z is that is kept.
  __device__ __forceinline__ void store_chunk(const float* sums, const float (&bias)[kPairs][2],
                                              MatrixOrigin box, int chunk) const {
    const std::uint32_t slot = shared_address(storage_.slots[group_][chunk % S::kSlots]);
#pragma unroll
    for (int j = 0; j < S::kChunkCols / 16; ++j) {
      float v[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = sums[8 * j + e] + bias[2 * j + e / 4][e % 2];
      std::uint32_t words[4];
      narrow(v, words);
      if constexpr (S::kEpilogue != Epilogue::kBias) {
        if constexpr (S::kOutputs == 2) put(slot + S::kChunkBytes, j, words);
        widen(words, v);
#pragma unroll
        for (float& value : v) value = S::Activation::value(math::Fast{}, value);
        narrow(v, words);
      }
      put(slot, j, words);
    }
    send_slot(slot, box);
  }

  // gate and up are rounded before they are kept, activated or multiplied.
  __device__ __forceinline__ void store_gated_chunk(const float* gate, const float* up,
                                                    const float (&bias)[kPairs][2],
                                                    const float (&up_bias)[kPairs][2],
                                                    MatrixOrigin box, int chunk) const {
    const std::uint32_t slot = shared_address(storage_.slots[group_][chunk % S::kSlots]);
#pragma unroll
    for (int j = 0; j < S::kChunkCols / 16; ++j) {
      float v[8];
      float factor[8];
      round_sums(gate + 8 * j, slot + S::kChunkBytes, j, v);
      round_sums(up + 8 * j, slot + 2 * S::kChunkBytes, j, factor);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        v[e] = S::Activation::value(math::Fast{}, v[e] + bias[2 * j + e / 4][e % 2]);
        v[e] *= factor[e] + up_bias[2 * j + e / 4][e % 2];
      }
      std::uint32_t words[4];
      narrow(v, words);
      put(slot, j, words);
    }
    send_slot(slot, box);
  }
  __device__ __forceinline__ void round_sums(const float* sums, std::uint32_t kept, int sixteen,
                                             float (&v)[8]) const {
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = sums[e];
    std::uint32_t words[4];
    narrow(v, words);
    if constexpr (S::kOutputs == 3) put(kept, sixteen, words);
    widen(words, v);
  }

  // Out of shared memory, this warp's rows of all results.
  __device__ __forceinline__ void send_slot(std::uint32_t slot, MatrixOrigin box) const {
    fence_async_shared();
    if (own_.lane == 0) bulk_wait_read<S::kSlots - 2>();  // frees the slot of the next chunk
    __syncwarp();
    if (own_.lane == 0) {
      tensor_store(p_.out, box, rows_of_warp(slot));
      if constexpr (S::kOutputs > 1)
        tensor_store(p_.kept, box, rows_of_warp(slot + S::kChunkBytes));
      if constexpr (S::kOutputs > 2) {
        tensor_store(p_.kept_up, box, rows_of_warp(slot + 2 * S::kChunkBytes));
      }
      bulk_commit();
    }
  }

  // Results leave from the slot in which their z arrived.
  __device__ __forceinline__ void store_chunk_with_z(const float* sums,
                                                     const float (&bias)[kPairs][2],
                                                     const float (&up_bias)[kPairs][2],
                                                     MatrixOrigin box, int chunk, int tile,
                                                     float (&totals)[2 * kPairs]) const {
    const int at = chunk % S::kSlots;
    const std::uint32_t slot = shared_address(storage_.slots[0][at]);
    const std::uint32_t kept =
        shared_address(storage_.kept[group_ * S::kKeptSlots + chunk % S::kKeptSlots]);
    const int round = tile * S::kRounds + chunk / S::kSlots;
    mbarrier_wait(shared_address(&storage_.z_full[group_][at]), round & 1);
    if constexpr (S::kInputs == 2) {
      slope_of_gate(sums, bias, up_bias, slot, kept);
    } else {
      slope(sums, slot, kept);
    }
    fence_async_shared();
    __syncwarp();
    if constexpr (S::kSumsColumns) {
      if (p_.partial != nullptr) add_rows(slot, box.row, chunk % S::kBands == 0, totals);
    }
    if (own_.lane == 0) {
      tensor_store(p_.out, box, rows_of_warp(slot));
      if constexpr (S::kOutputs == 2) {
        tensor_store(p_.out_up, box, rows_of_warp(slot + S::kChunkBytes));
      }
      if (p_.keeps) tensor_store(p_.kept, box, rows_of_warp(kept));
      bulk_commit();
      free_slots(chunk);
    }
    __syncwarp();  // the next chunk writes where this one's predecessor has been read
  }

  __device__ __forceinline__ void slope(const float* sums, std::uint32_t slot,
                                        std::uint32_t kept) const {
    std::uint32_t z[S::kChunkCols / 16][4];
#pragma unroll
    for (int j = 0; j < S::kChunkCols / 16; ++j) ldmatrix_x4(z[j], cell(slot, j));
#pragma unroll
    for (int j = 0; j < S::kChunkCols / 16; ++j) {
      float v[8];
      float value[8];
      widen(z[j], v);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const auto both = S::Activation::value_and_slope(math::Fast{}, v[e]);
        value[e] = both.value;
        v[e] = sums[8 * j + e] * both.slope;
      }
      std::uint32_t words[4];
      narrow(value, words);
      put(kept, j, words);
      narrow(v, words);
      put(slot, j, words);
    }
  }

  // Adds a chunk's rounded results to the column sums. Rows past the last are skipped: they are 0
  // times columns of b, which may not be finite.
  __device__ __forceinline__ void add_rows(std::uint32_t slot, int row, bool is_first,
                                           float (&totals)[2 * kPairs]) const {
#pragma unroll
    for (int j = 0; j < S::kChunkCols / 16; ++j) {
      std::uint32_t words[4];
      ldmatrix_x4(words, cell(slot, j));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_row = row + own_.lane / 4 + 8 * (i % 2) < p_.rows;
        float two[2];
        widen_word<T>(is_row ? words[i] : 0, two);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& total = totals[4 * j + i / 2 * 2 + e];
          total = is_first && i % 2 == 0 ? two[e] : total + two[e];
        }
      }
    }
    __syncwarp();  // the slot is given back by one lane
  }

  // The eight lanes with the same columns halve them between them until each has the sum of one.
  __device__ __forceinline__ void store_totals(float (&totals)[2 * kPairs], int row,
                                               int col) const {
    static_assert(kPairs == 4);
    if (p_.partial == nullptr) return;
#pragma unroll
    for (int left = 4; left > 0; left /= 2) {
      const int bit = 4 * left;  // of the lane
      const bool is_upper = (own_.lane & bit) != 0;
#pragma unroll
      for (int i = 0; i < left; ++i) {
        const float other = __shfl_xor_sync(~0u, is_upper ? totals[i] : totals[i + left], bit);
        totals[i] = (is_upper ? totals[i + left] : totals[i]) + other;
      }
    }
    const int own_col = col + own_.col(own_.lane / 8) + own_.lane / 4 % 2;
    const std::int64_t own_row = row / S::kRows * kGemmWarps + own_.warp;
    if (own_col < p_.cols) p_.partial[(2 * own_row + 1) * p_.cols + own_col] = totals[0];
  }

  // 16 columns of both at a time.
  __device__ __forceinline__ void slope_of_gate(const float* sums, const float (&bias)[kPairs][2],
                                                const float (&up_bias)[kPairs][2],
                                                std::uint32_t slot, std::uint32_t kept) const {
#pragma unroll
    for (int j = 0; j < S::kChunkCols / 16; ++j) {
      std::uint32_t words[4];
      float gate[8];
      float up[8];
      float product[8];
      ldmatrix_x4(words, cell(slot, j));
      widen(words, gate);
      ldmatrix_x4(words, cell(slot + S::kChunkBytes, j));
      widen(words, up);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float sum = sums[8 * j + e];
        const float z = gate[e] + bias[2 * j + e / 4][e % 2];
        const float factor = up[e] + up_bias[2 * j + e / 4][e % 2];
        const auto both = S::Activation::value_and_slope(math::Fast{}, z);
        product[e] = both.value * factor;
        up[e] = sum * both.value;
        gate[e] = sum * factor * both.slope;
      }
      narrow(product, words);
      put(kept, j, words);
      narrow(gate, words);
      put(slot, j, words);
      narrow(up, words);
      put(slot + S::kChunkBytes, j, words);
    }
  }

  __device__ __forceinline__ void free_slots(int chunk) const {
    const auto free = [&](int i) {
      mbarrier_arrive(shared_address(&storage_.z_empty[i % S::kSlots]));
    };
    bulk_wait_read<1>();
    if (chunk > 0) free(chunk - 1);
    if (chunk == S::kChunks - 1) {
      bulk_wait_read<0>();
      free(chunk);
    }
  }

  // body(row, column, two sums) of each two that stand side by side.
  template <class Body>
  __device__ __forceinline__ void for_each_two(int row, int col, Body&& body) const {
#pragma unroll
    for (int band = 0; band < S::kBands; ++band) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own_row = row + band * 64 + own_.row(half);
        if (own_row >= p_.rows) continue;
#pragma unroll
        for (int i = 0; i < S::kCols / 8; ++i) {
          const int own_col = col + own_.col(i);
          if (own_col < p_.cols) body(own_row, own_col, sums_[band] + own_.sum(half, i));
        }
      }
    }
  }

  __device__ __forceinline__ void store_partial(int row, int col, int part) const {
    float* const matrix = p_.partial + std::int64_t{part} * p_.rows * p_.cols;
    for_each_two(row, col, [&](int own_row, int own_col, const float* sums) {
      float* const to = matrix + std::int64_t{own_row} * p_.cols + own_col;
      *reinterpret_cast<float2*>(to) = {sums[0], sums[1]};
    });
  }

  __device__ __forceinline__ float bias_at(int col) const {
    if (p_.bias == nullptr) return -0.0f;
    return p_.bias_is_wide ? static_cast<const float*>(p_.bias)[col]
                           : cuda::widen(static_cast<const T*>(p_.bias)[col]);
  }
  __device__ __forceinline__ void store_uneven(int row, int col) const {
    for_each_two(row, col, [&](int own_row, int own_col, const float* sums) {
      T* const to = static_cast<T*>(p_.uneven) + own_row * p_.uneven_step + own_col;
      to[0] = cuda::narrow<T>(sums[0] + bias_at(own_col));
      if (own_col + 1 < p_.cols) to[1] = cuda::narrow<T>(sums[1] + bias_at(own_col + 1));
    });
  }

  const GemmParameters& p_;
  GemmStorage<S>& storage_;
  GemmPipeline<S> pipeline_;
  Turn<2, 1> turn_;
  int group_;
  AccumulatorThread own_;
  float sums_[S::kBands][S::kCols / 2];
};

#endif  // sm_90a

template <class S>
__global__ void __launch_bounds__(kGemmThreads, 1)
    gemm_kernel(const __grid_constant__ GemmParameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& storage = *reinterpret_cast<GemmStorage<S>*>(memory);
  const GemmPipeline<S> pipeline(storage.stages, storage.barriers);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    pipeline.init(kGemmWarps);
    if constexpr (S::kReadsZ) {
      for (int i = 0; i < S::kSlots; ++i) {
        mbarrier_init(shared_address(&storage.z_full[0][i]), 1);
        mbarrier_init(shared_address(&storage.z_full[1][i]), 1);
        mbarrier_init(shared_address(&storage.z_empty[i]), kGemmWarps);
      }
    }
    fence_mbarrier_init();
    prefetch_tensor_map(p.a);
    prefetch_tensor_map(p.b);
  }
  __syncthreads();
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (group == 0) {
    give_registers<24>();
    if (threadIdx.x == 0) load_operands<S>(p, pipeline);
    if constexpr (S::kReadsZ) {
      if (threadIdx.x == 32) load_z<S>(p, storage);
    }
  } else {
    take_registers<240>();
    GemmConsumer<S>(p, storage, pipeline, group - 1).run();
  }
#endif
}

}  // namespace transformer_kernels::cuda
