// SPDX-License-Identifier: MIT
// Cross-entropy of rows. Compiled once per instruction set; see core/cpu/isa.h.
#include "loss/cross_entropy_cpu.h"
#include "loss/row_isa.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// ---------------------------------------------------------------------------- terms

// The coefficient a[j] of cross_entropy.h that the loss applies to each column, without the label's
// own share: none, one for all columns, a weight's share, or that of probabilities.
enum class Terms { kNone, kUniform, kWeighted, kProbable, kProbableWeighted };

constexpr bool is_weighted(Terms t) {
  return t == Terms::kWeighted || t == Terms::kProbableWeighted;
}
constexpr bool is_probable(Terms t) {
  return t == Terms::kProbable || t == Terms::kProbableWeighted;
}

Terms terms_of(const CrossEntropyProblem& p, const LossCall& call) {
  const bool weighted = call.wide_weight != nullptr;
  if (!p.has_labels()) return weighted ? Terms::kProbableWeighted : Terms::kProbable;
  if (p.label_smoothing == 0) return Terms::kNone;
  return weighted ? Terms::kWeighted : Terms::kUniform;
}

// One row as loops see it. a[j] = weight[j] * (uniform + own * q[j]).
template <class T, class A = accumulate_t<T>>
struct LossRow {
  const T* x;
  const T* q;
  const A* weight;  // wide
  A cap;
  A uniform;
  A own;

  // The row from column `col` on, which starts a wide vector.
  LossRow from(std::int64_t col) const {
    return {x + col,
            q == nullptr ? q : q + col,
            weight == nullptr ? weight : weight + col,
            cap,
            uniform,
            own};
  }
};

template <class T, Terms kTerms, class Lanes>
TFK_INLINE vec_t<T> share(const LossRow<T>& row, std::int64_t i, Lanes lanes) {
  using V = vec_t<T>;
  V a = V::of(row.uniform);
  if constexpr (is_probable(kTerms)) a = fma(load(row.q + i, lanes), V::of(row.own), a);
  if constexpr (is_weighted(kTerms)) a = a * load_wide<T>(row.weight + i, lanes);
  return a;
}

// ---------------------------------------------------------------------------- forward

// Sums over columns: of powers around a top, and of shares and their logits around an origin.
template <class A>
struct Observed {
  A power = 0;
  A share = 0;
  A logit = 0;
};

template <class T, bool kCapped, Terms kTerms>
TFK_FLATTEN Observed<accumulate_t<T>> observe(const LossRow<T>& row, accumulate_t<T> top,
                                              accumulate_t<T> origin, std::int64_t cols) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  const V zero = V::of(0);
  const V cap = V::of(row.cap);
  const V inverse = V::of(1 / row.cap);
  const V base = V::of(top);
  const V from = V::of(origin);
  auto power = Slots<T>::of(0);
  V shares = zero;
  V logits = zero;
  for_each_vector<T>(
      cols,
      [&](std::int64_t i, int slot, auto lanes) {
        const V z = logit<T, kCapped>(load(row.x + i, lanes), cap, inverse);
        power[slot] = power[slot] + keep<T>(exp_for<T>(z - base), lanes, zero);
        if constexpr (kTerms != Terms::kNone) {
          const V a = keep<T>(share<T, kTerms>(row, i, lanes), lanes, zero);
          logits = fma(a, keep<T>(z - from, lanes, zero), logits);
          shares = shares + a;
        }
      },
      PrefetchRow<T>{row.x + cols});
  return {power.sum(), static_cast<A>(reduce_add(shares)), static_cast<A>(reduce_add(logits))};
}

template <class T>
constexpr auto* pick_observe(bool capped, Terms terms) {
  using A = accumulate_t<T>;
  using Function = Observed<A>(const LossRow<T>&, A, A, std::int64_t);
  constexpr Function* kTable[2][5] = {
      {observe<T, false, Terms::kNone>, observe<T, false, Terms::kUniform>,
       observe<T, false, Terms::kWeighted>, observe<T, false, Terms::kProbable>,
       observe<T, false, Terms::kProbableWeighted>},
      {observe<T, true, Terms::kNone>, observe<T, true, Terms::kUniform>,
       observe<T, true, Terms::kWeighted>, observe<T, true, Terms::kProbable>,
       observe<T, true, Terms::kProbableWeighted>}};
  return kTable[capped][static_cast<int>(terms)];
}

