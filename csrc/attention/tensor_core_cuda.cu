// SPDX-License-Identifier: MIT
#include "attention/tensor_core.h"
#include "attention/tensor_core_backward.cuh"
#include "attention/tensor_core_forward.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention";

// ---------------------------------------------------------------------------- what it takes

// Rows are read and written in pieces of 16 bytes.
bool in_pieces(const HeadRows& rows) {
  constexpr std::int64_t kPiece = 8;
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.batch_stride % kPiece == 0 &&
         rows.row_stride % kPiece == 0 && rows.head_stride % kPiece == 0;
}

template <std::size_t kTiles>
constexpr int most_shared_bytes(const std::array<TensorCoreTile, kTiles>& tiles, int own) {
  int most = 0;
  for (const TensorCoreTile& tile : tiles) most = std::max(most, tile.shared_bytes(own, 2));
  return most;
}
constexpr int kStaticBytes = 3 * 1024;  // at most
constexpr int kSharedBytes =
    kStaticBytes +
    std::max({most_shared_bytes(kForwardTiles, 1), most_shared_bytes(kForwardExtrasTiles, 1),
              most_shared_bytes(kKeyTiles, 2), most_shared_bytes(kKeyExtrasTiles, 2),
              most_shared_bytes(kQueryTiles, 2), most_shared_bytes(kQueryExtrasTiles, 2)});

const char* refusal_of_both(const AttentionProblem& p, const DeviceLimits& device) {
  if (device.architecture < 80) return "it needs sm_80 or later";
  if (device.shared_bytes_per_cta < kSharedBytes) return "the device has too little shared memory";
  if (size_of(p.dtype) != 2) return "it multiplies 16-bit numbers";
  if (p.dim % 8 != 0 || p.value_dim % 8 != 0) return "a head dim is no multiple of 8";
  if (!in_pieces(p.q) || !in_pieces(p.k) || !in_pieces(p.v)) {
    return "rows of q, k or v are not aligned to 16 bytes";
  }
  if (std::max(p.queries, p.keys) >= kMostTensorCoreLength) return "there are too many rows";
  return nullptr;
}

const char* refuses_forward(const AttentionForwardProblem& p, const DeviceLimits& device) {
  if (const char* reason = refusal_of_both(p, device)) return reason;
  return in_pieces(p.out) ? nullptr : "rows of out are not aligned to 16 bytes";
}

// Elements of dbias that sum over scores of several CTAs.
bool sums_bias(const AttentionBackwardProblem& p) {
  const ScoreMap& d = p.dbias;
  const auto broadcast = [](std::int64_t size, std::int64_t stride) {
    return size > 1 && stride == 0;
  };
  return d.defined() && (broadcast(p.batch, d.batch_stride) || broadcast(p.heads, d.head_stride) ||
                         broadcast(p.queries, d.row_stride) || broadcast(p.keys, d.col_stride));
}

const char* refuses_backward(const AttentionBackwardProblem& p, const DeviceLimits& device) {
  if (const char* reason = refusal_of_both(p, device)) return reason;
  for (const HeadRows* rows : {&p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
    if (!in_pieces(*rows)) return "rows of out or of a gradient are not aligned to 16 bytes";
  }
  return sums_bias(p) ? "the bias is broadcast and its gradient wanted" : nullptr;
}

// ---------------------------------------------------------------------------- how it runs

// Scores that are more than products times a scale, which has to be positive for the largest
// product to be the largest score.
bool has_extras(const AttentionProblem& p) {
  return p.softcap != 0 || p.slopes.data != nullptr || p.bias.defined() || p.mask.defined() ||
         p.drop_below != 0 || p.scale <= 0;
}

// Calls body.operator()<T, index, extras>(), the index of the tiles that the head dims fit.
template <class Body>
void dispatch_tensor_core(const AttentionProblem& p, Body&& body) {
  const std::int64_t dim = std::max(p.dim, p.value_dim);
  std::size_t index = 0;
  while (kForwardTiles[index].dim < dim) ++index;
  dispatch_index<kForwardTiles.size()>(index, [&]<std::size_t kIndex>() {
    dispatch_bool(has_extras(p), [&]<bool kExtras>() {
      if (p.dtype == DType::kFloat16) return body.template operator()<Half, kIndex, kExtras>();
      body.template operator()<BFloat16, kIndex, kExtras>();
    });
  });
}

void run_forward(const Context& context, const AttentionForwardProblem& p) {
  dispatch_tensor_core(p, [&]<class T, std::size_t kIndex, bool kExtras>() {
    launch_tensor_core_forward<T, ForwardPlan<kExtras, kIndex>, kExtras>(kOp, context, p);
  });
}

template <class T, std::size_t kIndex, bool kExtras>
void run_gradients(const Context& context, const TensorCoreBackward& a) {
  using enum BackwardPart;
  using Keys = KeyPlan<kExtras, kIndex>;
  using Queries = QueryPlan<kExtras, kIndex>;
  if constexpr (Keys::tile.dim <= 128) {
    launch_tensor_core_backward<T, Keys, kDkAndDv, kExtras>(kOp, context, a);
  } else {
    launch_tensor_core_backward<T, Keys, kDv, kExtras>(kOp, context, a);
    launch_tensor_core_backward<T, Keys, kDk, kExtras>(kOp, context, a);
  }
  launch_tensor_core_backward<T, Queries, kDq, kExtras>(kOp, context, a);
}

// Scores that no query sees have no owner among the tiles.
void clear_bias_gradient(const Context& context, const AttentionBackwardProblem& p) {
  const std::size_t bytes = p.dbias_count * sizeof(float);
  if (!p.dbias.defined() || bytes == 0) return;
  check_cuda(kOp,
             cudaMemsetAsync(p.dbias.data, 0, bytes, static_cast<cudaStream_t>(context.stream)));
}

void run_backward(const Context& context, const AttentionBackwardProblem& p) {
  const std::size_t rows = static_cast<std::size_t>(p.rows());
  const Scratch scratch(kOp, context, std::max<std::size_t>(rows, 1) * sizeof(RowStatistics));
  const TensorCoreBackward a{p, scratch.as<RowStatistics>()};
  clear_bias_gradient(context, p);
  dispatch_tensor_core(p, [&]<class T, std::size_t kIndex, bool kExtras>() {
    if (rows > 0) launch_row_statistics<T>(kOp, context, a);
    run_gradients<T, kIndex, kExtras>(context, a);
    if (p.dsinks != nullptr && p.heads > 0) launch_dsinks<T>(kOp, context, a);
  });
}

}  // namespace

const AttentionEngine<AttentionForwardProblem> kTensorCoreForward = {
    "tensor_core", &refuses_forward, &run_forward};
const AttentionEngine<AttentionBackwardProblem> kTensorCoreBackward = {
    "tensor_core", &refuses_backward, &run_backward};

}  // namespace transformer_kernels::cuda
