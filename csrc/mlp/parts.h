// SPDX-License-Identifier: MIT
// The rule by which the backward pass of an MLP goes over its hidden features in parts.
#pragma once

#include "core/rounding.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// On CUDA, from these bytes and features on, 2 parts are as fast as one or faster, and 4 take up to
// 5 % longer. Below that, more calls cost more than a working set in the cache saves, or than the
// memory is worth. The sum over the parts is rounded to the dtype of x after each: with 4 parts the
// error stays within twice that of one product.
struct PartsRule {
  std::int64_t count;
  std::int64_t fewest_bytes;     // of the hidden features
  std::int64_t fewest_features;  // a part: smaller products leave processors idle
};
inline constexpr PartsRule kPartsOnCpu{4, std::int64_t{1} << 24, 0};
inline constexpr PartsRule kPartsOnCuda{2, std::int64_t{1} << 28, 4096};

// The features of a part of `hidden`, for as many rows of elements of so many bytes. A number of
// parts of 0 leaves it to the rule.
constexpr std::int64_t features_of_part(DeviceType device, std::int64_t rows, std::int64_t hidden,
                                        std::int64_t element_bytes, std::int64_t parts) {
  constexpr std::int64_t kStep = 64;  // parts begin where rows of hidden features are aligned
  const PartsRule& rule = device == DeviceType::kCpu ? kPartsOnCpu : kPartsOnCuda;
  const bool is_whole = rows * hidden * element_bytes < rule.fewest_bytes ||
                        hidden < rule.count * rule.fewest_features;
  const std::int64_t count = parts > 0 ? parts : is_whole ? 1 : rule.count;
  return count == 1 ? hidden : rounded_up(divide_up(hidden, count), kStep);
}

}  // namespace transformer_kernels
