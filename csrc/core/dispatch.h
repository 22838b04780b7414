// SPDX-License-Identifier: MIT
// Turns run-time values into compile-time ones. This is the only dtype switch of the library.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "core/types.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// The dtype that sums over one are kept in: accumulate_t at run time.
constexpr DType accumulate_dtype(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// Calls body.operator()<T>() with the storage type of a floating-point dtype.
template <class Body>
decltype(auto) dispatch_float(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kFloat64: return body.template operator()<double>();
    case DType::kFloat32: return body.template operator()<float>();
    case DType::kFloat16: return body.template operator()<Half>();
    case DType::kBFloat16: return body.template operator()<BFloat16>();
    case DType::kBool:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2: break;
  }
  throw Error(Error::Kind::kType, concat("dtype ", name_of(dtype), " is not a floating point"));
}

// dispatch_float() without float64, for families that have no kernels of it.
template <class Body>
void dispatch_below_double(DType dtype, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) body.template operator()<T>();
  });
}

// dispatch_float() of 16-bit dtypes alone; other dtypes do nothing.
template <class Body>
void dispatch_narrow(DType dtype, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    if constexpr (sizeof(T) == 2) body.template operator()<T>();
  });
}

// Calls body.operator()<value>() with `value` as a compile-time bool.
template <class Body>
decltype(auto) dispatch_bool(bool value, Body&& body) {
  return value ? body.template operator()<true>() : body.template operator()<false>();
}

// Calls body.operator()<index>() with `index`, below kCount, as a compile-time number.
template <std::size_t kCount, class Body>
void dispatch_index(std::size_t index, Body&& body) {
  const auto attempt = [&]<std::size_t kIndex>() {
    if (kIndex == index) body.template operator()<kIndex>();
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (attempt.template operator()<kIndex>(), ...);
  }
  (std::make_index_sequence<kCount>());
}

}  // namespace transformer_kernels
