// SPDX-License-Identifier: MIT
// Ampere's engine: products by mma.sync with every epilogue, on each card that runs them.
#ifdef TFK_WITH_CUDA

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

#include "backend_test.h"
#include "core/rounding.h"
#include "linear/cuda/gated_product.h"
#include "linear/stored_matrix.h"
#include "transformer_kernels/pointwise/pointwise.h"

#if TFK_CUDA_SM80

namespace transformer_kernels::testing {
namespace {

using Sizes = ProductSizes;

// Rows of numbers that begin at 16 bytes, whatever their number.
Layout in_packs(std::int64_t numbers) {
  return {.offset = 8, .gap = rounded_up(numbers, 8) - numbers + 8};
}

class AmpereProduct : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_backend() == nullptr) GTEST_SKIP() << "no CUDA device";
    const TestTensor numbers(backend(), dtype(), 8, 8, Values(64));
    const Matrix matrix = matrix_in(numbers);
    const char* const refusal =
        cuda::ampere_refusal(backend().context(), product_of({8, 8, 8}, matrix, matrix, matrix));
    if (refusal != nullptr) GTEST_SKIP() << refusal;
  }

  static DType dtype() { return GetParam(); }
  static Backend& backend() { return *cuda_backend(); }
  Values random(std::int64_t rows, std::int64_t cols) const {
    return random_normal(rows * cols, dtype());
  }

  static Product product_of(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& out) {
    return {.op = "probe",
            .dtype = dtype(),
            .rows = s.rows,
            .cols = s.cols,
            .terms = s.terms,
            .a = a,
            .b = b,
            .out = out};
  }

  template <class Problem>
  static void run(const Problem& p) {
    const Context context = backend().context();
    ASSERT_EQ(cuda::ampere_refusal(context, p), nullptr) << cuda::ampere_refusal(context, p);
    cuda::run_ampere(context, p);
  }
};

INSTANTIATE_TEST_SUITE_P(on_cuda, AmpereProduct,
                         ::testing::Values(DType::kFloat16, DType::kBFloat16),
                         [](const auto& info) {
                           return std::string(transformer_kernels::name_of(info.param));
                         });

// Parts of a tile, of a block of terms and of 16 bytes; whole ones; many tiles with few terms;
// small results of many terms, which are summed in parts.
constexpr Sizes kSizes[] = {{1, 1, 1},       {9, 77, 43},    {128, 96, 128}, {257, 32, 129},
                            {300, 200, 264}, {2056, 8, 776}, {40, 5003, 72}};

// The orders of both factors that are built: whether terms lie together.
constexpr std::array<std::array<bool, 2>, 3> kOrders = {
    {{true, true}, {true, false}, {false, false}}};

struct Factors {
  Values a_values, b_values;
  Stored a, b;

  Factors(Backend& backend, DType dtype, const Sizes& s, std::array<bool, 2> terms_together)
      : a_values(random_normal(s.rows * s.terms, dtype)),
        b_values(random_normal(s.terms * s.cols, dtype)),
        a(backend, dtype, s.rows, s.terms, a_values, terms_together[0],
          in_packs(terms_together[0] ? s.terms : s.rows)),
        b(backend, dtype, s.terms, s.cols, b_values, !terms_together[1],
          in_packs(terms_together[1] ? s.terms : s.cols)) {}

  Sums sums(const Sizes& s, const Values& bias = {}) const {
    return product(s.rows, s.cols, s.terms, a_values, {s.terms, 1}, b_values, {1, s.cols}, bias);
  }
};

