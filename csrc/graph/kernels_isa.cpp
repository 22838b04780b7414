// SPDX-License-Identifier: MIT
// Sums and products along edges. Compiled once per instruction set; see core/cpu/isa.h.
//
// Rows across the edges lie anywhere in memory, so no hardware prefetcher finds the next one: the
// rows of a few edges ahead are prefetched. Columns are processed in blocks that stay in registers
// while all edges of a segment go by.
#include "graph/kernels_isa.h"

#include "core/cpu/cache.h"
#include "core/cpu/partition.h"
#include "core/cpu/row_loop.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

constexpr std::int64_t kAhead = 8;  // edges

std::int64_t across(const Segments& segments, std::int64_t place) {
  return segments.indices.present ? segments.indices[place] : segments.number(place);
}

template <class T>
const T* row_across(const Rows& rows, const Segments& segments, std::int64_t place) {
  return row_of<const T>(rows, across(segments, place));
}

template <class T, class A = accumulate_t<T>>
A widened(const void* data, std::int64_t i) {
  return reduce_add(load(static_cast<const T*>(data) + i, First{1}));
}

// Calls body(first column, head, vectors, lanes) for blocks of kUnroll whole vectors of each head,
// then single ones and its rest.
template <class T, class Body>
TFK_INLINE void for_each_block_of_heads(std::int64_t cols, std::int64_t heads, Body&& body) {
  constexpr int kLanes = vec_t<T>::kLanes;
  constexpr int kVectors = kUnroll<T>;
  const std::int64_t head_cols = cols / heads;
  for (std::int64_t head = 0; head < heads; ++head) {
    std::int64_t i = head * head_cols;
    const std::int64_t end = i + head_cols;
    for (; i + kVectors * kLanes <= end; i += kVectors * kLanes) {
      body.template operator()<kVectors>(i, head, All{});
    }
    for (; i + kLanes <= end; i += kLanes) body.template operator()<1>(i, head, All{});
    if (i < end) body.template operator()<1>(i, head, First{end - i});
  }
}

// `value` where the elements have chosen edge `number`, else 0.
template <class T, class Lanes>
TFK_INLINE vec_t<T> where_chosen(const GraphIndices& chosen, std::int64_t first,
                                 std::int64_t number, vec_t<T> value, Lanes lanes) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  A picks[V::kLanes];
  std::int64_t count = V::kLanes;
  if constexpr (__is_same(Lanes, First)) count = lanes.count;
  for (std::int64_t i = 0; i < count; ++i) picks[i] = chosen[first + i] == number ? 1 : 0;
  return select(equal(load_as<T>(picks, lanes), V::of(1)), value, V::of(0));
}

// ---------------------------------------------------------------------------- sums

// The factor of an edge's message in one head.
template <class T>
accumulate_t<T> factor_of(const ReduceProblem& p, std::int64_t place, std::int64_t head) {
  using A = accumulate_t<T>;
  A factor = 1;
  if (p.weight != nullptr) {
    factor = widened<T>(p.weight, p.segments.number(place) * p.heads + head);
  }
  if (p.degrees.present) {
    const std::int64_t row = across(p.segments, place);
    factor /= static_cast<A>(p.degrees[row + 1] - p.degrees[row]);
  }
  return factor;
}

// Sums columns over places [begin, end), and gives them to finish(column, sum, lanes).
template <class T, class Finish>
TFK_FLATTEN void sum_places(const ReduceProblem& p, std::int64_t begin, std::int64_t end,
                            Finish finish) {
  using V = vec_t<T>;
  for_each_block_of_heads<T>(
      p.cols, p.heads, [&]<int kVectors>(std::int64_t col, std::int64_t head, auto lanes) {
        V sums[kVectors];
        for (V& sum : sums) sum = V::of(0);
        for (std::int64_t place = begin; place < end; ++place) {
          if (place + kAhead < p.segments.edges) {
            const T* const next = row_across<T>(p.x, p.segments, place + kAhead) + col;
            PrefetchRow<T>{next}(0, kVectors * V::kLanes);
          }
          const T* const row = row_across<T>(p.x, p.segments, place) + col;
          const V factor = V::of(factor_of<T>(p, place, head));
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            V term = load(row + v * V::kLanes, lanes);
            if (p.chosen.present) {
              const std::int64_t first = across(p.segments, place) * p.cols + col + v * V::kLanes;
              term = where_chosen<T>(p.chosen, first, p.segments.number(place), term, lanes);
            }
            sums[v] = fma(term, factor, sums[v]);
          }
        }
        for (int v = 0; v < kVectors; ++v) finish(col + v * V::kLanes, sums[v], lanes);
      });
}

