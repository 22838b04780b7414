// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "graph/plan.h"
#include "parallel_hooks.h"
#include "test_tensor.h"
#include "transformer_kernels/error.h"
#include "transformer_kernels/graph/gather_reduce.h"
#include "transformer_kernels/graph/segment_softmax.h"
#include "transformer_kernels/index_error.h"

namespace transformer_kernels::testing {
namespace {

using Numbers = std::vector<std::int64_t>;

class GraphOp : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(on, GraphOp, all_backends_and_dtypes(), name_of_backend_test);

// Edges in the order of their targets, the first of which have most of them, and every third none.
struct Drawn {
  Numbers offsets, indices, order, targets;
  Numbers back_offsets, back_indices, back_order;
};

Drawn draw(std::int64_t sources, std::int64_t targets, std::int64_t edges) {
  std::uniform_real_distribution<double> uniform(0, 1);
  Drawn g;
  g.offsets.resize(targets + 1);
  g.back_offsets.resize(sources + 1);
  for (std::int64_t i = 0; i < edges; ++i) {
    const double skewed = std::pow(uniform(random_engine()), 6);
    auto target = static_cast<std::int64_t>(skewed * static_cast<double>(targets));
    if (target % 3 == 2) --target;
    g.targets.push_back(target);
    g.indices.push_back(
        static_cast<std::int64_t>(uniform(random_engine()) * static_cast<double>(sources)));
    g.order.push_back(i);
  }
  std::sort(g.targets.begin(), g.targets.end());
  std::shuffle(g.order.begin(), g.order.end(), random_engine());
  for (std::int64_t target : g.targets) ++g.offsets[target + 1];
  for (std::int64_t i = 0; i < targets; ++i) g.offsets[i + 1] += g.offsets[i];
  for (std::int64_t j = 0; j < sources; ++j) {
    for (std::int64_t k = 0; k < edges; ++k) {
      if (g.indices[k] != j) continue;
      g.back_indices.push_back(g.targets[k]);
      g.back_order.push_back(g.order[k]);
    }
    g.back_offsets[j + 1] = static_cast<std::int64_t>(g.back_order.size());
  }
  return g;
}

// The edges in a backend's memory; offsets and order are int32.
class DeviceEdges {
 public:
  DeviceEdges(Backend& backend, const Drawn& g)
      : narrow_offsets_(g.offsets.begin(), g.offsets.end()),
        narrow_order_(g.order.begin(), g.order.end()),
        offsets_(backend, narrow_offsets_.data(), narrow_offsets_.size()),
        order_(backend, narrow_order_.data(), narrow_order_.size()),
        indices_(backend, g.indices.data(), g.indices.size()),
        back_offsets_(backend, g.back_offsets.data(), g.back_offsets.size()),
        back_indices_(backend, g.back_indices.data(), g.back_indices.size()),
        back_order_(backend, g.back_order.data(), g.back_order.size()) {}

  Edges view() const {
    return {.offsets = offsets_.vector(DType::kInt32),
            .indices = indices_.vector(DType::kInt64),
            .order = order_.vector(DType::kInt32),
            .back_offsets = back_offsets_.vector(DType::kInt64),
            .back_indices = back_indices_.vector(DType::kInt64),
            .back_order = back_order_.vector(DType::kInt64)};
  }

