// SPDX-License-Identifier: MIT
// The router's forward pass on CUDA, a warp for each token.
#pragma once

#include "core/cuda/launch.cuh"
#include "moe/router/choice.cuh"
#include "moe/router/kernels.cuh"
#include "moe/router/kernels_cuda.h"

namespace transformer_kernels::cuda {

struct RouterLaunch {
  MoeRouterForwardProblem problem;
  RouterShares shares;
  bool aligned;               // quads of logits
  bool reads_softmax;         // of all logits
  std::uint32_t of_sequence;  // tokens
  std::uint32_t pieces;       // of a sequence
};

template <class T, int kQuads, bool kSimple>
class RouterToken {
 public:
  using V = accumulate_t<T>;
  using Row = Logits<T, kQuads>;
  static constexpr int kCols = Row::kCols;
  static constexpr bool kOnePiece = kQuads < (kSimple ? 8 : 4);

  __device__ __forceinline__ RouterToken(const RouterLaunch& launch, std::int64_t token)
      : launch_(launch),
        p_(launch.problem),
        row_(p_, token, launch.aligned),
        lane_(static_cast<int>(threadIdx.x % kWarp)) {}

  __device__ __forceinline__ void run() {
    V z[kCols];
    row_.template load<!kSimple>(0, z);
    SoftmaxSum<V> all;
    if (launch_.reads_softmax) {
      all.add(z);
      for (int piece = 1; piece < pieces(); ++piece) {
        row_.template load<!kSimple>(piece, z);
        all.add(z);
      }
      if (pieces() > 1) row_.template load<!kSimple>(0, z);
    }
    Choice<V> choice = choose_of_piece(0, z, all, {});
    V own_sum = launch_.shares.factor != nullptr ? sum_of_scores(z) : V(0);
    for (int piece = 1; piece < pieces(); ++piece) {
      row_.template load<!kSimple>(piece, z);
      choice = choose_of_piece(piece, z, all, choice);
      if (launch_.shares.factor != nullptr) own_sum += sum_of_scores(z);
    }
    write(choice, all, own_sum);
  }

 private:
  // Kernels of few quads run rows of one piece alone.
  __device__ __forceinline__ int pieces() const { return kOnePiece ? 1 : row_.pieces(); }

  __device__ __forceinline__ V score(V z, const SoftmaxSum<V>& all) const {
    if (p_.score == RouterScore::kSoftmax) return natural_exp(z - all.top) * inverse(all.sum);
    return own_score(p_.score, z);
  }

  __device__ __forceinline__ V bias_at(int col) const {
    if (p_.bias == nullptr) return 0;
    if (p_.bias_dtype == p_.dtype) return widen(static_cast<const T*>(p_.bias)[col]);
    return static_cast<const V*>(p_.bias)[col];
  }