TEST_P(AmpereProduct, matches_the_reference_in_every_order) {
  for (const Sizes& s : kSizes) {
    for (const auto& order : kOrders) {
      const Factors factors(backend(), dtype(), s, order);
      const Values bias_values = random_normal(s.cols, dtype());
      const TestTensor bias(backend(), dtype(), 1, s.cols, bias_values);
      const Sums alone = factors.sums(s), with_bias = factors.sums(s, bias_values);
      for (const Layout layout : {Layout{}, Layout{0, 8}, Layout{1, 3}}) {
        SCOPED_TRACE(name_of(s) + " of orders " + std::to_string(order[0]) +
                     std::to_string(order[1]) + " and gap " + std::to_string(layout.gap));
        TestTensor out(backend(), dtype(), s.rows, s.cols, layout);
        Product p = product_of(s, factors.a.matrix(), factors.b.matrix(), matrix_in(out));
        run(p);
        expect_close(dtype(), out.values(), alone);
        if (order[0]) {  // a gradient of a weight has none
          p.bias = bias.view().data;
          p.bias_dtype = dtype();
          run(p);
          expect_close(dtype(), out.values(), with_bias);
        }
        EXPECT_TRUE(out.surroundings_intact());
      }
    }
  }
}

TEST_P(AmpereProduct, widens_its_result_and_adds_to_it) {
  for (const Sizes& s : kSizes) {
    for (const auto& order : kOrders) {
      const Factors factors(backend(), dtype(), s, order);
      const Sums sums = factors.sums(s);
      for (const Layout layout : {Layout{}, Layout{1, 3}}) {
        for (const DType result : {dtype(), DType::kFloat32}) {
          SCOPED_TRACE(name_of(s) + " of orders " + std::to_string(order[0]) +
                       std::to_string(order[1]) + " and gap " + std::to_string(layout.gap));
          const Values old = random_normal(s.rows * s.cols, result);
          TestTensor out(backend(), result, s.rows, s.cols, old, layout);
          Product p = product_of(s, factors.a.matrix(), factors.b.matrix(), matrix_in(out));
          p.out_dtype = result;
          p.accumulates = true;
          run(p);
          expect_close(result, out.values(), added(old, sums));
          p.accumulates = false;
          run(p);
          expect_close(result, out.values(), sums);
          EXPECT_TRUE(out.surroundings_intact());
        }
      }
    }
  }
}

TEST_P(AmpereProduct, repeats_bit_for_bit) {
  constexpr Sizes kSize{96, 20480, 64};
  const Factors factors(backend(), dtype(), kSize, {false, false});
  TestTensor out(backend(), dtype(), kSize.rows, kSize.cols);
  const Product p = product_of(kSize, factors.a.matrix(), factors.b.matrix(), matrix_in(out));
  run(p);
  const std::vector<std::uint8_t> first = out.bytes();
  for (int i = 0; i < 5; ++i) {
    run(p);
    EXPECT_EQ(out.bytes(), first);
  }
}

// ------------------------------------------------- with an activation

// Parts of a tile, several tiles, many blocks of terms.
constexpr Sizes kActivated[] = {{5, 30, 8}, {129, 64, 200}, {300, 712, 136}};

constexpr Pointwise kGates[] = {Pointwise::kGeGlu, Pointwise::kGeGluTanh, Pointwise::kSwiGlu,
                                Pointwise::kReGlu};

std::vector<Pointwise> activations() {
  std::vector<Pointwise> all;
  for (int i = 0; i < kPointwiseCount; ++i) {
    const auto op = static_cast<Pointwise>(i);
    if (std::ranges::find(kGates, op) == std::end(kGates)) all.push_back(op);
  }
  return all;
}

