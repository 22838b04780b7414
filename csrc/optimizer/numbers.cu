// SPDX-License-Identifier: MIT
// Two kernels run before an update on CUDA. One sums the squares of chunks of gradients; the other
// adds these sums in a fixed order, which is the norm, and computes the numbers of each tensor's
// step. Nothing waits for the host.
#include <cmath>
#include <limits>

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/dispatch.h"
#include "optimizer/kernels_cuda.h"
#include "optimizer/rows.cuh"

namespace transformer_kernels::cuda {
namespace {

// The sum of all threads' values, for each of them.
template <int kThreads>
__device__ double sum_of_threads(double value) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ double of_warp[kWarps];
  const double sum = reduce_lanes<Add>(value);
  __syncthreads();  // the call before may still read
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = sum;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return reduce_lanes<Add>(lane < kWarps ? of_warp[lane] : 0.0);
}

// A thread's part of the squares of elements [begin, end); chunks begin at multiples of packs.
template <class Sum, class T>
__device__ __forceinline__ Sum squares_of_thread(const T* x, std::int64_t begin, std::int64_t end,
                                                 bool has_packs) {
  using P = Pack<T, sizeof(T) == 8 ? 1 : 16 / sizeof(T)>;
  Sum sum = 0;
  std::int64_t rest = begin;
  if (has_packs) {
    rest = begin + (end - begin) / P::size * P::size;
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.x * P::size; i < rest; i += kSumThreads * P::size) {
      typename P::Value value[P::size];
      P::unpack(P::load(x + i), value);
#pragma unroll
      for (int k = 0; k < P::size; ++k) {
        const auto v = static_cast<Sum>(value[k]);
        sum += v * v;
      }
    }
  }
  for (std::int64_t i = rest + threadIdx.x; i < end; i += kSumThreads) {
    const auto v = static_cast<Sum>(widen(x[i]));
    sum += v * v;
  }
  return sum;
}

// Squares that leave the format of float are added again in double.
template <class T>
__device__ double squares_of_chunk(const T* x, std::int64_t begin, std::int64_t end,
                                   bool has_packs) {
  constexpr double kLeast = 1e-28;
  constexpr double kMost = 1e36;
  const double sum =
      sum_of_threads<kSumThreads>(squares_of_thread<accumulate_t<T>>(x, begin, end, has_packs));
  if (sizeof(T) == 8 || (sum > kLeast && sum < kMost) || sum != sum) return sum;
  return sum_of_threads<kSumThreads>(squares_of_thread<double>(x, begin, end, has_packs));
}

template <int kRows>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const __grid_constant__ RowTable<SumRow, kRows> table, double* sums) {
  const int chunk = static_cast<int>(blockIdx.x);
  const int place = row_of_chunk(table, chunk);
  const SumRow& row = table.row[place];
  const std::int64_t begin = (chunk - table.first_chunk[place]) * kSumChunk;
  const std::int64_t end = min(begin + kSumChunk, row.elements);
  const auto sum_of = [&]<class T>(const T* x) {
    return squares_of_chunk(x, begin, end, row.has_packs);
  };
  double sum;
  switch (row.dtype) {
    case DType::kFloat64: sum = sum_of(static_cast<const double*>(row.grad)); break;
    case DType::kFloat32: sum = sum_of(static_cast<const float*>(row.grad)); break;
    case DType::kFloat16: sum = sum_of(static_cast<const Half*>(row.grad)); break;
    default: sum = sum_of(static_cast<const BFloat16*>(row.grad)); break;
  }
  if (threadIdx.x == 0) sums[chunk] = sum;
}

__device__ double number_at(const void* pointer, bool is_double) {
  return is_double ? *static_cast<const double*>(pointer) : *static_cast<const float*>(pointer);
}

// The numbers that the whole list has in common.
struct Common {
  double unscale;
  double clip;
  bool skips;
};

