// SPDX-License-Identifier: MIT
// Attention over a cache on CUDA, with both engines. What lies behind a sequence's length is NaN.
#include <functional>

#include "attention/decode/cache_cases.h"
#include "attention/decode/cache_reference.h"
#include "attention/decode/common/split.h"

namespace transformer_kernels::testing {
namespace {

Backend* cuda() {
  for (Backend* backend : backends()) {
    if (is_on_cuda(*backend)) return backend;
  }
  return nullptr;
}

// Copies of a run's tensors in memory of the device, which come back after the call.
class OnDevice {
 public:
  OnDevice(Backend& backend, CacheRun& run) : backend_(backend), a_(run.arguments()) {
    for (const auto& [tensor, view] : tensors(run, a_)) {
      if (!view->defined()) continue;
      void* const memory = backend.allocate(tensor->bytes().size());
      backend.upload(memory, tensor->bytes().data(), tensor->bytes().size());
      view->data = memory;
      view->device = backend.context().device;
      copies_.push_back({tensor, memory});
    }
  }
  ~OnDevice() {
    for (const Copy& copy : copies_) backend_.release(copy.memory);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void call() {
    attention_with_kv_cache(backend_.context(), a_);
    for (const Copy& copy : copies_) {
      backend_.download(copy.tensor->bytes().data(), copy.memory, copy.tensor->bytes().size());
    }
  }
  AttentionWithKvCache& arguments() { return a_; }

 private:
  struct Copy {
    CacheTensor* tensor;
    void* memory;
  };
  static std::vector<std::pair<CacheTensor*, TensorView*>> tensors(CacheRun& run,
                                                                   AttentionWithKvCache& a) {
    return {{&run.q, &a.q},
            {&run.k_cache, &a.k_cache},
            {&run.v_cache, &a.v_cache},
            {&run.k, &a.k},
            {&run.v, &a.v},
            {&run.lengths, &a.lengths},
            {&run.table, &a.page_table},
            {&run.cos, &a.cos},
            {&run.sin, &a.sin},
            {&run.k_scale, &a.k_scale},
            {&run.v_scale, &a.v_scale},
            {&run.slopes, &a.alibi_slopes},
            {&run.sinks, &a.sinks},
            {&run.out, &a.out},
            {&run.lse, &a.lse}};
  }

  Backend& backend_;
  AttentionWithKvCache a_;
  std::vector<Copy> copies_;
};

class AttentionWithCacheOnCuda : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda() == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  static DType dtype() { return GetParam(); }

  static void run_on_device(CacheRun& run) { OnDevice(*cuda(), run).call(); }

  // Tensor cores take weights, and q after a rotation, in the dtype of q: as much as `rough` units
  // of the largest term.
  static void expect_near(const Values& got, const Values& expected, double largest, double rough) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == expected[i]) continue;
      const double bound = tolerance(dtype(), expected[i], largest) +
                           (dtype() == DType::kFloat32 ? 0 : rough * unit_roundoff(dtype()));
      EXPECT_LE(std::abs(got[i] - expected[i]), bound * (1 + 1e-6)) << i << ": " << got[i];
    }
  }

  static void check(const CacheCase& c) {
    SCOPED_TRACE("H" + std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " T" +
                 std::to_string(c.queries) + " + " + std::to_string(c.added) + " D" +
                 std::to_string(c.dim) + "/" + std::to_string(c.value_dim) + " page " +
                 std::to_string(c.page) + " first length " + std::to_string(c.lengths[0]));
    CacheRun run(dtype(), c);
    run_on_device(run);
    check_new_tokens(run, run.k, run.k_cache, run.k_scale, dtype(), true);
    check_new_tokens(run, run.v, run.v_cache, run.v_scale, dtype(), false);
    const ExpectedOfCache expected = expected_of(run);
    expect_near(run.out.values(), expected.out, expected.largest, 2 * expected.largest);
    const Values lse = run.lse.values();
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (lse[i] == expected.lse[i]) continue;
      const bool rounds = c.frequencies != 0 && dtype() != DType::kFloat32;
      const double bound = 2e-5 + (rounds ? 8 * unit_roundoff(dtype()) : 0);
      EXPECT_LE(std::abs(lse[i] - expected.lse[i]), bound) << i << ": " << lse[i];
    }
  }
};

