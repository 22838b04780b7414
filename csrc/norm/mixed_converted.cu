// SPDX-License-Identifier: MIT
// Norms of a 16-bit x beside a float32 residual that fit no plan: x is converted to float32, and
// the results back.
#include <algorithm>

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/scratch.h"
#include "norm/kernels.h"

namespace transformer_kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    convert_rows_kernel(Rows from, Rows to, std::int64_t cols) {
  const From* const source = static_cast<const From*>(from.data) + blockIdx.x * from.stride;
  To* const target = static_cast<To*>(to.data) + blockIdx.x * to.stride;
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    target[col] = narrow<To>(widen(source[col]));
  }
}

class WideBranch {
 public:
  template <class Problem>
  WideBranch(const Context& context, const Problem& p)
      : context_(context),
        op_(p.norm.op),
        dtype_(p.branch_dtype),
        rows_(p.norm.rows),
        cols_(p.norm.cols),
        memory_(op_, context, std::max<std::int64_t>(rows_ * cols_ * sizeof(float), 16)) {}

  Rows matrix() const { return {memory_.as<float>(), cols_}; }
  void read(const Rows& branch) const { convert(branch, matrix(), true); }
  void write(const Rows& branch) const { convert(matrix(), branch, false); }

 private:
  void convert(const Rows& from, const Rows& to, bool to_float) const {
    if (rows_ == 0 || cols_ == 0) return;
    dispatch_narrow(dtype_, [&]<class X>() {
      launch(op_, context_, {.ctas = rows_, .threads = kThreads},
             to_float ? &convert_rows_kernel<X, float> : &convert_rows_kernel<float, X>, from, to,
             cols_);
    });
  }

  const Context& context_;
  const char* op_;
  DType dtype_;
  std::int64_t rows_;
  std::int64_t cols_;
  Scratch memory_;
};

}  // namespace

void run_mixed_norm_forward_converted(const Context& context, const DropoutNormForwardProblem& p) {
  const WideBranch x(context, p), y(context, p);
  x.read(p.norm.x);
  DropoutNormForwardProblem wide = p;
  wide.branch_dtype = p.norm.dtype;
  wide.norm.x = wide.dropout.x = x.matrix();
  wide.norm.y = y.matrix();
  dropout_norm_forward(context, wide);
  y.write(p.norm.y);
}

void run_mixed_norm_backward_converted(const Context& context,
                                       const DropoutNormBackwardProblem& p) {
  const WideBranch branch(context, p);  // dx may be dy's memory
  branch.read(p.norm.dy);
  DropoutNormBackwardProblem wide = p;
  wide.branch_dtype = p.norm.dtype;
  wide.norm.dy = wide.dropout.dx = branch.matrix();
  dropout_norm_backward(context, wide);
  branch.write(p.dropout.dx);
}

}  // namespace transformer_kernels::cuda
