// SPDX-License-Identifier: MIT
// Plans and sessions for Python, which knows them by number. A number is given once, so one that
// was freed is refused; what it stood for lives as long as a call uses it.
#include "transformer_kernels/decode/step.h"

#include <torch/csrc/stable/ops.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "core/check.h"
#include "torch/convert.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "decode_step";

template <class Thing>
class Numbered {
 public:
  explicit Numbered(const char* name) : name_(name) {}

  std::int64_t add(std::shared_ptr<Thing> thing) {
    const std::lock_guard lock(mutex_);
    things_.emplace(++last_, std::move(thing));
    return last_;
  }
  std::shared_ptr<Thing> get(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = things_.find(number);
    check_value(found != things_.end(), kOp, ": ", name_, " is ", number,
                ", expected the number of one that was not freed");
    return found->second;
  }
  // The thing ends without the lock, when its last user lets it go.
  void free(std::int64_t number) {
    std::shared_ptr<Thing> last = get(number);
    const std::lock_guard lock(mutex_);
    things_.erase(number);
  }

 private:
  const char* name_;
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<Thing>> things_;
  std::int64_t last_ = 0;
};

// Never destroyed: threads may step while the process ends.
Numbered<StepPlan>& plans() {
  static auto* const all = new Numbered<StepPlan>("plan");
  return *all;
}
Numbered<StepSession>& sessions() {
  static auto* const all = new Numbered<StepSession>("session");
  return *all;
}

Numbered<StepPages>& all_pages() {
  static auto* const all = new Numbered<StepPages>("pages");
  return *all;
}

using Tensors = std::vector<std::optional<Tensor>>;

template <std::size_t kCount, class T>
void check_count(const char* name, const std::vector<T>& list) {
  check_value(list.size() == kCount, kOp, ": ", name, " has ", list.size(), " elements, expected ",
              kCount);
}

// Views of tensors, which keep copies of those that have gaps.
class Views {
 public:
  TensorView operator()(const char* name, const std::optional<Tensor>& tensor) {
    if (!tensor) return {};
    kept_.push_back(contiguous(kOp, name, *tensor));
    return view_of(kOp, name, kept_.back());
  }
  // Values, scales and minimums follow one another.
  StepWeight weight(const char* name, const Tensors& list, std::size_t number) {
    return {(*this)(name, list[3 * number]), (*this)(name, list[3 * number + 1]),
            (*this)(name, list[3 * number + 2])};
  }

 private:
  std::vector<Tensor> kept_;
};

// Integers and numbers stand in the order of StepModel.
std::int64_t plan(const std::vector<std::int64_t>& integers, const std::vector<double>& numbers,
                  const Tensor& cosines, const Tensor& sines) {
  return translate_errors([&] {
    check_count<9>("integers", integers);
    check_count<5>("numbers", numbers);
    check_value(integers[7] >= 0 && integers[7] <= 2, kOp, ": activation is ", integers[7],
                ", expected 0 (silu), 1 (gelu) or 2 (gelu_tanh)");
    Views view;
    const StepModel model{.hidden = integers[0],
                          .heads = integers[1],
                          .kv_heads = integers[2],
                          .head_dim = integers[3],
                          .inner = integers[4],
                          .vocabulary = integers[5],
                          .cosines = view("cosines", cosines),
                          .sines = view("sines", sines),
                          .interleaved = integers[6] != 0,
                          .eps = numbers[0],
                          .scale = numbers[1],
                          .softcap = numbers[2],
                          .logit_softcap = numbers[3],
                          .embedding_scale = numbers[4],
                          .activation = static_cast<StepActivation>(integers[7]),
                          .parts = integers[8]};
    return plans().add(std::make_shared<StepPlan>(CallContext({}), model));
  });
}