template <class T>
accumulate_t<T>* sums_of(const ReduceTask& task, std::int64_t piece) {
  return static_cast<accumulate_t<T>*>(task.sums) + piece * task.wide_cols;
}

template <class T>
void sum_pieces(const ReduceTask& task, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const EdgePiece& piece = task.pieces[i];
    const std::int64_t last = task.problem.segments.offsets[piece.segment + 1];
    const std::int64_t most = piece.begin + kPieceEdges;
    accumulate_t<T>* const sums = sums_of<T>(task, i);
    sum_places<T>(task.problem, piece.begin, last < most ? last : most,
                  [&](std::int64_t col, auto sum, auto lanes) { store(sums + col, sum, lanes); });
  }
}

// The first piece of a segment that has some.
std::int64_t first_piece(const ReduceTask& task, std::int64_t segment) {
  return first_not(task.piece_count,
                   [&](std::int64_t i) { return task.pieces[i].segment < segment; });
}

// The sum of `count` pieces from the first of them on, in order.
template <class T, class Finish>
TFK_FLATTEN void add_pieces(const ReduceTask& task, std::int64_t first, std::int64_t count,
                            Finish finish) {
  for_each_vector<T>(task.problem.cols, [&](std::int64_t col, int, auto lanes) {
    auto sum = vec_t<T>::of(0);
    for (std::int64_t i = 0; i < count; ++i) {
      sum = sum + load_as<T>(sums_of<T>(task, first + i) + col, lanes);
    }
    finish(col, sum, lanes);
  });
}

template <class T>
void sum(const ReduceTask& task, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const ReduceProblem& p = task.problem;
  for (std::int64_t segment = begin; segment < end; ++segment) {
    T* const to = row_of<T>(p.y, segment);
    const std::int64_t first = p.segments.offsets[segment];
    const std::int64_t last = p.segments.offsets[segment + 1];
    const A scale = p.mean && last > first ? A{1} / static_cast<A>(last - first) : A{1};
    const auto finish = [&](std::int64_t col, auto total, auto lanes) {
      store(to + col, total * vec_t<T>::of(scale), lanes);
    };
    if (last - first <= kPieceEdges) {
      sum_places<T>(p, first, last, finish);
    } else {
      const std::int64_t count = (last - first + kPieceEdges - 1) / kPieceEdges;
      add_pieces<T>(task, first_piece(task, segment), count, finish);
    }
  }
}

// ---------------------------------------------------------------------------- the largest

constexpr int kLargestCols = 64;

// One block of columns of one segment, with elements in order: the first of equal ones is chosen,
// and the first NaN.
template <class A>
struct Largest {
  A value[kLargestCols];
  std::int64_t place[kLargestCols];

  void observe(const A* candidates, std::int64_t candidate, int count) {
    for (int i = 0; i < count; ++i) {
      const bool take = !(candidates[i] <= value[i]) && value[i] == value[i];
      value[i] = take ? candidates[i] : value[i];
      place[i] = take ? candidate : place[i];
    }
  }
};

// Messages of one place in order.
template <class T>
void load_block(const ReduceProblem& p, std::int64_t place, std::int64_t head, std::int64_t col,
                int count, accumulate_t<T>* to) {
  const T* const row = row_across<T>(p.x, p.segments, place) + col;
  const auto factor = vec_t<T>::of(factor_of<T>(p, place, head));
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    store(to + i, load(row + i, lanes) * factor, lanes);
  });
}

template <class T>
void store_largest(const ReduceProblem& p, std::int64_t segment, std::int64_t col, int count,
                   const Largest<accumulate_t<T>>& found) {
  T* const to = row_of<T>(p.y, segment) + col;
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    store(to + i, load_as<T>(found.value + i, lanes), lanes);
  });
  for (int i = 0; i < count; ++i) {
    const std::int64_t place = found.place[i];
    const std::int64_t number = place < 0 ? -1 : p.segments.number(place);
    const std::int64_t element = segment * p.cols + col + i;
    if (p.new_chosen_wide) {
      static_cast<std::int64_t*>(p.new_chosen)[element] = number;
    } else {
      static_cast<std::int32_t*>(p.new_chosen)[element] = static_cast<std::int32_t>(number);
    }
  }
}

