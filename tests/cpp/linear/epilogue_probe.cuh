// SPDX-License-Identifier: MIT
// The products of an EpilogueProbe, by an Engine with
//
//   launch<kWide>(context, p, chain)   the product; with kWide in the engine's widest tile
//   rows_of_totals(p)                  how many lines of sums of columns it has
#pragma once

#include "core/cuda/column_sum.h"
#include "core/cuda/device.h"
#include "core/cuda/scratch.h"
#include "linear/cuda/products.cuh"
#include "linear/epilogue_probe.h"

namespace transformer_kernels::testing {

using namespace cuda;
using namespace cuda::epilogues;

// The sums of columns, where an epilogue has them.
class Totals {
 public:
  Totals(const Context& context, const Product& p, int rows)
      : context_(context),
        p_(p),
        rows_(rows),
        partial_(p.op, context, 2 * rows_ * p.cols * sizeof(float)) {}

  SumColumns part() const { return {partial_.as<float>()}; }
  void finish() const {
    sum_columns(p_.op, context_, p_.bias_dtype,
                PartialGradients<float>{.partial = partial_.as<float>(),
                                        .rows = rows_,
                                        .pitch = p_.cols,
                                        .cols = p_.cols,
                                        .dweight = nullptr,
                                        .dbias = p_.dbias},
                device_limits(context_.device.index).architecture >= 90);
  }

 private:
  const Context& context_;
  const Product& p_;
  int rows_;
  Scratch partial_;
};

template <class Engine>
void multiply_dropout_add(const Context& context, const Product& p, const DropoutDraw& draw,
                          const Matrix& residual) {
  Engine::template launch<true>(
      context, p,
      with_tensors<Chain<AddBias<>, Dropout, AddResidual>>(
          {{bias_of(p, p.bias)}, {draw}}, {.reads = {residual}, .results = {p.out}}));
}

template <class Engine>
void multiply_relu_dropout_add(const Context& context, const Product& p, const DropoutDraw& draw,
                               const Matrix& residual) {
  const Totals totals(context, p, Engine::rows_of_totals(p));
  Engine::template launch<false>(  // a chain that wants many registers
      context, p,
      with_tensors<
          Chain<AddBias<>, Keep<>, Activate<math::Relu>, Dropout, AddResidual, SumColumns>>(
          {{bias_of(p, p.bias)}, {}, {}, {draw}, {}, totals.part()},
          {.reads = {residual}, .results = {p.out}, .kept = {p.kept}}));
  totals.finish();
}

template <class Engine>
void multiply_scale_rows(const Context& context, const Product& p, const float* factors) {
  const Totals totals(context, p, Engine::rows_of_totals(p));
  Engine::template launch<true>(
      context, p,
      with_tensors<Chain<AddBias<>, ScaleRows, SumColumns>>(
          {{bias_of(p, p.bias)}, {factors}, totals.part()}, {.results = {p.out}}));
  totals.finish();
}

template <class Engine>
constexpr EpilogueProbe probe_of(const char* name,
                                 const char* (*refusal)(const Context&, const Product&)) {
  return {name, refusal, multiply_dropout_add<Engine>, multiply_relu_dropout_add<Engine>,
          multiply_scale_rows<Engine>};
}

}  // namespace transformer_kernels::testing
