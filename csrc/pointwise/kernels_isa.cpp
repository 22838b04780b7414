// SPDX-License-Identifier: MIT
// Pointwise ops. Compiled once per instruction set; see core/cpu/isa.h.
#include <utility>

#include "pointwise/kernels_isa.h"
#include "pointwise/part_isa.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// Part of a row. All pointers are to its first element; those that the op does not need are null.
template <class T, class A = accumulate_t<T>>
struct ForwardPart {
  const T* x;
  const T* up;
  const A* bias;
  const A* up_bias;
  T* y;
  std::int64_t cols;
  bool stream;
};

template <class T, class Op>
TFK_FLATTEN void forward_part(const ForwardPart<T>& arguments) {
  constexpr math::precision_of<T> kPrecision;
  const ForwardPart<T> part = arguments;  // no store can change it
  for_each_group<T>(part.cols, [&](std::int64_t i, auto lanes) {
    auto x = load(part.x + i, lanes);
    if (part.bias != nullptr) x = x + load_wide<T>(part.bias + i, lanes);
    auto y = Op::Activation::value(kPrecision, x);
    if constexpr (Op::kGated) {
      auto up = load(part.up + i, lanes);
      if (part.up_bias != nullptr) up = up + load_wide<T>(part.up_bias + i, lanes);
      y = y * up;
    }
    put(part.y + i, y, lanes, part.stream);
  });
}

template <class T, class Op>
void forward(const PointwiseForwardTask& task, std::int64_t begin, std::int64_t end) {
  const PointwiseForwardProblem& p = task.problem;
  const bool stream = streams<T>(task.stream, p.y, p.x, p.up);
  const std::int64_t tiles = tiles_of_row(p.cols);
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const std::int64_t row = tile / tiles;
    const std::int64_t col = tile % tiles * kTileCols;
    forward_part<T, Op>({.x = element_of<const T>(p.x, row, col),
                         .up = element_if<const T>(Op::kGated, p.up, row, col),
                         .bias = column_of<T>(task.bias, col),
                         .up_bias = column_of<T>(task.up_bias, col),
                         .y = element_of<T>(p.y, row, col),
                         .cols = p.cols - col < kTileCols ? p.cols - col : kTileCols,
                         .stream = stream});
  }
  stream_fence();
}

// ---------------------------------------------------------------------------- backward
//
//   plain   dx = dy f'(x)
//   gated   dgate = dy up f'(gate),  dup = dy f(gate)

template <class T, class A = accumulate_t<T>>
struct BackwardPart {
  const T* dy;
  const T* x;
  const T* up;
  const A* bias;
  const A* up_bias;
  T* dx;
  T* dup;
  T* y;
  A* dbias;  // sums over rows, to which this part adds; both null where they are not wanted
  A* dup_bias;
  std::int64_t cols;
  bool stream;
};

template <class T, class Op>
TFK_FLATTEN void backward_part(const BackwardPart<T>& arguments) {
  constexpr math::precision_of<T> kPrecision;
  const BackwardPart<T> part = arguments;  // no store can change it
  for_each_group<T>(part.cols, [&](std::int64_t i, auto lanes) {
    auto x = load(part.x + i, lanes);
    if (part.bias != nullptr) x = x + load_wide<T>(part.bias + i, lanes);
    const auto f = Op::Activation::value_and_slope(kPrecision, x);
    const auto dy = load(part.dy + i, lanes);
    const auto write = [&](auto dx, auto y) {
      put(part.dx + i, dx, lanes, part.stream);
      if (part.dbias != nullptr) add_to<T>(part.dbias + i, dx, lanes);
      if (part.y != nullptr) put(part.y + i, y, lanes, part.stream);
    };
    if constexpr (Op::kGated) {
      auto up = load(part.up + i, lanes);
      if (part.up_bias != nullptr) up = up + load_wide<T>(part.up_bias + i, lanes);
      const auto dup = dy * f.value;
      put(part.dup + i, dup, lanes, part.stream);
      if (part.dup_bias != nullptr) add_to<T>(part.dup_bias + i, dup, lanes);
      write(dy * up * f.slope, f.value * up);
    } else {
      write(dy * f.slope, f.value);
    }
  });
}

