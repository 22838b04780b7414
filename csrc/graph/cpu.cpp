// SPDX-License-Identifier: MIT
// The CPU engine: ranges of segments, or of edges, each of which belongs to one thread.
#include <algorithm>
#include <vector>

#include "core/cpu/parallel.h"
#include "core/cpu/partition.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "graph/kernels_isa.h"
#include "transformer_kernels/index_error.h"

namespace transformer_kernels::cpu {
namespace {

constexpr std::int64_t kCheckGrain = 64 * 1024;

const GraphKernels& kernels() {
  constexpr const GraphKernels* kTables[] = TFK_PER_ISA(graph_kernels);
  return *kTables[static_cast<int>(isa())];
}
const SegmentSoftmaxKernels& softmax_kernels() {
  constexpr const SegmentSoftmaxKernels* kTables[] = TFK_PER_ISA(segment_softmax_kernels);
  return *kTables[static_cast<int>(isa())];
}

// ---------------------------------------------------------------------------- checks

// They begin with 0, never fall and end with the number of edges.
void check_offsets(const Context& context, const char* op, const char* name,
                   const GraphIndices& offsets, std::int64_t count, std::int64_t edges) {
  check_value(offsets[0] == 0, op, ": ", name, " begins with ", offsets[0], ", expected 0");
  parallel_for(context, count, kCheckGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t here = offsets[i];
      const std::int64_t next = offsets[i + 1];
      if (here <= next) [[likely]]
        continue;
      check_value(false, op, ": ", name, " falls from ", here, " to ", next, " behind segment ", i,
                  ", expected no segment of fewer than 0 edges");
    }
  });
  check_value(offsets[count] == edges, op, ": ", name, " ends with ", offsets[count], ", expected ",
              edges, " (the number of edges)");
}

void check_range(const Context& context, const char* op, const char* name,
                 const GraphIndices& indices, std::int64_t count, std::int64_t limit,
                 const char* what) {
  if (!indices.present) return;
  parallel_for(context, count, kCheckGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t index = indices[i];
      if (index >= 0 && index < limit) [[likely]]
        continue;
      throw IndexError(
          concat(op, ": ", name, " holds ", index, ", expected one of ", limit, " ", what));
    }
  });
}

void check_segments(const Context& context, const char* op, const Segments& s) {
  check_offsets(context, op, s.back ? "back_offsets" : "offsets", s.offsets, s.count, s.edges);
  check_range(context, op, s.back ? "back_indices" : "indices", s.indices, s.edges, s.across_rows,
              s.back ? "segments" : "rows");
  check_range(context, op, s.back ? "back_order" : "order", s.order, s.edges, s.edges, "edges");
}

// ---------------------------------------------------------------------------- ranges

// body(begin, end) over segments.
template <class Body>
void for_segments(const Context& context, const Segments& segments, std::int64_t cols,
                  Body&& body) {
  const RowUnits units{segments.count, [&](std::int64_t i) { return segments.offsets[i]; }};
  parallel_for(
      context, units.count(), rows_per_range(cols),
      [&](std::int64_t begin, std::int64_t end) { body(units.row_at(begin), units.row_at(end)); });
}

// The segment of a place: the last that begins there or before.
std::int64_t segment_of(const Segments& segments, std::int64_t place) {
  return first_not(segments.count, [&](std::int64_t i) { return segments.offsets[i] <= place; }) -
         1;
}

std::vector<EdgePiece> cut_long_segments(const Segments& segments) {
  std::vector<EdgePiece> pieces;
  for (std::int64_t i = 0; i < segments.count; ++i) {
    const std::int64_t begin = segments.offsets[i];
    const std::int64_t end = segments.offsets[i + 1];
    if (end - begin <= kPieceEdges) continue;
    for (std::int64_t k = begin; k < end; k += kPieceEdges) pieces.push_back({i, k});
  }
  return pieces;
}

}  // namespace

void check_numbers(const Context& context, const ReduceProblem& p) {
  check_segments(context, p.op, p.segments);
  if (p.degrees.present) {
    check_offsets(context, p.op, "offsets", p.degrees, p.segments.across_rows, p.segments.edges);
  }
}

void check_numbers(const Context& context, const EdgeProblem& p) {
  check_segments(context, p.op, p.segments);
}

void check_numbers(const Context& context, const SegmentSoftmaxProblem& p) {
  check_segments(context, p.op, p.segments);
}

void reduce_segments(const Context& context, const ReduceProblem& p) {
  log_cpu_kernel(p.op, p);
  const auto dtype = static_cast<int>(p.dtype);
  ReduceTask task{.problem = p,
                  .pieces = nullptr,
                  .piece_count = 0,
                  .sums = nullptr,
                  .wide_cols = wide_cols(p.cols)};
  if (p.largest) {
    return for_segments(context, p.segments, p.cols, [&](std::int64_t begin, std::int64_t end) {
      kernels().largest[dtype](task, begin, end);
    });
  }
  const std::vector<EdgePiece> pieces = cut_long_segments(p.segments);
  const auto count = static_cast<std::int64_t>(pieces.size());
  const Scratch sums(context, count * task.wide_cols * size_of(accumulate_dtype(p.dtype)));
  task.pieces = pieces.data();
  task.piece_count = count;
  task.sums = sums.data();
  parallel_for(
      context, count, rows_per_range(p.cols * kPieceEdges),
      [&](std::int64_t begin, std::int64_t end) { kernels().sum_pieces[dtype](task, begin, end); });
  for_segments(context, p.segments, p.cols, [&](std::int64_t begin, std::int64_t end) {
    kernels().sum[dtype](task, begin, end);
  });
}

void run_edges(const Context& context, const EdgeProblem& p) {
  log_cpu_kernel(p.op, p);
  const auto dtype = static_cast<int>(p.dtype);
  const auto run = p.spread ? kernels().spread[dtype] : kernels().products[dtype];
  parallel_for(context, p.segments.edges, rows_per_range(p.cols),
               [&](std::int64_t begin, std::int64_t end) {
                 run(p, segment_of(p.segments, begin), begin, end);
               });
}

void segment_softmax(const Context& context, const SegmentSoftmaxProblem& p) {
  log_cpu_kernel(p.op, p);
  const std::int64_t place_bytes = 2 * softmax_width(p.cols) * size_of(accumulate_dtype(p.dtype));
  for_segments(context, p.segments, p.cols, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t longest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      longest = std::max(longest, p.segments.offsets[i + 1] - p.segments.offsets[i]);
    }
    RowScratch scratch(longest * place_bytes);
    softmax_kernels().run[static_cast<int>(p.dtype)](p, scratch.data(), longest, begin, end);
  });
}

}  // namespace transformer_kernels::cpu
