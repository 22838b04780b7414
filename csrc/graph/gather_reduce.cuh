// SPDX-License-Identifier: MIT
// Sums and maxima over the edges of each segment. Neighbouring threads share a row of the result, a
// pack each, and go through the edges in order, with the loads of several edges under way together.
//
// Long segments are left to two more kernels: in one, the threads of a row reduce a piece of a
// segment instead of a segment; the other merges the pieces. Slots for pieces are given out in the
// order in which threads ask for them; what a piece holds depends on the edges alone.
#pragma once

#include "graph/place.cuh"
#include "pointwise/pack.cuh"

namespace transformer_kernels::cuda {

struct LongSegment {
  std::int64_t segment;
  std::int64_t first_piece;
};
struct Piece {
  std::int64_t begin;
  std::int64_t end;
};

// The list of long segments, which the first kernel fills.
template <class A>
struct LongSegments {
  unsigned long long* counts;  // of segments, of pieces
  LongSegment* segment;
  Piece* piece;
  A* value;             // [pieces][pitch]
  std::int64_t* place;  // the same, of the largest
  std::int64_t pitch;
};

template <class A>
struct ReduceLaunch {
  ReduceProblem problem;
  RowLanes row;
  LongSegments<A> longs;
  int segments = 1;  // of the threads of a row
};

// ---------------------------------------------------------------------------- merging

// Sums, or the largest with its place; -1 before the first.
template <class A, bool kLargest, class Place = std::int64_t>
struct Merged {
  A value = 0;

  __device__ __forceinline__ void observe(A candidate, Place) { value += candidate; }
  __device__ __forceinline__ void merge(const Merged& other) { value += other.value; }
};

// The first of equal ones, and of NaN.
template <class A, class Place>
struct Merged<A, true, Place> {
  A value = 0;
  Place at = -1;

  __device__ __forceinline__ void observe(A candidate, Place place) {
    const bool take = at < 0 || (!(candidate <= value) && value == value);
    value = take ? candidate : value;
    at = take ? place : at;
  }
  // Merges in any order.
  __device__ __forceinline__ void merge(const Merged& other) {
    if (other.at < 0) return;
    const bool same = value == other.value || (value != value && other.value != other.value);
    if (same && at >= 0) {
      at = min(at, other.at);
    } else {
      observe(other.value, other.at);
    }
  }
};

// ---------------------------------------------------------------------------- messages

// The columns of a pack.
template <class T, int kSize, bool kLargest>
struct Messages {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  static constexpr int kEdges = kLargest ? 4 : 8;  // whose loads are under way together

  const ReduceProblem& p;
  std::int64_t col;
  std::int64_t head;
  Merged<A, kLargest, int> result[kSize];  // places are counted from the first observed

  __device__ __forceinline__ Messages(const ReduceProblem& problem, std::int64_t column)
      : p(problem),
        col(column),
        head(column / (problem.cols / problem.heads)) {}

  // Places [begin, end), fewer than 2^31. Each use looks the edge's index up again, which takes
  // fewer registers than to keep it while rows are loading.
  __device__ __forceinline__ void observe(std::int64_t begin, std::int64_t end) {
    const bool has_factors = p.weight != nullptr || p.degrees.present;
    for (std::int64_t first = begin; first < end; first += kEdges) {
      std::int64_t row[kEdges];
#pragma unroll
      for (int k = 0; k < kEdges; ++k) row[k] = first + k < end ? row_across(first + k) : -1;
      unsigned present = 0;
      typename P::Raw raw[kEdges];
#pragma unroll
      for (int k = 0; k < kEdges; ++k) {
        raw[k] = {};
        if (row[k] < 0) continue;
        present |= 1u << k;
        raw[k] = load_pack<T, kSize>(row_of<const T>(p.x, row[k]) + col, kSize);
      }
      A factor[kEdges];
#pragma unroll
      for (int k = 0; k < kEdges; ++k) {
        factor[k] = 1;
        if (has_factors && (present >> k & 1) != 0) factor[k] = factor_of(first + k);
      }
#pragma unroll
      for (int k = 0; k < kEdges; ++k) {
        if ((present >> k & 1) != 0) {
          add(raw[k], factor[k], first + k, static_cast<int>(first - begin) + k);
        }
      }
    }
  }

