// SPDX-License-Identifier: MIT
// The tests that both members of the family pass, for each backend and dtype. A member's test file
// includes this and defines `Op`.
#pragma once

#include <functional>
#include <tuple>

#include "norm/norm_cases.h"
#include "parallel_hooks.h"

namespace transformer_kernels::testing {

template <class Op>
class NormSuite {
 public:
  NormSuite(Backend& backend, DType dtype) : backend_(backend), dtype_(dtype) {}

  void edge_shapes() const {
    for (std::int64_t cols : {0, 1, 31, 32, 33, 127, 1000, 4097}) {
      for (std::int64_t rows : {0, 1, 199}) both({rows, cols}, {});
    }
  }

  // On CUDA few rows and many run by different kernels. Widths are multiples of 16 bytes.
  void few_rows_and_many() const {
    if (!is_on_cuda(backend_)) GTEST_SKIP() << "for plans of CUDA";
    for (std::int64_t cols : {8, 264, 1032, 4096, 8200, 16384}) {
      for (std::int64_t rows : {1, 31}) {
        both({rows, cols}, {});
        both({rows, cols}, {.float32_parameters = true, .residual = true});
      }
    }
    for (const Matrix m : {Matrix{256, 264}, {257, 264}, {1025, 264}, {513, 2056}}) both(m, {});
  }

  // Past what fits a kernel's row buffers and row groups.
  void wide_rows() const {
    for (std::int64_t cols : {8193, 20000, 70001}) {
      both({5, cols}, {});
      both({3, cols}, {.residual = true});
    }
  }

  // Every combination of what may be absent.
  void options() const {
    for (int bits = 0; bits < 1 << 6; ++bits) {
      NormOptions o;
      o.weight = bits & 1;
      o.bias = bits & 2;
      o.float32_parameters = bits & 4;
      o.zero_centered = bits & 8;
      o.residual = bits & 16;
      o.statistics = bits & 32;
      SCOPED_TRACE("options " + std::to_string(bits));
      both({9, 96}, o);
    }
  }

  void layouts() const {
    for (Layout layout : {Layout{0, 24}, Layout{1, 0}, Layout{3, 5}, Layout{0, 1}}) {
      SCOPED_TRACE("offset " + std::to_string(layout.offset) + " gap " +
                   std::to_string(layout.gap));
      both({13, 257}, {.layout = layout});
      both({13, 256}, {.residual = true, .layout = layout});
    }
  }

  void in_place() const {
    both({11, 300}, {.residual = true, .in_place = true});
    both({70, 64}, {.residual = true, .in_place = true});
    both({5, 4096}, {.residual = true, .in_place = true});
  }

  // Where variances are differences of large numbers: the plain formula gives nothing there.
  void far_from_zero() const {
    if (dtype_ != DType::kFloat32 && dtype_ != DType::kFloat64) return;
    for (std::int64_t cols : {33, 768, 5000}) {
      check_forward<Op>(backend_, dtype_, {7, cols}, {.mean = 1e4});
      check_backward<Op>(backend_, dtype_, {7, cols}, {.mean = 1e4});
    }
  }

  // Rows that begin unlike they go on.
  void outliers() const {
    for (std::int64_t cols : {40, 3000}) {
      Values x = random_normal(3 * cols, dtype_);
      for (std::int64_t r = 0; r < 3; ++r) {
        for (std::int64_t c = 0; c < 20; ++c) x[r * cols + c] = 1000;
      }
      check_forward<Op>(backend_, dtype_, {3, cols}, {}, x);
    }
  }

  void constant_rows() const {
    for (double value : {0.0, 1.0, -3.5, 1024.0}) {
      check_forward<Op>(backend_, dtype_, {3, 1000}, {}, Values(3000, value));
    }
  }

