// SPDX-License-Identifier: MIT
// Turns a product into a launch of Ampere's GEMM (gemm.cuh).
#pragma once

#include <array>

#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "linear/cuda/products.cuh"
#include "linear/sm80/gemm.cuh"

namespace transformer_kernels::cuda::ampere {

// The steps from row to row of a, and from column to column of b, are alike: kK has them.
inline OperandMatrix operand_of(const Product& p, const Matrix& by_terms, Major major) {
  const std::int64_t step = major == Major::kK ? by_terms.row_step : by_terms.col_step;
  return {static_cast<const char*>(by_terms.data),
          step * static_cast<std::int64_t>(size_of(p.dtype))};
}

template <class Shape>
Operands<Shape::kProducts> operands_of(const Product& p,
                                       const std::array<Matrix, Shape::kProducts>& b) {
  Operands<Shape::kProducts> operands{
      .a = operand_of(p, p.a, Shape::kMajorA), .b = {}, .terms = static_cast<int>(p.terms)};
  for (int i = 0; i < Shape::kProducts; ++i) {
    operands.b[i] = operand_of(p, b[i].transposed(), Shape::kMajorB);
  }
  return operands;
}

template <class Shape>
int blocks_of(const Product& p) {
  return static_cast<int>(divide_up(p.terms, Shape::kBlock));
}
template <class Shape>
TileOrder tiles_of(const Product& p) {
  return {static_cast<int>(divide_up(p.rows, Shape::kRows)),
          static_cast<int>(divide_up(p.cols, Shape::kOutCols))};
}
template <class Shape>
WholeTiles whole_tiles_of(const Product& p) {
  return {tiles_of<Shape>(p), blocks_of<Shape>(p)};
}

// The arguments of an epilogue.
template <class T, class Shape, class Chain>
auto results_of(const Product& p, const ChainWithTensors<Chain>& own) {
  typename ChunkWriter<T, Shape, Chain>::Parameters results{
      .chain = own.chain, .extent = extent_of(p), .reads = {}, .writes = {}};
  std::ranges::copy(own.tensors.reads, results.reads);
  std::ranges::copy(own.tensors.kept, std::ranges::copy(own.tensors.results, results.writes).out);
  return results;
}
template <class T, class Shape, class Epilogue>
auto results_of(const Product& p, const Epilogue& epilogue) {
  return typename DirectWriter<T, Shape, Epilogue>::Parameters{epilogue, extent_of(p)};
}

template <class Epilogue>
struct EpilogueOf {
  using Type = Epilogue;
};
template <class Chain>
struct EpilogueOf<ChainWithTensors<Chain>> {
  using Type = Chain;
};

// The products of a and each of b's. `epilogue` is a chain with its tensors, or a struct that
// stores sums.
template <class Shape, class Tiles, class Epilogue>
void launch_gemm(const Context& context, const Product& p,
                 const std::array<Matrix, Shape::kProducts>& b, const Tiles& tiles,
                 const Epilogue& epilogue) {
  dispatch_narrow(p.dtype, [&]<class T>() {
    using Own = typename EpilogueOf<Epilogue>::Type;
    using Kernel = Gemm<T, Shape, Tiles, Own>;
    launch(p.op, context,
           {.ctas = tiles.count(),
            .threads = Shape::kThreads,
            .shared_bytes = sizeof(typename Kernel::Storage),
            .after_previous = device_limits(context.device.index).architecture >= 90},
           gemm_kernel<T, Shape, Tiles, Own>,
           typename Kernel::Parameters{operands_of<Shape>(p, b), tiles,
                                       results_of<T, Shape>(p, epilogue)});
  });
}

// Each of these is in a unit of its own.
void run_sums(const Context& context, const Product& p);
void run_slope(const Context& context, const Product& p);

}  // namespace transformer_kernels::cuda::ampere
