// SPDX-License-Identifier: MIT
// The passes as products, and the engine of each.
#include <algorithm>

#include "core/cuda/column_sum.h"
#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "linear/product.h"
#include "pointwise/pointwise_problem.h"

namespace transformer_kernels::cuda {
namespace {

// dy f'(z), and the sums of its columns where they are wanted.
void slope_times(const Context& context, const LinearBackwardProblem& p, const Rows& dz) {
  pointwise_backward(context, {.op = *p.activation,
                               .dtype = p.dtype,
                               .bias_dtype = p.bias_dtype,
                               .rows = p.rows,
                               .cols = p.cols,
                               .dy = p.dy,
                               .x = p.z,
                               .dx = dz,
                               .dbias = p.dbias});
}

constexpr int kSumThreads = 128;

// A thread has a pack of columns, a CTA every gridDim.y-th row.
template <class T, int kSize>
__global__ void __launch_bounds__(kSumThreads)
    sum_every_nth_row(Rows dy, std::int64_t rows, std::int64_t cols, std::int64_t pitch,
                      accumulate_t<T>* partial) {
  using P = Pack<T, kSize>;
#if __CUDA_ARCH__ >= 900
  let_next_kernel_start();
#endif
  const std::int64_t col = (std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kSize;
  if (col >= cols) return;
  accumulate_t<T> sum[kSize] = {};
#pragma unroll 8
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    accumulate_t<T> value[kSize];
    P::unpack(P::load(static_cast<const T*>(dy.data) + row * dy.stride + col), value);
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum[i] += value[i];
  }
  accumulate_t<T>* const to = partial + (2 * std::int64_t{blockIdx.y} + 1) * pitch + col;
#pragma unroll
  for (int i = 0; i < kSize; ++i) to[i] = sum[i];
}

template <class T, int kSize>
void sum_rows(const Context& context, const char* op, const LinearBackwardProblem& p) {
  using A = accumulate_t<T>;
  constexpr std::int64_t kMostParts = 256;
  constexpr std::int64_t kRowsOfPart = 16;
  const std::int64_t parts = std::min(kMostParts, divide_up(p.rows, kRowsOfPart));
  const std::int64_t pitch = rounded_up(p.cols, 4);
  const Scratch partial(op, context, 2 * pitch * parts * sizeof(A));
  if (parts > 0) {
    launch(op, context,
           {.ctas = divide_up(p.cols, kSumThreads * kSize),
            .threads = kSumThreads,
            .ctas_y = static_cast<int>(parts)},
           sum_every_nth_row<T, kSize>, p.dy, p.rows, p.cols, pitch, partial.as<A>());
  }
  sum_columns(op, context, p.bias_dtype,
              PartialGradients<A>{.partial = partial.as<A>(),
                                  .rows = static_cast<int>(parts),
                                  .pitch = pitch,
                                  .cols = p.cols,
                                  .dweight = nullptr,
                                  .dbias = p.dbias},
              device_limits(context.device.index).architecture >= 90);
}

// The gradient of the bias.
void sum_rows(const Context& context, const char* op, const LinearBackwardProblem& p) {
  if (p.cols == 0) return;
  dispatch_float(p.dtype, [&]<class T>() {
    constexpr int kPack = sizeof(T) == 8 ? 1 : 16 / sizeof(T);
    const bool packs = p.cols % kPack == 0 && p.dy.stride % kPack == 0 &&
                       reinterpret_cast<std::uintptr_t>(p.dy.data) % 16 == 0;
    if (packs) {
      sum_rows<T, kPack>(context, op, p);
    } else {
      sum_rows<T, 1>(context, op, p);
    }
  });
}

}  // namespace

void linear_forward(const Context& context, const LinearForwardProblem& p) {
  multiply(context, {.op = p.activation ? "linear_act" : "linear",
                     .dtype = p.dtype,
                     .rows = p.rows,
                     .cols = p.cols,
                     .terms = p.terms,
                     .a = matrix_of(p.x),
                     .b = p.weight.transposed(),
                     .out = matrix_of(p.y),
                     .kept = matrix_of(p.z),
                     .bias = p.bias,
                     .bias_dtype = p.bias_dtype,
                     .activation = p.activation,
                     .algorithm = p.algorithm});
}

void linear_backward(const Context& context, const LinearBackwardProblem& p) {
  const char* const op = p.activation ? "linear_act" : "linear";
  const std::int64_t dz_numbers = p.activation ? p.rows * p.cols : 0;
  const Scratch memory(op, context, dz_numbers * size_of(p.dtype));
  const Rows rows = p.activation ? Rows{memory.as<void>(), p.cols} : p.dy;
  if (p.activation) {
    slope_times(context, p, rows);
  } else if (p.dbias != nullptr) {
    sum_rows(context, op, p);
  }
  const Matrix dz = matrix_of(rows);
  if (p.dx.data != nullptr) {
    multiply(context, {.op = op,
                       .dtype = p.dtype,
                       .rows = p.rows,
                       .cols = p.terms,
                       .terms = p.cols,
                       .a = dz,
                       .b = p.weight,
                       .out = matrix_of(p.dx),
                       .algorithm = p.dx_algorithm});
  }
  if (p.dweight.data == nullptr) return;
  Product dweight{.op = op,
                  .dtype = p.dtype,
                  .rows = p.cols,
                  .cols = p.terms,
                  .terms = p.rows,
                  .a = dz.transposed(),
                  .b = matrix_of(p.x),
                  .out = p.dweight,
                  .algorithm = p.dweight_algorithm};
  if (p.dweight.col_step != 1) {  // kept by columns: its transpose is what lies in rows
    dweight.rows = p.terms;
    dweight.cols = p.cols;
    dweight.a = matrix_of(p.x).transposed();
    dweight.b = dz;
    dweight.out = p.dweight.transposed();
  }
  multiply(context, dweight);
}

void linear_dact(const Context& context, const LinearDactProblem& p) {
  multiply(context, {.op = "linear_dact",
                     .dtype = p.dtype,
                     .rows = p.rows,
                     .cols = p.cols,
                     .terms = p.terms,
                     .a = matrix_of(p.dy),
                     .b = p.weight,
                     .out = matrix_of(p.dz),
                     .kept = matrix_of(p.h),
                     .z = matrix_of(p.z),
                     .activation = p.activation});
}

}  // namespace transformer_kernels::cuda
