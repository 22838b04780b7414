// SPDX-License-Identifier: MIT
// Scores of tokens in rows. Compiled once per instruction set; see core/cpu/isa.h.
#include "loss/row_isa.h"
#include "loss/token_log_probs_cpu.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class A>
constexpr A kLowest = __is_same(A, double) ? -__DBL_MAX__ : -__FLT_MAX__;

// A row's results, the saved tensors among them.
template <class A>
struct Scores {
  A top;
  A spread;
  A mean;
  A log_prob;
  A accuracy;
};

// The sums over columns of exp(d), and of exp(d) d.
template <class A>
struct PowerSums {
  A power;
  A moment;
};

// A logit of -inf adds 0 to both sums.
template <class T, bool kCapped, class A = accumulate_t<T>>
TFK_FLATTEN PowerSums<A> power_sums(const T* x, A top, A cap, std::int64_t cols) {
  using V = vec_t<T>;
  const V zero = V::of(0);
  const V lowest = V::of(kLowest<A>);
  const V inverse = V::of(1 / cap);
  auto power = Slots<T>::of(0);
  auto moment = Slots<T>::of(0);
  for_each_vector<T>(cols, [&](std::int64_t i, int slot, auto lanes) {
    const V d = logit<T, kCapped>(load(x + i, lanes), V::of(cap), inverse) - V::of(top);
    const V e = keep<T>(exp(d), lanes, zero);
    power[slot] = power[slot] + e;
    moment[slot] = fma(e, max(d, lowest), moment[slot]);
  });
  return {power.sum(), moment.sum()};
}

template <class T>
bool has_nan(const T* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (__builtin_isnan(number_at(x + i))) return true;
  }
  return false;
}

template <class T, bool kCapped>
Scores<accumulate_t<T>> scores_of(const T* x, std::int64_t cols, std::int64_t token,
                                  double softcap) {
  using A = accumulate_t<T>;
  const A cap = static_cast<A>(softcap);
  const A own = number_at(x + token);
  const A before = largest(x, token);
  const A from = largest(x + token, cols - token);
  const A top = capped_logit<T>(before > from ? before : from, cap);
  PowerSums<A> sums{0, 0};
  for_each_block<T>(cols, [&](std::int64_t begin, std::int64_t count) {
    const PowerSums<A> more = power_sums<T, kCapped>(x + begin, top, cap, count);
    sums = {sums.power + more.power, sums.moment + more.moment};
  });
  const A spread = natural_log(sums.power);
  const bool is_first = own > before || token == 0;
  const bool is_missing = __builtin_isnan(spread) && has_nan(x, cols);
  const A accuracy = is_first && own >= from && !is_missing ? 1 : 0;
  return {top, spread, sums.moment / sums.power, capped_logit<T>(own, cap) - top - spread,
          accuracy};
}

template <class T>
const T* row_at(const TokenLogProbsProblem& p, std::int64_t row) {
  return static_cast<const T*>(p.x) + row * p.x_stride;
}

template <class A>
void put(void* numbers, std::int64_t row, A value) {
  if (numbers != nullptr) static_cast<A*>(numbers)[row] = value;
}

template <class T>
void forward(const TokenLogProbsForwardProblem& p, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const auto score = p.softcap > 0 ? scores_of<T, true> : scores_of<T, false>;
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t token = p.token(r);
    Scores<A> s{};
    if (token != p.ignore_index) s = score(row_at<T>(p, r), p.cols, token, p.softcap);
    put(p.log_probs, r, s.log_prob);
    put(p.entropy, r, s.spread - s.mean);
    put(p.accuracy, r, s.accuracy);
    put(p.top, r, s.top);
    put(p.spread, r, s.spread);
    put(p.mean, r, s.mean);
  }
}

