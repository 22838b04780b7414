// SPDX-License-Identifier: MIT
// Operands of an MLP with memory for the results of both passes, and the error that these may have.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "mlp/mlp_reference.h"
#include "reference.h"
#include "test_tensor.h"
#include "transformer_kernels/mlp/mlp.h"

namespace transformer_kernels::testing {

struct MlpOptions {
  MlpSizes sizes{33, 40, 144, 24};
  Pointwise activation = Pointwise::kGelu;
  bool gated = false;
  bool biases = true;
  bool down = true;
  bool by_columns = false;  // weights and their gradients
  bool packed = false;      // z and up, with their weights and biases, are halves of one tensor
  bool wide = false;        // biases and the gradients of parameters are float32
  Layout layout{};          // of matrices
};

inline std::string text_of(const MlpOptions& o) {
  const auto [rows, terms, hidden, cols] = o.sizes;
  return std::to_string(rows) + 'x' + std::to_string(terms) + 'x' + std::to_string(hidden) + 'x' +
         std::to_string(cols) + ' ' + name_of(o.activation) + (o.biases ? " + biases" : "") +
         (o.down ? "" : ", one layer") + (o.by_columns ? ", by columns" : "") +
         (o.packed ? ", packed" : "") + (o.wide ? ", wide" : "");
}

inline constexpr const char* kMlpGradients[] = {"dx",       "dweight",      "dup_weight", "dbias",
                                                "dup_bias", "ddown_weight", "ddown_bias"};

// Results are NaN before the first call and after clear(), gradients of parameters kBefore.
class MlpRun {
 public:
  static constexpr double kBefore = 0.5;

  MlpRun(Backend& backend, DType dtype, const MlpOptions& options)
      : backend_(backend),
        dtype_(dtype),
        o_(options) {
    const auto [rows, terms, hidden, cols] = o_.sizes;
    const std::int64_t both = o_.packed ? 2 * hidden : hidden;
    const bool has_up = o_.gated && !o_.packed;
    const std::int64_t last = o_.down ? cols : hidden;
    give("x", {rows, terms}, 1);
    give("dy", {rows, last}, 1);
    parameter("weight", {both, terms}, terms);
    if (has_up) parameter("up_weight", {hidden, terms}, terms);
    if (o_.down) parameter("down_weight", {cols, hidden}, hidden);
    if (o_.biases) {
      parameter("bias", {1, both}, 1);
      if (has_up) parameter("up_bias", {1, hidden}, 1);
      if (o_.down) parameter("down_bias", {1, cols}, 1);
    }
    make("z", {rows, both});
    if (has_up) make("up", {rows, hidden});
    if (o_.down) make("h", {rows, hidden});
    make("y", {rows, last});
    make("dx", {rows, terms});
    if (o_.packed) split_operands();
  }

  // A call must not look right by what an earlier one wrote. Views of results end here.
  void clear() {
    for (const auto& [name, m] : std::map(shapes_)) {
      if (given_.contains(name)) continue;
      const bool is_of_parameter = name != "dx" && name.starts_with("d");
      tensors_.erase(name);
      put(name, m, dtypes_.at(name), Values(m.rows * m.cols, is_of_parameter ? kBefore : kNan));
    }
  }

