// SPDX-License-Identifier: MIT
// Layers of groups of rows on the CPU: each group is a layer. Small groups run side by side, one on
// a thread, and large ones one after the other, on all of them.
#include "linear/cpu/grouped.h"

#include <cstring>
#include <vector>

#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "linear/gated_problem.h"
#include "linear/grouped_problem.h"
#include "transformer_kernels/index_error.h"

namespace transformer_kernels::cpu {
namespace {

const GroupedKernels& kernels() {
  constexpr const GroupedKernels* kTables[] = TFK_PER_ISA(grouped_kernels);
  return *kTables[static_cast<int>(isa())];
}

// Rows of one group.
struct GroupRows {
  std::int64_t group;
  std::int64_t first;
  std::int64_t count;
};

void run_alone(void*, std::int64_t count, std::int64_t, RangeBody body, void* argument) {
  body(argument, 0, count);
}

// Calls body(context, rows) for every group; `work` is that of a row, in multiplications.
template <class Body>
void for_each_group(const Context& context, const RowGroups& groups, std::int64_t work,
                    Body&& body) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 26;  // a millisecond of a core
  constexpr std::size_t kMany = 16;
  std::vector<GroupRows> small;
  std::vector<GroupRows> large;
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const GroupRows rows{g, groups.offsets[g], groups.offsets[g + 1] - groups.offsets[g]};
    (rows.count * work >= kLarge ? large : small).push_back(rows);
  }
  if (small.size() < kMany) {
    large.insert(large.end(), small.begin(), small.end());
    small.clear();
  }
  for (const GroupRows& rows : large) body(context, rows);
  // A context's workspace need not be thread-safe.
  Context alone{.device = context.device};
  alone.parallel_for.run = run_alone;
  parallel_for(context, static_cast<std::int64_t>(small.size()), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) body(alone, small[i]);
               });
}

void* at(const void* data, std::int64_t elements, DType dtype) {
  if (data == nullptr) return nullptr;
  return static_cast<std::byte*>(const_cast<void*>(data)) + elements * size_of(dtype);
}
Rows rows_at(const Rows& rows, std::int64_t first, DType dtype) {
  return {at(rows.data, first * rows.stride, dtype), rows.stride};
}

void scale(const Rows& rows, const GroupRows& own, std::int64_t cols, DType dtype,
           const void* factors) {
  if (factors == nullptr || rows.data == nullptr) return;
  kernels().scale[static_cast<int>(dtype)](
      {rows, own.count, cols, at(factors, own.first, accumulate_dtype(dtype))});
}

// A group's rows: where they lie, or a copy of those that an index names or a factor scales.
class OwnRows {
 public:
  OwnRows(const Context& context, const IndexedRows& all, const GroupRows& own, std::int64_t cols,
          DType dtype, const void* factors = nullptr)
      : copies_(all.index != nullptr || factors != nullptr),
        memory_(context, copies_ ? own.count * cols * size_of(dtype) : 0),
        rows_(copies_ ? Rows{memory_.data(), cols} : rows_at(all.rows, own.first, dtype)) {
    if (!copies_ || cols == 0) return;
    const std::size_t bytes = cols * size_of(dtype);
    parallel_for(
        context, own.count, rows_per_range(cols), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t row = all.index ? all.index[own.first + i] : own.first + i;
            std::memcpy(rows_at(rows_, i, dtype).data, rows_at(all.rows, row, dtype).data, bytes);
          }
        });
    scale(rows_, own, cols, dtype, factors);
  }

  const Rows& get() const { return rows_; }

 private:
  bool copies_;
  AlignedScratch memory_;
  Rows rows_;
};

void check_index(const char* op, const char* name, const char* of, const RowGroups& groups,
                 const IndexedRows& rows) {
  if (rows.index == nullptr) return;
  for (std::int64_t i = 0; i < groups.offsets[groups.count]; ++i) {
    const std::int64_t index = rows.index[i];
    if (index >= 0 && index < rows.count) [[likely]]
      continue;
    throw IndexError(concat(op, ": ", name, " holds ", index, ", expected a row of ", of,
                            ", which has ", rows.count));
  }
}

// The layer of a group, into `to`.
void run_layer(const Context& context, const GroupedProduct& p, const GroupRows& own, const Rows& x,
               const Rows& to) {
  linear_forward(context, {.dtype = p.dtype,
                           .bias_dtype = p.bias_dtype,
                           .rows = own.count,
                           .terms = p.terms,
                           .cols = p.cols,
                           .activation = {},
                           .x = x,
                           .weight = p.b.of(own.group, p.dtype).transposed(),
                           .bias = at(p.bias, own.group * p.cols, p.bias_dtype),
                           .z = {},
                           .y = to});
}

}  // namespace

void check_numbers(const Context&, const GroupedProduct& p) {
  check_index(p.op, "x_rows", "x", p.groups, p.a);
}
void check_numbers(const Context&, const GroupedBackwardProblem& p) {
  check_index(p.dx.op, "dy_rows", "dy", p.dx.groups, p.dx.a);
  check_index(p.dx.op, "x_rows", "x", p.dx.groups, p.dweight.b);
}
void check_numbers(const Context&, const GroupedGatedProblem& p) {
  check_index(p.gate.op, "x_rows", "x", p.gate.groups, p.gate.a);
}
void check_numbers(const Context&, const GroupedDgatedProblem& p) {
  check_index(p.product.op, "dy_rows", "dy", p.product.groups, p.product.a);
}

