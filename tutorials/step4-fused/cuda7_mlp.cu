// SPDX-License-Identifier: MIT
// GPT-2's MLP, x + gelu(x up^T + bias) down^T + bias: two products that differ in their epilogues.
//
// Build: nvcc -O3 -std=c++17 -extended-lambda -arch=sm_80 -o cuda7_mlp cuda7_mlp.cu
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
// d += a * b, of 16x16 and 16x8 elements, by a warp.
__device__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

using Tile = uint4[128][5];  // 128 rows of 32 elements, with 16 bytes of padding
constexpr int kStages = 4, kBytes = kStages * 2 * sizeof(Tile);

// Four matrices of 8 x 8 elements; the lanes have the addresses of the 32 rows.
__device__ void load_matrices(unsigned (&r)[4], const uint4* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at)))
               : "memory");
}

// Adds the product of two tiles to a warp's 32 x 64 results. Eight warps stand 4 x 2.
__device__ void multiply(float (&sum)[2][8][4], const Tile& left, const Tile& right) {
  const int lane = threadIdx.x % 32, y = threadIdx.x / 64 * 32, x = threadIdx.x / 32 % 2 * 64;
  for (int d = 0; d < 4; d += 2) {  // 16 of the depth, in 16-byte parts
    unsigned a[2][4], b[4];
    for (int i = 0; i < 2; ++i) load_matrices(a[i], &left[y + i * 16 + lane % 16][d + lane / 16]);
    for (int j = 0; j < 8; j += 2) {
      load_matrices(b, &right[x + j * 8 + lane / 16 * 8 + lane % 8][d + lane / 8 % 2]);
      for (int t = 0; t < 4; ++t) mma(sum[t % 2][j + t / 2], a[t % 2], b[t & 2], b[(t & 2) + 1]);
    }
  }
}

template <class Epilogue>
__global__ void product_kernel(const bf16* a, const bf16* b, bf16* c, int n, int k, Epilogue end) {
  extern __shared__ Tile tiles[];  // left and right of each stage
  const size_t row = blockIdx.y * 128, col = blockIdx.x * 128;
  const auto load = [&](int step) {
    for (int i = threadIdx.x; i < 512 && step * 32 < k; i += 256) {
      const size_t at = i / 4 * size_t(k) + step * 32 + i % 4 * 8;
      __pipeline_memcpy_async(&tiles[step % kStages * 2][i / 4][i % 4], a + row * k + at, 16);
      __pipeline_memcpy_async(&tiles[step % kStages * 2 + 1][i / 4][i % 4], b + col * k + at, 16);
    }
    __pipeline_commit();
  };
  float sum[2][8][4] = {};
  for (int step = 0; step < kStages - 1; ++step) load(step);
  for (int step = 0; step < k / 32; ++step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // this stage has come, and the one before it has been used
    load(step + kStages - 1);
    multiply(sum, tiles[step % kStages * 2], tiles[step % kStages * 2 + 1]);
  }
  const int lane = threadIdx.x % 32, y = threadIdx.x / 64 * 32, x = threadIdx.x / 32 % 2 * 64;
  for (int t = 0; t < 32; ++t) {  // pairs of columns, in rows r and r + 8 of each 16
    const float* pair = sum[t / 16][t / 2 % 8] + t % 2 * 2;
    const size_t j = col + x + t / 2 % 8 * 8 + lane % 4 * 2;
    const size_t at = (row + y + t / 16 * 16 + t % 2 * 8 + lane / 4) * n + j;
    auto& to = reinterpret_cast<__nv_bfloat162&>(c[at]);
    to = __floats2bfloat162_rn(end(pair[0], at, j), end(pair[1], at + 1, j + 1));
  }
}

constexpr float kScale = 1 / 64.f;  // of both weights: trained ones are smaller than 2 as well

void mlp(const bf16* x, const bf16* up, const bf16* down, const bf16* bias, bf16* hidden, bf16* y,
         int m, int n, int k) {
  const auto product = [m](const bf16* a, const bf16* b, bf16* c, int n, int k, auto end) {
    const auto kernel = product_kernel<decltype(end)>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    kernel<<<dim3(n / 128, m / 128), 256, kBytes>>>(a, b, c, n, k, end);
  };
  product(x, up, hidden, n, k, [=] __device__(float z, size_t, int j) {
    z = z * kScale + float(__ldg(bias + j));
    return z / (1 + __expf(-1.5957691216f * (z + 0.044715f * z * z * z)));  // GELU
  });
  product(hidden, down, y, k, n, [=] __device__(float z, size_t i, int j) {
    return z * kScale + float(__ldg(bias + n + j)) + float(__ldg(x + i));
  });
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
  const size_t m = argc > 3 ? std::stoul(argv[1]) : 16384, k = argc > 3 ? std::stoul(argv[3]) : 768;
  const size_t n = argc > 3 ? std::stoul(argv[2]) : 3072;
  if (m % 128 != 0 || n % 128 != 0 || k % 128 != 0) leave(2, "expected multiples of 128");
  bf16 *x = device_array(2 * m * k, 1), *y = x + m * k, *h = device_array(m * n, 0);
  bf16 *up = device_array(2 * n * k, 1u << 25), *down = up + n * k, *bias = device_array(n + k, 7);
  const double us = microseconds([&] { mlp(x, up, down, bias, h, y, m, n, k); }, 3);
  double error = 0;  // of 8 rows, against double precision
  const auto ups = host_copy(up, n * k), downs = host_copy(down, n * k);
  for (size_t row = 0; row < m; row += (m - 1) / 7) {
    const auto in = host_copy(x + row * k, k), out = host_copy(y + row * k, k);
    auto sum = host_copy(bias, n + k);  // hidden numbers, and results
    for (size_t j = 0; j < n; ++j) {
      for (size_t d = 0; d < k; ++d) sum[j] += in[d] * ups[j * k + d] * kScale;
      sum[j] /= 1 + std::exp(-1.5957691216057308 * (sum[j] + 0.044715 * std::pow(sum[j], 3)));
    }
    for (size_t j = 0; j < k; ++j) {
      double& wanted = sum[n + j] += in[j];
      for (size_t d = 0; d < n; ++d) wanted += sum[d] * downs[j * n + d] * kScale;
      error = std::max(error, std::abs(out[j] - wanted) / std::max(1.0, std::abs(wanted)));
    }
  }
  const double operations = 4.0 * m * n * k;
  const double peak = microseconds([] { multiply_registers<<<1024, 256>>>(); }, 3) / 0x1p40;
  const std::string shape = std::to_string(m) + "x" + std::to_string(k) + ", hidden ";
  report("cuda7_mlp", name, shape + std::to_string(n) + " bfloat16", us, operations, "GFLOP/s",
         peak * operations, error, 0x1p-6);
}
