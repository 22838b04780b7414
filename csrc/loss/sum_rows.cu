// SPDX-License-Identifier: MIT
// The sums over the rows of a call: of their losses, and of their weights in the mean. One CTA, or
// several whose sums one more adds up, works in an order that depends on the number of rows alone.
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "loss/cross_entropy_kernels.h"
#include "loss/cross_entropy_terms.cuh"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "cross_entropy";
constexpr int kThreads = 1024;
constexpr std::int64_t kRowsOfOneCta = 16 * kThreads;
constexpr std::int64_t kMostCtas = 256;

template <class V>
struct Sums {
  V loss;
  V counted;
};

template <class V>
struct SumCall {
  CrossEntropyForwardProblem p;
  const V* losses;       // null: only the sum of weights is wanted
  V* total;              // null: not wanted
  const Sums<V>* parts;  // what to add up where there are more than rows, of which ...
  std::int64_t count;    // ... there are so many
  Sums<V>* of_cta;       // where several CTAs leave theirs
};

__device__ double read_any(const void* data, DType dtype, std::int64_t at) {
  switch (dtype) {
    case DType::kFloat64: return static_cast<const double*>(data)[at];
    case DType::kFloat16: return widen(static_cast<const Half*>(data)[at]);
    case DType::kBFloat16: return widen(static_cast<const BFloat16*>(data)[at]);
    default: return static_cast<const float*>(data)[at];
  }
}

__device__ void write_any(double value, DType dtype, void* data) {
  switch (dtype) {
    case DType::kFloat64: *static_cast<double*>(data) = value; return;
    case DType::kFloat16:
      *static_cast<Half*>(data) = narrow<Half>(static_cast<float>(value));
      return;
    case DType::kBFloat16:
      *static_cast<BFloat16*>(data) = narrow<BFloat16>(static_cast<float>(value));
      return;
    default: *static_cast<float*>(data) = static_cast<float>(value);
  }
}

// The weight of a row in the mean, as in RowTerms.
template <class V>
__device__ V counted(const CrossEntropyProblem& p, std::int64_t row) {
  if (!p.has_labels()) return 1;
  const std::int64_t label = p.label(row);
  if (label == p.ignore_index) return 0;
  if (!p.is_class(label)) return V(NAN);
  return p.weight == nullptr ? V(1) : static_cast<V>(read_any(p.weight, p.weight_dtype, label));
}

template <class V>
__device__ Sums<V> sums_at(const SumCall<V>& c, std::int64_t i) {
  if (c.parts != nullptr) return c.parts[i];
  const bool means = c.p.reduction == Reduction::kMean;
  return {c.losses == nullptr ? V(0) : c.losses[i], means ? counted<V>(c.p, i) : V(0)};
}

template <class V>
__global__ void __launch_bounds__(kThreads) sum_rows_kernel(const __grid_constant__ SumCall<V> c) {
  __shared__ Sums<V> of_warp[kWarp];
#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();
  let_next_kernel_start();
#endif
  Sums<V> own{0, 0};
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < c.count; i += step) {
    const Sums<V> more = sums_at(c, i);
    own = {own.loss + more.loss, own.counted + more.counted};
  }
  const auto over_lanes = [](Sums<V> sums) {
    return Sums<V>{reduce_lanes<Add>(sums.loss), reduce_lanes<Add>(sums.counted)};
  };
  own = over_lanes(own);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  own = over_lanes(of_warp[threadIdx.x]);
  if (threadIdx.x != 0) return;
  if (c.of_cta != nullptr) {
    c.of_cta[blockIdx.x] = own;
    return;
  }
  if (c.total != nullptr) *c.total = own.counted;
  if (c.losses == nullptr) return;
  const V loss = c.p.reduction == Reduction::kMean ? own.loss / own.counted : own.loss;
  write_any(loss, c.p.loss_dtype, c.p.loss);
}

template <class V>
void run(const Context& context, SumCall<V> call) {
  const bool follows = device_limits(context.device.index).architecture >= 90;
  const auto launch_ctas = [&](std::int64_t ctas, const SumCall<V>& c) {
    const LaunchShape shape{.ctas = ctas, .threads = kThreads, .after_previous = follows};
    launch(kOp, context, shape, &sum_rows_kernel<V>, c);
  };
  if (call.count <= kRowsOfOneCta) return launch_ctas(1, call);
  const std::int64_t ctas = std::min(kMostCtas, divide_up(call.count, kRowsOfOneCta));
  const Scratch scratch(kOp, context, ctas * sizeof(Sums<V>));
  SumCall<V> first = call;
  first.of_cta = scratch.as<Sums<V>>();
  launch_ctas(ctas, first);
  call.parts = first.of_cta;
  call.count = ctas;
  launch_ctas(1, call);
}

}  // namespace

void sum_rows(const Context& context, const CrossEntropyForwardProblem& p, const void* losses,
              void* total) {
  dispatch_bool(p.dtype == DType::kFloat64, [&]<bool kDouble>() {
    using V = std::conditional_t<kDouble, double, float>;
    run(context, SumCall<V>{p, static_cast<const V*>(losses), static_cast<V*>(total), nullptr,
                            p.rows, nullptr});
  });
}

}  // namespace transformer_kernels::cuda
