// SPDX-License-Identifier: MIT
// libFuzzer's target; GPT2_FUZZ_FORMAT is one of parse.h.
#include <cstddef>
#include <cstdint>

#include "parse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gpt2::parse(GPT2_FUZZ_FORMAT, {reinterpret_cast<const char*>(data), size});
  return 0;
}
