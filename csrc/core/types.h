// SPDX-License-Identifier: MIT
// 16-bit storage types of host code. They only name a format: kernels convert whole vectors.
#pragma once

#include <cstdint>

namespace transformer_kernels {

struct Half {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

// Type in which sums over T are kept.
template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename Accumulate<T>::type;

}  // namespace transformer_kernels
