// SPDX-License-Identifier: MIT
// One rotation, forward or backward, against the formula in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "test_tensor.h"
#include "transformer_kernels/rope/rope.h"

namespace transformer_kernels::testing {

struct RopeShape {
  std::int64_t batch = 2;
  std::int64_t time = 5;
  std::int64_t q_heads = 3;
  std::int64_t k_heads = 1;
  std::int64_t dim = 16;
  std::int64_t rotary_dim = 16;
  std::int64_t positions = 11;
};

struct RopeOptions {
  bool interleaved = false;
  bool wide_tables = false;  // float32 for 16-bit q
  bool heads_first = false;  // (batch, heads, time, dim) in memory
  bool in_place = false;
  bool backward = false;
  bool flat = false;  // without a batch dimension; of a batch of one
  Layout layout{};
  Layout table_layout{};
};

// Positions as the caller gives them.
struct RopePlaces {
  std::vector<std::int64_t> ids{};  // (B, T) or (3, B, T)
  bool axes = false;
  std::int64_t section_time = 0;
  std::int64_t section_height = 0;
  std::vector<std::int64_t> offsets{};
  std::int64_t offset = 0;
  std::vector<std::int32_t> cu_seqlens{};
  DType dtype = DType::kInt64;  // of ids and offsets
};

// An array of int32 or int64 in a backend's memory.
class IntegerArray {
 public:
  IntegerArray(Backend& backend, DType dtype, const std::vector<std::int64_t>& values) {
    if (dtype == DType::kInt64) {
      wide_.emplace(backend, values.data(), values.size());
    } else {
      const std::vector<std::int32_t> narrow(values.begin(), values.end());
      narrow_.emplace(backend, narrow.data(), narrow.size());
    }
  }
  TensorView view() const {
    return wide_ ? wide_->vector(DType::kInt64) : narrow_->vector(DType::kInt32);
  }

 private:
  std::optional<DeviceArray<std::int64_t>> wide_;
  std::optional<DeviceArray<std::int32_t>> narrow_;
};

// The rows of one tensor: of memory in the order (batch, time, heads) or (batch, heads, time).
class HeadTensor {
 public:
  HeadTensor(Backend& backend, DType dtype, const RopeShape& s, std::int64_t heads,
             const RopeOptions& o)
      : shape_(s),
        heads_(heads),
        options_(o),
        memory_(backend, dtype, s.batch * s.time * heads, s.dim, o.layout) {}
  HeadTensor(Backend& backend, DType dtype, const RopeShape& s, std::int64_t heads,
             const RopeOptions& o, const Values& values)
      : shape_(s),
        heads_(heads),
        options_(o),
        memory_(backend, dtype, s.batch * s.time * heads, s.dim, values, o.layout) {}

  TensorView view() const {
    TensorView v = memory_.view();
    const std::int64_t row = v.strides[0];
    v.rank = 4;
    v.sizes = {shape_.batch, shape_.time, heads_, shape_.dim};
    v.strides = {shape_.time * heads_ * row, heads_ * row, row, 1};
    if (options_.heads_first) v.strides = {shape_.time * heads_ * row, row, shape_.time * row, 1};
    if (!options_.flat) return v;
    v.rank = 3;
    for (int i = 0; i < 3; ++i) {
      v.sizes[i] = v.sizes[i + 1];
      v.strides[i] = v.strides[i + 1];
    }
    return v;
  }
  // The element of the memory's values for (batch, time, head).
  std::int64_t row(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return options_.heads_first ? (b * heads_ + h) * shape_.time + t
                                : (b * shape_.time + t) * heads_ + h;
  }
  TestTensor& memory() { return memory_; }

