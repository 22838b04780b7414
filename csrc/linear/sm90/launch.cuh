// SPDX-License-Identifier: MIT
// Turns a product into a launch of Hopper's GEMM (gemm.cuh).
#pragma once

#include <algorithm>
#include <array>

#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "linear/cuda/products.cuh"
#include "linear/sm90/direct_writer.cuh"
#include "linear/sm90/gemm.cuh"
#include "linear/sm90/layouts.cuh"
#include "linear/sm90/staged_writer.cuh"
#include "linear/sm90/tma_loader.cuh"

namespace transformer_kernels::cuda {

template <class Shape>
TmaLoader<Shape::kProducts> loader_of(const Product& p,
                                      const std::array<Matrix, Shape::kProducts>& b) {
  TmaLoader<Shape::kProducts> loader{
      .a = encode_tensor_map(p.op, operand_layout(p, p.a, Shape::kMajorA, p.rows, Shape::kRows)),
      .b = {}};
  for (int i = 0; i < Shape::kProducts; ++i) {
    loader.b[i] = encode_tensor_map(
        p.op, operand_layout(p, b[i].transposed(), Shape::kMajorB, p.cols, Shape::kOutCols));
  }
  return loader;
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

template <class Chain>
StagedResults<Chain> results_of(const Product& p, const ChainWithTensors<Chain>& own) {
  StagedResults<Chain> results{.chain = own.chain, .extent = extent_of(p)};
  const auto encode = [&](const auto& matrices, CUtensorMap* to, int box_rows) {
    for (const Matrix& each : matrices) {
      if (each.data != nullptr) *to = encode_tensor_map(p.op, result_layout(p, each, box_rows));
      ++to;
    }
  };
  encode(own.tensors.reads, results.reads, 64);
  encode(own.tensors.results, results.writes, 16);
  encode(own.tensors.kept, results.writes + Chain::kResults, 16);
  results.keeps = own.tensors.keeps();
  return results;
}

template <class Epilogue>
DirectResults<Epilogue> results_of(const Product& p, const Epilogue& epilogue) {
  return {epilogue, extent_of(p)};
}

// No more work items than these; how many there are may be known to the device alone.
template <class Tiles>
int most_units(const Tiles& tiles) {
  if constexpr (requires { tiles.most; }) {
    return tiles.most;
  } else {
    return tiles.count();
  }
}

// The results say which epilogue the kernel has.
template <class T, class Shape, class Loader, class Tiles, template <class> class Results,
          class Epilogue>
void launch_gemm(const char* op, const Context& context, const Loader& loader, const Tiles& tiles,
                 const Results<Epilogue>& results) {
  using Kernel = Gemm<T, Shape, Loader, Tiles, Epilogue>;
  const std::int64_t processors = device_limits(context.device.index).processors;
  launch(op, context,
         {.ctas = std::min<std::int64_t>(most_units(tiles), processors),
          .threads = kGemmThreads,
          .shared_bytes = sizeof(typename Kernel::Storage),
          .after_previous = true},
         gemm_kernel<T, Shape, Loader, Tiles, Epilogue>,
         typename Kernel::Parameters{loader, tiles, results});
}

// The products of a and each of b's, with all their terms.
template <class Shape, class Results>
void launch_tiles(const Context& context, const Product& p,
                  const std::array<Matrix, Shape::kProducts>& b, const Results& results) {
  dispatch_narrow(p.dtype, [&]<class T>() {
    launch_gemm<T, Shape>(p.op, context, loader_of<Shape>(p, b),
                          WholeTiles{tiles_of<Shape>(p), blocks_of<Shape>(p)}, results);
  });
}

// Each of these is in a unit of its own. The last one's terms are summed in parts.
void run_gemm_bias(const Context& context, const Product& p);
void run_gemm_slope(const Context& context, const Product& p);
void run_gemm_in_parts(const Context& context, const Product& p, std::int64_t parts);

}  // namespace transformer_kernels::cuda
