// SPDX-License-Identifier: MIT
// Decoding on the CPU: the whole step of a token through a model of Llama's shape in one call.
//
//   x = embedding[token] * embedding_scale
//   for each layer
//     q, k, v = rope(norm(q_weight n + q_bias)), ..., v_weight n + v_bias    n = rms_norm(x)
//     x += o_weight attention(q, k and v of all positions up to this one)
//     x += down_weight (activation(gate_weight m) * (up_weight m))           m = rms_norm(x)
//   logits = softcap(head rms_norm(x))
//
// A plan holds the weights, packed in the order in which the step reads them and divided into
// parts: by query heads, hidden units and tokens of the vocabulary. Threads take parts, and sums
// over parts have a fixed order, so that results depend on the number of parts but not on that of
// threads. A session holds the keys and values of one sequence; pages hold those of many, whose
// rows go through the model together. Several sessions and pages may share a plan, and run at the
// same time; each serves one call at a time.
//
// Each weight keeps its own format, and is multiplied without being widened in memory. Weights of
// 32 and 16 bits meet activations in float32. Those of 8 and 4 bits meet activations that are
// rounded, block by block, to 16 bits (the default: errors are then those of the cache) or to 8.
// A step of several rows, of one sequence or of many, gives each row the bits that steps of one row
// would.
//
// Shapes: d hidden, H query heads, G of them to each of the H / G key-value heads, D head dim,
// F inner, V vocabulary, R <= D rotated dimensions. D and R are even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// A matrix (N, K) in one of these formats, without gaps:
//   values float32, float16 or bfloat16 (N, K), no scales;
//   values int8 (N, K): element = value * scale;
//   values uint8 (N, K / 2): byte i of a row holds column 2 i in its low nibble, and 2 i + 1 in its
//   high one. Without minimums a nibble is a number of two's complement, and element = number *
//   scale; with minimums it is unsigned, and element = number * scale + minimum.
// scales and minimums are float16 (N, K / group), with a group of 32, 64 or 128.
struct StepWeight {
  TensorView values;
  TensorView scales{};
  TensorView minimums{};
};

// Vectors are float32, float16 or bfloat16, without gaps. A weight's rows are its outputs.
struct StepLayer {
  TensorView attention_norm;  // (d)
  TensorView mlp_norm;        // (d)
  StepWeight q;               // (H D, d)
  StepWeight k;               // (H / G D, d)
  StepWeight v;
  StepWeight o;         // (d, H D)
  StepWeight gate;      // (F, d)
  StepWeight up;        // (F, d)
  StepWeight down;      // (d, F)
  TensorView q_bias{};  // (H D), optional, as all below
  TensorView k_bias{};
  TensorView v_bias{};
  TensorView q_norm{};  // (D), RMSNorm of each head before the rotation
  TensorView k_norm{};
  std::int64_t window = 0;  // how many of the last positions a row sees; 0 for all
};

enum class StepActivation : std::uint8_t { kSilu, kGelu, kGeluTanh };

struct StepModel {
  std::int64_t hidden;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t inner;
  std::int64_t vocabulary;
  TensorView cosines;  // (positions, R / 2), float32
  TensorView sines;
  bool interleaved = false;  // the rotation turns neighbours, not an element of each half
  double eps = 1e-5;
  double scale = 0;          // of the scores; 0 stands for 1 / sqrt(D)
  double softcap = 0;        // scores become softcap tanh(score / softcap); 0 for none
  double logit_softcap = 0;  // and so the logits
  double embedding_scale = 1;
  StepActivation activation = StepActivation::kSilu;
  std::int64_t parts = 1;  // as many as threads, or a multiple, keep all of them busy
};

class TFK_API StepPlan {
 public:
  StepPlan(const Context& context, const StepModel& model);
  ~StepPlan();
  StepPlan(const StepPlan&) = delete;
  StepPlan& operator=(const StepPlan&) = delete;

  // Packs the next layer. The tensors may be freed afterwards. What throws, here and in finish(),
  // leaves the plan as it was.
  void add_layer(const Context& context, const StepLayer& layer);
  // Packs what stands before and after the layers: embedding (V, d), final_norm (d), and head (V,
  // d) where it is not the embedding. No layer can be added then.
  void finish(const Context& context, const StepWeight& embedding, const TensorView& final_norm,
              const StepWeight& head = {});

  std::size_t packed_bytes() const;
  // The sum over all packed bytes as numbers, read once in order by the threads that a step would
  // take: what a step cannot be faster than.
  std::uint64_t read_all(const Context& context) const;

  struct State;
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// The keys and values of a sequence, in float16.
class TFK_API StepSession {
 public:
  // `positions` is how many the sequence may have: at most the rows of the plan's tables. The plan
  // is finished.
  StepSession(std::shared_ptr<const StepPlan> plan, std::int64_t positions);
  ~StepSession();
  StepSession(const StepSession&) = delete;
  StepSession& operator=(const StepSession&) = delete;

  std::int64_t length() const;      // may be asked while a step runs
  std::int64_t vocabulary() const;  // of the plan
  // Forgets all positions but the first `length`. Throws Error while a step runs.
  void truncate(std::int64_t length);

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

struct DecodeStep {
  TensorView tokens;         // (T), int32 or int64, from 1 token on: appended to the sequence
  TensorView best{};         // (outputs), int64: the argmax of each of the last rows, the first of
                             // equals. Not defined, no row has results.
  TensorView logits{};       // (outputs, V), float32, optional
  int activation_bits = 16;  // or 8
  int threads = 0;           // at most so many take part; 0 for those of the library's own pool
};

// Throws Error, with nothing appended or written, when an argument does not meet the contract.
TFK_API void decode_step(const Context& context, StepSession& session, const DecodeStep& step);

// Memory for keys and values of many sequences, in pages of so many positions of all layers.
inline constexpr std::int64_t kStepPage = 64;

class TFK_API StepPages {
 public:
  // The plan is finished. Pages take memory when they are first written.
  StepPages(std::shared_ptr<const StepPlan> plan, std::int64_t pages);
  ~StepPages();
  StepPages(const StepPages&) = delete;
  StepPages& operator=(const StepPages&) = delete;

  std::int64_t vocabulary() const;  // of the plan
  // Makes page `to` equal to page `from`.
  void copy(std::int64_t from, std::int64_t to);

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// A step of B sequences, whose new tokens stand one sequence after the other. Who holds which page
// is for the caller to know: the sequences write to no page that another one reads or writes in
// the same step.
struct DecodePages {
  TensorView tokens;      // (N), int32 or int64
  TensorView cu_seqlens;  // (B + 1), int32: where each sequence's tokens begin; at least one each
  TensorView lengths;     // (B), int32: the positions of each that are filled
  TensorView page_table;  // (B, P), int32: the pages of each, as far as its new tokens reach
  TensorView outputs;     // (M), int64: the tokens whose results are wanted, in ascending order
  TensorView logits;      // (M, V), float32
  int activation_bits = 16;
  int threads = 0;
};

// Throws Error, with nothing written, when an argument does not meet the contract.
TFK_API void decode_step(const Context& context, StepPages& pages, const DecodePages& step);

// The nanoseconds in which `threads` threads of the context meet, as they do twice a layer: a mean
// of `rounds`. Where it is large, their cores are far apart, or others use them.
TFK_API double barrier_nanoseconds(const Context& context, int threads, std::int64_t rounds);

}  // namespace transformer_kernels