// The results of a row's forward pass.
template <class A>
struct RowResult {
  A top;
  A spread;  // lse - top
  A share;   // sum of a[j], the label's own included
  A loss;
};

// The rows of a call, in numbers of the arithmetic's type.
template <class T, class A = accumulate_t<T>>
class LossRows {
 public:
  LossRows(const CrossEntropyProblem& p, const LossCall& call)
      : p_(p),
        call_(call),
        terms_(terms_of(p, call)),
        observe_(pick_observe<T>(p.softcap > 0, terms_)) {}

  bool ignored(std::int64_t row) const {
    return p_.has_labels() && p_.label(row) == p_.ignore_index;
  }

  LossRow<T> row(std::int64_t row) const {
    return {static_cast<const T*>(p_.x) + row * p_.x_stride,
            static_cast<const T*>(p_.probabilities) + row * p_.probabilities_stride,
            static_cast<const A*>(call_.wide_weight),
            static_cast<A>(p_.softcap),
            static_cast<A>(p_.uniform_share()),
            static_cast<A>(1 - p_.label_smoothing)};
  }

  A weight_at(std::int64_t col) const {
    if (p_.weight == nullptr) return 1;
    const bool is_wide = p_.weight_dtype == p_.dtype ? sizeof(T) == sizeof(A) : true;
    return is_wide ? static_cast<const A*>(p_.weight)[col]
                   : number_at(static_cast<const T*>(p_.weight) + col);
  }

  A counts(std::int64_t row) const { return p_.has_labels() ? weight_at(p_.label(row)) : A{1}; }

  A logit_at(const LossRow<T>& row, std::int64_t col) const {
    return capped(number_at(row.x + col));
  }

  A capped(A x) const { return capped_logit<T>(x, static_cast<A>(p_.softcap)); }

  A lse_term(A top, A spread, A counted) const {
    return static_cast<A>(p_.z_loss) * counted * (top + spread) * (top + spread);
  }

  RowResult<A> forward(std::int64_t r) const {
    const LossRow<T> all = row(r);
    const bool labelled = p_.has_labels();
    const A of_label = logit_at(all, labelled ? p_.label(r) : 0);
    const A origin = __builtin_isfinite(of_label) ? of_label : A{0};
    A top = kMinusInfinity;
    Observed<A> sums;
    for_each_block<T>(p_.cols, [&](std::int64_t begin, std::int64_t count) {
      const A block_top = capped(largest(all.x + begin, count));
      if (block_top > top) {
        sums.power *= natural_exp(top - block_top);
        top = block_top;
      }
      const A base = top == A{kMinusInfinity} ? A{0} : top;
      const Observed<A> more = observe_(all.from(begin), base, origin, count);
      sums = {sums.power + more.power, sums.share + more.share, sums.logit + more.logit};
    });
    const A spread = natural_log(sums.power);
    A loss = 0;
    A share = 0;
    if (terms_ != Terms::kNone) {
      share = labelled ? static_cast<A>(p_.uniform_share() * call_.weight_sum) : sums.share;
      loss = share * ((top - origin) + spread) - sums.logit;
    }
    if (labelled) {
      const A own = all.own * weight_at(p_.label(r));
      share += own;
      loss += own * ((top - of_label) + spread);
    }
    if (p_.z_loss != 0) loss += lse_term(top, spread, counts(r));
    return {top, spread, share, loss};
  }

 private:
  const CrossEntropyProblem& p_;
  const LossCall& call_;
  Terms terms_;
  Observed<A> (*observe_)(const LossRow<T>&, A, A, std::int64_t);
};

// ---------------------------------------------------------------------------- gradient

// dx[j] = (power * exp(z[j] - top - spread) - gain * a[j]) * slope[j]
template <class A>
struct Slope {
  A top;
  A spread;
  A power;
  A gain;
};

// Differences of nearly equal numbers need exact powers.
template <class T, Terms kTerms>
TFK_INLINE vec_t<T> power_beside(vec_t<T> x) {
  if constexpr (is_probable(kTerms)) {
    return exp(x);
  } else {
    return exp_for<T>(x);
  }
}

