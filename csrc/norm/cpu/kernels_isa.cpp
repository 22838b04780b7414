// SPDX-License-Identifier: MIT
// Normalisation of rows. Compiled once per instruction set; see core/cpu/isa.h.
#include <type_traits>

#include "core/cpu/row_loop.h"
#include "norm/cpu/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

float square_root(float value) { return __builtin_sqrtf(value); }
double square_root(double value) { return __builtin_sqrt(value); }

// The mean is shift + delta. Kept apart, the two lose nothing where the mean is far from 0.
template <class A>
struct Moments {
  A shift;
  A delta;
  A variance;
};

template <class T, class A>
TFK_FLATTEN Moments<A> moments_around(A shift, const T* s, std::int64_t cols) {
  using V = vec_t<T>;
  const V origin = V::of(shift);
  A first_power = 0;
  A second_power = 0;
  for_each_block<T>(cols, [&](std::int64_t begin, std::int64_t count) {
    auto sum = Slots<T>::of(0);
    auto sum_of_squares = Slots<T>::of(0);
    for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
      const V d = keep<T>(load(s + begin + i, lanes) - origin, lanes, V::of(0));
      sum[slot] = sum[slot] + d;
      sum_of_squares[slot] = fma(d, d, sum_of_squares[slot]);
    });
    first_power += sum.sum();
    second_power += sum_of_squares.sum();
  });
  const A delta = first_power / static_cast<A>(cols);
  const A variance = second_power / static_cast<A>(cols) - delta * delta;
  return {shift, delta, variance < 0 ? 0 : variance};
}

// A number near the mean. With no more bits than T has, it keeps the low bits of all differences
// from it free, so that sums of 16-bit data stay exact; any other would push each of them off to
// the same side.
template <class T, class A>
A shift_near_mean(const T* s, std::int64_t cols) {
  constexpr int kLanes = vec_t<T>::kLanes;
  const vec_t<T> head = cols >= kLanes ? load(s, All{}) : load(s, First{cols});
  A mean = reduce_add(head) / static_cast<A>(cols < kLanes ? cols : kLanes);
  const bool overflowed = cols > 0 && !(mean - mean == 0);
  if (overflowed) mean = reduce_add(load(s, First{1}));
  if constexpr (sizeof(T) == sizeof(A)) {
    return mean;
  } else {
    constexpr std::uint32_t kLastBit = __is_same(T, BFloat16) ? 1u << 16 : 1u << 13;
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, mean) + kLastBit / 2;
    return __builtin_bit_cast(float, bits & ~(kLastBit - 1));
  }
}

// One pass around the mean of a few elements. The variance is then the difference of two numbers;
// where these are much larger than it, digits are lost, and a second pass around the mean itself
// gives them back. On rows without a trend that happens less than once in a hundred.
template <class T, class A>
Moments<A> centered_moments(const T* s, std::int64_t cols) {
  const Moments<A> m = moments_around<T, A>(shift_near_mean<T, A>(s, cols), s, cols);
  if (m.delta * m.delta <= m.variance) return m;
  return moments_around<T, A>(m.shift + m.delta, s, cols);
}

// The second power alone: rms_norm's mean square is a moment around 0.
template <class T, class A>
TFK_FLATTEN Moments<A> raw_moments(const T* s, std::int64_t cols) {
  A second_power = 0;
  for_each_block<T>(cols, [&](std::int64_t begin, std::int64_t count) {
    auto sum_of_squares = Slots<T>::of(0);
    for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
      const vec_t<T> v = load(s + begin + i, lanes);
      sum_of_squares[slot] = fma(v, v, sum_of_squares[slot]);
    });
    second_power += sum_of_squares.sum();
  });
  return {0, 0, second_power / static_cast<A>(cols)};
}

