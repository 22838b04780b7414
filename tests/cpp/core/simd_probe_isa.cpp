// SPDX-License-Identifier: MIT
#include <type_traits>

#include "core/cpu/philox_block.h"
#include "core/cpu/row_loop.h"
#include "simd_probe.h"
#if TFK_ISA_LEVEL >= 4
#include "core/cpu/bfloat16_pair.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class In, class Out>
void convert(const In* in, Out* out, std::int64_t count) {
  // The type with the larger vectors of the two.
  using T = std::conditional_t<(vec_t<In>::kLanes > vec_t<Out>::kLanes), In, Out>;
  for_each_store<T>(
      count, [&](std::int64_t i, auto lanes) { store(out + i, load_as<T>(in + i, lanes), lanes); });
}

template <class A>
void exponential(const A* in, A* out, std::int64_t count) {
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    store(out + i, exp(load(in + i, lanes)), lanes);
  });
}

template <class A>
void power_of_two(const A* in, A* out, std::int64_t count) {
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    store(out + i, exp2(load(in + i, lanes)), lanes);
  });
}

template <class Out>
void stream_out(const float* in, Out* out, std::int64_t count) {
  for_each_store<Out>(count, [&](std::int64_t i, auto lanes) {
    StreamingStore::put(out + i, load_as<Out>(in + i, lanes), lanes);
  });
  stream_fence();
}

template <class T, class A = accumulate_t<T>>
void exponential_for(const A* in, A* out, std::int64_t count) {
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    store(out + i, exp_for<T>(load_as<T>(in + i, lanes)), lanes);
  });
}

template <class T, class A = accumulate_t<T>>
void select_where(const std::uint8_t* mask, const A* in, A* out, std::int64_t count) {
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    const auto value = load_as<T>(in + i, lanes);
    store(out + i, select(nonzero<T>(mask + i, lanes), value, vec_t<T>::of(-1)), lanes);
  });
}

template <class T, class A = accumulate_t<T>>
A sum(const A* in, std::int64_t count) {
  auto total = Slots<T>::of(0);
  for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
    total[slot] = total[slot] + load_as<T>(in + i, lanes);
  });
  return total.sum();
}

template <class T, class A = accumulate_t<T>>
A largest(const A* in, std::int64_t count) {
  const auto lowest = vec_t<T>::of(-__builtin_inff());
  auto top = Slots<T>::of(-__builtin_inff());
  for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
    top[slot] = max(keep<T>(load_as<T>(in + i, lanes), lanes, lowest), top[slot]);
  });
  return top.largest();
}

template <class T, class A = accumulate_t<T>>
void swapped(const A* in, A* out, std::int64_t count) {
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    store(out + i, swap_pairs(load_as<T>(in + i, lanes)), lanes);
  });
}

template <class A>
void transposed(const A* in, A* out) {
  constexpr int kLanes = Vec<A>::kLanes;
  Vec<A> rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = load(in + i * kLanes, All{});
  transpose(rows);
  for (int i = 0; i < kLanes; ++i) store(out + i * kLanes, rows[i], All{});
}

#if TFK_ISA_LEVEL >= 4
void short_power(const float* in, float* out, std::int64_t count) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    store(out + i, short_exp2(load(in + i, lanes) + VecF::of(0.5f)), lanes);
  });
}
#else
constexpr decltype(SimdProbe::short_exp2) short_power = nullptr;
#endif

}  // namespace

const SimdProbe simd_probe = {Vec<float>::kLanes,
                              Vec<double>::kLanes,
                              convert<Half, float>,
                              convert<BFloat16, float>,
                              convert<float, Half>,
                              convert<float, BFloat16>,
                              convert<float, float>,
                              convert<double, double>,
                              exponential<float>,
                              exponential<double>,
                              power_of_two<float>,
                              power_of_two<double>,
                              {exponential_for<Half>, exponential_for<BFloat16>},
                              stream_out<float>,
                              stream_out<BFloat16>,
                              {select_where<float>, select_where<BFloat16>},
                              select_where<double>,
                              {sum<float>, sum<BFloat16>},
                              sum<double>,
                              {largest<float>, largest<BFloat16>},
                              largest<double>,
                              {swapped<float>, swapped<BFloat16>},
                              swapped<double>,
                              transposed<float>,
                              transposed<double>,
                              philox_block,
                              short_power};

}  // namespace transformer_kernels::cpu::TFK_ISA
