// SPDX-License-Identifier: MIT
// The kernels of a step. Compiled once per instruction set; see core/cpu/isa.h.
#include "decode/step/kernels.h"

#include "core/cpu/row_loop.h"
#include "core/math/activation.h"
#include "decode/step/attend.h"
#include "decode/step/product.h"
#include "rope/pairs.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

using V = Vec<float>;

TFK_FLATTEN void norm(const float* x, const float* weight, std::int64_t count, float eps,
                      float* y) {
  auto sums = Slots<float>::of(0);
  for_each_vector<float>(count, [&](std::int64_t i, int slot, auto lanes) {
    const V v = load(x + i, lanes);
    sums[slot] = fma(v, v, sums[slot]);
  });
  const float mean = sums.sum() / static_cast<float>(count);
  const V factor = V::of(1 / __builtin_sqrtf(mean + eps));
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    store(y + i, load(x + i, lanes) * factor * load(weight + i, lanes), lanes);
  });
}

TFK_FLATTEN void add(float* x, const float* y, std::int64_t count) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    store(x + i, load(x + i, lanes) + load(y + i, lanes), lanes);
  });
}

TFK_FLATTEN void multiply_by(const float* x, float factor, std::int64_t count, float* y) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    store(y + i, load(x + i, lanes) * V::of(factor), lanes);
  });
}

template <class Function>
TFK_INLINE void gate_by(const float* gate, const float* up, std::int64_t count, float* out) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    const V value = Function::value(math::Accurate{}, load(gate + i, lanes));
    store(out + i, value * load(up + i, lanes), lanes);
  });
}

TFK_FLATTEN void gate(StepActivation activation, const float* gate, const float* up,
                      std::int64_t count, float* out) {
  switch (activation) {
    case StepActivation::kSilu: return gate_by<math::Silu>(gate, up, count, out);
    case StepActivation::kGelu: return gate_by<math::Gelu>(gate, up, count, out);
    case StepActivation::kGeluTanh: return gate_by<math::GeluTanh>(gate, up, count, out);
  }
}

TFK_FLATTEN void softcap(float* x, float cap, std::int64_t count) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    store(x + i, tanh(load(x + i, lanes) * V::of(1 / cap)) * V::of(cap), lanes);
  });
}

// A row of numbers, rounded.
TFK_INLINE void to_halves(const float* x, std::int64_t count, Half* out) {
  for_each_vector<Half>(count, [&](std::int64_t i, int, auto lanes) {
    store(out + i, load_as<Half>(x + i, lanes), lanes);
  });
}

TFK_FLATTEN void append(const float* k, const float* v, std::int64_t dim, std::int64_t position,
                        Half* block) {
  const std::int64_t padded = decode::padded_dim(dim);
  Half key[decode::kMostDim];
  to_halves(k, dim, key);
  Half* const keys = block + position / 16 * 16 * padded + position % 16;
  for (std::int64_t d = 0; d < dim; ++d) keys[d * 16] = key[d];
  to_halves(v, dim, block + (kBlockPositions + position) * padded);
}

// Blocks of numbers are looked at for their largest; only the first that has it is searched.
TFK_FLATTEN decode::Best best(const float* x, std::int64_t count) {
  constexpr std::int64_t kBlock = 32 * kLanes;
  float top = -__builtin_inff();
  std::int64_t from = 0;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t some = count - begin < kBlock ? count - begin : kBlock;
    auto tops = Slots<float>::of(-__builtin_inff());
    for_each_vector<float>(some, [&](std::int64_t i, int slot, auto lanes) {
      const V none = V::of(-__builtin_inff());
      tops[slot] = max(keep<float>(load(x + begin + i, lanes), lanes, none), tops[slot]);
    });
    const float most = tops.largest();
    if (most > top) {
      top = most;
      from = begin;
    }
  }
  while (from < count - 1 && x[from] != top) ++from;
  return {top, top == x[from] ? from : 0};
}

std::uint64_t sum(const std::byte* data, std::int64_t bytes) {
  constexpr int kWords = 64;
  std::uint64_t sums[kWords] = {};
  const auto* p = reinterpret_cast<const std::uint64_t*>(data);
  for (std::int64_t i = 0; i + kWords <= bytes / 8; i += kWords, p += kWords) {
#pragma GCC unroll 64
    for (int j = 0; j < kWords; ++j) sums[j] += p[j];
  }
  for (std::int64_t i = bytes / 8 / kWords * kWords; i < bytes / 8; ++i) sums[0] += *p++;
  std::uint64_t all = 0;
  for (const std::uint64_t one : sums) all += one;
  return all;
}

}  // namespace

const decode::StepKernels step_kernels = {
    {{multiply<TileFormat::kFloat32, true>, multiply<TileFormat::kFloat32, true>},
     {multiply<TileFormat::kFloat16, true>, multiply<TileFormat::kFloat16, true>},
     {multiply<TileFormat::kBFloat16, true>, multiply<TileFormat::kBFloat16, true>},
     {multiply<TileFormat::kInt8, true>, multiply<TileFormat::kInt8, !kSplitsCodes>},
     {multiply<TileFormat::kInt4, true>, multiply<TileFormat::kInt4, !kSplitsCodes>},
     {multiply<TileFormat::kInt4Minimum, true>, multiply<TileFormat::kInt4Minimum, !kSplitsCodes>}},
    {quantize<true>, quantize<false>},
    norm,
    add,
    multiply_by,
    rotate_pairs,
    gate,
    softcap,
    append,
    attend,
    best,
    sum};

}  // namespace transformer_kernels::cpu::TFK_ISA