// Elements whose squares overflow are summed once more, as multiples of a unit: no 2^31 such
// squares overflow, nor do those underflow that made a sum overflow. Sets the moments, and returns
// 1 / sqrt(variance).
template <class T, class A = accumulate_t<T>>
TFK_FLATTEN A far_moments(Moments<A>& moments, bool center, const T* s, std::int64_t cols) {
  using V = vec_t<T>;
  constexpr A kScale = sizeof(A) == 8 ? A(0x1p-600) : A(0x1p-80f);
  const V scale = V::of(kScale);
  const auto average = [&](auto&& term) {
    A total = 0;
    for_each_block<T>(cols, [&](std::int64_t begin, std::int64_t count) {
      auto sum = Slots<T>::of(0);
      for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
        const V v = load(s + begin + i, lanes) * scale;
        sum[slot] = sum[slot] + keep<T>(term(v), lanes, V::of(0));
      });
      total += sum.sum();
    });
    return total / static_cast<A>(cols);
  };
  const A mean = center ? average([](V v) { return v; }) : A{0};
  const V origin = V::of(mean);
  const A variance = average([&](V v) { return (v - origin) * (v - origin); });
  moments = {0, mean / kScale, variance};
  return kScale / square_root(variance);
}

// sum = x + residual, rounded. Where it streams, `copy` keeps the row for the passes to come.
template <class T, bool kStream>
TFK_FLATTEN void add_row(const T* x, const T* residual, T* sum, T* copy, std::int64_t cols) {
  for_each_store<T>(cols, [&](std::int64_t i, auto lanes) {
    const auto v = load(x + i, lanes) + load(residual + i, lanes);
    if constexpr (kStream) {
      StreamingStore::put(sum + i, v, lanes);
      store(copy + i, v, lanes);
    } else {
      store(sum + i, v, lanes);
    }
  });
}

template <class T, class A = accumulate_t<T>>
struct ForwardRow {
  const T* s;
  T* y;
  const T* next;  // what the first pass of the next row reads
  const A* weight;
  const A* bias;
  std::int64_t cols;
};

template <class T, bool kCenter, bool kBias, class Store>
TFK_FLATTEN void normalize_row(const ForwardRow<T>& arguments,
                               const Moments<accumulate_t<T>>& moments, accumulate_t<T> rstd) {
  // Stores cannot change a copy, so its pointers stay in registers: 5 % for 16-bit rows. Rows of
  // float32 were measured slower with it.
  std::conditional_t<sizeof(T) == 2, const ForwardRow<T>, const ForwardRow<T>&> row = arguments;
  const auto shift = moments.shift;
  const auto offset = -moments.delta * rstd;
  for_each_store<T>(
      row.cols,
      [&](std::int64_t i, auto lanes) {
        const auto s = load(row.s + i, lanes);
        const auto scale = s.of(rstd);
        const auto normal = kCenter ? fma(s - s.of(shift), scale, s.of(offset)) : s * scale;
        const auto w = load_wide<T>(row.weight + i, lanes);
        const auto y = kBias ? fma(normal, w, load_wide<T>(row.bias + i, lanes)) : normal * w;
        Store::put(row.y + i, y, lanes);
      },
      PrefetchRow<T>{row.next});
}

template <class T>
constexpr auto* pick_normalize_row(bool center, bool bias, bool stream) {
  using Function = void(const ForwardRow<T>&, const Moments<accumulate_t<T>>&, accumulate_t<T>);
  constexpr Function* kTable[2][2][2] = {
      {{normalize_row<T, false, false, CachedStore>,
        normalize_row<T, false, false, StreamingStore>},
       {normalize_row<T, false, true, CachedStore>, normalize_row<T, false, true, StreamingStore>}},
      {{normalize_row<T, true, false, CachedStore>, normalize_row<T, true, false, StreamingStore>},
       {normalize_row<T, true, true, CachedStore>, normalize_row<T, true, true, StreamingStore>}}};
  return kTable[center][bias][stream];
}