TEST_P(AttentionWithCacheOnCuda, contiguous_and_paged) {
  for (std::int64_t page : {0, 16, 48, 256}) {
    for (bool heads_first : {false, true}) {
      check({.lengths = {0, 1, 15, 16, 17, 63, 64, 65},
             .page = page,
             .capacity = 81,
             .heads_first = heads_first});
    }
  }
}

TEST_P(AttentionWithCacheOnCuda, groups_and_rows) {
  for (const CacheCase& c : cases_of_groups_and_rows()) check(c);
}

TEST_P(AttentionWithCacheOnCuda, dims) {
  for (std::int64_t dim : {1, 7, 8, 33, 64, 72, 80, 100, 128, 192, 256}) {
    check({.lengths = {3, 70}, .queries = 2, .added = 2, .dim = dim, .capacity = 80});
    check({.lengths = {3, 70},
           .queries = 5,
           .added = 2,
           .dim = 16,
           .value_dim = dim,
           .capacity = 80});
    check({.lengths = {70, 130}, .dim = dim, .value_dim = dim, .page = 64, .capacity = 192});
  }
}

TEST_P(AttentionWithCacheOnCuda, long_sequences_in_chunks) {
  check({.lengths = {700, 2, 255, 256}, .heads = 2, .kv_heads = 1, .capacity = 701});
  check({.lengths = {1300, 30},
         .queries = 4,
         .added = 4,
         .dim = 128,
         .value_dim = 128,
         .page = 64,
         .capacity = 1344});
  check({.lengths = {600, 0}, .queries = 40, .added = 40, .page = 64, .capacity = 640});
  check({.lengths = {1000, 3},
         .dim = 64,
         .value_dim = 80,
         .page = 16,
         .capacity = 1008,
         .left = 700});
}

TEST_P(AttentionWithCacheOnCuda, queries_and_new_tokens_differ) {
  for (const CacheCase& c : cases_of_unequal_queries_and_new_tokens()) check(c);
}

TEST_P(AttentionWithCacheOnCuda, rotations) {
  for (const CacheCase& c : cases_of_rotations()) check(c);
}

TEST_P(AttentionWithCacheOnCuda, features) {
  for (const CacheCase& c : cases_of_features()) check(c);
}

TEST_P(AttentionWithCacheOnCuda, int8) {
  for (std::int64_t page : {0, 16}) {
    for (std::int64_t dim : {7, 16, 64, 128, 256}) {
      for (std::int64_t queries : {2, 6}) {
        check({.lengths = {0, 1, 64, 290},
               .queries = queries,
               .added = 2,
               .dim = dim,
               .value_dim = dim,
               .page = page,
               .capacity = 304,
               .heads_first = page == 0,
               .int8 = true,
               .frequencies = dim / 2});
      }
    }
  }
}

// Entries that are no pages, and lengths that do not fit, hide tokens and nothing else.
TEST_P(AttentionWithCacheOnCuda, pages_that_do_not_exist_are_not_seen) {
  CacheRun run(dtype(), {.lengths = {64, 900}, .page = 16, .capacity = 912});
  CacheRun longer(dtype(), run.c);
  auto* const table = static_cast<std::int32_t*>(run.table.view().data);
  const std::int64_t columns = run.c.columns();
  table[0] = -1;                 // of sequence 0: tokens 0 to 15
  table[columns + 20] = 100000;  // of sequence 1: tokens 320 to 335
  run_on_device(run);
  for (double x : run.out.values()) EXPECT_TRUE(std::isfinite(x));
  for (std::int32_t bad : {-1, 1 << 30, -(1 << 30)}) {
    const std::vector<char> before = longer.k_cache.bytes();
    static_cast<std::int32_t*>(longer.lengths.view().data)[0] = bad;
    static_cast<std::int32_t*>(longer.lengths.view().data)[1] = bad;
    if (bad > 0) std::fill_n(static_cast<std::int32_t*>(longer.table.view().data), columns * 2, -1);
    run_on_device(longer);
    EXPECT_EQ(before, longer.k_cache.bytes());
  }
}

