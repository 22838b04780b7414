// SPDX-License-Identifier: MIT
#include "core/cpu/row_loop.h"
#include "simd_probe.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class In, class Out>
void convert(const In* in, Out* out, std::int64_t count) {
  for_each_vector<accumulate_t<In>>(
      count, [&](std::int64_t i, int, auto lanes) { store(out + i, load(in + i, lanes), lanes); });
}

template <class A>
void exponential(const A* in, A* out, std::int64_t count) {
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    store(out + i, exp(load(in + i, lanes)), lanes);
  });
}

template <class Out>
void stream_out(const float* in, Out* out, std::int64_t count) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    StreamingStore::put(out + i, load(in + i, lanes), lanes);
  });
  stream_fence();
}

template <class A>
void select_where(const std::uint8_t* mask, const A* in, A* out, std::int64_t count) {
  for_each_vector<A>(count, [&](std::int64_t i, int, auto lanes) {
    const Vec<A> value = load(in + i, lanes);
    store(out + i, select(nonzero<A>(mask + i, lanes), value, Vec<A>::of(-1)), lanes);
  });
}

template <class A>
A sum(const A* in, std::int64_t count) {
  auto total = Slots<A>::of(0);
  for_each_vector<A>(count, [&](std::int64_t i, int slot, auto lanes) {
    total[slot] = total[slot] + load(in + i, lanes);
  });
  return total.sum();
}

template <class A>
A largest(const A* in, std::int64_t count) {
  const auto lowest = Vec<A>::of(-__builtin_inff());
  auto top = Slots<A>::of(-__builtin_inff());
  for_each_vector<A>(count, [&](std::int64_t i, int slot, auto lanes) {
    top[slot] = max(keep(load(in + i, lanes), lanes, lowest), top[slot]);
  });
  return top.largest();
}

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
                              stream_out<float>,
                              stream_out<BFloat16>,
                              select_where<float>,
                              select_where<double>,
                              sum<float>,
                              sum<double>,
                              largest<float>,
                              largest<double>};

}  // namespace transformer_kernels::cpu::TFK_ISA