template <class T>
void forward(const NormForwardTask& task, void* scratch, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const NormForwardProblem& p = task.problem;
  const bool add = p.residual.data != nullptr;
  const bool stream_y = task.stream && can_stream<T>(p.y.data, p.y.stride);
  const bool stream_sum = add && task.stream && can_stream<T>(p.sum.data, p.sum.stride);
  const auto moments_of = p.center ? centered_moments<T, A> : raw_moments<T, A>;
  const auto add_rows = stream_sum ? add_row<T, true> : add_row<T, false>;
  const auto normalize = pick_normalize_row<T>(p.center, task.bias != nullptr, stream_y);
  for (std::int64_t r = begin; r < end; ++r) {
    const T* s = row_of<const T>(p.x, r);
    if (add) {
      T* const sum = row_of<T>(p.sum, r);
      T* const copy = stream_sum ? static_cast<T*>(scratch) : sum;
      add_rows(s, row_of<const T>(p.residual, r), sum, copy, p.cols);
      s = copy;
    }
    Moments<A> moments = moments_of(s, p.cols);
    A rstd = 1 / square_root(moments.variance + static_cast<A>(p.eps));
    if (p.cols > 0 && !(moments.variance < __builtin_inf())) [[unlikely]] {
      rstd = far_moments<T>(moments, p.center, s, p.cols);
    }
    const T* const next = row_of<const T>(p.x, r + 1 < end ? r + 1 : r);
    normalize({s, row_of<T>(p.y, r), next, static_cast<const A*>(task.weight),
               static_cast<const A*>(task.bias), p.cols},
              moments, rstd);
    if (p.mean != nullptr) static_cast<A*>(p.mean)[r] = moments.shift + moments.delta;
    if (p.rstd != nullptr) static_cast<A*>(p.rstd)[r] = rstd;
  }
  stream_fence();
}

// ---------------------------------------------------------------------------- backward
//
//   g = dy * w,  h = (x - mean) * rstd
//   dx = rstd * (g - average(g) - h * average(g * h)) + dsum     average(g) is 0 without a mean
//   dweight = sum of dy * h over rows,  dbias = sum of dy over rows

enum Gradients { kNoGradients, kWeightGradient, kBothGradients };

// kRows rows at once, so that the gradients of the parameters are read and written once for all.
template <class T, int kRows, class A = accumulate_t<T>>
struct BackwardRows {
  const T* dy[kRows];
  const T* x[kRows];
  A mean[kRows];
  A rstd[kRows];
  A average_g[kRows];
  A average_gh[kRows];
};

template <class T, class A = accumulate_t<T>>
struct BackwardColumns {
  const A* weight;
  A* dweight;
  A* dbias;
  std::int64_t cols;
};

template <class T, class Lanes>
TFK_INLINE void add_to(accumulate_t<T>* total, vec_t<T> term, Lanes lanes) {
  store_wide<T>(total, load_wide<T>(total, lanes) + term, lanes);
}

