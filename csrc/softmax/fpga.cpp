// SPDX-License-Identifier: MIT
// Softmax on an FPGA array: the problems that it refuses, and rows of tensors as scores.
#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "fpga/array.h"
#include "fpga/quantize.h"
#include "fpga/softmax.h"
#include "softmax/problem.h"

namespace transformer_kernels::fpga {
namespace {

constexpr const char* kOp = "softmax";
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void check_served(const SoftmaxForwardProblem& p, const Array& array) {
  check_value(array.set().softmax, kOp, ": array is ", array.name(),
              ", expected one with SOFTMAX (it was built without)");
  check_value(!p.log, kOp, ": log is true, expected false (the array gives no logarithms)");
  check_value(p.mask.kind == MaskKind::kNone, kOp,
              ": mask is given, expected none, or causal (the array reads scores alone)");
  check_value(p.cols <= kMostSoftmaxKeys, kOp, ": x has rows of ", p.cols, ", expected at most ",
              kMostSoftmaxKeys, " (the array ", array.name(), ")");
}

const void* row_of(const SoftmaxForwardProblem& p, std::int64_t row) {
  return static_cast<const char*>(p.x) + row * p.x_stride * size_of(p.dtype);
}

std::vector<float> scores_of(const SoftmaxForwardProblem& p) {
  std::vector<float> scores(static_cast<std::size_t>(p.rows * p.cols));
  const std::span<float> all(scores);
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::span<float> values = all.subspan(row * p.cols, p.cols);
    widen(p.dtype, row_of(p, row), values);
    for (float& value : values) value *= static_cast<float>(p.scale);
    const auto visible = static_cast<std::size_t>(p.visible_cols(row));
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(visible), values.end(), -kInfinity);
  }
  return scores;
}

// A row of nothing but -inf is no distribution where no mask made it so.
void set_undefined_rows(std::span<const float> scores, std::int64_t cols, std::span<float> shares) {
  const auto step = static_cast<std::size_t>(cols);
  for (std::size_t at = 0; at < scores.size(); at += step) {
    const std::span<const float> row = scores.subspan(at, step);
    if (*std::max_element(row.begin(), row.end()) > -kInfinity) continue;
    std::fill_n(shares.begin() + static_cast<std::ptrdiff_t>(at), cols,
                std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace

void softmax_forward(const Context& context, const SoftmaxForwardProblem& p) {
  Array& array = *context.array;
  check_served(p, array);
  if (log_dispatch()) log_line(concat(kOp, " ", describe(p), ": fpga ", array.name(), " runs"));
  const std::vector<float> scores = scores_of(p);
  std::vector<float> shares(scores.size());
  softmax(array, scores, p.cols, shares);
  if (!p.masked()) set_undefined_rows(scores, p.cols, shares);
  for (std::int64_t row = 0; row < p.rows; ++row) {
    narrow(p.dtype, std::span<const float>(shares).subspan(row * p.cols, p.cols),
           static_cast<char*>(p.y) + row * p.y_stride * size_of(p.dtype));
  }
}

}  // namespace transformer_kernels::fpga
