// SPDX-License-Identifier: MIT
// Checks of the operands of layers of groups of rows, one by one.
#pragma once

#include <vector>

#include "core/dispatch.h"
#include "core/overlap.h"
#include "core/sequences.h"
#include "linear/grouped_problem.h"
#include "linear/operands.h"

namespace transformer_kernels {

// The dtype and the sizes that all operands of a call share: `groups` groups of `rows` rows.
class GroupedOperands {
 public:
  // `leading` is the tensor whose dtype the others have, `rows_of` the one that has as many rows as
  // offsets may reach.
  GroupedOperands(const char* op, const Context& context, Leading leading, const TensorView& view,
                  const TensorView& offsets, std::int64_t rows, const char* rows_of)
      : op_(op),
        check_(op, context.device),
        leading_(leading) {
    check_.floating(leading.name, view);
    dtype_ = view.dtype;
    constexpr std::int64_t kMost = 2147483647;
    check_value(rows <= kMost, op, ": ", rows_of, " has ", rows, " rows, expected at most ", kMost);
    groups_.offsets = cu_seqlens_of(op, context.device, "offsets", offsets, rows, rows_of);
    groups_.count = offsets.numel() - 1;
    groups_.rows = rows;
    inputs_.push_back({"offsets", offsets});
  }

  const RowGroups& groups() const { return groups_; }

  void matrix(const char* name, const TensorView& view, std::int64_t rows,
              std::int64_t cols) const {
    check_.floating(name, view);
    check_.typed(name, view, dtype_, leading_.dtype);
    check_value(view.rank == 2, op_, ": ", name, " has ", view.rank, " dimensions, expected 2");
    check_value(view.sizes[0] == rows && view.sizes[1] == cols, op_, ": ", name, " has shape ",
                shape_of(view), ", expected (", rows, ", ", cols, ")");
  }

  // Operands that the caller checks, for their overlaps.
  void also_read(const char* name, const TensorView& view) { inputs_.push_back({name, view}); }
  void also_written(const char* name, const TensorView& view) { outputs_.push_back({name, view}); }

  // (T, cols), of which `index` names the rows of groups, or (rows, cols) without one.
  IndexedRows input(const char* name, const TensorView& view, std::int64_t cols,
                    const char* index_name = "", const TensorView& index = {}) {
    matrix(name, view, index.defined() ? view.sizes[0] : groups_.rows, cols);
    inputs_.push_back({name, view});
    IndexedRows rows{.rows = {view.data, checked_row_stride(op_, name, view)},
                     .count = view.sizes[0]};
    if (!index.defined()) return rows;
    check_.typed(index_name, index, DType::kInt32, "numbers of rows");
    vector(index_name, index);
    inputs_.push_back({index_name, index});
    rows.index = static_cast<const std::int32_t*>(index.data);
    return rows;
  }

  Rows output_if_present(const char* name, const TensorView& view, std::int64_t cols) {
    if (!view.defined()) return {};
    matrix(name, view, groups_.rows, cols);
    outputs_.push_back({name, view});
    return {view.data, checked_output_stride(op_, name, view)};
  }
  Rows output(const char* name, const TensorView& view, std::int64_t cols) {
    check_value(view.defined(), op_, ": ", name, " is missing");
    return output_if_present(name, view, cols);
  }

  // (groups, rows, cols) of which either may be -1: any.
  GroupedMatrix weight(const char* name, const TensorView& view, std::int64_t rows,
                       std::int64_t cols) {
    check_.floating(name, view);
    check_.typed(name, view, dtype_, leading_.dtype);
    inputs_.push_back({name, view});
    return grouped(name, view, rows, cols);
  }
  // May be float32 where weights have 16 bits.
  GroupedMatrix dweight_if_present(const char* name, const TensorView& view, std::int64_t rows,
                                   std::int64_t cols) {
    if (!view.defined()) return {};
    check_.typed_or_float32(name, view, dtype_, leading_.name);
    outputs_.push_back({name, view});
    const GroupedMatrix own = grouped(name, view, rows, cols);
    const bool has_lines =
        view.numel() == 0 || rows == 1 || cols == 1 || view.strides[1] == 1 || view.strides[2] == 1;
    check_value(has_lines && !overlaps_itself(view), op_, ": ", name, " has strides (",
                view.strides[0], ", ", view.strides[1], ", ", view.strides[2],
                "), expected one of 1 within a group and no element over another");
    return own;
  }

  const void* bias_if_present(const char* name, const TensorView& view, std::int64_t cols) {
    if (!view.defined()) return nullptr;
    inputs_.push_back({name, view});
    return vectors(name, view, cols);
  }
  void* dbias_if_present(const char* name, const TensorView& view, std::int64_t cols) {
    if (!view.defined()) return nullptr;
    outputs_.push_back({name, view});
    return vectors(name, view, cols);
  }

  const void* factors_if_present(const TensorView& view) {
    if (!view.defined()) return nullptr;
    inputs_.push_back({"factors", view});
    return numbers_of_rows("factors", view);
  }
  void* dfactors_if_present(const TensorView& view) {
    if (!view.defined()) return nullptr;
    outputs_.push_back({"dfactors", view});
    return numbers_of_rows("dfactors", view);
  }

  void check_overlaps() const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      for (const Operand& input : inputs_) check_apart(op_, outputs_[i], input);
      for (std::size_t j = 0; j < i; ++j) check_apart(op_, outputs_[i], outputs_[j]);
    }
  }

 private:
  GroupedMatrix grouped(const char* name, const TensorView& view, std::int64_t rows,
                        std::int64_t cols) const {
    check_value(view.rank == 3, op_, ": ", name, " has ", view.rank, " dimensions, expected 3");
    const auto fits = [&](int i, std::int64_t size) { return size < 0 || view.sizes[i] == size; };
    check_value(view.sizes[0] == groups_.count && fits(1, rows) && fits(2, cols), op_, ": ", name,
                " has shape ", shape_of(view), ", expected (", groups_.count, ", ",
                rows < 0 ? view.sizes[1] : rows, ", ", cols < 0 ? view.sizes[2] : cols, ")");
    return {{view.data, view.strides[1], view.strides[2]}, view.strides[0]};
  }

  void* vectors(const char* name, const TensorView& view, std::int64_t cols) const {
    check_.floating(name, view);
    check_.typed_or_float32(name, view, dtype_, leading_.name);
    check_value(view.rank == 2 && view.sizes[0] == groups_.count && view.sizes[1] == cols, op_,
                ": ", name, " has shape ", shape_of(view), ", expected (", groups_.count, ", ",
                cols, ")");
    check_.packed(name, view, groups_.count * cols, "one row a group");
    return view.data;
  }

  void vector(const char* name, const TensorView& view) const {
    check_value(view.rank == 1, op_, ": ", name, " has ", view.rank, " dimensions, expected 1");
    check_.packed(name, view, groups_.rows, "the rows of all groups");
  }
  void* numbers_of_rows(const char* name, const TensorView& view) const {
    check_.typed(name, view, accumulate_dtype(dtype_), "the dtype of sums");
    vector(name, view);
    return view.data;
  }

  const char* op_;
  ArgumentChecker check_;
  Leading leading_;
  DType dtype_{};
  RowGroups groups_{};
  std::vector<Operand> inputs_;
  std::vector<Operand> outputs_;
};

}  // namespace transformer_kernels
