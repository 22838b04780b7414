// SPDX-License-Identifier: MIT
// Softmax of rows. Compiled once per instruction set; see core/cpu/isa.h.
#include "core/cpu/row_loop.h"
#include "softmax/cpu/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

float natural_log(float value) { return __builtin_logf(value); }
double natural_log(double value) { return __builtin_log(value); }

template <MaskKind kMask, class T>
struct MaskElement {
  using type = std::uint8_t;
};
template <class T>
struct MaskElement<MaskKind::kSameDType, T> {
  using type = T;
};
// No float32 mask comes with float64, so this is float.
template <class T>
struct MaskElement<MaskKind::kFloat32, T> {
  using type = accumulate_t<T>;
};

// The mask of a row: an array of one element a column, or one number for the whole row.
template <class A>
struct MaskOfRow {
  MaskKind kind;
  const void* columns;  // of kind's type; unused for kNone
  A uniform;            // added to each element when kind is kNone
};

template <class T, class A = accumulate_t<T>>
A uniform_mask(MaskKind kind, const void* element) {
  if (kind == MaskKind::kNone) return 0;
  if (kind == MaskKind::kBool) {
    return *static_cast<const std::uint8_t*>(element) != 0 ? A{0} : A{kMinusInfinity};
  }
  if (kind == MaskKind::kFloat32) return *static_cast<const A*>(element);
  return reduce_add(load(static_cast<const T*>(element), First{1}));
}

template <class T, class A = accumulate_t<T>>
MaskOfRow<A> mask_of_row(const RowMask& mask, std::int64_t row) {
  constexpr std::int64_t kBytes[] = {0, 1, sizeof(T), sizeof(A)};
  const std::int64_t offset = mask.row_offset(row) * kBytes[static_cast<int>(mask.kind)];
  const void* const data = static_cast<const char*>(mask.data) + offset;
  if (mask.col_stride != 0) return {mask.kind, data, 0};
  return {MaskKind::kNone, nullptr, uniform_mask<T>(mask.kind, data)};
}

// z = x * scale + mask, a wide row; returns the largest. NaN is kept in z and passed over in the
// maximum.
template <class T, MaskKind kMask>
TFK_FLATTEN accumulate_t<T> scale_and_mask(const T* x, const MaskOfRow<accumulate_t<T>>& mask,
                                           accumulate_t<T> scale, accumulate_t<T>* z,
                                           std::int64_t cols) {
  using V = vec_t<T>;
  const auto* const m = static_cast<const typename MaskElement<kMask, T>::type*>(mask.columns);
  const V lowest = V::of(kMinusInfinity);
  const V factor = V::of(scale);
  const V uniform = V::of(mask.uniform);
  auto top = Slots<T>::of(kMinusInfinity);
  for_each_vector<T>(cols, [&](std::int64_t i, int slot, auto lanes) {
    V v = load(x + i, lanes);
    if constexpr (kMask == MaskKind::kNone) {
      v = fma(v, factor, uniform);
    } else if constexpr (kMask == MaskKind::kBool) {
      v = select(nonzero<T>(m + i, lanes), v * factor, lowest);
    } else {
      v = fma(v, factor, load_as<T>(m + i, lanes));
    }
    store_wide<T>(z + i, v, lanes);
    top[slot] = max(keep<T>(v, lanes, lowest), top[slot]);
  });
  return top.largest();
}

template <class T>
constexpr auto* pick_scale_and_mask(MaskKind kind) {
  using A = accumulate_t<T>;
  using Function = A(const T*, const MaskOfRow<A>&, A, A*, std::int64_t);
  constexpr Function* kTable[] = {
      scale_and_mask<T, MaskKind::kNone>, scale_and_mask<T, MaskKind::kBool>,
      scale_and_mask<T, MaskKind::kSameDType>, scale_and_mask<T, MaskKind::kFloat32>};
  return kTable[static_cast<int>(kind)];
}