// Weights are q, k, v, o, gate, up and down; vectors are those of StepLayer in its order.
void add_layer(std::int64_t number, const Tensors& weights, const Tensors& vectors,
               std::int64_t window) {
  translate_errors([&] {
    check_count<21>("weights", weights);
    check_count<7>("vectors", vectors);
    Views view;
    const StepLayer layer{.attention_norm = view("attention_norm", vectors[0]),
                          .mlp_norm = view("mlp_norm", vectors[1]),
                          .q = view.weight("q", weights, 0),
                          .k = view.weight("k", weights, 1),
                          .v = view.weight("v", weights, 2),
                          .o = view.weight("o", weights, 3),
                          .gate = view.weight("gate", weights, 4),
                          .up = view.weight("up", weights, 5),
                          .down = view.weight("down", weights, 6),
                          .q_bias = view("q_bias", vectors[2]),
                          .k_bias = view("k_bias", vectors[3]),
                          .v_bias = view("v_bias", vectors[4]),
                          .q_norm = view("q_norm", vectors[5]),
                          .k_norm = view("k_norm", vectors[6]),
                          .window = window};
    plans().get(number)->add_layer(CallContext({}), layer);
  });
}

// Weights are the embedding and the head.
void finish(std::int64_t number, const Tensors& weights, const Tensor& final_norm) {
  translate_errors([&] {
    check_count<6>("weights", weights);
    Views view;
    const StepWeight embedding = view.weight("embedding", weights, 0);
    const StepWeight head = view.weight("head", weights, 1);
    plans().get(number)->finish(CallContext({}), embedding, view("final_norm", final_norm), head);
  });
}

std::int64_t packed_bytes(std::int64_t number) {
  return translate_errors(
      [&] { return static_cast<std::int64_t>(plans().get(number)->packed_bytes()); });
}

std::int64_t read_all(std::int64_t number) {
  return translate_errors(
      [&] { return static_cast<std::int64_t>(plans().get(number)->read_all(CallContext({}))); });
}

std::int64_t session(std::int64_t plan, std::int64_t positions) {
  return translate_errors(
      [&] { return sessions().add(std::make_shared<StepSession>(plans().get(plan), positions)); });
}

std::int64_t length(std::int64_t number) {
  return translate_errors([&] { return sessions().get(number)->length(); });
}

void truncate(std::int64_t number, std::int64_t length) {
  translate_errors([&] { sessions().get(number)->truncate(length); });
}

void free_plan(std::int64_t number) {
  translate_errors([&] { plans().free(number); });
}

void free_session(std::int64_t number) {
  translate_errors([&] { sessions().free(number); });
}

std::int64_t pages(std::int64_t plan, std::int64_t count) {
  return translate_errors(
      [&] { return all_pages().add(std::make_shared<StepPages>(plans().get(plan), count)); });
}

void copy_page(std::int64_t number, std::int64_t from, std::int64_t to) {
  translate_errors([&] { all_pages().get(number)->copy(from, to); });
}

void free_pages(std::int64_t number) {
  translate_errors([&] { all_pages().free(number); });
}

double barrier(std::int64_t rounds) {
  return translate_errors([&] {
    const auto threads = static_cast<int>(torch::stable::get_num_threads());
    return barrier_nanoseconds(CallContext({}), threads, rounds);
  });
}

// Without `wants_logits` the second result has no elements.
std::tuple<Tensor, Tensor> step(std::int64_t number, const Tensor& tokens, std::int64_t outputs,
                                bool wants_logits, std::int64_t activation_bits) {
  return translate_errors([&] {
    const std::shared_ptr<StepSession> session = sessions().get(number);
    check_value(outputs >= 0 && outputs <= tokens.numel(), kOp, ": outputs is ", outputs,
                ", expected 0 to ", tokens.numel(), " (the tokens)");
    const std::int64_t vocabulary = session->vocabulary();
    const Tensor best = empty({}, std::array{outputs}, DType::kInt64);
    const Tensor logits =
        empty({}, std::array{wants_logits ? outputs : 0, vocabulary}, DType::kFloat32);
    const Tensor prepared = packed_indices(kOp, "tokens", tokens);
    DecodeStep call{.tokens = view_of(kOp, "tokens", prepared),
                    .activation_bits = static_cast<int>(activation_bits),
                    .threads = static_cast<int>(torch::stable::get_num_threads())};
    if (outputs > 0) call.best = view_of(kOp, "best", best);
    if (outputs > 0 && wants_logits) call.logits = view_of(kOp, "logits", logits);
    decode_step(CallContext({}), *session, call);
    return std::tuple(best, logits);
  });
}