TEST_P(AmpereProduct, activates_the_rounded_sum) {
  for (const Sizes& s : kActivated) {
    for (const auto& order : {kOrders[0], kOrders[1]}) {
      const Factors factors(backend(), dtype(), s, order);
      for (const DType bias_dtype : {dtype(), DType::kFloat32}) {
        const Values bias_values = random_normal(s.cols, bias_dtype);
        const TestTensor bias(backend(), bias_dtype, 1, s.cols, bias_values);
        const Sums sums = factors.sums(s, bias_values);
        for (const Pointwise op : activations()) {
          SCOPED_TRACE(name_of(s) + ' ' + name_of(op));
          TestTensor y(backend(), dtype(), s.rows, s.cols, Layout{8, 16});
          TestTensor z(backend(), dtype(), s.rows, s.cols, Layout{0, 8});
          TestTensor expected(backend(), dtype(), s.rows, s.cols);
          TestTensor inference(backend(), dtype(), s.rows, s.cols);
          Product p = product_of(s, factors.a.matrix(), factors.b.matrix(), matrix_in(y));
          p.bias = bias.view().data;
          p.bias_dtype = bias_dtype;
          p.activation = op;
          p.kept = matrix_in(z);
          run(p);
          expect_close(dtype(), z.values(), sums);
          pointwise_forward(backend().context(), {.op = op, .x = z.view(), .y = expected.view()});
          EXPECT_EQ(y.values(), expected.values());
          p.kept = {};
          p.out = matrix_in(inference);
          run(p);
          EXPECT_EQ(inference.values(), expected.values());
          for (TestTensor* each : {&y, &z, &inference}) EXPECT_TRUE(each->surroundings_intact());
        }
      }
    }
  }
}

// Found gradients are the sums times the slopes, which are those of the pointwise op for dy = 1.
void expect_slopes(DType dtype, const Values& found, const Sums& sums, const Values& slopes) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double size = std::max(1.0, std::abs(slopes[i]));
    const double units = 5 * unit_roundoff(dtype) * std::abs(sums.sum[i] * slopes[i]);
    const double wide = 40 * unit_roundoff(DType::kFloat32) * sums.size[i] * size;
    const double tiny = unit_roundoff(dtype) * std::abs(sums.sum[i]) * 0.01 + 0x1p-24;
    ASSERT_NEAR(found[i], sums.sum[i] * slopes[i], units + wide + tiny) << "element " << i;
  }
}

TEST_P(AmpereProduct, gradient_at_an_activation) {
  for (const Sizes& s : kActivated) {
    for (const auto& order : {kOrders[0], kOrders[1]}) {
      const Factors factors(backend(), dtype(), s, order);
      const Sums sums = factors.sums(s);
      const TestTensor ones(backend(), dtype(), s.rows, s.cols, Values(s.rows * s.cols, 1));
      for (const Pointwise op : activations()) {
        SCOPED_TRACE(name_of(s) + ' ' + name_of(op));
        TestTensor z(backend(), dtype(), s.rows, s.cols, random(s.rows, s.cols), Layout{0, 8});
        TestTensor slope(backend(), dtype(), s.rows, s.cols),
            value(backend(), dtype(), s.rows, s.cols);
        pointwise_backward(
            backend().context(),
            {.op = op, .dy = ones.view(), .x = z.view(), .dx = slope.view(), .y = value.view()});
        TestTensor dz(backend(), dtype(), s.rows, s.cols, Layout{8, 8});
        TestTensor h(backend(), dtype(), s.rows, s.cols),
            dbias(backend(), DType::kFloat32, 1, s.cols);
        Product p = product_of(s, factors.a.matrix(), factors.b.matrix(), matrix_in(dz));
        p.activation = op;
        p.z = matrix_in(z);
        run(p);
        const Values alone = dz.values();
        expect_slopes(dtype(), alone, sums, slope.values());
        p.kept = matrix_in(h);
        p.dbias = dbias.view().data;
        p.bias_dtype = DType::kFloat32;
        run(p);
        EXPECT_EQ(dz.values(), alone);
        EXPECT_EQ(h.values(), value.values());
        expect_close(DType::kFloat32, dbias.values(),
                     product(1, s.cols, s.rows, Values(s.rows, 1), {0, 1}, alone, {1, s.cols}));
        p.out = matrix_in(z);
        run(p);
        EXPECT_EQ(z.values(), alone) << "over z";
        for (TestTensor* each : {&dz, &h, &dbias, &z}) EXPECT_TRUE(each->surroundings_intact());
      }
    }
  }
}

