// SPDX-License-Identifier: MIT
// Every engine of CUDA, with every feature and pair of head dims, in memory that ends where its
// tensors do: whatever reaches out of one, or out of the workspace, is an illegal memory access.
// Numbers are other tests' business; here results only have to be numbers.
//
// memcheck finds what a thread loads or stores by itself, even where the pages are mapped:
//   compute-sanitizer --tool memcheck tfk_tests --gtest_filter='*AttentionGuard*'
#ifdef TFK_WITH_CUDA

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attention/plain/engine.h"
#include "attention/sm80/engine.h"
#include "attention/sm90/backward/engine.h"
#include "attention/sm90/forward/engine.h"
#include "backend.h"
#include "guarded_memory.h"
#include "numbers.h"

namespace transformer_kernels::cuda {
namespace {

using testing::check_runtime;
using testing::Edge;
using testing::GuardedMemory;

struct Feature {
  const char* name;
  double softcap = 0;
  std::int64_t left = -1;
  std::int64_t right = -1;
  bool bottom_right = true;
  bool negative_scale = false;
  double dropout = 0;
  bool bias = false;
  bool wide_bias = false;    // in accumulation precision
  bool shared_bias = false;  // by batches and rows
  bool mask = false;
  bool slopes = false;
  bool sinks = false;  // and a gradient of lse
  bool deterministic = false;

  bool has_map() const { return bias || mask; }
};

constexpr Feature kFeatures[] = {
    {.name = "none"},
    {.name = "deterministic", .deterministic = true},
    {.name = "causal", .right = 0},
    {.name = "causal from the top left", .right = 0, .bottom_right = false},
    {.name = "window", .left = 40, .right = 10},
    {.name = "window without keys for many", .left = 3, .right = 0, .bottom_right = false},
    {.name = "negative scale", .negative_scale = true},
    {.name = "softcap", .softcap = 15},
    {.name = "softcap, causal", .softcap = 15, .right = 0},
    {.name = "softcap, window", .softcap = 15, .left = 40, .right = 10},
    {.name = "softcap, deterministic", .softcap = 15, .deterministic = true},
    {.name = "dropout", .dropout = 0.2},
    {.name = "dropout, causal, deterministic", .right = 0, .dropout = 0.2, .deterministic = true},
    {.name = "bias", .bias = true},
    {.name = "wide bias", .bias = true, .wide_bias = true},
    {.name = "shared bias", .bias = true, .shared_bias = true},
    {.name = "mask", .mask = true},
    {.name = "alibi", .slopes = true},
    {.name = "sinks", .sinks = true},
    {.name = "softcap, dropout, alibi, sinks",
     .softcap = 15,
     .dropout = 0.2,
     .slopes = true,
     .sinks = true},
    {.name = "all",
     .softcap = 15,
     .left = 90,
     .right = 0,
     .dropout = 0.2,
     .bias = true,
     .mask = true,
     .slopes = true,
     .sinks = true},
};

struct Shape {
  std::int64_t batch, queries, keys, heads, kv_heads, dim, value_dim;
  bool packed = false;  // then sequences are those of kQueryOffsets and kKeyOffsets
};

// One of the sequences has no query, and some rows are of none. 64 keys and fewer rows follow.
constexpr std::int32_t kQueryOffsets[] = {0, 70, 70, 131};
constexpr std::int32_t kKeyOffsets[] = {0, 65, 193, 200};
constexpr Shape packed(Shape s) {
  s.batch = 3;
  s.queries = 133;
  s.keys = 203;
  s.packed = true;
  return s;
}

struct Bytes {
  void* data;
  std::size_t count;
};

// Allocations that end with it, all on one stream.
class Arena {
 public:
  Arena(GuardedMemory& memory, cudaStream_t stream) : memory_(memory), stream_(stream) {}
  ~Arena() {
    for (const Bytes& bytes : taken_) memory_.release(bytes.data);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Bytes take(std::int64_t bytes) {
    const auto count = static_cast<std::size_t>(bytes);
    return taken_.emplace_back(Bytes{memory_.allocate(count), count});
  }
  void* copy(const void* from, std::int64_t bytes) {
    const Bytes to = take(bytes);
    check_runtime(cudaMemcpyAsync(to.data, from, to.count, cudaMemcpyDefault, stream_));
    return to.data;
  }
  // Normal numbers, or those of a mask. There are fewer of them than elements.
  void* random(DType dtype, std::int64_t elements) {
    const std::vector<std::uint8_t>& from = numbers_of(dtype);
    const Bytes to = take(elements * size_of(dtype));
    for (std::size_t at = 0; at < to.count; at += from.size()) {
      check_runtime(cudaMemcpyAsync(static_cast<char*>(to.data) + at, from.data(),
                                    std::min(from.size(), to.count - at), cudaMemcpyDefault,
                                    stream_));
    }
    return to.data;
  }

 private:
  static const std::vector<std::uint8_t>& numbers_of(DType dtype) {
    static std::array<std::vector<std::uint8_t>, kDTypeCount> of_types;
    std::vector<std::uint8_t>& bytes = of_types[static_cast<int>(dtype)];
    if (!bytes.empty()) return bytes;
    constexpr std::int64_t kNumbers = 65537;  // another number stands at each multiple of a row
    const testing::Values values = dtype == DType::kBool ? testing::random_bool(kNumbers, 0.7)
                                                         : testing::random_normal(kNumbers, dtype);
    bytes.resize(kNumbers * size_of(dtype));
    for (std::int64_t i = 0; i != kNumbers; ++i) {
      testing::encode(dtype, values[i], bytes.data() + i * size_of(dtype));
    }
    return bytes;
  }

  GuardedMemory& memory_;
  cudaStream_t stream_;
  std::vector<Bytes> taken_;
};

// Both passes of a problem, with all that they read and write in guarded memory.
struct Problems {
  AttentionForwardProblem forward{};
  AttentionBackwardProblem backward{};
  std::vector<std::pair<DType, Bytes>> outputs, gradients;

