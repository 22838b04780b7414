// SPDX-License-Identifier: MIT
// Steps of optimizers on CUDA beside those of the CPU, in long lists, and in CUDA graphs.
#ifdef TFK_WITH_CUDA

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>

#include "optimizer/step_list.h"
#include "transformer_kernels/optimizer/lion.h"

namespace transformer_kernels::testing {
namespace {

using Bytes = std::vector<std::vector<std::uint8_t>>;

const AdamWGroup kGroups[] = {{.lr = 1e-2, .beta2 = 0.99, .weight_decay = 0.1},
                              {.lr = 2e-2, .beta1 = 0.8, .eps = 1e-3, .maximize = true}};
const LionGroup kLionGroups[] = {{.lr = 1e-2, .weight_decay = 0.1}, {.lr = 2e-2, .maximize = true}};

class OptimizerOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_backend() == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  static cudaStream_t stream() {
    return static_cast<cudaStream_t>(cuda_backend()->context().stream);
  }

  // Returns what a step leaves of a list, whose random numbers are the same at each call. Operands
  // begin `offset` elements after an aligned address.
  template <class Run>
  Bytes left_by(Backend& backend, const ListKind& kind, const std::vector<std::int64_t>& counts,
                std::int64_t offset, Run run) const {
    random_engine() = before_;
    std::vector<std::unique_ptr<ListEntry>> entries;
    std::vector<OptimizerTensor> tensors;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto place = static_cast<int>(i);
      entries.push_back(std::make_unique<ListEntry>(backend, kind, counts[i], place % 2, place,
                                                    Layout{.offset = offset}));
      tensors.push_back(entries.back()->tensor());
    }
    run(backend.context(), tensors);
    Bytes bytes;
    for (const auto& entry : entries) {
      for (auto& of : entry->bytes()) bytes.push_back(std::move(of));
    }
    return bytes;
  }

  // At the first step all numbers that are the same for a tensor are exact.
  template <class Run>
  void check_same(const ListKind& kind, const std::vector<std::int64_t>& counts, Run run) const {
    for (const std::int64_t offset : {0, 1}) {
      SCOPED_TRACE(std::string(name_of(kind.param)) + " " + name_of(kind.state) + " offset " +
                   std::to_string(offset));
      EXPECT_EQ(left_by(*cuda_backend(), kind, counts, offset, run),
                left_by(*cpu_backend(), kind, counts, offset, run));
    }
  }

  const std::mt19937_64 before_ = random_engine();
};

const std::vector<std::int64_t> kCounts = {0, 1, 3, 255, 256, 257, 1023, 4096, 10001};

std::vector<ListKind> kinds(bool has_second) {
  std::vector<ListKind> all;
  for (const DType param : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const DType state : {param, wide_of(param), DType::kBFloat16}) {
      if (param == DType::kFloat64 && state != param) continue;
      for (const bool has_master : {false, true}) {
        if (has_master && size_of(param) != 2) continue;
        all.push_back(
            {.param = param, .state = state, .has_master = has_master, .has_second = has_second});
      }
    }
  }
  return all;
}

TEST_F(OptimizerOnCuda, AdamWLeavesTheBitsOfTheCpu) {
  for (const ListKind& kind : kinds(true)) {
    for (const bool randomly : {false, true}) {
      for (const bool has_largest : {false, true}) {
        ListKind of = kind;
        of.has_largest = has_largest;
        check_same(of, kCounts, [&](const Context& context, auto& tensors) {
          adamw_step(context, {.tensors = tensors,
                               .groups = kGroups,
                               .options = {.rounds_states_randomly = randomly,
                                           .rounds_params_randomly = randomly,
                                           .seed = 0xfedcba9876543210}});
        });
      }
    }
  }
}

TEST_F(OptimizerOnCuda, LionLeavesTheBitsOfTheCpu) {
  for (const ListKind& kind : kinds(false)) {
    check_same(kind, kCounts, [](const Context& context, auto& tensors) {
      lion_step(context, {.tensors = tensors,
                          .groups = kLionGroups,
                          .options = {.rounds_states_randomly = true, .seed = 5}});
    });
  }
}

// More tensors than a table holds, of which some have no elements.
TEST_F(OptimizerOnCuda, TakesLongLists) {
  for (const int tensors : {32, 33, 320, 321, 700}) {
    std::vector<std::int64_t> counts;
    for (int i = 0; i < tensors; ++i) counts.push_back(i % 5 == 4 ? 0 : 1 + i * 37 % 2300);
    check_same({}, counts, [](const Context& context, auto& list) {
      adamw_step(context, {.tensors = list, .groups = kGroups});
    });
  }
}

