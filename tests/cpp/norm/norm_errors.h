// SPDX-License-Identifier: MIT
// Bad arguments: the words of each error, and that nothing was written before it.
#pragma once

#include <string>

#include "error_of.h"
#include "norm/norm_cases.h"

namespace transformer_kernels::testing {

template <class Op>
class Errors {
 public:
  using Forward = NormForward;
  using Backward = NormBackward;

  // `spoil` changes one argument of a call that is right otherwise.
  template <class Spoil>
  void forward(Spoil&& spoil, const std::string& expected) {
    NormForwardRun<Op> run(*cpu_backend(), DType::kFloat32, {3, 8}, {.residual = true});
    Forward a = run.arguments();
    spoil(a);
    EXPECT_EQ(error_of([&] { Op::forward({}, a); }), expected);
    EXPECT_TRUE(run.y.untouched() && run.sum.untouched() && run.mean.untouched() &&
                run.rstd.untouched());
  }

  template <class Spoil>
  void backward(Spoil&& spoil, const std::string& expected) {
    NormBackwardRun<Op> run(*cpu_backend(), DType::kFloat32, {3, 8}, {});
    Backward a = run.arguments();
    spoil(a);
    EXPECT_EQ(error_of([&] { Op::backward({}, a); }), expected);
    EXPECT_TRUE(run.dx.untouched() && run.dweight.untouched() && run.dbias.untouched());
  }

  // Errors that both members of the family give.
  void common(const std::string& op) {
    forward([](Forward& a) { a.x = {}; }, op + ": x is missing");
    forward([](Forward& a) { a.y = {}; }, op + ": y is missing");
    forward([](Forward& a) { a.x.data = nullptr; }, op + ": x is a null pointer");
    forward([](Forward& a) { a.weight.sizes[0] = 7; },
            op + ": weight has 7 elements, expected 8 (the last dimension of x)");
    forward([](Forward& a) { a.weight.strides[0] = 2; },
            op + ": weight has gaps, expected contiguous memory");
    forward([](Forward& a) { a.bias.dtype = DType::kFloat16; },
            op + ": bias is float16, expected float32 (the dtype of x)");
    forward([](Forward& a) { a.x.dtype = DType::kBool; },
            op + ": x is bool, expected a floating-point dtype");
    forward([](Forward& a) { a.y.dtype = DType::kFloat16; },
            op + ": y is float16, expected float32 (the dtype of x)");
    forward([](Forward& a) { a.y.sizes[0] = 2; },
            op + ": y has shape (2, 8), expected (3, 8) (the shape of x)");
    forward([](Forward& a) { a.y.strides[0] = 4; },
            op + ": y has overlapping rows (row stride 4), expected at least 8");
    forward([](Forward& a) { a.x.strides[1] = 2; },
            op + ": x has uneven strides, expected a last stride of 1 and one common row stride");
    forward([](Forward& a) { a.sum = {}; }, op + ": sum is missing, expected with residual");
    forward([](Forward& a) { a.residual = {}; }, op + ": residual is missing, expected with sum");
    forward([](Forward& a) { a.rstd.dtype = DType::kFloat64; },
            op + ": rstd is float64, expected float32 (the dtype of statistics)");
    forward([](Forward& a) { a.rstd.sizes[0] = 2; },
            op + ": rstd has 2 elements, expected 3 (one for each row of x)");
    forward(
        [](Forward& a) {
          a.residual.device = {DeviceType::kCuda, 1};
        },
        op + ": residual is on cuda:1, expected cpu:0");
    forward([](Forward& a) { a.x.data = a.y.data; },
            op + ": y overlaps x, expected memory of its own");
    forward([](Forward& a) { a.residual.data = a.y.data; },
            op + ": y overlaps residual, expected memory of its own");
    backward([](Backward& a) { a.x.data = a.dx.data; },
             op + ": dx overlaps x, expected memory of its own");
    backward([](Backward& a) { a.dy.data = static_cast<float*>(a.dx.data) + 8; },
             op + ": dx overlaps dy, expected memory of its own");
    backward([](Backward& a) { a.dy.dtype = DType::kBFloat16; },
             op + ": dy is bfloat16, expected float32 (the dtype of x)");
    backward([](Backward& a) { a.rstd = {}; }, op + ": rstd is missing");
    backward([](Backward& a) { a.dweight.dtype = DType::kFloat64; },
             op + ": dweight is float64, expected float32 (the dtype of x)");
    backward([](Backward& a) { a.dx.sizes[1] = 9; },
             op + ": dx has shape (3, 9), expected (3, 8) (the shape of x)");
    backward([](Backward& a) { a.dbias.sizes[0] = 9; },
             op + ": dbias has 9 elements, expected 8 (the last dimension of x)");
  }
};

}  // namespace transformer_kernels::testing