  // A negative eps is a number like others: it spoils the rows whose variance it exceeds.
  void negative_eps() const {
    for (std::int64_t cols : {100, 4096}) {
      Values x = random_normal(3 * cols, dtype_);
      for (std::int64_t c = 0; c < cols; ++c) x[cols + c] *= 0.125;
      NormForwardRun<Op> run(backend_, dtype_, {3, cols}, {}, x);
      auto arguments = run.arguments();
      arguments.eps = -0.25;
      Op::forward(backend_.context(), arguments);
      const Values y = run.y.values(), rstd = run.rstd.values();
      const NormReference expected = run.reference(arguments.eps);
      for (std::int64_t row : {0, 2}) {
        const auto part = [&](const Values& of) {
          return Values(of.begin() + row * cols, of.begin() + (row + 1) * cols);
        };
        EXPECT_TRUE(close(dtype_, part(y), part(expected.y), expected.largest_term));
        EXPECT_TRUE(rstd[row] > 0);
      }
      for (std::int64_t c = 0; c < cols; ++c) EXPECT_TRUE(std::isnan(y[cols + c])) << c;
      EXPECT_TRUE(std::isnan(rstd[1]));
    }
  }

  // A NaN or an infinity spoils its own row and no other.
  void not_finite() const {
    for (double bad : {kNan, kInfinity, -kInfinity}) {
      for (std::int64_t place : {0, 57, 99}) {
        const Matrix m{3, 100};
        Values x = random_normal(300, dtype_);
        x[100 + place] = bad;
        NormForwardRun<Op> run(backend_, dtype_, m, {}, x);
        Op::forward(backend_.context(), run.arguments());
        const Values y = run.y.values();
        for (int c = 0; c < 100; ++c) {
          EXPECT_TRUE(std::isfinite(y[c]) && std::isfinite(y[200 + c])) << bad << ' ' << c;
        }
        EXPECT_TRUE(std::isnan(y[100 + place])) << bad;
        for (int c = 0; std::isnan(bad) && c < 100; ++c) EXPECT_TRUE(std::isnan(y[100 + c]));
        EXPECT_FALSE(run.rstd.values()[1] > 0) << bad;
      }
    }
  }

  // Checks that results have the same bits at each call and for any division of the work.
  void repeatable() const {
    for (const Matrix m : {Matrix{1037, 200}, Matrix{37, 2000}}) {
      NormForwardRun<Op> forward(backend_, dtype_, m, {.residual = true});
      NormBackwardRun<Op> backward(backend_, dtype_, m, {.residual = true});
      std::vector<std::vector<std::uint8_t>> first;
      for (const Context& context : contexts_with_different_threads(backend_)) {
        Op::forward(context, forward.arguments());
        Op::backward(context, backward.arguments());
        const std::vector<std::vector<std::uint8_t>> bytes = {
            forward.y.bytes(),     forward.sum.bytes(), forward.mean.bytes(),
            forward.rstd.bytes(),  backward.dx.bytes(), backward.dweight.bytes(),
            backward.dbias.bytes()};
        if (first.empty()) first = bytes;
        EXPECT_EQ(bytes, first);
      }
    }
  }

  void many_rows() const { both({3001, 40}, {}); }

  // Rows that start anywhere. On CUDA many of them come in chunks, of which the last one is short.
  void odd_widths() const {
    for (std::int64_t cols : {17, 197, 513, 1023}) {
      for (std::int64_t rows : {7, 8, 9}) both({rows, cols}, {.bias = Op::kCenter});
    }
    if (!is_on_cuda(backend_)) return;
    for (std::int64_t cols :
         {17, 33, 46, 65, 93, 129, 190, 197, 247, 250, 257, 385, 509, 513, 639, 762, 1001, 1023}) {
      both({2001, cols}, {.bias = Op::kCenter, .in_place = true});
      both({2010, cols}, {.bias = Op::kCenter, .float32_parameters = true, .zero_centered = true});
    }
  }

 private:
  void both(Matrix m, const NormOptions& o) const {
    check_forward<Op>(backend_, dtype_, m, o);
    check_backward<Op>(backend_, dtype_, m, o);
  }

  Backend& backend_;
  DType dtype_;
};

}  // namespace transformer_kernels::testing