template <class T>
TFK_FLATTEN void largest(const ReduceTask& task, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const ReduceProblem& p = task.problem;
  const std::int64_t head_cols = p.cols / p.heads;
  for (std::int64_t segment = begin; segment < end; ++segment) {
    const std::int64_t first = p.segments.offsets[segment];
    const std::int64_t last = p.segments.offsets[segment + 1];
    std::int64_t count = 0;
    for (std::int64_t col = 0; col < p.cols; col += count) {
      const std::int64_t head = col / head_cols;
      const std::int64_t left = (head + 1) * head_cols - col;
      count = left < kLargestCols ? left : kLargestCols;
      const int block = static_cast<int>(count);
      Largest<A> found;
      for (int i = 0; i < block; ++i) {
        found.value[i] = 0;
        found.place[i] = first < last ? first : -1;
      }
      if (first < last) load_block<T>(p, first, head, col, block, found.value);
      A candidates[kLargestCols];
      for (std::int64_t place = first + 1; place < last; ++place) {
        load_block<T>(p, place, head, col, block, candidates);
        found.observe(candidates, place, block);
      }
      store_largest<T>(p, segment, col, block, found);
    }
  }
}

// ---------------------------------------------------------------------------- edges

// Calls body(place, segment, 1 or, of a mean, 1 / number of its edges).
template <class A, class Body>
TFK_INLINE void for_each_edge(const EdgeProblem& p, std::int64_t segment, std::int64_t begin,
                              std::int64_t end, Body&& body) {
  const GraphIndices& offsets = p.segments.offsets;
  for (std::int64_t place = begin; place < end; ++place) {
    while (offsets[segment + 1] <= place) ++segment;
    const A scale = p.mean ? A{1} / static_cast<A>(offsets[segment + 1] - offsets[segment]) : A{1};
    body(place, segment, scale);
  }
}

template <class T>
TFK_FLATTEN void products(const EdgeProblem& p, std::int64_t first, std::int64_t begin,
                          std::int64_t end) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  const std::int64_t head_cols = p.cols / p.heads;
  for_each_edge<A>(p, first, begin, end, [&](std::int64_t place, std::int64_t segment, A scale) {
    if (place + kAhead < end) {
      PrefetchRow<T>{row_across<T>(p.b, p.segments, place + kAhead)}(0, p.cols);
    }
    const std::int64_t number = p.segments.number(place);
    T* const to = row_of<T>(p.y, number);
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const std::int64_t col = head * head_cols;
      const T* const a = row_of<const T>(p.a, segment) + col;
      const T* const b = row_across<T>(p.b, p.segments, place) + col;
      auto sums = Slots<T>::of(0);
      for_each_vector<T>(head_cols, [&](std::int64_t i, int slot, auto lanes) {
        V left = load(a + i, lanes);
        V right = load(b + i, lanes);
        if (p.chosen.present) {
          const std::int64_t element = segment * p.cols + col + i;
          left = where_chosen<T>(p.chosen, element, number, left, lanes);
          right = where_chosen<T>(p.chosen, element, number, right, lanes);
        }
        sums[slot] = fma(left, right, sums[slot]);
      });
      store(to + head, V::of(sums.sum() * scale), First{1});
    }
  });
}

template <class T>
TFK_FLATTEN void spread(const EdgeProblem& p, std::int64_t first, std::int64_t begin,
                        std::int64_t end) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  const std::int64_t head_cols = p.cols / p.heads;
  const bool stream = p.heads == 1 && can_stream<T>(p.y.data, p.y.stride) &&
                      exceeds_cache(p.segments.edges * p.cols * sizeof(T));
  for_each_edge<A>(p, first, begin, end, [&](std::int64_t place, std::int64_t segment, A scale) {
    const std::int64_t number = p.segments.number(place);
    T* const to = row_of<T>(p.y, number);
    const T* const a = row_of<const T>(p.a, segment);
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const A weight = p.weight == nullptr ? A{1} : widened<T>(p.weight, number * p.heads + head);
      const V factor = V::of(scale * weight);
      const std::int64_t col = head * head_cols;
      for_each_vector<T>(head_cols, [&](std::int64_t i, int, auto lanes) {
        V value = load(a + col + i, lanes) * factor;
        if (p.chosen.present) {
          value = where_chosen<T>(p.chosen, segment * p.cols + col + i, number, value, lanes);
        }
        put(to + col + i, value, lanes, stream);
      });
    }
  });
  stream_fence();
}

}  // namespace

const GraphKernels graph_kernels = {
    {sum_pieces<double>, sum_pieces<float>, sum_pieces<Half>, sum_pieces<BFloat16>},
    {sum<double>, sum<float>, sum<Half>, sum<BFloat16>},
    {largest<double>, largest<float>, largest<Half>, largest<BFloat16>},
    {products<double>, products<float>, products<Half>, products<BFloat16>},
    {spread<double>, spread<float>, spread<Half>, spread<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
