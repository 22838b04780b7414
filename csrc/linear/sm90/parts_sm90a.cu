// SPDX-License-Identifier: MIT
// Split-K for a small result with many terms, as the gradient of a weight: its tiles alone would
// leave most SMs without work. Parts of the terms are summed into matrices of their own, and these
// are then added in order: to the result, if it accumulates.
#include "core/cuda/scratch.h"
#include "linear/sm90/launch.cuh"

namespace transformer_kernels::cuda {
namespace {

constexpr int kSumThreads = 256;
constexpr int kPack = 4;  // columns of a thread

struct SumOfParts {
  const float* partial;
  std::int64_t parts;
  std::int64_t rows;
  std::int64_t cols;
  Matrix out;
  DType dtype;  // of out
  bool accumulates;
};

// The columns of a thread as they lie in memory.
template <class T>
struct alignas(kPack * sizeof(T)) Columns {
  static constexpr int kPerWord = 4 / sizeof(T);
  static constexpr int kWords = kPack / kPerWord;
  std::uint32_t word[kWords];
};

// Stores the sums of a thread's columns, or adds them to what is there.
template <class T>
__device__ __forceinline__ void write_columns(const SumOfParts& p, std::int64_t at,
                                              float (&sum)[kPack]) {
  using C = Columns<T>;
  C& out = *reinterpret_cast<C*>(static_cast<T*>(p.out.data) + at / p.cols * p.out.row_step +
                                 at % p.cols);
  C columns;
  if (p.accumulates) {
    columns = out;
    float old[kPack];
#pragma unroll
    for (int i = 0; i < C::kWords; ++i) widen_word<T>(columns.word[i], old + i * C::kPerWord);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum[i] += old[i];
  }
#pragma unroll
  for (int i = 0; i < C::kWords; ++i) columns.word[i] = narrow_word<T>(sum + i * C::kPerWord);
  out = columns;
}

__global__ void __launch_bounds__(kSumThreads) sum_parts(const SumOfParts p) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kPack;
  wait_for_previous_kernel();
  const std::int64_t numbers = p.rows * p.cols;
  if (at >= numbers) return;
  float sum[kPack] = {};
  for (std::int64_t part = 0; part < p.parts; ++part) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(p.partial + part * numbers + at));
    sum[0] += v.x;
    sum[1] += v.y;
    sum[2] += v.z;
    sum[3] += v.w;
  }
  if (p.dtype == DType::kBFloat16) {
    write_columns<BFloat16>(p, at, sum);
  } else if (p.dtype == DType::kFloat16) {
    write_columns<Half>(p, at, sum);
  } else {
    write_columns<float>(p, at, sum);
  }
}

}  // namespace

void run_gemm_in_parts(const Context& context, const Product& p, std::int64_t parts) {
  const std::int64_t numbers = p.rows * p.cols;
  const Scratch partial(p.op, context, parts * numbers * sizeof(float));
  using Shape = GemmShape<Major::kOther, Major::kOther, 128, 192>;
  const int blocks = blocks_of<Shape>(p);
  const PartsOfTerms units{tiles_of<Shape>(p), blocks, static_cast<int>(parts),
                           static_cast<int>(divide_up(blocks, parts))};
  const auto results = results_of(p, epilogues::StorePart{partial.as<float>()});
  dispatch_narrow(p.dtype, [&]<class T>() {
    launch_gemm<T, Shape>(p.op, context, loader_of<Shape>(p, {p.b}), units, results);
  });
  launch(p.op, context,
         {.ctas = divide_up(numbers, kSumThreads * kPack),
          .threads = kSumThreads,
          .after_previous = true},
         sum_parts,
         SumOfParts{.partial = partial.as<float>(),
                    .parts = parts,
                    .rows = p.rows,
                    .cols = p.cols,
                    .out = p.out,
                    .dtype = p.out_dtype,
                    .accumulates = p.accumulates});
}

}  // namespace transformer_kernels::cuda
