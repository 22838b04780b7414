// SPDX-License-Identifier: MIT
#include "linear_loss/chunks.h"

#include "core/dispatch.h"
#include "core/rounding.h"
#include "core/rows.h"
#include "transformer_kernels/linear/linear.h"

namespace transformer_kernels {
namespace {

// Bytes of logits in memory if the call does not say: on a CPU, enough rows for products at full
// speed; elsewhere, as many bytes as the weight's gradient, within limits, so that a large gradient
// is summed only a few times.
constexpr std::int64_t kBytesOnCpu = 64 << 20;
constexpr std::int64_t kLeastBytes = 512 << 20;
constexpr std::int64_t kMostBytes = 1 << 30;

// On a GPU rows of logits start at multiples of a line.
constexpr std::int64_t kLineBytes = 128;

// With up to this many chunks, a 16-bit gradient of the weight is summed in its own dtype.
constexpr std::int64_t kMostNarrowSums = 4;

std::int64_t row_step(const Context& context, const LinearLossLayer& layer) {
  const std::int64_t classes = layer.linear_weight.sizes[0];
  if (context.device.type == DeviceType::kCpu) return classes;
  return rounded_up(classes, kLineBytes / size_of(layer.x.dtype));
}

std::int64_t bytes_of_chunk(const Context& context, const LinearLossLayer& layer) {
  if (layer.chunk_bytes > 0) return layer.chunk_bytes;
  if (context.device.type == DeviceType::kCpu) return kBytesOnCpu;
  return std::clamp(layer.linear_weight.numel() * size_of(layer.x.dtype), kLeastBytes, kMostBytes);
}

// Chunks are of equal size, of at least a row each.
std::int64_t rows_at_once(std::int64_t rows, std::int64_t row_bytes, std::int64_t most_bytes) {
  const std::int64_t most = std::max<std::int64_t>(1, most_bytes / row_bytes);
  const std::int64_t chunks = std::max<std::int64_t>(1, divide_up(rows, most));
  return std::max<std::int64_t>(1, divide_up(rows, chunks));
}

TensorView part_of(TensorView view, std::int64_t begin, std::int64_t step) {
  if (view.numel() > 0)
    view.data = static_cast<char*>(view.data) + begin * step * size_of(view.dtype);
  return view;
}

}  // namespace

TensorView Chunk::rows(const TensorView& view) const {
  if (is_all || !view.defined()) return view;
  const std::int64_t columns = view.sizes[view.rank - 1];
  const std::int64_t step = view.numel() == 0 ? columns : row_stride(view);
  TensorView part = TensorView::contiguous(view.data, view.dtype, view.device, {count, columns});
  part.strides[0] = step;
  return part_of(part, begin, step);
}

TensorView Chunk::numbers(const TensorView& view) const {
  if (is_all || !view.defined()) return view;
  return part_of(TensorView::contiguous(view.data, view.dtype, view.device, {count}), begin, 1);
}

Chunks::Chunks(const char* op, const Context& context, const LinearLossLayer& layer, int copies)
    : layer_(layer),
      rows_(rows_and_cols(layer.x).rows),
      classes_(layer.linear_weight.sizes[0]),
      step_(row_step(context, layer)),
      at_once_(rows_at_once(rows_, copies * step_ * size_of(layer.x.dtype),
                            bytes_of_chunk(context, layer))),
      logits_(another(op, context)) {}

std::int64_t Chunks::count() const { return divide_up(rows_, at_once_); }

ScratchTensor Chunks::another(const char* op, const Context& context) const {
  return {op, context, layer_.x.dtype, std::min(rows_, at_once_) * step_};
}

TensorView Chunks::view(const Chunk& chunk, const ScratchTensor& memory) const {
  if (!chunk.is_all) return memory.matrix(chunk.count, classes_, step_);
  TensorView all = layer_.x;
  all.data = memory.numbers().data;
  std::int64_t stride = 1;
  for (int i = all.rank - 1; i >= 0; --i) {
    if (i == all.rank - 1) all.sizes[i] = classes_;
    all.strides[i] = stride;
    stride *= all.sizes[i];
  }
  return all;
}

void Chunks::multiply(const Context& context, const Chunk& chunk, const TensorView& logits) const {
  linear_forward(context, {.x = chunk.rows(layer_.x),
                           .weight = layer_.linear_weight,
                           .bias = layer_.linear_bias,
                           .y = logits});
}

ParameterSum::ParameterSum(const char* op, const Context& context, const TensorView& wanted,
                           bool in_place)
    : op_(op),
      wanted_(wanted) {
  const bool is_wide = wanted.dtype == accumulate_dtype(wanted.dtype);
  if (!wanted.defined() || in_place || is_wide || context.checks_only) return;
  wide_.emplace(op, context, DType::kFloat32, wanted.numel());
}

TensorView ParameterSum::view() const {
  if (!wide_) return wanted_;
  TensorView sums = wanted_;
  sums.data = wide_->numbers().data;
  sums.dtype = DType::kFloat32;
  return sums;
}

void ParameterSum::finish(const Context& context) const {
  if (wide_) round_sums(op_, context, *wide_, wanted_);
}

Gradients::Gradients(const char* op, const Context& context, const LinearLossLayer& layer,
                     const Chunks& chunks, const LinearLossGradients& wanted)
    : layer_(layer),
      dx_(wanted.dx),
      dweight_(op, context, wanted.dlinear_weight,
               chunks.count() <= (wanted.float32_sums ? 1 : kMostNarrowSums)),
      dbias_(op, context, wanted.dlinear_bias, chunks.count() <= 1) {}

bool Gradients::any() const {
  return dx_.defined() || dweight_.view().defined() || dbias_.view().defined();
}

void Gradients::add(const Context& context, const Chunk& chunk, const TensorView& dlogits) const {
  if (!any()) return;
  const bool follows = chunk.begin > 0;
  linear_backward(context, {.dy = dlogits,
                            .x = chunk.rows(layer_.x),
                            .weight = layer_.linear_weight,
                            .dx = chunk.rows(dx_),
                            .dweight = dweight_.view(),
                            .dbias = dbias_.view(),
                            .accumulate_dweight = follows,
                            .accumulate_dbias = follows});
}

void Gradients::finish(const Context& context) const {
  dweight_.finish(context);
  dbias_.finish(context);
}

void check_layer(const char* op, const Context& context, const LinearLossLayer& layer,
                 const LinearLossGradients& gradients) {
  const ArgumentChecker check(op, context.device);
  const TensorView& weight = layer.linear_weight;
  check.floating("x", layer.x);
  check.floating("linear_weight", weight);
  check_value(weight.rank == 2, op, ": linear_weight has ", weight.rank, " dimensions, expected 2");
  check_value(weight.sizes[0] > 0, op, ": linear_weight has shape ", shape_of(weight),
              ", expected a class or more");
  check_value(layer.chunk_bytes >= 0, op, ": chunk_bytes is ", layer.chunk_bytes,
              ", expected 1 or more, or 0 (the default)");
  if (!gradients.dlinear_weight.defined()) return;
  check.same_shape("dlinear_weight", gradients.dlinear_weight, "linear_weight", weight);
  check.packed("dlinear_weight", gradients.dlinear_weight, weight.numel(),
               "those of linear_weight");
}

}  // namespace transformer_kernels
