// SPDX-License-Identifier: MIT
// Attention in three kernels whose products go through tiles in shared memory.
//
// Each thread computes 4 x 4 scores, so that eight loads from a tile feed 16 multiply-adds.
//
// Build: nvcc -O3 -std=c++17 -arch=sm_80 -o cuda2_tiled cuda2_tiled.cu
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
constexpr int kDim = 64, kTile = 64;

template <class T>
__device__ void load_tile(float (*tile)[kTile + 1], const T* from, size_t stride) {
  for (int i = threadIdx.x; i < kTile * kTile; i += 256)
    tile[i / kTile][i % kTile] = float(from[i / kTile * stride + i % kTile]);
}

// Adds a tile of A B^T, or of A B.
template <bool transposed>
__device__ void multiply(float (&sum)[4][4], float (*a)[kTile + 1], float (*b)[kTile + 1]) {
  const int row = threadIdx.x / 16, col = threadIdx.x % 16;
  for (int d = 0; d < kTile; ++d)
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j)
        sum[i][j] += a[row + 16 * i][d] * (transposed ? b[col + 16 * j][d] : b[d][col + 16 * j]);
}

__global__ void scores_kernel(const bf16* q, const bf16* k, float* scores, int time) {
  __shared__ float a[kTile][kTile + 1], b[kTile][kTile + 1];
  const size_t head = size_t(blockIdx.z) * time, row = head + blockIdx.y * kTile;
  load_tile(a, q + row * kDim, kDim);
  load_tile(b, k + (head + blockIdx.x * kTile) * kDim, kDim);
  __syncthreads();
  float sum[4][4] = {};
  multiply<true>(sum, a, b);
  scores += (row + threadIdx.x / 16) * time + blockIdx.x * kTile + threadIdx.x % 16;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) scores[size_t(16) * i * time + 16 * j] = sum[i][j] * 0.125f;
}

__global__ void softmax(float* scores, int time) {
  __shared__ float partial[8];
  scores += size_t(blockIdx.x) * time;
  float largest = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < time; j += 256) largest = fmaxf(largest, scores[j]);
  for (int l = 16; l > 0; l /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, l));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
  __syncthreads();
  for (float other : partial) largest = fmaxf(largest, other);
  __syncthreads();
  for (int j = threadIdx.x; j < time; j += 256) sum += scores[j] = __expf(scores[j] - largest);
  for (int l = 16; l > 0; l /= 2) sum += __shfl_xor_sync(~0u, sum, l);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (float other : partial) sum += other;
  for (int j = threadIdx.x; j < time; j += 256) scores[j] /= sum;
}

__global__ void sum_kernel(const float* p, const bf16* v, bf16* o, int time) {
  __shared__ float a[kTile][kTile + 1], b[kTile][kTile + 1];
  const size_t row = size_t(blockIdx.x) * kTile, start = row / time * time;
  float sum[4][4] = {};
  for (int j = 0; j < time; j += kTile, __syncthreads()) {
    load_tile(a, p + row * time + j, time);
    load_tile(b, v + (start + j) * kDim, kDim);
    __syncthreads();
    multiply<false>(sum, a, b);
  }
  o += (row + threadIdx.x / 16) * kDim + threadIdx.x % 16;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) o[16 * i * kDim + 16 * j] = __float2bfloat16(sum[i][j]);
}

void attention(const bf16* q, const bf16* k, const bf16* v, bf16* o, int heads, int time) {
  static float* scores = nullptr;
  if (scores == nullptr) cudaMalloc(&scores, sizeof(float) * heads * time * time);
  scores_kernel<<<dim3(time / kTile, time / kTile, heads), 256>>>(q, k, scores, time);
  softmax<<<heads * time, 256>>>(scores, time);
  sum_kernel<<<heads * time / kTile, 256>>>(scores, v, o, time);
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
  report("cuda2_tiled", name, shape, us, operations, "GFLOP/s", peak * operations, error, 0x1p-7);
}
