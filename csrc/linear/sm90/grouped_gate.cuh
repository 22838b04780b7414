// SPDX-License-Identifier: MIT
// Launches of Hopper's products of groups of rows with gates.
#pragma once

#include "linear/sm90/grouped_launch.cuh"

namespace transformer_kernels::cuda {

template <class Body>
void dispatch_gate(Pointwise activation, Body&& body) {
  Product p{};
  p.activation = activation;
  dispatch_activation<true>(p, body);
}

// out = f(gate) up, and gate and up are kept where they are wanted.
template <class Activation>
auto chain_of(const GroupedGatedProblem& p) {
  using namespace epilogues;
  return with_tensors<Chain<AddGroupBias<2>, KeepOnDemand<2>, Gate<Activation>>>(
      {{{bias_of(p.gate), bias_of(p.up)}}},
      {.results = {matrix_of(p.out)}, .kept = {matrix_of(p.gate.out), matrix_of(p.up.out)}});
}

inline void launch(const Context& context, const GroupedGatedProblem& p) {
  dispatch_gate(p.activation, [&]<class Activation>() {
    using Shape = GemmShape<Major::kK, Major::kK, kGroupRows, kGroupCols, 2>;
    launch_groups<Shape, true>(context, p.gate, {&p.gate, &p.up}, chain_of<Activation>(p));
  });
}

// The gradients at a gate, h and the factors' gradients.
inline void launch(const Context& context, const GroupedDgatedProblem& p) {
  using namespace epilogues;
  const GroupedProduct& product = p.product;
  const std::int64_t tiles = divide_up(product.cols, std::int64_t{kGroupCols});
  const std::int64_t rows = product.groups.rows;
  const Scratch dots(product.op, context, p.dfactors != nullptr ? tiles * rows * sizeof(float) : 0);
  dispatch_gate(p.activation, [&]<class Activation>() {
    using Shape = GemmShape<Major::kK, Major::kOther, kGroupRows, kGroupCols>;
    launch_groups<Shape, true>(context, product, {&product},
                               with_tensors<Chain<GateSlopeOfRows<Activation>>>(
                                   {{static_cast<const float*>(p.factors), dots.as<float>()}},
                                   {.reads = {matrix_of(p.gate), matrix_of(p.up)},
                                    .results = {matrix_of(p.dgate), matrix_of(p.dup)},
                                    .kept = {matrix_of(p.h)}}));
  });
  if (p.dfactors == nullptr) return;
  sum_dots(product.op, context, dots.as<float>(), tiles, rows, static_cast<float*>(p.dfactors));
}

template <class Problem>
void launch_grouped_gate(const Context& context, const Problem& p) {
  launch(context, p);
}

}  // namespace transformer_kernels::cuda
