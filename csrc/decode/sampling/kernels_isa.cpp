// SPDX-License-Identifier: MIT
// Blocks of rows of logits. Compiled once per instruction set; see core/cpu/isa.h.
#include "decode/sampling/kernels.h"

#include "core/cpu/row_loop.h"
#include "decode/sampling/weights.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// ---------------------------------------------------------------------------- logits

template <InOrder T>
TFK_INLINE void widen(const T* x, std::int64_t count, float* z) {
  for_each_vector<T>(
      count, [&](std::int64_t i, int, auto lanes) { store(z + i, load(x + i, lanes), lanes); });
}
TFK_INLINE void widen(const double* x, std::int64_t count, float* z) {
  for (std::int64_t i = 0; i < count; ++i) z[i] = static_cast<float>(x[i]);
}
TFK_INLINE void widen(const BFloat16* x, std::int64_t count, float* z) {
  for (std::int64_t i = 0; i < count; ++i) {
    z[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(x[i].bits) << 16);
  }
}

TFK_INLINE void add(const float* bias, std::int64_t count, float* z) {
  for (std::int64_t i = 0; i < count; ++i) z[i] += bias[i];
}

template <class IsAllowed>
TFK_INLINE void forbid(std::int64_t begin, std::int64_t end, float* z, IsAllowed is_allowed) {
  for (std::int64_t i = begin; i < end; ++i) z[i] = is_allowed(i) ? z[i] : -Weighing::kInfinity;
}

template <class T>
void read(const void* x, const float* bias, const void* allowed, bool allowed_bits,
          std::int64_t begin, std::int64_t end, float* z) {
  widen(static_cast<const T*>(x) + begin, end - begin, z + begin);
  if (bias != nullptr) add(bias + begin, end - begin, z + begin);
  if (allowed == nullptr) return;
  if (allowed_bits) {
    const auto* const words = static_cast<const std::uint32_t*>(allowed);
    forbid(begin, end, z, [=](std::int64_t i) { return (words[i / 32] >> (i % 32) & 1) != 0; });
  } else {
    const auto* const bytes = static_cast<const std::uint8_t*>(allowed);
    forbid(begin, end, z, [=](std::int64_t i) { return bytes[i] != 0; });
  }
}

// A number says whether the token was seen, in its lowest bit, and how often behind the prompt.
void penalise(const Penalties& by, std::int64_t vocabulary, std::uint32_t* seen, float* z) {
  const auto is_token = [=](std::int64_t token) { return token >= 0 && token < vocabulary; };
  for (std::int64_t i = 0; i < by.count; ++i) {
    const std::int64_t token = by.previous[i];
    if (is_token(token)) seen[token] = (seen[token] | 1) + (i >= by.prompt ? 2 : 0);
  }
  for (std::int64_t i = 0; i < by.count; ++i) {
    const std::int64_t token = by.previous[i];
    if (!is_token(token) || seen[token] == 0) continue;
    const std::uint32_t times = seen[token] >> 1;
    seen[token] = 0;
    float v = z[token];
    v = v < 0 ? v * by.repetition : v / by.repetition;
    v = v - by.frequency * static_cast<float>(times);
    z[token] = v - (times > 0 ? by.presence : 0.0f);
  }
}

// Calls body(block, elements, z of the block).
template <class Body>
TFK_INLINE void for_blocks(const float* z, std::int64_t count, Body&& body) {
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    body(begin / kBlock, count - begin < kBlock ? count - begin : kBlock, z + begin);
  }
}

TFK_FLATTEN bool largest(const float* z, std::int64_t count, float* of_block) {
  const Numbers none = Numbers::of(-Weighing::kInfinity);
  Numbers strange = Numbers::of(0);  // NaN, where there was one
  for_blocks(z, count, [&](std::int64_t block, std::int64_t n, const float* own) {
    auto tops = Slots<float>::of(-Weighing::kInfinity);
    for_each_vector<float>(n, [&](std::int64_t i, int slot, auto lanes) {
      const Numbers v = load(own + i, lanes);
      tops[slot] = max(keep<float>(v, lanes, none), tops[slot]);
      strange = select(equal(v, v), strange, v);
    });
    of_block[block] = tops.largest();
  });
  const float sum = reduce_add(strange);
  return sum != sum;
}

