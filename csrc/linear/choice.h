// SPDX-License-Identifier: MIT
// Who multiplies in a layer: this library, on contiguous operands ("packed"), or PyTorch, whose
// product runs no code of ours. Python asks; it holds no rule of its own.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "core/cuda/device.h"
#include "linear/rules.h"
#include "transformer_kernels/api.h"

namespace transformer_kernels {

// A weight as the layer is given it: rows are the features, columns the terms.
struct LayerWeight {
  bool given = false;
  std::optional<DType> dtype{};  // in products; nothing where the library lacks it
  int rank = 0;                  // sizes and steps are of a matrix
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_step = 0;
  std::int64_t col_step = 0;
  std::uintptr_t address = 0;  // 0 where it is not known
};

struct Layer {
  Device device{};
  cuda::DeviceLimits limits{};  // of a CUDA device
  Blas blas{};                  // of the CPU
  std::optional<DType> dtype{};
  std::int64_t rows = 0;
  std::int64_t terms = -1;  // fewer than 0 where x has no dimensions
  bool needs_dx = false;
  bool needs_dweight = false;
  bool activated = false;
  bool refuses_cublas = false;  // PyTorch refuses products on CUDA
  LayerWeight weight{};
  LayerWeight down_weight{};  // of a following layer
  LayerWeight up_weight{};    // beside `weight`, if that is a gate

  bool trains() const { return needs_dx || needs_dweight; }
  bool has_few_rows() const { return rows <= kFewRows; }
};

// "linear float32 40x24x16 by columns dx dweight": the key of its times.
TFK_API std::string describe(const Layer& layer);

// Each product's route is the number of an algorithm of cuBLASLt, or one of these.
inline constexpr std::int64_t kOurs = -1;
inline constexpr std::int64_t kTorch = -2;
struct Routes {
  std::int64_t y = kOurs;
  std::int64_t dx = kOurs;
  std::int64_t dweight = kOurs;

  bool operator==(const Routes&) const = default;
};

struct LayerChoice {
  bool ours = false;
  std::string reason;  // why PyTorch's product runs, or the times by which ours does
  Routes routes{};
  bool by_times = false;
};

// Why only PyTorch has the product, why few rows of ours are not possible whatever the weight is,
// and why ours is slower; null where there is no reason.
TFK_API const char* refusal_of_layer(const Layer& layer);
TFK_API const char* refusal_of_few_rows(const Layer& layer);
const char* slower_layer(const Layer& layer);

// The limits of a layer's device; those of the CPU are empty.
TFK_API cuda::DeviceLimits limits_of(Device device);

TFK_API LayerChoice choose_by_rules(const Layer& layer);
// By the times on the machine where there are some, else by rules.
TFK_API LayerChoice choose_layer(const Layer& layer, const std::string& machine);

}  // namespace transformer_kernels
