// SPDX-License-Identifier: MIT
// Tensors of (batch, time, heads, dim), and tensors that pack sequences of different lengths.
#pragma once

#include <cstdint>

#include "core/check.h"

namespace transformer_kernels {

// (T, H, D) as (1, T, H, D); a tensor of any other rank stays as it is.
inline TensorView with_batch(TensorView view) {
  if (view.rank != 3) return view;
  for (int i = 3; i > 0; --i) {
    view.sizes[i] = view.sizes[i - 1];
    view.strides[i] = view.strides[i - 1];
  }
  view.sizes[0] = 1;
  view.strides[0] = 0;
  view.rank = 4;
  return view;
}

// The checked memory of cumulated lengths: sequence b holds rows [at[b], at[b + 1]) of `rows`,
// those of the tensor `of`. The numbers themselves are looked at where the host can read them.
const std::int32_t* cu_seqlens_of(const char* op, Device device, const char* name,
                                  const TensorView& view, std::int64_t rows, const char* of);

}  // namespace transformer_kernels
