// SPDX-License-Identifier: MIT
#include <array>
#include <tuple>
#include <vector>

#include "backend_test.h"
#include "mlp/mlp_run.h"
#include "mlp/parts.h"
#include "parallel_hooks.h"

namespace transformer_kernels::testing {
namespace {

class MlpOp : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(on, MlpOp, all_backends_and_dtypes(), name_of_backend_test);

struct MlpPass {
  int level;
  std::int64_t parts;
  bool over_z;
};
constexpr MlpPass kPasses[] = {{0, 0, false}, {0, 0, true},  {0, 2, false},
                               {1, 0, false}, {1, 0, true},  {1, 2, true},
                               {1, 3, false}, {2, 0, false}, {2, 3, true}};

void check_all(Backend& backend, DType dtype, const MlpOptions& options) {
  SCOPED_TRACE(text_of(options));
  MlpRun run(backend, dtype, options);
  const MlpExpected expected(run);
  for (const auto& [level, parts, over_z] : kPasses) {
    SCOPED_TRACE("level " + std::to_string(level) + ", " + std::to_string(parts) + " parts" +
                 (over_z ? ", over z" : ""));
    run.clear();
    run.forward(level);
    expected.check(run, "y");
    MlpBackward arguments = run.backward_arguments(level);
    arguments.parts = parts;
    arguments.overwrite_z = over_z;
    run.backward(arguments);
    expected.check_gradients(run, parts);
    EXPECT_TRUE(run.surroundings_intact());
  }
}

constexpr Pointwise kGates[] = {Pointwise::kSwiGlu, Pointwise::kGeGlu, Pointwise::kGeGluTanh,
                                Pointwise::kReGlu};
constexpr Pointwise kPlain[] = {Pointwise::kGelu, Pointwise::kSilu, Pointwise::kReluSquared};

// Aligned tiles, few rows, odd rows that no tensor map can read, and layers of nothing.
constexpr std::pair<MlpSizes, Layout> kSizes[] = {
    {{33, 40, 144, 24}, {}},     {{130, 64, 200, 72}, {}}, {{5, 64, 136, 40}, {}},
    {{37, 51, 133, 45}, {1, 3}}, {{0, 8, 136, 8}, {}},     {{4, 0, 72, 8}, {}},
    {{4, 8, 0, 8}, {}},          {{4, 8, 72, 0}, {}},      {{1, 24, 72, 8}, {}}};

TEST_P(MlpOp, both_passes) {
  int number = 0;
  for (const auto& [sizes, layout] : kSizes) {
    for (const bool biases : {false, true}) {
      check_all(
          backend(), dtype(),
          {.sizes = sizes, .activation = kPlain[number % 3], .biases = biases, .layout = layout});
      check_all(backend(), dtype(),
                {.sizes = sizes,
                 .activation = kGates[number % 4],
                 .gated = true,
                 .biases = biases,
                 .layout = layout});
      ++number;
    }
  }
}

// Both ops with options of the rest; what is said of the activation is ignored.
void check_both_ops(Backend& backend, DType dtype, MlpOptions options) {
  check_all(backend, dtype, options);
  options.gated = true;
  options.activation = Pointwise::kSwiGlu;
  check_all(backend, dtype, options);
}

TEST_P(MlpOp, one_layer) {
  for (const bool biases : {false, true}) {
    check_both_ops(backend(), dtype(), {.biases = biases, .down = false});
  }
}

TEST_P(MlpOp, weights_by_columns) { check_both_ops(backend(), dtype(), {.by_columns = true}); }

TEST_P(MlpOp, wide_biases_and_gradients) { check_both_ops(backend(), dtype(), {.wide = true}); }

TEST_P(MlpOp, gate_and_up_in_one) {
  for (const bool biases : {false, true}) {
    check_all(backend(), dtype(),
              {.activation = Pointwise::kSwiGlu, .gated = true, .biases = biases, .packed = true});
  }
  check_all(backend(), dtype(),
            {.sizes = {37, 51, 133, 45},
             .activation = Pointwise::kGeGlu,
             .gated = true,
             .packed = true,
             .layout = {1, 3}});
}

TEST_P(MlpOp, gradients_are_added_to_what_is_there) {
  for (const auto& [gated, wide] : {std::pair{false, false}, std::pair{false, true},
                                    std::pair{true, false}, std::pair{true, true}}) {
    for (const auto& [down, parts] :
         {std::pair{true, 1}, std::pair{true, 3}, std::pair{false, 3}}) {
      MlpRun run(backend(), dtype(),
                 {.activation = gated ? Pointwise::kSwiGlu : Pointwise::kGelu,
                  .gated = gated,
                  .down = down,
                  .wide = wide});
      SCOPED_TRACE(text_of(run.options()) + ", " + std::to_string(parts) + " parts");
      const MlpExpected expected(run);
      run.forward(1);
      MlpBackward arguments = run.backward_arguments(1);
      arguments.accumulate_dweight = arguments.accumulate_dbias = true;
      arguments.parts = parts;
      run.backward(arguments);
      expected.check_gradients(run, parts, MlpRun::kBefore);
    }
  }
}

TensorView& member(MlpBackward& a, const std::string& name) {
  if (name == "dx") return a.dx;
  if (name == "dweight") return a.dweight;
  if (name == "dup_weight") return a.dup_weight;
  if (name == "dbias") return a.dbias;
  if (name == "dup_bias") return a.dup_bias;
  return name == "ddown_weight" ? a.ddown_weight : a.ddown_bias;
}

TEST_P(MlpOp, one_gradient_alone) {
  for (const bool gated : {false, true}) {
    MlpRun run(backend(), dtype(),
               {.activation = gated ? Pointwise::kGeGlu : Pointwise::kSilu, .gated = gated});
    const MlpExpected expected(run);
    for (const int level : {0, 1, 2}) {
      for (const std::string name : kMlpGradients) {
        if (!run.view(name).defined()) continue;
        SCOPED_TRACE(text_of(run.options()) + ", level " + std::to_string(level));
        run.clear();
        run.forward(level);
        MlpBackward arguments = run.backward_arguments(level);
        for (const char* other : kMlpGradients) {
          if (other != name) member(arguments, other) = {};
        }
        arguments.parts = 2;
        run.backward(arguments);
        if (name == "dx") {
          expected.check_dx(run, arguments.parts);
        } else {
          expected.check(run, name);
        }
      }
    }
  }
}

TEST_P(MlpOp, any_threads_give_the_same_bits) {
  MlpRun run(backend(), dtype(), {.activation = Pointwise::kSwiGlu, .gated = true});
  std::vector<Values> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    run.forward(context, run.forward_arguments(1));
    run.backward(context, run.backward_arguments(1));
    const std::vector<Values> found = {run.values("y"), run.values("dx"), run.values("dweight"),
                                       run.values("dup_bias"), run.values("ddown_weight")};
    if (first.empty()) first = found;
    EXPECT_EQ(found, first);
  }
}

// ---- memory -------------------------------------------------------------------------------------

// A workspace that counts the bytes that are held at once.
class CountedWorkspace {
 public:
  explicit CountedWorkspace(Backend& backend) : backend_(backend) {}