  // Level 0 keeps z and h, level 1 z, and level 2 neither.
  MlpForward forward_arguments(int level) {
    return {.x = view("x"),
            .weight = view("weight"),
            .up_weight = view("up_weight"),
            .bias = view("bias"),
            .up_bias = view("up_bias"),
            .down_weight = view("down_weight"),
            .down_bias = view("down_bias"),
            .activation = o_.activation,
            .z = level < 2 ? view("z") : TensorView{},
            .up = level < 2 ? view("up") : TensorView{},
            .h = level == 0 ? view("h") : TensorView{},
            .y = view("y")};
  }
  MlpBackward backward_arguments(int level) {
    const MlpForward f = forward_arguments(level);
    return {.dy = view("dy"),
            .x = f.x,
            .weight = f.weight,
            .up_weight = f.up_weight,
            .bias = f.bias,
            .up_bias = f.up_bias,
            .down_weight = f.down_weight,
            .activation = o_.activation,
            .z = f.z,
            .up = f.up,
            .h = f.h,
            .dx = view("dx"),
            .dweight = view("dweight"),
            .dup_weight = view("dup_weight"),
            .dbias = view("dbias"),
            .dup_bias = view("dup_bias"),
            .ddown_weight = view("ddown_weight"),
            .ddown_bias = view("ddown_bias")};
  }
  void forward(int level) { forward(backend_.context(), forward_arguments(level)); }
  void forward(const Context& context, const MlpForward& arguments) {
    (o_.gated ? gated_mlp_forward : mlp_forward)(context, arguments);
  }
  void backward(const MlpBackward& arguments) { backward(backend_.context(), arguments); }
  void backward(const Context& context, const MlpBackward& arguments) {
    (o_.gated ? gated_mlp_backward : mlp_backward)(context, arguments);
  }

  // The tensor of this name, or the half of one; undefined where there is none.
  TensorView view(const std::string& name) {
    const auto found = tensors_.find(memory_of(name));
    if (found == tensors_.end()) return {};
    TensorView view = is_vector(name) ? found->second.vector() : found->second.view();
    if (is_by_columns(name)) view = transposed(view);
    if (!is_half(name)) return view;
    const int dimension = memory_of(name) == "z" ? 1 : 0;
    view.sizes[dimension] /= 2;
    if (is_up(name)) {
      view.data = static_cast<char*>(view.data) +
                  view.sizes[dimension] * view.strides[dimension] * size_of(view.dtype);
    }
    return view;
  }

  // The values of that tensor, by rows.
  Values values(const std::string& name) {
    const std::string memory = memory_of(name);
    const auto [rows, cols] = shapes_.at(memory);
    Values found = tensors_.at(memory).values();
    if (is_by_columns(name)) found = turned(found, {cols, rows});
    if (!is_half(name)) return found;
    Values half;
    for (std::int64_t i = 0; i < std::ssize(found); ++i) {
      const std::int64_t at = memory == "z" ? i % cols : i;
      const std::int64_t middle = memory == "z" ? cols / 2 : rows * cols / 2;
      if ((at >= middle) == is_up(name)) half.push_back(found[i]);
    }
    return half;
  }

  const Named& given() const { return given_; }
  const MlpOptions& options() const { return o_; }
  DType dtype() const { return dtype_; }
  DType dtype_of(const std::string& name) const { return dtypes_.at(memory_of(name)); }
  bool surroundings_intact() {
    return std::ranges::all_of(tensors_, [](auto& t) { return t.second.surroundings_intact(); });
  }

