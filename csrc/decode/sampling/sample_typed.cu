// SPDX-License-Identifier: MIT
// The choice of a token on CUDA. A row's CTAs read it once and walk their parts, in shared memory,
// for each thing that they have to know: the largest number, limits of filters, the sum of weights.
#include "decode/sampling/kernels_cuda.h"
#include "decode/sampling/launch_groups.cuh"
#include "decode/sampling/row_part.cuh"

namespace transformer_kernels::cuda {
namespace {

using namespace sampling;

// The numbers that a token is drawn from. z of a part holds, as it is written, how often each of
// its tokens was before: whether at all in the lowest bit, and how often behind the prompt.
struct Change {
  const float* bias;          // of the part, as all
  const std::uint8_t* bytes;  // of what is allowed
  const std::uint32_t* bits;
  const float* counts;  // null: there are no penalties
  float repetition;
  float presence;
  float frequency;

  __device__ __forceinline__ float operator()(int i, float v) const {
    if (bias != nullptr) v += bias[i];
    if (counts != nullptr) v = penalised(v, __float_as_uint(counts[i]));
    const bool is_allowed = (bytes == nullptr || bytes[i] != 0) &&
                            (bits == nullptr || (bits[i / 32] >> (i % 32) & 1) != 0);
    return is_allowed ? v : -kInfinity;
  }
  __device__ __forceinline__ float penalised(float v, std::uint32_t seen) const {
    if (seen == 0) return v;
    const std::uint32_t times = seen >> 1;
    v = v < 0 ? __fmul_rn(v, repetition) : __fdiv_rn(v, repetition);
    v = __fsub_rn(v, __fmul_rn(frequency, static_cast<float>(times)));
    return __fsub_rn(v, times > 0 ? presence : 0.0f);
  }
};

template <class T>
class Choice {
 public:
  __device__ __forceinline__ Choice(const SampleCall& c, GroupMemory& memory, float* z)
      : c_(c),
        p_(c.p),
        group_(memory, c.plan.ctas),
        model_(memory.model),
        row_(static_cast<int>(blockIdx.x / c.plan.ctas)),
        part_(part_of_cta(group_, z, c.plan.part, c.p.vocabulary)),
        with_(memory.parameters) {
    // Shared memory keeps what registers have no room for.
    if (threadIdx.x == 0) memory.parameters = c.p.of(row_);
    if (c.p.previous != nullptr) __syncthreads();  // else they are read behind other barriers
  }

  __device__ __forceinline__ void make() {
    const bool is_changed = p_.is_changed(with_);
    std::uint64_t best = 0;
    group_.start();
    if (p_.describes_model() || !is_changed) {
      best = load_part<4>(logits(), part_, [](int, float v) { return v; });
      best = group_.over_all<Larger>(best);
    }
    if (p_.describes_model()) describe_model(best);
    if (is_changed) best = group_.over_all<Larger>(load_changed());
    const std::uint32_t key = key_in(best);
    if (key == kNanKey) {
      choose(place_in(best), NAN, NAN);
    } else if (key == key_of(-kInfinity)) {
      choose(-1, 0, 0);
    } else if (with_.temperature < kColdest) {
      choose(place_in(best), 1, 0);
    } else {
      draw(number_of(key));
    }
  }

 private:
  // ---- logits

  __device__ __forceinline__ const T* logits() const {
    return static_cast<const T*>(p_.logits.data) + row_ * p_.logits.stride;
  }

  __device__ __forceinline__ std::uint64_t load_changed() {
    Change change{};
    if (p_.bias.data != nullptr) {
      change.bias = static_cast<const float*>(p_.bias.data) + row_ * p_.bias.stride + part_.begin;
    }
    if (p_.allowed.data != nullptr && p_.allowed_bits) {
      change.bits = static_cast<const std::uint32_t*>(p_.allowed.data) + row_ * p_.allowed.stride +
                    part_.begin / 32;
    } else if (p_.allowed.data != nullptr) {
      change.bytes = static_cast<const std::uint8_t*>(p_.allowed.data) + row_ * p_.allowed.stride +
                     part_.begin;
    }
    if (p_.has_penalties(with_)) {
      count_previous();
      change.counts = part_.z;
      change.repetition = with_.repetition_penalty;
      change.presence = with_.presence_penalty;
      change.frequency = with_.frequency_penalty;
    }
    return load_part<1>(logits(), part_, change);  // more would not fit into registers
  }

  __device__ __forceinline__ void count_previous() {
    auto* const counts = reinterpret_cast<std::uint32_t*>(part_.z);
    __syncthreads();  // nobody reads z any more
    for (int i = threadIdx.x; i < part_.size; i += kThreads) counts[i] = 0;
    __syncthreads();
    const std::int64_t* const previous = p_.previous + row_ * p_.previous_count;
    const std::int64_t prompt = p_.prompt_lengths == nullptr ? 0 : p_.prompt_lengths[row_];
    for (std::int64_t i = threadIdx.x; i < p_.previous_count; i += kThreads) {
      const std::int64_t at = previous[i] - part_.begin;
      if (at < 0 || at >= part_.count) continue;
      atomicOr(counts + at, 1u);
      if (i >= prompt) atomicAdd(counts + at, 2u);
    }
    __syncthreads();
  }

