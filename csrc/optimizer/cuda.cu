// SPDX-License-Identifier: MIT
// A step on CUDA: sums of the squares of gradients where their norm is wanted; then, for each table
// of tensors, the numbers of their steps and the update.
#include <algorithm>
#include <vector>

#include "core/cuda/scratch.h"
#include "core/log.h"
#include "core/rounding.h"
#include "optimizer/kernels_cuda.h"

namespace transformer_kernels::cuda {
namespace {

using Places = std::span<const std::size_t>;  // of tensors in the list

bool is_multiple(const void* pointer, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

bool has_fours(const TensorView& view) {
  return !view.defined() || is_multiple(view.data, 4 * size_of(view.dtype));
}

UpdateRow update_row(const OptimizerProblem& p, const OptimizerTensor& t) {
  const bool has_master = t.master.defined();
  const TensorView& weights = has_master ? t.master : t.param;
  return {.weights = weights.data,
          .copy = has_master ? t.param.data : nullptr,
          .grad = t.grad.data,
          .exp_avg = t.exp_avg.data,
          .exp_avg_sq = t.exp_avg_sq.data,
          .max_exp_avg_sq = t.max_exp_avg_sq.data,
          .exp_avg_scales = static_cast<float*>(t.exp_avg_scales.data),
          .exp_avg_sq_scales = static_cast<float*>(t.exp_avg_sq_scales.data),
          .elements = t.param.numel(),
          .number = static_cast<std::int32_t>(t.number),
          .weights_dtype = weights.dtype,
          .copy_dtype = t.param.dtype,
          .grad_dtype = t.grad.dtype,
          .state_dtype = t.exp_avg.dtype,
          .has_packs = has_fours(t.param) && has_fours(t.grad) && has_fours(t.exp_avg) &&
                       has_fours(t.exp_avg_sq) && has_fours(t.max_exp_avg_sq) &&
                       has_fours(t.master),
          .rounds_states_randomly = p.rounds_states_randomly(t),
          .rounds_param_randomly = p.rounds_param_randomly(t)};
}

SumRow sum_row(const OptimizerTensor& t) {
  return {.grad = t.grad.data,
          .elements = t.grad.numel(),
          .dtype = t.grad.dtype,
          .has_packs = is_multiple(t.grad.data, 16)};
}

CountRow count_row(const OptimizerProblem& p, const OptimizerTensor& t) {
  const AdamWGroup& group = p.groups[t.group];
  return {.step = t.step.data,
          .rate = group.rate.data,
          .lr = group.lr,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .eps = group.eps,
          .weight_decay = group.weight_decay,
          .step_is_double = t.step.dtype == DType::kFloat64,
          .rate_is_double = group.rate.dtype == DType::kFloat64,
          .maximize = group.maximize};
}

// Fills a table with a row of each tensor, and returns how many chunks they have.
template <class Row, int kRows, class RowOf>
std::int64_t fill(RowTable<Row, kRows>& table, Places places, std::int64_t chunk, RowOf row_of) {
  std::int64_t chunks = 0;
  table.rows = 0;
  for (const std::size_t place : places) {
    table.row[table.rows] = row_of(place);
    table.first_chunk[table.rows++] = static_cast<std::int32_t>(chunks);
    chunks += divide_up(table.row[table.rows - 1].elements, chunk);
  }
  return chunks;
}

// Calls body.operator()<kRows>(places) for each part of `places` that a table holds.
template <class Body>
void for_tables(Places places, Body&& body) {
  for (; !places.empty();
       places = places.subspan(std::min<std::size_t>(places.size(), kMostRows))) {
    const Places part = places.first(std::min<std::size_t>(places.size(), kMostRows));
    if (part.size() <= kFewRows) {
      body.template operator()<kFewRows>(part);
    } else {
      body.template operator()<kMostRows>(part);
    }
  }
}

class Step {
 public:
  Step(const Context& context, const OptimizerProblem& p)
      : context_(context),
        p_(p),
        chunks_(p.wants_norm() ? chunks_of_gradients() : 0),
        memory_(p.op, context, kNumberBytes + chunks_ * sizeof(double)) {}

  void run() {
    if (p_.tensors.empty() && p_.wants_norm()) count<float, kFewRows>({}, nullptr);  // it is 0
    if (chunks_ > 0) sum_squares();
    for (const bool is_double : {false, true}) {
      for (const bool has_top : {false, true}) {
        const std::vector<std::size_t> places = places_where([&](const OptimizerTensor& t) {
          return (t.param.dtype == DType::kFloat64) == is_double &&
                 t.max_exp_avg_sq.defined() == has_top;
        });
        if (is_double) {
          update<double>(places, has_top);
        } else {
          update<float>(places, has_top);
        }
      }
    }
  }

 private:
  // Tables share this memory: the next one follows on the stream.
  static constexpr std::size_t kNumberBytes = kMostRows * sizeof(StepNumbers<double>);
  static_assert(kNumberBytes % sizeof(double) == 0);

  double* sums() const { return memory_.as<double>() + kNumberBytes / sizeof(double); }

  template <class Condition>
  std::vector<std::size_t> places_where(Condition condition) const {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < p_.tensors.size(); ++i) {
      if (condition(p_.tensors[i])) places.push_back(i);
    }
    return places;
  }

  std::int64_t chunks_of_gradients() const {
    std::int64_t chunks = 0;
    for (const OptimizerTensor& t : p_.tensors) chunks += divide_up(t.grad.numel(), kSumChunk);
    return chunks;
  }

  void sum_squares() const {
    const auto all = places_where([](const OptimizerTensor&) { return true; });
    double* to = sums();
    for_tables(all, [&]<int kRows>(Places places) {
      RowTable<SumRow, kRows> table;
      const std::int64_t chunks =
          fill(table, places, kSumChunk, [&](std::size_t i) { return sum_row(p_.tensors[i]); });
      if (chunks > 0) run_sums(p_.op, context_, table, chunks, to);
      to += chunks;
    });
  }

  CountOptions count_options() const {
    const OptimizerOptions& o = p_.options;
    return {.grad_scale = static_cast<const float*>(o.grad_scale.data),
            .found_inf = static_cast<const float*>(o.found_inf.data),
            .norm = static_cast<float*>(o.norm.data),
            .sums = sums(),
            .chunks = chunks_,
            .max_norm = o.max_norm,
            .has_norm = p_.wants_norm(),
            .skips_nonfinite = o.skips_nonfinite,
            .unscales_gradients = o.unscales_gradients,
            .is_adamw = p_.rule == OptimizerRule::kAdamW};
  }

  template <class A>
  void update(Places all, bool has_top) const {
    for_tables(all, [&]<int kRows>(Places places) {
      auto* const numbers = memory_.as<StepNumbers<A>>();
      count<A, kRows>(places, numbers);
      if (p_.rule == OptimizerRule::kLion) {
        update_table<LionRule, A, kRows>(places, numbers);
      } else if (has_top) {
        update_table<AdamWRule<true>, A, kRows>(places, numbers);
      } else {
        update_table<AdamWRule<false>, A, kRows>(places, numbers);
      }
    });
  }

  template <class A, int kRows>
  void count(Places places, StepNumbers<A>* numbers) const {
    RowTable<CountRow, kRows> table;
    table.rows = 0;
    for (const std::size_t i : places) table.row[table.rows++] = count_row(p_, p_.tensors[i]);
    run_count(p_.op, context_, table, count_options(), numbers);
  }

  template <class Rule, class A, int kRows>
  void update_table(Places places, const StepNumbers<A>* numbers) const {
    RowTable<UpdateRow, kRows> table;
    const std::int64_t chunks = fill(table, places, kUpdateChunk,
                                     [&](std::size_t i) { return update_row(p_, p_.tensors[i]); });
    const UpdateOptions options{.seed = p_.options.seed,
                                .unscales_gradients = p_.options.unscales_gradients};
    if (chunks > 0) run_update<Rule>(p_.op, context_, table, chunks, options, numbers);
  }

  const Context& context_;
  const OptimizerProblem& p_;
  std::int64_t chunks_;
  Scratch memory_;
};

}  // namespace

void optimizer_step(const Context& context, const OptimizerProblem& p) {
  if (log_dispatch()) log_line(concat(p.op, " ", describe(p), ": tables of tensors run"));
  Step(context, p).run();
}

}  // namespace transformer_kernels::cuda
