// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "core/overlap.h"
#include "transformer_kernels/rope/tables.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "rope_tables";
constexpr double kTurn = 2 * std::numbers::pi;

void check_above(double least, const char* name, double value) {
  check_value(std::isfinite(value) && value > least, kOp, ": ", name, " is ", value,
              ", expected a finite number above ", least);
}

void check_scaling(const RopeTables& a) {
  if (a.scaling == RopeScaling::kNone) return;
  check_above(0, "factor", a.factor);
  if (a.scaling == RopeScaling::kLinear) return;
  check_above(0, "original_max_positions", a.original_max_positions);
  if (a.scaling == RopeScaling::kLlama3) {
    check_above(0, "low_freq_factor", a.low_freq_factor);
    check_above(a.low_freq_factor, "high_freq_factor", a.high_freq_factor);
    return;
  }
  check_value(a.scaling == RopeScaling::kYarn, kOp, ": scaling is ", static_cast<int>(a.scaling),
              ", expected a RopeScaling");
  check_above(0, "beta_fast", a.beta_fast);
  check_above(0, "beta_slow", a.beta_slow);
  if (a.attention_factor != 0) check_above(0, "attention_factor", a.attention_factor);
}

void check_table(const ArgumentChecker& check, const char* name, const TensorView& table) {
  check.floating(name, table);
  check_type(size_of(table.dtype) >= 4, kOp, ": ", name, " is ", name_of(table.dtype),
             ", expected float32 or float64");
  check_value(table.rank == 2 && table.sizes[1] >= 1, kOp, ": ", name, " has shape ",
              shape_of(table), ", expected (positions, frequencies)");
  check.packed(name, table, table.numel(), "its elements");
}

void check(const Context& context, const RopeTables& a) {
  check_value(context.device.type == DeviceType::kCpu, kOp,
              ": runs on the CPU, expected its device");
  const ArgumentChecker check(kOp, context.device);
  check_table(check, "cos", a.cos);
  check.typed("sin", a.sin, a.cos.dtype, "the dtype of cos");
  check.same_shape("sin", a.sin, "cos", a.cos);
  check_table(check, "sin", a.sin);
  check_apart(kOp, {{"sin", a.sin}}, {{"cos", a.cos}});
  check_above(1, "base", a.base);
  check_scaling(a);
}

// The share, from 0 to 1, of a frequency's place between two limits.
double share(double place, double low, double high) {
  return std::clamp((place - low) / (high - low), 0.0, 1.0);
}

void scale_as_llama3(const RopeTables& a, std::vector<double>& frequencies) {
  for (double& w : frequencies) {
    const double turns = a.original_max_positions * w / kTurn;
    const double kept = share(turns, a.low_freq_factor, a.high_freq_factor);
    w *= kept + (1 - kept) / a.factor;
  }
}

void scale_as_yarn(const RopeTables& a, std::vector<double>& frequencies) {
  const auto dim = 2.0 * static_cast<double>(frequencies.size());
  const auto index_of = [&](double turns) {
    return dim * std::log(a.original_max_positions / (turns * kTurn)) / (2 * std::log(a.base));
  };
  double low = index_of(a.beta_fast), high = index_of(a.beta_slow);
  if (a.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::max(std::min(high, dim - 1), low + 0.001);
  for (std::size_t f = 0; f < frequencies.size(); ++f) {
    const double scaled = share(static_cast<double>(f), low, high);
    frequencies[f] *= 1 - scaled + scaled / a.factor;
  }
}

std::vector<double> frequencies_of(const RopeTables& a) {
  std::vector<double> frequencies(a.cos.sizes[1]);
  const auto count = static_cast<double>(frequencies.size());
  for (std::size_t f = 0; f < frequencies.size(); ++f) {
    frequencies[f] = std::pow(a.base, -static_cast<double>(f) / count);
  }
  switch (a.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear:
      for (double& w : frequencies) w /= a.factor;
      break;
    case RopeScaling::kLlama3: scale_as_llama3(a, frequencies); break;
    case RopeScaling::kYarn: scale_as_yarn(a, frequencies); break;
  }
  return frequencies;
}

// The factor of cosines and sines.
double attention_factor(const RopeTables& a) {
  if (a.scaling != RopeScaling::kYarn) return 1;
  if (a.attention_factor != 0) return a.attention_factor;
  return a.factor <= 1 ? 1 : 0.1 * std::log(a.factor) + 1;
}

template <class T>
void fill(const Context& context, const RopeTables& a) {
  const std::vector<double> frequencies = frequencies_of(a);
  const auto cols = static_cast<std::int64_t>(frequencies.size());
  const double factor = attention_factor(a);
  const auto fill_rows = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t position = begin; position < end; ++position) {
      for (std::int64_t f = 0; f < cols; ++f) {
        const double angle = static_cast<double>(position) * frequencies[f];
        static_cast<T*>(a.cos.data)[position * cols + f] = static_cast<T>(std::cos(angle) * factor);
        static_cast<T*>(a.sin.data)[position * cols + f] = static_cast<T>(std::sin(angle) * factor);
      }
    }
  };
  cpu::parallel_for(context, a.cos.sizes[0], cpu::rows_per_range(16 * cols), fill_rows);
}

}  // namespace

void rope_tables(const Context& context, const RopeTables& arguments) {
  check(context, arguments);
  if (context.checks_only) return;
  if (arguments.cos.dtype == DType::kFloat64) {
    fill<double>(context, arguments);
  } else {
    fill<float>(context, arguments);
  }
}

}  // namespace transformer_kernels
