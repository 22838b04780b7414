// SPDX-License-Identifier: MIT
// Host declarations that the CUDA sources of optimizers share.
#pragma once

#include "optimizer/problem.h"
#include "optimizer/tables.h"

namespace transformer_kernels::cuda {

// Sums the squares of chunks of gradients; `sums` has room for each chunk of the table.
template <int kRows>
void run_sums(const char* op, const Context& context, const RowTable<SumRow, kRows>& table,
              std::int64_t chunks, double* sums);

// Counts the steps of a table's tensors and writes the numbers of each.
template <class A, int kRows>
void run_count(const char* op, const Context& context, const RowTable<CountRow, kRows>& table,
               const CountOptions& options, StepNumbers<A>* numbers);

// Updates a table's tensors.
template <class Rule, class A, int kRows>
void run_update(const char* op, const Context& context, const RowTable<UpdateRow, kRows>& table,
                std::int64_t chunks, const UpdateOptions& options, const StepNumbers<A>* numbers);

template <bool kHasTop>
struct AdamWRule;  // with the largest second moment so far, or without
struct LionRule;

}  // namespace transformer_kernels::cuda
