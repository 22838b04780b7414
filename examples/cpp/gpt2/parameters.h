// SPDX-License-Identifier: MIT
// The parameters of a GPT-2, under the names and in the layout of Hugging Face: the matrices of
// layers are (inputs, outputs).
#pragma once

#include <string>
#include <vector>

#include "config.h"
#include "safetensors.h"
#include "tensor.h"

namespace gpt2 {

struct LayerParameters {
  tfk::TensorView ln_1_weight, ln_1_bias;        // (C)
  tfk::TensorView attn_weight, attn_bias;        // (C, 3 C), (3 C): q, k and v
  tfk::TensorView proj_weight, proj_bias;        // (C, C), (C)
  tfk::TensorView ln_2_weight, ln_2_bias;        // (C)
  tfk::TensorView fc_weight, fc_bias;            // (C, 4 C), (4 C)
  tfk::TensorView fc_proj_weight, fc_proj_bias;  // (4 C, C), (C)
};

// One number for each parameter: weights, gradients or moments. Matrices that products read have
// the dtype of the set, all others are float32.
class Parameters {
 public:
  Parameters(const Config& config, tfk::DType dtype,
             Device& device = Device::of(tfk::DeviceType::kCpu));

  tfk::TensorView wte, wpe;  // (V, C) and (positions, C)
  tfk::TensorView head;      // (rows, C): wte, and on a CUDA device some rows of zeros behind it
  std::vector<LayerParameters> layers;
  tfk::TensorView ln_f_weight, ln_f_bias;

  // All of them, each under its name, in the order of the model.
  const std::vector<NamedTensor>& list() const { return list_; }

 private:
  std::vector<Tensor> memory_;
  std::vector<NamedTensor> list_;
};

// The model that a path holds: a directory with config.json and model.safetensors, a safetensors
// file beside its config.json, or a checkpoint of llm.c. Throws std::runtime_error where it is no
// such model.
Config read_config(const Path& model);
Parameters read_parameters(const Path& model, const Config& config, tfk::DType dtype,
                           Device& device = Device::of(tfk::DeviceType::kCpu));

// Weights as GPT-2's training begins: normally distributed, the projections into the residual
// stream by 1 / sqrt(2 layers) smaller. The same for the same seed.
Parameters random_parameters(const Config& config, std::uint64_t seed);

// Copies each tensor to the one at its place in the other list, rounded to the dtype there. Either
// list may be on any device.
void copy_parameters(const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to);

// Writes config.json and model.safetensors, as PyTorch and transformers load them.
void write_model(const Path& directory, const Config& config, std::vector<NamedTensor> weights);

}  // namespace gpt2