 private:
  std::vector<std::int32_t> narrow_offsets_, narrow_order_;
  DeviceArray<std::int32_t> offsets_, order_;
  DeviceArray<std::int64_t> indices_, back_offsets_, back_indices_, back_order_;
};

struct Case {
  std::int64_t sources, targets, edges, cols, heads;
  Layout layout;
};
constexpr Case kCases[] = {{1, 1, 0, 8, 1, {}},
                           {6, 9, 40, 33, 3, {1, 3}},
                           {20, 30, 300, 64, 4, {}},
                           {7, 3, 3000, 24, 1, {0, 8}},
                           {5, 4, 1500, 136, 2, {}}};

// Sums of thousands of positive terms: in double they would be off by as much as float64 may be.
using Totals = std::vector<long double>;

// A sum and the sum of the sizes of its terms.
struct Sums {
  explicit Sums(std::int64_t count) : sum(count), size(count) {}
  void add(std::int64_t at, double term) {
    sum[at] += term;
    size[at] += std::abs(term);
  }
  Values sum, size;
};

void expect_close(DType dtype, const Values& got, const Sums& expected) {
  const double wide = unit_roundoff(dtype == DType::kFloat64 ? dtype : DType::kFloat32);
  // float16 has subnormals.
  const double least = dtype == DType::kFloat16 ? 0x1p-25 : 1e-7 * unit_roundoff(dtype);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = unit_roundoff(dtype) * std::abs(expected.sum[i]) * 1.01 +
                         100 * wide * expected.size[i] + least;
    ASSERT_NEAR(got[i], expected.sum[i], error) << "element " << i;
  }
}

TEST_P(GraphOp, sums_match_the_reference) {
  for (const auto& [sources, targets, edges, cols, heads, layout] : kCases) {
    SCOPED_TRACE(std::to_string(edges) + 'x' + std::to_string(cols));
    const Drawn g = draw(sources, targets, edges);
    const DeviceEdges device_edges(backend(), g);
    const Values x_values = random_normal(sources * cols, dtype());
    const Values dy_values = random_normal(targets * cols, dtype());
    const Values weight_values = random_normal(edges * heads, dtype());
    const TestTensor x(backend(), dtype(), sources, cols, x_values, layout);
    const TestTensor dy(backend(), dtype(), targets, cols, dy_values, layout);
    const TestTensor weight(backend(), dtype(), edges, heads, weight_values);
    TestTensor y(backend(), dtype(), targets, cols, layout);
    TestTensor dx(backend(), dtype(), sources, cols, layout);
    TestTensor dweight(backend(), dtype(), edges, heads);
    gather_reduce_forward(
        backend().context(),
        {.x = x.view(), .edges = device_edges.view(), .weight = weight.view(), .y = y.view()});
    gather_reduce_backward(backend().context(), {.dy = dy.view(),
                                                 .x = x.view(),
                                                 .edges = device_edges.view(),
                                                 .weight = weight.view(),
                                                 .dx = dx.view(),
                                                 .dweight = dweight.view()});
    Sums sums(targets * cols), dx_sums(sources * cols), dweight_sums(edges * heads);
    for (std::int64_t k = 0; k < edges; ++k) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::int64_t at = g.order[k] * heads + c / (cols / heads);
        const double of_x = x_values[g.indices[k] * cols + c];
        const double of_dy = dy_values[g.targets[k] * cols + c];
        sums.add(g.targets[k] * cols + c, of_x * weight_values[at]);
        dx_sums.add(g.indices[k] * cols + c, of_dy * weight_values[at]);
        dweight_sums.add(at, of_x * of_dy);
      }
    }
    expect_close(dtype(), y.values(), sums);
    expect_close(dtype(), dx.values(), dx_sums);
    expect_close(dtype(), dweight.values(), dweight_sums);
    EXPECT_TRUE(y.surroundings_intact() && dx.surroundings_intact());
  }
}

TEST_P(GraphOp, softmax_matches_the_reference) {
  for (const auto& [sources, targets, edges, cols, heads, layout] : kCases) {
    SCOPED_TRACE(std::to_string(edges) + 'x' + std::to_string(cols));
    const Drawn g = draw(sources, targets, edges);
    const DeviceEdges device_edges(backend(), g);
    const Values values = random_normal(edges * cols, dtype());
    const TestTensor x(backend(), dtype(), edges, cols, values, layout);
    TestTensor y(backend(), dtype(), edges, cols, layout);
    segment_softmax_forward(backend().context(),
                            {.x = x.view(), .edges = device_edges.view(), .y = y.view()});
    Totals totals(targets * cols);
    for (std::int64_t k = 0; k < edges * cols; ++k) {
      totals[g.targets[k / cols] * cols + k % cols] +=
          std::exp(values[g.order[k / cols] * cols + k % cols]);
    }
    const Values got = y.values();
    for (std::int64_t k = 0; k < edges * cols; ++k) {
      const std::int64_t at = g.order[k / cols] * cols + k % cols;
      const auto total = static_cast<double>(totals[g.targets[k / cols] * cols + k % cols]);
      const double expected = std::exp(values[at]) / total;
      const double wide = unit_roundoff(dtype() == DType::kFloat64 ? dtype() : DType::kFloat32);
      const double error = expected * (1.01 * unit_roundoff(dtype()) + 200 * wide);
      const double least = dtype() == DType::kFloat16 ? 0x1p-25 : 1e-30;  // of its subnormals
      ASSERT_NEAR(got[at], expected, error + least);
    }
    EXPECT_TRUE(y.surroundings_intact());
  }
}

