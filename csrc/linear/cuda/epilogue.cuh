// SPDX-License-Identifier: MIT
// The epilogue of a product, for engines in which a thread ends with one sum.
#pragma once

#include "core/cuda/pack.cuh"
#include "linear/cuda/engines.h"
#include "pointwise/problem.h"

namespace transformer_kernels::cuda {

template <class T>
__device__ __forceinline__ T& element(const Matrix& matrix, std::int64_t row, std::int64_t col) {
  return static_cast<T*>(matrix.data)[row * matrix.row_step + col * matrix.col_step];
}

template <class T>
__device__ __forceinline__ math::ValueAndSlope<accumulate_t<T>> activated(Pointwise op,
                                                                          accumulate_t<T> z) {
  constexpr math::precision_of<T> kPrecision{};
  switch (op) {
#define TFK_CASE(enumerator, ...) \
  case Pointwise::enumerator:     \
    return PointwiseOp<Pointwise::enumerator>::Activation::value_and_slope(kPrecision, z);
    TFK_POINTWISE_OPS(TFK_CASE)
#undef TFK_CASE
  }
  return {};
}

template <class T>
__device__ __forceinline__ accumulate_t<T> bias_at(const Product& p, std::int64_t col) {
  if (p.bias == nullptr) return 0;
  return p.bias_dtype == p.dtype ? widen(static_cast<const T*>(p.bias)[col])
                                 : accumulate_t<T>{static_cast<const float*>(p.bias)[col]};
}

// Stores the sum of an element, or adds it to what is there.
template <class T>
__device__ __forceinline__ void write_sum(const Product& p, std::int64_t row, std::int64_t col,
                                          accumulate_t<T> sum) {
  const auto write = [&]<class Out>(Out& to) {
    to = narrow<Out>(p.accumulates ? widen(to) + sum : sum);
  };
  if (p.out_dtype == p.dtype) {
    write(element<T>(p.out, row, col));
  } else {
    write(element<accumulate_t<T>>(p.out, row, col));
  }
}

// Stores what becomes of the sum of an element.
template <class T>
__device__ __forceinline__ void epilogue(const Product& p, std::int64_t row, std::int64_t col,
                                         accumulate_t<T> sum) {
  if (!p.activation) {
    return write_sum<T>(p, row, col, sum + bias_at<T>(p, col));
  }
  const bool has_z = p.z.data != nullptr;
  const T z = has_z ? element<T>(p.z, row, col) : narrow<T>(sum + bias_at<T>(p, col));
  const auto f = activated<T>(*p.activation, widen(z));
  element<T>(p.out, row, col) = narrow<T>(has_z ? sum * f.slope : f.value);
  if (p.kept.data != nullptr) element<T>(p.kept, row, col) = has_z ? narrow<T>(f.value) : z;
}

}  // namespace transformer_kernels::cuda
