// SPDX-License-Identifier: MIT
// The router's backward pass on CUDA, a warp for each token: first the gradient that reaches every
// logit, then, by one lane for each of the chosen, theirs with the gradient of the weight.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/cuda/occupancy.h"
#include "moe/router/kernels.cuh"
#include "moe/router/kernels_cuda.h"

namespace transformer_kernels::cuda {

struct RouterGradientLaunch {
  MoeRouterBackwardProblem problem;
  bool aligned;     // quads of logits
  bool dx_aligned;  // and of their gradient
  bool reads_softmax;
  std::uint32_t of_sequence;  // tokens
};

template <class T>
class RouterGradient {
 public:
  using V = accumulate_t<T>;
  using Row = Logits<T, 1>;

  __device__ __forceinline__ RouterGradient(const RouterGradientLaunch& launch, std::int64_t token)
      : launch_(launch),
        p_(launch.problem),
        row_(p_, token, launch.aligned),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        is_softmax_(p_.score == RouterScore::kSoftmax) {
    if (p_.dimportance != nullptr) {
      const std::uint32_t sequence = static_cast<std::uint32_t>(token) / launch.of_sequence;
      dimportance_ = static_cast<const V*>(p_.dimportance) + std::int64_t{sequence} * p_.experts;
    }
    if (p_.dlse != nullptr) dlse_ = static_cast<const V*>(p_.dlse)[token];
  }

  __device__ __forceinline__ void run() {
    V z[4];
    row_.template load<true>(0, z);
    if (launch_.reads_softmax) {
      all_.add(z);
      for (int piece = 1; piece < pieces(); ++piece) {
        row_.template load<true>(piece, z);
        all_.add(z);
      }
      if (pieces() > 1) row_.template load<true>(0, z);
      softmax_factor_ = inverse(all_.sum);
    }
    if (dimportance_ != nullptr) {
      add_means(0, z);
      for (int piece = 1; piece < pieces(); ++piece) {
        row_.template load<true>(piece, z);
        add_means(piece, z);
      }
      if (pieces() > 1) row_.template load<true>(0, z);
      if (!is_softmax_) factor_ = inverse(score_sum_ + static_cast<V>(kRouterEpsilon));
      mean_ *= factor_;
    }
    const int index = lane_ < p_.chosen ? p_.indices[row_.token * p_.chosen + lane_] : -1;
    const bool is_expert = index >= 0 && index < p_.experts;  // else the weight has no gradient
    const int col = is_expert ? index : 0;
    const V logit = row_.template at<true>(col);
    const V added = gradient_of_chosen(logit);
    write(0, z);
    for (int piece = 1; piece < pieces(); ++piece) {
      row_.template load<true>(piece, z);
      write(piece, z);
    }
    __syncwarp();  // the chosen are written a second time
    if (is_expert) {
      const V dz = of_all(logit, col) + added;
      dx()[col] = narrow<T>(dz * row_.slope_at(col));
    }
  }

 private:
  __device__ __forceinline__ int pieces() const { return row_.pieces(); }
  __device__ __forceinline__ T* dx() const {
    return static_cast<T*>(p_.dx.data) + row_.token * p_.dx.stride;
  }

