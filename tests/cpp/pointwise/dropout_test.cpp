// SPDX-License-Identifier: MIT
#include "backend_test.h"
#include "error_of.h"
#include "parallel_hooks.h"
#include "pointwise/dropout_cases.h"

namespace transformer_kernels::testing {
namespace {

class DropoutOps : public BackendTest {
 protected:
  static void check_all(Matrix m, DropoutOptions o) {
    for (bool bias : {false, true}) {
      o.bias = bias;
      DropoutRun(backend(), dtype(), m, o).check_forward();
      DropoutRun(backend(), dtype(), m, o).check_backward();
    }
    o.add = false;
    DropoutRun(backend(), dtype(), m, o).check_forward();
    DropoutRun(backend(), dtype(), m, o).check_backward();
  }
};

INSTANTIATE_TEST_SUITE_P(on, DropoutOps, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(DropoutOps, edge_shapes) {
  for (std::int64_t cols : {0, 1, 7, 8, 9, 24, 33, 40, 130, 520}) {
    for (std::int64_t rows : {0, 1, 5}) check_all({rows, cols}, {});
  }
}

TEST_P(DropoutOps, long_rows) { check_all({2, 40001}, {}); }

TEST_P(DropoutOps, wide_rows_of_whole_packs) {
  for (std::int64_t cols : {2064, 4096, 10248}) check_all({3, cols}, {});
}

TEST_P(DropoutOps, many_rows) { check_all({1100, 24}, {}); }

TEST_P(DropoutOps, layouts) {
  for (Layout layout : {Layout{0, 24}, Layout{1, 0}, Layout{3, 5}, Layout{0, 4}, Layout{8, 8}}) {
    for (std::int64_t cols : {132, 136}) check_all({3, cols}, {.layout = layout});
  }
}

TEST_P(DropoutOps, in_place) { check_all({7, 333}, {.in_place = true}); }

TEST_P(DropoutOps, bias_in_float32) { check_all({150, 64}, {.wide_bias = true}); }

TEST_P(DropoutOps, seed_beside_x) { check_all({4, 72}, {.seed_on_device = true}); }

TEST_P(DropoutOps, probabilities) {
  for (double p : {0.0, 1e-6, 0.1, 0.5, 0.999, 1.0}) check_all({5, 200}, {.p = p});
}

// Dropped elements have no influence, whatever they are.
TEST_P(DropoutOps, drops_what_is_not_finite) {
  const Values x(5 * 64, kNan);
  for (double p : {0.5, 1.0}) {
    DropoutRun(backend(), dtype(), {5, 64}, {.p = p, .bias = true}, x).check_forward();
    DropoutRun(backend(), dtype(), {5, 64}, {.p = p}, x).check_backward();
  }
}

TEST_P(DropoutOps, repeatable) {
  DropoutRun run(backend(), dtype(), {701, 72}, {.bias = true});
  std::vector<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    run.forward(context);
    std::vector<std::vector<std::uint8_t>> bytes = {run.y.bytes()};
    run.backward(context);
    bytes.push_back(run.y.bytes());
    bytes.push_back(run.dbias.bytes());
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

// ---- bad arguments ------------------------------------------------------------------------------

template <class Spoil, class Call>
void expect_error(Spoil&& spoil, Call&& call, const std::string& expected) {
  DropoutRun run(*cpu_backend(), DType::kFloat32, {3, 8}, {.bias = true});
  EXPECT_EQ(error_of([&] { call(run, spoil); }), expected);
  EXPECT_TRUE(run.y.untouched() && run.dbias.untouched());
}

TEST(DropoutErrors, of_the_forward_pass) {
  const auto forward = [](auto&& spoil, const char* expected) {
    expect_error(
        spoil,
        [](DropoutRun& run, auto&& change) {
          BiasDropoutAddForward a = run.forward_arguments();
          change(a);
          bias_dropout_add_forward({}, a);
        },
        expected);
  };
  forward([](auto& a) { a.x = {}; }, "bias_dropout_add: x is missing");
  forward([](auto& a) { a.residual = {}; }, "bias_dropout_add: residual is missing");
  forward([](auto& a) { a.y = {}; }, "bias_dropout_add: y is missing");
  forward([](auto& a) { a.x.dtype = DType::kBool; },
          "bias_dropout_add: x is bool, expected a floating-point dtype");
  forward([](auto& a) { a.residual.dtype = DType::kFloat16; },
          "bias_dropout_add: residual is float16, expected float32 (the dtype of x)");
  forward([](auto& a) { a.residual.sizes[0] = 2; },
          "bias_dropout_add: residual has shape (2, 8), expected (3, 8) (the shape of x)");
  forward([](auto& a) { a.bias.sizes[0] = 7; },
          "bias_dropout_add: bias has 7 elements, expected 8 (the last dimension of x)");
  forward([](auto& a) { a.bias.dtype = DType::kFloat64; },
          "bias_dropout_add: bias is float64, expected float32 (the dtype of x)");
  forward([](auto& a) { a.p = 1.5; }, "bias_dropout_add: p is 1.5, expected a number from 0 to 1");
  forward([](auto& a) { a.p = kNan; }, "bias_dropout_add: p is nan, expected a number from 0 to 1");
  forward([](auto& a) { a.seed = {}; },
          "bias_dropout_add: seed is missing, expected one for 0 < p < 1");
  forward([](auto& a) { a.seed.sizes[0] = 1; },
          "bias_dropout_add: seed is not a seed and an offset, expected 2 int64 on the CPU or"
          " beside x");
  forward(
      [](auto& a) { a.y.data = static_cast<char*>(a.residual.data) + 4; },
      "bias_dropout_add: y overlaps residual in part, expected its memory exactly or none of it");
}

TEST(DropoutErrors, of_the_backward_pass) {
  const auto backward = [](auto&& spoil, const char* expected) {
    expect_error(
        spoil,
        [](DropoutRun& run, auto&& change) {
          BiasDropoutAddBackward a = run.backward_arguments();
          change(a);
          bias_dropout_add_backward({}, a);
        },
        expected);
  };
  backward([](auto& a) { a.dy = {}; }, "bias_dropout_add: dy is missing");
  backward([](auto& a) { a.dx.sizes[1] = 7; },
           "bias_dropout_add: dx has shape (3, 7), expected (3, 8) (the shape of dy)");
  backward([](auto& a) { a.dbias.sizes[0] = 7; },
           "bias_dropout_add: dbias has 7 elements, expected 8 (the last dimension of dy)");
  backward([](auto& a) { a.p = -1; }, "bias_dropout_add: p is -1, expected a number from 0 to 1");
  backward([](auto& a) { a.dbias.data = a.dx.data; },
           "bias_dropout_add: dbias overlaps dx, expected memory of its own");
}

}  // namespace
}  // namespace transformer_kernels::testing
