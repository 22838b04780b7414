// SPDX-License-Identifier: MIT
// Factors of rows, and their gradients. Compiled once per instruction set; see core/cpu/isa.h.
#include "core/cpu/row_loop.h"
#include "linear/cpu/grouped.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class T>
TFK_FLATTEN void scale(const ScaledRows& task) {
  for (std::int64_t r = 0; r < task.count; ++r) {
    T* const row = row_of<T>(task.rows, r);
    const auto factor = vec_t<T>::of(static_cast<const accumulate_t<T>*>(task.factors)[r]);
    for_each_vector<T>(task.cols, [&](std::int64_t i, int, auto lanes) {
      store(row + i, load(row + i, lanes) * factor, lanes);
    });
  }
}

template <class T>
TFK_FLATTEN void dot(const DotOfRows& task) {
  using A = accumulate_t<T>;
  for (std::int64_t r = 0; r < task.count; ++r) {
    const T* const a = row_of<T>(task.a, r);
    const T* const b = row_of<T>(task.b, r);
    A total = 0;
    for_each_block<T>(task.cols, [&](std::int64_t first, std::int64_t count) {
      Slots<T> sums = Slots<T>::of(0);
      for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
        const vec_t<T> term = load(a + first + i, lanes) * load(b + first + i, lanes);
        sums[slot] = sums[slot] + keep<T>(term, lanes, vec_t<T>::of(0));
      });
      total += sums.sum();
    });
    static_cast<A*>(task.dots)[r] = total;
  }
}

}  // namespace

const GroupedKernels grouped_kernels = {{scale<double>, scale<float>, scale<Half>, scale<BFloat16>},
                                        {dot<double>, dot<float>, dot<Half>, dot<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
