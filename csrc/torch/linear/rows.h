// SPDX-License-Identifier: MIT
// The rows that the family's raw ops take and return.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "core/log.h"
#include "core/rounding.h"
#include "core/rows.h"
#include "torch/fields.h"

namespace transformer_kernels::torch_ops {

// The leading dimensions of x, and this many columns. What x lacks is found with all else.
inline TensorView with_columns(const TensorView& x, std::int64_t cols) {
  TensorView like = x;
  if (x.rank > 0) like.sizes[x.rank - 1] = cols;
  return like;
}

// On CUDA the fast products read rows that are 16-byte aligned and apart. A copy of others, with
// room between its rows where there has to be some, takes far less time than another product.
inline Tensor with_aligned_rows(const char* op, const char* name, const Tensor& tensor) {
  Tensor even = with_even_rows(op, name, tensor);
  const TensorView view = view_of(op, name, even);
  if (view.device.type != DeviceType::kCuda || view.rank == 0 || view.numel() == 0) return even;
  const std::int64_t step = 16 / static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t stride = row_stride(view);
  const bool aligned = reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
  if (size_of(view.dtype) > 2 || (aligned && stride > 0 && stride % step == 0)) return even;
  if (log_dispatch()) log_line(concat(op, ": ", name, " has uneven or shared rows: copied"));
  TensorView roomy = view;
  std::int64_t& cols = roomy.sizes[view.rank - 1];
  const std::int64_t count = cols;
  cols = rounded_up(cols, step);
  Tensor memory = empty(rows_like(roomy));
  Tensor rows = torch::stable::narrow(memory, view.rank - 1, 0, count);
  torch::stable::copy_(rows, even);
  return rows;
}

}  // namespace transformer_kernels::torch_ops
