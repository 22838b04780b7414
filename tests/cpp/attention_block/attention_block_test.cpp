// SPDX-License-Identifier: MIT
// The attention block by its formula, one step at a time, and its gradients by differences of the
// results, which know nothing of the ops inside.
#include "transformer_kernels/attention_block/attention_block.h"

#include <array>
#include <map>
#include <string>

#include "attention/attention_reference.h"
#include "backend_test.h"
#include "error_of.h"
#include "linear/product_reference.h"
#include "reference.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kTime = 5;
constexpr std::int64_t kChannels = 12;
constexpr std::int64_t kDim = 4;
constexpr std::int64_t kRows = kBatch * kTime;
constexpr std::array<std::uint64_t, 2> kAttentionSeed = {11, 3};
constexpr std::array<std::uint64_t, 2> kSeed = {7, 5};
constexpr double kEps = 1e-5;

struct BlockOptions {
  std::int64_t heads = 4;
  std::int64_t kv_heads = 4;
  bool causal = false;
  double attention_dropout = 0;
  double dropout = 0;
  BlockNorm norm = BlockNorm::kLayerNorm;
  bool full = true;  // with biases and parameters of the norm

  std::int64_t channels() const { return heads * kDim; }
  std::int64_t packed() const { return (heads + 2 * kv_heads) * kDim; }
};

TensorView by_batch(const TestTensor& tensor, std::int64_t columns) {
  return TensorView::contiguous(tensor.view().data, tensor.view().dtype, tensor.view().device,
                                {kBatch, kTime, columns});
}

// The block on float64, with memory for both passes.
struct Block {
  static constexpr DType kType = DType::kFloat64;

  Backend& backend;
  BlockOptions o;
  std::map<std::string, Values> given;  // what has a gradient

  Block(Backend& where, const BlockOptions& options) : backend(where), o(options) {
    add("x", kRows * kChannels);
    add("residual", kRows * kChannels);
    add("qkv_weight", o.packed() * kChannels);
    add("out_weight", kChannels * o.channels());
    if (!o.full) return;
    add("qkv_bias", o.packed());
    add("out_bias", kChannels);
    add("norm_weight", kChannels);
    add("norm_bias", kChannels);
  }
  void add(const char* name, std::int64_t count) {
    given[name] = random_normal(count, kType, 0, 0.5);
  }
  const Values& or_of(const char* name, const Values& absent) const {
    return o.full ? given.at(name) : absent;
  }
};

// Tensors of one call.
struct BlockRun {
  const Block& block;
  std::map<std::string, TestTensor> tensors;
  DeviceArray<std::uint64_t> attention_seed, seed;

  explicit BlockRun(const Block& of)
      : block(of),
        attention_seed(of.backend, kAttentionSeed.data(), 2),
        seed(of.backend, kSeed.data(), 2) {
    const BlockOptions& o = of.o;
    for (const auto& [name, values] : of.given) {
      const auto [rows, columns] = sizes_of(name);
      tensors.try_emplace(name, of.backend, Block::kType, rows, columns, values);
      make("d" + name, rows, columns);
    }
    for (const char* name : {"projected", "y", "sum", "dprojected"}) make(name, kRows, kChannels);
    for (const char* name : {"qkv", "dqkv"}) make(name, kRows, o.packed());
    for (const char* name : {"heads", "dheads"}) make(name, kRows, o.channels());
    for (const char* name : {"lse", "lse_rest"}) make(name, 1, kRows * o.heads);
    for (const char* name : {"mean", "rstd"}) make(name, 1, kRows);
  }

  void make(const std::string& name, std::int64_t rows, std::int64_t columns) {
    tensors.try_emplace(name, block.backend, Block::kType, rows, columns);
  }
  Matrix sizes_of(const std::string& name) const {
    if (name == "qkv_weight") return {block.o.packed(), kChannels};
    if (name == "out_weight") return {kChannels, block.o.channels()};
    if (name == "x" || name == "residual") return {kRows, kChannels};
    return {1, static_cast<std::int64_t>(block.given.at(name).size())};
  }
  TensorView rows(const char* name) {
    return by_batch(tensors.at(name), tensors.at(name).view().sizes[1]);
  }
  TensorView matrix(const char* name) { return tensors.at(name).view(); }
  TensorView vector(const std::string& name) {
    const auto found = tensors.find(name);
    return found == tensors.end() ? TensorView{} : found->second.vector();
  }
  TensorView statistic(const char* name) {
    TensorView view = tensors.at(name).vector();
    return TensorView::contiguous(view.data, view.dtype, view.device,
                                  {kBatch, block.o.heads, kTime});
  }
  Values values(const std::string& name) { return tensors.at(name).values(); }
  bool is_layer_norm() const { return block.o.norm == BlockNorm::kLayerNorm; }

