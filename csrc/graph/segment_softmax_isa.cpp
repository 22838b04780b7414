// SPDX-License-Identifier: MIT
// Softmax of segments. Compiled once per instruction set; see core/cpu/isa.h.
//
// A segment is copied into rows of a power of two of columns, so that each lane of every vector
// always has the same column. The passes over the copy need no row structure, and one column fills
// the vectors as well as eight do.
#include "core/cpu/row_loop.h"
#include "graph/kernels_isa.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// Numbers of a segment, `width` a place.
template <class A>
struct Block {
  using V = Vec<A>;
  A* numbers;
  std::int64_t count;
  int width;

  template <class Body>
  TFK_INLINE void for_each(Body&& body) const {
    for_each_vector<A>(count, body);
  }
};

// Each column's reduction of the lanes that are of it, in every one of them.
template <class A, class Merge>
TFK_INLINE Vec<A> reduce_columns(Vec<A> lanes, int width, Merge merge) {
  constexpr int kLanes = Vec<A>::kLanes;
  A in_order[kLanes];
  store(in_order, lanes, All{});
  for (int i = width; i < kLanes; ++i) {
    in_order[i % width] = merge(in_order[i % width], in_order[i]);
  }
  for (int i = width; i < kLanes; ++i) in_order[i] = in_order[i % width];
  return load(in_order, All{});
}

template <class A>
TFK_INLINE Vec<A> sum_columns(Slots<A>& slots, int width) {
  Vec<A> total = slots[0];
  for (int i = 1; i < kUnroll<A>; ++i) total = total + slots[i];
  return reduce_columns<A>(total, width, [](A a, A b) { return a + b; });
}

// exp(z - m) / sum; NaN is passed over in the maximum m.
template <class A>
TFK_FLATTEN void softmax(const Block<A>& block) {
  using V = Vec<A>;
  A* const z = block.numbers;
  const V lowest = V::of(-__builtin_inff());
  auto tops = Slots<A>::of(-__builtin_inff());
  block.for_each([&](std::int64_t i, int slot, auto lanes) {
    tops[slot] = max(keep<A>(load(z + i, lanes), lanes, lowest), tops[slot]);
  });
  V top = tops[0];
  for (int i = 1; i < kUnroll<A>; ++i) top = max(top, tops[i]);
  top = reduce_columns<A>(top, block.width, [](A a, A b) { return a > b ? a : b; });
  auto sums = Slots<A>::of(0);
  block.for_each([&](std::int64_t i, int slot, auto lanes) {
    const V power = exp(load(z + i, lanes) - top);
    store(z + i, power, lanes);
    sums[slot] = sums[slot] + keep<A>(power, lanes, V::of(0));
  });
  const V scale = V::of(1) / sum_columns<A>(sums, block.width);
  block.for_each(
      [&](std::int64_t i, int, auto lanes) { store(z + i, load(z + i, lanes) * scale, lanes); });
}

// z = y (g - sum of y g), z the gradient g at first.
template <class A>
TFK_FLATTEN void softmax_gradient(const Block<A>& block, const A* y) {
  using V = Vec<A>;
  A* const z = block.numbers;
  auto sums = Slots<A>::of(0);
  block.for_each([&](std::int64_t i, int slot, auto lanes) {
    sums[slot] = fma(load(y + i, lanes), load(z + i, lanes), sums[slot]);
  });
  const V sum = sum_columns<A>(sums, block.width);
  block.for_each([&](std::int64_t i, int, auto lanes) {
    store(z + i, load(y + i, lanes) * (load(z + i, lanes) - sum), lanes);
  });
}

// The columns [col, col + cols) of places [begin, end).
struct Part {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t col;
  int cols;
  int width;

  // Rows that lie one after the other as they are in a block.
  bool is_flat(const Segments& segments, const Rows& rows) const {
    return !segments.order.present && rows.stride == cols && cols == width && col == 0;
  }
};

// Calls body(row of the tensor, numbers of the block, count).
template <class T, class A, class Body>
TFK_INLINE void for_each_row(const Segments& segments, const Rows& rows, const Part& part,
                             A* numbers, Body&& body) {
  if (part.is_flat(segments, rows)) {
    const std::int64_t count = (part.end - part.begin) * part.cols;
    return body(row_of<T>(rows, part.begin), numbers, count);
  }
  for (std::int64_t place = part.begin; place < part.end; ++place, numbers += part.width) {
    body(row_of<T>(rows, segments.number(place)) + part.col, numbers,
         static_cast<std::int64_t>(part.cols));
  }
}

// Lanes beyond the columns are zeros: nothing else may be in them than what a softmax can read.
template <class T, class A>
TFK_FLATTEN void read_part(const Segments& segments, const Rows& rows, const Part& part,
                           A* numbers) {
  if (part.cols < part.width) {
    __builtin_memset(numbers, 0, (part.end - part.begin) * part.width * sizeof(A));
  }
  for_each_row<T>(segments, rows, part, numbers, [](const T* row, A* to, std::int64_t count) {
    for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
      store(to + i, load(row + i, lanes), lanes);
    });
  });
}

template <class T, class A>
TFK_FLATTEN void write_part(const Segments& segments, const Rows& rows, const Part& part,
                            A* numbers) {
  for_each_row<T>(segments, rows, part, numbers, [](T* row, const A* from, std::int64_t count) {
    for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
      store(row + i, load_as<T>(from + i, lanes), lanes);
    });
  });
}

template <class T>
void run(const SegmentSoftmaxProblem& p, void* scratch, std::int64_t longest, std::int64_t begin,
         std::int64_t end) {
  using A = accumulate_t<T>;
  const int most = Vec<A>::kLanes < kMostSoftmaxLanes ? Vec<A>::kLanes : kMostSoftmaxLanes;
  A* const numbers = static_cast<A*>(scratch);
  A* const others = numbers + longest * softmax_width(p.cols);
  for (std::int64_t segment = begin; segment < end; ++segment) {
    Part part{p.segments.offsets[segment], p.segments.offsets[segment + 1], 0, 0, 1};
    if (part.begin == part.end) continue;
    for (; part.col < p.cols; part.col += part.cols) {
      part.cols = p.cols - part.col < most ? static_cast<int>(p.cols - part.col) : most;
      part.width = static_cast<int>(softmax_width(part.cols));
      const Block<A> block{numbers, (part.end - part.begin) * part.width, part.width};
      if (p.dy.data == nullptr) {
        read_part<T>(p.segments, p.x, part, numbers);
        softmax(block);
      } else {
        read_part<T>(p.segments, p.dy, part, numbers);
        read_part<T>(p.segments, p.x, part, others);
        softmax_gradient(block, others);
      }
      write_part<T>(p.segments, p.y, part, numbers);
    }
  }
}

}  // namespace

const SegmentSoftmaxKernels segment_softmax_kernels = {
    {run<double>, run<float>, run<Half>, run<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