  Problems(Arena& arena, DType dtype, const Shape& s, const Feature& f) {
    AttentionBackwardProblem& p = backward;
    const DType wide = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    const std::int64_t batches = s.packed ? 1 : s.batch;
    p.dtype = dtype;
    p.batch = s.batch;
    p.heads = s.heads;
    p.kv_heads = s.kv_heads;
    p.dim = s.dim;
    p.value_dim = s.value_dim;
    p.queries = s.queries;
    p.keys = s.keys;
    p.softcap = f.softcap;
    p.scale = (f.negative_scale ? -1 : 1) / std::sqrt(static_cast<double>(s.dim));
    p.window_left = f.left;
    p.window_right = f.right;
    p.bottom_right = f.bottom_right;
    p.drop_below = static_cast<std::uint32_t>(std::lrint(f.dropout * 65536));
    p.seed = 7;
    p.deterministic = f.deterministic;
    if (s.packed) {
      p.q_offsets = static_cast<std::int32_t*>(arena.copy(kQueryOffsets, sizeof(kQueryOffsets)));
      p.k_offsets = static_cast<std::int32_t*>(arena.copy(kKeyOffsets, sizeof(kKeyOffsets)));
    }

    // Packed sequences lie one behind the other: they have no stride from batch to batch.
    const auto rows_at = [&](void* data, std::int64_t time, std::int64_t heads, std::int64_t dim) {
      return HeadRows{data, s.packed ? 0 : time * heads * dim, heads * dim, dim};
    };
    const auto input = [&](std::int64_t time, std::int64_t heads, std::int64_t dim) {
      return rows_at(arena.random(dtype, batches * time * heads * dim), time, heads, dim);
    };
    const auto result = [&](std::vector<std::pair<DType, Bytes>>& results, DType type,
                            std::int64_t elements) {
      return results.emplace_back(type, arena.take(elements * size_of(type))).second.data;
    };
    const auto gradient = [&](std::int64_t time, std::int64_t heads, std::int64_t dim) {
      void* const data = result(gradients, dtype, batches * time * heads * dim);
      return rows_at(data, time, heads, dim);
    };
    p.q = input(s.queries, s.heads, s.dim);
    p.k = input(s.keys, s.kv_heads, s.dim);
    p.v = input(s.keys, s.kv_heads, s.value_dim);
    p.dout = input(s.queries, s.heads, s.value_dim);
    p.dq = gradient(s.queries, s.heads, s.dim);
    p.dk = gradient(s.keys, s.kv_heads, s.dim);
    p.dv = gradient(s.keys, s.kv_heads, s.value_dim);
    void* const out = result(outputs, dtype, batches * s.queries * s.heads * s.value_dim);
    p.out = rows_at(out, s.queries, s.heads, s.value_dim);
    void* const lse = arena.take(p.rows() * size_of(wide)).data;
    p.lse = lse;

    const auto map = [&](DType type, bool shared) {
      ScoreMap of{.dtype = type,
                  .batch_stride = shared ? 0 : s.heads * s.queries * s.keys,
                  .head_stride = (shared ? 1 : s.queries) * s.keys,
                  .row_stride = shared ? 0 : s.keys,
                  .col_stride = 1};
      return of;
    };
    const auto elements_of = [&](bool shared) {
      return (shared ? 1 : s.batch * s.queries) * s.heads * s.keys;
    };
    if (f.bias) {
      p.bias = map(f.wide_bias ? wide : dtype, f.shared_bias);
      p.bias.data = arena.random(p.bias.dtype, elements_of(f.shared_bias));
      p.dbias = map(wide, f.shared_bias);
      p.dbias_count = elements_of(f.shared_bias);
      p.dbias.data = result(gradients, wide, p.dbias_count);
    }
    if (f.mask) {
      p.mask = map(DType::kBool, false);
      p.mask.data = arena.random(DType::kBool, elements_of(false));
    }
    if (f.slopes) p.slopes = {arena.random(wide, s.batch * s.heads), s.heads, 1};
    if (f.sinks) {
      p.sinks = {arena.random(wide, s.heads), 0, 1};
      p.dsinks = result(gradients, wide, s.heads);
      p.dlse = arena.random(wide, p.rows());
    }
    static_cast<AttentionProblem&>(forward) = p;
    forward.out = p.out;
    forward.lse = lse;
  }
};

// Best first, as cuda.cu has them.
template <class Problem, class Hopper, class TensorCore>
std::vector<const AttentionEngine<Problem>*> engines_of([[maybe_unused]] const Hopper& hopper,
                                                        [[maybe_unused]] const TensorCore& sm80,
                                                        const AttentionEngine<Problem>& plain) {
  std::vector<const AttentionEngine<Problem>*> engines;
  for (const auto& engine : hopper) engines.push_back(&engine);
  for (const auto& engine : sm80) engines.push_back(&engine);
  engines.push_back(&plain);
  return engines;
}

#if TFK_CUDA_SM90A
const auto& kForwardOfHopper = kHopperForwardEngines;
const auto& kBackwardOfHopper = kHopperBackwardEngines;
#else
const std::array<AttentionEngine<AttentionForwardProblem>, 0> kForwardOfHopper{};
const std::array<AttentionEngine<AttentionBackwardProblem>, 0> kBackwardOfHopper{};
#endif
#if TFK_CUDA_SM80
const auto& kForwardOfTensorCores = kTensorCoreForwardEngines;
const auto& kBackwardOfTensorCores = kTensorCoreBackwardEngines;
#else
const std::array<AttentionEngine<AttentionForwardProblem>, 0> kForwardOfTensorCores{};
const std::array<AttentionEngine<AttentionBackwardProblem>, 0> kBackwardOfTensorCores{};
#endif

// The bits that are all set in infinity and NaN.
template <class Word>
constexpr Word exponent_of(DType dtype) {
  constexpr std::uint64_t kBits[] = {0x7ff0000000000000, 0x7f800000, 0x7c00, 0x7f80};
  return static_cast<Word>(kBits[static_cast<int>(dtype)]);
}

template <class Word>
bool all_finite(DType dtype, const std::vector<std::uint8_t>& bytes) {
  const Word exponent = exponent_of<Word>(dtype);
  std::vector<Word> words(bytes.size() / sizeof(Word));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return std::none_of(words.begin(), words.end(),
                      [&](Word word) { return (word & exponent) == exponent; });
}

class AttentionGuard : public ::testing::TestWithParam<std::tuple<DType, Edge>> {
 protected:
  void SetUp() override {
    if (testing::cuda_backend() == nullptr) GTEST_SKIP() << "no CUDA device";
    stream_ = static_cast<cudaStream_t>(testing::cuda_backend()->context().stream);
  }
  static DType dtype() { return std::get<0>(GetParam()); }

