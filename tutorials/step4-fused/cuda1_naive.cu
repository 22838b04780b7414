// SPDX-License-Identifier: MIT
// A linear layer's product, C = A B^T: one thread computes one result.
//
// Each multiply-add needs two loads. The threads of a warp share the row of A and read 32 rows of
// B, whose addresses lie far apart.
//
// Build: nvcc -O3 -std=c++17 -arch=sm_80 -o cuda1_naive cuda1_naive.cu
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
__global__ void product_kernel(const bf16* a, const bf16* b, bf16* c, int n, int k) {
  const size_t row = blockIdx.y * 8 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (int j = 0; j < k; ++j)
    sum += __bfloat162float(a[row * k + j]) * __bfloat162float(b[col * k + j]);
  c[row * n + col] = __float2bfloat16(sum);
}

void product(const bf16* a, const bf16* b, bf16* c, int m, int n, int k) {
  product_kernel<<<dim3(n / 32, m / 8), dim3(32, 8)>>>(a, b, c, n, k);
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
  const int m = argc > 3 ? std::atoi(argv[1]) : 4096, n = argc > 3 ? std::atoi(argv[2]) : 4096;
  const int k = argc > 3 ? std::atoi(argv[3]) : 4096;
  if (m % 128 != 0 || n % 128 != 0 || k % 32 != 0) leave(2, "expected multiples of 128, 128, 32");
  bf16 *a = device_array(size_t(m) * k, 1), *b = device_array(size_t(n) * k, 1u << 25);
  bf16* c = device_array(size_t(m) * n, 0);
  const double us = microseconds([&] { product(a, b, c, m, n, k); }, 3);
  double error = 0;  // of 64 results, against double precision
  for (int i = 0; i < 64; ++i) {
    const size_t row = size_t(i) * (m - 1) / 63, col = size_t(i) * 37 % n;
    const auto left = host_copy(a + row * k, k), right = host_copy(b + col * k, k);
    double wanted = 0;
    for (int j = 0; j < k; ++j) wanted += left[j] * right[j];
    const double result = host_copy(c + row * n + col, 1)[0];
    error = std::max(error, std::abs(result - wanted) / std::max(1.0, std::abs(wanted)));
  }
  const double operations = 2.0 * m * n * k;
  const double peak = microseconds([] { multiply_registers<<<1024, 256>>>(); }, 3) / 0x1p40;
  const std::string shape = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  report("cuda1_naive", name, shape + " bfloat16", us, operations, "GFLOP/s", peak * operations,
         error, 0x1p-8);
}
