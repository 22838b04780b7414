// SPDX-License-Identifier: MIT
// The numbers in messages. This unit needs nothing else of the library, and so programs that are
// built around a single part of it, such as the tests of the FPGA array, take it along.
#include <charconv>

#include "core/check.h"

namespace transformer_kernels {
namespace {

// As many characters as any of the numbers has.
constexpr std::size_t kLongestNumber = 32;

template <class... Format>
void append_chars(std::string& text, Format... number_and_format) {
  char digits[kLongestNumber];
  const auto written = std::to_chars(digits, digits + kLongestNumber, number_and_format...);
  text.append(digits, written.ptr);
}

}  // namespace

void append_number(std::string& text, std::int64_t number) { append_chars(text, number); }
void append_number(std::string& text, std::uint64_t number) { append_chars(text, number); }
void append_number(std::string& text, double number) {
  append_chars(text, number, std::chars_format::general, 6);
}

}  // namespace transformer_kernels
