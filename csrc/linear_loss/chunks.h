// SPDX-License-Identifier: MIT
// A layer's rows in chunks: what a pass over them reads, and the gradients that it adds up.
#pragma once

#include <algorithm>
#include <optional>

#include "core/backends.h"
#include "linear_loss/scratch.h"
#include "transformer_kernels/linear_loss/linear_loss.h"

namespace transformer_kernels {

// Some rows of a call, or all of them in their own shape. Views that are absent stay so.
struct Chunk {
  std::int64_t begin;
  std::int64_t count;
  bool is_all;

  // These rows of (..., C), as a matrix.
  TensorView rows(const TensorView& view) const;
  // These rows of a tensor of one number a row, as a vector.
  TensorView numbers(const TensorView& view) const;
};

class Chunks {
 public:
  // `copies`: how many chunks of logits there will be in memory, this object's among them.
  Chunks(const char* op, const Context& context, const LinearLossLayer& layer, int copies = 1);

  std::int64_t rows() const { return rows_; }
  std::int64_t count() const;
  // Memory of as many numbers as a chunk's logits.
  ScratchTensor another(const char* op, const Context& context) const;

  // Calls body(chunk, logits), with the logits in memory that the next chunk reuses. Where there
  // are no rows it gets one chunk of none, and a call that only checks gets one of all rows.
  template <class Body>
  void for_each(const Context& context, Body&& body) const {
    std::int64_t begin = 0;
    do {
      const Chunk chunk{begin, std::min(at_once_, rows_ - begin), context.checks_only};
      const TensorView logits = view(chunk, logits_);
      multiply(context, chunk, logits);
      body(chunk, logits);
      begin += at_once_;
    } while (begin < rows_ && !context.checks_only);
  }

  // The chunk in `memory`, the logits' or another()'s.
  TensorView view(const Chunk& chunk, const ScratchTensor& memory) const;

 private:
  void multiply(const Context& context, const Chunk& chunk, const TensorView& logits) const;

  const LinearLossLayer& layer_;
  std::int64_t rows_;
  std::int64_t classes_;
  std::int64_t step_;     // from one row of logits to the next
  std::int64_t at_once_;  // rows of a chunk
  ScratchTensor logits_;
};

// The gradient of a parameter, a sum over chunks: in the caller's tensor, or in float32 until the
// last chunk is added.
class ParameterSum {
 public:
  ParameterSum(const char* op, const Context& context, const TensorView& wanted, bool in_place);

  TensorView view() const;
  void finish(const Context& context) const;

 private:
  const char* op_;
  TensorView wanted_;
  std::optional<ScratchTensor> wide_;
};

class Gradients {
 public:
  Gradients(const char* op, const Context& context, const LinearLossLayer& layer,
            const Chunks& chunks, const LinearLossGradients& wanted);

  bool any() const;
  // Adds those of a chunk, whose logits have the gradient `dlogits`.
  void add(const Context& context, const Chunk& chunk, const TensorView& dlogits) const;
  void finish(const Context& context) const;

 private:
  const LinearLossLayer& layer_;
  TensorView dx_;
  ParameterSum dweight_;
  ParameterSum dbias_;
};

// Checks what chunks are made of, before an op inside could refuse it, and that sums which are
// rounded at the end are contiguous.
void check_layer(const char* op, const Context& context, const LinearLossLayer& layer,
                 const LinearLossGradients& gradients);

// Runs a pass on all rows to check its arguments, which no op inside writes before, and then on
// chunks.
template <class Run>
void check_and_run(const char* op, const Context& context, Run&& run) {
  Context checking = context;
  checking.checks_only = true;
  run(checking);
  if (context.checks_only) return;
  if constexpr (kHasCuda) {
    if (context.device.type == DeviceType::kCuda) {
      const cuda::CurrentDevice current(op, context.device.index);  // for memory
      return run(context);
    }
  }
  run(context);
}

}  // namespace transformer_kernels