  Context context() {
    Context context = backend_.context();
    context.workspace = {allocate, release, this};
    return context;
  }
  std::int64_t most() const { return most_; }

 private:
  static void* allocate(void* user, std::size_t bytes) {
    auto& self = *static_cast<CountedWorkspace*>(user);
    if (bytes == 0) return nullptr;
    void* const memory = self.backend_.allocate(bytes);
    self.sizes_[memory] = static_cast<std::int64_t>(bytes);
    self.held_ += self.sizes_[memory];
    self.most_ = std::max(self.most_, self.held_);
    return memory;
  }
  static void release(void* user, void* memory) {
    auto& self = *static_cast<CountedWorkspace*>(user);
    if (memory == nullptr) return;
    self.held_ -= self.sizes_.at(memory);
    self.sizes_.erase(memory);
    self.backend_.release(memory);
  }

  Backend& backend_;
  std::map<void*, std::int64_t> sizes_;
  std::int64_t held_ = 0;
  std::int64_t most_ = 0;
};

TEST_P(MlpOp, parts_and_an_overwritten_z_take_less_memory) {
  constexpr MlpSizes kLong{600, 16, 1024, 16};
  const std::int64_t layer = kLong.rows * kLong.hidden * size_of(dtype());
  for (const bool gated : {false, true}) {
    MlpRun run(backend(), dtype(),
               {.sizes = kLong,
                .activation = gated ? Pointwise::kSwiGlu : Pointwise::kGelu,
                .gated = gated,
                .biases = false});
    run.forward(1);
    const auto most = [&](std::int64_t parts, bool over_z) {
      MlpBackward arguments = run.backward_arguments(1);
      arguments.parts = parts;
      arguments.overwrite_z = over_z;
      CountedWorkspace workspace(backend());
      run.backward(workspace.context(), arguments);
      return workspace.most();
    };
    const std::int64_t gradients = gated ? 2 : 1;
    const std::int64_t whole = most(1, false);
    EXPECT_GE(whole, (gradients + 1) * layer);
    EXPECT_EQ(most(1, true), whole - gradients * layer);
    // Engines take memory too: on the CPU for operands in their order, as much as these have.
    if (is_on_cuda(backend())) continue;
    const std::int64_t in_parts = most(4, false);
    EXPECT_LE(in_parts, (gradients + 1) * layer / 4 + (whole - (gradients + 1) * layer));
    EXPECT_EQ(most(4, true), in_parts - gradients * layer / 4);
  }
}

TEST(PartsOfMlps, are_of_large_problems_alone) {
  constexpr auto kCpu = DeviceType::kCpu, kCuda = DeviceType::kCuda;
  EXPECT_EQ(features_of_part(kCpu, 1024, 4096, 4, 0), 1024);
  EXPECT_EQ(features_of_part(kCpu, 1023, 4096, 4, 0), 4096);  // bytes are few
  EXPECT_EQ(features_of_part(kCpu, 4096, 3000, 4, 0), 768);   // in steps of 64
  EXPECT_EQ(features_of_part(kCuda, 16384, 8192, 2, 0), 4096);
  EXPECT_EQ(features_of_part(kCuda, 16383, 8192, 2, 0), 8192);
  EXPECT_EQ(features_of_part(kCuda, 65536, 8191, 2, 0), 8191);  // features are few
  EXPECT_EQ(features_of_part(kCuda, 1, 300, 2, 3), 128);        // as many as are asked for
  EXPECT_EQ(features_of_part(kCpu, 1, 0, 4, 0), 0);
}

}  // namespace
}  // namespace transformer_kernels::testing
