// SPDX-License-Identifier: MIT
// The scores of a problem as both passes on Hopper take them: tensor maps of bias and mask, and the
// factors that hold the scale.
#pragma once

#include <cuda.h>

#include "attention/problem.h"
#include "core/cuda/tensor_map.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {

// Bias and mask come to shared memory in slabs: 64 queries of 128 bytes, swizzled.
inline constexpr int kMapSlabRows = 64;
inline constexpr int kMapRowBytes = 128;
inline constexpr int kMapSlabBytes = kMapSlabRows * kMapRowBytes;

struct LoadedMap {
  CUtensorMap map;
  int place;                  // of its first slab in the room for all maps
  int slab_keys;              // 0: TMA does not load it
  int head_step, batch_step;  // 0: the same for all
};

// Tensor map of a bias or mask; a broadcast dimension has size 1.
inline TensorMapLayout layout_of(const AttentionProblem& p, const ScoreMap& map) {
  const auto size = [](std::int64_t stride, std::int64_t all) { return stride == 0 ? 1 : all; };
  return {.dtype = map.dtype,
          .data = map.data,
          .sizes = {p.keys, p.queries, size(map.head_stride, p.heads),
                    size(map.batch_stride, p.batch), 1},
          .strides = {map.row_stride, map.head_stride, map.batch_stride, 0},
          .box = {kMapRowBytes / static_cast<int>(size_of(map.dtype)), kMapSlabRows, 1, 1, 1}};
}

inline bool is_loadable(const AttentionProblem& p, const ScoreMap& map) {
  return map.defined() && map.col_stride == 1 && fits_tensor_map(layout_of(p, map));
}

// Slabs of `keys` keys.
inline int slabs_of(const ScoreMap& map, int keys) {
  if (!map.defined()) return 0;
  const int bytes = keys * static_cast<int>(size_of(map.dtype));
  return static_cast<int>(divide_up(bytes, kMapRowBytes));
}

inline LoadedMap loaded_map(const char* op, const AttentionProblem& p, const ScoreMap& map,
                            int place) {
  const TensorMapLayout layout = layout_of(p, map);
  return {.map = encode_tensor_map(op, layout),
          .place = place,
          .slab_keys = layout.box[0],
          .head_step = map.head_stride == 0 ? 0 : 1,
          .batch_step = map.batch_stride == 0 ? 0 : 1};
}

// Scores are `unit` times f of `inner` times a product, plus the bias; `outer` times what that
// leaves. A bias is added as it is, as in other units the most negative number is infinite.
struct ScoreScales {
  double inner, unit, outer;
};

// Whether the scale can be left to the exponential: a row's maximum times the scale is that of its
// scores if the scale is positive, and distances that are added are divided by it.
inline bool leaves_scale(const AttentionProblem& p) {
  constexpr double kLeastScale = 1e-30;
  return p.scale > kLeastScale;
}

inline ScoreScales scales_of(const AttentionProblem& p) {
  const double inner = p.softcap != 0 ? p.scale / p.softcap : leaves_scale(p) ? 1 : p.scale;
  const double unit = p.softcap != 0 ? p.softcap : leaves_scale(p) ? p.scale : 1;
  return {inner, unit, p.bias.defined() ? 1 : unit};
}

}  // namespace transformer_kernels::cuda
