// SPDX-License-Identifier: MIT
// One run of attention, forward or backward, with fresh numbers, against the reference.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "attention/attention_reference.h"
#include "core/cpu/isa.h"
#include "reference.h"
#include "test_tensor.h"
#include "transformer_kernels/attention/attention.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {

struct AttentionOptions {
  AttentionNumbers numbers{};
  bool bias = false;
  bool dbias = true;       // of a bias, the gradient
  bool wide_bias = false;  // in the dtype of statistics
  bool mask = false;
  // The dimensions along which bias and mask vary: batch, heads, queries, keys. They are broadcast
  // along the others.
  std::array<bool, 4> varies = {true, true, true, true};
  bool slopes = false;
  bool sinks = false;
  bool dlse = false;
  double share_visible = 0.7;
  Layout layout{};
};

inline DType statistics_of(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

inline Values rounded(DType dtype, Values values) {
  for (double& value : values) value = rounded_to(dtype, value);
  return values;
}

class AttentionRun {
 public:
  AttentionRun(Backend& backend, DType dtype, AttentionShape s, AttentionOptions o)
      : dtype_(dtype),
        o_(o),
        map_{o.varies[0] ? s.batch : 1, o.varies[1] ? s.heads : 1, o.varies[2] ? s.queries : 1,
             o.varies[3] ? s.keys : 1},
        compact_bias_(o.bias ? random_normal(map_size(), dtype) : Values{}),
        compact_mask_(o.mask ? random_bool(map_size(), o.share_visible) : Values{}),
        operands_{s,
                  o.numbers,
                  random_normal(s.rows() * s.dim, dtype),
                  random_normal(s.kv_rows() * s.dim, dtype),
                  random_normal(s.kv_rows() * s.value_dim, dtype),
                  expanded(compact_bias_),
                  expanded(compact_mask_),
                  o.slopes ? magnitudes(random_normal(s.batch * s.heads, statistics())) : Values{},
                  o.sinks ? random_normal(s.heads, statistics()) : Values{}},
        q_(backend, dtype, s.rows(), s.dim, operands_.q, o.layout),
        k_(backend, dtype, s.kv_rows(), s.dim, operands_.k, o.layout),
        v_(backend, dtype, s.kv_rows(), s.value_dim, operands_.v, o.layout),
        bias_(backend, o.wide_bias ? statistics() : dtype, o.bias ? map_size() / map_[3] : 0,
              map_[3], compact_bias_, o.layout),
        mask_(backend, DType::kBool, o.mask ? map_size() / map_[3] : 0, map_[3], compact_mask_,
              o.layout),
        slopes_(backend, statistics(), o.slopes ? s.batch : 0, s.heads, operands_.slopes),
        sinks_(backend, statistics(), 1, o.sinks ? s.heads : 0, operands_.sinks),
        seed_(*cpu_backend(), std::array{o.numbers.seed, o.numbers.offset}.data(), 2),
        out(backend, dtype, s.rows(), s.value_dim, o.layout),
        lse(backend, statistics(), 1, s.rows()) {}

  const AttentionOperands& operands() const { return operands_; }
  DType statistics() const { return statistics_of(dtype_); }

  AttentionForward arguments() const {
    return {inputs(), heads_of(out, operands_.s.queries, operands_.s.heads), lse.vector()};
  }

  AttentionInputs inputs() const {
    const AttentionShape& s = operands_.s;
    const AttentionNumbers& n = operands_.n;
    AttentionInputs in;
    in.q = heads_of(q_, s.queries, s.heads);
    in.k = heads_of(k_, s.keys, s.kv_heads);
    in.v = heads_of(v_, s.keys, s.kv_heads);
    if (o_.bias) in.bias = map_of(bias_);
    if (o_.mask) in.mask = map_of(mask_);
    if (o_.slopes) in.alibi_slopes = slopes_.view();
    if (o_.sinks) in.sinks = sinks_.vector();
    in.scale = n.scale;
    in.window_left = n.window_left;
    in.window_right = n.window_right;
    in.diagonal = n.bottom_right ? Diagonal::kBottomRight : Diagonal::kTopLeft;
    in.softcap = n.softcap;
    in.dropout = n.dropout;
    in.seed = seed_.vector(DType::kInt64);
    return in;
  }

  // Rows of heads as (batch, time, heads, dim).
  TensorView heads_of(const TestTensor& memory, std::int64_t time, std::int64_t heads) const {
    TensorView view = memory.view();
    const std::int64_t row = view.strides[0];
    const std::int64_t dim = view.sizes[1];
    view.rank = 4;
    view.sizes = {operands_.s.batch, time, heads, dim};
    view.strides = {time * heads * row, heads * row, row, 1};
    return view;
  }

  // A gradient of the compact bias from one of all scores.
  Values summed(const Values& full) const {
    Values sums(map_size(), 0);
    std::int64_t index = 0;
    for_each_score([&](std::int64_t compact) { sums[compact] += full[index++]; });
    return sums;
  }
  std::array<std::int64_t, 4> map_sizes() const { return map_; }

 private:
  std::int64_t map_size() const { return map_[0] * map_[1] * map_[2] * map_[3]; }

  static Values magnitudes(Values values) {
    for (double& value : values) value = std::abs(value);
    return values;
  }

  // Calls body(index in the compact map) for every score.
  template <class Body>
  void for_each_score(Body&& body) const {
    const AttentionShape& s = operands_.s;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        for (std::int64_t i = 0; i < s.queries; ++i) {
          for (std::int64_t j = 0; j < s.keys; ++j) {
            const std::int64_t row = ((o_.varies[0] ? b : 0) * map_[1] + (o_.varies[1] ? h : 0));
            const std::int64_t place = row * map_[2] + (o_.varies[2] ? i : 0);
            body(place * map_[3] + (o_.varies[3] ? j : 0));
          }
        }
      }
    }
  }
  Values expanded(const Values& compact) const {
    Values full;
    if (compact.empty()) return full;
    for_each_score([&](std::int64_t place) { full.push_back(compact[place]); });
    return full;
  }
  TensorView map_of(const TestTensor& memory) const {
    const AttentionShape& s = operands_.s;
    TensorView view = memory.view();
    const std::int64_t row = view.strides[0];
    view.rank = 4;
    view.sizes = {s.batch, s.heads, s.queries, s.keys};
    view.strides = {map_[1] * map_[2] * row, map_[2] * row, row, 1};
    for (int i = 0; i < 4; ++i) view.strides[i] *= o_.varies[i] ? 1 : 0;
    return view;
  }

  DType dtype_;
  AttentionOptions o_;
  std::array<std::int64_t, 4> map_;
  Values compact_bias_, compact_mask_;
  AttentionOperands operands_;
  TestTensor q_, k_, v_, bias_, mask_, slopes_, sinks_;
  DeviceArray<std::uint64_t> seed_;

 public:
  TestTensor out, lse;
};