// ------------------------------------------------- gates

// Parts of a tile, several tiles; few rows are refused.
constexpr Sizes kGated[] = {{17, 30, 8}, {300, 200, 104}, {129, 712, 72}};

TEST_P(AmpereProduct, gates_a_second_product) {
  for (const Sizes& s : kGated) {
    const Factors gate(backend(), dtype(), s, kOrders[0]);
    const Stored up_weight(backend(), dtype(), s.terms, s.cols, random(s.terms, s.cols), false,
                           in_packs(s.terms));
    const TestTensor bias(backend(), dtype(), 1, s.cols, random(1, s.cols));
    const TestTensor up_bias(backend(), dtype(), 1, s.cols, random(1, s.cols));
    for (const bool has_bias : {false, true}) {
      for (const Pointwise op : kGates) {
        SCOPED_TRACE(name_of(s) + ' ' + name_of(op) + (has_bias ? " + bias" : ""));
        TestTensor y(backend(), dtype(), s.rows, s.cols, Layout{8, 8});
        TestTensor gates(backend(), dtype(), s.rows, s.cols, Layout{0, 8});
        TestTensor ups(backend(), dtype(), s.rows, s.cols),
            inference(backend(), dtype(), s.rows, s.cols);
        TestTensor expected(backend(), dtype(), s.rows, s.cols),
            sum(backend(), dtype(), s.rows, s.cols);
        cuda::GatedProduct p{.gate = product_of(s, gate.a.matrix(), gate.b.matrix(), matrix_in(y)),
                             .up = {.b = up_weight.matrix(), .kept = matrix_in(ups)}};
        p.gate.activation = op;
        p.gate.kept = matrix_in(gates);
        p.gate.bias_dtype = dtype();
        if (has_bias) p.gate.bias = bias.view().data, p.up.bias = up_bias.view().data;
        run(p);
        run(product_of(s, gate.a.matrix(), gate.b.matrix(), matrix_in(sum)));
        EXPECT_EQ(gates.values(), sum.values());
        run(product_of(s, gate.a.matrix(), up_weight.matrix(), matrix_in(sum)));
        EXPECT_EQ(ups.values(), sum.values());
        PointwiseForward alone{.op = op, .x = gates.view(), .up = ups.view(), .y = expected.view()};
        if (has_bias) alone.bias = bias.vector(), alone.up_bias = up_bias.vector();
        pointwise_forward(backend().context(), alone);
        EXPECT_EQ(y.values(), expected.values());
        p.gate.kept = p.up.kept = {};
        p.gate.out = matrix_in(inference);
        run(p);
        EXPECT_EQ(inference.values(), expected.values());
        for (TestTensor* each : {&y, &gates, &ups, &inference})
          EXPECT_TRUE(each->surroundings_intact());
      }
    }
  }
}

