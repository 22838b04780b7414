// SPDX-License-Identifier: MIT
// The steps from products of q and k to the exponents, and dropout after the exponential, for a
// warp's whole block. Each feature is a separate pass over the registers: a feature that a problem
// lacks costs a branch a tile, and those in use need neither branches nor long addresses for each
// score.
#pragma once

#include "attention/common/scores.cuh"
#include "attention/sm80/tile.cuh"

namespace transformer_kernels::cuda {

// Two neighbours of a map.
template <class V>
struct alignas(2 * sizeof(V)) MapPair {
  V at[2];
};

// Where a warp's block of scores stands. Places that do not exist, past the ends of a sequence, are
// hidden later on; until then they take numbers of the last one that does.
template <class T, bool kOwnQueries>
struct ScoreBlock {
  const AttentionProblem& p;
  const HeadScores<T>& head_scores;
  int batch;
  int head;
  int row;  // of this lane's first score; rows are queries where kOwnQueries, else keys
  int col;
  int rows;  // of the sequence
  int cols;

  // Products become scores. note(slot, col, slope) hears of each derivative that is not 1.
  template <int kRows, int kCols, class Note>
  __device__ __forceinline__ void finish(Fragment<kRows, kCols>& scores, Note&& note) const {
    const float scale = head_scores.scale();
    if (p.softcap == 0) {
      scores.for_each([&](float& x, int, int) { x = rounded_product(x, scale); });
    } else {
      scores.for_each([&](float& x, int slot, int c) {
        const Score<float> capped = head_scores.capped(x * scale);
        x = capped.value;
        note(slot, c, capped.slope);
      });
    }
    if (p.slopes.data != nullptr) subtract_distances(scores);
    if (p.bias.defined()) add_map(scores, p.bias);
    if (p.mask.defined()) {
      visit<std::uint8_t>(scores, p.mask, [](float& x, std::uint8_t visible) {
        if (visible == 0) x = -INFINITY;
      });
    }
  }

  // Adds a map of T or float32.
  template <int kRows, int kCols>
  __device__ __forceinline__ void add_map(Fragment<kRows, kCols>& scores,
                                          const ScoreMap& map) const {
    const auto add = [](float& x, auto bias) { x += widen(bias); };
    if (std::is_same_v<T, float> || map.dtype == DType::kFloat32) {
      visit<float>(scores, map, add);
    } else {
      visit<T>(scores, map, add);
    }
  }

 private:
  // Whether the lane's pairs of neighbours in a row lie in a map as MapPairs, and all exist.
  template <class V, int kCols>
  __device__ __forceinline__ bool in_pairs(const ScoreMap& map, const V* first) const {
    return col - Lane().col() + kCols <= cols && map.col_stride == 1 && map.row_stride % 2 == 0 &&
           reinterpret_cast<std::uintptr_t>(first) % sizeof(MapPair<V>) == 0;
  }

  // ALiBi.
  template <int kRows, int kCols>
  __device__ __forceinline__ void subtract_distances(Fragment<kRows, kCols>& scores) const {
    const float alibi = head_scores.alibi();
    const int place = kOwnQueries ? head_scores.place(row, col) : -head_scores.place(col, row);
    const float first = static_cast<float>(place);
    scores.for_each([&](float& x, int slot, int c) {
      x = fmaf(-alibi, fabsf(first + static_cast<float>(c - 8 * slot)), x);
    });
  }

  // body(score, its number in the map), numbers being Vs.
  template <class V, int kRows, int kCols, class Body>
  __device__ __forceinline__ void visit(Fragment<kRows, kCols>& scores, const ScoreMap& map,
                                        Body&& body) const {
    const V* const base = static_cast<const V*>(map.data) + map.offset(batch, head, 0, 0);
    if constexpr (kOwnQueries) {
      if (in_pairs<V, kCols>(map, base)) {
        visit_pairs(scores, base + col, map.row_stride, body);
      } else {
        visit_each(scores, base, map.row_stride, map.col_stride, body);
      }
    } else {
      visit_each(scores, base, map.col_stride, map.row_stride, body);
    }
  }

  template <class V, int kRows, int kCols, class Body>
  __device__ __forceinline__ void visit_pairs(Fragment<kRows, kCols>& scores, const V* first,
                                              std::int64_t row_stride, Body& body) const {
#pragma unroll
    for (int slot = 0; slot < kRows / 8; ++slot) {
      const V* const at = first + min(row + slot * 8, rows - 1) * row_stride;
#pragma unroll
      for (int c = 0; c < kCols; c += 8) {
        const MapPair<V> pair = *reinterpret_cast<const MapPair<V>*>(at + c);
        body(scores(slot, c), pair.at[0]);
        body(scores(slot, c + 1), pair.at[1]);
      }
    }
  }

  template <class V, int kRows, int kCols, class Body>
  __device__ __forceinline__ void visit_each(Fragment<kRows, kCols>& scores, const V* base,
                                             std::int64_t row_stride, std::int64_t col_stride,
                                             Body& body) const {
    const V* at_row[kRows / 8];
#pragma unroll
    for (int slot = 0; slot < kRows / 8; ++slot) {
      at_row[slot] = base + min(row + slot * 8, rows - 1) * row_stride;
    }
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      const int c = i / 2 * 8 + i % 2;
      const std::int64_t along = min(col + c, cols - 1) * col_stride;
#pragma unroll
      for (int slot = 0; slot < kRows / 8; ++slot) body(scores(slot, c), at_row[slot][along]);
    }
  }
};

// The scores of a warp that dropout keeps: a bit for each, 8 keys of a query a byte, in shared
// memory of the warp, drawn once for all lanes. kOwnQueries: rows are queries, else keys.
template <int kRows, int kCols, bool kOwnQueries>
struct KeptScores {
  static constexpr int kQueries = kOwnQueries ? kRows : kCols;
  static constexpr int kOctets = (kOwnQueries ? kCols : kRows) / 8;
  static constexpr int kBytes = kQueries * kOctets;
  static_assert(kOctets % 2 == 0 && kBytes % kWarp == 0);

  std::uint16_t* words;  // two octets each

  // Draws from the warp's first query, which is row `row` of lse, and its first key on.
  __device__ void draw(const Dropout<float>& dropout, std::int64_t row, int key) const {
    std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(words);
    const int lane = Lane().lane;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBytes; i += kWarp) {
      const int octet = i + lane;
      bytes[octet] =
          dropout.kept_of(dropout.bits(row + octet / kOctets, key + octet % kOctets * 8));
    }
    __syncwarp();
  }

  // Whether dropout keeps the element in the lane's row slot and column.
  __device__ __forceinline__ bool operator()(int slot, int col) const {
    const Lane lane;
    const int query = kOwnQueries ? lane.row(slot) : lane.col() + col;
    const int octet = kOwnQueries ? col / 8 : slot;
    const int own_bit = kOwnQueries ? lane.col() : lane.lane / 4;
    const int bit = octet % 2 * 8 + (kOwnQueries ? col % 2 : 0);
    return words[query * (kOctets / 2) + octet / 2] >> own_bit >> bit & 1;
  }
};

}  // namespace transformer_kernels::cuda
