// SPDX-License-Identifier: MIT
#include <type_traits>

#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "rope/kernels.h"
#include "rope/rotate.cuh"

namespace transformer_kernels::cuda {
namespace {

template <class T, int kSize, bool kNeighbours>
void rotate(const Context& context, const RopeProblem& p) {
  const RopeGrid grid = rope_grid(p, kSize);
  const LaunchShape shape{.ctas = grid.ctas,
                          .threads = kRopeThreads,
                          .after_previous = device_limits(context.device.index).architecture >= 90};
  launch("rope", context, shape, &rope_kernel<T, kSize, kNeighbours>, p, grid,
         table_packs_fit(p.angles));
}

}  // namespace

// One kernel for single elements serves both styles.
template <class T>
void run_rope(const Context& context, const RopeProblem& p, bool packs) {
  if constexpr (!std::is_same_v<T, double>) {
    if (packs) {
      return dispatch_bool(p.angles.interleaved, [&]<bool kNeighbours>() {
        rotate<T, 16 / sizeof(T), kNeighbours>(context, p);
      });
    }
  }
  rotate<T, 1, false>(context, p);
}

template void run_rope<TFK_TYPE>(const Context&, const RopeProblem&, bool);

}  // namespace transformer_kernels::cuda
