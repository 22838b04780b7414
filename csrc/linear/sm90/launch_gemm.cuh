// SPDX-License-Identifier: MIT
// Turns a product into a launch of Hopper's GEMM. Epilogues are compiled in units of their own.
#pragma once

#include <algorithm>

#include "core/cuda/launch.cuh"
#include "core/cuda/tensor_map.h"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "linear/cuda/gated_product.h"
#include "linear/sm90/gemm.cuh"
#include "pointwise/problem.h"

namespace transformer_kernels::cuda {

constexpr Major major_of(bool terms_together) { return terms_together ? Major::kK : Major::kOther; }
// The contracted dimension is the columns of a and the rows of b.
constexpr Major major_of_a(const Product& p) { return major_of(p.a.col_step == 1); }
constexpr Major major_of_b(const Product& p) { return major_of(p.b.row_step == 1); }

// A matrix whose `inner` elements lie together, in boxes of `box_inner` by `box_outer`.
inline TensorMapLayout matrix_layout(DType dtype, void* data, std::int64_t inner,
                                     std::int64_t outer, std::int64_t step, int box_inner,
                                     int box_outer) {
  return {.dtype = dtype,
          .data = data,
          .sizes = {inner, outer, 1, 1, 1},
          .strides = {step, 0, 0, 0},
          .box = {box_inner, box_outer, 1, 1, 1},
          .rank = 2};
}

// `extent` rows of a, or columns of b, by terms.
inline TensorMapLayout operand_layout(const Product& p, const Matrix& by_terms, Major major,
                                      std::int64_t extent, int box) {
  return major == Major::kK
             ? matrix_layout(p.dtype, by_terms.data, p.terms, extent, by_terms.row_step, 64, box)
             : matrix_layout(p.dtype, by_terms.data, extent, p.terms, by_terms.col_step, 64, 64);
}
inline bool is_even(const Product& p, const Matrix& result) {
  return p.cols % 8 == 0 && fits_tensor_map(matrix_layout(p.dtype, result.data, p.cols, p.rows,
                                                          result.row_step, 32, 1));
}
inline TensorMapLayout result_layout(const Product& p, const Matrix& result, int box_rows) {
  return matrix_layout(p.dtype, result.data, p.cols, p.rows, result.row_step, 32, box_rows);
}

// Terms in parts, each summed for itself; of kSlope, sums of columns by parts of the rows.
struct Parts {
  float* partial = nullptr;
  std::int64_t count = 1;  // of the terms
};

template <class S>
void launch_gemm(const Context& context, const Product& p, Parts parts = {}, const Up& up = {}) {
  static_assert(sizeof(GemmStorage<S>) <= 227 * 1024);
  const auto map = [&](const TensorMapLayout& layout) { return encode_tensor_map(p.op, layout); };
  const auto result = [&](const Matrix& matrix, int box_rows) {
    return matrix.data == nullptr ? CUtensorMap{} : map(result_layout(p, matrix, box_rows));
  };
  const auto second = [&](const Matrix& b) {
    return b.data == nullptr
               ? CUtensorMap{}
               : map(operand_layout(p, b.transposed(), S::kMajorB, p.cols, S::kOutCols));
  };
  const std::int64_t blocks = divide_up(p.terms, S::kBlock);
  const GemmParameters parameters{
      .a = map(operand_layout(p, p.a, S::kMajorA, p.rows, S::kRows)),
      .b = second(p.b),
      .out = S::kInOrder ? CUtensorMap{} : result(p.out, 16),
      .kept = result(p.kept, 16),
      .z = result(p.z, 64),
      .b_up = second(up.b),
      .kept_up = result(up.kept, 16),
      .out_up = result(up.out, 16),
      .z_up = result(up.z, 64),
      .up_bias = up.bias,
      .uneven = p.out.data,
      .uneven_step = p.out.row_step,
      .bias = p.bias,
      .bias_is_wide = p.bias_dtype == DType::kFloat32,
      .keeps = p.kept.data != nullptr,
      .rows = static_cast<int>(p.rows),
      .cols = static_cast<int>(p.cols),
      .blocks = static_cast<int>(blocks),
      .tiles = {static_cast<int>(divide_up(p.rows, S::kRows)),
                static_cast<int>(divide_up(p.cols, S::kOutCols))},
      .partial = parts.partial,
      .parts = static_cast<int>(parts.count),
      .blocks_of_part = static_cast<int>(divide_up(blocks, parts.count))};
  const std::int64_t processors = device_limits(context.device.index).processors;
  launch(p.op, context,
         {.ctas = std::min(parameters.tiles.count() * parts.count, processors),
          .threads = kGemmThreads,
          .shared_bytes = sizeof(GemmStorage<S>),
          .after_previous = true},
         gemm_kernel<S>, parameters);
}

template <Epilogue kEpilogue, class Activation, int kRows, int kCols, Major kMajorA, Major kMajorB>
void launch_typed(const Context& context, const Product& p, Parts parts = {}) {
  dispatch_narrow(p.dtype, [&]<class T>() {
    launch_gemm<GemmShape<T, Activation, kEpilogue, kMajorA, kMajorB, kRows, kCols>>(context, p,
                                                                                     parts);
  });
}

inline constexpr int kTileRows = 128;  // with an activation

// With an activation, a's terms are together: it is x, or dy.
template <Epilogue kEpilogue>
void launch_activated(const Context& context, const Product& p, Parts parts = {}) {
  const auto attempt = [&]<Pointwise kOp>() {
    using Op = PointwiseOp<kOp>;
    if constexpr (!Op::kGated) {
      if (*p.activation != kOp) return;
      if (major_of_b(p) == Major::kK) {
        launch_typed<kEpilogue, typename Op::Activation, kTileRows, 192, Major::kK, Major::kK>(
            context, p, parts);
      } else {
        launch_typed<kEpilogue, typename Op::Activation, kTileRows, 192, Major::kK, Major::kOther>(
            context, p, parts);
      }
    }
  };
#define TFK_ATTEMPT(enumerator, ...) attempt.template operator()<Pointwise::enumerator>();
  TFK_POINTWISE_OPS(TFK_ATTEMPT)
#undef TFK_ATTEMPT
}

// Launches the kernel for p's activation. The contracted dimension of a is contiguous.
template <Epilogue kEpilogue, Major kMajorB>
void launch_gated(const Context& context, const GatedProduct& p) {
  const auto attempt = [&]<Pointwise kOp>() {
    using Op = PointwiseOp<kOp>;
    if constexpr (Op::kGated) {
      if (*p.gate.activation != kOp) return;
      dispatch_narrow(p.gate.dtype, [&]<class T>() {
        launch_gemm<GemmShape<T, typename Op::Activation, kEpilogue, Major::kK, kMajorB, 128, 192>>(
            context, p.gate, {}, p.up);
      });
    }
  };
#define TFK_ATTEMPT(enumerator, ...) attempt.template operator()<Pointwise::enumerator>();
  TFK_POINTWISE_OPS(TFK_ATTEMPT)
#undef TFK_ATTEMPT
}

void run_gemm_bias(const Context& context, const Product& p);
void run_gemm_slope(const Context& context, const Product& p);
void run_gemm_in_parts(const Context& context, const Product& p, std::int64_t parts);

// These are compiled in units of their own (instances.cmake).
extern template void launch_activated<Epilogue::kActivate>(const Context&, const Product&, Parts);
extern template void launch_activated<Epilogue::kActivateKept>(const Context&, const Product&,
                                                               Parts);
extern template void launch_gated<Epilogue::kGated, Major::kK>(const Context&, const GatedProduct&);
extern template void launch_gated<Epilogue::kGatedKept, Major::kK>(const Context&,
                                                                   const GatedProduct&);
extern template void launch_gated<Epilogue::kGatedSlope, Major::kK>(const Context&,
                                                                    const GatedProduct&);
extern template void launch_gated<Epilogue::kGatedSlope, Major::kOther>(const Context&,
                                                                        const GatedProduct&);

}  // namespace transformer_kernels::cuda
