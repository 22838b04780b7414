// SPDX-License-Identifier: MIT
#include "copy.h"

#include "core/cpu/row_loop.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class Store>
void copy(const float* from, float* to, std::int64_t count) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    Store::put(to + i, load(from + i, lanes), lanes);
  });
  stream_fence();
}

}  // namespace

const Copies copies = {copy<CachedStore>, copy<StreamingStore>};

}  // namespace transformer_kernels::cpu::TFK_ISA