template <class T, bool kCenter, Gradients kGradients, int kRows>
TFK_FLATTEN void reduce_rows(BackwardRows<T, kRows>& rows, const BackwardColumns<T>& columns) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  constexpr int kSlots = kRows == 1 ? kUnroll<T> : 1;
  A g_sum[kRows] = {};
  A gh_sum[kRows] = {};
  for_each_block<T>(columns.cols, [&](std::int64_t begin, std::int64_t count) {
    Slots<T, kSlots> g_slots[kRows];
    Slots<T, kSlots> gh_slots[kRows];
    for (int r = 0; r < kRows; ++r) g_slots[r] = gh_slots[r] = Slots<T, kSlots>::of(0);
    for_each_vector<T, kSlots>(count, [&](std::int64_t at, int slot, auto lanes) {
      const std::int64_t i = begin + at;
      const V w = load_wide<T>(columns.weight + i, lanes);
      V dw = V::of(0);
      V db = V::of(0);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V x = load(rows.x[r] + i, lanes);
        const V dy = load(rows.dy[r] + i, lanes);
        const V h = (kCenter ? x - V::of(rows.mean[r]) : x) * V::of(rows.rstd[r]);
        const V g = dy * w;
        if constexpr (kCenter) g_slots[r][slot] = g_slots[r][slot] + g;
        gh_slots[r][slot] = fma(g, h, gh_slots[r][slot]);
        dw = fma(dy, h, dw);
        db = db + dy;
      }
      if constexpr (kGradients != kNoGradients) add_to<T>(columns.dweight + i, dw, lanes);
      if constexpr (kGradients == kBothGradients) add_to<T>(columns.dbias + i, db, lanes);
    });
    for (int r = 0; r < kRows; ++r) {
      g_sum[r] += g_slots[r].sum();
      gh_sum[r] += gh_slots[r].sum();
    }
  });
  for (int r = 0; r < kRows; ++r) {
    rows.average_g[r] = g_sum[r] / static_cast<A>(columns.cols);
    rows.average_gh[r] = gh_sum[r] / static_cast<A>(columns.cols);
  }
}

template <class T, class A = accumulate_t<T>>
struct BackwardRow {
  const T* dy;
  const T* x;
  const T* dsum;
  T* dx;
  const T* next_dy;
  const T* next_x;
  A mean;
  A rstd;
  A average_g;
  A average_gh;
};

template <class T, bool kCenter, bool kAdd, class Store>
TFK_FLATTEN void write_dx(const BackwardRow<T>& arguments, const accumulate_t<T>* weight,
                          std::int64_t cols) {
  const BackwardRow<T> row = arguments;  // no store can change it
  for_each_store<T>(
      cols,
      [&](std::int64_t i, auto lanes) {
        const auto x = load(row.x + i, lanes);
        const auto rstd = x.of(row.rstd);
        const auto h = (kCenter ? x - x.of(row.mean) : x) * rstd;
        const auto g = load(row.dy + i, lanes) * load_wide<T>(weight + i, lanes);
        const auto inner = fma(h, x.of(-row.average_gh), kCenter ? g - x.of(row.average_g) : g);
        const auto dx = kAdd ? fma(inner, rstd, load(row.dsum + i, lanes)) : inner * rstd;
        Store::put(row.dx + i, dx, lanes);
      },
      PrefetchPair<T>{{row.next_dy}, {row.next_x}});
}

template <class T>
constexpr auto* pick_write_dx(bool center, bool add, bool stream) {
  using Function = void(const BackwardRow<T>&, const accumulate_t<T>*, std::int64_t);
  constexpr Function* kTable[2][2][2] = {
      {{write_dx<T, false, false, CachedStore>, write_dx<T, false, false, StreamingStore>},
       {write_dx<T, false, true, CachedStore>, write_dx<T, false, true, StreamingStore>}},
      {{write_dx<T, true, false, CachedStore>, write_dx<T, true, false, StreamingStore>},
       {write_dx<T, true, true, CachedStore>, write_dx<T, true, true, StreamingStore>}}};
  return kTable[center][add][stream];
}

template <class T, int kRows>
constexpr auto* pick_reduce_rows(bool center, Gradients gradients) {
  using Function = void(BackwardRows<T, kRows>&, const BackwardColumns<T>&);
  constexpr Function* kTable[2][3] = {
      {reduce_rows<T, false, kNoGradients, kRows>, reduce_rows<T, false, kWeightGradient, kRows>,
       reduce_rows<T, false, kBothGradients, kRows>},
      {reduce_rows<T, true, kNoGradients, kRows>, reduce_rows<T, true, kWeightGradient, kRows>,
       reduce_rows<T, true, kBothGradients, kRows>}};
  return kTable[center][gradients];
}

Gradients wanted_gradients(const NormBackwardProblem& p) {
  if (p.dbias != nullptr) return kBothGradients;
  return p.dweight != nullptr ? kWeightGradient : kNoGradients;
}

