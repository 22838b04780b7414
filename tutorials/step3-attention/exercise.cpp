// SPDX-License-Identifier: MIT
// Exercise: causal attention, where query i sees the keys 0 to i only.
//
// Begin with rung cpu2_online. Do not compute what is masked: half of the work falls away, and the
// operations that the table counts are those of causal attention.
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

constexpr size_t kDim = 64, kBlock = 64;

// ---- your turn ----
void attention(const float* q, const float* k, const float* v, float* o, size_t heads,
               size_t time) {
  (void)q, (void)k, (void)v, (void)o, (void)heads, (void)time, (void)kBlock;
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
  const size_t heads = argc > 2 ? std::strtoull(argv[1], nullptr, 10) : 2;
  const size_t time = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  std::vector<float> q(heads * time * kDim), k(q.size()), v(q.size()), o(q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = float(i * 7919 % 1013) / 253 - 2;
    k[i] = float(i * 6997 % 1019) / 254 - 2;
    v[i] = float(i * 5987 % 1021) / 255 - 2;
  }
  const double us =
      microseconds([&] { attention(q.data(), k.data(), v.data(), o.data(), heads, time); });
  double error = 0;  // against double precision, in every 101st row
  for (size_t row = 0; row < heads * time; row += 101) {
    const size_t start = row / time * time;  // of the head's keys
    const size_t seen = row - start + 1;
    std::vector<double> p(seen), wanted(kDim);
    double sum = 0;
    for (size_t j = 0; j < seen; ++j) {
      for (size_t d = 0; d < kDim; ++d)
        p[j] += q[row * kDim + d] * double(k[(start + j) * kDim + d]);
      sum += p[j] = std::exp(p[j] / std::sqrt(double(kDim)));
    }
    for (size_t j = 0; j < seen; ++j)
      for (size_t d = 0; d < kDim; ++d) wanted[d] += p[j] / sum * v[(start + j) * kDim + d];
    for (size_t d = 0; d < kDim; ++d)
      error = std::max(error, std::abs(o[row * kDim + d] - wanted[d]));
  }
  const double operations = 2.0 * heads * time * (time + 1) * kDim;
  const std::string problem = std::to_string(heads) + "x" + std::to_string(time) + "x64 float32";
  return report("exercise", problem, us, operations, "GFLOP/s", register_us(operations), error,
                1e-5);
}
