// SPDX-License-Identifier: MIT
// Tests of which elements of tensors with any strides share memory.
#pragma once

#include <array>
#include <cstdint>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// Whether two elements may lie in one place: each dimension, from the closest on, has to step over
// all that lie below it.
constexpr bool overlaps_itself(const TensorView& view) {
  if (view.numel() == 0) return false;
  std::array<bool, TensorView::kMaxRank> done{};
  std::int64_t extent = 1;
  for (int round = 0; round < view.rank; ++round) {
    int next = -1;
    for (int i = 0; i < view.rank; ++i) {
      if (!done[i] && (next < 0 || view.strides[i] < view.strides[next])) next = i;
    }
    done[next] = true;
    if (view.sizes[next] == 1) continue;
    if (view.strides[next] < extent) return true;
    extent = view.strides[next] * view.sizes[next];
  }
  return false;
}

// Whether, of two tensors of one shape, each element of one lies where its counterpart does.
constexpr bool same_memory(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.sizes[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

// Elements from the first to the last one in memory. No stride is negative.
constexpr std::int64_t span_of(const TensorView& view) {
  std::int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) last += (view.sizes[i] - 1) * view.strides[i];
  return view.numel() == 0 ? 0 : last + 1;
}

// Whether the tensors share memory, as far as can be told: parts of one buffer that take turns in
// memory, as q and k in one packed tensor do, pass.
inline bool share_memory(const TensorView& a, const TensorView& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const auto begin = [](const TensorView& v) { return reinterpret_cast<std::uintptr_t>(v.data); };
  const auto end = [&](const TensorView& v) { return begin(v) + span_of(v) * size_of(v.dtype); };
  if (begin(a) >= end(b) || begin(b) >= end(a)) return false;
  const auto has_no_gaps = [](const TensorView& v) { return span_of(v) == v.numel(); };
  return begin(a) == begin(b) || has_no_gaps(a) || has_no_gaps(b);
}

}  // namespace transformer_kernels