  // Sums the scores, and their products with the gradient of the importance.
  __device__ __forceinline__ void add_means(int piece, const V (&z)[4]) {
    const int first = Row::first_col(piece);
    V sum = 0;
    V product = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= p_.experts) continue;
      const V s =
          is_softmax_ ? natural_exp(z[i] - all_.top) * softmax_factor_ : own_score(p_.score, z[i]);
      sum += s;
      product = fma(s, dimportance_[first + i], product);
    }
    if (!is_softmax_) score_sum_ += reduce_lanes<Add>(sum);
    mean_ += reduce_lanes<Add>(product);
  }

  // The gradient of the logit that lane k has, the k-th of the chosen, by way of the weights. It
  // adds to the mean of a softmax over all.
  __device__ __forceinline__ V gradient_of_chosen(V z) {
    if (p_.dweights == nullptr) return 0;
    const ChosenShare<V> of = share_of(p_, z, all_);
    V dweight = 0;
    if (lane_ < p_.chosen) {
      dweight = static_cast<const V*>(p_.dweights)[row_.token * p_.chosen + lane_];
    }
    const V share = of.share * of.factor;
    const V scale = static_cast<V>(p_.scale);
    const V mean = reduce_lanes<Add>(share * dweight);
    if (is_softmax_ && p_.renormalize) return scale * share * (dweight - mean);
    if (is_softmax_) {
      mean_ += scale * mean;
      return scale * share * dweight;
    }
    const V slope = own_slope(p_.score, z, of.share);
    return scale * slope * (p_.renormalize ? (dweight - mean) * of.factor : dweight);
  }

  // The gradient of any logit but for that by way of the chosen.
  __device__ __forceinline__ V of_all(V z, int col) const {
    const V share = launch_.reads_softmax ? natural_exp(z - all_.top) * softmax_factor_ : V(0);
    const V of_importance = dimportance_ == nullptr ? V(0) : dimportance_[col];
    if (is_softmax_) return launch_.reads_softmax ? share * (of_importance - mean_ + dlse_) : V(0);
    V dz = launch_.reads_softmax ? dlse_ * share : V(0);
    if (dimportance_ != nullptr) {
      const V slope = own_slope(p_.score, z, own_score(p_.score, z));
      dz += (of_importance - mean_) * factor_ * slope;
    }
    return dz;
  }

  __device__ __forceinline__ void write(int piece, const V (&z)[4]) const {
    const int col = Row::first_col(piece);
    if (col >= p_.experts) return;
    V dz[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) dz[i] = col + i < p_.experts ? of_all(z[i], col + i) : V(0);
    if (p_.jitter > 0) {
      V slope[4];
      draw_slopes(p_, row_.key, counter_of(p_, row_.token, col), slope);
#pragma unroll
      for (int i = 0; i < 4; ++i) dz[i] *= slope[i];
    }
    store_quad(dx(), col, p_.experts, launch_.dx_aligned, dz);
  }

  const RouterGradientLaunch& launch_;
  const MoeRouterBackwardProblem& p_;
  Row row_;
  int lane_;
  bool is_softmax_;
  const V* dimportance_ = nullptr;
  V dlse_ = 0;
  SoftmaxSum<V> all_;
  V softmax_factor_ = 0;
  V score_sum_ = 0;  // and its inverse, of other scores than softmax
  V factor_ = 1;
  V mean_ = 0;
};

// Without a number of CTAs, which 0 stands for, ptxas leaves a thread of sm_100 too few registers.
inline constexpr int kRouterGradientCtas = kArchitecture < 100 ? 0 : 2;

// Grid: kRouterWarps tokens each.
template <class T>
__global__ void __launch_bounds__(kRouterThreads, kRouterGradientCtas)
    moe_router_backward_kernel(const __grid_constant__ RouterGradientLaunch launch) {
  const std::int64_t token =
      std::int64_t{blockIdx.x} * kRouterWarps + static_cast<int>(threadIdx.x / kWarp);
  if (token < launch.problem.tokens) RouterGradient<T>(launch, token).run();
}

template <class T>
void run_router_gradient(const Context& context, const MoeRouterBackwardProblem& p) {
  const bool reaches_all = !p.renormalize || p.dimportance != nullptr || p.dlse != nullptr;
  const bool is_softmax = p.score == RouterScore::kSoftmax;
  const RouterGradientLaunch of{.problem = p,
                                .aligned = quads_fit<T>(p.x, p.experts),
                                .dx_aligned = quads_fit<T>(p.dx, p.experts),
                                .reads_softmax = is_softmax ? reaches_all : p.dlse != nullptr,
                                .of_sequence = static_cast<std::uint32_t>(p.tokens_of_sequence())};
  const LaunchShape shape{.ctas = divide_up(p.tokens, kRouterWarps), .threads = kRouterThreads};
  launch("moe_router", context, shape, &moe_router_backward_kernel<T>, of);
}

}  // namespace transformer_kernels::cuda
