// SPDX-License-Identifier: MIT
// Checks that both ops make of their operands.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/check.h"
#include "core/rows.h"
#include "decode/sampling/problem.h"

namespace transformer_kernels {

class SamplingArguments {
 public:
  SamplingArguments(const char* op, const Context& context) : op_(op), check_(op, context.device) {}

  void shape(const char* name, const TensorView& view,
             std::initializer_list<std::int64_t> expected) const {
    const bool fits = view.rank == static_cast<int>(expected.size()) &&
                      std::equal(expected.begin(), expected.end(), view.sizes.begin());
    check_value(fits, op_, ": ", name, " has shape ", shape_of(view), ", expected ",
                shape_of(TensorView::contiguous(nullptr, view.dtype, view.device, expected)));
  }

  void rank(const char* name, const TensorView& view, int rank) const {
    check_value(view.rank == rank, op_, ": ", name, " has ", view.rank, " dimensions, expected ",
                rank);
  }

  // Logits or probabilities, the last dimension a vocabulary.
  Rows floating(const char* name, const TensorView& view, int rank) const {
    check_.floating(name, view);
    this->rank(name, view, rank);
    const std::int64_t vocabulary = view.sizes[rank - 1];
    check_value(vocabulary >= 1 && vocabulary <= kMostTokens, op_, ": ", name, " has ", vocabulary,
                " columns, expected 1 to ", kMostTokens, " tokens");
    return {view.data, checked_row_stride(op_, name, view)};
  }

  // Checks a tensor of a dtype, without gaps; null where the view is absent.
  template <class T>
  T* packed(const char* name, const TensorView& view, DType dtype,
            std::initializer_list<std::int64_t> sizes) const {
    if (!view.defined()) return nullptr;
    check_.typed(name, view, dtype, "the dtype that the op takes");
    shape(name, view, sizes);
    check_.packed(name, view, view.numel(), "its shape");
    return static_cast<T*>(view.data);
  }
  template <class T>
  T* required(const char* name, const TensorView& view, DType dtype,
              std::initializer_list<std::int64_t> sizes) const {
    check_value(view.defined(), op_, ": ", name, " is missing");
    return packed<T>(name, view, dtype, sizes);
  }

  // A row of each sequence, or one of all; absent ones are null.
  Rows shared(const char* name, const TensorView& view, DType dtype, std::int64_t batch,
              std::int64_t cols) const {
    if (!view.defined()) return {};
    const bool is_one = view.rank == 2 && view.sizes[0] == 1;
    return {packed<void>(name, view, dtype, {is_one ? 1 : batch, cols}), is_one ? 0 : cols};
  }

 private:
  const char* op_;
  ArgumentChecker check_;
};

}  // namespace transformer_kernels
