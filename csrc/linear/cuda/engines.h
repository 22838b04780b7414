// SPDX-License-Identifier: MIT
// The CUDA engines of products, each in a folder of its own: sm80/, sm90/, cublaslt/ and plain/.
#pragma once

#include "core/dispatch.h"
#include "core/log.h"
#include "linear/product.h"
#include "linear/quantized_problem.h"
#include "linear/rules.h"

namespace transformer_kernels::cuda {

// A row of a table of engines (core/select.h); operands are the product and its further arguments.
template <class... Operands>
struct Engine {
  const char* name;
  const char* (*refusal)(const Context&, const Operands&...);
  void (*run)(const Context&, const Operands&...);
  const char* (*slower)(const Context&, const Operands&...) = nullptr;  // than those behind it
};
template <class... Operands>
const char* name_of(const Engine<Operands...>& engine) {
  return engine.name;
}

// Refusals of engines that have not been timed as a whole: these run where TFK_KERNEL names them.
template <class... Operands>
struct ByName {
  template <const char* (*kRefusal)(const Context&, const Operands&...)>
  static const char* refusal(const Context& context, const Operands&... operands) {
    const char* const asked = forced_kernel();
    const bool is_named = asked != nullptr && *asked != '\0';
    return is_named ? kRefusal(context, operands...) : "it runs where TFK_KERNEL names it";
  }
};

// Multiplies by the first engine that takes the product, or by the algorithm that is asked for;
// throws where cuBLASLt does not offer that.
void multiply(const Context& context, const Product& p);

// Hopper's engine (sm90/gemm.cuh). Why it does not take a product; null where it does.
const char* hopper_refusal(const Context& context, const Product& p);
void run_hopper(const Context& context, const Product& p);

// That of sm_80 and later (sm80/gemm.cuh), which has the same epilogues.
const char* ampere_refusal(const Context& context, const Product& p);
void run_ampere(const Context& context, const Product& p);

// That of few rows (sm80/few_rows.cuh), from sm_80 on. The weight is b of the product, or stands in
// its place: then b is null.
const char* few_rows_refusal(const Context& context, const Product& p);
const char* few_rows_refusal(const Context& context, const Product& p,
                             const QuantizedMatrix& weight);
void run_few_rows(const Context& context, const Product& p);
void run_few_rows(const Context& context, const Product& p, const QuantizedMatrix& weight);

// Hopper's own of few rows (sm90/streamed_rows.cuh), with the same arguments.
const char* streamed_rows_refusal(const Context& context, const Product& p);
const char* streamed_rows_refusal(const Context& context, const Product& p,
                                  const QuantizedMatrix& weight);
void run_streamed_rows(const Context& context, const Product& p);
void run_streamed_rows(const Context& context, const Product& p, const QuantizedMatrix& weight);

// NVIDIA's (cublaslt/engine.cu), where the process finds it.
const char* cublaslt_refusal(const Context& context, const Product& p);
void run_cublaslt(const Context& context, const Product& p);

// One for every device, dtype and stride (plain/product_typed.cu).
template <class T>
void run_plain(const Context& context, const Product& p);

}  // namespace transformer_kernels::cuda
