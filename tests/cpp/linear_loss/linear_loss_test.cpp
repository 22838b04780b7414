// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend_test.h"
#include "error_of.h"
#include "linear_loss/linear_loss_cases.h"
#include "parallel_hooks.h"

namespace transformer_kernels::testing {
namespace {

class LinearCrossEntropy : public BackendTest {
 protected:
  static void check(LayerSizes s, const LayerOptions& o) { check_layer(backend(), dtype(), s, o); }
};

INSTANTIATE_TEST_SUITE_P(on, LinearCrossEntropy, all_backends_and_dtypes(), name_of_backend_test);

constexpr Reduction kReductions[] = {Reduction::kNone, Reduction::kMean, Reduction::kSum};

// Chunks that divide the rows and that do not, of one row, and of more rows than there are.
TEST_P(LinearCrossEntropy, shapes_in_chunks) {
  for (std::int64_t rows : {0, 1, 37}) {
    for (std::int64_t classes : {1, 33, 200}) {
      for (std::int64_t chunk_rows : {0, 1, 5, 19, 100}) {
        check({rows, 24, classes}, {.chunk_rows = chunk_rows});
      }
    }
  }
  check({64, 64, 1000}, {.chunk_rows = 16});
  check({7, 0, 10}, {.chunk_rows = 2});
}

TEST_P(LinearCrossEntropy, every_option) {
  for (int bits = 0; bits < 64; ++bits) {
    const auto has = [&](int bit) { return (bits >> bit & 1) != 0; };
    for (Reduction reduction : kReductions) {
      check({21, 16, 50}, {.bias = has(0),
                           .wide = has(1),
                           .chunk_rows = 8,
                           .transposed = has(2),
                           .layout = has(2) ? Layout{0, 8} : Layout{},
                           .loss = {.weight = has(3),
                                    .wide = has(1),
                                    .narrow_labels = has(2),
                                    .label_smoothing = has(4) ? 0.1 : 0.0,
                                    .z_loss = has(5) ? 0.01 : 0.0,
                                    .softcap = has(5) ? 5.0 : 0.0,
                                    .reduction = reduction}});
    }
  }
}

// Sums of a few chunks in 16 bits are rounded at each: no worse than by one chunk's rounding each.
TEST_P(LinearCrossEntropy, few_chunks_without_float32_sums) {
  LayerOptions o{.chunk_rows = 10, .float32_sums = false};
  const LayerInputs in = random_layer({40, 16, 30}, dtype(), o);
  LayerRun run(backend(), dtype(), in);
  linear_cross_entropy_forward(backend().context(), run.forward(true));
  LayerInputs of_one = in;
  of_one.loss.dloss = {1};
  const LayerResults exact = of_one.results(DType::kFloat64);
  const LayerResults plain = of_one.results(dtype());
  expect_within("dweight", dtype(), run.dweight.values(), exact.dweight, plain.dweight,
                exact.dweight_size, 4 * unit_roundoff(dtype()) * exact.dweight_size);
}

TEST_P(LinearCrossEntropy, all_rows_ignored) {
  for (Reduction reduction : kReductions) {
    check({13, 8, 20},
          {.chunk_rows = 4, .loss = {.share_ignored = 1, .z_loss = 0.1, .reduction = reduction}});
  }
}

// One row of NaN spoils its own loss and gradient, and what is summed over rows.
TEST_P(LinearCrossEntropy, nan_in_a_row) {
  LayerInputs in =
      random_layer({6, 8, 20}, dtype(),
                   {.chunk_rows = 4, .loss = {.share_ignored = 0, .reduction = Reduction::kNone}});
  in.x[2 * 8 + 3] = kNan;
  LayerRun run(backend(), dtype(), in);
  linear_cross_entropy_forward(backend().context(), run.forward(true));
  const Values loss = run.loss();
  const Values dx = run.dx.values();
  for (std::int64_t r = 0; r < 6; ++r) {
    EXPECT_EQ(std::isnan(loss[r]), r == 2) << r;
    for (std::int64_t k = 0; k < 8; ++k) EXPECT_EQ(std::isnan(dx[r * 8 + k]), r == 2) << r;
  }
  for (double value : run.dweight.values()) EXPECT_TRUE(std::isnan(value));
}

TEST_P(LinearCrossEntropy, some_gradients) {
  const LayerInputs in = random_layer({21, 16, 50}, dtype(), {.chunk_rows = 8});
  LayerRun all(backend(), dtype(), in);
  linear_cross_entropy_forward(backend().context(), all.forward(true));
  for (int wanted : {1, 2, 4}) {
    LayerRun run(backend(), dtype(), in);
    LinearCrossEntropyForward a = run.forward(true);
    if (wanted != 1) a.gradients.dx = {};
    if (wanted != 2) a.gradients.dlinear_weight = {};
    if (wanted != 4) a.gradients.dlinear_bias = {};
    linear_cross_entropy_forward(backend().context(), a);
    EXPECT_EQ(run.loss(), all.loss());
    EXPECT_EQ(wanted == 1 ? run.dx.bytes() == all.dx.bytes() : run.dx.untouched(), true);
    EXPECT_EQ(wanted == 2 ? run.dweight.bytes() == all.dweight.bytes() : run.dweight.untouched(),
              true);
    EXPECT_EQ(wanted == 4 ? run.dbias.bytes() == all.dbias.bytes() : run.dbias.untouched(), true);
  }
}

TEST_P(LinearCrossEntropy, leading_dimensions) {
  const LayerInputs in = random_layer({12, 8, 20}, dtype(), {.chunk_rows = 5});
  LayerRun flat(backend(), dtype(), in);
  LayerRun run(backend(), dtype(), in);
  linear_cross_entropy_forward(backend().context(), flat.forward(true));
  LinearCrossEntropyForward a = run.forward(true);
  const auto fold = [](TensorView& view) {
    const std::int64_t columns = view.sizes[1];
    view = TensorView::contiguous(view.data, view.dtype, view.device, {3, 4, columns});
    if (columns == 0) view.rank = 2;
  };
  fold(a.inputs.layer.x);
  fold(a.gradients.dx);
  for (TensorView* rows : {&a.inputs.target, &a.top, &a.spread, &a.share}) {
    *rows = TensorView::contiguous(rows->data, rows->dtype, rows->device, {3, 4});
  }
  linear_cross_entropy_forward(backend().context(), a);
  EXPECT_EQ(run.loss(), flat.loss());
  EXPECT_EQ(run.dx.bytes(), flat.dx.bytes());
}

TEST_P(LinearCrossEntropy, one_row_without_a_dimension) {
  const LayerInputs in =
      random_layer({1, 8, 20}, dtype(), {.loss = {.reduction = Reduction::kNone}});
  LayerRun flat(backend(), dtype(), in);
  LayerRun run(backend(), dtype(), in);
  linear_cross_entropy_forward(backend().context(), flat.forward(true));
  LinearCrossEntropyForward a = run.forward(true);
  for (TensorView* row : {&a.inputs.layer.x, &a.gradients.dx}) {
    *row = TensorView::contiguous(row->data, row->dtype, row->device, {8});
  }
  for (TensorView* number : {&a.inputs.target, &a.loss, &a.top, &a.spread, &a.share}) {
    *number = TensorView::contiguous(number->data, number->dtype, number->device, {});
  }
  linear_cross_entropy_forward(backend().context(), a);
  EXPECT_EQ(run.loss(), flat.loss());
  EXPECT_EQ(run.dx.bytes(), flat.dx.bytes());
}

TEST_P(LinearCrossEntropy, repeatable) {
  const LayerInputs in = random_layer({70, 64, 500}, dtype(), {.chunk_rows = 32});
  std::vector<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    LayerRun run(backend(), dtype(), in);
    linear_cross_entropy_forward(context, run.forward(true));
    const std::vector<std::vector<std::uint8_t>> bytes = {run.dx.bytes(), run.dweight.bytes(),
                                                          run.dbias.bytes()};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

// A workspace that notes the largest piece of memory that is asked for.
struct Measured {
  Backend& backend;
  std::size_t largest = 0;

  Workspace workspace() {
    return {[](void* self, std::size_t bytes) {
              auto& of = *static_cast<Measured*>(self);
              of.largest = std::max(of.largest, bytes);
              return of.backend.allocate(bytes);
            },
            [](void* self, void* memory) { static_cast<Measured*>(self)->backend.release(memory); },
            this};
  }
};

TEST_P(LinearCrossEntropy, holds_a_chunk_of_logits) {
  constexpr std::int64_t kClasses = 1024, kChunkRows = 100;
  const std::int64_t rows = is_on_cuda(backend()) ? 20000 : 1000;  // more than cuBLASLt asks for
  const LayerInputs in = random_layer({rows, 4, kClasses}, dtype(), {.chunk_rows = kChunkRows});
  LayerRun run(backend(), dtype(), in);
  Measured measured{backend()};
  Context context = backend().context();
  context.workspace = measured.workspace();
  linear_cross_entropy_forward(context, run.forward(true));
  const std::size_t chunk = kChunkRows * kClasses * size_of(dtype());
  EXPECT_GE(measured.largest, chunk);
  // A product of float16 on a CPU copies it in float32; cuBLASLt asks for up to 32 MiB of its own.
  const std::size_t of_product = is_on_cuda(backend()) ? 32 << 20 : 0;
  EXPECT_LT(measured.largest, std::max(3 * chunk, of_product));
}

// A call that does not say how much memory logits may take: 64 MiB on a CPU, in chunks of equal
// size.
TEST(LinearCrossEntropyMemory, by_default) {
  constexpr std::int64_t kRows = 100, kClasses = 1 << 19;  // 200 MiB of logits
  std::vector<float> x(kRows, 1), weight(kClasses, 1);
  std::vector<std::int64_t> target(kRows, 0);
  float loss = 0;
  const auto view = [](void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
    return TensorView::contiguous(data, dtype, {}, shape);
  };
  Measured measured{*cpu_backend()};
  Context context;
  context.workspace = measured.workspace();
  LinearCrossEntropyForward a;
  a.inputs.layer = {.x = view(x.data(), DType::kFloat32, {kRows, 1}),
                    .linear_weight = view(weight.data(), DType::kFloat32, {kClasses, 1})};
  a.inputs.target = view(target.data(), DType::kInt64, {kRows});
  a.loss = view(&loss, DType::kFloat32, {});
  linear_cross_entropy_forward(context, a);
  EXPECT_NEAR(loss, std::log(kClasses), 1e-5);
  EXPECT_GE(measured.largest, 25 * kClasses * sizeof(float));
  EXPECT_LT(measured.largest, 26 * kClasses * sizeof(float));
}

TEST_P(LinearCrossEntropy, labels_out_of_range) {
  for (std::int64_t label : {-1, 20, 1 << 20}) {
    LayerInputs in = random_layer({13, 8, 20}, dtype(), {.chunk_rows = 4});
    in.loss.labels[9] = label;
    LayerRun run(backend(), dtype(), in);
    if (is_on_cuda(backend())) {
      linear_cross_entropy_forward(backend().context(), run.forward(true));
      EXPECT_TRUE(std::isnan(run.loss()[0]));
      continue;
    }
    EXPECT_EQ(
        error_of([&] { linear_cross_entropy_forward(backend().context(), run.forward(true)); }),
        "cross_entropy: target is " + std::to_string(label) +
            " in row 9, expected one of [0, 19] or -7 (ignore_index)");
    EXPECT_TRUE(run.untouched());
  }
}

TEST(LinearCrossEntropyErrors, have_exact_words_and_touch_nothing) {
  const LayerInputs in = random_layer({3, 4, 8}, DType::kBFloat16, {});
  LayerRun run(*cpu_backend(), DType::kBFloat16, in);
  const auto refused = [&](auto change) {
    LinearCrossEntropyForward a = run.forward(true);
    change(a);
    return error_of([&] { linear_cross_entropy_forward({}, a); });
  };
  using Forward = LinearCrossEntropyForward;
  EXPECT_EQ(refused([](Forward& a) { a.inputs.layer.x = {}; }),
            "linear_cross_entropy: x is missing");
  EXPECT_EQ(refused([](Forward& a) { a.inputs.layer.chunk_bytes = -1; }),
            "linear_cross_entropy: chunk_bytes is -1, expected 1 or more, or 0 (the default)");
  EXPECT_EQ(refused([](Forward& a) { a.inputs.layer.linear_weight.rank = 1; }),
            "linear_cross_entropy: linear_weight has 1 dimensions, expected 2");
  EXPECT_EQ(refused([](Forward& a) { a.inputs.layer.linear_weight.sizes[0] = 0; }),
            "linear_cross_entropy: linear_weight has shape (0, 4), expected a class or more");
  EXPECT_EQ(refused([](Forward& a) {
              a.inputs.layer.linear_weight.sizes[1] = 3;
              a.gradients = {};
            }),
            "linear: weight has 3 columns, expected 4 (the last dimension of x)");
  EXPECT_EQ(refused([](Forward& a) { a.gradients.dlinear_weight.sizes[1] = 3; }),
            "linear_cross_entropy: dlinear_weight has shape (8, 3), expected (8, 4) (the shape of"
            " linear_weight)");
  EXPECT_EQ(refused([](Forward& a) { a.inputs.layer.linear_bias.sizes[0] = 7; }),
            "linear: bias has 7 elements, expected 8 (the rows of weight)");
  EXPECT_EQ(refused([](Forward& a) { a.inputs.target = {}; }), "reduce_losses: target is missing");
  EXPECT_EQ(refused([](Forward& a) { a.inputs.label_smoothing = 2; }),
            "cross_entropy: label_smoothing is 2, expected a number from 0 to 1");
  EXPECT_EQ(refused([](Forward& a) { a.loss = {}; }), "linear_cross_entropy: loss is missing");
  EXPECT_EQ(refused([](Forward& a) { a.inputs.reduction = Reduction::kNone; }),
            "cross_entropy: loss has 1 elements, expected 3 (the rows of x)");
  EXPECT_EQ(refused([](Forward& a) { a.gradients.dlinear_weight.strides[0] = 8; }),
            "linear_cross_entropy: dlinear_weight has gaps, expected contiguous memory");
  EXPECT_EQ(refused([](Forward& a) { a.gradients.dx = a.inputs.layer.x; }),
            "linear_cross_entropy: dx overlaps x, expected memory of its own");
  EXPECT_EQ(refused([](Forward& a) { a.gradients.dlinear_bias = a.inputs.layer.linear_bias; }),
            "linear_cross_entropy: dlinear_bias overlaps linear_bias, expected memory of its own");
  EXPECT_TRUE(run.untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