// On either side of what a thread, a warp or a CTA owns, and some that have several of these.
constexpr std::int64_t kLengths[] = {0, 1, 15, 16, 17, 0, 0, 2047, 2048, 2049, 3, 5000, 513, 0};
constexpr std::int64_t kSegments = std::size(kLengths);

// Rows in the order of their segments.
struct Ragged {
  Numbers offsets{0}, segment;

  Ragged() {
    for (const std::int64_t length : kLengths) {
      segment.insert(segment.end(), length, static_cast<std::int64_t>(offsets.size()) - 1);
      offsets.push_back(offsets.back() + length);
    }
  }
  std::int64_t edges() const { return offsets.back(); }
};

struct Width {
  std::int64_t cols, heads;
  Layout layout;
};
constexpr Width kWidths[] = {{1, 1, {}},  {3, 1, {}},  {8, 1, {}},  {8, 2, {1, 3}},
                             {64, 1, {}}, {64, 4, {}}, {65, 5, {}}, {136, 1, {}}};

TEST_P(GraphOp, rows_of_all_lengths_are_summed_and_spread) {
  const Ragged g;
  const DeviceArray<std::int64_t> offsets(backend(), g.offsets.data(), g.offsets.size());
  const Edges edges{.offsets = offsets.vector(DType::kInt64)};
  for (const auto& [cols, heads, layout] : kWidths) {
    SCOPED_TRACE(cols);
    const Values x_values = random_normal(g.edges() * cols, dtype());
    const Values dy_values = random_normal(kSegments * cols, dtype());
    const TestTensor x(backend(), dtype(), g.edges(), cols, x_values, layout);
    const TestTensor dy(backend(), dtype(), kSegments, cols, dy_values, layout);
    TestTensor y(backend(), dtype(), kSegments, cols, layout);
    TestTensor dx(backend(), dtype(), g.edges(), cols, layout);
    gather_reduce_forward(backend().context(), {.x = x.view(), .edges = edges, .y = y.view()});
    gather_reduce_backward(backend().context(), {.dy = dy.view(), .edges = edges, .dx = dx.view()});
    Sums sums(kSegments * cols), dx_sums(g.edges() * cols);
    for (std::int64_t k = 0; k < g.edges() * cols; ++k) {
      const std::int64_t element = g.segment[k / cols] * cols + k % cols;
      sums.add(element, x_values[k]);
      dx_sums.add(k, dy_values[element]);
    }
    expect_close(dtype(), y.values(), sums);
    expect_close(dtype(), dx.values(), dx_sums);
    EXPECT_TRUE(y.surroundings_intact() && dx.surroundings_intact());
  }
}

TEST_P(GraphOp, edges_of_all_lengths_are_multiplied) {
  const Ragged g;
  constexpr std::int64_t kSources = 30;
  Numbers sources(g.edges());
  for (std::int64_t k = 0; k < g.edges(); ++k) sources[k] = k * 7 % kSources;
  const DeviceArray<std::int64_t> offsets(backend(), g.offsets.data(), g.offsets.size());
  const DeviceArray<std::int64_t> indices(backend(), sources.data(), sources.size());
  const Edges edges{.offsets = offsets.vector(DType::kInt64),
                    .indices = indices.vector(DType::kInt64)};
  for (const auto& [cols, heads, layout] : kWidths) {
    SCOPED_TRACE(cols);
    const Values a_values = random_normal(kSegments * cols, dtype());
    const Values b_values = random_normal(kSources * cols, dtype());
    const TestTensor a(backend(), dtype(), kSegments, cols, a_values, layout);
    const TestTensor b(backend(), dtype(), kSources, cols, b_values, layout);
    TestTensor y(backend(), dtype(), g.edges(), heads);
    edge_dot_forward(backend().context(),
                     {.a = a.view(), .b = b.view(), .edges = edges, .y = y.view()});
    Sums sums(g.edges() * heads);
    for (std::int64_t k = 0; k < g.edges(); ++k) {
      for (std::int64_t c = 0; c < cols; ++c) {
        sums.add(k * heads + c / (cols / heads),
                 a_values[g.segment[k] * cols + c] * b_values[sources[k] * cols + c]);
      }
    }
    expect_close(dtype(), y.values(), sums);
    EXPECT_TRUE(y.surroundings_intact());
  }
}

