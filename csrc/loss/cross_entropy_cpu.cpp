// SPDX-License-Identifier: MIT
#include "loss/cross_entropy_cpu.h"

#include <cstring>

#include "core/cpu/columns.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"

namespace transformer_kernels::cpu {
namespace {

constexpr const char* kOp = "cross_entropy";

const CrossEntropyKernels& kernels() {
  constexpr const CrossEntropyKernels* kTables[] = TFK_PER_ISA(cross_entropy_kernels);
  return *kTables[static_cast<int>(isa())];
}

int index_of(DType dtype) { return static_cast<int>(dtype); }

// The weight as rows read it, where there is one.
class WeightOfCall {
 public:
  WeightOfCall(const Context& context, const CrossEntropyProblem& p)
      : wide_(context, p.dtype,
              {p.weight, p.weight == nullptr ? 0 : p.cols,
               p.weight_dtype == accumulate_dtype(p.dtype)}),
        present_(p.weight != nullptr) {}

  LossCall call(const CrossEntropyProblem& p) const {
    if (!present_) return {nullptr, static_cast<double>(p.cols), 0, 1};
    return {wide_.data(), kernels().sum_wide[index_of(p.dtype)](wide_.data(), p.cols), 0, 1};
  }

 private:
  WideParameter wide_;
  bool present_;
};

double total_of(const CrossEntropyProblem& p) {
  const auto weight = kernels().row_weight[index_of(p.dtype)];
  double total = 0;
  for (std::int64_t row = 0; row < p.rows; ++row) total += weight(p, row);
  return total;
}

// Converts an array of the arithmetic's type to `dtype`.
void write_numbers(DType arithmetic, const void* from, DType dtype, void* to, std::int64_t count) {
  if (dtype == arithmetic) {
    std::memcpy(to, from, count * size_of(dtype));
  } else {
    kernels().narrow[index_of(dtype)](from, to, count);
  }
}

template <class A>
void write_number(double value, DType dtype, void* to) {
  const A number = static_cast<A>(value);
  write_numbers(std::is_same_v<A, double> ? DType::kFloat64 : DType::kFloat32, &number, dtype, to,
                1);
}

template <class A>
void reduce(const CrossEntropyForwardProblem& p, const A* losses, double total) {
  double sum = 0;
  for (std::int64_t row = 0; row < p.rows; ++row) sum += losses[row];
  write_number<A>(p.reduction == Reduction::kMean ? sum / total : sum, p.loss_dtype, p.loss);
}

template <class A>
void run_forward(const Context& context, const CrossEntropyForwardProblem& p) {
  const WeightOfCall weight(context, p);
  LossCall call = weight.call(p);
  const bool mean = p.reduction == Reduction::kMean;
  if (mean) {
    call.total = total_of(p);
    if (p.total != nullptr) *static_cast<A*>(p.total) = static_cast<A>(call.total);
    call.gain = 1 / call.total;
  }
  if (p.divisor != nullptr) call.gain = 1 / static_cast<double>(*static_cast<const A*>(p.divisor));
  const Scratch losses(context, p.rows * sizeof(A));
  const auto run = kernels().forward[index_of(p.dtype)];
  parallel_for(context, p.rows, rows_per_range(p.cols), [&](std::int64_t begin, std::int64_t end) {
    run(p, call, losses.data(), begin, end);
  });
  const A* const loss = static_cast<const A*>(losses.data());
  if (p.reduction != Reduction::kNone) return reduce(p, loss, call.total);
  write_numbers(accumulate_dtype(p.dtype), loss, p.loss_dtype, p.loss, p.rows);
}

}  // namespace

void cross_entropy_forward(const Context& context, const CrossEntropyForwardProblem& p) {
  log_cpu_kernel(kOp, p);
  dispatch_bool(p.dtype == DType::kFloat64, [&]<bool kDouble>() {
    run_forward<std::conditional_t<kDouble, double, float>>(context, p);
  });
}

void cross_entropy_backward(const Context& context, const CrossEntropyBackwardProblem& p) {
  log_cpu_kernel(kOp, p);
  const WeightOfCall weight(context, p);
  LossCall call = weight.call(p);
  if (p.reduction == Reduction::kMean) {
    call.gain = 1 / kernels().number[index_of(accumulate_dtype(p.dtype))](p.total);
  }
  const auto run = kernels().backward[index_of(p.dtype)];
  parallel_for(context, p.rows, rows_per_range(p.cols),
               [&](std::int64_t begin, std::int64_t end) { run(p, call, begin, end); });
}

void reduce_losses(const Context&, const ReduceLossesProblem& p) {
  log_cpu_kernel("reduce_losses", p);
  dispatch_bool(p.dtype == DType::kFloat64, [&]<bool kDouble>() {
    using A = std::conditional_t<kDouble, double, float>;
    const double total = p.reduction == Reduction::kMean ? total_of(p) : 0;
    if (p.total != nullptr) *static_cast<A*>(p.total) = static_cast<A>(total);
    if (p.loss != nullptr) reduce(p, static_cast<const A*>(p.losses), total);
  });
}

void scale_gradient(const Context& context, const ScaleGradientProblem& p) {
  const double by = kernels().number[index_of(p.by_dtype)](p.by);
  if (by == 1) return;
  log_cpu_kernel("scale_gradient", p);
  const auto run = kernels().scale[index_of(p.dtype)];
  parallel_for(context, p.rows, rows_per_range(p.cols),
               [&](std::int64_t begin, std::int64_t end) { run(p, by, begin, end); });
}

}  // namespace transformer_kernels::cpu
