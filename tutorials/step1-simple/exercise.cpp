// SPDX-License-Identifier: MIT
// Exercise: SwiGLU's product, y = silu(gate) * up, where silu(x) = x / (1 + exp(-x)).
//
// Write it on vectors and on all threads, as cpu3_threads.cpp does. The program says when it is
// right and counts three arrays in its bandwidth.
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

template <class Work>
void on_all_threads(size_t count, Work work);

// ---- your turn ----
void swiglu(const float* gate, const float* up, float* y, size_t n) {
  (void)gate, (void)up, (void)y, (void)n;
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
  const size_t n = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{1} << 24;
  std::vector<float> x(n), up(n), y(n);
  for (size_t i = 0; i < n; ++i)
    x[i] = float(i * 7919 % 10007) / 1000 - 5, up[i] = float(i % 11) - 5;
  const double us = microseconds([&] { swiglu(x.data(), up.data(), y.data(), n); });
  double error = 0;
  for (size_t i = 0; i < n; i += i < n - 1 ? std::min<size_t>(97, n - 1 - i) : 1) {
    const double wanted = x[i] / (1 + std::exp(-double(x[i]))) * up[i];
    error = std::max(error, std::abs(y[i] - wanted) / std::max(1.0, std::abs(wanted)));
  }
  const double bytes = 3.0 * n * sizeof(float);
  const double copy_us =
      1.5 * microseconds([&] {
        on_all_threads(n, [&](size_t first, size_t last) {
          std::memcpy(y.data() + first, x.data() + first, (last - first) * sizeof(float));
        });
      });
  return report("exercise", std::to_string(n) + " float32", us, bytes, "GB/s", copy_us, error,
                1e-6);
}
