// SPDX-License-Identifier: MIT
// The end of attention in GPT-2's block, in one launch: projection, residual, norm.
//
// The norm needs whole rows, and a block has 128 columns of them. So the blocks of 128 rows are a
// cluster, and read each other's sums from shared memory.
//
// Build: nvcc -O3 -std=c++17 -arch=sm_90 -o cuda8_norm cuda8_norm.cu
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using bf16 = __nv_bfloat16;
using Pair = __nv_bfloat162;
// d += a * b, of 16x16 and 16x8 elements, by a warp.
__device__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8 elements; the lanes have the addresses of the 32 rows.
__device__ void load_matrices(unsigned (&r)[4], const uint4* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at)))
               : "memory");
}

using Stage = uint4[2][128][5];  // 128 rows of a and of b: 32 elements, and 16 bytes of padding
constexpr int kStages = 4, kBytes = kStages * sizeof(Stage);

// h = x + a b^T and z = norm(h), with c columns.
__global__ void __launch_bounds__(256, 2)
    norm_kernel(const bf16* a, const bf16* b, const Pair* x, Pair* h, Pair* z, int c) {
  extern __shared__ Stage stages[];
  __shared__ float sums[2][2][128];  // of rows' halves in this block, and of their squares
  const size_t row = blockIdx.y * 128, col = blockIdx.x * 128;
  const auto load = [&](int step) {
    for (int i = threadIdx.x; i < 512 && step * 32 < c; i += 256) {
      const size_t at = i / 4 * size_t(c) + step * 32 + i % 4 * 8;
      __pipeline_memcpy_async(&stages[step % kStages][0][i / 4][i % 4], a + row * c + at, 16);
      __pipeline_memcpy_async(&stages[step % kStages][1][i / 4][i % 4], b + col * c + at, 16);
    }
    __pipeline_commit();
  };
  float sum[2][8][4];  // 32 x 64 results of a warp; eight warps stand 4 x 2
  const int lane = threadIdx.x % 32, up = threadIdx.x / 64 * 32, left = threadIdx.x / 32 % 2 * 64;
  for (int step = 0; step < kStages - 1; ++step) load(step);
  const size_t first = ((row + up + lane / 4) * c + col + left) / 2 + lane % 4;
  const auto each_pair = [&](auto work) {  // a thread has four rows, and eight pairs of each
    for (int r = 0; r < 4; ++r)
      for (int j = 0; j < 8; ++j)
        work(reinterpret_cast<float2&>(sum[r / 2][j][r % 2 * 2]), r, first + r * 4 * c + j * 4);
  };
  each_pair([&](float2& two, int, size_t at) { two = __bfloat1622float2(x[at]); });  // residual
  for (int step = 0; step < c / 32; ++step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // this stage has come, and the one before it has been used
    load(step + kStages - 1);
    const auto& [lhs, rhs] = stages[step % kStages];
    for (int d = 0; d < 4; d += 2) {
      unsigned a[2][4], b[4];
      for (int i = 0; i < 2; ++i) load_matrices(a[i], &lhs[up + i * 16 + lane % 16][d + lane / 16]);
      for (int j = 0; j < 8; j += 2) {
        load_matrices(b, &rhs[left + j * 8 + lane / 16 * 8 + lane % 8][d + lane / 8 % 2]);
        for (int t = 0; t < 4; ++t) mma(sum[t % 2][j + t / 2], a[t % 2], b[t & 2], b[(t & 2) + 1]);
      }
    }
  }
  const auto cluster = cooperative_groups::this_cluster();
  const auto all_columns = [&](float(&rows)[4], float(*part)[128]) {
    for (int r = 0; r < 4; ++r) {
      for (int l : {1, 2}) rows[r] += __shfl_xor_sync(~0u, rows[r], l);
      part[left / 64][up + r * 8 + lane / 4] = rows[r], rows[r] = 0;
    }
    cluster.sync();
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 2 * cluster.num_blocks(); ++i)
        rows[r] += cluster.map_shared_rank(part[i % 2], i / 2)[up + r * 8 + lane / 4] / c;
  };
  float mean[4] = {}, square[4] = {};
  each_pair([&](float2 two, int r, size_t at) {
    mean[r] += two.x + two.y;
    h[at] = __float22bfloat162_rn(two);
  });
  all_columns(mean, sums[0]);
  each_pair([&](float2& two, int r, size_t) {
    two = {two.x - mean[r], two.y - mean[r]}, square[r] += two.x * two.x + two.y * two.y;
  });
  all_columns(square, sums[1]);
  each_pair([&](float2 two, int r, size_t at) {
    const float scale = rsqrtf(square[r] + 1e-5f);
    z[at] = __floats2bfloat162_rn(two.x * scale, two.y * scale);
  });
  cluster.sync();  // all have read the sums of this block
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

int main(int argc, char** argv) {
  const std::string name = card(90);
  const size_t m = argc > 2 ? std::stoul(argv[1]) : 16384, c = argc > 2 ? std::stoul(argv[2]) : 768;
  if (m % 128 != 0 || c % 128 != 0 || c > 1024) leave(2, "expected multiples of 128, c <= 1024");
  bf16 *a = device_array(4 * m * c, 1), *x = a + m * c, *h = x + m * c, *z = h + m * c;
  bf16* b = device_array(c * c, 1u << 31);
  cudaLaunchAttribute cluster{cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim.x = c / 128, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  const cudaLaunchConfig_t config{dim3(c / 128, m / 128), 256, kBytes, nullptr, &cluster, 1};
  cudaFuncSetAttribute(norm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const double us = microseconds(
      [&] { cudaLaunchKernelEx(&config, norm_kernel, a, b, (Pair*)x, (Pair*)h, (Pair*)z, c); }, 3);
  double error = 0;  // of 8 rows, against double precision
  const auto weight = host_copy(b, c * c);
  for (size_t row = 0; row < m; row += (m - 1) / 7) {
    const auto in = host_copy(a + row * c, c), result = host_copy(z + row * c, c);
    auto wanted = host_copy(x + row * c, c);
    double mean = 0, square = 0;
    for (size_t j = 0; j < c; mean += wanted[j++] / c)
      for (size_t d = 0; d < c; ++d) wanted[j] += in[d] * weight[j * c + d];
    for (double value : wanted) square += (value - mean) * (value - mean) / c;
    for (size_t j = 0; j < c; ++j)
      error = std::max(error, std::abs(result[j] - (wanted[j] - mean) / std::sqrt(square + 1e-5)));
  }
  const size_t bytes = 2 * m * c * sizeof(bf16);  // of a and x, or of h and z
  const double copy = microseconds([&] { cudaMemcpyAsync(a, h, bytes, cudaMemcpyDefault); }, 3);
  const std::string shape = std::to_string(m) + "x" + std::to_string(c) + " bfloat16";
  report("cuda8_norm", name, shape, us, 2.0 * bytes, "GB/s", copy, error, 0x1p-6);
}