 private:
  RopeShape shape_;
  std::int64_t heads_;
  RopeOptions options_;
  TestTensor memory_;
};

struct RopeRun {
  Backend& backend;
  DType dtype;
  DType table_dtype;
  RopeShape s;
  RopeOptions o;
  RopePlaces places;
  Values q_values, k_values, cos_values, sin_values;
  HeadTensor q, k, q_rotated, k_rotated;
  TestTensor cos, sin;
  std::optional<IntegerArray> ids, offsets;
  std::optional<DeviceArray<std::int32_t>> cu_seqlens;

  RopeRun(Backend& where, DType type, const RopeShape& shape, const RopeOptions& options,
          const RopePlaces& given = {})
      : backend(where),
        dtype(type),
        table_dtype(options.wide_tables && size_of(type) < 4 ? DType::kFloat32 : type),
        s(shape),
        o(options),
        places(given),
        q_values(random_normal(rows(s.q_heads) * s.dim, type)),
        k_values(random_normal(rows(s.k_heads) * s.dim, type)),
        cos_values(random_normal(s.positions * s.rotary_dim / 2, table_dtype)),
        sin_values(random_normal(s.positions * s.rotary_dim / 2, table_dtype)),
        q(where, type, s, s.q_heads, o, q_values),
        k(where, type, s, s.k_heads, o, k_values),
        q_rotated(where, type, s, s.q_heads, o),
        k_rotated(where, type, s, s.k_heads, o),
        cos(where, table_dtype, s.positions, s.rotary_dim / 2, cos_values, o.table_layout),
        sin(where, table_dtype, s.positions, s.rotary_dim / 2, sin_values, o.table_layout) {
    if (!places.ids.empty()) ids.emplace(where, places.dtype, places.ids);
    if (!places.offsets.empty()) offsets.emplace(where, places.dtype, places.offsets);
    if (!places.cu_seqlens.empty()) {
      cu_seqlens.emplace(where, places.cu_seqlens.data(), places.cu_seqlens.size());
    }
  }

  RopeAngles angles() const {
    RopeAngles a{.cos = cos.view(),
                 .sin = sin.view(),
                 .offset = places.offset,
                 .section_time = places.section_time,
                 .section_height = places.section_height,
                 .interleaved = o.interleaved};
    if (ids) a.position_ids = ids_view();
    if (offsets) a.offsets = offsets->view();
    if (cu_seqlens) a.cu_seqlens = cu_seqlens->vector(DType::kInt32);
    return a;
  }

  RopeForward forward() const {
    RopeForward a{.q = q.view(), .angles = angles(), .q_rotated = out(q, q_rotated)};
    if (s.k_heads > 0) {
      a.k = k.view();
      a.k_rotated = out(k, k_rotated);
    }
    return a;
  }

  RopeBackward backward() const {
    const RopeForward a = forward();
    return {.dq_rotated = a.q,
            .dk_rotated = a.k,
            .angles = a.angles,
            .dq = a.q_rotated,
            .dk = a.k_rotated};
  }

  void run() const {
    if (o.backward) {
      rope_backward(backend.context(), backward());
    } else {
      rope_forward(backend.context(), forward());
    }
  }

  void check() {
    SCOPED_TRACE(description());
    run();
    check_side("q", q, q_rotated, q_values, s.q_heads);
    check_side("k", k, k_rotated, k_values, s.k_heads);
  }

  static constexpr std::int64_t kNotHeld = std::int64_t{-1} << 40;  // no sequence has the row

  // The position on an axis; axis 0 stands for all where positions have no axes.
  std::int64_t position(std::int64_t axis, std::int64_t b, std::int64_t t) const {
    if (!places.ids.empty())
      return places.ids[((places.axes ? axis : 0) * s.batch + b) * s.time + t];
    std::int64_t sequence = b;
    std::int64_t first = 0;
    if (!places.cu_seqlens.empty()) {
      const auto& at = places.cu_seqlens;
      sequence = 0;
      while (sequence + 1 < static_cast<std::int64_t>(at.size()) && at[sequence + 1] <= t) {
        ++sequence;
      }
      if (sequence + 1 == static_cast<std::int64_t>(at.size())) return kNotHeld;
      first = at[sequence];
    }
    return t - first + places.offset + (places.offsets.empty() ? 0 : places.offsets[sequence]);
  }

