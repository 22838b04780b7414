// SPDX-License-Identifier: MIT
#include "backend_test.h"
#include "norm/norm_errors.h"
#include "norm/norm_suite.h"

namespace transformer_kernels::testing {
namespace {

class LayerNormOp : public BackendTest {
 protected:
  static NormSuite<LayerNorm> suite() { return {backend(), dtype()}; }
};

INSTANTIATE_TEST_SUITE_P(on, LayerNormOp, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(LayerNormOp, edge_shapes) { suite().edge_shapes(); }
TEST_P(LayerNormOp, few_rows_and_many) { suite().few_rows_and_many(); }
TEST_P(LayerNormOp, wide_rows) { suite().wide_rows(); }
TEST_P(LayerNormOp, options) { suite().options(); }
TEST_P(LayerNormOp, layouts) { suite().layouts(); }
TEST_P(LayerNormOp, in_place) { suite().in_place(); }
TEST_P(LayerNormOp, far_from_zero) { suite().far_from_zero(); }
TEST_P(LayerNormOp, outliers) { suite().outliers(); }
TEST_P(LayerNormOp, constant_rows) { suite().constant_rows(); }
TEST_P(LayerNormOp, negative_eps) { suite().negative_eps(); }
TEST_P(LayerNormOp, not_finite) { suite().not_finite(); }
TEST_P(LayerNormOp, repeatable) { suite().repeatable(); }
TEST_P(LayerNormOp, many_rows) { suite().many_rows(); }
TEST_P(LayerNormOp, odd_widths) { suite().odd_widths(); }

TEST(LayerNormErrors, have_exact_words_and_touch_nothing) {
  Errors<LayerNorm>().common("layer_norm");
}

TEST(LayerNormErrors, mean_has_one_element_a_row) {
  Errors<LayerNorm> errors;
  errors.forward([](auto& a) { a.mean.sizes[0] = 4; },
                 "layer_norm: mean has 4 elements, expected 3 (one for each row of x)");
  errors.backward([](auto& a) { a.mean = {}; }, "layer_norm: mean is missing");
}

}  // namespace
}  // namespace transformer_kernels::testing
