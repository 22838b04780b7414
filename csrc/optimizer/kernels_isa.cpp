// SPDX-License-Identifier: MIT
// Steps of optimizers. Compiled once per instruction set; see core/cpu/isa.h. Operands of another
// type than that of the arithmetic are converted in runs that stay in the first-level cache.
#include "core/cpu/philox_block.h"
#include "core/cpu/row_loop.h"
#include "core/cpu/simd_root.h"
#include "optimizer/codes.h"
#include "optimizer/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

constexpr std::int64_t kRun = 1024;  // elements; a multiple of kStateBlock
static_assert(kRun % kStateBlock == 0 && kOptimizerPiece % kRun == 0);

template <class A>
using Room = A[kRun];

// ---------------------------------------------------------------------------- conversions

template <class T>
TFK_FLATTEN void widen_run(const T* x, float* y, std::int64_t count) {
  for_each_vector<T>(
      count, [&](std::int64_t i, int, auto lanes) { store(y + i, load(x + i, lanes), lanes); });
}

template <class T>
TFK_FLATTEN void narrow_run(const float* x, T* y, std::int64_t count) {
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    store(y + i, load_as<T>(x + i, lanes), lanes);
  });
}

// 16 bits for each element from `begin` on.
TFK_FLATTEN void draw(const OptimizerRow& row, RandomUse use, std::int64_t begin,
                      std::int64_t count, std::uint16_t* bits) {
  std::uint64_t counter = random_counter(use, row.number, begin);
  for (std::int64_t i = 0; i < count; i += kPhiloxNumbers) {
    philox_block(row.seed, counter, row.step, bits + i);
    counter += kPhiloxCounters;
  }
}

// A number between two of bfloat16 becomes the upper one where the bits that it loses and the
// random ones carry.
TFK_FLATTEN void narrow_run_randomly(const float* x, const std::uint16_t* random, BFloat16* y,
                                     std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x[i]);
    const std::uint32_t carried = (bits + random[i]) >> 16;
    const std::uint32_t quiet = bits >> 16 | 0x40;
    y[i].bits = static_cast<std::uint16_t>(x[i] == x[i] ? carried : quiet);
  }
}

// An operand of a run in the type of the arithmetic: where it lies, or else a copy in `room`.
template <class A>
A* read_run(void* data, DType dtype, std::int64_t begin, std::int64_t count, A* room) {
  if constexpr (sizeof(A) == 4) {
    if (dtype == DType::kBFloat16) {
      widen_run(static_cast<const BFloat16*>(data) + begin, room, count);
      return room;
    }
    if (dtype == DType::kFloat16) {
      widen_run(static_cast<const Half*>(data) + begin, room, count);
      return room;
    }
  }
  return static_cast<A*>(data) + begin;
}

// Writes a run back where read_run() copied it.
template <class A>
void write_run(const A* x, void* data, DType dtype, std::int64_t begin, std::int64_t count) {
  if constexpr (sizeof(A) == 4) {
    if (dtype == DType::kBFloat16) narrow_run(x, static_cast<BFloat16*>(data) + begin, count);
    if (dtype == DType::kFloat16) narrow_run(x, static_cast<Half*>(data) + begin, count);
  }
}

template <bool kSigned>
void read_state_codes(const void* codes, const float* scales, std::int64_t begin,
                      std::int64_t count, float* x) {
  for (std::int64_t i = 0; i < count; i += kStateBlock) {
    const std::int64_t length = count - i < kStateBlock ? count - i : kStateBlock;
    read_codes<kSigned>(static_cast<const std::uint8_t*>(codes) + begin + i,
                        scales[(begin + i) / kStateBlock], x + i, length);
  }
}

template <bool kSigned>
void write_state_codes(const float* x, const std::uint16_t* random, void* codes, float* scales,
                       std::int64_t begin, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kStateBlock) {
    const std::int64_t length = count - i < kStateBlock ? count - i : kStateBlock;
    scales[(begin + i) / kStateBlock] = write_codes<kSigned>(
        x + i, random + i, static_cast<std::uint8_t*>(codes) + begin + i, length);
  }
}

// ---------------------------------------------------------------------------- moments

// A moment of a row: the first has signs.
template <bool kFirst>
struct Moment {
  const OptimizerRow& row;
  void* data = kFirst ? row.exp_avg : row.exp_avg_sq;
  float* scales = kFirst ? row.exp_avg_scales : row.exp_avg_sq_scales;

