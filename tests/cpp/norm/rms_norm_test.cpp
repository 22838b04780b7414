// SPDX-License-Identifier: MIT
#include "backend_test.h"
#include "norm/norm_errors.h"
#include "norm/norm_suite.h"

namespace transformer_kernels::testing {
namespace {

class RmsNormOp : public BackendTest {
 protected:
  static NormSuite<RmsNorm> suite() { return {backend(), dtype()}; }
};

INSTANTIATE_TEST_SUITE_P(on, RmsNormOp, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(RmsNormOp, edge_shapes) { suite().edge_shapes(); }
TEST_P(RmsNormOp, few_rows_and_many) { suite().few_rows_and_many(); }
TEST_P(RmsNormOp, wide_rows) { suite().wide_rows(); }
TEST_P(RmsNormOp, options) { suite().options(); }
TEST_P(RmsNormOp, layouts) { suite().layouts(); }
TEST_P(RmsNormOp, in_place) { suite().in_place(); }
TEST_P(RmsNormOp, far_from_zero) { suite().far_from_zero(); }
TEST_P(RmsNormOp, outliers) { suite().outliers(); }
TEST_P(RmsNormOp, constant_rows) { suite().constant_rows(); }
TEST_P(RmsNormOp, negative_eps) { suite().negative_eps(); }
TEST_P(RmsNormOp, not_finite) { suite().not_finite(); }
TEST_P(RmsNormOp, repeatable) { suite().repeatable(); }
TEST_P(RmsNormOp, many_rows) { suite().many_rows(); }
TEST_P(RmsNormOp, odd_widths) { suite().odd_widths(); }

TEST(RmsNormErrors, have_exact_words_and_touch_nothing) {
  Errors<RmsNorm> errors;
  errors.common("rms_norm");
  errors.forward([](NormForward& a) { a.mean = a.rstd; }, "rms_norm: mean is given, expected none");
  errors.backward([](NormBackward& a) { a.mean = a.rstd; },
                  "rms_norm: mean is given, expected none");
}

}  // namespace
}  // namespace transformer_kernels::testing
