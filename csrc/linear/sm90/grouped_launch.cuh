// SPDX-License-Identifier: MIT
// Turns products of groups of rows into launches of Hopper's GEMM (gemm.cuh).
#pragma once

#include "core/cuda/scratch.h"
#include "linear/cuda/grouped_engines.h"
#include "linear/cuda/grouped_epilogues.cuh"
#include "linear/sm90/grouped_loader.cuh"
#include "linear/sm90/grouped_tiles.cuh"
#include "linear/sm90/launch.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kGroupRows = 128;  // of a tile
inline constexpr int kGroupCols = 192;

// The order of a group's matrix b.
constexpr Major major_of_b(const GroupedProduct& p) { return major_of(p.b.first.row_step == 1); }

// Columns of b by terms, or terms by columns, in boxes of 64 by `box`, for each group.
inline TensorMapLayout weight_layout(const GroupedProduct& p, int box) {
  const Matrix& b = p.b.first;
  const bool by_terms = major_of_b(p) == Major::kK;
  return {.dtype = p.dtype,
          .data = b.data,
          .sizes = {by_terms ? p.terms : p.cols, by_terms ? p.cols : p.terms, p.groups.count, 1, 1},
          .strides = {by_terms ? b.col_step : b.row_step, p.b.step, 0, 0},
          .box = {64, by_terms ? box : 64, 1, 1, 1},
          .rank = 3};
}

inline GatheredRows gathered_rows(const IndexedRows& rows, std::int64_t cols) {
  return {.data = static_cast<const char*>(rows.rows.data),
          .index = rows.index,
          .step = static_cast<unsigned>(rows.rows.stride / 8),
          .rows = static_cast<unsigned>(rows.count),
          .cols = static_cast<int>(cols)};
}

template <class Shape, bool kGathers>
auto grouped_loader_of(const GroupedProduct& p,
                       const std::array<const GroupedProduct*, Shape::kProducts>& each) {
  GroupedLoader<Shape::kProducts, kGathers> loader{};
  if constexpr (kGathers) {
    loader.a = gathered_rows(p.a, p.terms);
  } else {
    loader.a = encode_tensor_map(p.op, matrix_layout(p.dtype, p.a.rows.data, p.terms, p.groups.rows,
                                                     p.a.rows.stride, 64, Shape::kRows));
  }
  for (int i = 0; i < Shape::kProducts; ++i) {
    loader.b[i] = encode_tensor_map(p.op, weight_layout(*each[i], Shape::kOutCols));
  }
  return loader;
}

// The table of row tiles of kGroupRows rows, made on the device.
class RowTiles {
 public:
  RowTiles(const char* op, const Context& context, const RowGroups& groups);

  GroupedTiles of(std::int64_t cols, int tile_cols, int blocks) const {
    const int col_tiles = static_cast<int>(divide_up(cols, tile_cols));
    return {table_, count_, col_tiles, blocks, most_ * col_tiles};
  }

 private:
  int most_;
  Scratch memory_;
  RowTile* table_;
  int* count_;
};

// The tensors of a chain, of which each is like the result.
template <class Chain>
StagedResults<Chain> grouped_results_of(const GroupedProduct& p,
                                        const ChainWithTensors<Chain>& own) {
  const Product like{.op = p.op,
                     .dtype = p.dtype,
                     .rows = p.groups.rows,
                     .cols = p.cols,
                     .terms = p.terms,
                     .a = {},
                     .b = {},
                     .out = {}};
  StagedResults<Chain> results{.chain = own.chain, .extent = extent_of(like)};
  CUtensorMap* next = results.reads;
  for (const Matrix& each : own.tensors.reads) {
    *next++ = encode_tensor_map(p.op, result_layout(like, each, 64));
  }
  next = results.writes;
  const auto encode = [&](const auto& matrices) {
    for (const Matrix& each : matrices) {
      if (each.data != nullptr) {
        *next = encode_tensor_map(p.op, ragged_layout(result_layout(like, each, 16)));
      }
      ++next;
    }
  };
  encode(own.tensors.results);
  encode(own.tensors.kept);
  results.keeps = own.tensors.keeps();
  return results;
}

template <class Shape, bool kGathers, class Chain>
void launch_groups(const Context& context, const GroupedProduct& p,
                   const std::array<const GroupedProduct*, Shape::kProducts>& each,
                   const ChainWithTensors<Chain>& chain) {
  const RowTiles rows(p.op, context, p.groups);
  const int blocks = static_cast<int>(divide_up(p.terms, Shape::kBlock));
  const GroupedTiles tiles = rows.of(p.cols, Shape::kOutCols, blocks);
  dispatch_narrow(p.dtype, [&]<class T>() {
    launch_gemm<T, Shape>(p.op, context, grouped_loader_of<Shape, kGathers>(p, each), tiles,
                          grouped_results_of(p, chain));
  });
}

inline BiasVector bias_of(const GroupedProduct& p) {
  return {p.bias, p.bias_dtype == DType::kFloat32};
}

// dfactors[i] is the sum over `tiles` tiles of columns of dots[tile][i].
void sum_dots(const char* op, const Context& context, const float* dots, std::int64_t tiles,
              std::int64_t rows, float* dfactors);

// These are compiled in units of their own (instances.cmake); rows are gathered, or come one after
// the other in the same way.
template <class Problem>
void launch_grouped_gate(const Context& context, const Problem& p);

}  // namespace transformer_kernels::cuda
