// SPDX-License-Identifier: MIT
#include "torch/metadata.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <map>

#include "core/check.h"
#include "torch/convert.h"
#include "transformer_kernels/api.h"

namespace transformer_kernels::torch_ops {
namespace {

std::map<std::string, Check>& checks() {
  static std::map<std::string, Check> table;
  return table;
}

}  // namespace

std::int64_t Metadata::next() {
  check_value(at_ < numbers_.size(), op_, ": the metadata ends early");
  return numbers_[at_++];
}

// Its rank, or -1; dtype, kind and number of the device, address or 0, sizes, strides.
TensorView Metadata::tensor(const char* name, bool copied) {
  const std::int64_t rank = next();
  if (rank < 0) return {};
  check_value(rank <= TensorView::kMaxRank, op_, ": ", name, " has ", rank,
              " dimensions, expected at most ", TensorView::kMaxRank);
  TensorView view;
  view.rank = static_cast<int>(rank);
  view.dtype = static_cast<DType>(next());
  view.device.type = static_cast<DeviceType>(next());
  view.device.index = static_cast<int>(next());
  void* const elsewhere = addresses_.next();
  const std::int64_t memory = next();
  view.data = memory != 0 ? std::bit_cast<void*>(memory) : elsewhere;
  for (int i = 0; i < view.rank; ++i) view.sizes[i] = next();
  for (int i = 0; i < view.rank; ++i) view.strides[i] = next();
  if (copied) view.strides = rows_like(view).strides;
  return view;
}

void add_check(const std::string& name, Check check) { checks()[name] = check; }

}  // namespace transformer_kernels::torch_ops

// Whether the raw op would take a call: 0, or 1 and why not in `text`, of `size` bytes; -1 where
// there is no such op. Nothing is computed.
extern "C" TFK_API int tfk_check(const char* name, const std::int64_t* numbers, std::size_t count,
                                 char* text, std::size_t size) {
  using namespace transformer_kernels::torch_ops;
  const auto found = checks().find(name);
  if (found == checks().end()) return -1;
  try {
    translate_errors([&] { found->second({numbers, count}); });
    return 0;
  } catch (const std::exception& error) {
    const std::string message = error.what();
    text[message.copy(text, size - 1)] = '\0';
    return 1;
  }
}