  // ---- the model's own distribution

  __device__ __forceinline__ void describe_model(std::uint64_t best) {
    const std::uint32_t key = key_in(best);
    const bool is_known = key != kNanKey && key != key_of(-kInfinity);
    std::uint64_t sum = 0;
    if (is_known) sum = group_.over_all<Add>(sum_weights(part_, weighing(number_of(key), 1)));
    if (threadIdx.x == 0) {
      const double log_of_sum = ::log(static_cast<double>(sum) * (1 / double{kUnit}));
      model_ = {is_known, number_of(key), log_of_sum};
    }
    __syncthreads();
    if (p_.top > 0) write_top();
  }
  __device__ __forceinline__ float log_probability_of(float x) const {
    if (!model_.is_known) return NAN;
    const double below = x == model_.top ? 0 : static_cast<double>(x) - model_.top;
    return static_cast<float>(below - model_.log_of_sum);
  }

  __device__ __forceinline__ void write_top() {
    const int step = group_.ctas() * kThreads;
    const int first = group_.rank() * kThreads + static_cast<int>(threadIdx.x);
    if (!model_.is_known) {
      for (std::int64_t i = first; i < p_.top; i += step) put_top(i, -1, NAN);
      return;
    }
    leave_likeliest();
    group_.sync();
    for (std::int64_t i = first; i < p_.top * group_.ctas(); i += step) {
      const auto of = static_cast<int>(i / p_.top);
      const std::uint64_t entry = likeliest(of)[i % p_.top];
      std::int64_t place = i % p_.top;
      for (int cta = 0; cta < group_.ctas(); ++cta) {
        if (cta != of) place += larger_ones(likeliest(cta), entry);
      }
      if (entry == 0 || place >= p_.top) continue;
      put_top(place, place_in(entry), log_probability_of(number_of(key_in(entry))));
    }
  }
  __device__ __forceinline__ void put_top(std::int64_t place, std::int64_t token, float log_prob) {
    p_.top_tokens[row_ * p_.top + place] = token;
    p_.top_log_probs[row_ * p_.top + place] = log_prob;
  }
  __device__ __forceinline__ std::uint64_t* likeliest(int cta) const {
    return c_.likeliest + (row_ * group_.ctas() + cta) * p_.top;
  }
  // How many entries, of which the largest come first, are larger than one.
  __device__ __forceinline__ std::int64_t larger_ones(const std::uint64_t* entries,
                                                      std::uint64_t entry) const {
    std::int64_t begin = 0;
    std::int64_t end = p_.top;
    while (begin < end) {
      const std::int64_t middle = (begin + end) / 2;
      if (entries[middle] > entry) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
  // One after the other: each thread keeps the largest entry of its own elements, and the one that
  // has had the largest of all looks for its next.
  __device__ __forceinline__ void leave_likeliest() {
    std::uint64_t own = largest_below(~std::uint64_t{0});
    for (std::int64_t i = 0; i < p_.top; ++i) {
      const std::uint64_t largest = group_.over_cta<Larger>(own);
      if (threadIdx.x == 0) likeliest(group_.rank())[i] = largest;
      if (own == largest && own != 0) own = largest_below(own);
    }
  }
  __device__ __forceinline__ std::uint64_t largest_below(std::uint64_t bound) const {
    std::uint64_t largest = 0;
    for (int i = threadIdx.x; i < part_.count; i += kThreads) {
      const std::uint64_t entry = entry_of(key_of(part_.z[i]), part_.begin + i);
      if (entry < bound) largest = Larger()(entry, largest);
    }
    return largest;
  }

  // ---- the draw

  __device__ __forceinline__ void draw(float top) {
    Weighing by = weighing(top, with_.temperature);
    limit(by);
    const Sums sums = group_.sum(sum_weights(part_, by));
    const auto sum = static_cast<std::int64_t>(sums.all);
    if (p_.probabilities != nullptr) write_shares(by, static_cast<double>(sum));
    if (sum == 0) return write(-1);  // parameters that only the device has seen allow nothing
    const double u = uniform(p_.seed[row_], p_.position[row_], 0);
    const std::uint64_t part = part_of(u, sum) - sums.before;
    if (part >= sums.own) return;  // it falls on another CTA's
    const Found found = group_.locate_again({0, part_.size}, part, [&](int i) {
      return whole_weight(weight_of<true>(by, part_.z[i]));
    });
    if (threadIdx.x == 0) write_own(part_.begin + found.at);
  }
  __device__ __forceinline__ void limit(Weighing& by) {
    const std::int64_t k = with_.top_k >= 1 && with_.top_k < static_cast<float>(p_.vocabulary)
                               ? static_cast<std::int64_t>(with_.top_k)
                               : 0;
    // Parameters may be NaN: conditions are those of the formula.
    if (k > 0) by.least = least_of(by, k, [](float) { return std::uint64_t{1}; });
    by.is_limited = k > 0;
    if (!(with_.top_p >= 1)) {
      const std::uint64_t sum = group_.over_all<Add>(sum_weights(part_, by));
      by.least = least_of(by, mass_of(with_.top_p, sum),
                          [&](float z) { return whole_weight(weight_of<true>(by, z)); });
      by.is_limited = true;
    }
    if (!(with_.min_p <= 0)) {
      by.fewest = __fmul_rn(with_.min_p, kUnit);
      by.is_limited = true;
    }
    if (!(with_.typical_p >= 1)) limit_to_typical(by);
  }
  // The least number that is kept where those before it have less than `mass`.
  template <class MassOf>
  __device__ __forceinline__ float least_of(const Weighing& by, std::uint64_t mass,
                                            MassOf mass_of_number) {
    return number_of(~group_.last_kept(part_.of_warp(), mass, [&](int i) {
      const float z = part_.z[i];
      return Item{-exponent(by, z), ~key_of(z), mass_of_number(z)};
    }));
  }
  __device__ __forceinline__ void limit_to_typical(Weighing& by) {
    const std::uint64_t sum = group_.over_all<Add>(sum_weights(part_, by));
    const Span own = part_.of_warp();
    std::uint64_t moment = 0;
    for (int i = own.begin + lane(); i < own.end; i += kWarp) {
      const float x = exponent(by, part_.z[i]);
      const float share = __fmul_rn(weight_of<true>(by, part_.z[i]), 1 / kUnit);
      moment += whole_weight(__fmul_rn(__fmul_rn(share, x), -0x1p32f));
    }
    moment = group_.over_all<Add>(moment);
    const double mean = -static_cast<double>(moment) * 256 / static_cast<double>(sum);
    const Weighing all = by;
    by.mean = static_cast<float>(mean);
    by.reach = __uint_as_float(group_.last_kept(own, mass_of(with_.typical_p, sum), [&](int i) {
      const float distance = fabsf(__fsub_rn(exponent(all, part_.z[i]), by.mean));
      return Item{distance, __float_as_uint(distance),
                  whole_weight(weight_of<true>(all, part_.z[i]))};
    }));
    by.is_limited = true;
  }

  // ---- results

  // A token that is not drawn, with the probability of itself and of all others.
  __device__ __forceinline__ void choose(std::int64_t token, float own, float others) {
    if (p_.probabilities != nullptr) {
      for (int i = threadIdx.x; i < part_.count; i += kThreads) {
        probabilities()[i] = part_.begin + i == token ? own : others;
      }
    }
    write(token);
  }
  __device__ __forceinline__ void write_shares(const Weighing& by, double sum) {
    for (int i = threadIdx.x; i < part_.count; i += kThreads) {
      const std::uint64_t w = whole_weight(weight_of<true>(by, part_.z[i]));
      probabilities()[i] = static_cast<float>(static_cast<double>(w) / sum);
    }
  }
  __device__ __forceinline__ float* probabilities() const {
    return p_.probabilities + row_ * p_.vocabulary + part_.begin;
  }
  // One CTA writes a token that all of them know.
  __device__ __forceinline__ void write(std::int64_t token) {
    if (group_.rank() == 0 && threadIdx.x == 0) write_own(token);
  }
  __device__ __forceinline__ void write_own(std::int64_t token) {
    p_.tokens[row_] = token;
    if (p_.log_probs == nullptr) return;
    p_.log_probs[row_] =
        token < 0 ? NAN : log_probability_of(static_cast<float>(widen(logits()[token])));
  }

  const SampleCall& c_;
  const SampleProblem& p_;
  Group group_;
  Model& model_;
  int row_;
  Part part_;
  const SamplingParameters& with_;
};

// T: storage. Grid: the CTAs of each row, in turn. kResident: parts are in shared memory.
template <class T, bool kResident>
__global__ void __launch_bounds__(kThreads, kResident ? 2 : 1)
    sample_logits_kernel(const __grid_constant__ SampleCall c) {
  extern __shared__ uint4 shared[];
  auto& memory = *reinterpret_cast<GroupMemory*>(shared);
  float* z = reinterpret_cast<float*>(&memory + 1);
  if constexpr (!kResident) z = c.numbers + std::int64_t{blockIdx.x} * c.plan.part;
  Choice<T>(c, memory, z).make();
}

}  // namespace

template <class T>
void run_sample(const Context& context, const SampleCall& c) {
  const auto run = [&](auto kernel, std::size_t numbers) {
    launch_groups("sample_logits", context, kernel, c, c.p.batch, numbers);
  };
  if (c.numbers == nullptr) {
    run(&sample_logits_kernel<T, true>, c.plan.part);
  } else {
    run(&sample_logits_kernel<T, false>, 0);
  }
}

template void run_sample<TFK_TYPE>(const Context&, const SampleCall&);

}  // namespace transformer_kernels::cuda
