// SPDX-License-Identifier: MIT
#include "core/check.h"

namespace transformer_kernels {

std::string shape_of(const TensorView& view) {
  std::ostringstream text;
  text << '(';
  for (int i = 0; i < view.rank; ++i) text << (i ? ", " : "") << view.sizes[i];
  text << (view.rank == 1 ? ",)" : ")");
  return text.str();
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
  check_type(view.dtype != DType::kBool, op_, ": ", argument, " is ", name_of(view.dtype),
             ", expected a floating-point dtype");
  check_value(view.rank >= 1, op_, ": ", argument, " has 0 dimensions, expected at least 1");
}

void ArgumentChecker::typed(const char* argument, const TensorView& view, DType dtype,
                            const char* reason) const {
  check_present(op_, argument, view, device_);
  check_type(view.dtype == dtype, op_, ": ", argument, " is ", name_of(view.dtype), ", expected ",
             name_of(dtype), " (", reason, ")");
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

}  // namespace transformer_kernels