// Rows [begin, end), whose number is a multiple of kRows.
template <class T, int kRows>
void backward_rows(const NormBackwardTask& task, const BackwardColumns<T>& columns,
                   std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const NormBackwardProblem& p = task.problem;
  const bool stream = task.stream && can_stream<T>(p.dx.data, p.dx.stride);
  const auto reduce = pick_reduce_rows<T, kRows>(p.center, wanted_gradients(p));
  const auto write = pick_write_dx<T>(p.center, p.dsum.data != nullptr, stream);
  for (std::int64_t first = begin; first < end; first += kRows) {
    BackwardRows<T, kRows> rows;
    for (int i = 0; i < kRows; ++i) {
      rows.dy[i] = row_of<const T>(p.dy, first + i);
      rows.x[i] = row_of<const T>(p.x, first + i);
      rows.mean[i] = p.center ? static_cast<const A*>(p.mean)[first + i] : 0;
      rows.rstd[i] = static_cast<const A*>(p.rstd)[first + i];
    }
    reduce(rows, columns);
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t r = first + i;
      const std::int64_t next = r + kRows < end ? r + kRows : r;
      const T* const dsum = p.dsum.data != nullptr ? row_of<const T>(p.dsum, r) : nullptr;
      write({rows.dy[i], rows.x[i], dsum, row_of<T>(p.dx, r), row_of<const T>(p.dy, next),
             row_of<const T>(p.x, next), rows.mean[i], rows.rstd[i], rows.average_g[i],
             rows.average_gh[i]},
            columns.weight, p.cols);
    }
  }
}

template <class T>
void backward(const NormBackwardTask& task, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  constexpr int kRows = 4;
  // The rows of a group are read twice, so they should fit the second-level cache.
  constexpr std::int64_t kGroupBytes = 256 * 1024;
  const NormBackwardProblem& p = task.problem;
  const bool group = 2 * kRows * p.cols * static_cast<std::int64_t>(sizeof(T)) <= kGroupBytes;
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    BackwardColumns<T> columns{static_cast<const A*>(task.weight), nullptr, nullptr, p.cols};
    if (task.partials != nullptr) {
      columns.dweight = static_cast<A*>(task.partials) + chunk * 2 * task.wide_cols;
      columns.dbias = columns.dweight + task.wide_cols;
      __builtin_memset(columns.dweight, 0, 2 * task.wide_cols * sizeof(A));
    }
    const std::int64_t first = chunk * task.rows_per_chunk;
    const std::int64_t last =
        first + task.rows_per_chunk < p.rows ? first + task.rows_per_chunk : p.rows;
    const std::int64_t grouped = group ? (last - first) / kRows * kRows : 0;
    backward_rows<T, kRows>(task, columns, first, first + grouped);
    backward_rows<T, 1>(task, columns, first + grouped, last);
  }
  stream_fence();
}

template <class T>
void widen_row(const void* from, void* to, std::int64_t cols) {
  for_each_vector<T>(cols, [&](std::int64_t i, int, auto lanes) {
    store(static_cast<float*>(to) + i, load(static_cast<const T*>(from) + i, lanes), lanes);
  });
}

template <class T>
void narrow_row(const void* from, void* to, std::int64_t cols) {
  for_each_store<T>(cols, [&](std::int64_t i, auto lanes) {
    store(static_cast<T*>(to) + i, load_as<T>(static_cast<const float*>(from) + i, lanes), lanes);
  });
}

}  // namespace

const NormKernels norm_kernels = {
    {forward<double>, forward<float>, forward<Half>, forward<BFloat16>},
    {backward<double>, backward<float>, backward<Half>, backward<BFloat16>},
    {nullptr, nullptr, widen_row<Half>, widen_row<BFloat16>},
    {nullptr, nullptr, narrow_row<Half>, narrow_row<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
