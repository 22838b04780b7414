// SPDX-License-Identifier: MIT
#include "backend_test.h"
#include "error_of.h"
#include "mlp/mlp_run.h"

namespace transformer_kernels::testing {
namespace {

class MlpErrors : public BackendTest {
 protected:
  static constexpr MlpOptions kGated{.activation = Pointwise::kSwiGlu, .gated = true};

  MlpRun plain_{backend(), dtype(), {}};
  MlpRun gated_{backend(), dtype(), kGated};

  static std::string forward_error(MlpRun& run, auto change) {
    MlpForward arguments = run.forward_arguments(run.options().gated ? 1 : 0);
    change(arguments);
    return error_of([&] { run.forward(backend().context(), arguments); });
  }
  static std::string backward_error(MlpRun& run, auto change) {
    MlpBackward arguments = run.backward_arguments(0);
    change(arguments);
    return error_of([&] { run.backward(arguments); });
  }
  static bool untouched(MlpRun& run) {
    const auto is_nan = [](double value) { return std::isnan(value); };
    return std::ranges::all_of(run.values("y"), is_nan) &&
           std::ranges::all_of(run.values("dx"), is_nan);
  }
};

INSTANTIATE_TEST_SUITE_P(on, MlpErrors, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(MlpErrors, forward) {
  const auto error = [&](auto change) { return forward_error(plain_, change); };
  EXPECT_EQ(error([](auto& a) { a.activation = Pointwise::kSwiGlu; }),
            "mlp: activation is swiglu, expected one of a single tensor");
  EXPECT_EQ(error([](auto& a) { a.weight = transposed(a.weight); }),
            "mlp: weight has 144 columns, expected 40 (the last dimension of x)");
  EXPECT_EQ(error([](auto& a) { a.down_weight = transposed(a.down_weight); }),
            "mlp: down_weight has 24 columns, expected 144 (the rows of weight)");
  EXPECT_EQ(error([](auto& a) { a.bias.sizes[0] = 24; }),
            "mlp: bias has 24 elements, expected 144 (the rows of weight)");
  EXPECT_EQ(error([](auto& a) { a.down_bias = a.bias; }),
            "mlp: down_bias has 144 elements, expected 24 (the rows of down_weight)");
  EXPECT_EQ(error([](auto& a) { a.up_bias = a.bias; }),
            "mlp: up_bias is present, expected none (gated_mlp has it)");
  EXPECT_EQ(error([](auto& a) { a.down_weight = {}; }),
            "mlp: down_bias is present, expected none (there is no down_weight)");
  EXPECT_EQ(error([](auto& a) { a.y = {}; }), "mlp: y is missing");
  EXPECT_EQ(error([](auto& a) { a.h = a.z; }), "mlp: h overlaps z, expected memory of its own");
  EXPECT_EQ(error([](auto& a) { a.y.sizes[1] = 144; }).substr(0, 21), "mlp: y has shape (33,");
  EXPECT_TRUE(untouched(plain_));
}

TEST_P(MlpErrors, gated_forward) {
  const auto error = [&](auto change) { return forward_error(gated_, change); };
  EXPECT_EQ(error([](auto& a) { a.activation = Pointwise::kGelu; }),
            "gated_mlp: activation is gelu, expected a gated one");
  EXPECT_EQ(error([](auto& a) { a.up = {}; }),
            "gated_mlp: up is missing, expected it (z and up are kept together)");
  EXPECT_EQ(error([](auto& a) { a.up_weight.sizes[0] = 100; }),
            "gated_mlp: up_weight has 100 rows, expected 144 (the rows of weight)");
  EXPECT_EQ(error([](auto& a) { a.up_weight = {}; }).substr(0, 20), "gated_mlp: up_weight");
  EXPECT_TRUE(untouched(gated_));
}

TEST_P(MlpErrors, backward) {
  const auto error = [&](auto change) { return backward_error(plain_, change); };
  EXPECT_EQ(error([](auto& a) { a.dy = {}; }), "mlp: dy is missing");
  EXPECT_EQ(error([](auto& a) { a.parts = -1; }), "mlp: parts is -1, expected 0 or more");
  EXPECT_EQ(error([](auto& a) { a.dup_weight = a.dweight; }),
            "mlp: dup_weight is present, expected none (gated_mlp has it)");
  EXPECT_EQ(error([](auto& a) { a.dweight = transposed(a.dweight); }).substr(0, 32),
            "mlp: dweight has shape (40, 144)");
  EXPECT_EQ(error([](auto& a) {
              a.dweight.strides = {80, 2};
            }),
            "mlp: dweight has strides (80, 2), expected one of 1 and no element over another");
  EXPECT_EQ(error([](auto& a) { a.dx = a.x; }), "mlp: dx overlaps x, expected memory of its own");
  EXPECT_EQ(error([](auto& a) { a.ddown_bias = a.dbias; }),
            "mlp: ddown_bias has 144 elements, expected 24 (the rows of down_weight)");
  EXPECT_EQ(error([](auto& a) { a.down_weight = {}; }).substr(0, 22), "mlp: dy has shape (33,");
  if (!is_on_cuda(backend())) {
    EXPECT_EQ(error([](auto& a) { a.dweight_algorithm = 0; }),
              "mlp: algorithm is 0, expected -1 or -2 (cuBLASLt's run on CUDA)");
  }
  const auto over_h = [](auto& a) {
    a.overwrite_z = true;
    a.z = a.h;
  };
  EXPECT_EQ(error(over_h), "mlp: z overlaps h, expected memory of its own");
  EXPECT_TRUE(untouched(plain_));
}

TEST_P(MlpErrors, checks_alone_write_nothing) {
  Context context = backend().context();
  context.checks_only = true;
  for (MlpRun* run : {&plain_, &gated_}) {
    run->forward(context, run->forward_arguments(1));
    run->backward(context, run->backward_arguments(1));
    EXPECT_TRUE(untouched(*run));
  }
}

}  // namespace
}  // namespace transformer_kernels::testing
