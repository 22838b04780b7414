// SPDX-License-Identifier: MIT
// Decoding: a model that appends tokens to many sequences at once, whose keys and values are kept
// in pages.
#pragma once

#include <transformer_kernels/linear/packed_weight.h>

#include <cstdint>
#include <span>
#include <vector>

#include "parameters.h"

namespace gpt2 {

enum class Precision : std::uint8_t { kFloat32, kBFloat16 };

inline constexpr std::int64_t kPage = 16;  // tokens

struct Sequence {
  std::vector<std::int32_t> pages;
  std::int64_t length = 0;  // tokens so far
};

// The keys and values of many sequences. One thread at a time uses it.
class KvCache {
 public:
  KvCache(const Config& config, Precision precision, std::int64_t pages);

  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  // Gives the sequence pages for so many more tokens; false, with nothing taken, where they lack.
  bool reserve(Sequence& sequence, std::int64_t tokens);
  // Takes all its pages back; the sequence is empty then.
  void release(Sequence& sequence);

  tfk::TensorView keys(std::int64_t layer) const { return keys_[layer].view(); }
  tfk::TensorView values(std::int64_t layer) const { return values_[layer].view(); }

 private:
  std::vector<Tensor> keys_, values_;  // (pages, kPage, H, D) of each layer
  std::vector<std::int32_t> free_;
};

class Gpt2 {
 public:
  // `path` is what read_config() takes.
  static Gpt2 load(const Path& path, Precision precision = Precision::kFloat32);

  const Config& config() const { return config_; }

  // Appends T tokens to each of B sequences, which have pages for them: tokens are B T numbers, row
  // by row. logits (B, vocabulary) are those behind the last token of each. No sequence's depend on
  // another's, but the number of rows decides about the order of sums. Throws std::runtime_error,
  // with nothing appended, where a token is none of the vocabulary, or a sequence would be longer
  // than its pages or the model's positions.
  void step(KvCache& cache, std::span<Sequence* const> sequences,
            std::span<const std::int32_t> tokens, std::span<float> logits) const;

 private:
  struct Layer {
    tfk::PackedWeight attn, proj, fc, fc_proj;
  };

  Gpt2(const Config& config, Parameters parameters);
  void check_step(std::span<Sequence* const> sequences, std::span<const std::int32_t> tokens,
                  std::span<float> logits) const;

  Config config_;
  Parameters parameters_;
  std::vector<Layer> layers_;  // packed as the products read them
  tfk::PackedWeight head_;
};

}  // namespace gpt2
