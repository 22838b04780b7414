// SPDX-License-Identifier: MIT
// Attention in a thread that has made no CUDA call: it has no current context, like the threads of
// an autograd engine whose memory comes from a cache.
#ifdef TFK_WITH_CUDA

#include <gtest/gtest.h>

#include <exception>
#include <thread>

#include "attention/attention_cases.h"

namespace transformer_kernels::testing {
namespace {

// Scratch memory that is there before the call.
class PreparedWorkspace {
 public:
  explicit PreparedWorkspace(Backend& backend)
      : backend_(backend),
        memory_(static_cast<char*>(backend.allocate(kBytes))) {}
  ~PreparedWorkspace() { backend_.release(memory_); }
  PreparedWorkspace(const PreparedWorkspace&) = delete;
  PreparedWorkspace& operator=(const PreparedWorkspace&) = delete;

  Context context() {
    Context context = backend_.context();
    context.workspace = {&allocate, nullptr, this};
    return context;
  }

 private:
  static constexpr std::size_t kBytes = 16 << 20;
  static constexpr std::size_t kAlignment = 512;

  static void* allocate(void* user, std::size_t bytes) {
    PreparedWorkspace& self = *static_cast<PreparedWorkspace*>(user);
    const std::size_t begin = self.used_;
    self.used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return self.used_ <= kBytes ? self.memory_ + begin : nullptr;
  }

  Backend& backend_;
  char* memory_;
  std::size_t used_ = 0;
};

template <class Body>
void in_a_fresh_thread(Body&& body) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

class AttentionThreads : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_backend() == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  static constexpr AttentionShape kShape{.batch = 1,
                                         .queries = 130,
                                         .keys = 70,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .dim = 64,
                                         .value_dim = 64};
};

TEST_P(AttentionThreads, forward_is_the_same_in_a_fresh_thread) {
  Backend& backend = *cuda_backend();
  AttentionRun run(backend, GetParam(), kShape, {});
  attention_forward(backend.context(), run.arguments());
  const Values expected = run.out.values();
  PreparedWorkspace workspace(backend);
  in_a_fresh_thread([&] { attention_forward(workspace.context(), run.arguments()); });
  EXPECT_EQ(run.out.values(), expected);
}

TEST_P(AttentionThreads, backward_is_the_same_in_a_fresh_thread) {
  Backend& backend = *cuda_backend();
  AttentionBackwardRun run(backend, GetParam(), kShape, {});
  attention_backward(backend.context(), run.arguments());
  const Values dq = run.dq.values(), dk = run.dk.values(), dv = run.dv.values();
  PreparedWorkspace workspace(backend);
  in_a_fresh_thread([&] { attention_backward(workspace.context(), run.arguments()); });
  EXPECT_EQ(run.dq.values(), dq);
  EXPECT_EQ(run.dk.values(), dk);
  EXPECT_EQ(run.dv.values(), dv);
}

INSTANTIATE_TEST_SUITE_P(cuda, AttentionThreads,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace transformer_kernels::testing

#endif