  // The keys of a piece; of columns behind the last, and of closed groups, 0.
  __device__ __forceinline__ Choice<V> choose_of_piece(int piece, const V (&z)[kCols],
                                                       const SoftmaxSum<V>& all,
                                                       Choice<V> before) const {
    const int first = Row::first_col(piece);
    key_t<V> key[kCols];
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
      V c = z[i];
      if (!kSimple && p_.chooses_by_score()) c = score(c, all);
      if (!kSimple && p_.bias != nullptr && first + i < p_.experts) c += bias_at(first + i);
      key[i] = first + i < p_.experts ? key_of(c) : key_t<V>{0};
    }
    if (!kSimple && p_.groups > 1) close_groups(key);
    Candidates<V, kQuads> candidates;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) candidates.quad[q].key[i] = key[4 * q + i];
      candidates.quad[q].sort();
    }
    if (kOnePiece || piece == 0) return candidates.choose(p_.chosen, first);
    return candidates.choose(p_.chosen, first, before);
  }

  // The sum of the two largest numbers of a group, for all lanes.
  __device__ __forceinline__ V best_two(const key_t<V> (&key)[kCols], int group, int size) const {
    const int first = Row::first_col(0);
    key_t<V> high = 0;
    key_t<V> low = 0;
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
      const int place = first + i - group * size;
      if (place < 0 || place >= size) continue;
      low = key[i] > high ? high : key[i] > low ? key[i] : low;
      high = key[i] > high ? key[i] : high;
    }
    const key_t<V> top = largest_key(high);
    if (lane_ == lowest_lane(high == top)) high = low;
    const key_t<V> next = largest_key(high);
    return number_of(top) + (size > 1 ? number_of(next) : V(0));
  }

  __device__ __forceinline__ void close_groups(key_t<V> (&key)[kCols]) const {
    const int size = p_.experts / p_.groups;
    key_t<V> of_group = 0;  // lane g has that of group g
    for (int g = 0; g < p_.groups; ++g) {
      const V sum = best_two(key, g, size);
      if (lane_ == g) of_group = key_of(sum);
    }
    std::uint32_t open = 0;
    for (int i = 0; i < p_.top_groups; ++i) {
      const int best = lowest_lane(of_group == largest_key(of_group));
      open |= 1u << best;
      if (lane_ == best) of_group = 0;
    }
    const int first = Row::first_col(0);
    int group = first / size;
    int place = first - group * size;
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
      if (group < kMostGroups && (open >> group & 1) == 0) key[i] = 0;
      if (++place == size) {
        place = 0;
        ++group;
      }
    }
  }

  // The sum of scores that are not softmax. Columns behind the last have -inf, whose score is 0.
  __device__ __forceinline__ V sum_of_scores(const V (&z)[kCols]) const {
    if (p_.score == RouterScore::kSoftmax) return 0;
    V own = 0;
#pragma unroll
    for (int i = 0; i < kCols; ++i) own += own_score(p_.score, z[i]);
    return reduce_lanes<Add>(own);
  }

  __device__ __forceinline__ void write(Choice<V> choice, const SoftmaxSum<V>& all, V own_sum) {
    const bool is_chosen = lane_ < p_.chosen;
    const V z = is_chosen ? row_.template at<!kSimple>(choice.col) : V(0);
    const ChosenShare<V> of = share_of(p_, z, all);
    if (is_chosen) {
      const std::int64_t at = row_.token * p_.chosen + lane_;
      static_cast<V*>(p_.weights)[at] = of.share * of.factor * static_cast<V>(p_.scale);
      p_.indices[at] = choice.col;
    }
    if (lane_ != 0) return;
    if (p_.lse != nullptr) static_cast<V*>(p_.lse)[row_.token] = all.lse();
    if (launch_.shares.factor == nullptr) return;
    const V sum =
        p_.score == RouterScore::kSoftmax ? all.sum : own_sum + static_cast<V>(kRouterEpsilon);
    static_cast<V*>(launch_.shares.shift)[row_.token] = all.top;
    static_cast<V*>(launch_.shares.factor)[row_.token] = inverse(sum);
  }

  const RouterLaunch& launch_;
  const MoeRouterForwardProblem& p_;
  Row row_;
  int lane_;
};

// kSimple: without noise, and logits are compared. Grid: kRouterWarps tokens each.
template <class T, int kQuads, bool kSimple>
__global__ void __launch_bounds__(kRouterThreads)
    moe_router_kernel(const __grid_constant__ RouterLaunch launch) {
  const std::int64_t token =
      std::int64_t{blockIdx.x} * kRouterWarps + static_cast<int>(threadIdx.x / kWarp);
  if (token < launch.problem.tokens) RouterToken<T, kQuads, kSimple>(launch, token).run();
}

// Grid: pieces of sequences, 128 columns each. A warp sums every kRouterWarps-th token of a piece.
template <class T>
__global__ void __launch_bounds__(kRouterThreads)
    router_importance_kernel(const __grid_constant__ RouterLaunch launch,
                             accumulate_t<T>* partial) {
  using V = accumulate_t<T>;
  constexpr int kBlockCols = 4 * kWarp;
  __shared__ V of_warp[kRouterWarps][kBlockCols];
  const MoeRouterForwardProblem& p = launch.problem;
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int col = static_cast<int>(blockIdx.y) * kBlockCols + 4 * lane;
  const std::uint32_t sequence = blockIdx.x / launch.pieces;
  const std::uint32_t begin = (blockIdx.x - sequence * launch.pieces) * kImportanceTokens;
  const std::uint32_t first = sequence * launch.of_sequence;
  const std::uint32_t end = first + min(begin + kImportanceTokens, launch.of_sequence);
  V sum[4] = {};
  for (std::uint32_t t = first + begin + warp; t < end; t += kRouterWarps) {
    const V shift = static_cast<const V*>(launch.shares.shift)[t];
    const V factor = static_cast<const V*>(launch.shares.factor)[t];
    const Logits<T, 1> row(p, t, launch.aligned);
    V z[4];
    load_quad(row.row, col, p.experts, launch.aligned, V(-INFINITY), z);
    if (p.is_noisy() && col < p.experts) disturb(p, row.key, counter_of(p, t, col), z);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const V s =
          p.score == RouterScore::kSoftmax ? natural_exp(z[i] - shift) : own_score(p.score, z[i]);
      sum[i] = fma(s, factor, sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) of_warp[warp][4 * lane + i] = sum[i];
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x);
  const int own_col = static_cast<int>(blockIdx.y) * kBlockCols + own;
  if (own >= kBlockCols || own_col >= p.experts) return;
  V total = 0;
#pragma unroll
  for (int w = 0; w < kRouterWarps; ++w) total += of_warp[w][own];
  partial[std::int64_t{blockIdx.x} * p.experts + own_col] = total;
}