  template <class A>
  A* read(std::int64_t begin, std::int64_t count, A* room) const {
    if constexpr (sizeof(A) == 4) {
      if (row.state_dtype == DType::kUInt8) {
        read_state_codes<kFirst>(data, scales, begin, count, room);
        return room;
      }
    }
    return read_run(data, row.state_dtype, begin, count, room);
  }

  template <class A>
  void write(const A* x, std::int64_t begin, std::int64_t count) const {
    if constexpr (sizeof(A) == 4) {
      if (row.state_dtype == DType::kUInt8 || row.rounds_states_randomly) {
        alignas(64) std::uint16_t random[kRun];
        draw(row, kFirst ? RandomUse::kFirstMoment : RandomUse::kSecondMoment, begin, count,
             random);
        if (row.state_dtype == DType::kUInt8) {
          write_state_codes<kFirst>(x, random, data, scales, begin, count);
        } else {
          narrow_run_randomly(x, random, static_cast<BFloat16*>(data) + begin, count);
        }
        return;
      }
    }
    write_run(x, data, row.state_dtype, begin, count);
  }
};

// ---------------------------------------------------------------------------- gradients, weights

template <class A>
TFK_FLATTEN void scale_run(const A* x, A factor, A* y, std::int64_t count) {
  using V = vec_t<A>;
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    store(y + i, load(x + i, lanes) * V::of(factor), lanes);
  });
}

template <class A>
const A* read_gradient(const OptimizerRow& row, std::int64_t begin, std::int64_t count, A* room) {
  A* const g = read_run(row.grad, row.grad_dtype, begin, count, room);
  if (row.unscales_gradient) {
    scale_run(g, static_cast<A>(row.numbers.unscale), g, count);
    write_run(g, row.grad, row.grad_dtype, begin, count);
  }
  return g;
}

template <class A>
A* read_weights(const OptimizerRow& row, std::int64_t begin, std::int64_t count, A* room) {
  if constexpr (sizeof(A) == 4) {
    if (row.master != nullptr) return row.master + begin;
  }
  return read_run(row.param, row.param_dtype, begin, count, room);
}

template <class A>
void write_weights(const OptimizerRow& row, const A* p, std::int64_t begin, std::int64_t count) {
  if constexpr (sizeof(A) == 4) {
    if (row.rounds_param_randomly) {
      alignas(64) std::uint16_t random[kRun];
      draw(row, RandomUse::kParam, begin, count, random);
      narrow_run_randomly(p, random, static_cast<BFloat16*>(row.param) + begin, count);
      return;
    }
  }
  write_run(p, row.param, row.param_dtype, begin, count);
}

// ---------------------------------------------------------------------------- rules

template <class A>
struct Run {
  const A* g;
  A* p;
  A* m;
  A* v = nullptr;
  A* top = nullptr;  // the largest v so far
};

template <class A, bool kHasTop>
TFK_FLATTEN void adamw_run(const OptimizerNumbers& n, const Run<A>& run, std::int64_t count) {
  using V = vec_t<A>;
  const auto all = [](double number) { return V::of(static_cast<A>(number)); };
  const V factor = all(n.factor), decay = all(n.decay), minus_step = all(-n.step_size);
  const V weight1 = all(1 - n.beta1), beta2 = all(n.beta2), weight2 = all(1 - n.beta2);
  const V root_factor = all(n.root_factor), eps = all(n.eps);
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    const V g = load(run.g + i, lanes) * factor;
    const V m0 = load(run.m + i, lanes);
    const V m = fma(g - m0, weight1, m0);
    const V v = fma(load(run.v + i, lanes), beta2, weight2 * g * g);
    V used = v;
    if constexpr (kHasTop) {
      used = max(load(run.top + i, lanes), v);
      store(run.top + i, used, lanes);
    }
    const V ratio = m / fma(sqrt(used), root_factor, eps);
    store(run.m + i, m, lanes);
    store(run.v + i, v, lanes);
    store(run.p + i, fma(ratio, minus_step, load(run.p + i, lanes) * decay), lanes);
  });
}

