// SPDX-License-Identifier: MIT
// Launches of Ampere's products with an activation. Epilogues are compiled in units of their own
// (instances.cmake).
#pragma once

#include "linear/sm80/launch.cuh"

namespace transformer_kernels::cuda::ampere {

// The terms of a are together: it is x, or dy.
template <class Epilogue>
void launch_either_order(const Context& context, const Product& p, const Epilogue& epilogue) {
  const auto run = [&]<Major kMajorB>() {
    using Own = Shape<Major::kK, kMajorB>;
    launch_gemm<Own>(context, p, {p.b}, whole_tiles_of<Own>(p), epilogue);
  };
  if (major_of_b(p) == Major::kK) {
    run.template operator()<Major::kK>();
  } else {
    run.template operator()<Major::kOther>();
  }
}

template <class Wanted>
void launch_activated(const Context& context, const Product& p, const Wanted& wanted) {
  dispatch_activation<false>(p, [&]<class Activation>() {
    launch_either_order(context, p, wanted.template chain<Activation>(p));
  });
}

template <class Wanted>
void launch_gated(const Context& context, const GatedProduct& p, const Wanted& wanted) {
  dispatch_activation<true>(p.gate, [&]<class Activation>() {
    const auto chain = wanted.template chain<Activation>(p);
    if constexpr (std::is_same_v<Wanted, GatedSloped>) {
      launch_either_order(context, p.gate, chain);
    } else {
      using Own = Shape<Major::kK, Major::kK, 2>;
      launch_gemm<Own>(context, p.gate, {p.gate.b, p.up.b}, whole_tiles_of<Own>(p.gate), chain);
    }
  });
}

// These are compiled in units of their own (instances.cmake).
extern template void launch_activated(const Context&, const Product&, const Activated&);
extern template void launch_activated(const Context&, const Product&, const ActivatedKept&);
extern template void launch_gated(const Context&, const GatedProduct&, const Gated&);
extern template void launch_gated(const Context&, const GatedProduct&, const GatedKept&);
extern template void launch_gated(const Context&, const GatedProduct&, const GatedSloped&);

}  // namespace transformer_kernels::cuda::ampere
