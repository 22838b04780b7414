// SPDX-License-Identifier: MIT
// Graphs on the CPU: the exports of the sources that are compiled once per instruction set.
#pragma once

#include "core/cpu/isa.h"
#include "graph/problem.h"

namespace transformer_kernels::cpu {

// Up to this many edges are summed in one go. More are cut into pieces of so many, whose sums are
// added in turn: threads share a segment, and rounding errors grow slower.
inline constexpr std::int64_t kPieceEdges = 1024;

struct EdgePiece {
  std::int64_t segment;
  std::int64_t begin;  // among the places
};

struct ReduceTask {
  const ReduceProblem& problem;
  const EdgePiece* pieces;  // in the order of segments
  std::int64_t piece_count;
  void* sums;  // [piece_count][wide_cols], of accumulate_dtype
  std::int64_t wide_cols;
};

struct GraphKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  // Pieces [begin, end) of a sum.
  void (*sum_pieces[kDTypes])(const ReduceTask& task, std::int64_t begin, std::int64_t end);
  // Segments [begin, end).
  void (*sum[kDTypes])(const ReduceTask& task, std::int64_t begin, std::int64_t end);
  void (*largest[kDTypes])(const ReduceTask& task, std::int64_t begin, std::int64_t end);
  // Places [begin, end), the first of which is of `segment`.
  void (*products[kDTypes])(const EdgeProblem& problem, std::int64_t segment, std::int64_t begin,
                            std::int64_t end);
  void (*spread[kDTypes])(const EdgeProblem& problem, std::int64_t segment, std::int64_t begin,
                          std::int64_t end);
};

struct SegmentSoftmaxKernels {
  static constexpr int kDTypes = 4;

  // Segments [begin, end). `scratch` has room for two of `softmax_width(cols)` numbers for each of
  // the places of the longest of them, of accumulate_dtype.
  void (*run[kDTypes])(const SegmentSoftmaxProblem& problem, void* scratch, std::int64_t longest,
                       std::int64_t begin, std::int64_t end);
};

// Columns are worked off in blocks that fill a vector of any set, or a power of two in it.
inline constexpr std::int64_t kMostSoftmaxLanes = 16;
constexpr std::int64_t softmax_width(std::int64_t cols) {
  std::int64_t width = 1;
  while (width < cols && width < kMostSoftmaxLanes) width *= 2;
  return width;
}

TFK_DECLARE_PER_ISA(extern const GraphKernels graph_kernels)
TFK_DECLARE_PER_ISA(extern const SegmentSoftmaxKernels segment_softmax_kernels)

}  // namespace transformer_kernels::cpu
