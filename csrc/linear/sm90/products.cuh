// SPDX-License-Identifier: MIT
// The products with an activation, and the epilogue of each. Epilogues are compiled in units of
// their own (instances.cmake).
#pragma once

#include "linear/cuda/gated_product.h"
#include "linear/sm90/launch.cuh"
#include "pointwise/problem.h"

namespace transformer_kernels::cuda {

// ------------------------------------------------------------------ one product

// out = f(z), z = sum + bias.
struct Activated {
  template <class Activation>
  auto results(const Product& p) const {
    using namespace epilogues;
    return results_of<Chain<AddBias<>, Round<>, Activate<Activation>>>(p, {{bias_of(p, p.bias)}},
                                                                       {.results = {p.out}});
  }
};

// Activated, and kept = z.
struct ActivatedKept {
  template <class Activation>
  auto results(const Product& p) const {
    using namespace epilogues;
    return results_of<Chain<AddBias<>, Keep<>, Activate<Activation>>>(
        p, {{bias_of(p, p.bias)}}, {.results = {p.out}, .kept = {p.kept}});
  }
};

// out = sum f'(z), kept = f(z), and sums of out's columns.
struct Sloped {
  float* partial = nullptr;

  template <class Activation>
  auto results(const Product& p) const {
    using namespace epilogues;
    return results_of<Chain<Slope<Activation>, SumColumns>>(
        p, {{}, {partial}}, {.reads = {p.z}, .results = {p.out}, .kept = {p.kept}});
  }
};

inline constexpr int kTileRows = 128;  // with an activation
inline constexpr int kTileCols = 192;

// Calls body.operator()<Activation>() with p's activation, which is gated or is not.
template <bool kGated, class Body>
void dispatch_activation(const Product& p, Body&& body) {
  const auto attempt = [&]<Pointwise kOp>() {
    using Op = PointwiseOp<kOp>;
    if constexpr (Op::kGated == kGated) {
      if (*p.activation == kOp) body.template operator()<typename Op::Activation>();
    }
  };
#define TFK_ATTEMPT(enumerator, ...) attempt.template operator()<Pointwise::enumerator>();
  TFK_POINTWISE_OPS(TFK_ATTEMPT)
#undef TFK_ATTEMPT
}

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
    launch_either_order(context, p, wanted.template results<Activation>(p));
  });
}

// ------------------------------------------------------------------ gate and up

template <int kFirst>
epilogues::AddBias<2, kFirst> biases_of(const GatedProduct& p) {
  return {{bias_of(p.gate, p.gate.bias), bias_of(p.gate, p.up.bias)}};
}

// out = f(gate + bias) (up + bias of up).
struct Gated {
  template <class Activation>
  auto results(const GatedProduct& p) const {
    using namespace epilogues;
    return results_of<Chain<Round<2>, AddBias<2>, Gate<Activation>>>(p.gate, {{}, biases_of<0>(p)},
                                                                     {.results = {p.gate.out}});
  }
};

// Gated, and gate and up are kept, without their biases.
struct GatedKept {
  template <class Activation>
  auto results(const GatedProduct& p) const {
    using namespace epilogues;
    return results_of<Chain<Keep<2>, AddBias<2>, Gate<Activation>>>(
        p.gate, {{}, biases_of<0>(p)}, {.results = {p.gate.out}, .kept = {p.gate.kept, p.up.kept}});
  }
};

// out = sum f'(g) u, out of up = sum f(g), kept = f(g) u: g and u are what is read, and biases.
struct GatedSloped {
  template <class Activation>
  auto results(const GatedProduct& p) const {
    using namespace epilogues;
    return results_of<Chain<AddBias<2, 1>, GateSlope<Activation>>>(
        p.gate, {biases_of<1>(p)},
        {.reads = {p.gate.z, p.up.z}, .results = {p.gate.out, p.up.out}, .kept = {p.gate.kept}});
  }
};

template <class Wanted>
void launch_gated(const Context& context, const GatedProduct& p, const Wanted& wanted) {
  dispatch_activation<true>(p.gate, [&]<class Activation>() {
    const auto results = wanted.template results<Activation>(p);
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
