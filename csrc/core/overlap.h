// SPDX-License-Identifier: MIT
// Checks of whether operands share memory, for ops that may write over their inputs.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/check.h"
#include "core/rows.h"
#include "core/strides.h"

namespace transformer_kernels {

// The memory of one operand; `name` is for messages.
struct Extent {
  const char* name;
  Rows matrix;  // data may be null: nothing is there
  std::int64_t rows;
  std::int64_t row_bytes;
  std::int64_t element_bytes;

  std::int64_t step() const { return matrix.stride * element_bytes; }
  std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(matrix.data); }
  std::uintptr_t end() const { return begin() + (rows - 1) * step() + row_bytes; }
  bool empty() const { return matrix.data == nullptr || rows == 0 || row_bytes == 0; }
};

// Rows of a and of b may take turns in memory, as the halves of a packed tensor do.
inline bool take_turns(const Extent& a, const Extent& b) {
  if (a.rows <= 1 || b.rows <= 1 || a.step() != b.step()) return false;
  const std::int64_t step = a.step();
  const auto distance = static_cast<std::int64_t>(b.begin() - a.begin()) % step;
  const std::int64_t ahead = distance < 0 ? distance + step : distance;
  return ahead >= a.row_bytes && ahead + b.row_bytes <= step;
}

inline bool overlap(const Extent& a, const Extent& b) {
  if (a.empty() || b.empty()) return false;
  return a.begin() < b.end() && b.begin() < a.end() && !take_turns(a, b);
}

inline bool same_memory(const Extent& a, const Extent& b) {
  return a.begin() == b.begin() && a.rows == b.rows && a.row_bytes == b.row_bytes &&
         a.element_bytes == b.element_bytes && (a.rows <= 1 || a.matrix.stride == b.matrix.stride);
}

// Check for an op that reads each element before it writes it: an output is an input's memory, or
// shares none with it.
inline void check_output_over_input(const char* op, const Extent& output, const Extent& input) {
  check_value(!overlap(output, input) || same_memory(output, input), op, ": ", output.name,
              " overlaps ", input.name, " in part, expected its memory exactly or none of it");
}

// An operand with any strides; one that is absent overlaps nothing.
struct Operand {
  const char* name;
  const TensorView& view;
};

inline void check_apart(const char* op, const Operand& output, const Operand& other) {
  if (!output.view.defined() || !other.view.defined()) return;
  check_value(!share_memory(output.view, other.view), op, ": ", output.name, " overlaps ",
              other.name, ", expected memory of its own");
}

// Check for an op whose outputs overlap neither inputs nor each other.
inline void check_apart(const char* op, std::initializer_list<Operand> outputs,
                        std::initializer_list<Operand> inputs) {
  for (const Operand* output = outputs.begin(); output != outputs.end(); ++output) {
    for (const Operand& input : inputs) check_apart(op, *output, input);
    for (const Operand* other = outputs.begin(); other != output; ++other) {
      check_apart(op, *output, *other);
    }
  }
}

// Check for an output that may be written over an input of its shape.
inline void check_over_or_apart(const char* op, const Operand& output, const Operand& input) {
  const bool both = output.view.defined() && input.view.defined();
  if (both && !same_memory(output.view, input.view)) check_apart(op, output, input);
}

inline void check_outputs_apart(const char* op, const Extent& a, const Extent& b) {
  check_value(!overlap(a, b), op, ": ", b.name, " overlaps ", a.name,
              ", expected memory of its own");
}

}  // namespace transformer_kernels
