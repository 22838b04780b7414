// SPDX-License-Identifier: MIT
// The router. Compiled once per instruction set; see core/cpu/isa.h.
#include "core/cpu/row_loop.h"
#include "core/math/activation.h"
#include "core/math/philox.h"
#include "moe/router/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

inline constexpr float kMinusInfinity = -__builtin_inff();

TFK_INLINE float natural_log(float v) { return __builtin_logf(v); }
TFK_INLINE double natural_log(double v) { return __builtin_log(v); }
TFK_INLINE float natural_exp(float v) { return __builtin_expf(v); }
TFK_INLINE double natural_exp(double v) { return __builtin_exp(v); }
TFK_INLINE float log1p(float v) { return __builtin_log1pf(v); }
TFK_INLINE double log1p(double v) { return __builtin_log1p(v); }
TFK_INLINE float root(float v) { return __builtin_sqrtf(v); }
TFK_INLINE double root(double v) { return __builtin_sqrt(v); }
TFK_INLINE float cosine(float v) { return __builtin_cosf(v); }
TFK_INLINE double cosine(double v) { return __builtin_cos(v); }
TFK_INLINE float sine(float v) { return __builtin_sinf(v); }
TFK_INLINE double sine(double v) { return __builtin_sin(v); }

// A row of the arithmetic's type, with room for all experts.
template <class A>
struct Row {
  alignas(64) A number[kMostExperts];

  TFK_INLINE A& operator[](std::int64_t i) { return number[i]; }
  TFK_INLINE const A& operator[](std::int64_t i) const { return number[i]; }
};

// ---------------------------------------------------------------------------- logits

template <InOrder T, class A = accumulate_t<T>>
TFK_INLINE void widen_row(const T* x, Row<A>& z, std::int64_t count) {
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    store(z.number + i, load(x + i, lanes), lanes);
  });
}
TFK_INLINE void widen_row(const BFloat16* x, Row<float>& z, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    z[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(x[i].bits) << 16);
  }
}

constexpr std::uint64_t kNormalCounters = std::uint64_t{1} << 63;

template <class A>
TFK_INLINE A uniform(std::uint32_t word) {
  return static_cast<A>(static_cast<std::int32_t>(word)) * static_cast<A>(0x1p-31);
}

// Two standard normal numbers (Box and Muller 1958).
template <class A>
void draw_normals(std::uint32_t a, std::uint32_t b, A* normals) {
  const A radius = root(-2 * natural_log((static_cast<A>(a) + A(0.5)) * static_cast<A>(0x1p-32)));
  const A angle = (static_cast<A>(b) + A(0.5)) * static_cast<A>(0x1p-32 * 6.283185307179586);
  normals[0] = radius * cosine(angle);
  normals[1] = radius * sine(angle);
}

// The slope of each noisy logit of a token in its logit: 1 + jitter * u.
template <class A>
void draw_slopes(const RouterProblem& p, std::int64_t token, Row<A>& slope) {
  for (int block = 0; block < p.counters(); ++block) {
    const PhiloxWords words = philox(
        p.draw.seed, static_cast<std::uint64_t>(token * p.counters() + block), p.draw.offset);
    for (int i = 0; i < 4 && 4 * block + i < p.experts; ++i) {
      slope[4 * block + i] = 1 + static_cast<A>(p.jitter) * uniform<A>(words.word[i]);
    }
  }
}

template <class A>
void add_noise(const RouterProblem& p, std::int64_t token, Row<A>& z) {
  for (int block = 0; block < p.counters(); ++block) {
    const auto counter = static_cast<std::uint64_t>(token * p.counters() + block);
    const PhiloxWords words = philox(p.draw.seed, counter | kNormalCounters, p.draw.offset);
    A normals[4];
    draw_normals(words.word[0], words.word[1], normals);
    draw_normals(words.word[2], words.word[3], normals + 2);
    for (int i = 0; i < 4 && 4 * block + i < p.experts; ++i) {
      z[4 * block + i] += static_cast<A>(p.noise) * normals[i];
    }
  }
}

