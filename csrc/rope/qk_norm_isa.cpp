// SPDX-License-Identifier: MIT
// Normalisation of heads followed by the rotation. Compiled once per instruction set; see
// core/cpu/isa.h.
//
// Between norm and rotation a row lies in the first-level cache, in order, in the type of sums.
#include "rope/qk_norm_isa.h"
#include "rope/rows.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

float reciprocal_root(float value) { return 1 / __builtin_sqrtf(value); }
double reciprocal_root(double value) { return 1 / __builtin_sqrt(value); }

template <class T, class A = accumulate_t<T>>
TFK_FLATTEN A rstd_of(const T* x, std::int64_t cols, A eps) {
  auto squares = Slots<T>::of(0);
  for_each_vector<T>(cols, [&](std::int64_t i, int slot, auto lanes) {
    const auto v = load(x + i, lanes);
    squares[slot] = fma(v, v, squares[slot]);
  });
  return reciprocal_root(squares.sum() / static_cast<A>(cols) + eps);
}

// Numbers [first, cols) as they are.
template <class T, class In, class Out>
TFK_FLATTEN void convert_rest(const In* in, Out* out, std::int64_t first, std::int64_t cols) {
  for_each_vector<T>(cols - first, [&](std::int64_t i, int, auto lanes) {
    store(out + first + i, load_as<T>(in + first + i, lanes), lanes);
  });
}

template <class T, class A = accumulate_t<T>>
TFK_FLATTEN void scale_row(const T* x, const A* weight, A rstd, A* out, std::int64_t cols) {
  const auto factor = vec_t<T>::of(rstd);
  for_each_vector<T>(cols, [&](std::int64_t i, int, auto lanes) {
    store(out + i, load(x + i, lanes) * factor * load_wide<T>(weight + i, lanes), lanes);
  });
}

template <class T>
void forward(const QkNormForwardTask& task, const RopeToken* tokens, int count) {
  using A = accumulate_t<T>;
  const RopeProblem& p = task.problem.rope;
  const BlockAngles<T> angles(p, tokens, count);
  RowScratch scratch(wide_cols(p.dim) * sizeof(A));
  A* const row = static_cast<A*>(scratch.data());
  const auto side = [&](const Heads& in, const Heads& out, std::int64_t heads, const void* weight) {
    for_each_head(in, heads, count, [&](int i, std::int64_t head) {
      const T* const x = head_row<const T>(in, tokens[i].at, head);
      T* const y = head_row<T>(out, tokens[i].at, head);
      const A rstd = rstd_of(x, p.dim, static_cast<A>(task.problem.eps));
      scale_row(x, static_cast<const A*>(weight), rstd, row, p.dim);
      convert_rest<T>(row, y, rotate_first<T>(p.angles, row, y, angles[i], false), p.dim);
    });
  };
  side(p.q, p.q_rotated, p.q_heads, task.q_weight);
  side(p.k, p.k_rotated, p.k_heads, task.k_weight);
}

// ---------------------------------------------------------------------------- backward
//
// With g, the gradient rotated back, and xhat = x rstd:
//
//   dw = sum over rows g xhat        dx = rstd (g w - xhat sum(g w xhat) / D)

template <class T, class A = accumulate_t<T>>
TFK_FLATTEN A product_of(const A* g, const T* x, const A* weight, std::int64_t cols) {
  auto total = Slots<T>::of(0);
  for_each_vector<T>(cols, [&](std::int64_t i, int slot, auto lanes) {
    const auto term = load_as<T>(g + i, lanes) * load_wide<T>(weight + i, lanes);
    total[slot] = fma(keep<T>(term, lanes, vec_t<T>::of(0)), load(x + i, lanes), total[slot]);
  });
  return total.sum();
}

template <class T, class A = accumulate_t<T>>
TFK_FLATTEN void gradient_row(const A* g, const T* x, const A* weight, A rstd, A of_x, T* dx,
                              A* sums, std::int64_t cols) {
  for_each_store<T>(cols, [&](std::int64_t i, auto lanes) {
    const auto value = load(x + i, lanes);
    const auto slope = load_as<T>(g + i, lanes) * value.of(rstd);
    store_wide<T>(sums + i, fma(slope, value, load_wide<T>(sums + i, lanes)), lanes);
    store(dx + i, slope * load_wide<T>(weight + i, lanes) - value * value.of(of_x), lanes);
  });
}

template <class T>
void backward(const QkNormBackwardTask& task, const RopeToken* tokens, int count, void* sums) {
  using A = accumulate_t<T>;
  const RopeProblem& p = task.problem.rope;
  const BlockAngles<T> angles(p, tokens, count);
  RowScratch scratch(wide_cols(p.dim) * sizeof(A));
  A* const g = static_cast<A*>(scratch.data());
  const auto side = [&](const Heads& dy, const Heads& in, const Heads& out, std::int64_t heads,
                        const void* wide_weight, A* total) {
    const A* const weight = static_cast<const A*>(wide_weight);
    for_each_head(in, heads, count, [&](int i, std::int64_t head) {
      const T* const gradient = head_row<const T>(dy, tokens[i].at, head);
      const T* const x = head_row<const T>(in, tokens[i].at, head);
      convert_rest<T>(gradient, g, rotate_first<T>(p.angles, gradient, g, angles[i], false), p.dim);
      const A rstd = rstd_of(x, p.dim, static_cast<A>(task.problem.eps));
      const A product = product_of(g, x, weight, p.dim);
      // Where squares overflow, rstd and the gradient are 0, as PyTorch's; the product may
      // overflow.
      const A of_x = rstd == 0 ? A{0} : product * rstd * rstd * rstd / static_cast<A>(p.dim);
      gradient_row(g, x, weight, rstd, of_x, head_row<T>(out, tokens[i].at, head), total, p.dim);
    });
  };
  A* const q_sums = static_cast<A*>(sums);
  side(p.q, task.problem.q, p.q_rotated, p.q_heads, task.q_weight, q_sums);
  side(p.k, task.problem.k, p.k_rotated, p.k_heads, task.k_weight, q_sums + task.wide_cols);
}

}  // namespace

const QkNormKernels qk_norm_kernels = {
    {forward<double>, forward<float>, forward<Half>, forward<BFloat16>},
    {backward<double>, backward<float>, backward<Half>, backward<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