// Grid: sequences, 32 columns each. Each warp sums a run of the pieces.
template <class V>
__global__ void __launch_bounds__(kRouterThreads)
    sum_importance_kernel(const __grid_constant__ MoeRouterForwardProblem p, std::uint32_t pieces,
                          const V* partial) {
  __shared__ V of_warp[kRouterWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int col = static_cast<int>(blockIdx.y) * kWarp + lane;
  const std::uint32_t run = (pieces + kRouterWarps - 1) / kRouterWarps;
  const std::uint32_t end = min((warp + 1) * run, pieces);
  V sum = 0;
  if (col < p.experts) {
#pragma unroll 8
    for (std::uint32_t i = warp * run; i < end; ++i) {
      sum += partial[(std::int64_t{blockIdx.x} * pieces + i) * p.experts + col];
    }
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || col >= p.experts) return;
  V total = 0;
#pragma unroll
  for (int w = 0; w < kRouterWarps; ++w) total += of_warp[w][lane];
  static_cast<V*>(p.importance)[blockIdx.x * std::int64_t{p.experts} + col] = total;
}

template <class T, int kQuads, bool kSimple>
void launch_router(const Context& context, const RouterLaunch& launch_of) {
  const LaunchShape shape{.ctas = divide_up(launch_of.problem.tokens, kRouterWarps),
                          .threads = kRouterThreads};
  launch("moe_router", context, shape, &moe_router_kernel<T, kQuads, kSimple>, launch_of);
}

template <class T>
RouterLaunch router_launch(const MoeRouterForwardProblem& p, const RouterShares& shares) {
  const bool is_softmax = p.score == RouterScore::kSoftmax;
  const bool by_score = p.chooses_by_score() || shares.factor != nullptr || !p.renormalize;
  return {.problem = p,
          .shares = shares,
          .aligned = quads_fit<T>(p.x, p.experts),
          .reads_softmax = p.lse != nullptr || (is_softmax && by_score),
          .of_sequence = static_cast<std::uint32_t>(p.tokens_of_sequence()),
          .pieces = static_cast<std::uint32_t>(pieces_of_sequence(p))};
}

template <class T>
void run_router(const Context& context, const MoeRouterForwardProblem& p,
                const RouterShares& shares) {
  const RouterLaunch launch_of = router_launch<T>(p, shares);
  const std::int64_t quads = divide_up(p.experts, 4 * kWarp);
  if (p.is_noisy() || p.chooses_by_score()) {
    if (quads == 1) return launch_router<T, 1, false>(context, launch_of);
    if (quads == 2) return launch_router<T, 2, false>(context, launch_of);
    return launch_router<T, 4, false>(context, launch_of);
  }
  if (quads == 1) return launch_router<T, 1, true>(context, launch_of);
  if (quads == 2) return launch_router<T, 2, true>(context, launch_of);
  if (quads <= 4) return launch_router<T, 4, true>(context, launch_of);
  launch_router<T, 8, true>(context, launch_of);
}

template <class T>
void run_importance(const Context& context, const MoeRouterForwardProblem& p,
                    const RouterShares& shares, void* partial) {
  using V = accumulate_t<T>;
  const RouterLaunch launch_of = router_launch<T>(p, shares);
  const auto columns = [&](int of_cta) { return static_cast<int>(divide_up(p.experts, of_cta)); };
  V* const sums = static_cast<V*>(partial);
  const std::int64_t count = p.sequences * pieces_of_sequence(p);
  if (count > 0) {
    launch("moe_router", context,
           {.ctas = count, .threads = kRouterThreads, .ctas_y = columns(4 * kWarp)},
           &router_importance_kernel<T>, launch_of, sums);
  }
  launch("moe_router", context,
         {.ctas = p.sequences, .threads = kRouterThreads, .ctas_y = columns(kWarp)},
         &sum_importance_kernel<V>, p, launch_of.pieces, static_cast<const V*>(sums));
}

}  // namespace transformer_kernels::cuda
