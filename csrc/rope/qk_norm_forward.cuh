// SPDX-License-Identifier: MIT
// The forward pass of qk_norm on CUDA.
#pragma once

#include "rope/qk_norm_rows.cuh"

namespace transformer_kernels::cuda {

// A CTA is of q or of k. A group of lanes owns up to kQkNormHeads heads of a token: their packs,
// the angles and the weights are asked for at once, and the latter two once for all of them.
template <class T, int kSize, bool kNeighbours>
__global__ void __launch_bounds__(kQkNormThreads, kQkNormForwardCtas)
    qk_norm_forward_kernel(const __grid_constant__ QkNormForwardProblem problem,
                           const __grid_constant__ QkNormGrid grid, bool table_packs) {
  using A = accumulate_t<T>;
  const RopeProblem& p = problem.rope;
  follow_previous_kernel();
  const bool of_q = blockIdx.x < grid.q_ctas;
  const Heads in = of_q ? p.q : p.k;
  const Heads out = of_q ? p.q_rotated : p.k_rotated;
  const auto heads = static_cast<int>(of_q ? p.q_heads : p.k_heads);
  const auto step = static_cast<int>(head_groups(heads));
  const auto lanes = static_cast<unsigned>(grid.lanes);
  const unsigned owner =
      (of_q ? blockIdx.x : blockIdx.x - grid.q_ctas) * grid.groups() + threadIdx.x / lanes;
  const unsigned token = owner / static_cast<unsigned>(step);
  const auto first_head = static_cast<int>(owner % static_cast<unsigned>(step));
  const Token at = token_at(p, token);
  const auto index = static_cast<int>(threadIdx.x % lanes);
  const RopeUnit unit = unit_of<kSize, kNeighbours>(p, grid.rotated, grid.units, index);
  const bool has_unit = token < p.tokens() && index < grid.units;

  UnitPacks<T, kSize> x[kQkNormHeads];
  UnitAngles<A, kSize> angles;
  UnitWeights<T, kSize> w;
  bool rotates = false;
  if (has_unit) {
    const T* const row = head_row<const T>(in, at, first_head);
#pragma unroll
    for (int i = 0; i < kQkNormHeads; ++i) {
      if (first_head + i * step < heads) x[i].load(row + i * step * in.head, unit);
    }
    const RowAngles<T, kSize, kNeighbours> row_angles(p, at, table_packs);
    rotates = row_angles.rotates(unit);
    if (rotates) row_angles.load(unit, index, angles);
    w.load(of_q ? problem.q_weight : problem.k_weight, problem.weight_dtype != p.dtype, unit);
  }

  A rstd[kQkNormHeads];
#pragma unroll
  for (int i = 0; i < kQkNormHeads; ++i) rstd[i] = x[i].values().squares();
  sum_over(rstd, grid.lanes);
  const A per_number = reciprocal(static_cast<A>(p.dim));
#pragma unroll
  for (A& r : rstd) r = reciprocal_root(r * per_number + static_cast<A>(problem.eps));
  if (!has_unit) return;

  T* const row = head_row<T>(out, at, first_head);
#pragma unroll
  for (int i = 0; i < kQkNormHeads; ++i) {
    if (first_head + i * step >= heads) return;
    UnitValues<T, kSize> y = x[i].values_again();
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      y.first[k] *= rstd[i] * w.first[k];
      y.second[k] *= rstd[i] * w.second[k];
    }
    if (rotates) angles.template rotate<kNeighbours>(y.first, y.second);
    y.store(row + i * step * out.head, unit);
  }
}

// The kernel for rows of any number of single elements: lanes go through the units of a row, and
// read it twice.
template <class T>
__global__ void __launch_bounds__(kQkNormThreads)
    qk_norm_forward_elements_kernel(const __grid_constant__ QkNormForwardProblem problem,
                                    const __grid_constant__ QkNormGrid grid) {
  using A = accumulate_t<T>;
  const RopeProblem& p = problem.rope;
  follow_previous_kernel();
  const A per_number = reciprocal(static_cast<A>(p.dim));
  const auto heads = static_cast<unsigned>(p.heads());
  const unsigned row = blockIdx.x * grid.groups() + threadIdx.x / static_cast<unsigned>(grid.lanes);
  const unsigned token = row / heads;
  const auto head = static_cast<std::int64_t>(row % heads);
  const auto first = static_cast<int>(threadIdx.x % static_cast<unsigned>(grid.lanes));
  const bool has_row = token < p.tokens();
  const Token at = token_at(p, token);
  const T* const x = has_row ? row_of<const T>(p, p.q, p.k, at, head) : nullptr;
  A sum[1] = {};
  for (int index = first; has_row && index < grid.units; index += grid.lanes) {
    UnitPacks<T, 1> value;
    value.load(x, unit_of<1, false>(p, grid.rotated, grid.units, index));
    sum[0] += value.values().squares();
  }
  sum_over(sum, grid.lanes);
  const A rstd = reciprocal_root(sum[0] * per_number + static_cast<A>(problem.eps));
  if (!has_row) return;
  const RowAngles<T, 1, false> row_angles(p, at, false);
  T* const y = row_of<T>(p, p.q_rotated, p.k_rotated, at, head);
  for (int index = first; index < grid.units; index += grid.lanes) {
    const RopeUnit unit = unit_of<1, false>(p, grid.rotated, grid.units, index);
    UnitPacks<T, 1> packs;
    UnitWeights<T, 1> w;
    packs.load(x, unit);
    UnitValues<T, 1> value = packs.values();
    w.load(head < p.q_heads ? problem.q_weight : problem.k_weight, problem.weight_dtype != p.dtype,
           unit);
    value.first[0] *= rstd * w.first[0];
    value.second[0] *= rstd * w.second[0];
    if (row_angles.rotates(unit)) {
      UnitAngles<A, 1> angles;
      row_angles.load(unit, index, angles);
      angles.template rotate<false>(value.first, value.second);
    }
    value.store(y, unit);
  }
}

}  // namespace transformer_kernels::cuda
