// SPDX-License-Identifier: MIT
// The precision of a math function, as a type that every function of this folder takes first.
#pragma once

#include <type_traits>

#include "core/inline.h"

namespace transformer_kernels::math {

// For float and double: about as exact as numbers of the type can say.
struct Accurate {};

// For results that are rounded to 16 bits: hardware approximations and shorter polynomials, whose
// error is small beside that of the rounding.
struct Fast {};

// For tensors whose elements are stored as T.
template <class T>
using precision_of = std::conditional_t<sizeof(T) == 2, Fast, Accurate>;

}  // namespace transformer_kernels::math
