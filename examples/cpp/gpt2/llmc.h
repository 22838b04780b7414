// SPDX-License-Identifier: MIT
// The files of Karpathy's llm.c: checkpoints (versions 3, float32, and 5, bfloat16) and tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config.h"
#include "files.h"
#include "parameters.h"

namespace gpt2 {

bool is_llmc_checkpoint(const Path& path);
Config read_llmc_config(const Path& path);
void read_llmc_parameters(const Path& path, const Config& config, Parameters& parameters);

bool is_llmc_tokens(const Path& path);
std::vector<std::int32_t> read_llmc_tokens(const Path& path);
// Throws std::runtime_error where a token has more than the 16 bits of the format.
void write_llmc_tokens(const Path& path, std::span<const std::int32_t> tokens);

}  // namespace gpt2