// A sequence alone gives the bits that it gives in a batch, in each of a hundred runs.
TEST_P(AttentionWithCacheOnCuda, bits_repeat_and_do_not_depend_on_neighbours) {
  for (std::int64_t dim : {33, 64, 128}) {
    const CacheCase c{.lengths = {40, 1700, 3},
                      .queries = 2,
                      .added = 2,
                      .dim = dim,
                      .value_dim = dim,
                      .page = 16,
                      .capacity = 1712};
    CacheRun run(dtype(), c);
    OnDevice device(*cuda(), run);
    device.call();
    const std::vector<char> out = run.out.bytes();
    const std::vector<char> lse = run.lse.bytes();
    for (int i = 0; i < 100; ++i) {
      device.call();
      EXPECT_EQ(out, run.out.bytes());
      EXPECT_EQ(lse, run.lse.bytes());
    }
    AttentionWithKvCache& a = device.arguments();
    const auto one = [&](TensorView& view, std::int64_t b) {
      view.data = static_cast<char*>(view.data) + b * view.strides[0] * size_of(view.dtype);
      view.sizes[0] = 1;
    };
    for (TensorView* view : {&a.q, &a.k, &a.v, &a.lengths, &a.page_table, &a.out, &a.lse}) {
      one(*view, 1);
    }
    device.call();
    EXPECT_EQ(out, run.out.bytes());
    EXPECT_EQ(lse, run.lse.bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionWithCacheOnCuda,
                         ::testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16),
                         [](const auto& info) { return name_of(info.param); });

// ---------------------------------------------------------------------------- chunks

TEST(CacheChunksOnCuda, cover_the_keys_once) {
  for (int most : {1, 3, 16, 48, 64}) {
    for (int begin : {0, 1, 15, 16, 100, 1000}) {
      for (int keys : {0, 1, 15, 16, 255, 256, 257, 1000, 4096, 100003}) {
        const cuda::KeyChunks chunks = cuda::cut_keys({begin, begin + keys}, most);
        EXPECT_EQ(chunks.keys.begin % cuda::kCacheUnit, 0);
        EXPECT_LE(chunks.keys.begin, begin);
        EXPECT_LE(chunks.count, most);
        EXPECT_LE(chunks.count, cuda::chunks_of_keys(keys + cuda::kCacheUnit - 1, most));
        int at = chunks.keys.begin;
        for (int c = 0; c < chunks.count; ++c) {
          EXPECT_EQ(chunks[c].begin, at);
          EXPECT_EQ(at % cuda::kCacheUnit, 0);
          if (keys > 0) {
            EXPECT_GT(chunks[c].end, at);
          }
          at = chunks[c].end;
        }
        EXPECT_EQ(at, keys > 0 ? begin + keys : chunks.keys.begin + begin % cuda::kCacheUnit);
      }
    }
  }
}

TEST(CacheChunksOnCuda, fill_a_device_with_one_long_sequence_and_no_more) {
  KvCacheProblem p{};
  p.batch = 1;
  p.queries = 1;
  p.heads = 32;
  p.kv_heads = 8;
  p.page_size = 1 << 20;
  p.table_columns = 1;
  p.window_left = p.window_right = -1;
  EXPECT_EQ(cuda::grid_of(p, 8).ctas(p), 384);
  p.page_size = 1024;
  EXPECT_EQ(cuda::grid_of(p, 8).chunks, 5);  // of 1024 keys that begin within a unit
  p.window_left = 100;
  p.window_right = 0;
  EXPECT_EQ(cuda::grid_of(p, 8).chunks, 1);
}

}  // namespace
}  // namespace transformer_kernels::testing
