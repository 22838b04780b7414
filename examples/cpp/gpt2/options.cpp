// SPDX-License-Identifier: MIT
#include "options.h"

namespace gpt2 {
namespace {

const std::map<std::string, tfk::DeviceType> kDevices = {{"cpu", tfk::DeviceType::kCpu},
                                                         {"cuda", tfk::DeviceType::kCuda}};

}  // namespace

void add_tokenizer(CLI::App& command, Path& folder) {
  command.add_option("--tokenizer", folder,
                     "The folder of vocab.json and merges.txt; without them bytes are tokens");
}

void add_device(CLI::App& command, tfk::DeviceType& device) {
  add_choice(command, "--device", kDevices, device, "Where it computes");
}

void add_model(CLI::App& command, ModelOptions& options) {
  command.add_option("--model", options.path, "A folder or file of Hugging Face, or of llm.c")
      ->required();
  add_tokenizer(command, options.tokenizer);
  add_device(command, options.device);
  command.add_flag("--bfloat16", options.bfloat16, "Keep weights in bfloat16, and compute in it");
}

}  // namespace gpt2
