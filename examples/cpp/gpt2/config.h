// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace gpt2 {

struct Config {
  std::int64_t vocabulary = 256;
  std::int64_t positions = 256;
  std::int64_t channels = 128;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  double eps = 1e-5;

  std::int64_t head_dim() const { return channels / heads; }
  friend bool operator==(const Config&, const Config&) = default;
};

std::int64_t parameter_count(const Config& config);

// Throws std::runtime_error where no GPT-2 has these sizes, or one that this program runs.
void check(const Config& config);

// From and to the config.json of transformers. Throws std::runtime_error for other models.
Config parse_config(const std::string& json);
std::string text_of(const Config& config);

}  // namespace gpt2