inline std::string describe_attention(DType dtype, AttentionShape s, const AttentionOptions& o) {
  const AttentionNumbers& n = o.numbers;
  return std::string(name_of(dtype)) + " B" + std::to_string(s.batch) + " T" +
         std::to_string(s.queries) + "x" + std::to_string(s.keys) + " H" + std::to_string(s.heads) +
         "/" + std::to_string(s.kv_heads) + " D" + std::to_string(s.dim) + "/" +
         std::to_string(s.value_dim) + " window " + std::to_string(n.window_left) + ", " +
         std::to_string(n.window_right) + (n.bottom_right ? "" : " top left") +
         (o.bias ? o.wide_bias ? " wide bias" : " bias" : "") + (o.mask ? " mask" : "") +
         (o.slopes ? " alibi" : "") + (o.sinks ? " sinks" : "") +
         (n.softcap != 0 ? " softcap" : "") + (n.dropout != 0 ? " dropout" : "");
}

inline double largest_of(const Values& values) {
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// The largest error, and the root of the mean of the squares.
struct Errors {
  double largest = 0;
  double typical = 0;

  Errors(const Values& values, const Values& expected) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool same = values[i] == expected[i];  // infinity too
      const double error = same ? 0 : std::abs(values[i] - expected[i]);
      largest = error <= largest ? largest : error;  // a NaN stays
      typical += error * error;
    }
    typical = std::sqrt(typical / static_cast<double>(std::max<std::size_t>(values.size(), 1)));
  }
};

