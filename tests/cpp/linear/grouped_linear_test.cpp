// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/grouped_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#ifdef TFK_WITH_CUDA
#include <cuda_runtime.h>
#endif

#include "backend_test.h"
#include "error_of.h"
#include "linear/group_reference.h"
#include "transformer_kernels/pointwise/pointwise.h"

namespace transformer_kernels::testing {
namespace {

class GroupedLinearOp : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(on, GroupedLinearOp, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(GroupedLinearOp, is_a_loop_over_groups) {
  for (const GroupSizes& s : kGroupSizes) {
    for (const bool with_all : {false, true}) {
      SCOPED_TRACE(name_of(s) + (with_all ? " gathered, bias, factors" : ""));
      const Groups g(backend(), dtype(), s);
      const std::int64_t tokens = with_all ? 29 : g.rows;
      const Indices index = random_rows(g.rows, tokens);
      const DeviceArray<std::int32_t> index_memory(backend(), index.data(), index.size());
      const Values x_values = random_normal(tokens * s.terms, dtype());
      const Values weight_values = random_normal(g.count() * s.cols * s.terms, dtype());
      const DType of_bias = with_all ? g.wide() : dtype();
      const Values bias_values = random_normal(g.count() * s.cols, of_bias);
      const Values factors = random_normal(g.rows, g.wide());
      const TestTensor x(backend(), dtype(), tokens, s.terms, x_values, s.layout);
      const TestTensor weight(backend(), dtype(), g.count() * s.cols, s.terms, weight_values,
                              s.layout);
      const TestTensor bias(backend(), of_bias, 1, g.count() * s.cols, bias_values);
      const TestTensor factor(backend(), g.wide(), 1, g.rows, factors);
      TestTensor y(backend(), dtype(), g.rows, s.cols, s.layout);
      GroupedLinearForward call{.x = x.view(),
                                .weight = by_groups(weight.view(), g.count()),
                                .offsets = g.offsets_view(),
                                .y = y.view()};
      if (with_all) {
        call.bias = vectors(bias, g.count(), s.cols);
        call.x_rows = index_memory.vector(DType::kInt32);
        call.factors = factor.vector();
      }
      grouped_linear_forward(backend().context(), call);
      Sums expected = layer(g, with_all ? gathered(x_values, index, s.terms) : x_values,
                            weight_values, with_all ? bias_values : Values{});
      if (with_all) scale(expected, factors, s.cols);
      expect_close(dtype(), first(y.values(), g.ends * s.cols), expected,
                   with_all ? one_rounding(dtype(), expected) : Values{});
      EXPECT_TRUE(y.surroundings_intact());
    }
  }
}

TEST_P(GroupedLinearOp, gradients_are_those_of_a_loop) {
  for (const GroupSizes& s : kGroupSizes) {
    // Gathered x; gathered dy, with a factor that rounds nothing; into float32, and added.
    for (const int way : {0, 1, 2}) {
      SCOPED_TRACE(name_of(s) + " way " + std::to_string(way));
      const Groups g(backend(), dtype(), s);
      constexpr std::int64_t kTokens = 31;
      const std::int64_t x_count = way == 1 ? kTokens : g.rows;
      const std::int64_t dy_count = way == 2 ? kTokens : g.rows;
      const Indices index = random_rows(g.rows, kTokens);
      const DeviceArray<std::int32_t> index_memory(backend(), index.data(), index.size());
      const TensorView index_view = index_memory.vector(DType::kInt32);
      Values x_values = random_normal(x_count * s.terms, dtype());
      Values dy_values = random_normal(dy_count * s.cols, dtype());
      const Values weight_values = random_normal(g.count() * s.cols * s.terms, dtype());
      Values factors(g.rows);
      for (double& each : factors) each = std::exp2(std::round(random_normal(1, dtype())[0]));
      const TestTensor x(backend(), dtype(), x_count, s.terms, x_values, s.layout);
      const TestTensor dy(backend(), dtype(), dy_count, s.cols, dy_values, s.layout);
      const TestTensor weight(backend(), dtype(), g.count() * s.cols, s.terms, weight_values,
                              s.layout);
      const TestTensor factor(backend(), g.wide(), 1, g.rows, factors);
      const DType of_weight = way == 2 ? g.wide() : dtype();
      const Values old_dx = random_normal(g.rows * s.terms, dtype());
      const Values old_dweight = random_normal(g.count() * s.cols * s.terms, of_weight);
      const Values old_dbias = random_normal(g.count() * s.cols, of_weight);
      TestTensor dx(backend(), dtype(), g.rows, s.terms, old_dx, s.layout);
      TestTensor dweight(backend(), of_weight, g.count() * s.cols, s.terms, old_dweight, s.layout);
      TestTensor dbias(backend(), of_weight, 1, g.count() * s.cols, old_dbias);
      GroupedLinearBackward call{.dy = dy.view(),
                                 .x = x.view(),
                                 .weight = by_groups(weight.view(), g.count()),
                                 .offsets = g.offsets_view(),
                                 .dx = dx.view(),
                                 .dweight = by_groups(dweight.view(), g.count()),
                                 .dbias = vectors(dbias, g.count(), s.cols)};
      if (way == 1) {
        call.x_rows = index_view;
        x_values = gathered(x_values, index, s.terms);
      }
      if (way == 2) {
        call.dy_rows = index_view;
        call.factors = factor.vector();
        call.accumulate_dx = call.accumulate_dweight = call.accumulate_dbias = true;
        dy_values = gathered(dy_values, index, s.cols);
        for (std::size_t i = 0; i < dy_values.size(); ++i) dy_values[i] *= factors[i / s.cols];
      }
      grouped_linear_backward(backend().context(), call);

      Sums of_dx, of_dweight, of_dbias;
      for (std::int64_t i = 0; i < g.count(); ++i) {
        const std::int64_t count = s.lengths[i];
        const Values own_dy = rows_of(dy_values, g.offsets[i], count, s.cols);
        const Values own_x = rows_of(x_values, g.offsets[i], count, s.terms);
        const Values own_weight = rows_of(weight_values, i, 1, s.cols * s.terms);
        append(of_dx,
               product(count, s.terms, s.cols, own_dy, {s.cols, 1}, own_weight, {1, s.terms}));
        append(of_dweight,
               product(s.cols, s.terms, count, own_dy, {1, s.cols}, own_x, {1, s.terms}));
        append(of_dbias, product(1, s.cols, count, Values(count, 1), {0, 1}, own_dy, {1, s.cols}));
      }
      if (way == 2) {
        of_dx = added(first(old_dx, g.ends * s.terms), of_dx);
        of_dweight = added(old_dweight, of_dweight);
        of_dbias = added(old_dbias, of_dbias);
      }
      expect_close(dtype(), first(dx.values(), g.ends * s.terms), of_dx);
      expect_close(of_weight, dweight.values(), of_dweight);
      expect_close(of_weight, dbias.values(), of_dbias);
      EXPECT_TRUE(dx.surroundings_intact());
      EXPECT_TRUE(dweight.surroundings_intact());
      EXPECT_TRUE(dbias.surroundings_intact());
    }
  }
}

constexpr Pointwise kGates[] = {Pointwise::kGeGlu, Pointwise::kGeGluTanh, Pointwise::kSwiGlu,
                                Pointwise::kReGlu};

TEST_P(GroupedLinearOp, gates_two_layers) {
  int number = 0;
  for (const GroupSizes& s : kGroupSizes) {
    for (const bool with_all : {false, true}) {
      const Pointwise op = kGates[number++ % 4];
      SCOPED_TRACE(name_of(s) + ' ' + name_of(op) + (with_all ? " gathered, bias" : ""));
      const Groups g(backend(), dtype(), s);
      const std::int64_t tokens = with_all ? 29 : g.rows;
      const Indices index = random_rows(g.rows, tokens);
      const DeviceArray<std::int32_t> index_memory(backend(), index.data(), index.size());
      const TestTensor x(backend(), dtype(), tokens, s.terms,
                         random_normal(tokens * s.terms, dtype()), s.layout);
      // One packed weight: gate's rows of a group, then up's.
      const TestTensor weight(backend(), dtype(), g.count() * 2 * s.cols, s.terms,
                              random_normal(g.count() * 2 * s.cols * s.terms, dtype()), s.layout);
      const TestTensor bias(backend(), dtype(), 1, g.count() * s.cols,
                            random_normal(g.count() * s.cols, dtype()));
      const TensorView packed = by_groups(weight.view(), g.count());
      TensorView own = packed, up_own = packed;
      own.sizes[1] = up_own.sizes[1] = s.cols;
      up_own.data = static_cast<char*>(packed.data) + s.cols * packed.strides[1] * size_of(dtype());
      TestTensor gate(backend(), dtype(), g.rows, s.cols, s.layout);
      TestTensor up(backend(), dtype(), g.rows, s.cols, s.layout);
      TestTensor y(backend(), dtype(), g.rows, s.cols, s.layout);
      TestTensor inference(backend(), dtype(), g.rows, s.cols, s.layout);
      GroupedGatedLinearForward call{.x = x.view(),
                                     .weight = own,
                                     .up_weight = up_own,
                                     .offsets = g.offsets_view(),
                                     .activation = op,
                                     .gate = gate.view(),
                                     .up = up.view(),
                                     .y = y.view()};
      GroupedLinearForward layer_call{
          .x = x.view(), .weight = own, .offsets = g.offsets_view(), .y = {}};
      if (with_all) {
        call.bias = call.up_bias = layer_call.bias = vectors(bias, g.count(), s.cols);
        call.x_rows = layer_call.x_rows = index_memory.vector(DType::kInt32);
      }
      grouped_gated_linear_forward(backend().context(), call);
      // Its parts, each of which is tested for itself.
      TestTensor expected(backend(), dtype(), g.rows, s.cols, s.layout);
      for (const bool is_up : {false, true}) {
        layer_call.weight = is_up ? up_own : own;
        layer_call.y = expected.view();
        grouped_linear_forward(backend().context(), layer_call);
        const Values got = first((is_up ? up : gate).values(), g.ends * s.cols);
        const Values wanted = first(expected.values(), g.ends * s.cols);
        const Sums sums{wanted, Values(wanted.size(), s.terms + 1.0)};
        expect_close(dtype(), got, sums, one_rounding(dtype(), sums));
      }
      const Values gate_values = first(gate.values(), g.ends * s.cols);
      const Values up_values = first(up.values(), g.ends * s.cols);
      const TestTensor of_gate(backend(), dtype(), g.ends, s.cols, gate_values);
      const TestTensor of_up(backend(), dtype(), g.ends, s.cols, up_values);
      TestTensor gated(backend(), dtype(), g.ends, s.cols);
      pointwise_forward(backend().context(),
                        {.op = op, .x = of_gate.view(), .up = of_up.view(), .y = gated.view()});
      const Values wanted = gated.values();
      const Sums sums{wanted, Values(wanted.size(), 1)};
      expect_close(dtype(), first(y.values(), g.ends * s.cols), sums, one_rounding(dtype(), sums));
      call.gate = call.up = {};
      call.y = inference.view();
      grouped_gated_linear_forward(backend().context(), call);
      EXPECT_EQ(first(inference.values(), g.ends * s.cols), first(y.values(), g.ends * s.cols));
      for (TestTensor* each : {&gate, &up, &y, &inference}) {
        EXPECT_TRUE(each->surroundings_intact());
      }
    }
  }
}

// f and its slope, of gates.
std::array<double, 2> value_and_slope(Pointwise op, double z) {
  if (op == Pointwise::kReGlu) return {std::max(z, 0.0), z > 0 ? 1.0 : 0.0};
  if (op == Pointwise::kSwiGlu) {
    const double sigmoid = 1 / (1 + std::exp(-z));
    return {z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))};
  }
  const double share = 0.5 * std::erfc(-z / std::sqrt(2));
  return {z * share, share + z * std::exp(-z * z / 2) / std::sqrt(2 * 3.14159265358979323846)};
}

TEST_P(GroupedLinearOp, differentiates_the_gate_and_the_factor) {
  constexpr Pointwise kOps[] = {Pointwise::kSwiGlu, Pointwise::kReGlu, Pointwise::kGeGlu};
  int number = 0;
  for (const GroupSizes& s : kGroupSizes) {
    for (const bool with_all : {false, true}) {
      const Pointwise op = kOps[number++ % 3];
      SCOPED_TRACE(name_of(s) + ' ' + name_of(op) + (with_all ? " gathered, factors" : ""));
      const Groups g(backend(), dtype(), s);  // `terms` are the columns of dy here
      const std::int64_t tokens = with_all ? 29 : g.rows;
      const Indices index = random_rows(g.rows, tokens);
      const DeviceArray<std::int32_t> index_memory(backend(), index.data(), index.size());
      const Values dy_values = random_normal(tokens * s.terms, dtype());
      const Values weight_values = random_normal(g.count() * s.terms * s.cols, dtype());
      const Values gate_values = random_normal(g.rows * s.cols, dtype());
      const Values up_values = random_normal(g.rows * s.cols, dtype());
      const Values factors = with_all ? random_normal(g.rows, g.wide()) : Values(g.rows, 1);
      const TestTensor dy(backend(), dtype(), tokens, s.terms, dy_values, s.layout);
      const TestTensor weight(backend(), dtype(), g.count() * s.terms, s.cols, weight_values,
                              s.layout);
      const TestTensor gate(backend(), dtype(), g.rows, s.cols, gate_values, s.layout);
      const TestTensor up(backend(), dtype(), g.rows, s.cols, up_values, s.layout);
      const TestTensor factor(backend(), g.wide(), 1, g.rows, factors);
      TestTensor dgate(backend(), dtype(), g.rows, s.cols, s.layout);
      TestTensor dup(backend(), dtype(), g.rows, s.cols, s.layout);
      TestTensor h(backend(), dtype(), g.rows, s.cols, s.layout);
      TestTensor dfactors(backend(), g.wide(), 1, g.rows);
      GroupedLinearDgated call{.dy = dy.view(),
                               .weight = by_groups(weight.view(), g.count()),
                               .gate = gate.view(),
                               .up = up.view(),
                               .offsets = g.offsets_view(),
                               .activation = op,
                               .dgate = dgate.view(),
                               .dup = dup.view()};
      if (with_all) {
        call.dy_rows = index_memory.vector(DType::kInt32);
        call.factors = factor.vector();
        call.h = h.view();
        call.dfactors = dfactors.vector();
      }
      grouped_linear_dgated(backend().context(), call);

      const Values own_dy = with_all ? gathered(dy_values, index, s.terms) : dy_values;
      Sums da;
      for (std::int64_t i = 0; i < g.count(); ++i) {
        append(da, product(s.lengths[i], s.cols, s.terms,
                           rows_of(own_dy, g.offsets[i], s.lengths[i], s.terms), {s.terms, 1},
                           rows_of(weight_values, i, 1, s.cols * s.terms), {1, s.cols}));
      }
      const std::size_t count = da.sum.size();
      Sums of_dgate{Values(count), Values(count)}, of_dup = of_dgate, of_h = of_dgate;
      Sums of_dfactors{Values(g.ends), Values(g.ends)};
      Values more_of_dfactors(g.ends);
      for (std::size_t i = 0; i < count; ++i) {
        const auto [value, slope] = value_and_slope(op, gate_values[i]);
        const std::size_t row = i / s.cols;
        const double factor_of = factors[row], u = up_values[i];
        const auto set = [&](Sums& sums, double sum, double by) {
          sums.sum[i] = sum * by;
          // Fast forms of f are off by some roundings of 1.
          sums.size[i] = da.size[i] * std::abs(factor_of) * (std::abs(u) + 1) * 2;
        };
        set(of_dgate, da.sum[i], factor_of * slope * u);
        set(of_dup, da.sum[i], factor_of * value);
        of_h.sum[i] = factor_of * value * u;
        of_h.size[i] = std::abs(factor_of * u) * 2;
        of_dfactors.sum[row] += da.sum[i] * value * u;
        of_dfactors.size[row] += da.size[i] * (std::abs(value) + 1) * std::abs(u);
        more_of_dfactors[row] += 2.02 * unit_roundoff(dtype()) * std::abs(da.sum[i] * value * u);
      }
      const auto roundings = [&](const Sums& sums) {
        Values error = one_rounding(dtype(), sums);
        const double smallest = dtype() == DType::kFloat16 ? 0x1p-24 : 0;
        for (double& each : error) each = 2 * each + smallest;
        return error;
      };
      expect_close(dtype(), first(dgate.values(), g.ends * s.cols), of_dgate, roundings(of_dgate));
      expect_close(dtype(), first(dup.values(), g.ends * s.cols), of_dup, roundings(of_dup));
      EXPECT_TRUE(dgate.surroundings_intact());
      EXPECT_TRUE(dup.surroundings_intact());
      if (!with_all) continue;
      expect_close(dtype(), first(h.values(), g.ends * s.cols), of_h, roundings(of_h));
      expect_close(g.wide(), first(dfactors.values(), g.ends), of_dfactors, more_of_dfactors);
      EXPECT_TRUE(h.surroundings_intact());
      EXPECT_TRUE(dfactors.surroundings_intact());
    }
  }
}

// A weight kept as (G, K, N), as some checkpoints have it.
TEST_P(GroupedLinearOp, takes_weights_kept_by_columns) {
  const GroupSizes s{{40, 0, 90}, 64, 72};
  const Groups g(backend(), dtype(), s);
  const Values x_values = random_normal(g.rows * s.terms, dtype());
  const Values weight_values = random_normal(g.count() * s.cols * s.terms, dtype());
  Values turned;
  for (std::int64_t i = 0; i < g.count(); ++i) {
    const Values own = by_columns(rows_of(weight_values, i, 1, s.cols * s.terms), s.cols, s.terms);
    turned.insert(turned.end(), own.begin(), own.end());
  }
  const TestTensor x(backend(), dtype(), g.rows, s.terms, x_values);
  const TestTensor weight(backend(), dtype(), g.count() * s.terms, s.cols, turned);
  TensorView view = by_groups(weight.view(), g.count());
  std::swap(view.sizes[1], view.sizes[2]);
  std::swap(view.strides[1], view.strides[2]);
  TestTensor y(backend(), dtype(), g.rows, s.cols);
  grouped_linear_forward(
      backend().context(),
      {.x = x.view(), .weight = view, .offsets = g.offsets_view(), .y = y.view()});
  expect_close(dtype(), y.values(), layer(g, x_values, weight_values, {}));
}

// Many small groups run side by side on the CPU.
TEST_P(GroupedLinearOp, takes_many_groups) {
  GroupSizes s{Indices(300), 16, 24};
  for (std::size_t i = 0; i < s.lengths.size(); ++i) {
    s.lengths[i] = static_cast<std::int32_t>(i % 5 == 0 ? 0 : i % 7);
  }
  const Groups g(backend(), dtype(), s);
  const Values x_values = random_normal(g.rows * s.terms, dtype());
  const Values weight_values = random_normal(g.count() * s.cols * s.terms, dtype());
  const TestTensor x(backend(), dtype(), g.rows, s.terms, x_values);
  const TestTensor weight(backend(), dtype(), g.count() * s.cols, s.terms, weight_values);
  TestTensor y(backend(), dtype(), g.rows, s.cols);
  grouped_linear_forward(backend().context(), {.x = x.view(),
                                               .weight = by_groups(weight.view(), g.count()),
                                               .offsets = g.offsets_view(),
                                               .y = y.view()});
  expect_close(dtype(), y.values(), layer(g, x_values, weight_values, {}));
}

// The CPU refuses what is out of range; a card, which nobody waits for, takes it for zeros.
TEST_P(GroupedLinearOp, defines_rows_out_of_range) {
  const GroupSizes s{{3, 5}, 64, 24};
  const Groups g(backend(), dtype(), s);
  const Indices index{0, 4, -1, 1, 1, 7, 2000000000, 2};
  const DeviceArray<std::int32_t> index_memory(backend(), index.data(), index.size());
  const Values x_values = random_normal(4 * s.terms, dtype());
  const Values weight_values = random_normal(g.count() * s.cols * s.terms, dtype());
  const TestTensor x(backend(), dtype(), 4, s.terms, x_values);
  const TestTensor weight(backend(), dtype(), g.count() * s.cols, s.terms, weight_values);
  TestTensor y(backend(), dtype(), g.rows, s.cols);
  const auto run = [&] {
    grouped_linear_forward(backend().context(), {.x = x.view(),
                                                 .weight = by_groups(weight.view(), g.count()),
                                                 .offsets = g.offsets_view(),
                                                 .x_rows = index_memory.vector(DType::kInt32),
                                                 .y = y.view()});
  };
  if (!is_on_cuda(backend())) {
    EXPECT_EQ(error_of(run), "grouped_linear: x_rows holds 4, expected a row of x, which has 4");
    EXPECT_TRUE(y.untouched());
    return;
  }
  run();
  expect_close(dtype(), y.values(),
               layer(g, gathered(x_values, index, s.terms), weight_values, {}));
}

#ifdef TFK_WITH_CUDA
// The host reads no offsets: what was captured runs with those of the launch.
TEST_P(GroupedLinearOp, follows_offsets_that_change_under_a_graph) {
  if (!is_on_cuda(backend())) return;
  GroupSizes s{{100, 0, 60, 1}, 64, 72};
  const Groups g(backend(), dtype(), s);
  const Values x_values = random_normal(g.rows * s.terms, dtype());
  const Values weight_values = random_normal(g.count() * s.cols * s.terms, dtype());
  const TestTensor x(backend(), dtype(), g.rows, s.terms, x_values);
  const TestTensor weight(backend(), dtype(), g.count() * s.cols, s.terms, weight_values);
  TestTensor y(backend(), dtype(), g.rows, s.cols);
  TestTensor dweight(backend(), dtype(), g.count() * s.cols, s.terms);
  const auto run = [&] {
    grouped_linear_forward(backend().context(), {.x = x.view(),
                                                 .weight = by_groups(weight.view(), g.count()),
                                                 .offsets = g.offsets_view(),
                                                 .y = y.view()});
    grouped_linear_backward(backend().context(), {.dy = y.view(),
                                                  .x = x.view(),
                                                  .offsets = g.offsets_view(),
                                                  .dweight = by_groups(dweight.view(), g.count())});
  };
  run();  // sets what a kernel needs once
  const auto stream = static_cast<cudaStream_t>(backend().context().stream);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  run();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (const Indices& lengths :
       {Indices{100, 0, 60, 1}, Indices{0, 161, 0, 0}, Indices{1, 2, 3, 4}}) {
    Groups changed(backend(), dtype(), {lengths, s.terms, s.cols});
    backend().upload(g.offsets_view().data, changed.offsets.data(),
                     changed.offsets.size() * sizeof(std::int32_t));
    ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    const Values y_values = y.values();
    expect_close(dtype(), first(y_values, changed.ends * s.cols),
                 layer(changed, x_values, weight_values, {}));
    Sums gradients;
    for (std::int64_t i = 0; i < changed.count(); ++i) {
      append(gradients,
             product(s.cols, s.terms, lengths[i],
                     rows_of(y_values, changed.offsets[i], lengths[i], s.cols), {1, s.cols},
                     rows_of(x_values, changed.offsets[i], lengths[i], s.terms), {1, s.terms}));
    }
    expect_close(dtype(), dweight.values(), gradients);
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}
#endif

TEST(GroupedLinearErrors, have_exact_words) {
  const Context context;
  std::vector<float> memory(64);
  Indices offsets{0, 1, 3};
  const auto matrix = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView::contiguous(memory.data(), DType::kFloat32, {}, shape);
  };
  const auto ends = [&](Indices& of) {
    return TensorView::contiguous(of.data(), DType::kInt32, {}, {std::ssize(of)});
  };
  std::vector<float> out(64);
  const TensorView y = TensorView::contiguous(out.data(), DType::kFloat32, {}, {3, 2});
  GroupedLinearForward call{
      .x = matrix({3, 4}), .weight = matrix({2, 2, 4}), .offsets = ends(offsets), .y = y};
  const auto error = [&] { return error_of([&] { grouped_linear_forward(context, call); }); };
  EXPECT_EQ(error(), "no error");
  call.weight = matrix({3, 2, 4});
  EXPECT_EQ(error(), "grouped_linear: weight has shape (3, 2, 4), expected (2, 2, 4)");
  call.weight = matrix({2, 4});
  EXPECT_EQ(error(), "grouped_linear: weight has 2 dimensions, expected 3");
  call.weight = matrix({2, 2, 4});
  Indices falling{0, 2, 1};
  call.offsets = ends(falling);
  EXPECT_EQ(error(), "grouped_linear: offsets falls from 2 to 1, expected ascending numbers");
  Indices long_ones{0, 2, 4};
  call.offsets = ends(long_ones);
  EXPECT_EQ(error(), "grouped_linear: offsets ends with 4, expected at most 3 (the rows of y)");
  call.offsets = ends(offsets);
  call.x = matrix({2, 4});
  EXPECT_EQ(error(), "grouped_linear: x has shape (2, 4), expected (3, 4)");
  Indices rows{0, 1};
  call.x_rows = ends(rows);
  EXPECT_EQ(error(), "grouped_linear: x_rows has 2 elements, expected 3 (the rows of all groups)");
  call.x_rows = {};
  call.x = matrix({3, 4});
  call.y = matrix({3, 2});
  EXPECT_EQ(error(), "grouped_linear: y overlaps x, expected memory of its own");
  call.y = {};
  EXPECT_EQ(error(), "grouped_linear: y is missing");
  GroupedGatedLinearForward gated{.x = matrix({3, 4}),
                                  .weight = matrix({2, 2, 4}),
                                  .up_weight = matrix({2, 2, 4}),
                                  .offsets = ends(offsets),
                                  .activation = Pointwise::kGelu,
                                  .y = y};
  const auto gated_error = [&] {
    return error_of([&] { grouped_gated_linear_forward(context, gated); });
  };
  EXPECT_EQ(gated_error(), "grouped_gated_linear: activation is gelu, expected a gated one");
  gated.activation = Pointwise::kSwiGlu;
  gated.gate = y;
  EXPECT_EQ(gated_error(),
            "grouped_gated_linear: up is missing, expected it (gate and up are kept together)");
}

}  // namespace
}  // namespace transformer_kernels::testing
