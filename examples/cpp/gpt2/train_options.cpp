// SPDX-License-Identifier: MIT
#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <stdexcept>

#include "options.h"
#include "train.h"

namespace gpt2 {
namespace {

const std::map<std::string, Recompute> kRecomputes = {{"nothing", Recompute::kNothing},
                                                      {"activation", Recompute::kActivation},
                                                      {"layer", Recompute::kLayer}};

}  // namespace

void check_options(const TrainOptions& options, const Config& config) {
  check(config);
  if (options.length > config.positions) {
    throw std::runtime_error("--length is " + std::to_string(options.length) + ", the model has " +
                             std::to_string(config.positions) + " positions");
  }
  if (options.warmup > options.steps) {
    throw std::runtime_error("--warmup is " + std::to_string(options.warmup) +
                             ", more than --steps");
  }
  if (options.out.empty() && options.gradients.empty()) {
    throw std::runtime_error("--out is missing");
  }
}

std::string settings_of(const TrainOptions& options) {
  const nlohmann::json settings = {{"data", options.data.string()},
                                   {"model", options.model.string()},
                                   {"tokenizer", options.tokenizer.string()},
                                   {"fresh", text_of(options.fresh)},
                                   {"steps", options.steps},
                                   {"batch", options.batch},
                                   {"length", options.length},
                                   {"accumulate", options.accumulate},
                                   {"lr", options.lr},
                                   {"min_lr", options.min_lr},
                                   {"weight_decay", options.weight_decay},
                                   {"clip", options.clip},
                                   {"warmup", options.warmup},
                                   {"seed", options.seed},
                                   {"bfloat16", options.bfloat16},
                                   {"device", tfk::name_of(options.device)}};
  return settings.dump();
}

double learning_rate(const TrainOptions& options, std::int64_t step) {
  if (step < options.warmup) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  }
  const double part = static_cast<double>(step - options.warmup) /
                      static_cast<double>(options.steps - options.warmup);
  return options.min_lr +
         (options.lr - options.min_lr) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

void add_train(CLI::App& app) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train a model, or go on where it was stopped");
  const CLI::Range positive(1.0, 1e9);
  const auto number = numbers_of(*command);
  command->add_option("--data", options->data, "A text, or tokens as llm.c has them")->required();
  command->add_option("--validation", options->validation,
                      "Data whose loss is computed now and then, and which is not trained on");
  command->add_option("--tensorboard", options->tensorboard,
                      "The folder of a log that TensorBoard shows");
  command->add_option("--out", options->out, "The folder of the checkpoint, the log and the model");
  command->add_option("--model", options->model,
                      "The first weights: a folder or file of Hugging Face, or one of llm.c");
  add_tokenizer(*command, options->tokenizer);
  command->add_option("--gradients", options->gradients,
                      "Write the first step's gradients to this file, and train nothing");
  number("--vocabulary", options->fresh.vocabulary, "Of a model that begins at random")
      ->check(positive);
  number("--positions", options->fresh.positions, "As above")->check(positive);
  number("--channels", options->fresh.channels, "As above")->check(positive);
  number("--layers", options->fresh.layers, "As above")->check(positive);
  number("--heads", options->fresh.heads, "As above")->check(positive);
  number("--steps", options->steps, "Updates")->check(positive);
  number("--batch", options->batch, "Sequences in memory at a time")->check(positive);
  number("--length", options->length, "Tokens of a sequence")->check(positive);
  number("--accumulate", options->accumulate, "Batches of an update")->check(positive);
  number("--save-every", options->save_every, "Updates between checkpoints")->check(positive);
  number("--validate-every", options->validate_every, "Updates between losses of --validation")
      ->check(positive);
  number("--validation-batches", options->validation_batches, "Batches of such a loss")
      ->check(positive);
  number("--lr", options->lr, "The learning rate behind the warm-up")->check(CLI::Range(0.0, 1.0));
  number("--min-lr", options->min_lr, "The learning rate at the end")->check(CLI::Range(0.0, 1.0));
  number("--warmup", options->warmup, "Updates that it rises over")->check(CLI::Range(0.0, 1e9));
  number("--weight-decay", options->weight_decay, "Of matrices")->check(CLI::Range(0.0, 1.0));
  number("--clip", options->clip, "The largest norm of a gradient")->check(CLI::PositiveNumber);
  number("--seed", options->seed, "Of the first weights and the order of the data");
  add_device(*command, options->device);
  command->add_flag("--bfloat16", options->bfloat16,
                    "Compute products in bfloat16; weights stay in float32 as well");
  add_choice(*command, "--recompute", kRecomputes, options->recompute,
             "What the backward pass computes again");
  command->callback([options] { train(*options); });
}

}  // namespace gpt2