TEST_P(AmpereProduct, gradient_at_a_gate) {
  for (const Sizes& s : kGated) {
    for (const auto& order : {kOrders[0], kOrders[1]}) {
      const Factors factors(backend(), dtype(), s, order);
      const Sums sums = factors.sums(s);
      const TestTensor ones(backend(), dtype(), s.rows, s.cols, Values(s.rows * s.cols, 1));
      const TestTensor bias(backend(), dtype(), 1, s.cols, random(1, s.cols));
      const TestTensor up_bias(backend(), dtype(), 1, s.cols, random(1, s.cols));
      for (const Pointwise op : kGates) {
        SCOPED_TRACE(name_of(s) + ' ' + name_of(op));
        TestTensor gate(backend(), dtype(), s.rows, s.cols, random(s.rows, s.cols), Layout{0, 8});
        TestTensor up(backend(), dtype(), s.rows, s.cols, random(s.rows, s.cols));
        TestTensor slope(backend(), dtype(), s.rows, s.cols),
            value(backend(), dtype(), s.rows, s.cols);
        TestTensor both(backend(), dtype(), s.rows, s.cols), h(backend(), dtype(), s.rows, s.cols);
        pointwise_backward(backend().context(), {.op = op,
                                                 .dy = ones.view(),
                                                 .x = gate.view(),
                                                 .up = up.view(),
                                                 .bias = bias.vector(),
                                                 .up_bias = up_bias.vector(),
                                                 .dx = slope.view(),
                                                 .dup = value.view(),
                                                 .y = both.view()});
        TestTensor dgate(backend(), dtype(), s.rows, s.cols, Layout{8, 8});
        TestTensor dup(backend(), dtype(), s.rows, s.cols);
        cuda::GatedProduct p{
            .gate = product_of(s, factors.a.matrix(), factors.b.matrix(), matrix_in(dgate)),
            .up = {.out = matrix_in(dup), .z = matrix_in(up), .bias = up_bias.view().data}};
        p.gate.activation = op;
        p.gate.z = matrix_in(gate);
        p.gate.bias = bias.view().data;
        p.gate.bias_dtype = dtype();
        run(p);
        expect_slopes(dtype(), dgate.values(), sums, slope.values());
        expect_slopes(dtype(), dup.values(), sums, value.values());
        p.gate.kept = matrix_in(h);
        p.gate.out = matrix_in(gate);
        p.up.out = matrix_in(up);
        run(p);
        EXPECT_EQ(h.values(), both.values());
        EXPECT_EQ(gate.values(), dgate.values()) << "over the gate";
        EXPECT_EQ(up.values(), dup.values()) << "over up";
        for (TestTensor* each : {&dgate, &dup, &gate, &up, &h})
          EXPECT_TRUE(each->surroundings_intact());
      }
    }
  }
}

// ------------------------------------------------- what it refuses

TEST_P(AmpereProduct, says_what_it_does_not_take) {
  const TestTensor numbers(backend(), dtype(), 64, 64, Values(64 * 64));
  const Matrix good = matrix_in(numbers);
  const auto said = [&](const Product& p) -> std::string {
    const char* const refusal = cuda::ampere_refusal(backend().context(), p);
    return refusal != nullptr ? refusal : "";
  };
  const Product p = product_of({32, 32, 32}, good, good, good);
  EXPECT_EQ(said(p), "");
  const auto with = [&](auto change) {
    Product changed = p;
    change(changed);
    return said(changed);
  };
  const Matrix shifted{static_cast<char*>(good.data) + 2, good.row_step, 1};
  const Matrix narrow{good.data, 36, 1};
  const Matrix apart{good.data, good.row_step, 2};
  constexpr const char* kMisaligned = "rows are not 16-byte aligned";
  EXPECT_EQ(with([&](Product& q) { q.a = shifted; }), kMisaligned);
  EXPECT_EQ(with([&](Product& q) { q.b = narrow; }), kMisaligned);
  EXPECT_EQ(with([&](Product& q) { q.out = shifted; }), "");
  EXPECT_EQ(with([&](Product& q) { q.out = shifted, q.activation = Pointwise::kGelu; }),
            kMisaligned);
  EXPECT_EQ(with([&](Product& q) { q.cols = 31, q.activation = Pointwise::kGelu; }), kMisaligned);
  EXPECT_EQ(with([&](Product& q) { q.a = apart; }), "elements of no row or column lie together");
  EXPECT_EQ(with([&](Product& q) { q.terms = 0; }), "there are no terms");
  EXPECT_EQ(with([&](Product& q) { q.dtype = DType::kFloat32; }), "takes 16-bit dtypes");
  EXPECT_EQ(with([&](Product& q) { q.a = q.b.transposed(), q.b = q.a; }),
            "the order of a in memory is not built with that of b");
}

}  // namespace
}  // namespace transformer_kernels::testing

#endif
#endif
