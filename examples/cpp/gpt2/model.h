// SPDX-License-Identifier: MIT
// Decoding: a model that appends tokens to many sequences at once, whose keys and values are kept
// in pages.
#pragma once

#include <transformer_kernels/linear/packed_weight.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "parameters.h"

namespace gpt2 {

inline constexpr std::int64_t kPage = 16;  // tokens

struct Sequence {
  std::vector<std::int32_t> pages;
  std::int64_t length = 0;  // tokens so far
};

class Gpt2;
struct Pass;

// The keys and values of many sequences. One thread at a time uses it.
class KvCache {
 public:
  KvCache(const Gpt2& model, std::int64_t pages);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

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

  friend Gpt2;
  // Steps by one token are of few shapes, and each comes again and again.
  std::map<Shape, std::shared_ptr<Pass>> passes_;
};

class Gpt2 {
 public:
  // `path` is what read_config() takes; dtype is float32 or bfloat16.
  static Gpt2 load(const Path& path, tfk::DType dtype, Device& device);

  const Config& config() const { return config_; }
  Device& device() const { return device_; }
  tfk::DType dtype() const { return parameters_.wte.dtype; }

  // Appends T tokens to each of B sequences, which have pages for them: tokens are B T numbers, row
  // by row. logits (B, vocabulary) are those behind the last token of each. No sequence's depend on
  // another's, but the number of rows decides about the order of sums. Throws std::runtime_error,
  // with nothing appended, where a token is none of the vocabulary, or a sequence would be longer
  // than its pages or the model's positions.
  void step(KvCache& cache, std::span<Sequence* const> sequences,
            std::span<const std::int32_t> tokens, std::span<float> logits) const;

 private:
  // A weight as the CPU's products read it; other devices have none.
  class Packed {
   public:
    Packed(Device& device, const tfk::TensorView& weight);
    tfk::TensorView view() const { return weight_ ? weight_->view() : tfk::TensorView(); }

   private:
    std::optional<tfk::PackedWeight> weight_;
  };
  struct Layer {
    Packed attn, proj, fc, fc_proj;
  };

  Gpt2(const Config& config, Parameters parameters, Device& device);
  std::shared_ptr<Pass> pass_of(KvCache& cache, const Shape& shape) const;
  void run(const KvCache& cache, Pass& pass) const;
  void check_step(std::span<Sequence* const> sequences, std::span<const std::int32_t> tokens,
                  std::span<float> logits) const;

  Config config_;
  Parameters parameters_;
  Device& device_;
  std::vector<Layer> layers_;
  Packed head_;
};

}  // namespace gpt2
