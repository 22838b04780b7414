// SPDX-License-Identifier: MIT
// NVIDIA's cuBLASLt as an engine for products of any dtype; the pointwise kernels run activations
// after it. Only its bias epilogue is used: its GELU differs from ours in some bits.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "linear/cublaslt/api.h"
#include "linear/cublaslt/column_product.h"
#include "pointwise/problem.h"

namespace transformer_kernels::cuda {
namespace {

using namespace cublaslt;

void check_status(const char* op, const char* function, Status status) {
  if (status == Status::kSuccess) return;
  throw Error(Error::Kind::kRuntime,
              concat(op, ": ", function, " reports status ", static_cast<int>(status)));
}

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::kFloat64) return CUDA_R_64F;
  if (dtype == DType::kFloat32) return CUDA_R_32F;
  return dtype == DType::kFloat16 ? CUDA_R_16F : CUDA_R_16BF;
}

// An object that cuBLASLt creates and destroys.
template <class T>
using Owned = std::unique_ptr<T, Status (*)(T*)>;

Owned<MatrixLayout> layout_of(const char* op, DType dtype, const Columns& columns) {
  MatrixLayout* made = nullptr;
  check_status(
      op, "cublasLtMatrixLayoutCreate",
      api()->matrix_layout_create(&made, type_of(dtype), columns.rows, columns.cols, columns.step));
  return {made, api()->matrix_layout_destroy};
}

template <class Value>
void set(const char* op, MatmulDesc* desc, MatmulDescAttribute attribute, const Value& value) {
  check_status(op, "cublasLtMatmulDescSetAttribute",
               api()->matmul_desc_set_attribute(desc, attribute, &value, sizeof(value)));
}

Owned<MatmulDesc> desc_of(const Product& p, const ColumnProduct& product) {
  const bool is_double = p.dtype == DType::kFloat64;
  MatmulDesc* made = nullptr;
  check_status(p.op, "cublasLtMatmulDescCreate",
               api()->matmul_desc_create(&made, is_double ? ComputeType::k64F : ComputeType::k32F,
                                         type_of(accumulate_dtype(p.dtype))));
  Owned<MatmulDesc> desc{made, api()->matmul_desc_destroy};
  const auto operation = [](const Factor& f) {
    return f.is_transposed ? Operation::kT : Operation::kN;
  };
  set(p.op, made, MatmulDescAttribute::kTransA, operation(product.left));
  set(p.op, made, MatmulDescAttribute::kTransB, operation(product.right));
  if (p.bias != nullptr) {
    set(p.op, made, MatmulDescAttribute::kEpilogue, Epilogue::kBias);
    set(p.op, made, MatmulDescAttribute::kBiasPointer, p.bias);
  }
  return desc;
}

// A product as it is described to cuBLASLt.
struct Description {
  Owned<MatmulDesc> desc;
  Owned<MatrixLayout> left;
  Owned<MatrixLayout> right;
  Owned<MatrixLayout> out;

  Description(const Product& p, const ColumnProduct& product)
      : desc(desc_of(p, product)),
        left(layout_of(p.op, p.dtype, product.left.columns)),
        right(layout_of(p.op, p.dtype, product.right.columns)),
        out(layout_of(p.op, p.out_dtype, product.columns)) {}
};

// While one lives, this thread may do also where a stream is being captured what captures forbid:
// cuBLASLt allocates for a handle, and loads kernels when they are first launched.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// One for each device, null where cuBLASLt does not start: of another version than the driver, say.
// None is destroyed: at the end of the process the driver may be gone first.
Handle* handle_of(int device) {
  static std::mutex mutex;
  static std::map<int, Handle*> handles;
  const std::lock_guard lock(mutex);
  const auto found = handles.find(device);
  if (found != handles.end()) return found->second;
  const RelaxedCapture relaxed;
  Handle* made = nullptr;
  if (api()->create(&made) != Status::kSuccess) made = nullptr;
  return handles.emplace(device, made).first->second;
}

// The alignment of an address in bytes, a power of two of at most kVector. No load is wider than
// that, so the exact address does not decide the algorithm.
constexpr std::uint32_t kVector = 16;
std::uint32_t alignment_of(const void* data) {
  const auto address = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(data)) | kVector;
  return address & (~address + 1);
}

// Algorithms of a product that may be asked for by their number.
constexpr int kMostOffered = 16;

// The properties of a product by which cuBLASLt chooses an algorithm.
struct Key {
  int device;
  DType dtype, out_dtype;
  Columns left, right, out;
  bool left_is_transposed, right_is_transposed, has_bias;
  int wanted;
  std::uint32_t left_alignment, right_alignment, out_alignment;

  auto operator<=>(const Key&) const = default;
};