__device__ Common common_numbers(const CountOptions& options) {
  Common c{.unscale = options.grad_scale == nullptr ? 1 : 1 / double{*options.grad_scale},
           .clip = 1,
           .skips = options.found_inf != nullptr && *options.found_inf != 0};
  if (!options.has_norm) return c;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < options.chunks; i += kCountThreads) {
    sum += options.sums[i];
  }
  const double norm = sqrt(sum_of_threads<kCountThreads>(sum)) * fabs(c.unscale);
  if (options.norm != nullptr && threadIdx.x == 0) *options.norm = static_cast<float>(norm);
  c.skips |= options.skips_nonfinite && !(norm <= std::numeric_limits<double>::max());
  if (options.max_norm > 0) c.clip = clip_of(options.max_norm, norm);
  return c;
}

// Adds 1 in the step's own dtype, in which it may be lost.
__device__ double count_step(const CountRow& row) {
  const double step = number_at(row.step, row.step_is_double) + 1;
  if (row.step_is_double) return *static_cast<double*>(row.step) = step;
  return *static_cast<float*>(row.step) = static_cast<float>(step);
}

template <class A>
__device__ StepNumbers<A> numbers_of(const CountRow& row, const CountOptions& options,
                                     const Common& common) {
  if (common.skips) return {.skips = true};
  const double step = count_step(row);
  const double lr = row.rate == nullptr ? row.lr : number_at(row.rate, row.rate_is_double);
  const double size = options.is_adamw ? lr / (1 - pow(row.beta1, step)) : lr;
  const double root = options.is_adamw ? 1 / sqrt(1 - pow(row.beta2, step)) : 1;
  const double factor = common.clip * (options.unscales_gradients ? 1 : common.unscale);
  return {.unscale = static_cast<A>(common.unscale),
          .factor = static_cast<A>(row.maximize ? -factor : factor),
          .decay = static_cast<A>(1 - lr * row.weight_decay),
          .minus_step = static_cast<A>(-size),
          .weight1 = static_cast<A>(1 - row.beta1),
          .beta2 = static_cast<A>(row.beta2),
          .weight2 = static_cast<A>(1 - row.beta2),
          .root_factor = static_cast<A>(root),
          .eps = static_cast<A>(row.eps),
          .skips = false,
          .step = random_step(step)};
}

// One CTA; a thread has a tensor.
template <class A, int kRows>
__global__ void __launch_bounds__(kCountThreads)
    count_kernel(const __grid_constant__ RowTable<CountRow, kRows> table,
                 const __grid_constant__ CountOptions options, StepNumbers<A>* numbers) {
  static_assert(kRows <= kCountThreads);
  const Common common = common_numbers(options);
  const int place = static_cast<int>(threadIdx.x);
  if (place < table.rows) numbers[place] = numbers_of<A>(table.row[place], options, common);
}

}  // namespace

template <int kRows>
void run_sums(const char* op, const Context& context, const RowTable<SumRow, kRows>& table,
              std::int64_t chunks, double* sums) {
  launch(op, context, {.ctas = chunks, .threads = kSumThreads}, sum_kernel<kRows>, table, sums);
}

template <class A, int kRows>
void run_count(const char* op, const Context& context, const RowTable<CountRow, kRows>& table,
               const CountOptions& options, StepNumbers<A>* numbers) {
  launch(op, context, {.threads = kCountThreads}, count_kernel<A, kRows>, table, options, numbers);
}

#define TFK_NUMBERS(ROWS)                                                                          \
  template void run_sums(const char*, const Context&, const RowTable<SumRow, ROWS>&, std::int64_t, \
                         double*);                                                                 \
  template void run_count(const char*, const Context&, const RowTable<CountRow, ROWS>&,            \
                          const CountOptions&, StepNumbers<float>*);                               \
  template void run_count(const char*, const Context&, const RowTable<CountRow, ROWS>&,            \
                          const CountOptions&, StepNumbers<double>*);
TFK_NUMBERS(kFewRows)
TFK_NUMBERS(kMostRows)
#undef TFK_NUMBERS

}  // namespace transformer_kernels::cuda
