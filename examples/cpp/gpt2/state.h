// SPDX-License-Identifier: MIT
#pragma once

#include <transformer_kernels/optimizer/adamw.h>

#include <optional>
#include <string>
#include <vector>

#include "parameters.h"

namespace gpt2 {

struct UpdateOptions {
  double weight_decay;
  double clip;         // the largest norm of the gradient
  std::int64_t calls;  // whose gradients are added up
};

// A training keeps this from step to step: weights, their gradients and the moments of AdamW. The
// matrices that products read are bfloat16 if wanted, and rounded from masters in float32 then.
class State {
 public:
  State(const Config& config, tfk::DType dtype, const Parameters& first,
        const UpdateOptions& options, Device& device);

  const Parameters& read_by_passes() const { return weights_; }
  const Parameters& gradients() const { return gradients_; }
  std::vector<NamedTensor> weights() const;  // all in float32

  // One step of AdamW by the mean of the gradients, which is clipped. It changes nothing where
  // their norm is not finite. What differs from step to step is in the device's memory.
  void update();
  void set_rate(double lr);
  float norm() const;  // of the gradients of the last update, before it clipped them

  // The mean of the gradients, for who wants to compare them with another program's.
  void write_gradients(const Path& path, float loss) const;

  // A checkpoint is written whole or not at all, and refused where a bit of it has changed, or
  // where it was written with other settings. `step` is the number of steps before it.
  void write_checkpoint(const Path& path, std::int64_t step, const std::string& settings) const;
  std::int64_t read_checkpoint(const Path& path, const std::string& settings);

 private:
  std::vector<NamedTensor> everything() const;

  UpdateOptions options_;
  Device& device_;
  Parameters weights_;
  std::optional<Parameters> masters_;
  Parameters gradients_, exp_avg_, exp_avg_sq_;
  Tensor updates_;              // of each parameter, so far
  Tensor rate_, scale_, norm_;  // numbers of one update
  std::vector<tfk::OptimizerTensor> tensors_;
};

}  // namespace gpt2
