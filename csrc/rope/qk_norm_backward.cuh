// SPDX-License-Identifier: MIT
// The backward pass of qk_norm on CUDA. With g, the gradient rotated back, and xhat = x rstd:
//
//   dw = sum over rows g xhat        dx = rstd (g w - xhat sum(g w xhat) / D)
//
// A CTA works on either q or k. A group of lanes owns every n-th token with all its heads, n being
// the number of groups in the grid. A lane keeps the sums of its unit's weights in registers; the
// groups of a CTA add theirs up in shared memory, and each CTA writes a row of partial sums.
#pragma once

#include "rope/qk_norm_rows.cuh"

namespace transformer_kernels::cuda {

// The partial sums of q_weight's and k_weight's gradients: [cta][2][pitch]; null where neither is
// wanted.
template <class A>
struct QkNormSums {
  A* partial;
  std::int64_t pitch;
};

// One of q and k.
struct QkNormSide {
  Heads dy;
  Heads x;
  Heads dx;
  std::int64_t heads;
  const void* weight;
};

__device__ __forceinline__ QkNormSide side_of(const QkNormBackwardProblem& problem, bool of_q) {
  const RopeProblem& p = problem.rope;
  return of_q ? QkNormSide{p.q, problem.q, p.q_rotated, p.q_heads, problem.q_weight}
              : QkNormSide{p.k, problem.k, p.k_rotated, p.k_heads, problem.k_weight};
}

// g w and x of a unit: what both of the row's sums are made of, and the gradient of x.
template <class T, int kSize, class A = accumulate_t<T>>
__device__ __forceinline__ A weighted_product(const UnitValues<T, kSize>& g,
                                              const UnitValues<T, kSize>& x,
                                              const UnitWeights<T, kSize>& w) {
  A sum = 0;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    sum += g.first[k] * w.first[k] * x.first[k] + g.second[k] * w.second[k] * x.second[k];
  }
  return sum;
}

// The results of a row that all its lanes need.
template <class A>
struct RowSums {
  A rstd;
  A of_x;  // the share of x in its gradient

  __device__ __forceinline__ RowSums(A squares, A product, int lanes, A per_number, A eps) {
    A sums[] = {squares, product};
    sum_over(sums, lanes);
    rstd = reciprocal_root(sums[0] * per_number + eps);
    // Where squares overflow, rstd and the gradient are 0, as PyTorch's; the product may overflow.
    of_x = rstd == 0 ? A(0) : sums[1] * rstd * rstd * rstd * per_number;
  }
};

// A unit of both inputs: of the next head while the one before it is computed.
template <class T, int kSize>
struct QkNormPacks {
  UnitPacks<T, kSize> dy;
  UnitPacks<T, kSize> x;

  __device__ __forceinline__ void load(const T* dy_row, const T* x_row, const RopeUnit& unit) {
    dy.load(dy_row, unit);
    x.load(x_row, unit);
  }
};

template <class T, int kSize, bool kNeighbours>
__global__ void __launch_bounds__(kQkNormThreads, kQkNormBackwardCtas)
    qk_norm_backward_kernel(const __grid_constant__ QkNormBackwardProblem problem,
                            const __grid_constant__ QkNormGrid grid, bool table_packs,
                            QkNormSums<accumulate_t<T>> sums) {
  using A = accumulate_t<T>;
  __shared__ A shared[kQkNormThreads * 2 * kSize];
  const RopeProblem& p = problem.rope;
  follow_previous_kernel();
  const A per_number = reciprocal(static_cast<A>(p.dim));
  const auto lanes = static_cast<unsigned>(grid.lanes);
  const auto group = static_cast<std::int64_t>(threadIdx.x / lanes);
  const auto index = static_cast<int>(threadIdx.x % lanes);
  const RopeUnit unit = unit_of<kSize, kNeighbours>(p, grid.rotated, grid.units, index);
  const bool of_q = blockIdx.x < grid.q_ctas;
  const unsigned cta = of_q ? blockIdx.x : blockIdx.x - grid.q_ctas;
  const QkNormSide side = side_of(problem, of_q);
  const auto heads = static_cast<int>(side.heads);
  const bool has_unit = index < grid.units && heads > 0;
  const std::int64_t step = std::int64_t{grid.q_ctas} * grid.groups();
  TokenWalk walk(p, cta * grid.groups() + static_cast<unsigned>(group),
                 static_cast<unsigned>(step));
  UnitWeights<T, kSize> w = {};
  if (has_unit) w.load(side.weight, problem.weight_dtype != p.dtype, unit);
  UnitValues<T, kSize> total = {};

  // All lanes of a warp go through the loop as often: they meet in it.
  for (std::int64_t start = std::int64_t{cta} * grid.groups(); start < p.tokens();
       start += step, walk.advance(p)) {
    const bool active = has_unit && start + group < p.tokens();
    const T* dy_row = head_row<const T>(side.dy, walk.at, 0);
    const T* x_row = head_row<const T>(side.x, walk.at, 0);
    T* dx_row = head_row<T>(side.dx, walk.at, 0);
    QkNormPacks<T, kSize> next;
    UnitAngles<A, kSize> angles;
    bool rotates = false;
    if (active) {
      next.load(dy_row, x_row, unit);
      const RowAngles<T, kSize, kNeighbours> row_angles(p, walk.at, table_packs);
      rotates = row_angles.rotates(unit);
      if (rotates) row_angles.load(unit, index, angles);
    }
    for (int head = 0; head < heads; ++head) {
      UnitValues<T, kSize> g = next.dy.values();
      const UnitPacks<T, kSize> packed = next.x;
      dy_row += side.dy.head;
      x_row += side.x.head;
      if (active && head + 1 < heads) next.load(dy_row, x_row, unit);
      if (rotates) angles.template rotate<kNeighbours>(g.first, g.second);
      UnitValues<T, kSize> x = packed.values();
      const RowSums<A> row(x.squares(), weighted_product<T, kSize>(g, x, w), grid.lanes, per_number,
                           static_cast<A>(problem.eps));
      if (!active) continue;
      x = packed.values_again();
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        const A a = g.first[k] * row.rstd;
        const A b = g.second[k] * row.rstd;
        total.first[k] += a * x.first[k];
        total.second[k] += b * x.second[k];
        x.first[k] = a * w.first[k] - x.first[k] * row.of_x;
        x.second[k] = b * w.second[k] - x.second[k] * row.of_x;
      }
      x.store(dx_row, unit);
      dx_row += side.dx.head;
    }
  }
  if (sums.partial == nullptr) return;

  constexpr int kNumbers = 2 * kSize;  // of a unit
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    shared[threadIdx.x * kNumbers + k] = total.first[k];
    shared[threadIdx.x * kNumbers + kSize + k] = total.second[k];
  }
  __syncthreads();
  A* const out = sums.partial + (std::int64_t{cta} * 2 + (of_q ? 0 : 1)) * sums.pitch;
  for (int i = threadIdx.x; i < grid.units * kNumbers; i += kQkNormThreads) {
    A sum = 0;
    for (int from = i; from < kQkNormThreads * kNumbers; from += grid.lanes * kNumbers) {
      sum += shared[from];
    }
    const RopeUnit of = unit_of<kSize, kNeighbours>(p, grid.rotated, grid.units, i / kNumbers);
    const int place = i % kNumbers;
    if (place < kSize) {
      out[of.first + place] = sum;
    } else if (of.has_second) {
      out[of.second + place - kSize] = sum;
    }
  }
}

