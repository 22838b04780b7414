// SPDX-License-Identifier: MIT
// Speculative acceptance on the CPU. Only the rows up to the first token that is not kept are read.
#include <memory>
#include <numeric>

#include "decode/sampling/row.h"

namespace transformer_kernels::cpu {
namespace {

// A distribution as weights and their sum.
class Shares {
 public:
  Shares(const AcceptProblem& p, Team team, const Rows& rows, std::int64_t row)
      : copy_(p.dtype == DType::kFloat32 ? nullptr : new float[p.vocabulary]),
        z_(numbers(p, rows, row)),
        row_(team, z_, p.vocabulary),
        by_{.top = 0, .scale = static_cast<float>(kLog2OfE), .are_probabilities = !p.logits} {
    if (p.logits) {
      row_.look();
      // Where all are -infinity, no weight is left.
      by_.top = row_.top() == -Weighing::kInfinity ? Weighing::kInfinity : row_.top();
    }
    sum_ = row_.sum(by_);
  }

  std::int64_t sum() const { return sum_; }
  std::int64_t weight(std::int64_t token) const {
    float w[1];
    sampling().weigh(z_ + token, 1, by_, w);
    return whole_weight(w[0]);
  }
  std::int64_t find(std::int64_t part) const { return row_.find(by_, part); }
  void weigh(std::int64_t begin, std::int64_t count, float* w) const {
    sampling().weigh(z_ + begin, count, by_, w);
  }

 private:
  const float* numbers(const AcceptProblem& p, const Rows& rows, std::int64_t row) {
    const auto* const x =
        static_cast<const std::byte*>(rows.data) + row * rows.stride * size_of(p.dtype);
    if (!copy_) return reinterpret_cast<const float*>(x);
    sampling().read[static_cast<int>(p.dtype)](x, nullptr, nullptr, false, 0, p.vocabulary,
                                               copy_.get());
    return copy_.get();
  }

  std::unique_ptr<float[]> copy_;
  const float* z_;
  Row row_;
  Weighing by_;
  std::int64_t sum_;
};

class Sequence {
 public:
  Sequence(const AcceptProblem& p, Team team, std::int64_t at) : p_(p), team_(team), at_(at) {}

  void decide() {
    const std::int64_t length = p_.lengths == nullptr ? p_.drafted : p_.lengths[at_];
    std::int64_t kept = 0;
    std::unique_ptr<Shares> target;
    std::unique_ptr<Shares> draft;
    for (;; ++kept) {
      target = shares(p_.target, p_.drafted + 1, kept);
      if (kept == length) break;
      if (p_.draft.data != nullptr) draft = shares(p_.draft, p_.drafted, kept);
      if (!keeps(*target, draft.get(), kept)) break;
    }
    p_.accepted[at_] = kept;
    p_.token[at_] = kept == length ? drawn(*target, kept) : replaced(*target, draft.get(), kept);
  }

 private:
  std::unique_ptr<Shares> shares(const Rows& rows, std::int64_t per_sequence,
                                 std::int64_t i) const {
    return std::make_unique<Shares>(p_, team_, rows, at_ * per_sequence + i);
  }
  std::int64_t drafted(std::int64_t i) const { return p_.draft_tokens[at_ * p_.drafted + i]; }
  double uniform_at(std::int64_t i, std::uint64_t stream) const {
    return uniform(p_.seed[at_], p_.position[at_] + i, stream);
  }

  bool keeps(const Shares& target, const Shares* draft, std::int64_t i) const {
    const std::int64_t token = drafted(i);
    if (token < 0 || token >= p_.vocabulary) return false;
    const double q = draft == nullptr ? 1 : static_cast<double>(draft->weight(token));
    const double q_sum = draft == nullptr ? 1 : static_cast<double>(draft->sum());
    const double p = static_cast<double>(target.weight(token));
    return uniform_at(i, kKeepStream) * (q * static_cast<double>(target.sum())) < p * q_sum;
  }

  std::int64_t drawn(const Shares& target, std::int64_t kept) const {
    if (target.sum() == 0) return -1;
    return target.find(part_of(uniform_at(kept, kNextStream), target.sum()));
  }

  // Draws what the target has more of than the draft.
  std::int64_t replaced(const Shares& target, const Shares* draft, std::int64_t kept) const {
    const std::int64_t blocks = (p_.vocabulary + kBlock - 1) / kBlock;
    std::vector<std::int64_t> sums(blocks);
    team_.for_blocks(blocks, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t w[kBlock];
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t count = excess(target, draft, kept, block, w);
        sums[block] = std::reduce(w, w + count);
      }
    });
    const std::int64_t sum = std::reduce(sums.begin(), sums.end());
    if (sum == 0) return drawn(target, kept);
    std::int64_t part = part_of(uniform_at(kept, kNextStream), sum);
    std::int64_t block = 0;
    while (part >= sums[block]) part -= sums[block++];
    std::int64_t w[kBlock];
    excess(target, draft, kept, block, w);
    std::int64_t i = 0;
    while (part >= w[i]) part -= w[i++];
    return block * kBlock + i;
  }

  // Writes the weights of a block; returns how many it has.
  std::int64_t excess(const Shares& target, const Shares* draft, std::int64_t kept,
                      std::int64_t block, std::int64_t* w) const {
    const std::int64_t begin = block * kBlock;
    const std::int64_t count = std::min(kBlock, p_.vocabulary - begin);
    float p[kBlock];
    float q[kBlock]{};
    target.weigh(begin, count, p);
    const auto unit = static_cast<double>(kUnit);
    double q_sum = unit;
    if (draft != nullptr) {
      draft->weigh(begin, count, q);
      if (draft->sum() > 0) q_sum = static_cast<double>(draft->sum());
    } else if (const std::int64_t i = drafted(kept); i >= begin && i < begin + count) {
      q[i - begin] = kUnit;
    }
    const double p_sum = target.sum() > 0 ? static_cast<double>(target.sum()) : unit;
    sampling().excess(p, q, count, unit / p_sum, unit / q_sum, w);
    return count;
  }

  const AcceptProblem& p_;
  Team team_;
  std::int64_t at_;
};

}  // namespace

void check_lengths(const Context&, const AcceptProblem& p) {
  for (std::int64_t i = 0; p.lengths != nullptr && i < p.batch; ++i) {
    check_value(p.lengths[i] >= 0 && p.lengths[i] <= p.drafted, "speculative_accept: lengths has ",
                p.lengths[i], ", expected 0 to ", p.drafted, " (the columns of draft_tokens)");
  }
}

void speculative_accept(const Context& context, const AcceptProblem& p) {
  log_cpu_kernel("speculative_accept", p);
  for_rows(context, p.batch, [&](Team team, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) Sequence(p, team, at).decide();
  });
  for (std::int64_t at = 0; at < p.batch; ++at) {
    check_value(p.token[at] >= 0, "speculative_accept: sequence ", at,
                " has no token that may be drawn, expected a target with some probability");
  }
}

}  // namespace transformer_kernels::cpu