Key key_of(const Context& context, const Product& p, const ColumnProduct& product) {
  return {.device = context.device.index,
          .dtype = p.dtype,
          .out_dtype = p.out_dtype,
          .left = product.left.columns,
          .right = product.right.columns,
          .out = product.columns,
          .left_is_transposed = product.left.is_transposed,
          .right_is_transposed = product.right.is_transposed,
          .has_bias = p.bias != nullptr,
          .wanted = p.algorithm < 0 ? 1 : kMostOffered,
          .left_alignment = alignment_of(product.left.data),
          .right_alignment = alignment_of(product.right.data),
          .out_alignment = alignment_of(product.out)};
}

std::size_t most_workspace_bytes(const Context& context) {
  constexpr std::size_t kMegabyte = 1024 * 1024;
  return device_limits(context.device.index).architecture >= 90 ? 32 * kMegabyte : 4 * kMegabyte;
}

Owned<MatmulPreference> preference_of(const Context& context, const char* op, const Key& key) {
  MatmulPreference* made = nullptr;
  check_status(op, "cublasLtMatmulPreferenceCreate", api()->matmul_preference_create(&made));
  Owned<MatmulPreference> preference{made, api()->matmul_preference_destroy};
  const auto set = [&]<class Value>(MatmulPreferenceAttribute attribute, Value value) {
    check_status(op, "cublasLtMatmulPreferenceSetAttribute",
                 api()->matmul_preference_set_attribute(made, attribute, &value, sizeof(value)));
  };
  using enum MatmulPreferenceAttribute;
  set(kMaxWorkspaceBytes, std::uint64_t{most_workspace_bytes(context)});
  // Parts of the terms are kept wide in the workspace, and summed in a pass of their own. The other
  // schemes round them to dtype, and in place nothing promises the order.
  set(kReductionSchemeMask, ReductionScheme::kComputeType);
  set(kMinAlignmentABytes, key.left_alignment);
  set(kMinAlignmentBBytes, key.right_alignment);
  set(kMinAlignmentCBytes, key.out_alignment);
  set(kMinAlignmentDBytes, key.out_alignment);
  return preference;
}

struct Algorithm {
  MatmulAlgo algo;
  std::size_t workspace_bytes;
};

// The algorithms that cuBLASLt offers, its estimate of the fastest one first.
std::vector<Algorithm> ask_for_algorithms(const Context& context, const Product& p,
                                          const ColumnProduct& product, const Key& key) {
  const Description d(p, product);
  const Owned<MatmulPreference> preference = preference_of(context, p.op, key);
  std::array<MatmulHeuristicResult, kMostOffered> results{};
  int found = 0;
  const Status status = api()->matmul_algo_get_heuristic(
      handle_of(key.device), d.desc.get(), d.left.get(), d.right.get(), d.out.get(), d.out.get(),
      preference.get(), key.wanted, results.data(), &found);
  std::vector<Algorithm> offered;
  if (status != Status::kSuccess) return offered;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == Status::kSuccess) {
      offered.push_back({results[i].algo, results[i].workspace_size});
    }
  }
  return offered;
}

// The one that is asked for, by default the first; nothing where it is not offered.
std::optional<Algorithm> algorithm_of(const Context& context, const Product& p,
                                      const ColumnProduct& product) {
  constexpr std::size_t kMostKept = 1024;
  static std::mutex mutex;
  static std::map<Key, std::vector<Algorithm>> kept;
  const Key key = key_of(context, p, product);
  const auto number = static_cast<std::size_t>(std::max(p.algorithm, std::int64_t{0}));
  const std::lock_guard lock(mutex);
  auto found = kept.find(key);
  if (found == kept.end()) {
    if (kept.size() >= kMostKept) kept.clear();
    found = kept.emplace(key, ask_for_algorithms(context, p, product, key)).first;
  }
  const std::vector<Algorithm>& offered = found->second;
  return number < offered.size() ? std::optional(offered[number]) : std::nullopt;
}

// Whether a result lies over the z that it is a gradient of, and no other has room for the sum.
bool needs_memory(const Product& p) {
  return p.z.data != nullptr && p.out.data == p.z.data && p.kept.data == nullptr;
}

// The part of a product that cuBLASLt computes: the sum, written to where the activation reads it.
// `memory` has the room that it may need; null stands for any.
Product sum_of(Product p, void* memory = nullptr) {
  if (p.z.data != nullptr) {
    p.bias = nullptr;
    if (needs_memory(p)) {
      if (memory != nullptr) p.out.data = memory;
    } else if (p.out.data == p.z.data) {
      p.out = p.kept;
    }
  } else if (p.activation && p.kept.data != nullptr) {
    p.out = p.kept;
  }
  return p;
}

