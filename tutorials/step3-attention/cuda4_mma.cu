// SPDX-License-Identifier: MIT
// Attention on tensor cores by mma.sync: a warp has 16 queries, and its scores stay in registers.
//
// The accumulators of Q K^T are laid out as the next product wants its left operand.
//
// Build: nvcc -O3 -std=c++17 -arch=sm_80 -o cuda4_mma cuda4_mma.cu
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
constexpr int kDim = 64, kKeys = 64;

// d += a * b, of 16x16 and 16x8 elements, by a warp.
__device__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ unsigned pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(pair);
}

__device__ const unsigned* pairs(const void* x) { return static_cast<const unsigned*>(x); }

// 16 keys and 16 columns of V, transposed on the way: two fragments.
__device__ void load_transposed(unsigned (&b)[4], const uint4* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at)))
               : "memory");
}

__global__ void attention_kernel(const bf16* q, const bf16* k, const bf16* v, bf16* o, int time) {
  __shared__ uint4 keys[kKeys][9], values[kKeys][9];  // rows of 128 bytes, and 16 of padding
  const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4 * 2;  // of fragments
  const size_t row = size_t(blockIdx.x) * 64 + threadIdx.x / 32 * 16 + r;
  const size_t start = row / time * time;
  unsigned query[4][4];
  for (int t = 0; t < 16; ++t)  // rows r and r + 8, columns c and c + 8 of each 16
    query[t / 4][t % 4] = *pairs(q + (row + t % 2 * 8) * kDim + t / 4 * 16 + t % 4 / 2 * 8 + c);
  float result[8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int first = 0; first < time; first += kKeys, __syncthreads()) {
    const auto* from_k = reinterpret_cast<const uint4*>(k + (start + first) * kDim);
    const auto* from_v = reinterpret_cast<const uint4*>(v + (start + first) * kDim);
    for (int i = threadIdx.x; i < kKeys * kDim / 8; i += 128)
      keys[i / 8][i % 8] = from_k[i], values[i / 8][i % 8] = from_v[i];
    __syncthreads();
    float p[8][4] = {};
    unsigned a[4][4];
    for (int t = 0; t < 32; ++t) {
      const unsigned* key = pairs(keys[t / 4 * 8 + r]) + t % 4 * 8 + lane % 4;
      mma(p[t / 4], query[t % 4], key[0], key[4]);
    }
    for (int half = 0; half < 2; ++half) {  // rows r and r + 8
      float most = largest[half];
      for (auto& tile : p) most = fmaxf(most, fmaxf(tile[2 * half], tile[2 * half + 1]) * 0.125f);
      for (int l : {1, 2}) most = fmaxf(most, __shfl_xor_sync(~0u, most, l));
      const float shrink = __expf(largest[half] - most);
      sum[half] *= shrink, largest[half] = most;
      for (int t = 0; t < 8; ++t) {
        const float low = __expf(p[t][2 * half] * 0.125f - most);
        const float high = __expf(p[t][2 * half + 1] * 0.125f - most);
        sum[half] += low + high;
        a[t / 2][t % 2 * 2 + half] = pack(low, high);
        result[t][2 * half] *= shrink, result[t][2 * half + 1] *= shrink;
      }
    }
    for (int t = 0; t < 4; ++t) {    // 16 keys
      for (int d = 0; d < 4; ++d) {  // 16 columns
        unsigned b[4];
        load_transposed(b, &values[t * 16 + lane % 16][d * 2 + lane / 16]);
        mma(result[2 * d], a[t], b[0], b[1]);
        mma(result[2 * d + 1], a[t], b[2], b[3]);
      }
    }
  }
  for (int half = 0; half < 2; ++half) {
    for (int l : {1, 2}) sum[half] += __shfl_xor_sync(~0u, sum[half], l);
    for (int d = 0; d < 8; ++d)
      *reinterpret_cast<unsigned*>(o + (row + 8 * half) * kDim + d * 8 + c) =
          pack(result[d][2 * half] / sum[half], result[d][2 * half + 1] / sum[half]);
  }
}

void attention(const bf16* q, const bf16* k, const bf16* v, bf16* o, int heads, int time) {
  attention_kernel<<<heads * time / 64, 128>>>(q, k, v, o, time);
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
  report("cuda4_mma", name, shape, us, operations, "GFLOP/s", peak * operations, error, 0x1p-7);
}
