// SPDX-License-Identifier: MIT
// Checks of the operands of the family's ops, one by one.
#pragma once

#include <vector>

#include "core/check.h"
#include "core/overlap.h"
#include "core/strides.h"
#include "linear/problem.h"

namespace transformer_kernels {

// The tensor whose columns weight has, and what its dtype is called.
struct Leading {
  const char* name;
  const char* dtype;
};
inline constexpr Leading kX{"x", "the dtype of x"};
inline constexpr Leading kZ{"z", "the dtype of z"};
inline constexpr Leading kGate{"gate", "the dtype of gate"};
inline constexpr Leading kDy{"dy", "the dtype of dy"};

// The gradient of a weight has lines of elements that are together, and each has a place.
inline void check_gradient_strides(const char* op, const char* name, const TensorView& view) {
  const bool has_lines = view.numel() == 0 || view.sizes[0] == 1 || view.sizes[1] == 1 ||
                         view.strides[0] == 1 || view.strides[1] == 1;
  check_value(has_lines && !overlaps_itself(view), op, ": ", name, " has strides (",
              view.strides[0], ", ", view.strides[1],
              "), expected one of 1 and no element over another");
}

// cuBLASLt has algorithms on CUDA alone.
inline void check_algorithm(const char* op, const Context& context, std::int64_t algorithm) {
  check_value(
      algorithm >= kPreferCublasLt, op, ": algorithm is ", algorithm,
      ", expected a number of cuBLASLt's from 0 on, -1 for any, or -2 to prefer cuBLASLt's");
  check_value(algorithm < 0 || context.device.type == DeviceType::kCuda, op, ": algorithm is ",
              algorithm, ", expected -1 or -2 (cuBLASLt's run on CUDA)");
}

// Memory of as many bytes as a packed weight has.
inline void check_packed(const char* op, const ArgumentChecker& check, const TensorView& view,
                         DType dtype, std::int64_t terms, std::int64_t cols) {
  check_value(view.device.type == DeviceType::kCpu, op, ": packed is on ",
              name_of(view.device.type), ", expected cpu");
  check.typed("packed", view, DType::kUInt8, "bytes");
  const std::int64_t bytes = cpu::packed_bytes(dtype, terms, cols);
  check_value(view.rank == 1, op, ": packed has ", view.rank, " dimensions, expected 1");
  check.packed("packed", view, bytes, "bytes of the packed weight");
}

// Checks the operands of one call one by one, and notes where they lie.
class Operands {
 public:
  Operands(const char* op, const Context& context, const TensorView& x, const TensorView& weight,
           Leading leading = kX)
      : op_(op),
        check_(op, context.device),
        x_(x),
        leading_(leading) {
    check_.floating(leading.name, x);
    shape_ = rows_and_cols(x);
    check_.floating("weight", weight);
    check_value(weight.rank == 2, op_, ": weight has ", weight.rank, " dimensions, expected 2");
    check_.typed("weight", weight, x.dtype, leading.dtype);
    check_value(weight.sizes[1] == shape_.cols, op_, ": weight has ", weight.sizes[1],
                " columns, expected ", shape_.cols, " (the last dimension of ", leading.name, ")");
    cols_ = weight.sizes[0];
  }

  std::int64_t rows() const { return shape_.rows; }
  std::int64_t terms() const { return shape_.cols; }
  std::int64_t cols() const { return cols_; }

  Rows input(const char* name, const TensorView& view, std::int64_t cols) {
    inputs_.push_back({name, view});
    check_rows(name, view, cols);
    return {view.data, checked_row_stride(op_, name, view)};
  }
  Rows output_if_present(const char* name, const TensorView& view, std::int64_t cols) {
    if (!view.defined()) return {};
    outputs_.push_back({{name, view}});
    check_rows(name, view, cols);
    return {view.data, checked_output_stride(op_, name, view)};
  }
  // One that may lie exactly over an input, which was given before.
  Rows output_over(const char* name, const TensorView& view, std::int64_t cols,
                   const TensorView& input) {
    const Rows rows = output_if_present(name, view, cols);
    if (view.defined()) outputs_.back().over = &input;
    return rows;
  }