// The sum of exp(z - top); z becomes that power, or z - top where the logarithm is wanted. The
// maximum comes off first, so that equal numbers of any size differ by exactly 0.
template <class T, bool kLog>
TFK_FLATTEN accumulate_t<T> exponentiate(accumulate_t<T>* z, accumulate_t<T> top, std::int64_t cols,
                                         const T* next) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  const V origin = V::of(top);
  A sum = 0;
  for_each_block<T>(cols, [&](std::int64_t begin, std::int64_t count) {
    A* const block = z + begin;
    auto slots = Slots<T>::of(0);
    for_each_vector<T>(
        count,
        [&](std::int64_t i, int slot, auto lanes) {
          const V shifted = load_wide<T>(block + i, lanes) - origin;
          const V e = exp_for<T>(shifted);
          store_wide<T>(block + i, kLog ? shifted : e, lanes);
          slots[slot] = slots[slot] + keep<T>(e, lanes, V::of(0));
        },
        PrefetchRow<T>{next + begin});
    sum += slots.sum();
  });
  return sum;
}

// y = z / sum, or z - log(sum) where the logarithm is wanted.
template <class T, bool kLog, class Store>
TFK_FLATTEN void write_row(const accumulate_t<T>* z, accumulate_t<T> sum, T* y, std::int64_t cols) {
  const accumulate_t<T> last = kLog ? natural_log(sum) : 1 / sum;
  for_each_store<T>(cols, [&](std::int64_t i, auto lanes) {
    const auto v = load_wide<T>(z + i, lanes);
    Store::put(y + i, kLog ? v - v.of(last) : v * v.of(last), lanes);
  });
}

template <class T>
constexpr auto* pick_write_row(bool log, bool stream) {
  using Function = void(const accumulate_t<T>*, accumulate_t<T>, T*, std::int64_t);
  constexpr Function* kTable[2][2] = {
      {write_row<T, false, CachedStore>, write_row<T, false, StreamingStore>},
      {write_row<T, true, CachedStore>, write_row<T, true, StreamingStore>}};
  return kTable[log][stream];
}

template <class T>
TFK_FLATTEN void fill_row(T* y, accumulate_t<T> value, std::int64_t cols) {
  for_each_vector<T>(
      cols, [&](std::int64_t i, int, auto lanes) { store(y + i, vec_t<T>::of(value), lanes); });
}

// A row whose maximum is -inf may still hold a NaN, which the maximum passed over.
template <class T>
TFK_FLATTEN bool all_minus_infinity(const accumulate_t<T>* z, std::int64_t cols) {
  using V = vec_t<T>;
  auto sum = Slots<T>::of(0);
  for_each_vector<T>(cols, [&](std::int64_t i, int slot, auto lanes) {
    sum[slot] = sum[slot] + keep<T>(load_wide<T>(z + i, lanes), lanes, V::of(0));
  });
  return sum.sum() == kMinusInfinity;
}

template <class T>
void forward(const SoftmaxForwardProblem& p, bool stream, void* scratch, std::int64_t begin,
             std::int64_t end) {
  using A = accumulate_t<T>;
  A* const z = static_cast<A*>(scratch);
  const A masked_value = p.log ? A{kMinusInfinity} : A{0};
  const auto exponentiate_row = p.log ? exponentiate<T, true> : exponentiate<T, false>;
  const auto write = pick_write_row<T>(p.log, stream && can_stream<T>(p.y, p.y_stride));
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const x = static_cast<const T*>(p.x) + r * p.x_stride;
    const T* const next = r + 1 < end ? x + p.x_stride : x;
    T* const y = static_cast<T*>(p.y) + r * p.y_stride;
    const std::int64_t visible = p.visible_cols(r);
    const MaskOfRow<A> mask = mask_of_row<T>(p.mask, r);
    const A top = pick_scale_and_mask<T>(mask.kind)(x, mask, static_cast<A>(p.scale), z, visible);
    const bool masked_out =
        p.masked() && top == kMinusInfinity && (visible == 0 || all_minus_infinity<T>(z, visible));
    const std::int64_t written = masked_out ? 0 : visible;
    if (written > 0) write(z, exponentiate_row(z, top, written, next), y, written);
    fill_row(y + written, masked_value, p.cols - written);
  }
  stream_fence();
}

