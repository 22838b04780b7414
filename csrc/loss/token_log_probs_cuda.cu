// SPDX-License-Identifier: MIT
// Scores of tokens on CUDA, a CTA for each row. It reads the row once for its largest logit and a
// second time, from L2, for the sums of powers.
#include <cfloat>

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/dispatch.h"
#include "loss/token_log_probs_problem.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "token_log_probs";
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

template <class V>
constexpr V kLowest = std::is_same_v<V, double> ? V(-DBL_MAX) : V(-FLT_MAX);

__device__ __forceinline__ float natural_exp(float v) { return expf(v); }
__device__ __forceinline__ double natural_exp(double v) { return ::exp(v); }
__device__ __forceinline__ float natural_log(float v) { return logf(v); }
__device__ __forceinline__ double natural_log(double v) { return ::log(v); }
__device__ __forceinline__ float tangent(float v) { return tanhf(v); }
__device__ __forceinline__ double tangent(double v) { return ::tanh(v); }

template <class V>
__device__ __forceinline__ V logit(V x, V cap) {
  return cap > 0 ? cap * tangent(x / cap) : x;
}

// Over the threads of the CTA, which all get the result.
template <class Op, class V>
__device__ __forceinline__ V over_cta(V value) {
  __shared__ V of_warp[kWarps];
  value = reduce_lanes<Op>(value);
  __syncthreads();  // nobody still reads what the last call left
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  return reduce_lanes<Op, kWarps>(of_warp[threadIdx.x % kWarps]);
}

template <class V>
__device__ __forceinline__ void put(void* numbers, std::int64_t row, V value) {
  if (numbers != nullptr) static_cast<V*>(numbers)[row] = value;
}

template <class V>
__device__ __forceinline__ V number_or_zero(const void* numbers, std::int64_t at) {
  return numbers == nullptr ? V(0) : static_cast<const V*>(numbers)[at];
}

// A row's results; those of an ignored row are 0.
template <class V>
struct Scores {
  V top = 0;
  V spread = 0;
  V mean = 0;
  V log_prob = 0;
  V accuracy = 0;
};

template <class T, class V = accumulate_t<T>>
__device__ Scores<V> scores_of(const TokenLogProbsProblem& p, const T* x, std::int64_t token) {
  const V cap = static_cast<V>(p.softcap);
  const V own = p.is_class(token) ? V(widen(x[token])) : V(NAN);
  V largest = -INFINITY;
  int misses = 0;
  for (std::int64_t j = threadIdx.x; j < p.cols; j += kThreads) {
    const V v = widen(x[j]);
    largest = Max()(largest, v);
    misses |= !(v < own || (v == own && j >= token));
  }
  misses = __syncthreads_or(misses);
  const V top = logit(over_cta<Max>(largest), cap);
  V power = 0;
  V moment = 0;
  for (std::int64_t j = threadIdx.x; j < p.cols; j += kThreads) {
    const V d = logit(V(widen(x[j])), cap) - top;
    const V e = natural_exp(d);
    power += e;
    moment = fma(e, Max()(d, kLowest<V>), moment);
  }
  power = over_cta<Add>(power);
  moment = over_cta<Add>(moment);
  const V bad = p.is_class(token) ? V(0) : V(NAN);
  const V spread = natural_log(power) + bad;
  return {top, spread, moment / power, logit(own, cap) - top - spread,
          (misses ? V(0) : V(1)) + bad};
}

// T: storage. Grid: the rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    token_log_probs_forward_kernel(const __grid_constant__ TokenLogProbsForwardProblem p) {
  using V = accumulate_t<T>;
  const std::int64_t row = blockIdx.x;
  const std::int64_t token = p.token(row);
  Scores<V> s;
  if (token != p.ignore_index) {
    s = scores_of(p, static_cast<const T*>(p.x) + row * p.x_stride, token);
  }
  if (threadIdx.x != 0) return;
  put(p.log_probs, row, s.log_prob);
  put(p.entropy, row, s.spread - s.mean);
  put(p.accuracy, row, s.accuracy);
  put(p.top, row, s.top);
  put(p.spread, row, s.spread);
  put(p.mean, row, s.mean);
}

// T: storage. Grid: the rows. dx may be x.
template <class T>
__global__ void __launch_bounds__(kThreads)
    token_log_probs_backward_kernel(const __grid_constant__ TokenLogProbsBackwardProblem p) {
  using V = accumulate_t<T>;
  const std::int64_t row = blockIdx.x;
  const std::int64_t token = p.token(row);
  const bool ignored = token == p.ignore_index;
  if (ignored && p.accumulates) return;
  const T* const x = static_cast<const T*>(p.x) + row * p.x_stride;
  T* const dx = static_cast<T*>(p.dx) + row * p.dx_stride;
  const V cap = static_cast<V>(p.softcap);
  const V top = static_cast<const V*>(p.top)[row];
  const V spread = static_cast<const V*>(p.spread)[row];
  const V mean = number_or_zero<V>(p.mean, row);
  const V dlog_prob = number_or_zero<V>(p.dlog_probs, row);
  const V divisor = p.divisor == nullptr ? V(1) : *static_cast<const V*>(p.divisor);
  const V dentropy = number_or_zero<V>(p.dentropy, row * p.dentropy_step) / divisor;
  for (std::int64_t j = threadIdx.x; j < p.cols; j += kThreads) {
    if (ignored) {
      dx[j] = narrow<T>(V(0));
      continue;
    }
    const V z = logit(V(widen(x[j])), cap);
    const V d = z - top;
    const V power = natural_exp(d - spread);
    const V own = j == token ? dlog_prob : V(0);
    V g = fma(power * dentropy, mean - Max()(d, kLowest<V>), own - power * dlog_prob);
    if (cap > 0) g *= 1 - z / cap * (z / cap);
    dx[j] = narrow<T>(p.accumulates ? V(widen(dx[j])) + g : g);
  }
}

}  // namespace

void token_log_probs_forward(const Context& context, const TokenLogProbsForwardProblem& p) {
  dispatch_float(p.dtype, [&]<class T>() {
    launch(kOp, context, {.ctas = p.rows, .threads = kThreads}, &token_log_probs_forward_kernel<T>,
           p);
  });
}

void token_log_probs_backward(const Context& context, const TokenLogProbsBackwardProblem& p) {
  dispatch_float(p.dtype, [&]<class T>() {
    launch(kOp, context, {.ctas = p.rows, .threads = kThreads}, &token_log_probs_backward_kernel<T>,
           p);
  });
}

}  // namespace transformer_kernels::cuda