TFK_FLATTEN std::int64_t above(const float* z, std::int64_t count, float bound, float* numbers,
                               std::int32_t* places) {
  constexpr std::int64_t kGroup = 64;  // numbers that are looked at one by one where one is above
  const Numbers none = Numbers::of(-Weighing::kInfinity);
  std::int64_t found = 0;
  for (std::int64_t begin = 0; begin < count; begin += kGroup) {
    const std::int64_t n = count - begin < kGroup ? count - begin : kGroup;
    auto tops = Slots<float>::of(-Weighing::kInfinity);
    for_each_vector<float>(n, [&](std::int64_t i, int slot, auto lanes) {
      tops[slot] = max(keep<float>(load(z + begin + i, lanes), lanes, none), tops[slot]);
    });
    if (tops.largest() < bound) continue;
    for (std::int64_t i = begin; i < begin + n; ++i) {
      numbers[found] = z[i];
      places[found] = static_cast<std::int32_t>(i);
      found += z[i] >= bound ? 1 : 0;
    }
  }
  return found;
}

// ---------------------------------------------------------------------------- weights

// Calls body(column, lanes, weights).
template <bool kLimited, class Body>
TFK_INLINE void for_weights(const float* z, std::int64_t n, const Weighing& by, Body&& body) {
  for_each_vector<float>(n, [&](std::int64_t i, int, auto lanes) {
    body(i, lanes, weight_of<kLimited>(by, load(z + i, lanes)));
  });
}
template <class Body>
TFK_INLINE void for_any_weights(const float* z, std::int64_t n, const Weighing& by, Body&& body) {
  if (by.are_probabilities) {
    for_each_vector<float>(n, [&](std::int64_t i, int, auto lanes) {
      body(i, lanes, weight_of_probability(load(z + i, lanes)));
    });
  } else if (by.is_limited || by.top == Weighing::kInfinity) {
    for_weights<true>(z, n, by, body);
  } else {
    for_weights<false>(z, n, by, body);
  }
}

TFK_FLATTEN void weigh(const float* z, std::int64_t count, const Weighing& by, float* w) {
  for_any_weights(z, count, by,
                  [&](std::int64_t i, auto lanes, Numbers v) { store(w + i, v, lanes); });
}

// A double of 2^52 or more has its whole number in its lowest bits, so that a sum of bits is one of
// whole numbers.
TFK_INLINE std::int64_t sum_whole(const float* w) {
  std::uint64_t sum = 0;
  for (int i = 0; i < kBlock; ++i) {
    sum += __builtin_bit_cast(std::uint64_t, static_cast<double>(w[i]) + 0x1p52);
  }
  return static_cast<std::int64_t>(sum - kBlock * __builtin_bit_cast(std::uint64_t, 0x1p52));
}

TFK_FLATTEN void sums(const float* z, std::int64_t count, const Weighing& by,
                      std::int64_t* of_block) {
  for_blocks(z, count, [&](std::int64_t block, std::int64_t n, const float* own) {
    alignas(64) float w[kBlock];
    if (n < kBlock) __builtin_memset(w, 0, sizeof(w));
    for_any_weights(own, n, by,
                    [&](std::int64_t i, auto lanes, Numbers v) { store(w + i, v, lanes); });
    of_block[block] = sum_whole(w);
  });
}

TFK_FLATTEN std::int64_t moment(const float* z, std::int64_t count, const Weighing& by) {
  std::int64_t sum = 0;
  for_blocks(z, count, [&](std::int64_t, std::int64_t n, const float* own) {
    alignas(64) float products[kBlock];
    if (n < kBlock) __builtin_memset(products, 0, sizeof(products));
    for_weights<true>(own, n, by, [&](std::int64_t i, auto lanes, Numbers w) {
      const Numbers x = exponent(by, load(own + i, lanes));
      store(products + i, (w * Numbers::of(1 / kUnit)) * x, lanes);
    });
    for (int i = 0; i < kBlock; ++i) {
      sum -= whole_weight(products[i] * -0x1p32f);
    }
  });
  return sum;
}

TFK_FLATTEN void distances(const float* z, std::int64_t count, const Weighing& by, float* d) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    store(d + i, abs(exponent(by, load(z + i, lanes)) - Numbers::of(by.mean)), lanes);
  });
}

void excess(const float* p, const float* q, std::int64_t count, double a, double b,
            std::int64_t* w) {
  constexpr double kWhole = 0x1p52;
  for (std::int64_t i = 0; i < count; ++i) {
    const double left = (static_cast<double>(p[i]) + kWhole - kWhole) * a -
                        (static_cast<double>(q[i]) + kWhole - kWhole) * b;
    const double positive = left > 0 ? left : 0;
    w[i] = __builtin_bit_cast(std::int64_t, positive + kWhole) -
           __builtin_bit_cast(std::int64_t, kWhole);
  }
}

}  // namespace

const SamplingKernels sampling_kernels = {{read<double>, read<float>, read<Half>, read<BFloat16>},
                                          penalise,
                                          largest,
                                          above,
                                          weigh,
                                          sums,
                                          moment,
                                          distances,
                                          excess};

}  // namespace transformer_kernels::cpu::TFK_ISA
