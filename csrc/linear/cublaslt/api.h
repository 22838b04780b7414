// SPDX-License-Identifier: MIT
// The part of cuBLASLt that the library uses. It is found when the program runs: neither its header
// nor the library is needed to build. Names are those of cublasLt.h without their prefixes: kTransA
// of MatmulDescAttribute is CUBLASLT_MATMUL_DESC_TRANSA.
#pragma once

#include <driver_types.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace transformer_kernels::cuda::cublaslt {

struct Handle;  // this and the next three are known to cuBLASLt alone
struct MatmulDesc;
struct MatrixLayout;
struct MatmulPreference;

enum class Status : int { kSuccess = 0 };
enum class ComputeType : int { k32F = 68, k64F = 70 };
enum class Operation : std::int32_t { kN = 0, kT = 1 };
enum class Epilogue : std::uint32_t { kBias = 4 };
enum class ReductionScheme : std::uint32_t { kComputeType = 2 };
enum class MatmulDescAttribute : int { kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum class MatmulPreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,
  kReductionSchemeMask = 3,
  kMinAlignmentABytes = 5,
  kMinAlignmentBBytes = 6,
  kMinAlignmentCBytes = 7,
  kMinAlignmentDBytes = 8
};

struct MatmulAlgo {
  std::uint64_t data[8];
};
struct MatmulHeuristicResult {
  MatmulAlgo algo;
  std::size_t workspace_size;
  Status state;
  float waves_count;
  int reserved[4];
};
static_assert(sizeof(MatmulHeuristicResult) == 96);

struct Api {
  Status (*create)(Handle** handle);
  Status (*matmul)(Handle* handle, MatmulDesc* desc, const void* alpha, const void* a,
                   MatrixLayout* a_layout, const void* b, MatrixLayout* b_layout, const void* beta,
                   const void* c, MatrixLayout* c_layout, void* d, MatrixLayout* d_layout,
                   const MatmulAlgo* algo, void* workspace, std::size_t workspace_bytes,
                   cudaStream_t stream);
  Status (*matmul_algo_get_heuristic)(Handle* handle, MatmulDesc* desc, MatrixLayout* a_layout,
                                      MatrixLayout* b_layout, MatrixLayout* c_layout,
                                      MatrixLayout* d_layout, MatmulPreference* preference,
                                      int wanted, MatmulHeuristicResult* results, int* found);
  Status (*matmul_desc_create)(MatmulDesc** desc, ComputeType compute_type, cudaDataType_t scale);
  Status (*matmul_desc_destroy)(MatmulDesc* desc);
  Status (*matmul_desc_set_attribute)(MatmulDesc* desc, MatmulDescAttribute attribute,
                                      const void* value, std::size_t bytes);
  Status (*matrix_layout_create)(MatrixLayout** layout, cudaDataType_t type, std::uint64_t rows,
                                 std::uint64_t cols, std::int64_t leading_dimension);
  Status (*matrix_layout_destroy)(MatrixLayout* layout);
  Status (*matmul_preference_create)(MatmulPreference** preference);
  Status (*matmul_preference_destroy)(MatmulPreference* preference);
  Status (*matmul_preference_set_attribute)(MatmulPreference* preference,
                                            MatmulPreferenceAttribute attribute, const void* value,
                                            std::size_t bytes);
};

// Looked for once; null where this machine has none.
const Api* api();

}  // namespace transformer_kernels::cuda::cublaslt
