// SPDX-License-Identifier: MIT
// The products with an activation, and the epilogue of each, for engines that run chains of parts
// (chain.cuh).
#pragma once

#include <array>

#include "core/cuda/wgmma.cuh"
#include "linear/cuda/epilogues.cuh"
#include "linear/cuda/gated_product.h"
#include "pointwise/problem.h"

namespace transformer_kernels::cuda {

constexpr Major major_of(bool terms_together) { return terms_together ? Major::kK : Major::kOther; }
// The contracted dimension is the columns of a and the rows of b.
constexpr Major major_of_a(const Product& p) { return major_of(p.a.col_step == 1); }
constexpr Major major_of_b(const Product& p) { return major_of(p.b.row_step == 1); }

inline GemmExtent extent_of(const Product& p) {
  return {static_cast<int>(p.rows), static_cast<int>(p.cols)};
}

inline BiasVector bias_of(const Product& p, const void* bias) {
  return {bias, p.bias_dtype == DType::kFloat32};
}

// The tensors of a chain: null ones are not wanted.
template <class Chain>
struct TensorsOf {
  std::array<Matrix, Chain::kReads> reads{};
  std::array<Matrix, Chain::kResults> results;
  std::array<Matrix, Chain::kKeeps> kept{};

  bool keeps() const { return !kept.empty() && kept[0].data != nullptr; }
};

template <class Chain>
struct ChainWithTensors {
  Chain chain;
  TensorsOf<Chain> tensors;
};
template <class Chain>
ChainWithTensors<Chain> with_tensors(const Chain& chain, const TensorsOf<Chain>& tensors) {
  return {chain, tensors};
}

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

// ------------------------------------------------------------------ one product

// out = f(z), z = sum + bias.
struct Activated {
  template <class Activation>
  auto chain(const Product& p) const {
    using namespace epilogues;
    return with_tensors<Chain<AddBias<>, Round<>, Activate<Activation>>>({{bias_of(p, p.bias)}},
                                                                         {.results = {p.out}});
  }
};

// Activated, and kept = z.
struct ActivatedKept {
  template <class Activation>
  auto chain(const Product& p) const {
    using namespace epilogues;
    return with_tensors<Chain<AddBias<>, Keep<>, Activate<Activation>>>(
        {{bias_of(p, p.bias)}}, {.results = {p.out}, .kept = {p.kept}});
  }
};

// out = sum f'(z), kept = f(z), and sums of out's columns.
struct Sloped {
  float* partial = nullptr;

  template <class Activation>
  auto chain(const Product& p) const {
    using namespace epilogues;
    return with_tensors<Chain<Slope<Activation>, SumColumns>>(
        {{}, {partial}}, {.reads = {p.z}, .results = {p.out}, .kept = {p.kept}});
  }
};

// ------------------------------------------------------------------ gate and up

template <int kFirst>
epilogues::AddBias<2, kFirst> biases_of(const GatedProduct& p) {
  return {{bias_of(p.gate, p.gate.bias), bias_of(p.gate, p.up.bias)}};
}

// out = f(gate + bias) (up + bias of up).
struct Gated {
  template <class Activation>
  auto chain(const GatedProduct& p) const {
    using namespace epilogues;
    return with_tensors<Chain<Round<2>, AddBias<2>, Gate<Activation>>>({{}, biases_of<0>(p)},
                                                                       {.results = {p.gate.out}});
  }
};

// Gated, and gate and up are kept, without their biases.
struct GatedKept {
  template <class Activation>
  auto chain(const GatedProduct& p) const {
    using namespace epilogues;
    return with_tensors<Chain<Keep<2>, AddBias<2>, Gate<Activation>>>(
        {{}, biases_of<0>(p)}, {.results = {p.gate.out}, .kept = {p.gate.kept, p.up.kept}});
  }
};

// out = sum f'(g) u, out of up = sum f(g), kept = f(g) u: g and u are what is read, and biases.
struct GatedSloped {
  template <class Activation>
  auto chain(const GatedProduct& p) const {
    using namespace epilogues;
    return with_tensors<Chain<AddBias<2, 1>, GateSlope<Activation>>>(
        {biases_of<1>(p)},
        {.reads = {p.gate.z, p.up.z}, .results = {p.gate.out, p.up.out}, .kept = {p.gate.kept}});
  }
};

}  // namespace transformer_kernels::cuda
