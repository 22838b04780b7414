// SPDX-License-Identifier: MIT
// GPT-2's MLP with its residual: two products, and no pass over memory beside them.
//
// A thread takes 32 rows through both products. Their hidden rows, four times as wide as the input,
// never leave its cache; bias and GELU are the first epilogue, bias and residual the second.
//
// Build: g++ -O3 -std=c++17 -march=native -Wno-psabi -pthread -o cpu4_mlp cpu4_mlp.cpp
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

constexpr size_t kWidth = 16;  // 64 bytes: a register of AVX-512, two of AVX2, four of NEON
typedef float Vector __attribute__((vector_size(4 * kWidth)));
typedef int Integers __attribute__((vector_size(4 * kWidth)));

// exp(x) by 2^n * 2^f: n goes into the exponent's bits, a polynomial has 2^f for |f| <= 1/2.
inline Vector exponential(Vector x) {
  Vector t = x * 1.44269504f;
  t = t < -126.f ? Vector{} - 126.f : t;
  t = t > 126.f ? Vector{} + 126.f : t;
  const Vector shifted = t + 12582912.f;  // 1.5 * 2^23: the sum rounds t to an integer
  const Vector f = t - (shifted - 12582912.f);
  Vector p = Vector{} + 1.5353362e-4f;
  for (float c : {1.3398874e-3f, 9.6184373e-3f, 5.5503324e-2f, .24022648f, .69314720f, 1.f})
    p = p * f + c;
  return (Vector)((Integers)p + ((Integers)shifted << 23));
}

