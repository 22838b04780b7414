// SPDX-License-Identifier: MIT
#include "transformer_kernels/decode/speculative_accept.h"

#include "core/backends.h"
#include "core/overlap.h"
#include "decode/sampling/arguments.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "speculative_accept";

constexpr Backends<AcceptProblem> kAccept{.cpu = cpu::speculative_accept,
                                          .cuda = kHasCuda ? cuda::speculative_accept : nullptr,
                                          .numbers = cpu::check_lengths};

AcceptProblem check(const Context& context, const SpeculativeAccept& a) {
  const SamplingArguments check(kOp, context);
  AcceptProblem p{};
  p.target = check.floating("target", a.target, 3);
  p.dtype = a.target.dtype;
  p.batch = a.target.sizes[0];
  p.drafted = a.target.sizes[1] - 1;
  p.vocabulary = a.target.sizes[2];
  p.logits = a.logits;
  check_value(p.drafted >= 0, kOp, ": target has 0 rows a sequence, expected at least 1");
  p.draft_tokens = check.required<std::int64_t>("draft_tokens", a.draft_tokens, DType::kInt64,
                                                {p.batch, p.drafted});
  if (a.draft.defined()) {
    p.draft = check.floating("draft", a.draft, 3);
    check.shape("draft", a.draft, {p.batch, p.drafted, p.vocabulary});
    check_type(a.draft.dtype == p.dtype, kOp, ": draft is ", name_of(a.draft.dtype), ", expected ",
               name_of(p.dtype), " (the dtype of target)");
  }
  p.lengths = check.packed<std::int64_t>("lengths", a.lengths, DType::kInt64, {p.batch});
  p.seed = check.required<std::int64_t>("seed", a.seed, DType::kInt64, {p.batch});
  p.position = check.required<std::int64_t>("position", a.position, DType::kInt64, {p.batch});
  p.accepted = check.required<std::int64_t>("accepted", a.accepted, DType::kInt64, {p.batch});
  p.token = check.required<std::int64_t>("token", a.token, DType::kInt64, {p.batch});
  check_apart(kOp, {{"accepted", a.accepted}, {"token", a.token}},
              {{"draft_tokens", a.draft_tokens},
               {"draft", a.draft},
               {"target", a.target},
               {"lengths", a.lengths},
               {"seed", a.seed},
               {"position", a.position}});
  return p;
}

}  // namespace

std::string describe(const AcceptProblem& p) {
  return concat(name_of(p.dtype), " ", p.batch, "x", p.drafted, "x", p.vocabulary,
                p.draft.data == nullptr ? " without chance" : "");
}

void speculative_accept(const Context& context, const SpeculativeAccept& arguments) {
  const AcceptProblem problem = check(context, arguments);
  if (problem.batch > 0) run_on(kOp, kAccept, context, problem);
}

}  // namespace transformer_kernels
