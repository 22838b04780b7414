// SPDX-License-Identifier: MIT
// Outputs that exceed the cache are written past it. The test calls these kernels directly, since
// such outputs would be too large for a test; the bits must be those of the usual stores.
#include <gtest/gtest.h>

#include "core/cpu/scratch.h"
#include "norm/cpu/kernels.h"
#include "test_tensor.h"

namespace transformer_kernels::cpu {
namespace {

using testing::cpu_backend;
using testing::Layout;
using testing::random_normal;
using testing::TestTensor;
using testing::Values;

constexpr std::int64_t kRows = 11;

const NormKernels& kernels() {
  constexpr const NormKernels* kTables[] = TFK_PER_ISA(norm_kernels);
  return *kTables[static_cast<int>(isa())];
}

struct Case {
  DType dtype;
  std::int64_t cols;
  Layout layout;
  bool center;
};

Rows rows_of(const TestTensor& tensor) { return {tensor.view().data, tensor.view().strides[0]}; }

// One operand, the same at each call.
struct Operand {
  Values values;
  TestTensor memory;

  Operand(const Case& c, std::int64_t rows, DType dtype, double mean = 0)
      : values(random_normal(rows * c.cols, dtype, mean)),
        memory(*cpu_backend(), dtype, rows, c.cols, values, rows > 1 ? c.layout : Layout{}) {}
};

// Memory for a wide row of either type, with any numbers in it.
std::vector<double> wide_row(const Case& c) { return random_normal(wide_cols(c.cols), c.dtype); }

DType wide(DType dtype) { return dtype == DType::kFloat64 ? dtype : DType::kFloat32; }

class Streaming : public ::testing::TestWithParam<DType> {
 protected:
  static std::vector<Case> cases() {
    std::vector<Case> all;
    for (std::int64_t cols : {64, 200, 333}) {
      for (Layout layout : {Layout{}, Layout{0, 64}, Layout{1, 3}}) {
        for (bool center : {false, true}) all.push_back({GetParam(), cols, layout, center});
      }
    }
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(cpu, Streaming,
                         ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kFloat16,
                                           DType::kBFloat16),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Streaming, forward_writes_the_same_bits) {
  for (const Case& c : cases()) {
    Operand x(c, kRows, c.dtype), residual(c, kRows, c.dtype);
    const std::vector<double> weight = wide_row(c);
    std::vector<std::vector<std::uint8_t>> outputs[2];
    for (bool stream : {false, true}) {
      TestTensor y(*cpu_backend(), c.dtype, kRows, c.cols, c.layout);
      TestTensor sum(*cpu_backend(), c.dtype, kRows, c.cols, c.layout);
      NormForwardProblem p{};
      p.center = c.center;
      p.dtype = c.dtype;
      p.rows = kRows;
      p.cols = c.cols;
      p.x = rows_of(x.memory);
      p.residual = rows_of(residual.memory);
      p.y = rows_of(y);
      p.sum = rows_of(sum);
      p.eps = 1e-5;
      std::vector<double> scratch(c.cols);
      const NormForwardTask task{p, weight.data(), nullptr, stream};
      kernels().forward[static_cast<int>(c.dtype)](task, scratch.data(), 0, kRows);
      outputs[stream] = {y.bytes(), sum.bytes()};
    }
    EXPECT_EQ(outputs[0], outputs[1]) << c.cols << " columns, gap " << c.layout.gap;
  }
}

TEST_P(Streaming, backward_writes_the_same_bits) {
  for (const Case& c : cases()) {
    Operand x(c, kRows, c.dtype), dy(c, kRows, c.dtype), dsum(c, kRows, c.dtype);
    const std::vector<double> weight = wide_row(c);
    TestTensor mean(*cpu_backend(), wide(c.dtype), 1, kRows, Values(kRows, 0.1));
    TestTensor rstd(*cpu_backend(), wide(c.dtype), 1, kRows, Values(kRows, 0.9));
    std::vector<std::uint8_t> outputs[2];
    for (bool stream : {false, true}) {
      TestTensor dx(*cpu_backend(), c.dtype, kRows, c.cols, c.layout);
      NormBackwardProblem p{};
      p.center = c.center;
      p.dtype = c.dtype;
      p.rows = kRows;
      p.cols = c.cols;
      p.dy = rows_of(dy.memory);
      p.dsum = rows_of(dsum.memory);
      p.x = rows_of(x.memory);
      p.dx = rows_of(dx);
      p.mean = mean.view().data;
      p.rstd = rstd.view().data;
      const NormBackwardTask task{p, weight.data(), nullptr, wide_cols(c.cols), 4, stream};
      kernels().backward[static_cast<int>(c.dtype)](task, 0, 3);
      outputs[stream] = dx.bytes();
    }
    EXPECT_EQ(outputs[0], outputs[1]) << c.cols << " columns, gap " << c.layout.gap;
  }
}

}  // namespace
}  // namespace transformer_kernels::cpu
