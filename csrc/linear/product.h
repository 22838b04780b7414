// SPDX-License-Identifier: MIT
// A product of matrices on CUDA, and what follows it: the job that the family's passes are made of.
#pragma once

#include <optional>
#include <string>

#include "core/dispatch.h"
#include "linear/linear_problem.h"
#include "linear/quantized_problem.h"

namespace transformer_kernels::cuda {

// sum = a b, a of rows x terms and b of terms x cols. Each of the operands and results has a step
// of 1 in one direction at least, but where an engine says otherwise.
//
//   out = sum + bias                               without an activation
//   out = f(z), kept = z, z = sum + bias           with one
//   out = sum f'(z), kept = f(z)                   with one, and z given
//
// z is rounded to dtype before f. With z given, dbias is the sum of the rows of out, as rounded.
struct Product {
  const char* op;
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t terms;
  Matrix a;
  Matrix b;
  Matrix out;
  Matrix kept{};               // may be null
  Matrix z{};                  // may be null
  const void* bias = nullptr;  // may be null
  DType bias_dtype{};          // of bias and of dbias
  std::optional<Pointwise> activation{};
  void* dbias = nullptr;                   // may be null; elements of a row of out are together
  std::int64_t algorithm = kAnyAlgorithm;  // of cuBLASLt, which is the engine then
};

std::string describe(const Product& p);

// A row of a table of engines (core/select.h); operands are the product, and what stands beside it.
template <class... Operands>
struct Engine {
  const char* name;
  const char* (*refusal)(const Context&, const Operands&...);
  void (*run)(const Context&, const Operands&...);
};
template <class... Operands>
const char* name_of(const Engine<Operands...>& engine) {
  return engine.name;
}

// By the first engine that takes it, or by the algorithm that is asked for; throws where cuBLASLt
// does not offer that.
void multiply(const Context& context, const Product& p);

// Hopper's engine (sm90/gemm.cuh). Why it does not take a product; null where it does.
const char* hopper_refusal(const Context& context, const Product& p);
void run_hopper(const Context& context, const Product& p);

// More rows are not few.
inline constexpr std::int64_t kFewRows = 16;

// That of few rows (sm80/few_rows.cuh), from sm_80 on. The weight is b of the product, or stands in
// its place: then b is null.
const char* few_rows_refusal(const Context& context, const Product& p);
const char* few_rows_refusal(const Context& context, const Product& p,
                             const QuantizedMatrix& weight);
void run_few_rows(const Context& context, const Product& p);
void run_few_rows(const Context& context, const Product& p, const QuantizedMatrix& weight);

// NVIDIA's (cublaslt/engine.cu), where the process finds it.
const char* cublaslt_refusal(const Context& context, const Product& p);
void run_cublaslt(const Context& context, const Product& p);

// One for every device, dtype and stride (plain/product_typed.cu).
template <class T>
void run_plain(const Context& context, const Product& p);

}  // namespace transformer_kernels::cuda
