// SPDX-License-Identifier: MIT
#include "core/check.h"

#include "core/dispatch.h"

namespace transformer_kernels {

std::string shape_of(const TensorView& view) {
  std::string text = "(";
  for (int i = 0; i < view.rank; ++i) text += concat(i ? ", " : "", view.sizes[i]);
  return text + (view.rank == 1 ? ",)" : ")");
}

namespace {

void check_present(const char* op, const char* argument, const TensorView& view, Device device) {
  check_value(view.defined(), op, ": ", argument, " is missing");
  check_value(view.device == device, op, ": ", argument, " is on ", name_of(view.device.type), ":",
              view.device.index, ", expected ", name_of(device.type), ":", device.index);
  check_value(view.data != nullptr || view.numel() == 0, op, ": ", argument, " is a null pointer");
}

}  // namespace

void ArgumentChecker::floating(const char* argument, const TensorView& view) const {
  check_present(op_, argument, view, device_);
  check_type(is_floating(view.dtype), op_, ": ", argument, " is ", name_of(view.dtype),
             ", expected a floating-point dtype");
  check_value(view.rank >= 1, op_, ": ", argument, " has 0 dimensions, expected at least 1");
}

void ArgumentChecker::typed(const char* argument, const TensorView& view, DType dtype,
                            const char* reason) const {
  check_present(op_, argument, view, device_);
  check_type(view.dtype == dtype, op_, ": ", argument, " is ", name_of(view.dtype), ", expected ",
             name_of(dtype), " (", reason, ")");
}

void ArgumentChecker::typed_or_float32(const char* argument, const TensorView& view, DType dtype,
                                       const char* like_name) const {
  check_present(op_, argument, view, device_);
  check_type(view.dtype == dtype || view.dtype == accumulate_dtype(dtype), op_, ": ", argument,
             " is ", name_of(view.dtype), ", expected ", name_of(dtype),
             size_of(dtype) < 4 ? " or float32" : "", " (the dtype of ", like_name, ")");
}

void ArgumentChecker::indices(const char* argument, const TensorView& view) const {
  check_present(op_, argument, view, device_);
  check_type(is_index(view.dtype), op_, ": ", argument, " is ", name_of(view.dtype),
             ", expected int32 or int64");
}

void ArgumentChecker::same_shape(const char* argument, const TensorView& view,
                                 const char* like_name, const TensorView& like) const {
  bool same = view.rank == like.rank;
  for (int i = 0; same && i < view.rank; ++i) same = view.sizes[i] == like.sizes[i];
  if (same) return;
  check_value(false, op_, ": ", argument, " has shape ", shape_of(view), ", expected ",
              shape_of(like), " (the shape of ", like_name, ")");
}

void ArgumentChecker::packed(const char* argument, const TensorView& view, std::int64_t count,
                             const char* reason) const {
  check_value(view.numel() == count, op_, ": ", argument, " has ", view.numel(),
              " elements, expected ", count, " (", reason, ")");
  if (count == 0) return;
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    check_value(view.sizes[i] <= 1 || view.strides[i] == stride, op_, ": ", argument,
                " has gaps, expected contiguous memory");
    stride *= view.sizes[i];
  }
}

void ArgumentChecker::quantized(const char* argument, const Quantized& matrix) const {
  const auto& [values, scales, group, bits] = matrix;
  check_value(bits == 4 || bits == 8, op_, ": ", argument, " has ", bits, " bits, expected 4 or 8");
  const std::string names[] = {concat(argument, ".values"), concat(argument, ".scales")};
  for (const auto& [name, view] : {std::pair{&names[0], &values}, std::pair{&names[1], &scales}}) {
    check_present(op_, name->c_str(), *view, device_);
    check_value(view->rank == 2, op_, ": ", *name, " has ", view->rank, " dimensions, expected 2");
    check_value(view->sizes[1] <= 1 || view->strides[1] == 1, op_, ": ", *name,
                " has a last stride of ", view->strides[1], ", expected 1");
  }
  const bool stored = bits == 4
                          ? values.dtype == DType::kUInt8
                          : values.dtype == DType::kInt8 || values.dtype == DType::kFloat8E4M3 ||
                                values.dtype == DType::kFloat8E5M2;
  check_type(stored, op_, ": ", names[0], " is ", name_of(values.dtype), ", expected ",
             bits == 4 ? "uint8 (two numbers a byte)" : "int8, float8_e4m3fn or float8_e5m2");
  check_type(is_floating(scales.dtype) && scales.dtype != DType::kFloat64, op_, ": ", names[1],
             " is ", name_of(scales.dtype), ", expected float32, float16 or bfloat16");
  check_value(group >= 1 && matrix.cols() % group == 0, op_, ": ", argument, " has a group of ",
              group, ", expected a divisor of ", matrix.cols(), " (its columns)");
  const std::int64_t groups = matrix.cols() / group;
  check_value(scales.sizes[0] == matrix.rows() && scales.sizes[1] == groups, op_, ": ", names[1],
              " has shape ", shape_of(scales), ", expected (", matrix.rows(), ", ", groups,
              ") (rows, groups of ", group, " columns)");
}

}  // namespace transformer_kernels
