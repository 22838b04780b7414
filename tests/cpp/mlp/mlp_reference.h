// SPDX-License-Identifier: MIT
// Both passes of an MLP by their formulas, with every intermediate rounded to a dtype, or exactly.
#pragma once

#include <map>
#include <string>

#include "linear/product_reference.h"
#include "numbers.h"
#include "pointwise/pointwise_reference.h"

namespace transformer_kernels::testing {

struct MlpSizes {
  std::int64_t rows, terms, hidden, cols;
};

// Operands and results by the names of the arguments. A bias that is absent has no entry.
using Named = std::map<std::string, Values>;

class MlpReference {
 public:
  MlpReference(const MlpSizes& sizes, Pointwise activation, bool gated, const Named& given,
               DType dtype)
      : s_(sizes),
        activation_(activation),
        gated_(gated),
        has_down_(given.count("down_weight") != 0),
        given_(given),
        dtype_(dtype) {
    forward();
    backward();
  }

  const Values& operator[](const std::string& name) const { return out_.at(name); }

 private:
  Values rounded(Values values) const {
    for (double& value : values) value = rounded_to(dtype_, value);
    return values;
  }
  double bias(const char* name, std::size_t element) const {
    const auto found = given_.find(name);
    return found == given_.end() ? 0 : found->second[element % found->second.size()];
  }

  // rows x cols from rows x terms, and a weight of cols x terms.
  Values layer(const Values& x, std::int64_t terms, std::int64_t cols, const char* weight,
               const char* added) const {
    const auto found = given_.find(added);
    return rounded(product(s_.rows, cols, terms, x, {terms, 1}, given_.at(weight), {terms, 1},
                           found == given_.end() ? Values{} : found->second)
                       .sum);
  }
  // The gradients of that layer.
  Values dlayer(const Values& dy, std::int64_t terms, std::int64_t cols, const char* weight) const {
    return rounded(product(s_.rows, terms, cols, dy, {cols, 1}, given_.at(weight), {1, terms}).sum);
  }
  Values dweight(const Values& dy, const Values& x, std::int64_t terms, std::int64_t cols) const {
    return rounded(product(cols, terms, s_.rows, dy, {1, cols}, x, {1, terms}).sum);
  }
  Values dbias(const Values& dy, std::int64_t cols) const {
    return rounded(product(1, cols, s_.rows, Values(s_.rows, 1), {0, 1}, dy, {1, cols}).sum);
  }

  Dual activated(std::size_t i) const {
    const double b = gated_ ? bias("bias", i) : 0;
    return activation(activation_, {static_cast<long double>(out_.at("z")[i]) + b, 1});
  }
  long double factor(std::size_t i) const {
    return gated_ ? static_cast<long double>(out_.at("up")[i]) + bias("up_bias", i) : 1;
  }

  void forward() {
    const Values& x = given_.at("x");
    out_["z"] = layer(x, s_.terms, s_.hidden, "weight", gated_ ? "" : "bias");
    if (gated_) out_["up"] = layer(x, s_.terms, s_.hidden, "up_weight", "");
    Values h(s_.rows * s_.hidden);
    for (std::size_t i = 0; i < h.size(); ++i) {
      h[i] = static_cast<double>(activated(i).value * factor(i));
    }
    out_["h"] = rounded(h);
    out_["y"] =
        has_down_ ? layer(out_["h"], s_.hidden, s_.cols, "down_weight", "down_bias") : out_["h"];
  }

  void backward() {
    const Values& dy = given_.at("dy");
    const Values dh = has_down_ ? dlayer(dy, s_.hidden, s_.cols, "down_weight") : dy;
    Values dz(dh.size()), dup(dh.size());
    for (std::size_t i = 0; i < dh.size(); ++i) {
      const Dual f = activated(i);
      dz[i] = rounded_to(dtype_, static_cast<double>(dh[i] * f.slope * factor(i)));
      dup[i] = rounded_to(dtype_, static_cast<double>(dh[i] * f.value));
    }
    Values dx = dlayer(dz, s_.terms, s_.hidden, "weight");
    out_["dweight"] = dweight(dz, given_.at("x"), s_.terms, s_.hidden);
    out_["dbias"] = dbias(dz, s_.hidden);
    if (gated_) {
      const Values of_up = dlayer(dup, s_.terms, s_.hidden, "up_weight");
      for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += of_up[i];
      out_["dup_weight"] = dweight(dup, given_.at("x"), s_.terms, s_.hidden);
      out_["dup_bias"] = dbias(dup, s_.hidden);
    }
    out_["dx"] = rounded(dx);
    if (!has_down_) return;
    out_["ddown_weight"] = dweight(dy, out_["h"], s_.hidden, s_.cols);
    out_["ddown_bias"] = dbias(dy, s_.cols);
  }

  MlpSizes s_;
  Pointwise activation_;
  bool gated_;
  bool has_down_;
  const Named& given_;
  DType dtype_;
  Named out_;
};

}  // namespace transformer_kernels::testing