template <class T, bool kCapped, Terms kTerms>
TFK_FLATTEN void write_gradient(const LossRow<T>& arguments, const Slope<accumulate_t<T>>& of,
                                T* dx, std::int64_t cols) {
  using V = vec_t<T>;
  const LossRow<T> row = arguments;  // no store can change it
  const V cap = V::of(row.cap);
  const V inverse = V::of(1 / row.cap);
  const V top = V::of(of.top);
  const V spread = V::of(of.spread);
  const V power = V::of(of.power);
  const V gain = V::of(-of.gain);
  for_each_vector<T>(cols, [&](std::int64_t i, int, auto lanes) {
    const V z = logit<T, kCapped>(load(row.x + i, lanes), cap, inverse);
    V g = power_beside<T, kTerms>(z - top - spread) * power;
    if constexpr (kTerms != Terms::kNone) g = fma(gain, share<T, kTerms>(row, i, lanes), g);
    if constexpr (kCapped) {
      const V ratio = z * inverse;
      g = g * (V::of(1) - ratio * ratio);
    }
    store(dx + i, g, lanes);
  });
}

template <class T>
constexpr auto* pick_gradient(bool capped, Terms terms) {
  using Function = void(const LossRow<T>&, const Slope<accumulate_t<T>>&, T*, std::int64_t);
  constexpr Function* kTable[2][5] = {
      {write_gradient<T, false, Terms::kNone>, write_gradient<T, false, Terms::kUniform>,
       write_gradient<T, false, Terms::kWeighted>, write_gradient<T, false, Terms::kProbable>,
       write_gradient<T, false, Terms::kProbableWeighted>},
      {write_gradient<T, true, Terms::kNone>, write_gradient<T, true, Terms::kUniform>,
       write_gradient<T, true, Terms::kWeighted>, write_gradient<T, true, Terms::kProbable>,
       write_gradient<T, true, Terms::kProbableWeighted>}};
  return kTable[capped][static_cast<int>(terms)];
}

template <class T>
TFK_FLATTEN void fill_row(T* y, accumulate_t<T> value, std::int64_t cols) {
  for_each_vector<T>(
      cols, [&](std::int64_t i, int, auto lanes) { store(y + i, vec_t<T>::of(value), lanes); });
}

template <class T>
class Gradient {
 public:
  using A = accumulate_t<T>;

  Gradient(const CrossEntropyProblem& p, const LossCall& call)
      : p_(p),
        rows_(p, call),
        write_(pick_gradient<T>(p.softcap > 0, terms_of(p, call))) {}

  T* row(std::int64_t r) const { return static_cast<T*>(p_.dx) + r * p_.dx_stride; }

  void ignore(std::int64_t r) const { fill_row(row(r), A{0}, p_.cols); }

  // `share` is the sum of the row's a[j].
  void write(std::int64_t r, A top, A spread, A share, A dloss) const {
    const LossRow<T> all = rows_.row(r);
    T* const dx = row(r);
    A power = share;
    if (p_.z_loss != 0) {
      power += 2 * static_cast<A>(p_.z_loss) * rows_.counts(r) * (top + spread);
    }
    const Slope<A> slope{top, spread, dloss * power, dloss};
    if (!p_.has_labels()) return write_(all, slope, dx, p_.cols);
    const std::int64_t label = p_.label(r);
    const A own = at_label(all, slope, label);
    write_(all, slope, dx, p_.cols);
    store(dx + label, vec_t<T>::of(own), First{1});
  }

 private:
  // The label's own share comes off as well.
  A at_label(const LossRow<T>& all, const Slope<A>& of, std::int64_t label) const {
    const A z = rows_.logit_at(all, label);
    const A weight = rows_.weight_at(label);
    const A share = weight * (all.uniform + all.own);
    const A g = of.power * natural_exp(z - of.top - of.spread) - of.gain * share;
    if (p_.softcap == 0) return g;
    const A ratio = z / all.cap;
    return g * (1 - ratio * ratio);
  }

  const CrossEntropyProblem& p_;
  LossRows<T> rows_;
  void (*write_)(const LossRow<T>&, const Slope<A>&, T*, std::int64_t);
};

// ---------------------------------------------------------------------------- a call's rows