// FlashAttention's rule, for kernels that round the weights of values to the dtype, which the
// operations of PyTorch do as well: twice the error of those at the most. The largest error alone
// would let a wrong term pass where there are many; the typical one does not.
inline ::testing::AssertionResult as_good_as_eager(DType dtype, const Values& got,
                                                   const Values& expected, const Values& eager,
                                                   double size) {
  constexpr double kFactor = 2;
  if (got.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  const Errors ours(got, expected);
  const Errors theirs(eager, expected);
  const double rounding = tolerance(dtype, largest_of(expected), size);
  const double typical_rounding = tolerance(dtype, largest_of(expected) / 2, size);
  if (ours.largest <= kFactor * theirs.largest + rounding &&
      ours.typical <= kFactor * theirs.typical + typical_rounding) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << name_of(dtype) << " errors are " << ours.largest << " (typical " << ours.typical
         << "), those of eager operations " << theirs.largest << " (" << theirs.typical << ")";
}

// Whether weights are rounded to the dtype on the way: where 16-bit numbers are multiplied as such,
// by all CUDA engines, and by the CPU's where that is fast.
inline bool rounds_weights(DeviceType device, DType dtype) {
  if (device == DeviceType::kCuda) return size_of(dtype) == 2;
  return dtype == DType::kBFloat16 && cpu::multiplies_pairs_fast();
}

// Holds results to the exact ones, by the rule that fits what may be rounded on the way.
class AttentionRule {
 public:
  AttentionRule(const Backend& backend, DType dtype)
      : dtype_(dtype),
        eager_(rounds_weights(backend.context().device.type, dtype)) {}

  // The results of eager operations on these operands, where the test asks for them.
  AttentionReference eager(
      const AttentionOperands& exact,
      const std::function<AttentionReference(const AttentionOperands&)>& run) const {
    if (!eager_) return {};
    AttentionOperands operands = exact;
    operands.rounding = dtype_;
    return run(operands);
  }

  ::testing::AssertionResult operator()(const Values& got, const Values& expected,
                                        const Values& eager, double size) const {
    return eager_ ? as_good_as_eager(dtype_, got, expected, eager, size)
                  : close(dtype_, got, expected, size);
  }

  // Log-sum-exps have no 16-bit numbers on their way, but for a softcap's tangents.
  ::testing::AssertionResult statistics(const AttentionOperands& operands, const Values& got,
                                        const Values& expected, const Values& eager,
                                        double size) const {
    const DType dtype = statistics_of(dtype_);
    return eager_ && operands.n.softcap != 0 ? as_good_as_eager(dtype, got, expected, eager, size)
                                             : close(dtype, got, expected, size);
  }

 private:
  DType dtype_;
  bool eager_;
};

// A score's error of extent * 2^-24 is a relative one of its exponential.
inline void check_attention_forward(Backend& backend, DType dtype, AttentionShape s,
                                    const AttentionOptions& o) {
  SCOPED_TRACE("forward " + describe_attention(dtype, s, o));
  AttentionRun run(backend, dtype, s, o);
  attention_forward(backend.context(), run.arguments());
  const AttentionReference expected = attention_reference(run.operands());
  const AttentionRule rule(backend, dtype);
  const AttentionReference eager = rule.eager(run.operands(), attention_reference);
  const double grown = 1 / (1 - std::min(o.numbers.dropout, 0.99));
  const double size = largest_of(run.operands().v) * (1 + expected.extent) * grown;
  EXPECT_TRUE(rule(run.out.values(), expected.out, eager.out, size));
  EXPECT_TRUE(rule.statistics(run.operands(), run.lse.values(), expected.lse, eager.lse,
                              1 + expected.extent));
  EXPECT_TRUE(run.out.surroundings_intact());
  EXPECT_TRUE(run.lse.surroundings_intact());
}

// out and lse come from the reference, rounded: the op gets what its forward pass would return.
class AttentionBackwardRun {
 public:
  AttentionBackwardRun(Backend& backend, DType dtype, AttentionShape s, const AttentionOptions& o)
      : run(backend, dtype, s, o),
        o_(o),
        forward_(attention_reference(run.operands())),
        out_(rounded(dtype, forward_.out)),
        lse_(rounded(run.statistics(), forward_.lse)),
        dout_(random_normal(s.rows() * s.value_dim, dtype)),
        dlse_(o.dlse ? random_normal(s.rows(), run.statistics()) : Values{}),
        out_memory_(backend, dtype, s.rows(), s.value_dim, out_, o.layout),
        lse_memory_(backend, run.statistics(), 1, s.rows(), lse_),
        dout_memory_(backend, dtype, s.rows(), s.value_dim, dout_, o.layout),
        dlse_memory_(backend, run.statistics(), 1, o.dlse ? s.rows() : 0, dlse_),
        dq(backend, dtype, s.rows(), s.dim, o.layout),
        dk(backend, dtype, s.kv_rows(), s.dim, o.layout),
        dv(backend, dtype, s.kv_rows(), s.value_dim, o.layout),
        dbias(backend, run.statistics(), 1, o.bias && o.dbias ? map_size() : 0),
        dsinks(backend, run.statistics(), 1, o.sinks ? s.heads : 0) {}

  AttentionBackward arguments() const {
    const AttentionShape& s = run.operands().s;
    AttentionBackward a;
    a.inputs = run.inputs();
    a.out = run.heads_of(out_memory_, s.queries, s.heads);
    a.lse = lse_memory_.vector();
    a.dout = run.heads_of(dout_memory_, s.queries, s.heads);
    if (o_.dlse) a.dlse = dlse_memory_.vector();
    a.dq = run.heads_of(dq, s.queries, s.heads);
    a.dk = run.heads_of(dk, s.keys, s.kv_heads);
    a.dv = run.heads_of(dv, s.keys, s.kv_heads);
    if (o_.sinks) a.dsinks = dsinks.vector();
    if (o_.bias && o_.dbias) {
      const auto m = run.map_sizes();
      a.dbias = TensorView::contiguous(dbias.vector().data, run.statistics(), a.inputs.q.device,
                                       {m[0], m[1], m[2], m[3]});
    }
    return a;
  }

  const Values& dout() const { return dout_; }

  AttentionReference reference(const AttentionOperands& operands) const {
    return attention_gradients(operands, out_, lse_, dout_, dlse_);
  }

 private:
  std::int64_t map_size() const {
    const auto m = run.map_sizes();
    return m[0] * m[1] * m[2] * m[3];
  }

 public:
  AttentionRun run;

 private:
  AttentionOptions o_;
  AttentionReference forward_;
  Values out_, lse_, dout_, dlse_;
  TestTensor out_memory_, lse_memory_, dout_memory_, dlse_memory_;

 public:
  TestTensor dq, dk, dv, dbias, dsinks;
};

inline void check_attention_backward(Backend& backend, DType dtype, AttentionShape s,
                                     const AttentionOptions& o) {
  SCOPED_TRACE("backward " + describe_attention(dtype, s, o));
  AttentionBackwardRun b(backend, dtype, s, o);
  attention_backward(backend.context(), b.arguments());
  const AttentionReference expected = b.reference(b.run.operands());
  const AttentionRule rule(backend, dtype);
  const AttentionReference eager =
      rule.eager(b.run.operands(), [&](const AttentionOperands& a) { return b.reference(a); });
  const double extent = 1 + expected.extent;
  const DType statistics = b.run.statistics();
  EXPECT_TRUE(rule(b.dq.values(), expected.dq, eager.dq, expected.dq_size * extent)) << "dq";
  EXPECT_TRUE(rule(b.dk.values(), expected.dk, eager.dk, expected.dk_size * extent)) << "dk";
  EXPECT_TRUE(rule(b.dv.values(), expected.dv, eager.dv, expected.dv_size * extent)) << "dv";
  if (o.bias && o.dbias) {
    const Values wanted = b.run.summed(expected.dbias);
    const double terms = static_cast<double>(expected.dbias.size()) /
                         static_cast<double>(std::max<std::size_t>(wanted.size(), 1));
    const double size = expected.dbias_size * extent * std::sqrt(terms);
    EXPECT_TRUE(close(statistics, b.dbias.values(), wanted, size)) << "dbias";
  }
  if (o.sinks) {
    const double size = expected.dsinks_size * extent;
    EXPECT_TRUE(close(statistics, b.dsinks.values(), expected.dsinks, size)) << "dsinks";
  }
  for (TestTensor* gradient : {&b.dq, &b.dk, &b.dv, &b.dbias, &b.dsinks}) {
    EXPECT_TRUE(gradient->surroundings_intact());
  }
}

// TFK_KERNEL leaves one engine in the race: a case that it refuses is skipped, with its reason.
template <class Check>
void unless_refused(Check&& check) {
  try {
    check();
  } catch (const Error& error) {
    const bool refused = std::string(error.what()).find("no kernel takes") != std::string::npos;
    if (std::getenv("TFK_KERNEL") == nullptr || !refused) throw;
    GTEST_SKIP() << error.what();
  }
}

inline void check_attention(Backend& backend, DType dtype, AttentionShape s,
                            const AttentionOptions& o) {
  unless_refused([&] { check_attention_forward(backend, dtype, s, o); });
  unless_refused([&] { check_attention_backward(backend, dtype, s, o); });
}

}  // namespace transformer_kernels::testing
