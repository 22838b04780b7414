// SPDX-License-Identifier: MIT
// The rotation on CUDA: a thread owns one unit, two packs, of some heads of a token, and reads the
// unit's angles once for all of them. There is no loop, so that all loads are issued at once.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "rope/angles.cuh"
#include "rope/plan.h"

namespace transformer_kernels::cuda {

template <class T, int kSize, bool kNeighbours>
__global__ void __launch_bounds__(kRopeThreads)
    rope_kernel(const __grid_constant__ RopeProblem p, const __grid_constant__ RopeGrid grid,
                bool table_packs) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  using Raw = typename P::Raw;
  follow_previous_kernel();
  const auto places = static_cast<unsigned>(grid.places());
  const std::uint64_t start = std::uint64_t{blockIdx.x} * kRopeThreads;
  const unsigned behind = static_cast<unsigned>(start % places) + threadIdx.x;
  const auto token = static_cast<std::int64_t>(start / places + behind / places);
  if (token >= p.tokens()) return;
  const unsigned place = behind % places;
  const auto group = static_cast<int>(place / static_cast<unsigned>(grid.units));
  const auto index = static_cast<int>(place % static_cast<unsigned>(grid.units));
  const RopeUnit unit = unit_of<kSize, kNeighbours>(p, grid.rotated, grid.units, index);
  const auto time = static_cast<std::uint64_t>(p.time);
  const Token at{static_cast<std::int64_t>(token / time), static_cast<std::int64_t>(token % time)};

  Raw first[kRopeHeads], second[kRopeHeads];
#pragma unroll
  for (int i = 0; i < kRopeHeads; ++i) {
    const std::int64_t head = group + i * grid.groups;
    if (head >= p.heads()) break;
    const T* const x = row_of<const T>(p, p.q, p.k, at, head);
    first[i] = *reinterpret_cast<const Raw*>(x + unit.first);
    second[i] = unit.has_second ? *reinterpret_cast<const Raw*>(x + unit.second) : Raw{};
  }

  UnitAngles<A, kSize> angles;
  const Positions positions = positions_of(p.angles, at);
  const bool rotates = unit.rotates && positions.rotates;
  if (rotates) {
    if (p.angles.dtype == p.dtype) {
      angles.template load<T, kNeighbours>(p.angles, positions, unit, index, table_packs);
    } else {
      angles.template load<A, kNeighbours>(p.angles, positions, unit, index, table_packs);
    }
    if (p.inverse) angles.reverse();
  }
#pragma unroll
  for (int i = 0; i < kRopeHeads; ++i) {
    const std::int64_t head = group + i * grid.groups;
    if (head >= p.heads()) return;
    if (rotates) {
      A a[kSize], b[kSize];
      P::unpack(first[i], a);
      P::unpack(second[i], b);
      angles.template rotate<kNeighbours>(a, b);
      first[i] = P::pack(a);
      second[i] = P::pack(b);
    }
    T* const y = row_of<T>(p, p.q_rotated, p.k_rotated, at, head);
    *reinterpret_cast<Raw*>(y + unit.first) = first[i];
    if (unit.has_second) *reinterpret_cast<Raw*>(y + unit.second) = second[i];
  }
}

}  // namespace transformer_kernels::cuda