  Matrix weight(const TensorView& view) { return matrix("weight", view); }
  // The weight as pack_weight() leaves it: of its size, and on the CPU.
  const void* packed_if_present(const TensorView& view) {
    if (!view.defined()) return nullptr;
    inputs_.push_back({"packed", view});
    check_packed(op_, check_, view, x_.dtype, terms(), cols_);
    return view.data;
  }
  // A second weight, with the shape of `weight`.
  Matrix weight_like(const char* name, const TensorView& view, const TensorView& weight) {
    check_.floating(name, view);
    check_.typed(name, view, x_.dtype, leading_.dtype);
    check_.same_shape(name, view, "weight", weight);
    return matrix(name, view);
  }
  // The gradient may be float32 where x has 16 bits.
  Matrix dweight_if_present(const TensorView& view, const TensorView& weight) {
    if (!view.defined()) return {};
    outputs_.push_back({{"dweight", view}});
    check_.typed_or_float32("dweight", view, x_.dtype, leading_.name);
    check_.same_shape("dweight", view, "weight", weight);
    check_gradient_strides(op_, "dweight", view);
    return {view.data, view.strides[0], view.strides[1]};
  }

  // One value a column of y, of x's dtype or float32.
  const void* bias_if_present(const TensorView& view, const char* name = "bias") {
    if (!view.defined()) return nullptr;
    inputs_.push_back({name, view});
    return vector(name, view, cols_, "the rows of weight");
  }
  // One value a column of weight, of x's dtype or float32.
  const void* bias_of_columns_if_present(const TensorView& view, const char* name) {
    if (!view.defined()) return nullptr;
    inputs_.push_back({name, view});
    return vector(name, view, shape_.cols, "the columns of weight");
  }
  void* dbias_if_present(const TensorView& view) {
    if (!view.defined()) return nullptr;
    outputs_.push_back({{"dbias", view}});
    return vector("dbias", view, cols_, "the rows of weight");
  }
  void* dbias_of_columns_if_present(const TensorView& view) {
    if (!view.defined()) return nullptr;
    outputs_.push_back({{"dbias", view}});
    return vector("dbias", view, shape_.cols, "the columns of weight");
  }

  void check_overlaps() const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const auto& [output, over] = outputs_[i];
      for (const Operand& input : inputs_) {
        if (over != &input.view || !same_memory(output.view, *over))
          check_apart(op_, output, input);
      }
      for (std::size_t j = 0; j < i; ++j) check_apart(op_, output, outputs_[j].operand);
    }
  }

 private:
  struct Output {
    Operand operand;
    const TensorView* over = nullptr;
  };

  Matrix matrix(const char* name, const TensorView& view) {
    inputs_.push_back({name, view});
    return {view.data, view.strides[0], view.strides[1]};
  }

  // The leading dimensions of x, then `cols`.
  void check_rows(const char* name, const TensorView& view, std::int64_t cols) const {
    check_.typed(name, view, x_.dtype, leading_.dtype);
    TensorView like = x_;
    like.sizes[like.rank - 1] = cols;
    check_.same_shape(name, view, concat("the rows of ", leading_.name).c_str(), like);
  }

  void* vector(const char* name, const TensorView& view, std::int64_t count, const char* of) const {
    check_.floating(name, view);
    check_.typed_or_float32(name, view, x_.dtype, leading_.name);
    check_.packed(name, view, count, of);
    check_value(view.rank == 1, op_, ": ", name, " has ", view.rank, " dimensions, expected 1");
    return view.data;
  }

  const char* op_;
  ArgumentChecker check_;
  const TensorView& x_;
  Leading leading_;
  Shape2d shape_{};
  std::int64_t cols_ = 0;
  std::vector<Operand> inputs_;
  std::vector<Output> outputs_;
};

}  // namespace transformer_kernels