  __device__ __forceinline__ std::int64_t row_across(std::int64_t place) const {
    const std::int64_t number = number_at(p.segments, place);
    return number < 0 ? -1 : across_at(p.segments, place, number);
  }

  __device__ __forceinline__ A factor_of(std::int64_t place) const {
    A factor = 1;
    if (p.weight != nullptr) {
      const std::int64_t number = number_at(p.segments, place);
      factor = widen(static_cast<const T*>(p.weight)[number * p.heads + head]);
    }
    if (p.degrees.present) {
      const std::int64_t row = row_across(place);
      factor /= static_cast<A>(p.degrees[row + 1] - p.degrees[row]);
    }
    return factor;
  }

  __device__ __forceinline__ void add(typename P::Raw raw, A factor, std::int64_t place,
                                      int since_first) {
    A term[kSize];
    P::unpack(raw, term);
    if (p.chosen.present) leave_out_others(term, place);
#pragma unroll
    for (int e = 0; e < kSize; ++e) result[e].observe(term[e] * factor, since_first);
  }

  // Elements that have chosen another edge.
  __device__ __forceinline__ void leave_out_others(A (&term)[kSize], std::int64_t place) const {
    const std::int64_t number = number_at(p.segments, place);
    const std::int64_t at = across_at(p.segments, place, number) * p.cols + col;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      if (p.chosen[at + e] != number) term[e] = 0;
    }
  }
};

// ---------------------------------------------------------------------------- kernels

// The pieces of a long segment, by the threads of its first chunk.
template <class A>
__device__ __forceinline__ void cut_into_pieces(const ReduceLaunch<A>& s, std::int64_t segment,
                                                const Span& span) {
  const int lane = threadIdx.x & (s.row.count() - 1);
  const std::int64_t count = (span.count() + kPiece - 1) / kPiece;
  unsigned long long first = 0;
  if (lane == 0) {
    first = atomicAdd(s.longs.counts + 1, static_cast<unsigned long long>(count));
    const unsigned long long at = atomicAdd(s.longs.counts, 1ull);
    s.longs.segment[at] = {segment, static_cast<std::int64_t>(first)};
  }
  first = __shfl_sync(lanes_of_team(s.row.bits), first, 0, s.row.count());
  for (std::int64_t i = lane; i < count; i += s.row.count()) {
    const std::int64_t begin = span.begin + i * kPiece;
    s.longs.piece[first + i] = {begin, min(begin + kPiece, span.end)};
  }
}

__device__ __forceinline__ void write_chosen(const ReduceProblem& p, std::int64_t segment,
                                             std::int64_t col, std::int64_t place) {
  const std::int64_t number = place < 0 ? -1 : number_at(p.segments, place);
  const std::int64_t at = segment * p.cols + col;
  if (p.new_chosen_wide) {
    static_cast<std::int64_t*>(p.new_chosen)[at] = number;
  } else {
    static_cast<std::int32_t*>(p.new_chosen)[at] = static_cast<std::int32_t>(number);
  }
}

__device__ __forceinline__ std::int64_t place_of(std::int64_t first, int since_first) {
  return since_first < 0 ? -1 : first + since_first;
}

template <class T, int kSize, bool kLargest>
__device__ __forceinline__ void write_result(const ReduceProblem& p, std::int64_t segment,
                                             const Span& span,
                                             const Messages<T, kSize, kLargest>& messages) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  const A scale = p.mean && span.count() > 0 ? A{1} / static_cast<A>(span.count()) : A{1};
  A value[kSize];
#pragma unroll
  for (int e = 0; e < kSize; ++e) value[e] = messages.result[e].value * scale;
  P::store(row_of<T>(p.y, segment) + messages.col, P::pack(value));
  if constexpr (kLargest) {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      write_chosen(p, segment, messages.col + e, place_of(span.begin, messages.result[e].at));
    }
  }
}