// The logits (M, V) of some tokens.
Tensor step_pages(std::int64_t number, const Tensor& tokens, const Tensor& cu_seqlens,
                  const Tensor& lengths, const Tensor& page_table, const Tensor& outputs,
                  std::int64_t activation_bits) {
  return translate_errors([&] {
    const std::shared_ptr<StepPages> pages = all_pages().get(number);
    const Tensor logits =
        empty({}, std::array{outputs.numel(), pages->vocabulary()}, DType::kFloat32);
    const Tensor prepared = packed_indices(kOp, "tokens", tokens);
    Views view;
    decode_step(CallContext({}), *pages,
                {.tokens = view_of(kOp, "tokens", prepared),
                 .cu_seqlens = view("cu_seqlens", cu_seqlens),
                 .lengths = view("lengths", lengths),
                 .page_table = view("page_table", page_table),
                 .outputs = view("outputs", outputs),
                 .logits = view_of(kOp, "logits", logits),
                 .activation_bits = static_cast<int>(activation_bits),
                 .threads = static_cast<int>(torch::stable::get_num_threads())});
    return logits;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  m.def("decode_plan(int[] integers, float[] numbers, Tensor cosines, Tensor sines) -> int");
  m.def("decode_plan_layer(int plan, Tensor?[] weights, Tensor?[] vectors, int window) -> ()");
  m.def("decode_plan_finish(int plan, Tensor?[] weights, Tensor final_norm) -> ()");
  m.def("decode_plan_bytes(int plan) -> int");
  m.def("decode_plan_read(int plan) -> int");
  m.def("decode_plan_free(int plan) -> ()");
  m.def("decode_barrier(int rounds) -> float");
  m.def("decode_session(int plan, int positions) -> int");
  m.def("decode_session_length(int session) -> int");
  m.def("decode_session_truncate(int session, int length) -> ()");
  m.def("decode_session_free(int session) -> ()");
  m.def("decode_pages(int plan, int count) -> int");
  m.def("decode_pages_copy(int pages, int from_page, int to_page) -> ()");
  m.def("decode_pages_free(int pages) -> ()");
  m.def(
      "decode_pages_step(int pages, Tensor tokens, Tensor cu_seqlens, Tensor lengths,"
      " Tensor page_table, Tensor outputs, int activation_bits) -> Tensor");
  m.def(
      "decode_step(int session, Tensor tokens, int outputs, bool logits, int activation_bits)"
      " -> (Tensor best, Tensor logits)");
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CompositeExplicitAutograd, m) {
  m.impl("decode_plan", TORCH_BOX(&plan));
  m.impl("decode_plan_layer", TORCH_BOX(&add_layer));
  m.impl("decode_plan_finish", TORCH_BOX(&finish));
  m.impl("decode_plan_bytes", TORCH_BOX(&packed_bytes));
  m.impl("decode_plan_read", TORCH_BOX(&read_all));
  m.impl("decode_plan_free", TORCH_BOX(&free_plan));
  m.impl("decode_barrier", TORCH_BOX(&barrier));
  m.impl("decode_session", TORCH_BOX(&session));
  m.impl("decode_session_length", TORCH_BOX(&length));
  m.impl("decode_session_truncate", TORCH_BOX(&truncate));
  m.impl("decode_session_free", TORCH_BOX(&free_session));
  m.impl("decode_pages", TORCH_BOX(&pages));
  m.impl("decode_pages_copy", TORCH_BOX(&copy_page));
  m.impl("decode_pages_free", TORCH_BOX(&free_pages));
  m.impl("decode_pages_step", TORCH_BOX(&step_pages));
  m.impl("decode_step", TORCH_BOX(&step));
}

}  // namespace transformer_kernels::torch_ops
