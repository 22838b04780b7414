// SPDX-License-Identifier: MIT
// The lines that codes of 8 bits lie on, as all backends compute them.
//
// A block of kStateBlock numbers has a scale. The value of code c with leading bit d of kBits bits
// is scale * 10^(d - kBits) * (1 + 9 (c / 2^d - 1)), and that of code 0 is 0: one line from each
// power of ten to the next, on which codes lie evenly. A code of a signed number has 7 bits and is
// negated as a whole. Each line is steeper than the one before, so that of all lines at a code the
// highest counts, and of all inverse lines at a value the lowest.
#pragma once

namespace transformer_kernels {

struct CodeLine {
  float slope, start;
};

template <int kBits>
struct CodeLines {
  static constexpr float kLargest = (1 << kBits) - 1;

  static constexpr float power_of_ten(int digit) {
    constexpr float kPowers[] = {1e-8f, 1e-7f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f};
    return kPowers[8 - kBits + digit];
  }

  // The value of the largest code where the scale is 1.
  static constexpr float largest_value() {
    return power_of_ten(kBits - 1) * (9 * kLargest / (1 << (kBits - 1)) - 8);
  }

  // The value of codes with a leading bit, where the scale is 1. Below the first is code 0, whose
  // line is power_of_ten(0) * code.
  static constexpr CodeLine value(int digit) {
    return {9 * power_of_ten(digit) / (1 << digit), -8 * power_of_ten(digit)};
  }

  // The place of values, 0 or more, among those of the codes 0, 1, ...; below the first line is
  // value / power_of_ten(0).
  static constexpr CodeLine place(int digit) {
    const float first = 1 << digit;
    return {first / (9 * power_of_ten(digit)), first * 8 / 9};
  }
};

}  // namespace transformer_kernels