template <class A>
TFK_FLATTEN void lion_run(const OptimizerNumbers& n, const Run<A>& run, std::int64_t count) {
  using V = vec_t<A>;
  const auto all = [](double number) { return V::of(static_cast<A>(number)); };
  const V factor = all(n.factor), decay = all(n.decay), zero = all(0);
  const V up = all(n.step_size), down = all(-n.step_size);
  const V weight1 = all(1 - n.beta1), weight2 = all(1 - n.beta2);
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    const V g = load(run.g + i, lanes) * factor;
    const V m = load(run.m + i, lanes);
    const V c = fma(g - m, weight1, m);
    const V sign = select(equal(c, zero), zero, select(is_negative(c), up, down));
    const V change = select(equal(c, c), sign, c);  // NaN stays
    store(run.m + i, fma(g - m, weight2, m), lanes);
    store(run.p + i, fma(load(run.p + i, lanes), decay, change), lanes);
  });
}

template <class A>
void adamw(const OptimizerRow& row, std::int64_t begin, std::int64_t end) {
  alignas(64) Room<A> g, p, m, v, top;
  const Moment<true> first{row};
  const Moment<false> second{row};
  for (; begin < end; begin += kRun) {
    const std::int64_t count = end - begin < kRun ? end - begin : kRun;
    Run<A> run{.g = read_gradient(row, begin, count, g),
               .p = read_weights(row, begin, count, p),
               .m = first.read(begin, count, m),
               .v = second.read(begin, count, v)};
    if (row.max_exp_avg_sq == nullptr) {
      adamw_run<A, false>(row.numbers, run, count);
    } else {
      run.top = read_run(row.max_exp_avg_sq, row.state_dtype, begin, count, top);
      adamw_run<A, true>(row.numbers, run, count);
      write_run(run.top, row.max_exp_avg_sq, row.state_dtype, begin, count);
    }
    first.write(run.m, begin, count);
    second.write(run.v, begin, count);
    write_weights(row, run.p, begin, count);
  }
}

template <class A>
void lion(const OptimizerRow& row, std::int64_t begin, std::int64_t end) {
  alignas(64) Room<A> g, p, m;
  const Moment<true> first{row};
  for (; begin < end; begin += kRun) {
    const std::int64_t count = end - begin < kRun ? end - begin : kRun;
    const Run<A> run{.g = read_gradient(row, begin, count, g),
                     .p = read_weights(row, begin, count, p),
                     .m = first.read(begin, count, m)};
    lion_run<A>(row.numbers, run, count);
    first.write(run.m, begin, count);
    write_weights(row, run.p, begin, count);
  }
}

// ---------------------------------------------------------------------------- the norm

template <class T, class A = accumulate_t<T>>
TFK_FLATTEN A quick_sum(const T* x, std::int64_t count) {
  auto sums = Slots<T>::of(0);
  for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
    const vec_t<T> v = load(x + i, lanes);
    sums[slot] = fma(v, v, sums[slot]);
  });
  return sums.sum();
}

template <class T>
TFK_FLATTEN accumulate_t<T> largest_magnitude(const T* x, std::int64_t count) {
  auto tops = Slots<T>::of(0);
  for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
    tops[slot] = max(abs(load(x + i, lanes)), tops[slot]);
  });
  return tops.largest();
}

// Squares that leave the format of float are added again in double, one by one.
template <class T>
double sum_of_block(const T* x, std::int64_t count) {
  constexpr float kLeast = 1e-28f;
  constexpr float kMost = 1e36f;
  const auto sum = quick_sum(x, count);
  if (sizeof(T) == 8 || (sum > kLeast && sum < kMost) || sum != sum) return sum;
  if (largest_magnitude(x, count) == 0) return 0;
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double v = reduce_add(load(x + i, First{1}));
    total += v * v;
  }
  return total;
}

template <class T>
double sum_of_squares(const void* x, std::int64_t count) {
  double total = 0;
  for_each_block<T>(count, [&](std::int64_t begin, std::int64_t length) {
    total += sum_of_block(static_cast<const T*>(x) + begin, length);
  });
  return total;
}

}  // namespace

const OptimizerKernels optimizer_kernels = {
    .adamw = {adamw<double>, adamw<float>},
    .lion = {lion<double>, lion<float>},
    .sum_of_squares = {sum_of_squares<double>, sum_of_squares<float>, sum_of_squares<Half>,
                       sum_of_squares<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