 private:
  std::int64_t rows(std::int64_t heads) const { return s.batch * s.time * heads; }

  TensorView out(const HeadTensor& in, const HeadTensor& fresh) const {
    return o.in_place ? in.view() : fresh.view();
  }

  TensorView ids_view() const {
    TensorView v = ids->view();
    v.rank = 3;
    v.sizes = {3, s.batch, s.time};
    v.strides = {s.batch * s.time, s.time, 1};
    if (o.flat) {
      v.rank = 2;
      v.sizes = {3, s.time};
      v.strides = {s.time, 1};
    }
    if (places.axes) return v;
    --v.rank;
    for (int i = 0; i < v.rank; ++i) {
      v.sizes[i] = v.sizes[i + 1];
      v.strides[i] = v.strides[i + 1];
    }
    return v;
  }

  std::string description() const {
    return std::string(o.backward ? "backward " : "forward ") + name_of(dtype) + " " +
           std::to_string(s.batch) + "x" + std::to_string(s.time) + "x" +
           std::to_string(s.q_heads) + "+" + std::to_string(s.k_heads) + "x" +
           std::to_string(s.dim) + " rotary " + std::to_string(s.rotary_dim) +
           (o.interleaved ? " interleaved" : "");
  }

  std::int64_t axis(std::int64_t frequency) const {
    if (!places.axes || frequency < places.section_time) return 0;
    return frequency < places.section_time + places.section_height ? 1 : 2;
  }

  void check_side(const char* name, HeadTensor& in, HeadTensor& fresh, const Values& x,
                  std::int64_t heads) {
    if (heads == 0) return;
    HeadTensor& result = o.in_place ? in : fresh;
    const Values got = result.memory().values();
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t t = 0; t < s.time; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t first = result.row(b, t, h) * s.dim;
          check_row(name, b, t, x.data() + first, got.data() + first);
        }
      }
    }
    EXPECT_TRUE(fresh.memory().surroundings_intact() && in.memory().surroundings_intact());
  }

  void check_row(const char* name, std::int64_t b, std::int64_t t, const double* x,
                 const double* got) const {
    const std::int64_t half = s.rotary_dim / 2;
    const bool rotates = position(0, b, t) != kNotHeld;
    for (std::int64_t f = 0; f < half; ++f) {
      const std::int64_t first = o.interleaved ? 2 * f : f;
      const std::int64_t second = o.interleaved ? 2 * f + 1 : f + half;
      if (!rotates) {
        ASSERT_EQ(got[first], x[first]) << name;
        ASSERT_EQ(got[second], x[second]) << name;
        continue;
      }
      const std::int64_t p = position(axis(f), b, t);
      if (p < 0 || p >= s.positions) {
        ASSERT_TRUE(std::isnan(got[first]) && std::isnan(got[second])) << name;
        continue;
      }
      const double c = cos_values[p * half + f];
      const double sign = o.backward ? -1 : 1;
      const double sine = sign * sin_values[p * half + f];
      expect_near(name, got[first], x[first] * c, -x[second] * sine);
      expect_near(name, got[second], x[second] * c, x[first] * sine);
    }
    for (std::int64_t i = s.rotary_dim; i < s.dim; ++i) ASSERT_EQ(got[i], x[i]) << name;
  }

  // A rounding of the storage type, and two of the arithmetic in each term.
  void expect_near(const char* name, double got, double a, double b) const {
    const DType wide = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    const double allowed =
        1.01 * unit_roundoff(dtype) * std::abs(a + b) +
        4 * unit_roundoff(wide) * (std::abs(a) + std::abs(b)) +
        std::ldexp(1.0, format_of(dtype).min_exponent - format_of(dtype).fraction_bits);
    ASSERT_NEAR(got, a + b, allowed) << name;
  }
};

}  // namespace transformer_kernels::testing
