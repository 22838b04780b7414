// SPDX-License-Identifier: MIT
// Speculative acceptance on CUDA, in two launches: sums of all rows side by side, then a decision
// and a draw for each sequence.
#include "decode/sampling/kernels_cuda.h"
#include "decode/sampling/launch_groups.cuh"
#include "decode/sampling/row_part.cuh"

namespace transformer_kernels::cuda {
namespace {

using namespace sampling;

__device__ __forceinline__ std::int64_t length_of(const AcceptProblem& p, std::int64_t sequence) {
  return p.lengths == nullptr ? p.drafted : p.lengths[sequence];
}

// A distribution as weights and their sum.
template <class T>
struct Shares {
  const T* row;
  bool are_logits;
  RowShare of;

  __device__ __forceinline__ std::uint64_t weight(std::int64_t token) const {
    const auto number = static_cast<float>(widen(row[token]));
    if (!are_logits) return whole_weight(weight_of_probability(number));
    return whole_weight(weight_of<true>(weighing(of.top), number));
  }
  static __device__ __forceinline__ Weighing weighing(float top) {
    return {.top = top, .scale = static_cast<float>(kLog2OfE)};
  }
};

template <class T>
__device__ __forceinline__ const T* row_of(const Rows& rows, std::int64_t at) {
  return static_cast<const T*>(rows.data) + at * rows.stride;
}

// ---- sums

template <class T>
__device__ __forceinline__ RowShare share_of(const T* row, bool are_logits, const Part& part,
                                             Group& group) {
  const std::uint64_t best =
      load_part<4>(row, part, [](int, float v) { return v == v ? v : -kInfinity; });
  group.start();
  if (!are_logits) {
    __syncthreads();
    const std::uint64_t sum = group.over_all<Add>(sum_weights_of_probabilities(part));
    return {0, static_cast<std::int64_t>(sum)};
  }
  const float largest = number_of(key_in(group.over_all<Larger>(best)));
  // Where all are -infinity, no weight is left.
  const float top = largest == -kInfinity ? kInfinity : largest;
  const std::uint64_t sum = group.over_all<Add>(sum_weights(part, Shares<T>::weighing(top)));
  return {top, static_cast<std::int64_t>(sum)};
}

// T: storage. Grid: the CTAs of each row of targets, then of drafts. kResident: as for a choice.
template <class T, bool kResident>
__global__ void __launch_bounds__(kThreads, kResident ? 2 : 1)
    accept_sums_kernel(const __grid_constant__ AcceptCall c) {
  extern __shared__ uint4 shared[];
  const AcceptProblem& p = c.p;
  const std::int64_t targets = p.batch * (p.drafted + 1);
  const std::int64_t at = blockIdx.x / c.plan.ctas;
  const bool is_target = at < targets;
  const std::int64_t own = is_target ? at : at - targets;
  const std::int64_t rows = is_target ? p.drafted + 1 : p.drafted;  // of a sequence
  const std::int64_t length = length_of(p, own / rows);
  const std::int64_t place = own % rows;
  if (place > 0 && place > (is_target ? length : length - 1)) return;  // nobody will ask
  auto& memory = *reinterpret_cast<GroupMemory*>(shared);
  float* z = reinterpret_cast<float*>(&memory + 1);
  if constexpr (!kResident) z = c.numbers + std::int64_t{blockIdx.x} * c.plan.part;
  Group group(memory, c.plan.ctas);
  const Part part = part_of_cta(group, z, c.plan.part, p.vocabulary);
  const RowShare share =
      share_of(row_of<T>(is_target ? p.target : p.draft, own), p.logits, part, group);
  if (group.rank() == 0 && threadIdx.x == 0) c.shares[at] = share;
}

// ---- decisions

template <class T>
class Sequence {
 public:
  __device__ __forceinline__ Sequence(const AcceptCall& c, GroupMemory& memory, int& kept)
      : c_(c),
        p_(c.p),
        group_(memory, c.plan.ctas),
        kept_(kept),
        at_(blockIdx.x / c.plan.ctas),
        length_(length_of(c.p, at_)),
        part_(part_of_cta(group_, nullptr, c.plan.part, c.p.vocabulary)) {}

  __device__ __forceinline__ void decide() {
    const auto drafted = static_cast<int>(p_.drafted);
    count_kept(static_cast<int>(min(max(length_, std::int64_t{0}), std::int64_t{drafted})));
    group_.start();
    const Shares<T> target = target_at(kept_);
    if (group_.rank() == 0 && threadIdx.x == 0) p_.accepted[at_] = kept_;
    if (kept_ < length_ && drafted > 0 && replaced(target, min(kept_, drafted - 1))) return;
    drawn([&](std::int64_t token) { return target.weight(token); });
  }