inline Vector gelu(Vector x) {
  return x / (1.f + exponential(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

constexpr size_t kRows = 4, kVectors = 2, kCols = kVectors * kWidth, kBlock = 32;

inline Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }

// Packs each kCols rows of B, which is n x k, as k groups of kCols numbers. Weights are packed
// once.
std::vector<float> packed(const std::vector<float>& b, size_t n, size_t k) {
  std::vector<float> panels(n * k);
  for (size_t j = 0; j < n; ++j)
    for (size_t d = 0; d < k; ++d)
      panels[j / kCols * kCols * k + d * kCols + j % kCols] = b[j * k + d];
  return panels;
}

// Calls epilogue(row, column, sums) with each vector of A B^T: kRows x kCols sums stay in
// registers. A has kBlock rows, which begin `stride` numbers apart; B is packed.
template <class Epilogue>
void product(const float* a, size_t stride, const float* panels, size_t n, size_t k,
             Epilogue epilogue) {
  for (size_t j = 0; j < n; j += kCols, panels += k * kCols)
    for (size_t i = 0; i < kBlock; i += kRows) {
      Vector sums[kRows][kVectors] = {};
      for (size_t d = 0; d < k; ++d)
        for (size_t v = 0; v < kVectors; ++v) {
          const Vector right = load(panels + d * kCols + v * kWidth);
          for (size_t r = 0; r < kRows; ++r) sums[r][v] += a[(i + r) * stride + d] * right;
        }
      for (size_t r = 0; r < kRows; ++r)
        for (size_t v = 0; v < kVectors; ++v) epilogue(i + r, j + v * kWidth, sums[r][v]);
    }
}

template <class Work>
void on_all_threads(size_t count, Work work);

struct Weights {
  const float *up, *up_bias, *down, *down_bias;  // up and down are packed
};

// y = x + gelu(x up^T + up_bias) down^T + down_bias, with m rows of k numbers, and n hidden ones.
void mlp(const float* x, Weights w, float* y, size_t m, size_t n, size_t k) {
  on_all_threads(m / kBlock, [=](size_t first, size_t last) {
    std::vector<float> hidden(kBlock * n);
    for (size_t row = first * kBlock; row < last * kBlock; row += kBlock) {
      product(x + row * k, k, w.up, n, k, [&](size_t i, size_t j, Vector sum) {
        store(&hidden[i * n + j], gelu(sum + load(w.up_bias + j)));
      });
      product(hidden.data(), n, w.down, k, n, [&](size_t i, size_t j, Vector sum) {
        const size_t at = (row + i) * k + j;
        store(y + at, sum + load(w.down_bias + j) + load(x + at));
      });
    }
  });
}

// ---- frame: the same lines in every rung for CPUs ----------------------------------------------
// The median of seven calls, after one that warms up.
template <class Call>
double microseconds(Call call) {
  std::vector<double> times;
  for (int i = 0; i < 8; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
  }
  std::sort(times.begin() + 1, times.end());
  return times[4];
}

// Calls work(first, last) on every thread of the machine, each with its part of count items.
template <class Work>
void on_all_threads(size_t count, Work work) {
  const size_t parts = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < parts; ++i)
    threads.emplace_back(work, count * i / parts, count * (i + 1) / parts);
  for (std::thread& thread : threads) thread.join();
}

// Prints a line of the table; the result is the exit status, 1 where the rung is wrong.
int report(const char* rung, const std::string& problem, double us, double amount, const char* unit,
           double ceiling_us, double error, double bound) {
  std::printf("%s | CPU | %s | %.1f us | %.5g %s | %.1f %% | %.1e\n", rung, problem.c_str(), us,
              amount / us / 1e3, unit, 100 * ceiling_us / us, error);
  if (error <= bound) return 0;
  std::printf("wrong: the error is above %f\n", bound);
  return 1;
}
// ---- end of the frame --------------------------------------------------------------------------

// The ceiling: chains of multiply-adds on registers, on all threads, for so many operations.
double register_us(double operations) {
#ifdef __AVX512F__
  constexpr int kChains = 10;
#else
  constexpr int kChains = 5;
#endif
  typedef float Vector __attribute__((vector_size(64)));
  constexpr int kRounds = 1 << 18;
  const size_t threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<float> sinks(threads);
  const double us = microseconds([&] {
    on_all_threads(threads, [&](size_t first, size_t) {
      Vector chains[kChains] = {}, a = Vector{} + .9999f;
      for (int i = 0; i < kRounds; ++i)
        for (Vector& chain : chains) chain = chain * a + a;
      for (Vector& chain : chains) sinks[first] += chain[0];
    });
  });
  return us * operations / (2.0 * 16 * kChains * kRounds * threads);
}

std::vector<float> numbers(size_t count, size_t factor, float scale) {
  std::vector<float> result(count);
  for (size_t i = 0; i < count; ++i) result[i] = (float(i * factor % 1013) / 506 - 1) * scale;
  return result;
}

int main(int argc, char** argv) {
  const size_t m = argc > 3 ? std::strtoull(argv[1], nullptr, 10) : 512;
  const size_t n = argc > 3 ? std::strtoull(argv[2], nullptr, 10) : 3072;
  const size_t k = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 768;
  const auto x = numbers(m * k, 7919, 1), up = numbers(n * k, 6997, .04f);
  const auto down = numbers(k * n, 5639, .04f), bias = numbers(n, 31, 1);
  const auto up_panels = packed(up, n, k), down_panels = packed(down, k, n);
  std::vector<float> y(m * k);
  const Weights weights{up_panels.data(), bias.data(), down_panels.data(), bias.data()};
  const double us = microseconds([&] { mlp(x.data(), weights, y.data(), m, n, k); });
  double error = 0;  // of every 61st row, against double precision
  for (size_t row = 0; row < m; row += 61) {
    std::vector<double> hidden(n);
    for (size_t j = 0; j < n; ++j) {
      double h = bias[j];
      for (size_t d = 0; d < k; ++d) h += x[row * k + d] * double(up[j * k + d]);
      hidden[j] = 0.5 * h * (1 + std::tanh(0.7978845608028654 * (h + 0.044715 * h * h * h)));
    }
    for (size_t j = 0; j < k; ++j) {
      double wanted = bias[j] + x[row * k + j];
      for (size_t d = 0; d < n; ++d) wanted += hidden[d] * down[j * n + d];
      error = std::max(error, std::abs(y[row * k + j] - wanted) / std::max(1., std::abs(wanted)));
    }
  }
  const double operations = 4.0 * m * n * k;
  const std::string shape = std::to_string(m) + "x" + std::to_string(k) + ", hidden ";
  return report("cpu4_mlp", shape + std::to_string(n) + " float32", us, operations, "GFLOP/s",
                register_us(operations), error, 1e-5);
}
