// SPDX-License-Identifier: MIT
#include "transformer_kernels/softmax/softmax.h"

#include <cmath>

#include "core/backends.h"
#include "core/overlap.h"
#include "softmax/problem.h"

namespace transformer_kernels {
namespace {

constexpr Backends<SoftmaxForwardProblem> kForward{
    .cpu = cpu::softmax_forward,
    .cuda = kHasCuda ? cuda::softmax_forward : nullptr,
    .fpga = fpga::softmax_forward};
constexpr Backends<SoftmaxBackwardProblem> kBackward{
    .cpu = cpu::softmax_backward, .cuda = kHasCuda ? cuda::softmax_backward : nullptr};

MaskKind mask_kind(const TensorView& mask, DType dtype) {
  if (mask.dtype == DType::kBool) return MaskKind::kBool;
  if (mask.dtype == dtype) return MaskKind::kSameDType;
  check_type(mask.dtype == DType::kFloat32 && dtype != DType::kFloat64, "softmax: mask is ",
             name_of(mask.dtype), ", expected bool", size_of(dtype) < 4 ? ", " : " or ",
             name_of(dtype), size_of(dtype) < 4 ? " or float32" : "");
  return MaskKind::kFloat32;
}

RowMask check_mask(Device device, const TensorView& mask, const TensorView& x) {
  check_value(mask.device == device, "softmax: mask is on ", name_of(mask.device.type), ":",
              mask.device.index, ", expected ", name_of(device.type), ":", device.index);
  bool fits = mask.rank == x.rank;
  for (int i = 0; fits && i < x.rank; ++i) {
    fits = mask.sizes[i] == x.sizes[i] || mask.strides[i] == 0;
  }
  if (!fits) {
    check_value(false, "softmax: mask has shape ", shape_of(mask), ", expected ", shape_of(x),
                " (the shape of x), broadcast by strides of 0");
  }
  const int last = x.rank - 1;
  RowMask out;
  out.kind = mask_kind(mask, x.dtype);
  out.data = mask.data;
  out.col_stride = x.sizes[last] == 1 ? 0 : mask.strides[last];
  check_value(out.col_stride == 0 || out.col_stride == 1, "softmax: mask has a last stride of ",
              out.col_stride, ", expected 1 or 0");
  for (int i = 0; i < last; ++i) {
    if (x.sizes[i] == 1) continue;
    const bool continues =
        out.rank > 0 && out.strides[out.rank - 1] == mask.strides[i] * x.sizes[i];
    if (continues) {
      out.sizes[out.rank - 1] *= x.sizes[i];
      out.strides[out.rank - 1] = mask.strides[i];
    } else {
      out.sizes[out.rank] = x.sizes[i];
      out.strides[out.rank++] = mask.strides[i];
    }
  }
  return out;
}

SoftmaxForwardProblem check_forward(Device device, const SoftmaxForward& a) {
  const ArgumentChecker check("softmax", device);
  check.floating("x", a.x);
  check.typed("y", a.y, a.x.dtype, "the dtype of x");
  check.same_shape("y", a.y, "x", a.x);
  check_value(std::isfinite(a.scale), "softmax: scale is ", a.scale, ", expected a finite number");
  check_value(!a.causal || a.x.rank >= 2, "softmax: x has ", a.x.rank,
              " dimensions, expected at least 2 (causal)");
  const auto [rows, cols] = rows_and_cols(a.x);
  SoftmaxForwardProblem p{};
  p.dtype = a.x.dtype;
  p.rows = rows;
  p.cols = cols;
  p.x = a.x.data;
  p.x_stride = checked_row_stride("softmax", "x", a.x);
  p.y = a.y.data;
  p.y_stride = checked_output_stride("softmax", "y", a.y);
  if (a.mask.defined()) p.mask = check_mask(device, a.mask, a.x);
  p.causal_rows = a.causal ? a.x.sizes[a.x.rank - 2] : 0;
  p.scale = a.scale;
  p.log = a.log;
  check_apart("softmax", {{"y", a.y}}, {{"x", a.x}, {"mask", a.mask}});
  return p;
}

SoftmaxBackwardProblem check_backward(Device device, const SoftmaxBackward& a) {
  const ArgumentChecker check("softmax", device);
  check.floating("y", a.y);
  for (const auto& [name, view] : {std::pair{"dy", &a.dy}, std::pair{"dx", &a.dx}}) {
    check.typed(name, *view, a.y.dtype, "the dtype of y");
    check.same_shape(name, *view, "y", a.y);
  }
  check_value(std::isfinite(a.scale), "softmax: scale is ", a.scale, ", expected a finite number");
  const auto [rows, cols] = rows_and_cols(a.y);
  SoftmaxBackwardProblem p{};
  p.dtype = a.y.dtype;
  p.rows = rows;
  p.cols = cols;
  p.dy = a.dy.data;
  p.dy_stride = checked_row_stride("softmax", "dy", a.dy);
  p.y = a.y.data;
  p.y_stride = checked_row_stride("softmax", "y", a.y);
  p.dx = a.dx.data;
  p.dx_stride = checked_output_stride("softmax", "dx", a.dx);
  p.scale = a.scale;
  p.masked = a.masked;
  p.log = a.log;
  check_over_or_apart("softmax", {"dx", a.dx}, {"dy", a.dy});
  check_apart("softmax", {{"dx", a.dx}}, {{"y", a.y}});
  return p;
}

}  // namespace

std::string describe(const SoftmaxForwardProblem& p) {
  return concat("forward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.mask.kind != MaskKind::kNone ? " + mask" : "", p.causal_rows ? " causal" : "",
                p.log ? " log" : "");
}

std::string describe(const SoftmaxBackwardProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.rows, "x", p.cols, p.log ? " log" : "");
}

void softmax_forward(const Context& context, const SoftmaxForward& arguments) {
  const SoftmaxForwardProblem problem = check_forward(context.device, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on("softmax", kForward, context, problem);
}

void softmax_backward(const Context& context, const SoftmaxBackward& arguments) {
  const SoftmaxBackwardProblem problem = check_backward(context.device, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on("softmax", kBackward, context, problem);
}

}  // namespace transformer_kernels
