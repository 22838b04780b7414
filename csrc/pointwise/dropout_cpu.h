// SPDX-License-Identifier: MIT
// Dropout on the CPU, for ops that use its rows while they are in the cache.
#pragma once

#include <cstdint>

#include "core/cpu/columns.h"
#include "core/cpu/scratch.h"
#include "pointwise/dropout_isa.h"

namespace transformer_kernels::cpu {

class DropoutForwardRows {
 public:
  // With `stream`, outputs leave the cache.
  DropoutForwardRows(const Context& context, const DropoutForwardProblem& problem, bool stream);
  DropoutForwardRows(const DropoutForwardRows&) = delete;
  DropoutForwardRows& operator=(const DropoutForwardRows&) = delete;

  // Tiles of kTileCols columns, row after row (kernels_isa.h).
  void tiles(std::int64_t begin, std::int64_t end) const;
  void row(std::int64_t index) const;

 private:
  WideParameter bias_;
  DropoutTask task_;
};

class DropoutBackwardRows {
 public:
  // `rows_per_chunk`: of those whose gradients of the bias are summed in order.
  DropoutBackwardRows(const Context& context, const DropoutBackwardProblem& problem, bool stream,
                      std::int64_t rows_per_chunk);
  DropoutBackwardRows(const DropoutBackwardRows&) = delete;
  DropoutBackwardRows& operator=(const DropoutBackwardRows&) = delete;

  void chunk(std::int64_t index) const;
  // Call after all chunks: writes the gradient of the bias.
  void finish(const Context& context) const;

 private:
  std::int64_t chunks_;
  Scratch partials_;
  DropoutBackwardTask task_;
  DropoutForwardProblem dropped_;  // without the gradient of a bias
};

}  // namespace transformer_kernels::cpu
