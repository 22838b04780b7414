// SPDX-License-Identifier: MIT
// A linear layer's product, C = A B^T: a dot product for each result.
//
// Each multiply-add needs two loads and waits for the one before it: a chain of additions that the
// compiler may not reorder.
//
// Build: g++ -O3 -std=c++17 -march=native -Wno-psabi -pthread -o cpu1_naive cpu1_naive.cpp
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

void product(const float* a, const float* b, float* c, size_t m, size_t n, size_t k) {
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) {
      float sum = 0;
      for (size_t d = 0; d < k; ++d) sum += a[i * k + d] * b[j * k + d];
      c[i * n + j] = sum;
    }
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

int main(int argc, char** argv) {
  const size_t m = argc > 3 ? std::strtoull(argv[1], nullptr, 10) : 512;
  const size_t n = argc > 3 ? std::strtoull(argv[2], nullptr, 10) : 768;
  const size_t k = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 768;
  std::vector<float> a(m * k), b(n * k), bias(n), c(m * n);
  for (size_t i = 0; i < a.size(); ++i) a[i] = float(i * 7919 % 1013) / 506 - 1;
  for (size_t i = 0; i < b.size(); ++i) b[i] = float(i * 6997 % 1019) / 5090 - .1f;
  for (size_t i = 0; i < n; ++i) bias[i] = float(i % 7) - 3;
  const double us = microseconds([&] { product(a.data(), b.data(), c.data(), m, n, k); });
  double error = 0;  // of every 997th result, against double precision
  for (size_t i = 0; i < m * n; i += 997) {
    double x = 0;
    for (size_t j = 0; j < k; ++j) x += a[i / n * k + j] * double(b[i % n * k + j]);
    const double wanted = x;
    error = std::max(error, std::abs(c[i] - wanted) / std::max(1.0, std::abs(wanted)));
  }
  const double operations = 2.0 * m * n * k;
  const std::string shape = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  return report("cpu1_naive", shape + " float32", us, operations, "GFLOP/s",
                register_us(operations), error, 1e-5);
}
