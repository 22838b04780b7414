// SPDX-License-Identifier: MIT
// Rows of tokens and of places. Compiled once per instruction set; see core/cpu/isa.h.
#include "core/cpu/row_loop.h"
#include "moe/dispatch/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class T>
accumulate_t<T> number_at(const T* p) {
  return reduce_add(load(p, First{1}));
}

template <class T, class A = accumulate_t<T>>
A weight_of(const DispatchProblem& p, std::int64_t assignment) {
  if (p.weights == nullptr) return 1;
  if (p.weights_dtype == p.dtype) return number_at(static_cast<const T*>(p.weights) + assignment);
  return static_cast<const A*>(p.weights)[assignment];
}

template <class T>
void put_dweight(const DispatchProblem& p, std::int64_t assignment, accumulate_t<T> value) {
  if (p.weights_dtype == p.dtype) {
    store(static_cast<T*>(p.dweights) + assignment, vec_t<T>::of(value), First{1});
  } else {
    static_cast<accumulate_t<T>*>(p.dweights)[assignment] = value;
  }
}

template <class T>
TFK_FLATTEN void scale_row(const T* x, T* y, accumulate_t<T> factor, std::int64_t cols) {
  const vec_t<T> by = vec_t<T>::of(factor);
  for_each_vector<T>(
      cols, [&](std::int64_t i, int, auto lanes) { store(y + i, load(x + i, lanes) * by, lanes); });
}

template <class T>
TFK_FLATTEN accumulate_t<T> dot(const T* a, const T* b, std::int64_t cols) {
  accumulate_t<T> total = 0;
  for_each_block<T>(cols, [&](std::int64_t begin, std::int64_t count) {
    auto sums = Slots<T>::of(0);
    for_each_vector<T>(count, [&](std::int64_t i, int slot, auto lanes) {
      sums[slot] = fma(load(a + begin + i, lanes), load(b + begin + i, lanes), sums[slot]);
    });
    total += sums.sum();
  });
  return total;
}

template <class T>
void spread(const SpreadProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const T* const x = row_of<const T>(p.of_tokens, t);
    for (std::int64_t i = t * p.assigned; i < (t + 1) * p.assigned; ++i) {
      const std::int32_t place = p.places[i];
      const bool is_kept = p.is_kept(place);
      if (p.dweights != nullptr) {
        put_dweight<T>(p, i, is_kept ? dot(x, row_of<const T>(p.weighted, place), p.cols) : 0);
      }
      if (p.of_places.data == nullptr) continue;
      T* const y = row_of<T>(p.of_places, is_kept ? place : ~place);
      if (!is_kept) {
        __builtin_memset(y, 0, p.cols * sizeof(T));
      } else if (p.weights == nullptr) {
        __builtin_memcpy(y, x, p.cols * sizeof(T));
      } else {
        scale_row(x, y, weight_of<T>(p, i), p.cols);
      }
    }
  }
}

// The rows of one token that are added, with their weights.
template <class T>
struct Terms {
  int count = 0;
  const T* row[kMostAssigned];
  accumulate_t<T> weight[kMostAssigned];
};

template <class T>
TFK_FLATTEN void sum_rows(const Terms<T>& terms, T* y, std::int64_t cols) {
  using V = vec_t<T>;
  for_each_vector<T>(cols, [&](std::int64_t i, int, auto lanes) {
    V sum = V::of(0);
    for (int k = 0; k < terms.count; ++k) {
      sum = fma(load(terms.row[k] + i, lanes), V::of(terms.weight[k]), sum);
    }
    store(y + i, sum, lanes);
  });
}

template <class T>
void combine(const CombineProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    Terms<T> terms;
    for (std::int64_t i = t * p.assigned; i < (t + 1) * p.assigned; ++i) {
      if (!p.is_kept(p.places[i])) continue;
      terms.row[terms.count] = row_of<const T>(p.of_places, p.places[i]);
      terms.weight[terms.count++] = weight_of<T>(p, i);
    }
    sum_rows(terms, row_of<T>(p.of_tokens, t), p.cols);
  }
}

}  // namespace

const DispatchKernels dispatch_kernels = {
    {spread<double>, spread<float>, spread<Half>, spread<BFloat16>},
    {combine<double>, combine<float>, combine<Half>, combine<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
