// SPDX-License-Identifier: MIT
#include "attention/tensor_core.h"
#include "attention/tensor_core_float32.h"
#include "attention/tensor_core_launch.cuh"

namespace transformer_kernels::cuda {
namespace {

// Rows are read and written in pieces of 16 bytes.
bool in_pieces(const HeadRows& rows, DType dtype) {
  const std::int64_t piece = 16 / size_of(dtype);
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.batch_stride % piece == 0 &&
         rows.row_stride % piece == 0 && rows.head_stride % piece == 0;
}

constexpr int kSharedBytes = std::max(tensor_core_shared_bytes<2>(), tensor_core_shared_bytes<4>());
constexpr int kMostDimOfFloat32 = TensorCoreTiles<4>::forward.back().dim;

const char* refusal_of_both(const AttentionProblem& p, const DeviceLimits& device) {
  if (device.architecture < 80) return "it needs sm_80 or later";
  if (p.dtype == DType::kFloat64) return "it does not multiply float64";
  if (device.shared_bytes_per_cta < kSharedBytes) return "the device has too little shared memory";
  if (p.dim * size_of(p.dtype) % 16 != 0 || p.value_dim * size_of(p.dtype) % 16 != 0) {
    return "a head dim is no multiple of 16 bytes";
  }
  if (p.dtype == DType::kFloat32 && std::max(p.dim, p.value_dim) > kMostDimOfFloat32) {
    return "a float32 head dim is above 128";
  }
  for (const HeadRows* rows : {&p.q, &p.k, &p.v}) {
    if (!in_pieces(*rows, p.dtype)) return "rows of q, k or v are not aligned to 16 bytes";
  }
  if (std::max(p.queries, p.keys) >= kMostTensorCoreLength) return "there are too many rows";
  return nullptr;
}

const char* refuses_forward(const AttentionForwardProblem& p, const DeviceLimits& device) {
  if (const char* reason = refusal_of_both(p, device)) return reason;
  return in_pieces(p.out, p.dtype) ? nullptr : "rows of out are not aligned to 16 bytes";
}

const char* refuses_backward(const AttentionBackwardProblem& p, const DeviceLimits& device) {
  if (const char* reason = refusal_of_both(p, device)) return reason;
  for (const HeadRows* rows : {&p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
    if (!in_pieces(*rows, p.dtype)) {
      return "rows of out or of a gradient are not aligned to 16 bytes";
    }
  }
  return nullptr;
}

void run_forward(const Context& context, const AttentionForwardProblem& p) {
  if (p.dtype == DType::kFloat32) return run_tensor_core_float32(context, p);
  if (p.dtype == DType::kFloat16) return run_tensor_core_forward<Half>(context, p);
  run_tensor_core_forward<BFloat16>(context, p);
}

void run_backward(const Context& context, const AttentionBackwardProblem& p) {
  if (p.dtype == DType::kFloat32) return run_tensor_core_float32(context, p);
  if (p.dtype == DType::kFloat16) return run_tensor_core_backward<Half>(context, p);
  run_tensor_core_backward<BFloat16>(context, p);
}

}  // namespace

const AttentionEngine<AttentionForwardProblem> kTensorCoreForward = {
    "tensor_core", {}, &refuses_forward, &run_forward};
const AttentionEngine<AttentionBackwardProblem> kTensorCoreBackward = {
    "tensor_core", {}, &refuses_backward, &run_backward};

}  // namespace transformer_kernels::cuda