// ---------------------------------------------------------------------------- backward
//
//   softmax      dx = scale * (dy - sum(dy * y)) * y
//   log-softmax  dx = scale * (dy - sum(dy) * exp(y)), and 0 where a mask made y -inf

template <class T, bool kLog>
TFK_FLATTEN accumulate_t<T> reduce_gradient(const T* dy, const T* y, std::int64_t cols) {
  using A = accumulate_t<T>;
  A sum = 0;
  for_each_block<T>(cols, [&](std::int64_t begin, std::int64_t count) {
    auto slots = Slots<T>::of(0);
    for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
      const vec_t<T> g = load(dy + begin + i, lanes);
      slots[slot] = kLog ? slots[slot] + g : fma(g, load(y + begin + i, lanes), slots[slot]);
    });
    sum += slots.sum();
  });
  return sum;
}

template <class T, class A = accumulate_t<T>>
struct BackwardRow {
  const T* dy;
  const T* y;
  T* dx;
  const T* next_dy;
  const T* next_y;
  A sum;
  A scale;
};

template <class T, bool kLog, bool kMasked, class Store>
TFK_FLATTEN void write_dx(const BackwardRow<T>& arguments, std::int64_t cols) {
  const BackwardRow<T> row = arguments;  // no store can change it
  for_each_store<T>(
      cols,
      [&](std::int64_t i, auto lanes) {
        const auto dy = load(row.dy + i, lanes);
        const auto y = load(row.y + i, lanes);
        const auto minus_sum = y.of(-row.sum);
        const auto scale = y.of(row.scale);
        const auto put = [&](auto dx) { Store::put(row.dx + i, dx, lanes); };
        if constexpr (!kLog) {
          put((dy + minus_sum) * y * scale);
        } else {
          const auto dx = fma(exp(y), minus_sum, dy) * scale;
          put(kMasked ? select(equal(y, y.of(kMinusInfinity)), y.of(0), dx) : dx);
        }
      },
      PrefetchPair<T>{{row.next_dy}, {row.next_y}});
}

template <class T>
constexpr auto* pick_write_dx(bool log, bool masked, bool stream) {
  using Function = void(const BackwardRow<T>&, std::int64_t);
  constexpr Function* kTable[3][2] = {
      {write_dx<T, false, false, CachedStore>, write_dx<T, false, false, StreamingStore>},
      {write_dx<T, true, false, CachedStore>, write_dx<T, true, false, StreamingStore>},
      {write_dx<T, true, true, CachedStore>, write_dx<T, true, true, StreamingStore>}};
  return kTable[log ? 1 + masked : 0][stream];
}

template <class T>
void backward(const SoftmaxBackwardProblem& p, bool stream, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const auto reduce = p.log ? reduce_gradient<T, true> : reduce_gradient<T, false>;
  const auto write = pick_write_dx<T>(p.log, p.masked, stream && can_stream<T>(p.dx, p.dx_stride));
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const dy = static_cast<const T*>(p.dy) + r * p.dy_stride;
    const T* const y = static_cast<const T*>(p.y) + r * p.y_stride;
    T* const dx = static_cast<T*>(p.dx) + r * p.dx_stride;
    const std::int64_t step = r + 1 < end ? 1 : 0;
    write({dy, y, dx, dy + step * p.dy_stride, y + step * p.y_stride, reduce(dy, y, p.cols),
           static_cast<A>(p.scale)},
          p.cols);
  }
  stream_fence();
}

}  // namespace

const SoftmaxKernels softmax_kernels = {
    {forward<double>, forward<float>, forward<Half>, forward<BFloat16>},
    {backward<double>, backward<float>, backward<Half>, backward<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
