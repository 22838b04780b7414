// SPDX-License-Identifier: MIT
// The check of the classes that rows are labelled with.
#pragma once

#include "core/check.h"

namespace transformer_kernels {

// Refuses a row whose label, `label_of(row)`, is neither a class nor the one that is ignored.
template <class Problem, class LabelOf>
void check_labels(const char* op, const Problem& p, LabelOf&& label_of) {
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t label = label_of(row);
    check_value(p.is_class(label) || label == p.ignore_index, op, ": target is ", label, " in row ",
                row, ", expected one of [0, ", p.cols - 1, "] or ", p.ignore_index,
                " (ignore_index)");
  }
}

}  // namespace transformer_kernels
