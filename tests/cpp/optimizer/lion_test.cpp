// SPDX-License-Identifier: MIT
#include "transformer_kernels/optimizer/lion.h"

#include "backend_test.h"
#include "error_of.h"
#include "optimizer/step_list.h"

namespace transformer_kernels::testing {
namespace {

const LionGroup kGroups[] = {{.lr = 1e-2, .weight_decay = 0.1}, {.lr = 2e-2, .maximize = true}};

class Lion : public BackendTest {};

TEST_P(Lion, MatchesTheFormula) {
  const ListKind kind{.param = dtype(), .state = dtype(), .has_second = false, .steps = 5};
  StepList list(backend(), kind, {0, 1, 777, 40003});
  lion_step(backend().context(), {.tensors = list.tensors(), .groups = kGroups});
  const double unit = unit_roundoff(wide_of(dtype()));
  for (const auto& entry : list.entries) {
    const LionGroup& group = kGroups[entry->tensor().group];
    const Values p0 = entry->weights0(), p = entry->param.values(), m = entry->first.values();
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = group.maximize ? -entry->grad0[i] : entry->grad0[i];
      const double m0 = entry->first0[i], size = std::abs(m0) + std::abs(g);
      const double mean = group.beta1 * m0 + (1 - group.beta1) * g;
      const double next = group.beta2 * m0 + (1 - group.beta2) * g;
      ASSERT_NEAR(m[i], next, rounding_of(dtype(), next) + 8 * unit * size);
      if (std::abs(mean) < 8 * unit * size) continue;  // the sign is anyone's
      const double step = mean > 0 ? -group.lr : group.lr;
      const double expected = p0[i] * (1 - group.lr * group.weight_decay) + step;
      ASSERT_NEAR(
          p[i], expected,
          rounding_of(dtype(), expected) + 8 * unit * std::abs(p0[i]) + 8 * unit * group.lr);
    }
    EXPECT_TRUE(entry->surroundings_intact());
  }
}

TEST_P(Lion, KeepsZeroAndNan) {
  ListEntry entry(backend(), {.param = dtype(), .state = dtype(), .has_second = false}, 4, 1, 0);
  TestTensor grad(backend(), dtype(), 1, 4, Values{0, kNan, 1, -1});
  TestTensor moment(backend(), dtype(), 1, 4, Values{0, 0, 0, 0});
  OptimizerTensor tensor = entry.tensor();
  tensor.grad = grad.vector();
  tensor.exp_avg = moment.vector();
  lion_step(backend().context(), {.tensors = {&tensor, 1}, .groups = kGroups});
  const Values p = entry.param.values();
  EXPECT_EQ(p[0], entry.weights0()[0]);
  EXPECT_TRUE(std::isnan(p[1]));
  EXPECT_GT(p[2], entry.weights0()[2]);
  EXPECT_LT(p[3], entry.weights0()[3]);
}

TEST_P(Lion, RefusesASecondMoment) {
  ListEntry entry(backend(), {.param = dtype(), .state = dtype()}, 4, 0, 0);
  const OptimizerTensor tensors[] = {entry.tensor()};
  EXPECT_EQ(
      error_of([&] { lion_step(backend().context(), {.tensors = tensors, .groups = kGroups}); }),
      "lion: exp_avg_sqs[0] is given, expected one moment alone");
}

INSTANTIATE_TEST_SUITE_P(Backends, Lion, all_backends_and_dtypes(), name_of_backend_test);

}  // namespace
}  // namespace transformer_kernels::testing