// The noisy logits of a token.
template <class T, class A = accumulate_t<T>>
void read_logits(const RouterProblem& p, std::int64_t token, Row<A>& z) {
  widen_row(row_of<const T>(p.x, token), z, p.experts);
  if (p.jitter > 0) {
    Row<A> slope;
    draw_slopes(p, token, slope);
    for (int j = 0; j < p.experts; ++j) z[j] *= slope[j];
  }
  if (p.noise > 0) add_noise(p, token, z);
}

// ---------------------------------------------------------------------------- scores

template <class A>
TFK_FLATTEN A sum_row(const Row<A>& row, std::int64_t count) {
  auto sums = Slots<A>::of(0);
  for_each_vector<A>(count, [&](std::int64_t i, int slot, auto lanes) {
    sums[slot] = sums[slot] + load(row.number + i, lanes);
  });
  return sums.sum();
}

// The largest logit that is not NaN, and the sum of exponentials relative to it.
template <class A>
struct Softmax {
  A top;
  A sum;

  A lse() const { return top + natural_log(sum); }
};

// Writes exp(z - top).
template <class A>
TFK_FLATTEN Softmax<A> powers_of(const Row<A>& z, Row<A>& power, std::int64_t count) {
  using V = vec_t<A>;
  auto tops = Slots<A>::of(kMinusInfinity);
  for_each_vector<A>(count, [&](std::int64_t i, int slot, auto lanes) {
    const V v = load(z.number + i, lanes);
    tops[slot] = max(keep<A>(v, lanes, V::of(kMinusInfinity)), tops[slot]);
  });
  const A top = tops.largest();
  const A base = top == kMinusInfinity ? A{0} : top;
  auto sums = Slots<A>::of(0);
  for_each_vector<A>(count, [&](std::int64_t i, int slot, auto lanes) {
    const V e = exp(load(z.number + i, lanes) - V::of(base));
    store(power.number + i, e, lanes);
    sums[slot] = sums[slot] + keep<A>(e, lanes, V::of(0));
  });
  return {top, sums.sum()};
}

template <class A>
TFK_FLATTEN void scale_row(Row<A>& row, A factor, std::int64_t count) {
  using V = vec_t<A>;
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    store(row.number + i, load(row.number + i, lanes) * V::of(factor), lanes);
  });
}

template <class A>
TFK_FLATTEN void sigmoid_row(const Row<A>& z, Row<A>& s, std::int64_t count) {
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    store(s.number + i, math::sigmoid(math::Accurate{}, load(z.number + i, lanes)).value, lanes);
  });
}

template <class A>
A sqrt_softplus(A z) {
  const A positive = z > 0 ? z : z - z;  // 0, or NaN
  return root((z == kMinusInfinity ? 0 : positive) + log1p(natural_exp(z < 0 ? z : -z)));
}

// Scores that are not softmax, of which each has its own logit alone.
template <class A>
void own_scores(RouterScore score, const Row<A>& z, Row<A>& s, std::int64_t count) {
  if (score == RouterScore::kSigmoid) return sigmoid_row(z, s, count);
  for (std::int64_t j = 0; j < count; ++j) s[j] = sqrt_softplus(z[j]);
}

// The slope of a score that is not softmax, from the score.
template <class A>
A own_slope(RouterScore score, A z, A s) {
  if (score == RouterScore::kSigmoid) return s * math::sigmoid(math::Accurate{}, z).complement;
  return s == 0 ? A{0} : math::sigmoid(math::Accurate{}, z).value / (2 * s);
}

// ---------------------------------------------------------------------------- the choice

// NaN is larger than all numbers.
template <class A>
TFK_INLINE bool is_larger(A a, A b) {
  return a > b || (a != a && b == b);
}

// The largest numbers so far, in descending order; of equal ones the first stays.
template <class A>
struct Best {
  int wanted;
  int count = 0;
  A number[kMostChosen]{};
  std::int32_t index[kMostChosen]{};

