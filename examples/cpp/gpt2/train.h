// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "config.h"
#include "device.h"
#include "files.h"

namespace CLI {
class App;
}

namespace gpt2 {

// The backward pass computes again, in place of reading it: nothing, the activation of the MLP,
// or all that a layer computes, so that a layer keeps no more than its input.
enum class Recompute : std::uint8_t { kNothing, kActivation, kLayer };

struct TrainOptions {
  Path data, out;
  Path validation;   // data that is not trained on; none without it
  Path tensorboard;  // the folder of the log for TensorBoard; none without it
  Path model;        // the first weights; random ones of `fresh` without it
  Path tokenizer;    // the folder of its files; that of the model without it
  Path gradients;    // where the first step's go; nothing is trained then
  Config fresh;
  std::int64_t steps = 100, batch = 4, length = 64, accumulate = 1, save_every = 50;
  std::int64_t validate_every = 50, validation_batches = 8;
  double lr = 1e-3, min_lr = 1e-4, weight_decay = 0.1, clip = 1;
  std::int64_t warmup = 10;
  std::uint64_t seed = 1;
  bool bfloat16 = false;
  tfk::DeviceType device = tfk::DeviceType::kCpu;
  Recompute recompute = Recompute::kNothing;
};

// Throws std::runtime_error where the options do not fit each other or the model.
void check_options(const TrainOptions& options, const Config& config);

// All that decides about the numbers of a training, as text: a checkpoint of others is refused.
std::string settings_of(const TrainOptions& options);

// A linear warm-up, then half a period of a cosine.
double learning_rate(const TrainOptions& options, std::int64_t step);

void train(const TrainOptions& options);

void add_train(CLI::App& app);

}  // namespace gpt2
