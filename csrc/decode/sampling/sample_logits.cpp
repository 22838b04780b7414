// SPDX-License-Identifier: MIT
#include "transformer_kernels/decode/sample_logits.h"

#include "core/backends.h"
#include "core/overlap.h"
#include "decode/sampling/arguments.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "sample_logits";
constexpr std::int64_t kParameters = sizeof(SamplingParameters) / sizeof(float);

constexpr Backends<SampleProblem> kSample{.cpu = cpu::sample_logits,
                                          .cuda = kHasCuda ? cuda::sample_logits : nullptr,
                                          .numbers = cpu::check_parameters};

void check_conditions(SampleProblem& p, const SamplingArguments& check, const SampleLogits& a) {
  const Rows parameters =
      check.shared("parameters", a.parameters, DType::kFloat32, p.batch, kParameters);
  check_value(a.parameters.defined(), kOp, ": parameters is missing");
  p.parameters = static_cast<const SamplingParameters*>(parameters.data);
  p.parameters_stride = parameters.stride / kParameters;
  p.seed = check.required<std::int64_t>("seed", a.seed, DType::kInt64, {p.batch});
  p.position = check.required<std::int64_t>("position", a.position, DType::kInt64, {p.batch});
  if (a.previous.defined()) {
    check.rank("previous", a.previous, 2);
    p.previous_count = a.previous.sizes[1];
    p.previous = check.packed<std::int64_t>("previous", a.previous, DType::kInt64,
                                            {p.batch, p.previous_count});
  }
  p.prompt_lengths =
      check.packed<std::int64_t>("prompt_lengths", a.prompt_lengths, DType::kInt64, {p.batch});
  p.bias = check.shared("bias", a.bias, DType::kFloat32, p.batch, p.vocabulary);
  p.allowed_bits = a.allowed.defined() && a.allowed.dtype == DType::kInt32;
  p.allowed = check.shared("allowed", a.allowed, p.allowed_bits ? DType::kInt32 : DType::kBool,
                           p.batch, p.allowed_bits ? (p.vocabulary + 31) / 32 : p.vocabulary);
}

SampleProblem check(const Context& context, const SampleLogits& a) {
  const SamplingArguments check(kOp, context);
  SampleProblem p{};
  p.logits = check.floating("logits", a.logits, 2);
  p.dtype = a.logits.dtype;
  p.batch = a.logits.sizes[0];
  p.vocabulary = a.logits.sizes[1];
  check_conditions(p, check, a);
  p.tokens = check.required<std::int64_t>("tokens", a.tokens, DType::kInt64, {p.batch});
  p.log_probs = check.packed<float>("log_probs", a.log_probs, DType::kFloat32, {p.batch});
  check_value(a.top_tokens.defined() == a.top_log_probs.defined(), kOp,
              ": top_tokens is given without top_log_probs, or they without it, expected both");
  if (a.top_tokens.defined()) {
    check.rank("top_tokens", a.top_tokens, 2);
    p.top = a.top_tokens.sizes[1];
    check_value(p.top <= p.vocabulary, kOp, ": top_tokens has ", p.top,
                " columns, expected at most ", p.vocabulary, " (the columns of logits)");
    p.top_tokens =
        check.packed<std::int64_t>("top_tokens", a.top_tokens, DType::kInt64, {p.batch, p.top});
    p.top_log_probs =
        check.packed<float>("top_log_probs", a.top_log_probs, DType::kFloat32, {p.batch, p.top});
  }
  p.probabilities = check.packed<float>("probabilities", a.probabilities, DType::kFloat32,
                                        {p.batch, p.vocabulary});
  check_apart(kOp,
              {{"tokens", a.tokens},
               {"log_probs", a.log_probs},
               {"top_tokens", a.top_tokens},
               {"top_log_probs", a.top_log_probs},
               {"probabilities", a.probabilities}},
              {{"logits", a.logits},
               {"parameters", a.parameters},
               {"seed", a.seed},
               {"position", a.position},
               {"previous", a.previous},
               {"prompt_lengths", a.prompt_lengths},
               {"bias", a.bias},
               {"allowed", a.allowed}});
  return p;
}

}  // namespace

std::string describe(const SampleProblem& p) {
  return concat(name_of(p.dtype), " ", p.batch, "x", p.vocabulary, p.top > 0 ? " top" : "");
}

void sample_logits(const Context& context, const SampleLogits& arguments) {
  const SampleProblem problem = check(context, arguments);
  if (problem.batch > 0) run_on(kOp, kSample, context, problem);
}

}  // namespace transformer_kernels