// The kernel for rows of any number of single elements: a group of lanes goes through a row twice,
// and keeps its own row of partial sums in memory, zeros at first.
template <class T>
__global__ void __launch_bounds__(kQkNormThreads, kQkNormBackwardCtas)
    qk_norm_backward_elements_kernel(const __grid_constant__ QkNormBackwardProblem problem,
                                     const __grid_constant__ QkNormGrid grid,
                                     QkNormSums<accumulate_t<T>> sums) {
  using A = accumulate_t<T>;
  const RopeProblem& p = problem.rope;
  follow_previous_kernel();
  const A per_number = reciprocal(static_cast<A>(p.dim));
  const auto lanes = static_cast<unsigned>(grid.lanes);
  const auto group = static_cast<std::int64_t>(threadIdx.x / lanes);
  const auto first = static_cast<int>(threadIdx.x % lanes);
  const bool of_q = blockIdx.x < grid.q_ctas;
  const unsigned cta = of_q ? blockIdx.x : blockIdx.x - grid.q_ctas;
  const QkNormSide side = side_of(problem, of_q);
  const std::int64_t step = std::int64_t{grid.q_ctas} * grid.groups();
  TokenWalk walk(p, cta * grid.groups() + static_cast<unsigned>(group),
                 static_cast<unsigned>(step));
  const bool is_wide = problem.weight_dtype != p.dtype;
  A* const total =
      sums.partial == nullptr
          ? nullptr
          : sums.partial +
                ((std::int64_t{cta} * grid.groups() + group) * 2 + (of_q ? 0 : 1)) * sums.pitch;
  for (std::int64_t start = std::int64_t{cta} * grid.groups(); start < p.tokens();
       start += step, walk.advance(p)) {
    const bool active = start + group < p.tokens();
    const Token at = walk.at;
    const RowAngles<T, 1, false> row_angles(p, active ? at : Token{}, false);
    for (std::int64_t head = 0; head < side.heads; ++head) {
      const T* const x_row = head_row<const T>(side.x, at, head);
      const T* const dy_row = head_row<const T>(side.dy, at, head);
      const auto load = [&](int index, UnitValues<T, 1>& x, UnitValues<T, 1>& g,
                            UnitWeights<T, 1>& w) {
        const RopeUnit unit = unit_of<1, false>(p, grid.rotated, grid.units, index);
        UnitPacks<T, 1> packs;
        packs.load(x_row, unit);
        x = packs.values();
        packs.load(dy_row, unit);
        g = packs.values();
        w.load(side.weight, is_wide, unit);
        if (row_angles.rotates(unit)) {
          UnitAngles<A, 1> angles;
          row_angles.load(unit, index, angles);
          angles.template rotate<false>(g.first, g.second);
        }
        return unit;
      };
      UnitValues<T, 1> x, g;
      UnitWeights<T, 1> w;
      A squares = 0;
      A product = 0;
      for (int index = first; active && index < grid.units; index += grid.lanes) {
        load(index, x, g, w);
        squares += x.squares();
        product += weighted_product<T, 1>(g, x, w);
      }
      const RowSums<A> row(squares, product, grid.lanes, per_number, static_cast<A>(problem.eps));
      for (int index = first; active && index < grid.units; index += grid.lanes) {
        const RopeUnit unit = load(index, x, g, w);
        const A a = g.first[0] * row.rstd;
        const A b = g.second[0] * row.rstd;
        if (total != nullptr) {
          total[unit.first] += a * x.first[0];
          if (unit.has_second) total[unit.second] += b * x.second[0];
        }
        x.first[0] = a * w.first[0] - x.first[0] * row.of_x;
        x.second[0] = b * w.second[0] - x.second[0] * row.of_x;
        x.store(head_row<T>(side.dx, at, head), unit);
      }
    }
  }
}

}  // namespace transformer_kernels::cuda