TEST_P(GraphOp, softmax_of_all_lengths_and_its_gradient) {
  const Ragged g;
  const DeviceArray<std::int64_t> offsets(backend(), g.offsets.data(), g.offsets.size());
  const Edges edges{.offsets = offsets.vector(DType::kInt64)};
  for (const auto& [cols, heads, layout] : kWidths) {
    SCOPED_TRACE(cols);
    const std::int64_t count = g.edges() * cols;
    const Values values = random_normal(count, dtype());
    const Values dy_values = random_normal(count, dtype());
    const TestTensor x(backend(), dtype(), g.edges(), cols, values, layout);
    const TestTensor dy(backend(), dtype(), g.edges(), cols, dy_values, layout);
    TestTensor y(backend(), dtype(), g.edges(), cols, layout);
    TestTensor dx(backend(), dtype(), g.edges(), cols, layout);
    segment_softmax_forward(backend().context(), {.x = x.view(), .edges = edges, .y = y.view()});
    segment_softmax_backward(backend().context(),
                             {.dy = dy.view(), .y = x.view(), .edges = edges, .dx = dx.view()});
    Totals totals(kSegments * cols);
    Sums products(kSegments * cols);
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t element = g.segment[k / cols] * cols + k % cols;
      totals[element] += std::exp(values[k]);
      products.add(element, values[k] * dy_values[k]);
    }
    Sums y_sums(count), dx_sums(count);
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t element = g.segment[k / cols] * cols + k % cols;
      y_sums.add(k, std::exp(values[k]) / static_cast<double>(totals[element]));
      dx_sums.add(k, values[k] * (dy_values[k] - products.sum[element]));
      dx_sums.size[k] += std::abs(values[k]) * products.size[element];
    }
    expect_close(dtype(), y.values(), y_sums);
    expect_close(dtype(), dx.values(), dx_sums);
    EXPECT_TRUE(y.surroundings_intact() && dx.surroundings_intact());
  }
}

TEST_P(GraphOp, repeatable) {
  const Drawn g = draw(40, 20, 9000);
  const DeviceEdges device_edges(backend(), g);
  const TestTensor x(backend(), dtype(), 40, 96, random_normal(40 * 96, dtype()));
  std::optional<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    TestTensor y(backend(), dtype(), 20, 96);
    gather_reduce_forward(context, {.x = x.view(), .edges = device_edges.view(), .y = y.view()});
    if (!first) first = y.bytes();
    EXPECT_EQ(y.bytes(), *first);
  }
}

struct Small {
  float data[64] = {};
  float results[64] = {};
  std::int32_t offsets[4] = {0, 2, 2, 3};
  std::int64_t indices[3] = {1, 0, 1};
  Edges edges{.offsets = TensorView::contiguous(offsets, DType::kInt32, {}, {4}),
              .indices = TensorView::contiguous(indices, DType::kInt64, {}, {3})};

  TensorView matrix(std::int64_t rows, std::int64_t cols) {
    return TensorView::contiguous(data, DType::kFloat32, {}, {rows, cols});
  }
  TensorView result(std::int64_t rows, std::int64_t cols) {
    return TensorView::contiguous(results, DType::kFloat32, {}, {rows, cols});
  }
};

void expect_error(auto&& spoil, const std::string& expected) {
  Small small;
  GatherReduceForward a{.x = small.matrix(2, 8),
                        .edges = small.edges,
                        .weight = small.matrix(3, 2),
                        .y = small.result(3, 8)};
  spoil(a, small);
  EXPECT_EQ(error_of([&] { gather_reduce_forward({}, a); }), expected);
}