template <class T, class Op>
BackwardPart<T> part_of(const PointwiseBackwardTask& task, std::int64_t row, std::int64_t col,
                        std::int64_t cols) {
  using A = accumulate_t<T>;
  const PointwiseBackwardProblem& p = task.problem;
  const bool stream = streams<T>(task.stream, p.dx, p.dy, p.x) &&
                      (p.up.data == nullptr || streams<T>(task.stream, p.dup, p.dy, p.up)) &&
                      (p.y.data == nullptr || streams<T>(task.stream, p.y, p.x, p.up));
  const std::int64_t chunk = task.partials != nullptr ? row / task.rows_per_chunk : 0;
  A* const dbias = task.partials != nullptr
                       ? static_cast<A*>(task.partials) + chunk * 2 * task.wide_cols
                       : nullptr;
  return {.dy = element_of<const T>(p.dy, row, col),
          .x = element_of<const T>(p.x, row, col),
          .up = element_if<const T>(Op::kGated, p.up, row, col),
          .bias = column_of<T>(task.bias, col),
          .up_bias = column_of<T>(task.up_bias, col),
          .dx = element_of<T>(p.dx, row, col),
          .dup = element_if<T>(Op::kGated, p.dup, row, col),
          .y = element_if<T>(p.y.data != nullptr, p.y, row, col),
          .dbias = dbias,
          .dup_bias = dbias != nullptr ? dbias + task.wide_cols : nullptr,
          .cols = cols,
          .stream = stream};
}

template <class T, class Op>
void backward(const PointwiseBackwardTask& task, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = task.problem.cols;
  const std::int64_t tiles = tiles_of_row(cols);
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const std::int64_t col = tile % tiles * kTileCols;
    const std::int64_t tile_cols = cols - col < kTileCols ? cols - col : kTileCols;
    backward_part<T, Op>(part_of<T, Op>(task, tile / tiles, col, tile_cols));
  }
  stream_fence();
}

template <class T, class Op>
void backward_chunks(const PointwiseBackwardTask& task, std::int64_t begin, std::int64_t end) {
  const PointwiseBackwardProblem& p = task.problem;
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const std::int64_t first = chunk * task.rows_per_chunk;
    const std::int64_t last =
        first + task.rows_per_chunk < p.rows ? first + task.rows_per_chunk : p.rows;
    auto* const sums = static_cast<accumulate_t<T>*>(task.partials) + chunk * 2 * task.wide_cols;
    __builtin_memset(sums, 0, 2 * task.wide_cols * sizeof(*sums));
    for (std::int64_t row = first; row < last; ++row) {
      backward_part<T, Op>(part_of<T, Op>(task, row, 0, p.cols));
    }
  }
  stream_fence();
}

// ---------------------------------------------------------------------------- the table

template <class Op>
constexpr PointwiseOpKernels kKernelsOf = {
    {forward<double, Op>, forward<float, Op>, forward<Half, Op>, forward<BFloat16, Op>},
    {backward<double, Op>, backward<float, Op>, backward<Half, Op>, backward<BFloat16, Op>},
    {backward_chunks<double, Op>, backward_chunks<float, Op>, backward_chunks<Half, Op>,
     backward_chunks<BFloat16, Op>}};

template <std::size_t... kIndex>
constexpr PointwiseKernels all_kernels(std::index_sequence<kIndex...>) {
  return {{kKernelsOf<PointwiseOp<static_cast<Pointwise>(kIndex)>>...}};
}

}  // namespace

const PointwiseKernels pointwise_kernels = all_kernels(std::make_index_sequence<kPointwiseCount>());

}  // namespace transformer_kernels::cpu::TFK_ISA