// dx[j] = (p[j] (dentropy (mean - d[j]) - dlog_prob) + dlog_prob [j = t]) * slope[j]
template <class A>
struct Slope {
  A top;
  A spread;
  A mean;
  A dlog_prob;
  A dentropy;
  A cap;
};

// Without the token's own share, of which `own` is the part of all columns.
template <class T, bool kCapped>
TFK_INLINE vec_t<T> gradient_at(vec_t<T> x, const Slope<accumulate_t<T>>& of, accumulate_t<T> own) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  const V inverse = V::of(1 / of.cap);
  const V z = logit<T, kCapped>(x, V::of(of.cap), inverse);
  const V d = z - V::of(of.top);
  const V p = exp(d - V::of(of.spread));
  const V distance = V::of(of.mean) - max(d, V::of(kLowest<A>));
  V g = fma(p * V::of(of.dentropy), distance, V::of(own) - p * V::of(of.dlog_prob));
  if constexpr (kCapped) {
    const V ratio = z * inverse;
    g = g * (V::of(1) - ratio * ratio);
  }
  return g;
}

template <class T, bool kCapped, bool kAccumulates>
TFK_FLATTEN void write_gradient(const T* x, T* dx, const Slope<accumulate_t<T>>& of,
                                std::int64_t token, std::int64_t cols) {
  using V = vec_t<T>;
  const auto before = [&]([[maybe_unused]] std::int64_t i, [[maybe_unused]] auto lanes) {
    if constexpr (kAccumulates) return load(dx + i, lanes);
    return V::of(0);
  };
  const First one{1};
  const V of_token =
      before(token, one) + gradient_at<T, kCapped>(load(x + token, one), of, of.dlog_prob);
  for_each_vector<T>(cols, [&](std::int64_t i, int, auto lanes) {
    store(dx + i, before(i, lanes) + gradient_at<T, kCapped>(load(x + i, lanes), of, 0), lanes);
  });
  store(dx + token, of_token, one);
}

template <class T>
TFK_FLATTEN void clear_row(T* x, std::int64_t cols) {
  for_each_vector<T>(
      cols, [&](std::int64_t i, int, auto lanes) { store(x + i, vec_t<T>::of(0), lanes); });
}

template <class T>
constexpr auto* pick_gradient(bool capped, bool accumulates) {
  using Function = void(const T*, T*, const Slope<accumulate_t<T>>&, std::int64_t, std::int64_t);
  constexpr Function* kTable[2][2] = {
      {write_gradient<T, false, false>, write_gradient<T, false, true>},
      {write_gradient<T, true, false>, write_gradient<T, true, true>}};
  return kTable[capped][accumulates];
}

template <class A>
A number_or_zero(const void* numbers, std::int64_t at) {
  return numbers == nullptr ? A{0} : static_cast<const A*>(numbers)[at];
}

template <class T>
void backward(const TokenLogProbsBackwardProblem& p, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const A divisor = p.divisor == nullptr ? A{1} : *static_cast<const A*>(p.divisor);
  const auto write = pick_gradient<T>(p.softcap > 0, p.accumulates);
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t token = p.token(r);
    T* const dx = static_cast<T*>(p.dx) + r * p.dx_stride;
    if (token == p.ignore_index) {
      if (!p.accumulates) clear_row(dx, p.cols);
      continue;
    }
    const Slope<A> slope{number_or_zero<A>(p.top, r),
                         number_or_zero<A>(p.spread, r),
                         number_or_zero<A>(p.mean, r),
                         number_or_zero<A>(p.dlog_probs, r),
                         number_or_zero<A>(p.dentropy, r * p.dentropy_step) / divisor,
                         static_cast<A>(p.softcap)};
    write(row_at<T>(p, r), dx, slope, token, p.cols);
  }
}

}  // namespace

const TokenLogProbsKernels token_log_probs_kernels = {
    {forward<double>, forward<float>, forward<Half>, forward<BFloat16>},
    {backward<double>, backward<float>, backward<Half>, backward<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