TEST(GraphErrors, have_exact_words) {
  using Forward = GatherReduceForward;
  expect_error([](Forward& a, Small&) { a.x.rank = 1; },
               "gather_reduce: x has 1 dimensions, expected 2");
  expect_error([](Forward& a, Small&) { a.edges.offsets.dtype = DType::kInt8; },
               "gather_reduce: offsets is int8, expected int32 or int64");
  expect_error([](Forward& a, Small&) { a.edges.order = a.edges.offsets; },
               "gather_reduce: order has 4 elements, expected 3 (those of indices)");
  expect_error([](Forward& a, Small&) { a.edges.back_offsets = a.edges.offsets; },
               "gather_reduce: back_offsets has 4 elements, expected 3 (a segment for each row)");
  expect_error([](Forward& a, Small&) { a.weight.sizes[0] = 4; },
               "gather_reduce: weight has 4 rows, expected 3 (one for each edge)");
  expect_error([](Forward& a, Small&) { a.weight.sizes[1] = 3; },
               "gather_reduce: weight has 3 columns, expected a divisor of 8 (the columns of x)");
  expect_error([](Forward& a, Small&) { a.y.sizes[0] = 2; },
               "gather_reduce: y has 2 rows, expected 3 (the segments of offsets)");
  expect_error([](Forward& a, Small& small) { a.y = small.matrix(3, 8); },
               "gather_reduce: y overlaps x, expected memory of its own");
  expect_error([](Forward& a, Small&) { a.reduce = Reduce::kMax; },
               "gather_reduce: chosen is missing");
  expect_error([](Forward&, Small& small) { small.offsets[0] = 1; },
               "gather_reduce: offsets begins with 1, expected 0");
  expect_error([](Forward&, Small& small) { small.offsets[3] = 2; },
               "gather_reduce: offsets ends with 2, expected 3 (the number of edges)");
  expect_error([](Forward&, Small& small) { small.offsets[2] = 1; },
               "gather_reduce: offsets falls from 2 to 1 behind segment 1, expected no segment of "
               "fewer than 0 edges");
  expect_error([](Forward&, Small& small) { small.indices[2] = 2; },
               "gather_reduce: indices holds 2, expected one of 2 rows");
}

TEST(GraphErrors, gradients_say_what_they_need) {
  Small small;
  const GatherReduceBackward call{
      .dy = small.matrix(3, 8), .edges = small.edges, .dx = small.result(2, 8)};
  EXPECT_EQ(error_of([&] { gather_reduce_backward({}, call); }),
            "gather_reduce: back_offsets is missing, expected it for the gradient of x");
}

TEST(GraphErrors, nothing_is_written_where_the_second_gradient_is_refused) {
  Small small;
  float da[24];
  std::fill_n(da, 24, -7.0f);
  std::int32_t back_offsets[3] = {0, 1, 3};
  std::int32_t back_indices[3] = {0, 0, 2};
  std::int32_t back_order[3] = {0, 1, 2};
  small.edges.back_offsets = TensorView::contiguous(back_offsets, DType::kInt32, {}, {3});
  small.edges.back_indices = TensorView::contiguous(back_indices, DType::kInt32, {}, {3});
  small.edges.back_order = TensorView::contiguous(back_order, DType::kInt32, {}, {3});
  const EdgeDotBackward call{.dy = small.matrix(3, 2),
                             .a = small.matrix(3, 8),
                             .b = small.matrix(2, 8),
                             .edges = small.edges,
                             .da = TensorView::contiguous(da, DType::kFloat32, {}, {3, 8}),
                             .db = small.matrix(3, 8)};
  EXPECT_EQ(error_of([&] { edge_dot_backward({}, call); }),
            "edge_dot: db has 3 rows, expected 2 (one for each segment)");
  for (const float number : da) EXPECT_EQ(number, -7.0f);
}

TEST(GraphPlan, cuts_segments_and_rows) {
  using namespace cuda;
  EXPECT_EQ(row_lanes(16).count(), 16);
  EXPECT_EQ(row_lanes(33).chunks, 2);
  EXPECT_EQ(row_lanes(0).chunks, 1);
  EXPECT_EQ(most_pieces(kLongSegment), 2);
  EXPECT_EQ(most_long_segments(kLongSegment), 0);
  // However edges are shared out, there is room for the pieces of all long segments.
  for (std::int64_t length = kLongSegment + 1; length < 4 * kLongSegment; length += 7) {
    EXPECT_LE(divide_up(length, kPiece) * 5, most_pieces(5 * length));
  }
  EXPECT_EQ(softmax_lanes(16'000'000, 1'000'000, 2).bits, 3);
  EXPECT_EQ(softmax_lanes(16'000'000, 1'000'000, 1).bits, 2);
  EXPECT_EQ(softmax_lanes(10, 10, 40).width_bits, 5);
  EXPECT_EQ(segments_of_row(16'000'000, 132), 4);
  EXPECT_EQ(segments_of_row(1'000, 132), 1);
  EXPECT_EQ(run_items(16'000'000, 132), kRunItems);
  EXPECT_EQ(run_items(1, 132), 32);
}

}  // namespace
}  // namespace transformer_kernels::testing