 private:
  __device__ __forceinline__ Shares<T> target_at(std::int64_t i) const {
    const std::int64_t row = at_ * (p_.drafted + 1) + i;
    return {row_of<T>(p_.target, row), p_.logits, c_.shares[row]};
  }
  __device__ __forceinline__ Shares<T> draft_at(std::int64_t i) const {
    const std::int64_t row = at_ * p_.drafted + i;
    return {row_of<T>(p_.draft, row), p_.logits, c_.shares[p_.batch * (p_.drafted + 1) + row]};
  }
  __device__ __forceinline__ std::int64_t drafted_at(std::int64_t i) const {
    return p_.draft_tokens[at_ * p_.drafted + i];
  }
  __device__ __forceinline__ double uniform_at(std::int64_t i, std::uint64_t stream) const {
    return uniform(p_.seed[at_], p_.position[at_] + i, stream);
  }

  __device__ __forceinline__ bool keeps(std::int64_t i) const {
    const std::int64_t token = drafted_at(i);
    if (token < 0 || token >= p_.vocabulary) return false;
    double q = 1;
    double q_sum = 1;
    if (p_.draft.data != nullptr) {
      const Shares<T> draft = draft_at(i);
      q = static_cast<double>(draft.weight(token));
      q_sum = static_cast<double>(draft.of.sum);
    }
    const Shares<T> target = target_at(i);
    const double p = static_cast<double>(target.weight(token));
    return uniform_at(i, kKeepStream) * (q * static_cast<double>(target.of.sum)) < p * q_sum;
  }
  __device__ __forceinline__ void count_kept(int most) {
    if (threadIdx.x == 0) kept_ = most;
    __syncthreads();
    for (int i = threadIdx.x; i < most; i += kThreads) {
      if (!keeps(i)) atomicMin(&kept_, i);
    }
    __syncthreads();
  }

  // Draws what the target has more of than the draft; returns whether there is any.
  __device__ __forceinline__ bool replaced(const Shares<T>& target, int i) {
    const auto unit = static_cast<double>(kUnit);
    const auto over = [&](std::int64_t sum) {
      return sum > 0 ? unit / static_cast<double>(sum) : 1.0;
    };
    const double a = over(target.of.sum);
    if (p_.draft.data == nullptr) {
      const std::int64_t refused = drafted_at(i);
      return drawn([&](std::int64_t token) {
        return excess(target.weight(token), a, token == refused ? unit : 0.0, 1.0);
      });
    }
    const Shares<T> draft = draft_at(i);
    const double b = over(draft.of.sum);
    return drawn([&](std::int64_t token) {
      return excess(target.weight(token), a, static_cast<double>(draft.weight(token)), b);
    });
  }
  static __device__ __forceinline__ std::uint64_t excess(std::uint64_t p, double a, double q,
                                                         double b) {
    const double left = __dsub_rn(__dmul_rn(static_cast<double>(p), a), __dmul_rn(q, b));
    return left > 0 ? __double2ull_rn(left) : 0;
  }

  // Returns whether there is any weight; the token is -1 where not.
  template <class WeightAt>
  __device__ __forceinline__ bool drawn(WeightAt weight_at) {
    const auto weight = [&](int i) {
      return i < part_.count ? weight_at(part_.begin + i) : std::uint64_t{0};
    };
    const Span own = part_.of_warp();
    std::uint64_t sum = 0;
#pragma unroll 4
    for (int i = own.begin + lane(); i < own.end; i += kWarp) sum += weight(i);
    const Sums sums = group_.sum(sum);
    const bool writes = threadIdx.x == 0;
    if (sums.all == 0) {
      if (writes && group_.rank() == 0) p_.token[at_] = -1;
      return false;
    }
    const double u = uniform_at(kept_, kNextStream);
    const std::uint64_t part = part_of(u, static_cast<std::int64_t>(sums.all)) - sums.before;
    if (part >= sums.own) return true;  // it falls on another CTA's
    const Found found = group_.locate_again({0, part_.size}, part, weight);
    if (writes) p_.token[at_] = part_.begin + found.at;
    return true;
  }

  const AcceptCall& c_;
  const AcceptProblem& p_;
  Group group_;
  int& kept_;
  std::int64_t at_;
  std::int64_t length_;
  Part part_;
};

// T: storage. Grid: the CTAs of each sequence, in turn.
template <class T>
__global__ void __launch_bounds__(kThreads, 1) accept_kernel(const __grid_constant__ AcceptCall c) {
  extern __shared__ uint4 shared[];
  auto& memory = *reinterpret_cast<GroupMemory*>(shared);
  Sequence<T>(c, memory, *reinterpret_cast<int*>(&memory + 1)).decide();
}

}  // namespace

template <class T>
void run_accept(const Context& context, const AcceptCall& c) {
  const auto run = [&](auto kernel, std::int64_t rows, std::size_t numbers) {
    launch_groups("speculative_accept", context, kernel, c, rows, numbers);
  };
  if (c.numbers == nullptr) {
    run(&accept_sums_kernel<T, true>, c.p.rows(), c.plan.part);
  } else {
    run(&accept_sums_kernel<T, false>, c.p.rows(), 0);
  }
  run(&accept_kernel<T>, c.p.batch, 1);
}

template void run_accept<TFK_TYPE>(const Context&, const AcceptCall&);

}  // namespace transformer_kernels::cuda