  void check(const Shape& s, const Feature& f) {
    SCOPED_TRACE(f.name);
    Arena arena(memory_, stream_);
    Problems p(arena, dtype(), s, f);
    run_all(engines_of<AttentionForwardProblem>(kForwardOfHopper, kForwardOfTensorCores,
                                                kPlainForwardEngine),
            p.forward);
    run_op(&attention_forward, p.forward, p.outputs);
    run_all(engines_of<AttentionBackwardProblem>(kBackwardOfHopper, kBackwardOfTensorCores,
                                                 kPlainBackwardEngine),
            p.backward);
    run_op(&attention_backward, p.backward, p.gradients);
  }

 private:
  // Allocates workspaces whose bytes begin as a pattern that no kernel writes.
  static void* allocate(void* user, std::size_t bytes) {
    auto& own = *static_cast<AttentionGuard*>(user);
    void* const memory = own.memory_.allocate(bytes);
    check_runtime(cudaMemsetAsync(memory, 0xff, bytes, own.stream_));
    return memory;
  }
  static void release(void* user, void* memory) {
    static_cast<AttentionGuard*>(user)->memory_.release(memory);
  }
  Context context() {
    return {.device = {DeviceType::kCuda, 0},
            .stream = stream_,
            .workspace = {.allocate = allocate, .release = release, .user = this}};
  }

