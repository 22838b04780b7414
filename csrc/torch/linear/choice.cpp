// SPDX-License-Identifier: MIT
// Who multiplies in a layer, for Python: a function of C that takes numbers, as no tensor is read.
// Python keeps the answers, so that a layer of the same sizes asks once.
#include "linear/choice.h"

#include <exception>
#include <span>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "core/plans.h"
#include "core/times.h"
#include "torch/convert.h"

namespace transformer_kernels::torch_ops {
namespace {

// The questions, in the order of transformer_kernels/ops/linear/_choice.py.
enum class Question : std::int64_t {
  kChoice,            // by times, else by rules
  kRules,             // the choice by rules alone
  kRefusal,           // why only PyTorch has the product
  kRefusalOfFewRows,  // why few rows of ours are not possible, whatever the weight is
  kIdle,              // why a product would leave processors idle
  kOnednn,            // why PyTorch's product runs better as F.linear than by oneDNN's operator
  kDescription,       // the text by which times of the layer are kept, in place of a reason
};

// Reads the numbers that Python wrote.
class Numbers {
 public:
  explicit Numbers(std::span<const std::int64_t> numbers) : numbers_(numbers) {}

  std::int64_t next() { return at_ < numbers_.size() ? numbers_[at_++] : 0; }
  bool flag() { return next() != 0; }
  std::optional<DType> dtype() {
    const std::int64_t code = next();
    if (code < 0 || code >= kDTypeCount) return {};
    return static_cast<DType>(code);
  }
  LayerWeight weight() {
    LayerWeight w;
    w.given = flag();
    if (!w.given) return w;
    w.dtype = dtype();
    w.rank = static_cast<int>(next());
    w.rows = next();
    w.cols = next();
    w.row_step = next();
    w.col_step = next();
    w.address = static_cast<std::uintptr_t>(next());
    return w;
  }

 private:
  std::span<const std::int64_t> numbers_;
  std::size_t at_ = 0;
};

struct Processor {
  bool is_intel = true;  // of those that are not x86 nothing is known
  int family = 0;
};

Processor processor() {
  Processor found;
#if defined(__x86_64__) || defined(__i386__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d)) found.is_intel = b == signature_INTEL_ebx;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    found.family = static_cast<int>(((a >> 8) & 15) + ((a >> 20) & 255));
  }
#endif
  return found;
}

Layer layer_of(Numbers& numbers) {
  Layer l;
  l.device = {static_cast<DeviceType>(numbers.next()), static_cast<int>(numbers.next())};
  l.limits = limits_of(l.device);
  l.blas.is_fast = numbers.flag();
  l.blas.fills_units = numbers.flag();
  l.blas.has_tiles = numbers.flag();
  l.dtype = numbers.dtype();
  l.rows = numbers.next();
  l.terms = numbers.next();
  l.needs_dx = numbers.flag();
  l.needs_dweight = numbers.flag();
  l.activated = numbers.flag();
  l.refuses_cublas = numbers.flag();
  l.weight = numbers.weight();
  l.down_weight = numbers.weight();
  l.up_weight = numbers.weight();
  return l;
}

LayerChoice choice_because(const char* reason) {
  return {.ours = reason == nullptr, .reason = reason != nullptr ? reason : ""};
}

LayerChoice answer(Question question, const Layer& l, const char* machine) {
  switch (question) {
    case Question::kChoice: return choose_layer(l, machine);
    case Question::kRules: return choose_by_rules(l);
    case Question::kRefusal: return choice_because(refusal_of_layer(l));
    case Question::kRefusalOfFewRows: return choice_because(refusal_of_few_rows(l));
    case Question::kIdle:
      return choice_because(fills_processors(l.rows, l.weight.rows, l.limits.processors)
                                ? nullptr
                                : "tiles of the result would leave processors idle");
    case Question::kOnednn:
      return choice_because(slower_by_onednn(l.rows * l.terms * l.weight.rows,
                                             l.dtype.value_or(DType::kBool), l.blas));
    case Question::kDescription: return choice_because(describe(l).c_str());
  }
  return {};
}

void write(const std::string& what, char* text, std::size_t size) {
  text[what.copy(text, size - 1)] = '\0';
}

}  // namespace
}  // namespace transformer_kernels::torch_ops

// Whether ours multiplies (1; 0 where PyTorch's does), plus 2 where times decided. Writes the
// routes of the products y, dx and dweight, and why. -1 for an error, whose message is in `text`.
extern "C" TFK_API int tfk_choose(const char* machine, const std::int64_t* numbers,
                                  std::size_t count, std::int64_t* routes, char* text,
                                  std::size_t size) {
  using namespace transformer_kernels;
  using namespace transformer_kernels::torch_ops;
  try {
    Numbers reader({numbers, count});
    const auto question = static_cast<Question>(reader.next());
    const LayerChoice choice = answer(question, layer_of(reader), machine);
    routes[0] = choice.routes.y;
    routes[1] = choice.routes.dx;
    routes[2] = choice.routes.dweight;
    write(choice.reason, text, size);
    return (choice.ours ? 1 : 0) + (choice.by_times ? 2 : 0);
  } catch (const std::exception& error) {
    write(error.what(), text, size);
    return -1;
  }
}

// Writes facts that hold for every layer of the process: whether PyTorch's products on the
// processor are fast, and fill its units (Blas), and the bounds below which every product on the
// CPU is PyTorch's, in numbers of a weight and in products.
extern "C" TFK_API void tfk_linear_facts(int has_mkl, int has_avx512, std::int64_t* facts) {
  using namespace transformer_kernels;
  const torch_ops::Processor processor = torch_ops::processor();
  const Blas blas = blas_of(processor.is_intel, processor.family, has_mkl != 0, has_avx512 != 0);
  facts[0] = blas.is_fast ? 1 : 0;
  facts[1] = blas.fills_units ? 1 : 0;
  facts[2] = kFewestNumbersOfWeight;
  facts[3] = kFewestProducts;
}

// Reads a file of times (core/times.h). Returns whether any apply, or -1 and what is wrong with the
// file in `text`.
extern "C" TFK_API int tfk_read_times(const char* path, const char* versions, const char* machine,
                                      char* text, std::size_t size) {
  using namespace transformer_kernels;
  const std::string fault = read_times(path, versions, machine);
  torch_ops::write(fault, text, size);
  if (!fault.empty()) return -1;
  return has_times() ? 1 : 0;
}

// Records plans (core/plans.h), or stops.
extern "C" TFK_API void tfk_record_plans(int on) { transformer_kernels::record_plans(on != 0); }

// Writes what was recorded to `text`.
extern "C" TFK_API void tfk_recorded_plans(char* text, std::size_t size) {
  transformer_kernels::torch_ops::write(transformer_kernels::recorded_plans(), text, size);
}