  TFK_INLINE void offer(A value, std::int32_t at) {
    if (wanted < 1) __builtin_unreachable();  // the arguments were checked
    if (count == wanted && value <= number[count - 1]) return;
    if (count == wanted && !is_larger(value, number[count - 1])) return;
    int place = count < wanted ? count++ : count - 1;
    for (; place > 0 && is_larger(value, number[place - 1]); --place) {
      number[place] = number[place - 1];
      index[place] = index[place - 1];
    }
    number[place] = value;
    index[place] = at;
  }
};

// The sum of the two largest numbers; of one, where there is no second.
template <class A>
A best_two(const A* number, int count) {
  if (count == 1) return number[0];
  const bool swapped = is_larger(number[1], number[0]);
  A first = number[swapped];
  A second = number[!swapped];
  for (int i = 2; i < count; ++i) {
    if (is_larger(number[i], first)) {
      second = first;
      first = number[i];
    } else if (is_larger(number[i], second)) {
      second = number[i];
    }
  }
  return first + second;
}

// Marks the groups whose experts may be chosen.
template <class A>
std::uint32_t open_groups(const MoeRouterForwardProblem& p, const Row<A>& c) {
  const int size = p.experts / p.groups;
  A sum[kMostGroups]{};
  for (int g = 0; g < p.groups; ++g) sum[g] = best_two(c.number + g * size, size);
  std::uint32_t open = 0;
  for (int i = 0; i < p.top_groups; ++i) {
    int best = 0;
    while ((open >> best & 1) != 0) ++best;
    for (int g = best + 1; g < p.groups; ++g) {
      if ((open >> g & 1) == 0 && is_larger(sum[g], sum[best])) best = g;
    }
    open |= std::uint32_t{1} << best;
  }
  return open;
}

template <class A>
Best<A> choose(const MoeRouterForwardProblem& p, const Row<A>& c) {
  Best<A> best{.wanted = p.chosen};
  const int size = p.experts / p.groups;
  const std::uint32_t open = p.groups > 1 ? open_groups(p, c) : 1;
  for (int g = 0; g < p.groups; ++g) {
    if ((open >> g & 1) == 0) continue;
    for (int j = g * size; j < (g + 1) * size; ++j) best.offer(c[j], j);
  }
  return best;
}

// Adds the bias, of A or of T.
template <class T, class A = accumulate_t<T>>
void add_bias(const MoeRouterForwardProblem& p, Row<A>& c) {
  if (p.bias == nullptr) return;
  Row<A> bias;
  if (size_of(p.bias_dtype) == sizeof(T)) {
    widen_row(static_cast<const T*>(p.bias), bias, p.experts);
  } else {
    widen_row(static_cast<const A*>(p.bias), bias, p.experts);
  }
  for (int j = 0; j < p.experts; ++j) c[j] += bias[j];
}

// ---------------------------------------------------------------------------- weights

// Parts of the weights of the chosen: weights[k] = scale * share[k] / sum.
template <class A>
struct Shares {
  A share[kMostChosen];
  A sum;
};

template <class A>
Shares<A> softmax_of_chosen(const A* z, int count) {
  A top = kMinusInfinity;
  for (int k = 0; k < count; ++k) top = z[k] > top ? z[k] : top;
  Shares<A> of{{}, 0};
  for (int k = 0; k < count; ++k) {
    of.share[k] = natural_exp(z[k] - top);
    of.sum += of.share[k];
  }
  return of;
}

template <class A>
A own_score(RouterScore score, A z) {
  if (score == RouterScore::kSigmoid) return math::sigmoid(math::Accurate{}, z).value;
  return sqrt_softplus(z);
}

template <class A>
Shares<A> shares_of(const RouterProblem& p, const A* z, const Softmax<A>& all) {
  const bool softmax = p.score == RouterScore::kSoftmax;
  if (softmax && p.renormalize) return softmax_of_chosen(z, p.chosen);
  Shares<A> of{{}, 0};
  for (int k = 0; k < p.chosen; ++k) {
    of.share[k] = softmax ? natural_exp(z[k] - all.top) : own_score(p.score, z[k]);
    of.sum += of.share[k];
  }
  of.sum = softmax ? all.sum : p.renormalize ? of.sum + static_cast<A>(kRouterEpsilon) : A{1};
  return of;
}

