// SPDX-License-Identifier: MIT
#include "transformer_kernels/attention/decode.h"

#include <functional>

#include "attention/decode/cache_cases.h"
#include "attention/decode/cache_reference.h"
#include "cpu_test.h"
#include "error_of.h"
#include "parallel_hooks.h"

namespace transformer_kernels::testing {
namespace {

class AttentionWithCache : public CpuTest {
 protected:
  static void check(const CacheCase& c) {
    SCOPED_TRACE("T" + std::to_string(c.queries) + " + " + std::to_string(c.added) + " D" +
                 std::to_string(c.dim) + "/" + std::to_string(c.value_dim) + " page " +
                 std::to_string(c.page) + " first length " + std::to_string(c.lengths[0]));
    CacheRun run(dtype(), c);
    attention_with_kv_cache(cpu().context(), run.arguments());
    check_new_tokens(run, run.k, run.k_cache, run.k_scale, dtype(), true);
    check_new_tokens(run, run.v, run.v_cache, run.v_scale, dtype(), false);
    const ExpectedOfCache expected = expected_of(run);
    EXPECT_TRUE(close(dtype(), run.out.values(), expected.out, expected.largest));
    EXPECT_TRUE(close(DType::kFloat32, run.lse.values(), expected.lse, 0));
  }
};

// Lengths at the edges of pages, blocks and chunks.
const std::vector<std::int64_t> kLengths = {0, 1, 15, 16, 17, 63, 64, 65};

TEST_P(AttentionWithCache, cpu_contiguous_and_paged) {
  for (std::int64_t page : {0, 16, 64, 256}) {
    for (bool heads_first : {false, true}) {
      check({.lengths = kLengths, .page = page, .capacity = 80, .heads_first = heads_first});
    }
  }
}

TEST_P(AttentionWithCache, cpu_groups_and_rows) {
  for (const CacheCase& c : cases_of_groups_and_rows()) check(c);
}

TEST_P(AttentionWithCache, cpu_dims) {
  for (std::int64_t dim : {1, 7, 8, 33, 64, 100, 128, 256}) {
    check({.lengths = {3, 70}, .queries = 2, .added = 2, .dim = dim, .capacity = 80});
    check({.lengths = {3, 70},
           .queries = 2,
           .added = 2,
           .dim = 16,
           .value_dim = dim,
           .capacity = 80});
  }
}

TEST_P(AttentionWithCache, cpu_long_sequences_in_chunks) {
  check({.lengths = {700, 2, 255, 256}, .heads = 2, .kv_heads = 1, .capacity = 701});
  check({.lengths = {1300, 30}, .queries = 4, .added = 4, .page = 64, .capacity = 1344});
  // More rows than an item takes, and fewer chunks.
  check({.lengths = {600, 0}, .queries = 40, .added = 40, .page = 64, .capacity = 640});
}

TEST_P(AttentionWithCache, cpu_queries_and_new_tokens_differ) {
  for (const CacheCase& c : cases_of_unequal_queries_and_new_tokens()) check(c);
}

TEST_P(AttentionWithCache, cpu_rotations) {
  for (const CacheCase& c : cases_of_rotations()) check(c);
}

TEST_P(AttentionWithCache, cpu_features) {
  for (const CacheCase& c : cases_of_features()) check(c);
}

TEST_P(AttentionWithCache, cpu_int8) {
  for (std::int64_t page : {0, 16}) {
    for (std::int64_t dim : {7, 16, 64}) {
      check({.lengths = {0, 1, 64, 290},
             .queries = 2,
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

TEST_P(AttentionWithCache, cpu_bits_do_not_depend_on_threads) {
  CacheRun first(dtype(), {.lengths = {900, 0, 31},
                           .queries = 3,
                           .added = 3,
                           .page = 16,
                           .capacity = 912,
                           .frequencies = 8});
  std::vector<char> out, lse;
  for (const Context& context : contexts_with_different_threads(cpu())) {
    attention_with_kv_cache(context, first.arguments());  // writes the same tokens again
    if (out.empty()) {
      out = first.out.bytes();
      lse = first.lse.bytes();
    }
    EXPECT_EQ(out, first.out.bytes());
    EXPECT_EQ(lse, first.lse.bytes());
  }
}

// A sequence alone, and without pages, gives the bits that it gives in a batch.
TEST_P(AttentionWithCache, cpu_bits_do_not_depend_on_neighbours_and_pages) {
  CacheRun both(dtype(),
                {.lengths = {40, 700, 3}, .queries = 2, .added = 2, .page = 16, .capacity = 704});
  attention_with_kv_cache(cpu().context(), both.arguments());
  for (std::int64_t b = 0; b < 3; ++b) {
    CacheCase c = both.c;
    c.lengths = {both.c.lengths[b]};
    c.page = 0;
    CacheRun alone(dtype(), c);
    const auto part = [&](const CacheTensor& of) {
      const Values all = of.values();
      const auto count = static_cast<std::int64_t>(all.size()) / 3;
      return Values(all.begin() + b * count, all.begin() + (b + 1) * count);
    };
    const auto rows = [&](const CacheTensor& of) {
      const TensorView& v = of.view();
      return CacheTensor(v.dtype, {1, v.sizes[1], v.sizes[2], v.sizes[3]}, part(of));
    };
    alone.q = rows(both.q);
    alone.k = rows(both.k);
    alone.v = rows(both.v);
    const auto dense = [&](const CacheTensor& cache, const CacheTensor& scale) {
      const CacheNumbers all = both.stored(cache, scale);
      const auto first = all.values.begin() + all.row(b, 0, 0);
      return CacheTensor(dtype(), {1, c.capacity, c.kv_heads, 16},
                         Values(first, first + c.capacity * c.kv_heads * 16));
    };
    alone.k_cache = dense(both.k_cache, both.k_scale);
    alone.v_cache = dense(both.v_cache, both.v_scale);
    attention_with_kv_cache(cpu().context(), alone.arguments());
    EXPECT_EQ(alone.out.values(), part(both.out));
    EXPECT_EQ(alone.lse.values(), part(both.lse));
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionWithCache,
                         ::testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16),
                         name_of_cpu_test);

// ---------------------------------------------------------------------------- refusals

void expect_error(const std::function<void(CacheRun&, AttentionWithKvCache&)>& spoil,
                  const std::string& expected, std::int64_t page = 16) {
  CacheRun run(DType::kFloat32, {.lengths = {3, 20},
                                 .queries = 2,
                                 .added = 2,
                                 .page = page,
                                 .capacity = 32,
                                 .frequencies = 4});
  AttentionWithKvCache a = run.arguments();
  spoil(run, a);
  const std::vector<char> before[] = {run.k_cache.bytes(), run.v_cache.bytes(), run.out.bytes()};
  EXPECT_EQ(error_of([&] { attention_with_kv_cache({}, a); }),
            "attention_with_kv_cache: " + expected);
  EXPECT_EQ(before[0], run.k_cache.bytes());
  EXPECT_EQ(before[1], run.v_cache.bytes());
  EXPECT_EQ(before[2], run.out.bytes());
}

using Arguments = AttentionWithKvCache;

TEST(AttentionWithCacheErrors, cpu_of_lengths_and_pages) {
  const auto length = [](std::int32_t value) {
    return [=](CacheRun& run, Arguments&) {
      static_cast<std::int32_t*>(run.lengths.view().data)[1] = value;
    };
  };
  const std::string expected = ", expected 0 to 30 (what the cache holds besides new tokens)";
  expect_error(length(-1), "lengths[1] is -1" + expected);
  expect_error(length(31), "lengths[1] is 31" + expected);
  expect_error(length(31), "lengths[1] is 31" + expected, 0);
  const auto entry = [](std::int64_t place, std::int32_t value) {
    return [=](CacheRun& run, Arguments&) {
      static_cast<std::int32_t*>(run.table.view().data)[place] = value;
    };
  };
  expect_error(entry(3, 8), "page_table[1, 1] is 8, expected 0 to 7 (the pages of k_cache)");
  expect_error(entry(0, -1), "page_table[0, 0] is -1, expected 0 to 7 (the pages of k_cache)");
  expect_error(
      [](CacheRun& run, Arguments&) {
        auto* const table = static_cast<std::int32_t*>(run.table.view().data);
        table[0] = table[3] = 5;
      },
      "page_table lets sequences 0 and 1 write to page 5, expected pages of their own for new "
      "tokens");
  expect_error([](CacheRun&, Arguments& a) { a.cos.sizes[0] = a.sin.sizes[0] = 21; },
               "cos has 21 positions, expected at least 22 (the tokens of sequence 1)");
  expect_error(
      [](CacheRun& run, Arguments& a) {
        static_cast<std::int32_t*>(run.lengths.view().data)[0] = 1;
        a.k = a.v = {};
      },
      "q has 2 tokens, expected at most 1 with cos (the tokens of sequence 0)");
}

TEST(AttentionWithCacheErrors, cpu_of_shapes_and_dtypes) {
  const auto refuse = [](auto&& spoil, const std::string& expected) {
    expect_error([&](CacheRun&, Arguments& a) { spoil(a); }, expected);
  };
  refuse([](Arguments& a) { a.q = {}; }, "q is missing");
  refuse([](Arguments& a) { a.q.dtype = DType::kFloat64; },
         "q is float64, expected float32, float16 or bfloat16");
  refuse([](Arguments& a) { a.k_cache.dtype = DType::kFloat16; },
         "k_cache is float16, expected float32 (the dtype of q, or int8)");
  refuse([](Arguments& a) { a.v_cache.sizes[0] = 7; },
         "v_cache has shape (7, 16, 2, 16), expected (8, 16, 2, 16) (that of k_cache but for the "
         "dim)");
  refuse([](Arguments& a) { a.q.sizes[2] = 3; },
         "q has 3 heads, expected a multiple of 2 (the heads of k_cache)");
  refuse([](Arguments& a) { a.v = {}; }, "v is missing, expected k and v, both or neither");
  refuse([](Arguments& a) { a.k.sizes[0] = 1; },
         "k has shape (1, 2, 2, 16), expected (2, 2, 2, 16) (the batch of q, new tokens, heads and "
         "dim of k_cache)");
  refuse([](Arguments& a) { a.lengths = {}; },
         "lengths is missing, expected the tokens in the cache before k");
  refuse([](Arguments& a) { a.lengths.dtype = DType::kFloat32; },
         "lengths is float32, expected int32 or int64");
  refuse([](Arguments& a) { a.lengths.sizes[0] = 3; },
         "lengths has shape (3,), expected (2,) (the batch of q)");
  refuse([](Arguments& a) { a.page_table = {}; },
         "k_cache has 8 sequences, expected 2 (the batch of q), or pages and a page_table");
  refuse([](Arguments& a) { a.page_table.dtype = DType::kInt64; },
         "page_table is int64, expected int32 (the dtype of tables)");
  refuse([](Arguments& a) { a.k_cache.sizes[1] = a.v_cache.sizes[1] = 8; },
         "k_cache has pages of 8 tokens, expected a multiple of 16");
  refuse([](Arguments& a) { a.k_scale = a.out; },
         "k_scale is given, expected none without a cache of int8");
  refuse([](Arguments& a) { a.k_cache.dtype = a.v_cache.dtype = DType::kInt8; },
         "k_scale is missing, expected one beside a cache of int8");
  refuse([](Arguments& a) { a.sin = {}; }, "sin is missing, expected cos and sin, both or neither");
  refuse([](Arguments& a) { a.cos.sizes[1] = a.sin.sizes[1] = 9; },
         "cos has 9 columns, expected 1 to 8 (pairs in a head of q)");
  refuse([](Arguments& a) { a.softcap = -1; },
         "softcap is -1, expected a finite number, 0 or above");
  refuse([](Arguments& a) { a.softcap = kInfinity; },
         "softcap is inf, expected a finite number, 0 or above");
  refuse([](Arguments& a) { a.window_left = -2; },
         "window_left is -2, expected -1 (no bound) or above");
  refuse([](Arguments& a) { a.scale = kInfinity; }, "scale is inf, expected a finite number");
  refuse([](Arguments& a) { a.k.data = a.k_cache.data; },
         "k_cache overlaps k, expected memory of its own");
  refuse([](Arguments& a) { a.out.data = a.q.data; }, "out overlaps q, expected memory of its own");
}

TEST(AttentionWithCacheErrors, cpu_of_scales_in_one_place) {
  CacheRun run(DType::kFloat32, {.lengths = {3}, .int8 = true});
  AttentionWithKvCache a = run.arguments();
  a.v_scale = a.k_scale;
  EXPECT_EQ(error_of([&] { attention_with_kv_cache({}, a); }),
            "attention_with_kv_cache: v_scale overlaps k_scale, expected memory of its own");
  a.k = a.v = a.lengths = {};  // nothing is written then
  EXPECT_EQ(error_of([&] { attention_with_kv_cache({}, a); }), "no error");
}

}  // namespace
}  // namespace transformer_kernels::testing