TEST_F(OptimizerOnCuda, ClipsLongListsAsTheCpuDoes) {
  std::vector<std::int64_t> counts;
  for (int i = 0; i < 400; ++i) counts.push_back(i * 53 % 9000);
  double norms[2];
  Backend* const both[] = {cpu_backend(), cuda_backend()};
  for (int i = 0; i < 2; ++i) {
    TestTensor norm(*both[i], DType::kFloat32, 1, 1);
    left_by(*both[i], {}, counts, 0, [&](const Context& context, auto& tensors) {
      adamw_step(context, {.tensors = tensors,
                           .groups = kGroups,
                           .options = {.max_norm = 1, .norm = norm.vector()}});
    });
    norms[i] = norm.values()[0];
  }
  EXPECT_NEAR(norms[1], norms[0], 1e-6 * norms[0]);
}

// Blocks of codes, with one that ends within a tensor.
TEST_F(OptimizerOnCuda, CodesAreThoseOfTheCpu) {
  constexpr std::int64_t kCount = 20 * kStateBlock + 77;
  constexpr std::int64_t kBlocks = 21;
  const ListKind kind{};
  std::vector<std::vector<std::uint8_t>> left[2];
  Backend* const both[] = {cpu_backend(), cuda_backend()};
  for (int i = 0; i < 2; ++i) {
    random_engine() = before_;
    ListEntry entry(*both[i], kind, kCount, 0, 3, {});
    std::vector<std::uint8_t> first(kCount), second(kCount);
    std::vector<float> scales(kBlocks), squares(kBlocks);
    std::uniform_int_distribution<int> any(0, 255);
    for (std::int64_t k = 0; k < kCount; ++k) {
      const int code = any(random_engine());
      first[k] = static_cast<std::uint8_t>(code == 128 ? 0 : code);
      second[k] = static_cast<std::uint8_t>(any(random_engine()));
    }
    for (std::int64_t k = 0; k < kBlocks; ++k) {
      scales[k] = 0.25f * static_cast<float>(k);
      squares[k] = 0.5f * static_cast<float>(k);
    }
    const DeviceArray firsts(*both[i], first.data(), kCount);
    const DeviceArray seconds(*both[i], second.data(), kCount);
    const DeviceArray scales_there(*both[i], scales.data(), kBlocks);
    const DeviceArray squares_there(*both[i], squares.data(), kBlocks);
    OptimizerTensor tensor = entry.tensor();
    tensor.exp_avg = firsts.vector(DType::kUInt8);
    tensor.exp_avg_sq = seconds.vector(DType::kUInt8);
    tensor.exp_avg_scales = scales_there.vector(DType::kFloat32);
    tensor.exp_avg_sq_scales = squares_there.vector(DType::kFloat32);
    adamw_step(both[i]->context(),
               {.tensors = {&tensor, 1}, .groups = kGroups, .options = {.seed = 99}});
    both[i]->download(first.data(), tensor.exp_avg.data, kCount);
    both[i]->download(second.data(), tensor.exp_avg_sq.data, kCount);
    both[i]->download(scales.data(), tensor.exp_avg_scales.data, kBlocks * sizeof(float));
    both[i]->download(squares.data(), tensor.exp_avg_sq_scales.data, kBlocks * sizeof(float));
    const auto bytes_of = [](const std::vector<float>& x) {
      const auto* const begin = reinterpret_cast<const std::uint8_t*>(x.data());
      return std::vector<std::uint8_t>(begin, begin + x.size() * sizeof(float));
    };
    left[i] = {first, second, bytes_of(scales), bytes_of(squares), entry.param.bytes()};
  }
  for (std::size_t k = 0; k < left[0].size(); ++k) EXPECT_EQ(left[0][k], left[1][k]) << k;
}

// A graph keeps the table, and counts steps at each launch.
TEST_F(OptimizerOnCuda, IsCapturedInAGraph) {
  constexpr int kSteps = 3;
  const std::vector<std::int64_t> counts = {5000, 3, 70001};
  const auto step = [](const Context& context, auto& tensors) {
    adamw_step(context, {.tensors = tensors, .groups = kGroups, .options = {.max_norm = 1}});
  };
  const Bytes eager = left_by(*cuda_backend(), {}, counts, 0, [&](const auto& context, auto& list) {
    for (int i = 0; i < kSteps; ++i) step(context, list);
  });
  const Bytes replayed =
      left_by(*cuda_backend(), {}, counts, 0, [&](const auto& context, auto& list) {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
        step(context, list);
        ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
        for (int i = 0; i < kSteps; ++i) {
          ASSERT_EQ(cudaGraphLaunch(replay, stream()), cudaSuccess);
        }
        ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
        cudaGraphExecDestroy(replay);
        cudaGraphDestroy(graph);
      });
  EXPECT_EQ(replayed, eager);
}

}  // namespace
}  // namespace transformer_kernels::testing

#endif