template <class A>
void add_row(A* sums, const Row<A>& row, A factor, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) sums[j] += row[j] * factor;
}

template <class T>
void forward(const MoeRouterForwardProblem& p, std::int64_t begin, std::int64_t end,
             void* importance) {
  using A = accumulate_t<T>;
  const bool is_softmax = p.score == RouterScore::kSoftmax;
  const bool reads_powers = p.lse != nullptr || (is_softmax && !p.renormalize);
  const bool reads_scores = importance != nullptr || p.chooses_by_score();
  auto* const sums = static_cast<A*>(importance);
  if (sums != nullptr) __builtin_memset(sums, 0, p.experts * sizeof(A));
  Row<A> z{};
  Row<A> s{};
  for (std::int64_t t = begin; t < end; ++t) {
    read_logits<T>(p, t, z);
    Softmax<A> all{0, 1};
    if (reads_powers || (reads_scores && is_softmax)) all = powers_of(z, s, p.experts);
    if (p.lse != nullptr) static_cast<A*>(p.lse)[t] = all.lse();
    if (reads_scores && is_softmax) scale_row(s, 1 / all.sum, p.experts);
    if (reads_scores && !is_softmax) own_scores(p.score, z, s, p.experts);
    if (sums != nullptr) {
      const A sum = is_softmax ? A{1} : sum_row(s, p.experts) + static_cast<A>(kRouterEpsilon);
      add_row(sums, s, 1 / sum, p.experts);
    }
    if (p.chooses_by_score()) add_bias<T>(p, s);
    const Best<A> best = choose(p, p.chooses_by_score() ? s : z);
    A of_chosen[kMostChosen];
    for (int k = 0; k < p.chosen; ++k) of_chosen[k] = z[best.index[k]];
    const Shares<A> shares = shares_of(p, of_chosen, all);
    A* const weights = static_cast<A*>(p.weights) + t * p.chosen;
    for (int k = 0; k < p.chosen; ++k) {
      weights[k] = shares.share[k] / shares.sum * static_cast<A>(p.scale);
      p.indices[t * p.chosen + k] = best.index[k];
    }
  }
}

// ---------------------------------------------------------------------------- the gradient

// The gradient of each chosen score, or for a renormalized softmax of each chosen logit.
template <class A>
void gradient_of_shares(const RouterProblem& p, const Shares<A>& of, const A* dweights, A* g) {
  const A scale = static_cast<A>(p.scale);
  if (dweights == nullptr) return void(__builtin_memset(g, 0, p.chosen * sizeof(A)));
  A mean = 0;
  for (int k = 0; k < p.chosen; ++k) mean += of.share[k] / of.sum * dweights[k];
  for (int k = 0; k < p.chosen; ++k) {
    if (!p.renormalize) {
      g[k] = scale * dweights[k];
    } else if (p.score == RouterScore::kSoftmax) {
      g[k] = scale * (of.share[k] / of.sum) * (dweights[k] - mean);
    } else {
      g[k] = scale * (dweights[k] - mean) / of.sum;
    }
  }
}

template <class A>
const A* row_or_null(const void* numbers, std::int64_t row, std::int64_t cols) {
  return numbers == nullptr ? nullptr : static_cast<const A*>(numbers) + row * cols;
}

// Whether a gradient reaches all logits by way of a softmax of all.
constexpr bool reads_softmax(const MoeRouterBackwardProblem& p) {
  if (p.score != RouterScore::kSoftmax) return p.dlse != nullptr;
  return !p.renormalize || p.dimportance != nullptr || p.dlse != nullptr;
}

