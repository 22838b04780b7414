// SPDX-License-Identifier: MIT
// Exercise: log-softmax of rows, y = x - max - log(sum(exp(x - max))), without storing
// exponentials.
//
// Write it on vectors and on all threads, as cpu4_threads.cpp does; cols is a multiple of kWidth.
//
// Build: g++ -O3 -std=c++17 -march=native -Wno-psabi -pthread -o exercise exercise.cpp
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

inline Vector load(const float* x) {
  Vector v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

template <class Work>
void on_all_threads(size_t count, Work work);

// ---- your turn ----
void log_softmax(const float* x, float* y, size_t rows, size_t cols) {
  (void)x, (void)y, (void)rows, (void)cols;
}
// ---- end of your turn ----

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

int main(int argc, char** argv) {
  const size_t rows = argc > 2 ? std::strtoull(argv[1], nullptr, 10) : 8192;
  const size_t cols = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2048;
  std::vector<float> x(rows * cols), y(rows * cols);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i * 7919 % 10007) / 1000 - 5;
  const double us = microseconds([&] { log_softmax(x.data(), y.data(), rows, cols); });
  double error = 0;  // against double precision, in every 61st row
  for (size_t row = 0; row < rows; row += 61) {
    const float *in = &x[row * cols], *out = &y[row * cols];
    double largest = in[0], sum = 0;
    for (size_t j = 0; j < cols; ++j) largest = std::max(largest, double(in[j]));
    for (size_t j = 0; j < cols; ++j) sum += std::exp(in[j] - largest);
    for (size_t j = 0; j < cols; ++j) {
      const double wanted = in[j] - largest - std::log(sum);
      error = std::max(error, std::abs(out[j] - wanted) / std::max(1.0, std::abs(wanted)));
    }
  }
  const double copy_us = microseconds([&] {
    on_all_threads(x.size(), [&](size_t first, size_t last) {
      std::memcpy(&y[first], &x[first], (last - first) * sizeof(float));
    });
  });
  const std::string problem = std::to_string(rows) + "x" + std::to_string(cols) + " float32";
  return report("exercise", problem, us, 2.0 * x.size() * sizeof(float), "GB/s", copy_us, error,
                2e-6);
}