void grouped_linear_forward(const Context& context, const GroupedProduct& p) {
  log_cpu_kernel(p.op, p);
  for_each_group(context, p.groups, p.terms * p.cols,
                 [&](const Context& own_context, const GroupRows& own) {
                   if (own.count == 0) return;
                   const OwnRows x(own_context, p.a, own, p.terms, p.dtype);
                   const Rows y = rows_at(p.out, own.first, p.dtype);
                   run_layer(own_context, p, own, x.get(), y);
                   scale(y, own, p.cols, p.dtype, p.factors);
                 });
}

void grouped_linear_backward(const Context& context, const GroupedBackwardProblem& p) {
  const GroupedGradient& w = p.dweight;
  log_cpu_kernel(p.dx.op, p);
  const std::int64_t terms = std::max(p.dx.cols, w.cols);
  for_each_group(
      context, p.dx.groups, w.rows * terms, [&](const Context& own_context, const GroupRows& own) {
        const OwnRows dz(own_context, p.dx.a, own, w.rows, p.dx.dtype, p.dx.factors);
        const OwnRows x(own_context, w.b, own, w.cols, w.dtype);
        linear_backward(own_context,
                        {.dtype = w.dtype,
                         .bias_dtype = p.dbias.bias_dtype,
                         .dweight_dtype = w.out_dtype,
                         .rows = own.count,
                         .terms = terms,
                         .cols = w.rows,
                         .activation = {},
                         .dy = dz.get(),
                         .x = x.get(),
                         .weight = p.dx.b.of(own.group, w.dtype),
                         .z = {},
                         .dx = rows_at(p.dx.out, own.first, w.dtype),
                         .dweight = w.out.of(own.group, w.out_dtype),
                         .dbias = at(p.dbias.dbias, own.group * w.rows, p.dbias.bias_dtype),
                         .accumulates_dx = p.dx.accumulates,
                         .accumulates_dweight = w.accumulates,
                         .accumulates_dbias = p.dbias.accumulates});
      });
}

void grouped_gated_linear_forward(const Context& context, const GroupedGatedProblem& p) {
  const GroupedProduct& g = p.gate;
  log_cpu_kernel(g.op, p);
  for_each_group(context, g.groups, 2 * g.terms * g.cols,
                 [&](const Context& own_context, const GroupRows& own) {
                   if (own.count == 0) return;
                   const std::int64_t kept_bytes =
                       p.keeps() ? 0 : own.count * g.cols * size_of(g.dtype);
                   const AlignedScratch gate_memory(own_context, kept_bytes);
                   const AlignedScratch up_memory(own_context, kept_bytes);
                   const OwnRows x(own_context, g.a, own, g.terms, g.dtype);
                   const Rows gate = p.keeps() ? rows_at(g.out, own.first, g.dtype)
                                               : Rows{gate_memory.data(), g.cols};
                   const Rows up = p.keeps() ? rows_at(p.up.out, own.first, g.dtype)
                                             : Rows{up_memory.data(), g.cols};
                   run_layer(own_context, g, own, x.get(), gate);
                   run_layer(own_context, p.up, own, x.get(), up);
                   pointwise_forward(own_context, {.op = p.activation,
                                                   .dtype = g.dtype,
                                                   .bias_dtype = g.dtype,
                                                   .rows = own.count,
                                                   .cols = g.cols,
                                                   .x = gate,
                                                   .up = up,
                                                   .y = rows_at(p.out, own.first, g.dtype),
                                                   .bias = nullptr,
                                                   .up_bias = nullptr});
                 });
}

void grouped_linear_dgated(const Context& context, const GroupedDgatedProblem& p) {
  const GroupedProduct& product = p.product;
  const DType dtype = product.dtype;
  const std::int64_t cols = product.cols;
  log_cpu_kernel(product.op, p);
  for_each_group(
      context, product.groups, product.terms * cols,
      [&](const Context& own_context, const GroupRows& own) {
        if (own.count == 0) return;
        const std::int64_t bytes = own.count * cols * size_of(dtype);
        const bool has_h = p.h.data != nullptr;
        const AlignedScratch da_memory(own_context, bytes);
        const AlignedScratch h_memory(own_context, p.dfactors != nullptr && !has_h ? bytes : 0);
        const OwnRows dy(own_context, product.a, own, product.terms, dtype);
        const Rows da{da_memory.data(), cols};
        const Rows dgate = rows_at(p.dgate, own.first, dtype);
        const Rows dup = rows_at(p.dup, own.first, dtype);
        const Rows h = has_h ? rows_at(p.h, own.first, dtype)
                             : Rows{p.dfactors != nullptr ? h_memory.data() : nullptr, cols};
        run_layer(own_context, product, own, dy.get(), da);
        pointwise_backward(own_context, {.op = p.activation,
                                         .dtype = dtype,
                                         .bias_dtype = dtype,
                                         .rows = own.count,
                                         .cols = cols,
                                         .dy = da,
                                         .x = rows_at(p.gate, own.first, dtype),
                                         .up = rows_at(p.up, own.first, dtype),
                                         .dx = dgate,
                                         .dup = dup,
                                         .y = h,
                                         .bias = nullptr,
                                         .up_bias = nullptr,
                                         .dbias = nullptr,
                                         .dup_bias = nullptr});
        if (p.dfactors != nullptr) {
          kernels().dot[static_cast<int>(dtype)](
              {da, h, own.count, cols, at(p.dfactors, own.first, accumulate_dtype(dtype))});
        }
        for (const Rows& each : {dgate, dup, h}) scale(each, own, cols, dtype, p.factors);
      });
}

}  // namespace transformer_kernels::cpu
