// SPDX-License-Identifier: MIT
// Split-K for a small result with many terms, as the gradient of a weight: its tiles alone would
// leave most SMs without work. Parts of the terms are summed into matrices of their own, and these
// are then added in order: to the result, if it accumulates.
#include "core/cuda/scratch.h"
#include "linear/sm90/launch_gemm.cuh"

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
  bool accumulates;
};

// The columns of a thread as they lie in memory.
template <class T>
struct alignas(kPack * sizeof(T)) Columns {
  static constexpr int kPerWord = 4 / sizeof(T);
  static constexpr int kWords = kPack / kPerWord;
  std::uint32_t word[kWords];
};

template <class T>
__global__ void __launch_bounds__(kSumThreads) sum_parts(const SumOfParts p) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kPack;
  wait_for_previous_kernel();
  const std::int64_t numbers = p.rows * p.cols;
  if (at >= numbers) return;
  float4 sum{};
  for (std::int64_t part = 0; part < p.parts; ++part) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(p.partial + part * numbers + at));
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  float v[kPack] = {sum.x, sum.y, sum.z, sum.w};
  T* const to = static_cast<T*>(p.out.data) + at / p.cols * p.out.row_step + at % p.cols;
  auto& out = *reinterpret_cast<Columns<T>*>(to);
  Columns<T> columns;
  if (p.accumulates) {
    columns = out;
    float old[kPack];
#pragma unroll
    for (int i = 0; i < columns.kWords; ++i) {
      widen_word<T>(columns.word[i], old + i * columns.kPerWord);
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] += old[i];
  }
#pragma unroll
  for (int i = 0; i < columns.kWords; ++i) {
    columns.word[i] = narrow_word<T>(v + i * columns.kPerWord);
  }
  out = columns;
}

}  // namespace

void run_gemm_in_parts(const Context& context, const Product& p, std::int64_t parts) {
  const std::int64_t numbers = p.rows * p.cols;
  const Scratch partial(p.op, context, parts * numbers * sizeof(float));
  launch_typed<Epilogue::kPartial, void, 128, 192, Major::kOther, Major::kOther>(
      context, p, {partial.as<float>(), parts});
  const LaunchShape shape{.ctas = divide_up(numbers, kSumThreads * kPack),
                          .threads = kSumThreads,
                          .after_previous = true};
  const SumOfParts sum{partial.as<float>(), parts, p.rows, p.cols, p.out, p.accumulates};
  dispatch_below_double(p.out_dtype,
                        [&]<class T>() { launch(p.op, context, shape, sum_parts<T>, sum); });
}

}  // namespace transformer_kernels::cuda