template <class T>
void forward(const CrossEntropyForwardProblem& p, const LossCall& call, void* losses,
             std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const LossRows<T> rows(p, call);
  const Gradient<T> gradient(p, call);
  for (std::int64_t r = begin; r < end; ++r) {
    const bool ignored = rows.ignored(r);
    const RowResult<A> result = ignored ? RowResult<A>{} : rows.forward(r);
    static_cast<A*>(losses)[r] = result.loss;
    if (p.top != nullptr) {
      static_cast<A*>(p.top)[r] = result.top;
      static_cast<A*>(p.spread)[r] = result.spread;
      static_cast<A*>(p.share)[r] = result.share;
    }
    if (p.dx == nullptr) continue;
    if (ignored) {
      gradient.ignore(r);
    } else {
      gradient.write(r, result.top, result.spread, result.share, static_cast<A>(call.gain));
    }
  }
}

template <class T>
void backward(const CrossEntropyBackwardProblem& p, const LossCall& call, std::int64_t begin,
              std::int64_t end) {
  using A = accumulate_t<T>;
  const LossRows<T> rows(p, call);
  const Gradient<T> gradient(p, call);
  const auto dloss_at = [&](std::int64_t r) {
    const bool is_wide = p.dloss_dtype == p.dtype ? sizeof(T) == sizeof(A) : true;
    return is_wide ? static_cast<const A*>(p.dloss)[r]
                   : number_at(static_cast<const T*>(p.dloss) + r);
  };
  for (std::int64_t r = begin; r < end; ++r) {
    if (rows.ignored(r)) {
      gradient.ignore(r);
      continue;
    }
    const A dloss = dloss_at(p.reduction == Reduction::kNone ? r : 0) * static_cast<A>(call.gain);
    gradient.write(r, static_cast<const A*>(p.top)[r], static_cast<const A*>(p.spread)[r],
                   static_cast<const A*>(p.share)[r], dloss);
  }
}

template <class T>
double row_weight(const CrossEntropyProblem& p, std::int64_t row) {
  const LossCall call{};
  const LossRows<T> rows(p, call);
  return rows.ignored(row) ? 0 : rows.counts(row);
}

template <class T>
TFK_FLATTEN double sum_wide(const void* wide, std::int64_t cols) {
  const auto* const w = static_cast<const accumulate_t<T>*>(wide);
  double sum = 0;
  for_each_block<T>(cols, [&](std::int64_t begin, std::int64_t count) {
    auto slots = Slots<T>::of(0);
    for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
      const auto v = load_wide<T>(w + begin + i, lanes);
      slots[slot] = slots[slot] + keep<T>(v, lanes, vec_t<T>::of(0));
    });
    sum += slots.sum();
  });
  return sum;
}

template <class T>
void narrow(const void* from, void* to, std::int64_t count) {
  const auto* const wide = static_cast<const accumulate_t<T>*>(from);
  for_each_store<T>(count, [&](std::int64_t i, auto lanes) {
    store(static_cast<T*>(to) + i, load_as<T>(wide + i, lanes), lanes);
  });
}

template <class T>
double number(const void* element) {
  return number_at(static_cast<const T*>(element));
}

template <class T>
TFK_FLATTEN void scale_row(T* x, accumulate_t<T> by, std::int64_t cols) {
  for_each_store<T>(cols, [&](std::int64_t i, auto lanes) {
    const auto v = load(x + i, lanes);
    store(x + i, v * v.of(by), lanes);
  });
}

template <class T>
void scale(const ScaleGradientProblem& p, double by, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    scale_row(static_cast<T*>(p.x) + r * p.stride, static_cast<accumulate_t<T>>(by), p.cols);
  }
}

}  // namespace

const CrossEntropyKernels cross_entropy_kernels = {
    {sum_wide<double>, sum_wide<float>, sum_wide<Half>, sum_wide<BFloat16>},
    {row_weight<double>, row_weight<float>, row_weight<Half>, row_weight<BFloat16>},
    {forward<double>, forward<float>, forward<Half>, forward<BFloat16>},
    {backward<double>, backward<float>, backward<Half>, backward<BFloat16>},
    {narrow<double>, narrow<float>, narrow<Half>, narrow<BFloat16>},
    {number<double>, number<float>, number<Half>, number<BFloat16>},
    {scale<double>, scale<float>, scale<Half>, scale<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
