// SPDX-License-Identifier: MIT
// The epilogue of a block of sums while it is in the cache: bias, rounding, activation. For sources
// that are compiled once per instruction set.
#pragma once

#include "core/cpu/row_loop.h"
#include "linear/cpu/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {

// The sums of a block, row by row.
template <class F>
struct BlockSums {
  const F* data;
  std::int64_t row_step;
};

// Rows of what gets the sum and the bias: z before an activation, else the result.
TFK_INLINE Rows sums_of(const Product& p) {
  const Matrix& sums = p.kept.data != nullptr ? p.kept : p.out;
  return {sums.data, sums.row_step};
}

// Out: the dtype of the result, T or that of the sums.
template <class T, class Out>
TFK_FLATTEN void write_rows(const Product& p, const Block& block,
                            const BlockSums<accumulate_t<T>>& sums) {
  const Rows rows = sums_of(p);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const accumulate_t<T>* const source = sums.data + r * sums.row_step;
    Out* const target = row_of<Out>(rows, block.row + r) + block.col;
    const auto write = [&](auto&& finished) {
      for_each_vector<T>(block.cols, [&](std::int64_t i, int, auto lanes) {
        store(target + i, finished(load_as<T>(source + i, lanes), i, lanes), lanes);
      });
    };
    if (p.accumulates) {
      write([&](auto sum, std::int64_t i, auto lanes) {
        return load_as<T>(target + i, lanes) + sum;
      });
    } else if (p.bias != nullptr) {
      const auto* const bias = static_cast<const accumulate_t<T>*>(p.bias) + block.col;
      write([&](auto sum, std::int64_t i, auto lanes) {
        return sum + load_wide<T>(bias + i, lanes);
      });
    } else {
      write([](auto sum, std::int64_t, auto) { return sum; });
    }
  }
}

template <class T>
void round_rows(const Product& p, const Block& block, const BlockSums<accumulate_t<T>>& sums) {
  if (p.out_dtype == p.dtype) {
    write_rows<T, T>(p, block, sums);
  } else {
    write_rows<T, accumulate_t<T>>(p, block, sums);
  }
}

template <class T>
Rows rows_at(const Rows& rows, const Block& block) {
  return {row_of<T>(rows, block.row) + block.col, rows.stride};
}

template <class T>
void activate(const Product& p, const PointwiseKernels& activations, const Block& block) {
  PointwiseForwardProblem problem{};
  problem.op = *p.activation;
  problem.dtype = problem.bias_dtype = p.dtype;
  problem.rows = block.rows;
  problem.cols = block.cols;
  problem.x = rows_at<T>(sums_of(p), block);
  problem.y = rows_at<T>({p.out.data, p.out.row_step}, block);
  const PointwiseForwardTask part{problem, nullptr, nullptr, false};
  const PointwiseOpKernels& kernels = activations.op[static_cast<int>(problem.op)];
  kernels.forward[static_cast<int>(p.dtype)](part, 0, block.rows);
}

// `activations` may be null where there is none.
template <class T>
void finish_block(const Product& p, const PointwiseKernels* activations, const Block& block,
                  const BlockSums<accumulate_t<T>>& sums) {
  round_rows<T>(p, block, sums);
  if (p.activation) activate<T>(p, *activations, block);
}

}  // namespace transformer_kernels::cpu::TFK_ISA
