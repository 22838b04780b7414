// SPDX-License-Identifier: MIT
// Parts of rows, for the family's sources that are compiled once per instruction set: the addresses
// of their elements, and the stores of results.
#pragma once

#include "core/cpu/row_loop.h"

namespace transformer_kernels::cpu::TFK_ISA {

template <class T>
T* element_of(const Rows& matrix, std::int64_t row, std::int64_t col) {
  return row_of<T>(matrix, row) + col;
}

// Null where there is no such matrix.
template <class T>
T* element_if(bool present, const Rows& matrix, std::int64_t row, std::int64_t col) {
  return present ? element_of<T>(matrix, row, col) : nullptr;
}

template <class T>
const accumulate_t<T>* column_of(const void* bias, std::int64_t col) {
  return bias != nullptr ? static_cast<const accumulate_t<T>*>(bias) + col : nullptr;
}

// Outputs that leave the cache are written past it where their rows are aligned, unless they are an
// input's memory, whose lines are there already.
template <class T>
bool streams(bool stream, const Rows& output, const Rows& input, const Rows& other_input) {
  return stream && can_stream<T>(output.data, output.stride) && output.data != input.data &&
         output.data != other_input.data;
}

template <class T, class V, class Lanes>
TFK_INLINE void add_to(accumulate_t<T>* total, V term, Lanes lanes) {
  store_wide<T>(total, load_wide<T>(total, lanes) + term, lanes);
}

}  // namespace transformer_kernels::cpu::TFK_ISA