 private:
  static bool is_vector(const std::string& name) { return name.ends_with("bias"); }
  static bool is_up(const std::string& name) {
    return name.starts_with("up") || name.starts_with("dup");
  }
  bool is_by_columns(const std::string& name) const {
    return o_.by_columns && name.ends_with("weight");
  }
  // The tensor in which this one lies: "dup_weight" in "dweight", "up" in "z".
  std::string memory_of(const std::string& name) const {
    if (!o_.packed || !is_up(name)) return name;
    if (name == "up") return "z";
    const auto at = name.find("up_");
    return name.substr(0, at) + name.substr(at + 3);
  }
  bool is_half(const std::string& name) const {
    const std::string memory = memory_of(name);
    return o_.packed && (memory == "z" || memory == "weight" || memory == "dweight" ||
                         memory == "bias" || memory == "dbias");
  }
  static Values turned(const Values& values, Matrix m) {
    Values out(values.size());
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) out[c * m.rows + r] = values[r * m.cols + c];
    }
    return out;
  }

  void put(const std::string& name, Matrix m, DType dtype, const Values& values) {
    shapes_.insert_or_assign(name, m);
    dtypes_.insert_or_assign(name, dtype);
    const bool turns = is_by_columns(name);
    tensors_.try_emplace(name, backend_, dtype, turns ? m.cols : m.rows, turns ? m.rows : m.cols,
                         turns ? turned(values, m) : values,
                         is_vector(name) ? Layout{} : o_.layout);
  }
  DType wide() const { return o_.wide && dtype_ != DType::kFloat64 ? DType::kFloat32 : dtype_; }
  void give(const std::string& name, Matrix m, std::int64_t terms) {
    const double scale = 1 / std::sqrt(std::max<double>(1, static_cast<double>(terms)));
    const DType dtype = is_vector(name) ? wide() : dtype_;
    given_[name] = random_normal(m.rows * m.cols, dtype, 0, scale);
    put(name, m, dtype, given_[name]);
  }
  void parameter(const std::string& name, Matrix m, std::int64_t terms) {
    give(name, m, terms);
    put("d" + name, m, wide(), Values(m.rows * m.cols, kBefore));
  }
  void make(const std::string& name, Matrix m) {
    put(name, m, dtype_, Values(m.rows * m.cols, kNan));
  }
  void split_operands() {
    for (const std::string name : {"weight", "bias"}) {
      const auto found = given_.find(name);
      if (found == given_.end()) continue;
      const auto middle = found->second.begin() + std::ssize(found->second) / 2;
      given_["up_" + name] = Values(middle, found->second.end());
      found->second.erase(middle, found->second.end());
    }
  }

  Backend& backend_;
  DType dtype_;
  MlpOptions o_;
  Named given_;
  std::map<std::string, Matrix> shapes_;
  std::map<std::string, DType> dtypes_;
  std::map<std::string, TestTensor> tensors_;
};

inline double largest(const Values& values) {
  double most = 0;
  for (double value : values) most = std::max(most, std::abs(value));
  return most;
}
// NaN where there is one.
inline double largest_difference(const Values& a, const Values& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= most)) most = difference;
  }
  return most;
}

// The results that a run should give. An error is at most twice that of the formula with every
// intermediate rounded to the dtype, besides those of sums that are kept wide, one rounding of the
// largest result, as the largest of a few errors is a matter of luck, and for dx one more rounding
// of each part but the first.
class MlpExpected {
 public:
  explicit MlpExpected(const MlpRun& run)
      : exact_(reference(run, DType::kFloat64)),
        rounded_(reference(run, run.dtype())) {}

  void check_dx(MlpRun& run, std::int64_t parts) const {
    const auto roundings = static_cast<double>(std::max<std::int64_t>(parts, 1) - 1);
    check(run, "dx", 0, roundings * unit_roundoff(run.dtype()));
  }
  void check_gradients(MlpRun& run, std::int64_t parts, double before = 0) const {
    check_dx(run, parts);
    for (const char* name : kMlpGradients) {
      if (name != std::string("dx") && run.view(name).defined()) check(run, name, before);
    }
  }
  // `before` is what the result was added to.
  void check(MlpRun& run, const std::string& name, double before = 0, double more = 0) const {
    const bool is_double = run.dtype() == DType::kFloat64;
    const double wide = unit_roundoff(is_double ? DType::kFloat64 : DType::kFloat32);
    const double tiny = run.dtype() == DType::kFloat16 ? 0x1p-24 : 0;
    Values exact = exact_[name];
    Values near = rounded_[name];
    for (double& value : exact) value += before;
    for (double& value : near) value = rounded_to(run.dtype_of(name), value + before);
    const Values found = run.values(name);
    ASSERT_EQ(found.size(), exact.size()) << name;
    const double of_largest = unit_roundoff(run.dtype()) + 64 * wide + more;
    const double bound = 2 * largest_difference(near, exact) + of_largest * largest(exact) + tiny;
    const double error = largest_difference(found, exact);
    EXPECT_TRUE(error <= bound) << name << " is wrong by " << error << ", expected at most "
                                << bound;
  }

 private:
  static MlpReference reference(const MlpRun& run, DType dtype) {
    const MlpOptions& o = run.options();
    return {o.sizes, o.activation, o.gated, run.given(), dtype};
  }

  MlpReference exact_;
  MlpReference rounded_;
};

}  // namespace transformer_kernels::testing