  AttentionBlockInputs inputs() {
    const BlockOptions& o = block.o;
    return {.x = rows("x"),
            .qkv_weight = matrix("qkv_weight"),
            .qkv_bias = vector("qkv_bias"),
            .out_weight = matrix("out_weight"),
            .out_bias = vector("out_bias"),
            .norm_weight = vector("norm_weight"),
            .norm_bias = vector("norm_bias"),
            .attention_seed = attention_seed.vector(DType::kInt64),
            .seed = seed.vector(DType::kInt64),
            .num_heads = o.heads,
            .num_kv_heads = o.kv_heads,
            .causal = o.causal,
            .attention_dropout = o.attention_dropout,
            .dropout = o.dropout,
            .norm = o.norm,
            .eps = kEps};
  }
  AttentionBlockForward forward_arguments() {
    return {.inputs = inputs(),
            .residual = rows("residual"),
            .qkv = rows("qkv"),
            .heads = rows("heads"),
            .projected = rows("projected"),
            .lse = statistic("lse"),
            .lse_rest = statistic("lse_rest"),
            .mean = is_layer_norm() ? vector("mean") : TensorView{},
            .rstd = vector("rstd"),
            .y = rows("y"),
            .sum = rows("sum")};
  }
  void forward() { attention_block_forward(block.backend.context(), forward_arguments()); }

  void backward(const Values& dy, const Values& dsum) {
    const TestTensor given_dy(block.backend, Block::kType, kRows, kChannels, dy);
    const TestTensor given_dsum(block.backend, Block::kType, kRows, kChannels, dsum);
    attention_block_backward(block.backend.context(),
                             {.inputs = inputs(),
                              .dy = by_batch(given_dy, kChannels),
                              .dsum = by_batch(given_dsum, kChannels),
                              .qkv = rows("qkv"),
                              .heads = rows("heads"),
                              .lse = statistic("lse"),
                              .lse_rest = statistic("lse_rest"),
                              .sum = rows("sum"),
                              .mean = is_layer_norm() ? vector("mean") : TensorView{},
                              .rstd = vector("rstd"),
                              .dprojected = rows("dprojected"),
                              .dheads = rows("dheads"),
                              .dqkv = rows("dqkv"),
                              .dx = rows("dx"),
                              .dresidual = rows("dresidual"),
                              .dqkv_weight = matrix("dqkv_weight"),
                              .dqkv_bias = vector("dqkv_bias"),
                              .dout_weight = matrix("dout_weight"),
                              .dout_bias = vector("dout_bias"),
                              .dnorm_weight = vector("dnorm_weight"),
                              .dnorm_bias = vector("dnorm_bias")});
  }
};

Values columns_of(const Values& rows, std::int64_t width, std::int64_t first, std::int64_t count) {
  Values part;
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto begin = rows.begin() + r * width + first;
    part.insert(part.end(), begin, begin + count);
  }
  return part;
}

struct Expected {
  Values y, sum;
};

// The formula of the header, by the references of the ops inside.
Expected expected_of(const Block& block) {
  const BlockOptions& o = block.o;
  const std::int64_t packed = o.packed();
  const std::int64_t kv = o.kv_heads * kDim;
  const Values qkv =
      product(kRows, packed, kChannels, block.given.at("x"), {kChannels, 1},
              block.given.at("qkv_weight"), {kChannels, 1}, block.or_of("qkv_bias", {}))
          .sum;
  AttentionOperands attention;
  attention.s = {kBatch, kTime, kTime, o.heads, o.kv_heads, kDim, kDim};
  attention.n.scale = 1 / std::sqrt(static_cast<double>(kDim));
  attention.n.window_right = o.causal ? 0 : -1;
  attention.n.dropout = o.attention_dropout;
  attention.n.seed = kAttentionSeed[0];
  attention.n.offset = kAttentionSeed[1];
  attention.q = columns_of(qkv, packed, 0, o.channels());
  attention.k = columns_of(qkv, packed, o.channels(), kv);
  attention.v = columns_of(qkv, packed, o.channels() + kv, kv);
  const Values heads = attention_reference(attention).out;
  Values sum = product(kRows, kChannels, o.channels(), heads, {o.channels(), 1},
                       block.given.at("out_weight"), {o.channels(), 1}, block.or_of("out_bias", {}))
                   .sum;
  const std::int64_t below = std::lround(o.dropout * 65536);
  for (std::size_t e = 0; e < sum.size(); ++e) {
    const bool dropped = random_number(kSeed[0], kSeed[1], e) < below;
    const double kept = sum[e] * 65536.0 / static_cast<double>(65536 - below);
    sum[e] = (dropped ? 0 : kept) + block.given.at("residual")[e];
  }
  const Values y = norm_reference({kRows, kChannels}, o.norm == BlockNorm::kLayerNorm, sum,
                                  block.or_of("norm_weight", Values(kChannels, 1.0)),
                                  block.or_of("norm_bias", Values(kChannels, 0.0)), kEps)
                       .y;
  return {y, sum};
}