// dz of a softmax: p (g - sum of p g) + dlse p, where g is the gradient of p. Turns powers into it.
template <class A>
void softmax_gradient(const MoeRouterBackwardProblem& p, const Softmax<A>& all, Row<A>& dz,
                      const A* chosen_gradient, const std::int32_t* chosen, const A* dimportance,
                      A dlse) {
  if (reads_softmax(p)) {
    scale_row(dz, 1 / all.sum, p.experts);
  } else {
    __builtin_memset(dz.number, 0, p.experts * sizeof(A));
  }
  A mean = 0;
  A added[kMostChosen];
  for (int k = 0; k < p.chosen; ++k) {
    added[k] = chosen_gradient[k] * (p.renormalize ? A{1} : dz[chosen[k]]);
    if (!p.renormalize) mean += added[k];
  }
  if (dimportance != nullptr) {
    for (int j = 0; j < p.experts; ++j) mean += dz[j] * dimportance[j];
    for (int j = 0; j < p.experts; ++j) dz[j] *= dimportance[j] - mean + dlse;
  } else {
    scale_row(dz, dlse - mean, p.experts);
  }
  for (int k = 0; k < p.chosen; ++k) dz[chosen[k]] += added[k];
}

// dz of other scores. `dz` has the powers of z, for the gradient of the log-sum-exp.
template <class A>
void own_gradient(const MoeRouterBackwardProblem& p, const Softmax<A>& all, const Row<A>& z,
                  Row<A>& dz, const A* chosen_gradient, const std::int32_t* chosen,
                  const A* dimportance, A dlse) {
  if (p.dlse != nullptr) {
    scale_row(dz, dlse / all.sum, p.experts);
  } else {
    __builtin_memset(dz.number, 0, p.experts * sizeof(A));
  }
  if (dimportance != nullptr) {
    Row<A> s;
    own_scores(p.score, z, s, p.experts);
    const A inverse = 1 / (sum_row(s, p.experts) + static_cast<A>(kRouterEpsilon));
    A mean = 0;
    for (int j = 0; j < p.experts; ++j) mean += s[j] * inverse * dimportance[j];
    for (int j = 0; j < p.experts; ++j) {
      dz[j] += (dimportance[j] - mean) * inverse * own_slope(p.score, z[j], s[j]);
    }
  }
  for (int k = 0; k < p.chosen; ++k) {
    const A logit = z[chosen[k]];
    dz[chosen[k]] += chosen_gradient[k] * own_slope(p.score, logit, own_score(p.score, logit));
  }
}

template <class T>
void backward(const MoeRouterBackwardProblem& p, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const bool is_softmax = p.score == RouterScore::kSoftmax;
  Row<A> z{};
  Row<A> dz{};
  for (std::int64_t t = begin; t < end; ++t) {
    read_logits<T>(p, t, z);
    Softmax<A> all{0, 1};
    if (reads_softmax(p)) all = powers_of(z, dz, p.experts);
    const std::int32_t* const chosen = p.indices + t * p.chosen;
    A of_chosen[kMostChosen];
    for (int k = 0; k < p.chosen; ++k) of_chosen[k] = z[chosen[k]];
    A gradient[kMostChosen];
    gradient_of_shares(p, shares_of(p, of_chosen, all), row_or_null<A>(p.dweights, t, p.chosen),
                       gradient);
    const A* const dimportance =
        row_or_null<A>(p.dimportance, t / p.tokens_of_sequence(), p.experts);
    const A dlse = p.dlse == nullptr ? A{0} : static_cast<const A*>(p.dlse)[t];
    if (is_softmax) {
      softmax_gradient(p, all, dz, gradient, chosen, dimportance, dlse);
    } else {
      own_gradient(p, all, z, dz, gradient, chosen, dimportance, dlse);
    }
    if (p.jitter > 0) {
      draw_slopes(p, t, z);
      for (int j = 0; j < p.experts; ++j) dz[j] *= z[j];
    }
    T* const dx = row_of<T>(p.dx, t);
    for_each_vector<T>(p.experts, [&](std::int64_t i, int, auto lanes) {
      store(dx + i, load_as<T>(dz.number + i, lanes), lanes);
    });
  }
}

}  // namespace

const RouterKernels router_kernels = {
    {forward<double>, forward<float>, forward<Half>, forward<BFloat16>},
    {backward<double>, backward<float>, backward<Half>, backward<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
