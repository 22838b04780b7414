// SPDX-License-Identifier: MIT
// Outputs that exceed the cache are written past it. The test calls these kernels directly, since
// such outputs would be too large for a test; the bits must be those of the usual stores.
#include "pointwise/kernels_isa.h"
#include "pointwise/pointwise_cases.h"

namespace transformer_kernels::cpu {
namespace {

using testing::cpu_backend;
using testing::Layout;
using testing::Matrix;
using testing::PointwiseInputs;
using testing::PointwiseOptions;
using testing::TestTensor;

const PointwiseOpKernels& kernels_of(Pointwise op) {
  constexpr const PointwiseKernels* kTables[] = TFK_PER_ISA(pointwise_kernels);
  return kTables[static_cast<int>(isa())]->op[static_cast<int>(op)];
}

Rows rows_of(const TensorView& view) { return {view.data, view.strides[0]}; }

struct Outputs {
  TestTensor a, b, c;
  Outputs(DType dtype, Matrix m, Layout layout)
      : a(*cpu_backend(), dtype, m.rows, m.cols, layout),
        b(*cpu_backend(), dtype, m.rows, m.cols, layout),
        c(*cpu_backend(), dtype, m.rows, m.cols, layout) {}
};

void expect_same_bits(DType dtype, Matrix m, Layout layout) {
  const int type = static_cast<int>(dtype);
  for (Pointwise op : {Pointwise::kSilu, Pointwise::kSwiGlu}) {
    PointwiseInputs in(*cpu_backend(), op, dtype, m, PointwiseOptions{.layout = layout});
    Outputs stored(dtype, m, layout);
    Outputs streamed(dtype, m, layout);
    for (bool stream : {false, true}) {
      Outputs& out = stream ? streamed : stored;
      PointwiseForwardProblem f{};
      f.op = op;
      f.dtype = dtype;
      f.rows = m.rows;
      f.cols = m.cols;
      f.x = rows_of(in.x_and_up.x());
      f.up = in.gated ? rows_of(in.x_and_up.up()) : Rows{};
      f.y = rows_of(out.a.view());
      kernels_of(op).forward[type]({f, nullptr, nullptr, stream}, 0, m.rows);
      PointwiseBackwardProblem b{};
      b.op = op;
      b.dtype = dtype;
      b.rows = m.rows;
      b.cols = m.cols;
      b.dy = rows_of(in.dy_memory.view());
      b.x = f.x;
      b.up = f.up;
      b.dx = rows_of(out.b.view());
      b.dup = in.gated ? rows_of(out.c.view()) : Rows{};
      kernels_of(op).backward[type]({b, nullptr, nullptr, stream, nullptr, 0, 0}, 0, m.rows);
    }
    EXPECT_EQ(stored.a.bytes(), streamed.a.bytes());
    EXPECT_EQ(stored.b.bytes(), streamed.b.bytes());
    EXPECT_EQ(stored.c.bytes(), streamed.c.bytes());
    EXPECT_FALSE(streamed.a.untouched());
  }
}

TEST(PointwiseStreaming, gives_the_bits_of_usual_stores_on_cpu) {
  for (DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (std::int64_t cols : {64, 200, 333}) {
      for (Layout layout : {Layout{}, Layout{0, 64}, Layout{1, 3}}) {
        expect_same_bits(dtype, {5, cols}, layout);
      }
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::cpu