double dot(const Values& a, const Values& b) {
  long double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(total);
}

// The slope of the results along a direction of one tensor, by a central difference.
double slope(Block block, const std::string& name, const Values& direction, const Values& dy,
             const Values& dsum) {
  constexpr double kStep = 1e-5;
  double ends[2];
  for (int end : {0, 1}) {
    Block moved = block;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      moved.given[name][i] += (end ? kStep : -kStep) * direction[i];
    }
    BlockRun run(moved);
    run.forward();
    ends[end] = dot(run.values("y"), dy) + dot(run.values("sum"), dsum);
  }
  return (ends[1] - ends[0]) / (2 * kStep);
}

void check(Backend& backend, const BlockOptions& options) {
  const Block block(backend, options);
  BlockRun run(block);
  run.forward();
  const Expected expected = expected_of(block);
  const Values y = run.values("y");
  const Values sum = run.values("sum");
  for (std::size_t i = 0; i < y.size(); ++i) {
    ASSERT_NEAR(y[i], expected.y[i], 1e-11) << "y " << i;
    ASSERT_NEAR(sum[i], expected.sum[i], 1e-12) << "sum " << i;
  }
  const Values dy = random_normal(kRows * kChannels, Block::kType);
  const Values dsum = random_normal(kRows * kChannels, Block::kType);
  run.backward(dy, dsum);
  for (const auto& [name, values] : block.given) {
    const Values direction = random_normal(static_cast<std::int64_t>(values.size()), Block::kType);
    const double expected_slope = slope(block, name, direction, dy, dsum);
    EXPECT_NEAR(dot(run.values("d" + name), direction), expected_slope,
                1e-6 * (1 + std::abs(expected_slope)))
        << name;
  }
  for (auto& [name, tensor] : run.tensors) EXPECT_TRUE(tensor.surroundings_intact()) << name;
}

class AttentionBlock : public ::testing::TestWithParam<Backend*> {};

INSTANTIATE_TEST_SUITE_P(on, AttentionBlock, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return std::string(info.param->name()); });

TEST_P(AttentionBlock, all_heads_see_all_tokens) { check(*GetParam(), {}); }

TEST_P(AttentionBlock, causal_with_dropout) {
  check(*GetParam(), {.causal = true, .attention_dropout = 0.25, .dropout = 0.5});
}

TEST_P(AttentionBlock, shared_heads_without_parameters) {
  check(*GetParam(), {.kv_heads = 2, .causal = true, .norm = BlockNorm::kRmsNorm, .full = false});
}

TEST_P(AttentionBlock, refuses_before_it_writes) {
  const Block block(*GetParam(), {});
  BlockRun run(block);
  const Context context = GetParam()->context();
  const auto refused = [&](auto change) {
    AttentionBlockForward a = run.forward_arguments();
    change(a);
    return error_of([&] { attention_block_forward(context, a); });
  };
  using Arguments = AttentionBlockForward;
  EXPECT_EQ(refused([](Arguments& a) { a.inputs.num_kv_heads = 3; }),
            "attention_block: num_kv_heads is 3, expected a divisor of num_heads (4)");
  EXPECT_EQ(refused([](Arguments& a) { a.qkv.rank = 2; }),
            "attention_block: qkv has 2 dimensions, expected 3 (batch, time, channels)");
  EXPECT_EQ(refused([](Arguments& a) { a.inputs.num_heads = a.inputs.num_kv_heads = 5; }),
            "attention_block: qkv has 48 columns, expected a multiple of 15 (the heads of q, k and"
            " v)");
  EXPECT_EQ(refused([](Arguments& a) { a.y = {}; }).substr(0, 5), "bias_");
  EXPECT_TRUE(run.tensors.at("qkv").untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