// Neighbouring threads own a chunk of one segment's row.
template <class T, int kSize, bool kLargest>
__global__ void __launch_bounds__(kGraphThreads, kGraphCtas)
    reduce_segments_kernel(const __grid_constant__ ReduceLaunch<accumulate_t<T>> s) {
  follow_previous_kernel();
  const ReduceProblem& p = s.problem;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kGraphThreads + threadIdx.x;
  const std::int64_t unit = thread >> s.row.bits;
  const std::int64_t segment = s.row.chunks == 1 ? unit : unit / s.row.chunks;
  if (segment >= p.segments.count) return;
  const std::int64_t chunk = unit - segment * s.row.chunks;
  const Span span(p.segments, segment);
  if (span.count() > kLongSegment) {
    if (chunk == 0) cut_into_pieces(s, segment, span);
    return;
  }
  const std::int64_t pack = (chunk << s.row.bits) + (thread & (s.row.count() - 1));
  if (pack * kSize >= p.cols) return;
  Messages<T, kSize, kLargest> messages(p, pack * kSize);
  messages.observe(span.begin, span.end);
  write_result(p, segment, span, messages);
}

// Reduces pieces of long segments; the grid strides over all pieces.
template <class T, int kSize, bool kLargest>
__global__ void __launch_bounds__(kGraphThreads, kGraphCtas)
    reduce_pieces_kernel(const __grid_constant__ ReduceLaunch<accumulate_t<T>> s) {
  follow_previous_kernel();
  const ReduceProblem& p = s.problem;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kGraphThreads + threadIdx.x;
  const std::int64_t units = static_cast<std::int64_t>(s.longs.counts[1]) * s.row.chunks;
  const std::int64_t step = std::int64_t{gridDim.x} * kGraphThreads >> s.row.bits;
  for (std::int64_t unit = thread >> s.row.bits; unit < units; unit += step) {
    const std::int64_t piece = unit / s.row.chunks;
    const std::int64_t chunk = unit - piece * s.row.chunks;
    const std::int64_t pack = (chunk << s.row.bits) + (thread & (s.row.count() - 1));
    if (pack * kSize >= p.cols) continue;
    Messages<T, kSize, kLargest> messages(p, pack * kSize);
    const Piece own = s.longs.piece[piece];
    messages.observe(own.begin, own.end);
    const std::int64_t at = piece * s.longs.pitch + messages.col;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      s.longs.value[at + e] = messages.result[e].value;
      if constexpr (kLargest) s.longs.place[at + e] = place_of(own.begin, messages.result[e].at);
    }
  }
}

// A CTA owns a block of columns of a long segment: strips of its pieces, and then those in order.
template <class T, bool kLargest>
__global__ void __launch_bounds__(kGraphThreads, kGraphCtas)
    merge_pieces_kernel(const __grid_constant__ ReduceLaunch<accumulate_t<T>> s) {
  using A = accumulate_t<T>;
  __shared__ Merged<A, kLargest> strips[kMergeStrips][kMergeCols];
  follow_previous_kernel();
  const ReduceProblem& p = s.problem;
  const int strip = threadIdx.x / kMergeCols;
  const int lane = threadIdx.x % kMergeCols;
  const std::int64_t blocks = (p.cols + kMergeCols - 1) / kMergeCols;
  const std::int64_t units = static_cast<std::int64_t>(s.longs.counts[0]) * blocks;
  for (std::int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const LongSegment own = s.longs.segment[unit / blocks];
    const std::int64_t col = unit % blocks * kMergeCols + lane;
    const Span span(p.segments, own.segment);
    const std::int64_t count = (span.count() + kPiece - 1) / kPiece;
    Merged<A, kLargest> merged;
    if (col < p.cols) {
#pragma unroll 4
      for (std::int64_t i = strip; i < count; i += kMergeStrips) {
        const std::int64_t at = (own.first_piece + i) * s.longs.pitch + col;
        Merged<A, kLargest> piece;
        piece.observe(s.longs.value[at], kLargest ? s.longs.place[at] : 0);
        merged.merge(piece);
      }
    }
    __syncthreads();
    strips[strip][lane] = merged;
    __syncthreads();
    if (strip != 0 || col >= p.cols) continue;
#pragma unroll
    for (int i = 1; i < kMergeStrips; ++i) merged.merge(strips[i][lane]);
    if (p.mean) merged.value /= static_cast<A>(span.count());
    row_of<T>(p.y, own.segment)[col] = narrow<T>(merged.value);
    if constexpr (kLargest) write_chosen(p, own.segment, col, merged.at);
  }
}

}  // namespace transformer_kernels::cuda