  // An error stays with the context: there is no use in going on.
  void finish(const std::string& name, const std::string& problem) {
    const cudaError_t status = cudaStreamSynchronize(stream_);
    if (status == cudaSuccess) return;
    throw std::runtime_error(name + ", " + problem + ": " + cudaGetErrorString(status));
  }
  template <class Problem>
  void run_all(const std::vector<const AttentionEngine<Problem>*>& engines, const Problem& p) {
    for (const AttentionEngine<Problem>* engine : engines) {
      if (engine->refusal(p, device_limits(0)) != nullptr) continue;
      engine->run(context(), p);
      finish(engine->name, describe(p));
    }
  }
  template <class Problem>
  void run_op(void (*op)(const Context&, const Problem&), const Problem& p,
              const std::vector<std::pair<DType, Bytes>>& results) {
    for (const auto& [type, bytes] : results) {
      check_runtime(cudaMemsetAsync(bytes.data, 0xff, bytes.count, stream_));
    }
    op(context(), p);
    finish("the op", describe(p));
    for (const auto& [type, bytes] : results) {
      std::vector<std::uint8_t> host(bytes.count);
      check_runtime(cudaMemcpy(host.data(), bytes.data, bytes.count, cudaMemcpyDefault));
      EXPECT_TRUE(is_finite(type, host)) << describe(p);
    }
  }
  static bool is_finite(DType type, const std::vector<std::uint8_t>& bytes) {
    if (size_of(type) == 2) return all_finite<std::uint16_t>(type, bytes);
    return size_of(type) == 4 ? all_finite<std::uint32_t>(type, bytes)
                              : all_finite<std::uint64_t>(type, bytes);
  }

  GuardedMemory memory_{std::get<1>(GetParam())};
  cudaStream_t stream_ = nullptr;
};

std::string name_of_guard_test(const ::testing::TestParamInfo<AttentionGuard::ParamType>& info) {
  const auto& [dtype, edge] = info.param;
  return std::string(name_of(dtype)) + (edge == Edge::kBegin ? "_begin" : "_end");
}
INSTANTIATE_TEST_SUITE_P(cuda, AttentionGuard,
                         ::testing::Combine(::testing::Values(DType::kFloat64, DType::kFloat32,
                                                              DType::kFloat16, DType::kBFloat16),
                                            ::testing::Values(Edge::kBegin, Edge::kEnd)),
                         name_of_guard_test);

// A dim for each number of slabs of 64 columns that engines pad to, whole and in part; with float64
// there is one engine.
std::vector<std::int64_t> dims_of(DType dtype) {
  if (dtype == DType::kFloat64) return {24, 130, 256};
  if (dtype == DType::kFloat32) return {24, 64, 128, 256};
  return {24, 64, 96, 128, 160, 192, 256};
}

TEST_P(AttentionGuard, features_at_every_pair_of_head_dims) {
  for (const std::int64_t dim : dims_of(dtype())) {
    for (const std::int64_t value_dim : dims_of(dtype())) {
      for (const Feature& feature : kFeatures) {
        for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {4, 2}}) {
          const Shape s{2, 70, 200, heads, kv_heads, dim, value_dim};
          check(s, feature);
          if (!feature.has_map()) check(packed(s), feature);
        }
      }
    }
  }
}

// Lengths that leave no element of a vector, and one row.
TEST_P(AttentionGuard, lengths_at_the_edges_of_tiles) {
  for (const auto& [queries, keys] : {std::pair{1, 1}, {33, 77}, {64, 128}, {65, 129}}) {
    for (const std::int64_t dim : dims_of(dtype())) {
      for (const Feature& feature : kFeatures) check({1, queries, keys, 2, 1, dim, dim}, feature);
    }
  }
}

// Tiles of keys that are as many as clusters: some of those find none, and end at once.
TEST_P(AttentionGuard, few_tiles_again_and_again) {
  if (size_of(dtype()) != 2) GTEST_SKIP() << "for clusters of Hopper";
  constexpr int kTimes = 50;
  for (int i = 0; i != kTimes; ++i) {
    check({3, 128, 192, 6, 6, 192, 128}, {.name = "softcap", .softcap = 15});
    check({3, 128, 192, 6, 6, 192, 128}, {.name = "softcap, causal", .softcap = 15, .right = 0});
    check({3, 128, 192, 6, 6, 192, 128}, {.name = "causal", .right = 0});
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda

#endif
