// SPDX-License-Identifier: MIT
// Bad arguments: the words of each error, and that nothing was written before it.
#include "error_of.h"
#include "pointwise/pointwise_cases.h"

namespace transformer_kernels::testing {
namespace {

// `spoil` changes one argument of a call that is right otherwise.
template <class Spoil>
void expect_forward(Pointwise op, Spoil&& spoil, const std::string& expected) {
  PointwiseForwardRun run(*cpu_backend(), op, DType::kFloat32, Matrix{3, 8},
                          PointwiseOptions{.bias = true});
  PointwiseForward a = run.arguments();
  spoil(a);
  EXPECT_EQ(error_of([&] { pointwise_forward({}, a); }), expected);
  EXPECT_TRUE(run.y.untouched());
}

template <class Spoil>
void expect_backward(Pointwise op, Spoil&& spoil, const std::string& expected) {
  PointwiseBackwardRun run(*cpu_backend(), op, DType::kFloat32, Matrix{3, 8},
                           PointwiseOptions{.bias = true, .y = true});
  PointwiseBackward a = run.arguments();
  spoil(a);
  EXPECT_EQ(error_of([&] { pointwise_backward({}, a); }), expected);
  EXPECT_TRUE(run.dx_and_dup.memory.untouched() && run.dbias.untouched() &&
              run.dup_bias.untouched() && run.y.untouched());
}

TEST(PointwiseErrors, of_plain_ops) {
  const auto forward = [](auto&& spoil, const char* expected) {
    expect_forward(Pointwise::kGelu, spoil, expected);
  };
  forward([](auto& a) { a.x = {}; }, "gelu: x is missing");
  forward([](auto& a) { a.y = {}; }, "gelu: y is missing");
  forward([](auto& a) { a.x.data = nullptr; }, "gelu: x is a null pointer");
  forward([](auto& a) { a.x.dtype = DType::kBool; },
          "gelu: x is bool, expected a floating-point dtype");
  forward([](auto& a) { a.y.dtype = DType::kFloat16; },
          "gelu: y is float16, expected float32 (the dtype of x)");
  forward([](auto& a) { a.y.sizes[0] = 2; },
          "gelu: y has shape (2, 8), expected (3, 8) (the shape of x)");
  forward([](auto& a) { a.y.strides[0] = 4; },
          "gelu: y has overlapping rows (row stride 4), expected at least 8");
  forward([](auto& a) { a.x.strides[1] = 2; },
          "gelu: x has uneven strides, expected a last stride of 1 and one common row stride");
  forward([](auto& a) { a.bias.sizes[0] = 7; },
          "gelu: bias has 7 elements, expected 8 (the last dimension of x)");
  forward([](auto& a) { a.bias.strides[0] = 2; },
          "gelu: bias has gaps, expected contiguous memory");
  forward([](auto& a) { a.bias.dtype = DType::kFloat64; },
          "gelu: bias is float64, expected float32 (the dtype of x)");
  forward([](auto& a) { a.up = a.x; }, "gelu: up is present, expected none");
  forward([](auto& a) { a.up_bias = a.bias; }, "gelu: up_bias is present, expected none");
  forward(
      [](auto& a) {
        a.x.device = {DeviceType::kCuda, 1};
      },
      "gelu: x is on cuda:1, expected cpu:0");
}

TEST(PointwiseErrors, of_gated_ops) {
  expect_forward(
      Pointwise::kSwiGlu, [](auto& a) { a.x = {}; }, "swiglu: gate is missing");
  expect_forward(
      Pointwise::kSwiGlu, [](auto& a) { a.up = {}; }, "swiglu: up is missing");
  expect_forward(
      Pointwise::kReGlu, [](auto& a) { a.up.sizes[1] = 7; },
      "reglu: up has shape (3, 7), expected (3, 8) (the shape of gate)");
  expect_forward(
      Pointwise::kReGlu, [](auto& a) { a.up_bias.dtype = DType::kFloat16; },
      "reglu: up_bias is float16, expected float32 (the dtype of gate)");
  expect_backward(
      Pointwise::kGeGlu, [](auto& a) { a.dup = {}; }, "geglu: dup is missing");
  expect_backward(
      Pointwise::kGeGlu, [](auto& a) { a.dx.sizes[0] = 1; },
      "geglu: dgate has shape (1, 8), expected (3, 8) (the shape of gate)");
}

TEST(PointwiseErrors, of_the_backward_pass) {
  expect_backward(
      Pointwise::kSilu, [](auto& a) { a.dy = {}; }, "silu: dy is missing");
  expect_backward(
      Pointwise::kSilu, [](auto& a) { a.dx.dtype = DType::kFloat64; },
      "silu: dx is float64, expected float32 (the dtype of x)");
  expect_backward(
      Pointwise::kSilu, [](auto& a) { a.dbias.sizes[0] = 9; },
      "silu: dbias has 9 elements, expected 8 (the last dimension of x)");
  expect_backward(
      Pointwise::kSilu, [](auto& a) { a.dup = a.dx; }, "silu: dup is present, expected none");
}

TEST(PointwiseErrors, parameters_share_a_dtype) {
  std::vector<std::uint16_t> x(24), y(24), bias(8);
  std::vector<float> wide(8);
  const auto matrix = [](void* data) {
    return TensorView::contiguous(data, DType::kBFloat16, {}, {3, 8});
  };
  const PointwiseForward a{.op = Pointwise::kGeGlu,
                           .x = matrix(x.data()),
                           .up = matrix(x.data()),
                           .bias = TensorView::contiguous(bias.data(), DType::kBFloat16, {}, {8}),
                           .up_bias = TensorView::contiguous(wide.data(), DType::kFloat32, {}, {8}),
                           .y = matrix(y.data())};
  EXPECT_EQ(
      error_of([&] { pointwise_forward({}, a); }),
      "geglu: up_bias is float32, expected bfloat16 (all parameters and their gradients share "
      "one dtype)");
}

// Memory that an output shares with another operand in part, or with another output at all.
TEST(PointwiseErrors, overlaps) {
  constexpr std::int64_t kStep = 4;
  const auto moved = [](TensorView view, std::int64_t elements) {
    view.data = static_cast<char*>(view.data) + elements * kStep;
    return view;
  };
  expect_forward(
      Pointwise::kGelu, [&](auto& a) { a.x = moved(a.y, 1); },
      "gelu: y overlaps x in part, expected its memory exactly or none of it");
  expect_forward(
      Pointwise::kReGlu, [&](auto& a) { a.up = moved(a.y, -8); },
      "reglu: y overlaps up in part, expected its memory exactly or none of it");
  expect_forward(
      Pointwise::kGelu, [&](auto& a) { a.bias.data = a.y.data; },
      "gelu: y overlaps bias in part, expected its memory exactly or none of it");
  expect_backward(
      Pointwise::kGeGlu, [](auto& a) { a.dup = a.dx; },
      "geglu: dup overlaps dgate, expected memory of its own");
  expect_backward(
      Pointwise::kGelu, [](auto& a) { a.y = a.dx; },
      "gelu: y overlaps dx, expected memory of its own");
  expect_backward(
      Pointwise::kGelu, [](auto& a) { a.dbias.data = a.dx.data; },
      "gelu: dbias overlaps dx, expected memory of its own");
}

}  // namespace
}  // namespace transformer_kernels::testing