// Each thread of the pointwise kernels reads its elements before it writes them, so that results
// may lie where `sum` does.
void activate(const Context& context, const Product& p, const Matrix& sum) {
  const auto rows = [](const Matrix& matrix) { return Rows{matrix.data, matrix.row_step}; };
  if (p.z.data == nullptr) {
    return pointwise_forward(context, {.op = *p.activation,
                                       .dtype = p.dtype,
                                       .bias_dtype = p.dtype,
                                       .rows = p.rows,
                                       .cols = p.cols,
                                       .x = rows(sum),
                                       .y = rows(p.out)});
  }
  pointwise_backward(context, {.op = *p.activation,
                               .dtype = p.dtype,
                               .bias_dtype = p.dtype,
                               .rows = p.rows,
                               .cols = p.cols,
                               .dy = rows(sum),
                               .x = rows(p.z),
                               .dx = rows(p.out),
                               .y = rows(p.kept)});
}

bool has_vectors(DType dtype, const void* data, const Columns& columns) {
  const auto whole = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(size_of(dtype)) % kVector == 0;
  };
  return alignment_of(data) == kVector && whole(columns.rows) && whole(columns.step);
}

// Kernels for such matrices alone add a bias before they round: behind the others cuBLASLt goes
// over the rounded result once more.
bool has_vectors(DType dtype, const ColumnProduct& product) {
  return has_vectors(dtype, product.left.data, product.left.columns) &&
         has_vectors(dtype, product.right.data, product.right.columns) &&
         has_vectors(dtype, product.out, product.columns);
}

// How a bias lies is nothing that cuBLASLt is told: it takes vectors of it for granted.
const char* refusal_of_bias(const Product& sum, const ColumnProduct& product) {
  if (sum.bias == nullptr) return nullptr;
  if (sum.bias_dtype != sum.dtype) return "bias is of another dtype";
  if (alignment_of(sum.bias) != kVector) return "bias is not 16-byte aligned";
  if (size_of(sum.dtype) == 2 && !has_vectors(sum.dtype, product)) {
    return "a bias of 16-bit matrices that are not 16-byte aligned would be added to rounded sums";
  }
  return product.is_transposed ? nullptr : "bias is of a result by columns";
}

bool activates_rows(const Product& p) {
  return !p.activation || std::ranges::all_of(std::array{p.out, p.kept, p.z}, [](const Matrix& m) {
    return m.data == nullptr || m.col_step == 1;
  });
}

}  // namespace

const char* cublaslt_refusal(const Context& context, const Product& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (api() == nullptr) return "cuBLASLt was not found";
  if (handle_of(context.device.index) == nullptr) return "cuBLASLt does not start on this device";
  if (p.terms == 0) return "there are no terms";
  if (std::max({p.rows, p.cols, p.terms}) > kMost)
    return "more than 2^31 - 1 rows, columns or terms";
  if (!activates_rows(p)) return "rows that are activated are not together";
  const Product sum = sum_of(p);
  const std::optional<ColumnProduct> product = column_product(sum);
  if (!product) return "elements of no row or column lie together";
  if (const char* refusal = refusal_of_bias(sum, *product)) return refusal;
  if (algorithm_of(context, sum, *product)) return nullptr;
  return p.algorithm < 0 ? "cuBLASLt has no algorithm for it"
                         : "cuBLASLt does not offer it for this product";
}

void run_cublaslt(const Context& context, const Product& p) {
  const Scratch memory(p.op, context,
                       needs_memory(p) ? p.rows * p.out.row_step * size_of(p.dtype) : 0);
  const Product sum = sum_of(p, memory.as<void>());
  const ColumnProduct product = *column_product(sum);
  const Algorithm algorithm = *algorithm_of(context, sum, product);
  const Description d(sum, product);
  const Scratch workspace(p.op, context, algorithm.workspace_bytes);
  const bool is_double = p.dtype == DType::kFloat64;
  constexpr double kDouble[] = {0, 1};
  constexpr float kFloat[] = {0, 1};
  const auto number = [&](int which) {
    return is_double ? static_cast<const void*>(&kDouble[which]) : &kFloat[which];
  };
  const void* const alpha = number(1);
  const void* const beta = number(p.accumulates ? 1 : 0);
  const RelaxedCapture relaxed;
  check_status(
      p.op, "cublasLtMatmul",
      api()->matmul(handle_of(context.device.index), d.desc.get(), alpha, product.left.data,
                    d.left.get(), product.right.data, d.right.get(), beta, product.out, d.out.get(),
                    product.out, d.out.get(), &algorithm.algo, workspace.as<void>(),
                    algorithm.workspace_bytes, static_cast<cudaStream_t>(context.stream)));
  if (p.activation) activate(context, p, sum.out);
}

}  // namespace transformer_kernels::cuda
