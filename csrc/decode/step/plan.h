// SPDX-License-Identifier: MIT
// The inside of a plan: weights as each part reads them.
#pragma once

#include <vector>

#include "decode/step/pack.h"

namespace transformer_kernels::decode {

inline constexpr const char* kOp = "decode_step";

// Numbers [begin, end).
struct Range {
  std::int64_t begin;
  std::int64_t end;

  std::int64_t count() const { return end - begin; }
};

// The share of a part. Two parts may share a key-value head: each then computes and stores it.
struct Share {
  Range heads;
  Range kv_heads;
  Range units;
  Range tokens;
};

struct PartOfLayer {
  PackedMatrix q, k, v, o, gate, up, down;
};

struct PackedLayer {
  std::vector<float> attention_norm, mlp_norm;
  std::vector<float> q_bias, k_bias, v_bias, q_norm, k_norm;
  std::int64_t window;
  std::vector<PartOfLayer> parts;
};

}  // namespace transformer_kernels::decode

namespace transformer_kernels {

struct StepPlan::State {
  StepModel model;  // without its tables
  std::vector<float> cosines, sines;
  std::int64_t positions;
  std::int64_t pairs;  // that are rotated
  std::vector<decode::Share> shares;
  decode::Arena arena;
  std::vector<decode::PackedLayer> layers;
  std::vector<float> final_norm;
  std::vector<decode::PackedMatrix> head;
  std::vector<decode::PackedMatrix> embedding;  // empty where it is the head
  bool finished = false;

  std::int64_t group() const { return model.heads / model.kv_heads; }
  const decode::PackedMatrix& embedding_of(std::size_t part) const {
    return (embedding.empty() ? head : embedding)[part];
  }
};

}  // namespace transformer_kernels
