// SPDX-License-Identifier: MIT
// sum_t<F>: the type that products of elements F are summed in. It is F itself, unless an element
// is several numbers. For sources that are compiled once per instruction set.
#pragma once

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

template <class F>
struct SumOf {
  using Type = F;
};
template <class F>
using sum_t = typename SumOf<F>::Type;

}  // namespace transformer_kernels::cpu::TFK_ISA
