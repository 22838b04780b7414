// SPDX-License-Identifier: MIT
// Attention on all threads, each with a part of the queries of every head.
//
// Queries are independent, and the keys and values of a head are read by all threads out of shared
// caches. time is a multiple of 16.
//
// Build: g++ -O3 -std=c++17 -march=native -Wno-psabi -pthread -o cpu4_threads cpu4_threads.cpp
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

constexpr size_t kDim = 64, kQueries = 4, kParts = kDim / kWidth;

inline Vector load(const float* x) {
  Vector v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

// Four queries against 16 keys at a time. keys is K^T of the head: kDim rows of time elements.
void attend(const float* q, const float* keys, const float* v, float* o, size_t time) {
  Vector result[kQueries][kParts] = {}, sums[kQueries] = {};
  float largest[kQueries];
  std::fill(largest, largest + kQueries, -INFINITY);
  for (size_t j = 0; j < time; j += kWidth) {
    Vector p[kQueries] = {};
    for (size_t d = 0; d < kDim; ++d) {
      const Vector key = load(keys + d * time + j);
      for (size_t i = 0; i < kQueries; ++i) p[i] += q[i * kDim + d] * key;
    }
    for (size_t i = 0; i < kQueries; ++i) {
      p[i] *= 0.125f;
      float most = p[i][0];
      for (size_t l = 1; l < kWidth; ++l) most = std::max(most, p[i][l]);
      if (most > largest[i]) {
        const float shrink = std::exp(largest[i] - most);
        largest[i] = most;
        sums[i] *= shrink;
        for (Vector& part : result[i]) part *= shrink;
      }
      p[i] = exponential(p[i] - largest[i]);
      sums[i] += p[i];
    }
    for (size_t l = 0; l < kWidth; ++l)
      for (size_t part = 0; part < kParts; ++part) {
        const Vector value = load(v + (j + l) * kDim + part * kWidth);
        for (size_t i = 0; i < kQueries; ++i) result[i][part] += p[i][l] * value;
      }
  }
  for (size_t i = 0; i < kQueries; ++i) {
    float sum = 0;
    for (size_t l = 0; l < kWidth; ++l) sum += sums[i][l];
    for (size_t part = 0; part < kParts; ++part) {
      const Vector scaled = result[i][part] * (1 / sum);
      std::memcpy(o + i * kDim + part * kWidth, &scaled, sizeof scaled);
    }
  }
}

std::vector<float> transposed(const float* k, size_t time) {
  std::vector<float> keys(kDim * time);
  for (size_t j = 0; j < time; ++j)
    for (size_t d = 0; d < kDim; ++d) keys[d * time + j] = k[j * kDim + d];
  return keys;
}

template <class Work>
void on_all_threads(size_t count, Work work);

void attention(const float* q, const float* k, const float* v, float* o, size_t heads,
               size_t time) {
  for (size_t head = 0; head < heads; ++head) {
    const size_t start = head * time * kDim;
    const std::vector<float> keys = transposed(k + start, time);
    on_all_threads(time / kQueries, [&](size_t first, size_t last) {
      for (size_t i = start + first * kQueries * kDim; first < last; ++first, i += kQueries * kDim)
        attend(q + i, keys.data(), v + start, o + i, time);
    });
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
    std::vector<double> p(time), wanted(kDim);
    double sum = 0;
    for (size_t j = 0; j < time; ++j) {
      for (size_t d = 0; d < kDim; ++d)
        p[j] += q[row * kDim + d] * double(k[(start + j) * kDim + d]);
      sum += p[j] = std::exp(p[j] / std::sqrt(double(kDim)));
    }
    for (size_t j = 0; j < time; ++j)
      for (size_t d = 0; d < kDim; ++d) wanted[d] += p[j] / sum * v[(start + j) * kDim + d];
    for (size_t d = 0; d < kDim; ++d)
      error = std::max(error, std::abs(o[row * kDim + d] - wanted[d]));
  }
  const double operations = 4.0 * heads * time * time * kDim;
  const std::string problem = std::to_string(heads) + "x" + std::to_string(time) + "x64 float32";
  return report("cpu4_threads", problem, us, operations, "GFLOP/s", register_us(operations), error,
                1e-5);
}
