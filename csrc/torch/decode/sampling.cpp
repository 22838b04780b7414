// SPDX-License-Identifier: MIT
#include <array>

#include "torch/fields.h"
#include "transformer_kernels/decode/sample_logits.h"
#include "transformer_kernels/decode/speculative_accept.h"

namespace transformer_kernels::torch_ops {
namespace {

// One number for each row of the first dimension.
TensorView one_a_row(const TensorView& x, DType dtype) {
  return layout_of(x.device, std::array{size_or_0(x, 0)}, dtype);
}
TensorView rows_of(const TensorView& x, std::int64_t cols, DType dtype) {
  return layout_of(x.device, std::array{size_or_0(x, 0), cols}, dtype);
}

struct SampleArguments : SampleLogits {
  std::int64_t top;  // -1: no log-probabilities
  bool need_probabilities;
};

struct Sample {
  using Arguments = SampleArguments;
  static constexpr const char* kOp = "sample_logits";
  static constexpr const char* kPass = "";
  static constexpr auto kLike = &Arguments::logits;
  static constexpr auto kFields = std::tuple(
      tensor("logits", &Arguments::logits, with_even_rows),
      tensor("parameters", &Arguments::parameters, contiguous),
      tensor("seed", &Arguments::seed, contiguous),
      tensor("position", &Arguments::position, contiguous),
      optional("previous", &Arguments::previous, contiguous),
      optional("prompt_lengths", &Arguments::prompt_lengths, contiguous),
      optional("bias", &Arguments::bias, contiguous),
      optional("allowed", &Arguments::allowed, contiguous), integer("top", &Arguments::top),
      flag("need_probabilities", &Arguments::need_probabilities), unused<std::int64_t>("stages"));
  static constexpr auto kResults = std::tuple(
      result("tokens", &Arguments::tokens,
             [](const Arguments& a) { return one_a_row(a.logits, DType::kInt64); }),
      result("log_probs", &Arguments::log_probs,
             [](const Arguments& a) {
               return a.top < 0 ? TensorView{} : one_a_row(a.logits, DType::kFloat32);
             }),
      result("top_tokens", &Arguments::top_tokens,
             [](const Arguments& a) {
               return a.top <= 0 ? TensorView{} : rows_of(a.logits, a.top, DType::kInt64);
             }),
      result("top_log_probs", &Arguments::top_log_probs,
             [](const Arguments& a) {
               return a.top <= 0 ? TensorView{} : rows_of(a.logits, a.top, DType::kFloat32);
             }),
      result("probabilities", &Arguments::probabilities, [](const Arguments& a) {
        return a.need_probabilities ? rows_of(a.logits, size_or_0(a.logits, 1), DType::kFloat32)
                                    : TensorView{};
      }));
  static constexpr auto* kCall = sample_logits;
};

struct Accept {
  using Arguments = SpeculativeAccept;
  static constexpr const char* kOp = "speculative_accept";
  static constexpr const char* kPass = "";
  static constexpr auto kLike = &Arguments::target;
  static constexpr auto kFields = std::tuple(
      tensor("draft_tokens", &Arguments::draft_tokens, contiguous),
      optional("draft", &Arguments::draft, with_even_rows),
      tensor("target", &Arguments::target, with_even_rows),
      optional("lengths", &Arguments::lengths, contiguous),
      tensor("seed", &Arguments::seed, contiguous),
      tensor("position", &Arguments::position, contiguous), flag("logits", &Arguments::logits));
  static constexpr auto kResults =
      std::tuple(result("accepted", &Arguments::accepted,
                        [](const Arguments& a) { return one_a_row(a.target, DType::kInt64); }),
                 result("token", &Arguments::token,
                        [](const Arguments& a) { return one_a_row(a.target, DType::kInt64); }));
  static constexpr auto* kCall = speculative_accept;
};

using Ops = RawOps<Sample, Accept>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
