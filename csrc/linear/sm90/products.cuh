// SPDX-License-Identifier: MIT
// Launches of Hopper's products with an activation. Epilogues are compiled in units of their own
// (instances.cmake).
#pragma once

#include "linear/cuda/products.cuh"
#include "linear/sm90/launch.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kTileRows = 128;  // with an activation
inline constexpr int kTileCols = 192;

// The terms of a are together: it is x, or dy.
template <class Results>
void launch_either_order(const Context& context, const Product& p, const Results& results) {
  constexpr Major kK = Major::kK;
  if (major_of_b(p) == kK) {
    launch_tiles<GemmShape<kK, kK, kTileRows, kTileCols>>(context, p, {p.b}, results);
  } else {
    launch_tiles<GemmShape<kK, Major::kOther, kTileRows, kTileCols>>(context, p, {p.b}, results);
  }
}

template <class Wanted>
void launch_activated(const Context& context, const Product& p, const Wanted& wanted) {
  dispatch_activation<false>(p, [&]<class Activation>() {
    launch_either_order(context, p, results_of(p, wanted.template chain<Activation>(p)));
  });
}

template <class Wanted>
void launch_gated(const Context& context, const GatedProduct& p, const Wanted& wanted) {
  dispatch_activation<true>(p.gate, [&]<class Activation>() {
    const auto results = results_of(p.gate, wanted.template chain<Activation>(p));
    if constexpr (std::is_same_v<Wanted, GatedSloped>) {
      launch_either_order(context, p.gate, results);
    } else {
      launch_tiles<GemmShape<Major::kK, Major::kK, kTileRows, kTileCols, 2>>(
          context, p.gate, {p.gate.b, p.up.b}, results);
    }
  });
}

// These are compiled in units of their own (instances.cmake).
extern template void launch_activated(const Context&, const Product&, const Activated&);
extern template void launch_activated(const Context&, const Product&, const ActivatedKept&);
extern template void launch_gated(const Context&, const GatedProduct&, const Gated&);
extern template void launch_gated(const Context&, const GatedProduct&, const GatedKept&);
extern template void launch_gated(const Context&, const GatedProduct&, const GatedSloped&);

}  // namespace transformer_kernels::cuda
