// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/quantize_weight.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>
#include <vector>

#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "core/math/convert.h"
#include "core/overlap.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "quantize_weight";

// Sizes of a checked call, and the matrices as rows.
struct Problem {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t groups;  // of a row
  bool is_byte;         // 8 bits a number
  Rows weight;
  Rows packed;
  Rows scales;

  std::int64_t group() const { return groups == 0 ? 1 : cols / groups; }
  double most() const { return is_byte ? 127 : 7; }
};

void check_matrix(const char* name, const TensorView& view, std::int64_t rows, std::int64_t cols) {
  check_value(view.rank == 2 && view.sizes[0] == rows && view.sizes[1] == cols, kOp, ": ", name,
              " has shape ", shape_of(view), ", expected (", rows, ", ", cols, ")");
}

Problem check(const Context& context, const QuantizeWeight& a) {
  check_value(context.device.type == DeviceType::kCpu, kOp,
              ": runs on the CPU, expected its device");
  const ArgumentChecker check(kOp, context.device);
  check.floating("weight", a.weight);
  check_value(a.weight.rank == 2, kOp, ": weight has ", a.weight.rank, " dimensions, expected 2");
  check.typed("packed", a.packed, a.packed.dtype, "");
  Problem p{.rows = a.weight.sizes[0],
            .cols = a.weight.sizes[1],
            .groups = 0,
            .is_byte = a.packed.dtype == DType::kInt8,
            .weight = {a.weight.data, checked_row_stride(kOp, "weight", a.weight)},
            .packed = {a.packed.data, 0},
            .scales = {a.scales.data, 0}};
  check_type(p.is_byte || a.packed.dtype == DType::kUInt8, kOp, ": packed is ",
             name_of(a.packed.dtype), ", expected int8 or uint8 (two numbers a byte)");
  check_value(p.is_byte || p.cols % 2 == 0, kOp, ": weight has ", p.cols,
              " columns, expected an even number (4 bits a number)");
  check_matrix("packed", a.packed, p.rows, p.is_byte ? p.cols : p.cols / 2);
  p.packed.stride = checked_output_stride(kOp, "packed", a.packed);
  check.floating("scales", a.scales);
  check_type(a.scales.dtype != DType::kFloat64, kOp,
             ": scales is float64, expected float32, float16 or bfloat16");
  p.groups = a.scales.rank == 2 ? a.scales.sizes[1] : 0;
  check_matrix("scales", a.scales, p.rows, p.groups);
  const bool divides = p.groups > 0 && p.cols > 0 && p.cols % p.groups == 0;
  check_value(divides || (p.groups == 0 && p.cols == 0), kOp, ": scales has ", p.groups,
              " groups a row, expected a divisor of ", p.cols, " (the columns of weight)");
  p.scales.stride = checked_output_stride(kOp, "scales", a.scales);
  check_apart(kOp, {{"packed", a.packed}, {"scales", a.scales}}, {{"weight", a.weight}});
  return p;
}

// The next larger number.
template <class S>
S next(S scale) {
  if constexpr (std::is_same_v<S, float>) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) + 1);
  } else {
    return {static_cast<std::uint16_t>(scale.bits + 1)};
  }
}

// The scale whose numbers reach `most`. One that was rounded down so far that the largest number
// would be clamped becomes the next larger one; one that is then much too large, as happens with
// subnormal numbers and smaller ones, is refused: it would lose a third of a bit of its numbers.
template <class S>
S scale_of(double exact, double most, const char* dtype) {
  constexpr double kMostTooLarge = 1.25;
  S scale;
  narrow(static_cast<float>(exact), scale);
  const double rounded = widen(scale);
  if (std::isfinite(rounded) && (exact - rounded) * 2 * most > rounded) scale = next(scale);
  const double wide = widen(scale);
  const char* const fault = !std::isfinite(wide)           ? "is not finite"
                            : wide > kMostTooLarge * exact ? "is too small"
                                                           : nullptr;
  check_value(fault == nullptr, kOp, ": weight has a group whose scale ", fault ? fault : "",
              ", expected numbers whose scales ", dtype, " holds");
  return scale;
}

// NaN where a number is.
template <class T>
accumulate_t<T> largest_magnitude(const T* group, std::int64_t count) {
  accumulate_t<T> largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const accumulate_t<T> magnitude = std::abs(widen(group[i]));
    if (!(magnitude <= largest)) largest = magnitude;
    if (std::isnan(magnitude)) return magnitude;
  }
  return largest;
}

template <class T>
struct WeightRows {
  const Problem& p;

  const T* row(std::int64_t i) const {
    return static_cast<const T*>(p.weight.data) + i * p.weight.stride;
  }

  // The scale of each group of rows [begin, end), as its float.
  template <class S>
  void find_scales(DType dtype, float* scales, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin * p.groups; i < end * p.groups; ++i) {
      const T* const group = row(i / p.groups) + i % p.groups * p.group();
      const double exact = largest_magnitude(group, p.group()) / p.most();
      scales[i] = widen(scale_of<S>(exact, p.most(), name_of(dtype)));
    }
  }

  template <class S>
  void write(const float* scales, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* const of_row = scales + i * p.groups;
      S* const out = static_cast<S*>(p.scales.data) + i * p.scales.stride;
      for (std::int64_t g = 0; g < p.groups; ++g) narrow(of_row[g], out[g]);
      pack(row(i), of_row, static_cast<std::uint8_t*>(p.packed.data) + i * p.packed.stride);
    }
  }

 private:
  int number(const T* row, const float* scales, std::int64_t col) const {
    const float scale = scales[col / p.group()];
    const auto divisor = static_cast<accumulate_t<T>>(scale == 0 ? 1 : scale);
    const double rounded = std::nearbyint(widen(row[col]) / divisor);
    return static_cast<int>(std::clamp(rounded, -p.most() - 1, p.most()));
  }

  void pack(const T* row, const float* scales, std::uint8_t* out) const {
    if (p.is_byte) {
      for (std::int64_t k = 0; k < p.cols; ++k) {
        out[k] = static_cast<std::uint8_t>(number(row, scales, k));
      }
      return;
    }
    for (std::int64_t k = 0; k < p.cols; k += 2) {
      const int low = number(row, scales, k), high = number(row, scales, k + 1);
      out[k / 2] = static_cast<std::uint8_t>((low & 15) | (high & 15) << 4);
    }
  }
};

// All scales are found, or refused, before anything is written.
template <class T, class S>
void quantize(const Context& context, const Problem& p, DType scales_dtype) {
  std::vector<float> scales(p.rows * p.groups);
  const WeightRows<T> rows{p};
  const std::int64_t grain = cpu::rows_per_range(4 * p.cols);
  cpu::parallel_for(context, p.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    rows.template find_scales<S>(scales_dtype, scales.data(), begin, end);
  });
  cpu::parallel_for(context, p.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    rows.template write<S>(scales.data(), begin, end);
  });
}

}  // namespace

void quantize_weight(const Context& context, const QuantizeWeight& arguments) {
  const Problem p = check(context, arguments);
  if (context.checks_only || p.rows == 0 || p.cols == 0) return;
  dispatch_float(arguments.weight.dtype, [&]<class T>() {
    dispatch_below_double(arguments.scales.dtype,
                          [&]<class S>() { quantize<T, S>(context, p, arguments.scales.dtype); });
  });
}

}  // namespace transformer_kernels
