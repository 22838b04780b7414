// SPDX-License-Identifier: MIT
// Parameters and column sums. Compiled once per instruction set; see core/cpu/isa.h.
#include "core/cpu/columns.h"
#include "core/cpu/row_loop.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class T, class Element>
TFK_FLATTEN void widen_from(const Element* data, const Parameter& parameter, void* wide) {
  using A = accumulate_t<T>;
  const auto fill = vec_t<T>::of(static_cast<A>(parameter.fill));
  const auto offset = vec_t<T>::of(static_cast<A>(parameter.offset));
  for_each_vector<T>(parameter.cols, [&](std::int64_t i, int, auto lanes) {
    const auto value = data == nullptr ? fill : load_as<T>(data + i, lanes);
    store_wide<T>(static_cast<A*>(wide) + i, value + offset, lanes);
  });
}

template <class T>
void widen(const Parameter& parameter, void* wide) {
  if (parameter.is_wide) {
    widen_from<T>(static_cast<const accumulate_t<T>*>(parameter.data), parameter, wide);
  } else {
    widen_from<T>(static_cast<const T*>(parameter.data), parameter, wide);
  }
}

template <class T, class Total>
TFK_FLATTEN void add_chunks_to(Total* totals, const ColumnSum& sum, std::int64_t begin,
                               std::int64_t end) {
  const auto* const partials = static_cast<const accumulate_t<T>*>(sum.partials);
  for_each_vector<T>(end - begin, [&](std::int64_t at, int, auto lanes) {
    const std::int64_t i = begin + at;
    auto total = vec_t<T>::of(0);
    for (std::int64_t chunk = 0; chunk < sum.chunks; ++chunk) {
      total = total + load_wide<T>(partials + chunk * sum.stride + i, lanes);
    }
    if (sum.accumulates) total = load_as<T>(totals + i, lanes) + total;
    store(totals + i, total, lanes);
  });
}

template <class T>
void add_chunks(const ColumnSum& sum, std::int64_t begin, std::int64_t end) {
  if (sum.is_wide) {
    add_chunks_to<T>(static_cast<accumulate_t<T>*>(sum.total), sum, begin, end);
  } else {
    add_chunks_to<T>(static_cast<T*>(sum.total), sum, begin, end);
  }
}

}  // namespace

const ColumnKernels column_kernels = {
    {widen<double>, widen<float>, widen<Half>, widen<BFloat16>},
    {add_chunks<double>, add_chunks<float>, add_chunks<Half>, add_chunks<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
