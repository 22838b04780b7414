// SPDX-License-Identifier: MIT
#include "transformer_kernels/fpga/linear.h"

#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "core/rounding.h"
#include "core/rows.h"
#include "fpga/array.h"
#include "fpga/matmul.h"
#include "fpga/quantize.h"

namespace transformer_kernels::fpga {
namespace {

constexpr const char* kOp = "linear";

struct Matrix {
  DType dtype;
  const void* data;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t stride;
};

Matrix matrix_of(const char* name, const TensorView& view) {
  const auto [rows, cols] = rows_and_cols(view);
  return {view.dtype, view.data, rows, cols, checked_row_stride(kOp, name, view)};
}

// Rows of int8, each with a scale of its own.
struct ScaledRows {
  Int8Rows rows;
  std::vector<double> scales;
};

ScaledRows quantize_matrix(const char* name, const Matrix& matrix, std::int64_t step) {
  ScaledRows out;
  out.rows.rows = matrix.rows;
  out.rows.width = rounded_up(matrix.cols, step);
  out.rows.data.resize(static_cast<std::size_t>(out.rows.rows * out.rows.width));
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    widen(matrix.dtype,
          static_cast<const char*>(matrix.data) + i * matrix.stride * size_of(matrix.dtype), row);
    check_finite(kOp, name, row);
    out.scales.push_back(int8_scale(row));
    quantize(row, out.scales.back(), out.rows.data.data() + i * out.rows.width);
  }
  return out;
}

void check_arguments(const Context& context, const LinearForward& a) {
  const ArgumentChecker check(kOp, context.device);
  check_value(context.array != nullptr, kOp, ": array is missing, expected one in the context");
  check_value(context.device.type == DeviceType::kCpu, kOp,
              ": device is cuda, expected cpu (an FPGA array reads memory of the CPU)");
  const Array& array = *context.array;
  check_value(array.set().matmul, kOp, ": array is ", array.name(),
              ", expected one with MATMUL (it was built without)");
  check.floating("x", a.x);
  check.typed("weight", a.weight, a.x.dtype, "the dtype of x");
  check.typed("y", a.y, a.x.dtype, "the dtype of x");
  const std::int64_t cols = a.x.sizes[a.x.rank - 1];
  check_value(a.weight.rank == 2, kOp, ": weight has ", a.weight.rank, " dimensions, expected 2");
  check_value(a.weight.sizes[1] == cols, kOp, ": weight has shape ", shape_of(a.weight),
              ", expected (", a.weight.sizes[0], ", ", cols, ") (the last dimension of x)");
  TensorView wanted = a.x;
  wanted.sizes[wanted.rank - 1] = a.weight.sizes[0];
  check.same_shape("y", a.y, "x, with the rows of weight last", wanted);
  if (!a.bias.defined()) return;
  check.typed("bias", a.bias, a.x.dtype, "the dtype of x");
  check.packed("bias", a.bias, a.weight.sizes[0], "the rows of weight");
}

}  // namespace

void linear_forward(const Context& context, const LinearForward& a) {
  check_arguments(context, a);
  Array& array = *context.array;
  const std::int64_t y_stride = checked_output_stride(kOp, "y", a.y);
  const Matrix x_rows = matrix_of("x", a.x);
  const Matrix weight_rows = matrix_of("weight", a.weight);
  if (x_rows.rows == 0 || weight_rows.rows == 0) return;

  const ScaledRows x = quantize_matrix("x", x_rows, array.set().head_dim);
  const ScaledRows weight = quantize_matrix("weight", weight_rows, array.set().head_dim);
  std::vector<float> bias(static_cast<std::size_t>(weight_rows.rows));
  if (a.bias.defined()) widen(a.bias.dtype, a.bias.data, bias);
  if (log_dispatch()) {
    log_line(concat(kOp, " ", name_of(a.x.dtype), " ", x_rows.rows, "x", x_rows.cols, "x",
                    weight_rows.rows, ": fpga ", array.name(), " runs"));
  }
  std::vector<std::int64_t> sums(static_cast<std::size_t>(x_rows.rows * weight_rows.rows));
  matmul(array, x.rows, weight.rows, x_rows.cols, sums);

  std::vector<float> row(static_cast<std::size_t>(weight_rows.rows));
  for (std::int64_t i = 0; i < x_rows.rows; ++i) {
    for (std::int64_t n = 0; n < weight_rows.rows; ++n) {
      const auto sum = static_cast<double>(sums[i * weight_rows.rows + n]);
      row[n] = static_cast<float>(x.scales[i] * weight.scales[n] * sum + bias[n]);
    }
    narrow(a.y.dtype, row, static_cast<char*>(a.y.data) + i * y_stride * size_of(a.y.dtype));
  }
}

}  // namespace transformer_kernels::fpga
