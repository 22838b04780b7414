// SPDX-License-Identifier: MIT
// Split-K for a small result with many terms, as the gradient of a weight: its tiles alone would
// leave most SMs without work. Parts of the terms are summed into matrices of their own, and these
// are then added in order.
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
  const float v[kPack] = {sum.x, sum.y, sum.z, sum.w};
  T* const to = static_cast<T*>(p.out.data) + at / p.cols * p.out.row_step + at % p.cols;
  *reinterpret_cast<uint2*>(to) = {narrow_word<T>(v), narrow_word<T>(v + 2)};
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
  const SumOfParts sum{partial.as<float>(), parts, p.rows, p.cols, p.out};
  if (p.dtype == DType::kBFloat16) {
    launch(p.op, context, shape, sum_parts<BFloat16>, sum);
  } else {
    launch(p.op, context, shape, sum_parts<Half>, sum);
  }
}

}  // namespace transformer_kernels::cuda
