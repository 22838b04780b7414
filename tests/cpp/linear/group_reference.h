// SPDX-License-Identifier: MIT
// Layers of groups of rows in the plainest form: a loop over the groups.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "backend.h"
#include "linear/product_reference.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {

using Indices = std::vector<std::int32_t>;

struct GroupSizes {
  Indices lengths;  // of groups
  std::int64_t terms, cols;
  std::int64_t spare = 0;  // rows past the last group
  Layout layout{};
};
// Groups of no row, of one row, and one with all rows; sizes that are multiples of nothing; rows
// that no tensor map can read; no group with a row; sizes of Hopper's tiles, and partial ones.
inline const GroupSizes kGroupSizes[] = {{{3, 0, 1, 5}, 7, 5},
                                         {{0, 0, 130, 1, 64, 0, 200}, 72, 200, 3},
                                         {{150}, 64, 96},
                                         {{1, 1, 1, 0, 1}, 136, 104, 2},
                                         {{17, 129, 0, 33}, 70, 51, 1, {1, 3}},
                                         {{128, 256, 0, 1}, 200, 264, 0, {0, 8}},
                                         {{0, 0}, 16, 8, 4},
                                         {{2, 3}, 0, 8}};

// The numbers of one call, and where they lie.
struct Groups {
  Backend& backend;
  DType dtype;
  GroupSizes s;
  Indices offsets;
  std::int64_t rows;
  std::int64_t ends;  // rows that belong to a group
  DeviceArray<std::int32_t> offsets_memory;

  Groups(Backend& on, DType of, const GroupSizes& sizes)
      : backend(on),
        dtype(of),
        s(sizes),
        offsets(offsets_of(sizes.lengths)),
        rows(offsets.back() + sizes.spare),
        ends(offsets.back()),
        offsets_memory(on, offsets.data(), offsets.size()) {}

  static Indices offsets_of(const Indices& lengths) {
    Indices offsets(lengths.size() + 1);
    std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
    return offsets;
  }

  std::int64_t count() const { return std::ssize(s.lengths); }
  TensorView offsets_view() const { return offsets_memory.vector(DType::kInt32); }
  DType wide() const { return dtype == DType::kFloat64 ? dtype : DType::kFloat32; }
};

inline std::string name_of(const GroupSizes& s) {
  std::string name;
  for (const std::int32_t length : s.lengths) name += std::to_string(length) + ' ';
  return name + "x " + std::to_string(s.terms) + " x " + std::to_string(s.cols);
}

// A matrix whose rows lie one group's after the other's as a tensor of groups.
inline TensorView by_groups(const TensorView& view, std::int64_t groups) {
  TensorView out = view;
  out.rank = 3;
  out.sizes = {groups, groups == 0 ? 0 : view.sizes[0] / groups, view.sizes[1]};
  out.strides = {out.sizes[1] * view.strides[0], view.strides[0], view.strides[1]};
  return out;
}
// Rows of a tensor with one row, as (groups, cols).
inline TensorView vectors(const TestTensor& tensor, std::int64_t groups, std::int64_t cols) {
  TensorView view = tensor.vector();
  return TensorView::contiguous(view.data, view.dtype, view.device, {groups, cols});
}

inline Values rows_of(const Values& all, std::int64_t first, std::int64_t count,
                      std::int64_t cols) {
  return {all.begin() + first * cols, all.begin() + (first + count) * cols};
}
inline Values gathered(const Values& all, const Indices& index, std::int64_t cols) {
  Values out;
  for (const std::int32_t row : index) {
    const bool is_row = row >= 0 && row * cols + cols <= std::ssize(all);
    const Values own = is_row ? rows_of(all, row, 1, cols) : Values(cols);
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}
inline void append(Sums& to, const Sums& more) {
  to.sum.insert(to.sum.end(), more.sum.begin(), more.sum.end());
  to.size.insert(to.size.end(), more.size.begin(), more.size.end());
}
inline void scale(Sums& sums, const Values& factors, std::int64_t cols) {
  for (std::size_t i = 0; i < sums.sum.size(); ++i) {
    sums.sum[i] *= factors[i / cols];
    sums.size[i] *= std::abs(factors[i / cols]);
  }
}
// A rounding before a factor, or before whatever else follows.
inline Values one_rounding(DType dtype, const Sums& sums) {
  Values error(sums.sum.size());
  for (std::size_t i = 0; i < error.size(); ++i) {
    error[i] = 1.01 * unit_roundoff(dtype) * std::abs(sums.sum[i]);
  }
  return error;
}

// Each group's rows times its weight: a loop over the groups.
inline Sums layer(const Groups& g, const Values& x, const Values& weight, const Values& bias) {
  Sums out;
  const auto& [lengths, terms, cols, spare, layout] = g.s;
  for (std::int64_t i = 0; i < g.count(); ++i) {
    append(out, product(lengths[i], cols, terms, rows_of(x, g.offsets[i], lengths[i], terms),
                        {terms, 1}, rows_of(weight, i, 1, cols * terms), {terms, 1},
                        bias.empty() ? bias : rows_of(bias, i, 1, cols)));
  }
  return out;
}

inline Indices random_rows(std::int64_t count, std::int64_t among) {
  Indices index(count);
  std::uniform_int_distribution<std::int32_t> row(0, static_cast<std::int32_t>(among) - 1);
  for (std::int32_t& each : index) each = row(random_engine());
  return index;
}
inline Values first(Values values, std::int64_t count) {
  values.resize(count);
  return values;
}

}  // namespace transformer_kernels::testing
