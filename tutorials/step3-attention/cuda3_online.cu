// SPDX-License-Identifier: MIT
// Attention in one kernel, without a matrix of scores: a thread has a query, and softmax is online.
//
// The query and its result live in 128 registers of their thread; keys and values come to shared
// memory in tiles of 32, and all threads of a warp read the same element at once, a broadcast. No
// score leaves the multiprocessor.
//
// Build: nvcc -O3 -std=c++17 -arch=sm_80 -o cuda3_online cuda3_online.cu
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
constexpr int kDim = 64, kKeys = 32, kThreads = 64;

__global__ void __launch_bounds__(kThreads)
    attention_kernel(const bf16* q, const bf16* k, const bf16* v, bf16* o, int time) {
  __shared__ float keys[kKeys][kDim], values[kKeys][kDim];
  const size_t row = size_t(blockIdx.x) * kThreads + threadIdx.x, start = row / time * time;
  float query[kDim], result[kDim] = {}, largest = -INFINITY, sum = 0;
  for (int d = 0; d < kDim; ++d) query[d] = __bfloat162float(q[row * kDim + d]) * 0.125f;
  for (int first = 0; first < time; first += kKeys, __syncthreads()) {
    const size_t from = (start + first) * kDim;
    for (int i = threadIdx.x; i < kKeys * kDim; i += kThreads) {
      keys[i / kDim][i % kDim] = __bfloat162float(k[from + i]);
      values[i / kDim][i % kDim] = __bfloat162float(v[from + i]);
    }
    __syncthreads();
    for (int j = 0; j < kKeys; ++j) {
      float score = 0;
      for (int d = 0; d < kDim; ++d) score += query[d] * keys[j][d];
      if (score > largest) {  // rare after the first keys
        const float shrink = __expf(largest - score);
        largest = score;
        sum *= shrink;
        for (float& r : result) r *= shrink;
      }
      const float p = __expf(score - largest);
      sum += p;
      for (int d = 0; d < kDim; ++d) result[d] += p * values[j][d];
    }
  }
  for (int d = 0; d < kDim; ++d) o[row * kDim + d] = __float2bfloat16(result[d] / sum);
}

void attention(const bf16* q, const bf16* k, const bf16* v, bf16* o, int heads, int time) {
  attention_kernel<<<heads * time / kThreads, kThreads>>>(q, k, v, o, time);
}

// ---- frame: the same lines in every CUDA rung --------------------------------------------------
[[noreturn]] void leave(int status, const std::string& reason) {
  std::printf("%s\n", reason.c_str());
  std::exit(status);
}

void check(cudaError_t status) {
  if (status != cudaSuccess) leave(1, cudaGetErrorString(status));
}

// The card's name. The program ends with status 77, "not here", where no card can run the kernel.
std::string card(int least) {
  cudaDeviceProp it;
  if (cudaGetDeviceProperties(&it, 0) != cudaSuccess) leave(77, "there is no CUDA card");
  if (10 * it.major + it.minor >= least) return it.name;
  leave(77, std::string(it.name) + " is older than sm_" + std::to_string(least));
}

// The median of nine batches of launches, after one that warms up.
template <class Launch>
double microseconds(Launch launch, int launches = 10) {
  cudaEvent_t start, end;
  for (cudaEvent_t* event : {&start, &end}) check(cudaEventCreate(event));
  float times[10];
  for (int batch = 0; batch < 10; ++batch) {
    check(cudaEventRecord(start));
    for (int i = 0; i < launches; ++i) launch();
    check(cudaGetLastError());
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&times[batch], start, end));
  }
  std::sort(times + 1, times + 10);
  return 1e3 * times[5] / launches;
}

// Values between -2 and 2, which follow from their index.
__global__ void fill(bf16* x, size_t count, unsigned seed) {
  const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  unsigned hash = (unsigned(i) + seed) * 2654435761u;
  hash = (hash ^ hash >> 15) * 2246822519u;
  if (i < count) x[i] = __float2bfloat16((hash >> 8) * 0x1p-22f - 2);
}

bf16* device_array(size_t count, unsigned seed) {
  bf16* x = nullptr;
  check(cudaMalloc(&x, count * sizeof(bf16)));
  fill<<<(count + 255) / 256, 256>>>(x, count, seed);
  return x;
}

std::vector<double> host_copy(const bf16* x, size_t count) {
  std::vector<bf16> raw(count);
  check(cudaMemcpy(raw.data(), x, count * sizeof(bf16), cudaMemcpyDeviceToHost));
  return {raw.begin(), raw.end()};
}

// Prints a line of the table. The program ends with status 1 where the rung is wrong.
void report(const char* rung, const std::string& card, const std::string& problem, double us,
            double amount, const char* unit, double ceiling_us, double error, double bound) {
  std::printf("%s | %s | %s | %.1f us | %.5g %s | %.1f %% | %.1e\n", rung, card.c_str(),
              problem.c_str(), us, amount / us / 1e3, unit, 100 * ceiling_us / us, error);
  if (!(error <= bound)) leave(1, "wrong: the error is above " + std::to_string(bound));
}
// ---- end of the frame --------------------------------------------------------------------------

// d += a * b, of 16x16 and 16x8 elements, by a warp.
__device__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The ceiling: tensor cores that multiply registers, by mma.sync. A block does 2^30 operations.
__global__ void multiply_registers() {
  float d[8][4] = {};
  const unsigned a[4] = {threadIdx.x, 1, 2, 3};
  for (int i = 0; i < 4096; ++i)
    for (auto& tile : d) mma(tile, a, 4, 5);
  for (auto& tile : d)
    if (tile[0] == 0.5f) __trap();  // never, but the compiler cannot know
}

int main(int argc, char** argv) {
  const std::string name = card(80);
  const int heads = argc > 2 ? std::atoi(argv[1]) : 32, time = argc > 2 ? std::atoi(argv[2]) : 2048;
  if (time % 64 != 0) leave(2, "time: expected a multiple of 64");
  const size_t n = size_t(heads) * time * kDim;
  bf16 *q = device_array(4 * n, 1), *k = q + n, *v = k + n, *o = v + n;
  const double us = microseconds([&] { attention(q, k, v, o, heads, time); }, 3);
  double error = 0;  // against double precision, in 8 rows
  for (int i = 0; i < 8; ++i) {
    const size_t row = size_t(heads * time - 1) * i / 7, start = row / time * time * kDim;
    const auto query = host_copy(q + row * kDim, kDim), out = host_copy(o + row * kDim, kDim);
    const auto keys = host_copy(k + start, time * kDim), values = host_copy(v + start, time * kDim);
    std::vector<double> wanted(kDim);
    double sum = 0;
    for (int j = 0; j < time; ++j) {
      double dot = 0;
      for (int d = 0; d < kDim; ++d) dot += query[d] * keys[j * kDim + d];
      sum += dot = std::exp(dot / std::sqrt(double(kDim)));
      for (int d = 0; d < kDim; ++d) wanted[d] += dot * values[j * kDim + d];
    }
    for (int d = 0; d < kDim; ++d) error = std::max(error, std::abs(out[d] - wanted[d] / sum));
  }
  const double operations = 4.0 * heads * time * time * kDim;
  const double peak = microseconds([] { multiply_registers<<<1024, 256>>>(); }, 3) / 0x1p40;
  const std::string shape = std::to_string(heads) + "x" + std::to_string(time) + "x64 bfloat16";
  report("cuda3_online", name, shape, us, operations, "GFLOP/s", peak * operations, error, 0x1p-7);
}
