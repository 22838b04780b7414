// SPDX-License-Identifier: MIT
#include "linear/cuda/sum_of_parts.h"

#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/rounding.h"

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

__global__ void __launch_bounds__(kSumThreads) sum_parts_kernel(const SumOfParts p) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kPack;
#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();
#endif
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

void sum_parts(const Context& context, const Product& p, const float* partial, std::int64_t parts) {
  launch(p.op, context,
         {.ctas = divide_up(p.rows * p.cols, kSumThreads * kPack),
          .threads = kSumThreads,
          .after_previous = device_limits(context.device.index).architecture >= 90},
         sum_parts_kernel,
         SumOfParts{.partial = partial,
                    .parts = parts,
                    .rows = p.rows,
                    .cols = p.cols,
                    .out = p.out,
                    .dtype = p.out_dtype,
                    .accumulates = p.accumulates});
}

}  // namespace transformer_kernels::cuda
