// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/check.h"
#include "core/dispatch.h"
#include "decode/step/member.h"

namespace transformer_kernels {
namespace {

using decode::kMostRows;
using decode::kOp;

std::vector<std::int64_t> checked_tokens(const TensorView& tokens, std::int64_t vocabulary) {
  ArgumentChecker(kOp, {}).indices("tokens", tokens);
  check_value(tokens.rank == 1 && tokens.sizes[0] >= 1, kOp, ": tokens has shape ",
              shape_of(tokens), ", expected (T), T at least 1");
  std::vector<std::int64_t> list(tokens.sizes[0]);
  for (std::int64_t i = 0; i < tokens.sizes[0]; ++i) {
    const std::int64_t at = i * tokens.strides[0];
    list[i] = tokens.dtype == DType::kInt32 ? static_cast<const std::int32_t*>(tokens.data)[at]
                                            : static_cast<const std::int64_t*>(tokens.data)[at];
    check_value(list[i] >= 0 && list[i] < vocabulary, kOp, ": tokens has ", list[i],
                ", expected numbers from 0 to ", vocabulary - 1);
  }
  return list;
}

void check_room(const StepSession::State& s, std::int64_t count) {
  check_value(s.length + count <= s.positions, kOp, ": tokens has ", count,
              " elements, expected at most ", s.positions - s.length, ": the session has ",
              s.length, " of ", s.positions, " positions");
}

void check_options(const Context& context, int bits, int threads) {
  check_value(context.device.type == DeviceType::kCpu, kOp, ": the device is ",
              name_of(context.device.type), ", expected cpu");
  check_value(bits == 16 || bits == 8, kOp, ": activation_bits is ", bits, ", expected 16 or 8");
  check_value(threads >= 0, kOp, ": threads is ", threads, ", expected 0 or more");
}

void check_logits(const TensorView& logits, std::int64_t outputs, std::int64_t vocabulary) {
  const ArgumentChecker check(kOp, {});
  check.typed("logits", logits, DType::kFloat32, "the dtype of logits");
  check_value(logits.rank == 2 && logits.sizes[0] == outputs && logits.sizes[1] == vocabulary, kOp,
              ": logits has shape ", shape_of(logits), ", expected (", outputs, ", ", vocabulary,
              ")");
  check.packed("logits", logits, outputs * vocabulary, "its shape");
}

std::int64_t checked_outputs(const StepSession::State& s, const DecodeStep& step) {
  const ArgumentChecker check(kOp, {});
  if (!step.best.defined()) {
    check_value(!step.logits.defined(), kOp, ": best is missing, expected it beside logits");
    return 0;
  }
  const std::int64_t outputs = step.best.rank == 1 ? step.best.sizes[0] : -1;
  check.typed("best", step.best, DType::kInt64, "indices");
  check_value(outputs >= 0 && outputs <= step.tokens.sizes[0], kOp, ": best has shape ",
              shape_of(step.best), ", expected at most one element for each of ",
              step.tokens.sizes[0], " tokens");
  check.packed("best", step.best, outputs, "the outputs");
  if (step.logits.defined()) {
    check_logits(step.logits, outputs, s.plan->state().model.vocabulary);
  }
  return outputs;
}

// The best tokens of the outputs, from the best ones of the parts, in their order.
void choose(const decode::Workshop& s, std::int64_t outputs, std::int64_t* best) {
  const auto& shares = s.plan->state().shares;
  for (std::int64_t r = 0; r < outputs; ++r) {
    bool none = true;
    float top = 0;
    for (std::size_t part = 0; part < shares.size(); ++part) {
      const decode::Best& own = s.parts[part].best[r];
      if (shares[part].tokens.count() == 0 || (!none && !(own.value > top))) continue;
      none = false;
      top = own.value;
      best[r] = shares[part].tokens.begin + own.index;
    }
  }
}

void log_step(const decode::Workshop& s, const std::string& rows, int bits) {
  if (!log_dispatch()) return;
  const StepModel& m = s.plan->state().model;
  log_line(concat(kOp, " ", rows, ", ", s.plan->state().layers.size(), " layers of ", m.hidden,
                  ", ", m.parts, " parts, activations of ", bits, " bits: cpu_",
                  cpu::name_of(cpu::isa()), " runs"));
}

void run(const Context& context, decode::Workshop& s, const decode::Rows& rows, int threads) {
  const int wanted = threads > 0 ? threads : cpu::thread_count();
  const std::int64_t most = std::min<std::int64_t>(wanted, s.plan->state().model.parts);
  cpu::run_gang(context, most, [&](cpu::Gang& gang, int rank) {
    decode::Member(s, cpu::step_kernels_in_use(), rows, gang, rank).run();
  });
}

}  // namespace

void decode_step(const Context& context, StepSession& session, const DecodeStep& step) {
  StepSession::State& s = session.state();
  const decode::Hold hold(s, decode::kSessionIs);
  const std::int64_t vocabulary = s.plan->state().model.vocabulary;
  const int bits = step.activation_bits;
  check_options(context, bits, step.threads);
  const std::vector<std::int64_t> tokens = checked_tokens(step.tokens, vocabulary);
  const auto count = static_cast<std::int64_t>(tokens.size());
  check_room(s, count);
  const std::int64_t outputs = checked_outputs(s, step);
  log_step(s, concat(count, " rows at ", s.length), bits);
  s.reserve(s.length + count);
  auto* best = static_cast<std::int64_t*>(step.best.data);
  auto* logits = static_cast<float*>(step.logits.data);
  for (std::int64_t first = 0; first < count; first += kMostRows) {
    const std::int64_t here = std::min(count - first, kMostRows);
    const std::int64_t before = std::clamp<std::int64_t>(count - outputs - first, 0, here);
    std::vector<std::int64_t> wanted(here - before);  // the last ones
    std::iota(wanted.begin(), wanted.end(), before);
    const decode::Run all{0, here, s.length, s.blocks.data()};
    run(context, s, {std::span(tokens).subspan(first, here), {&all, 1}, wanted, logits, bits == 16},
        step.threads);
    choose(s, here - before, best);
    best += here - before;
    if (logits != nullptr) logits += (here - before) * vocabulary;
    s.length += here;
  }
}

// ---- pages --------------------------------------------------------------------------------------

namespace {

// Numbers of a tensor without gaps.
template <class T>
std::span<const T> listed(const char* name, const TensorView& view, DType dtype,
                          std::int64_t count) {
  const ArgumentChecker check(kOp, {});
  check.typed(name, view, dtype, "indices");
  check.packed(name, view, count, "the sequences");
  return {static_cast<const T*>(view.data), static_cast<std::size_t>(count)};
}

// The sequences of a step.
struct Sequences {
  std::vector<decode::Run> runs;
  std::vector<std::vector<Half*>> blocks;  // of each

  Sequences(StepPages::State& s, const DecodePages& step, std::int64_t rows);

  // The parts of them that are among the rows [first, end), as numbers behind `first`.
  std::vector<decode::Run> within(std::int64_t first, std::int64_t end) const;
};

Sequences::Sequences(StepPages::State& s, const DecodePages& step, std::int64_t rows) {
  const std::int64_t count = step.lengths.rank == 1 ? step.lengths.sizes[0] : -1;
  const TensorView& table = step.page_table;
  check_value(table.rank == 2 && table.sizes[0] == count, kOp, ": page_table has shape ",
              shape_of(table), " and lengths ", shape_of(step.lengths),
              ", expected (B, P) and (B)");
  const std::int64_t width = table.sizes[1];
  const auto lengths = listed<std::int32_t>("lengths", step.lengths, DType::kInt32, count);
  const auto ends = listed<std::int32_t>("cu_seqlens", step.cu_seqlens, DType::kInt32, count + 1);
  const auto pages = listed<std::int32_t>("page_table", table, DType::kInt32, count * width);
  check_value(ends[0] == 0 && ends[count] == rows, kOp, ": cu_seqlens is from ", ends[0], " to ",
              ends[count], ", expected 0 to ", rows, " (the tokens)");
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t end = std::int64_t{lengths[b]} + ends[b + 1] - ends[b];
    check_value(ends[b + 1] > ends[b], kOp, ": cu_seqlens has ", ends[b + 1], " behind ", ends[b],
                ", expected more");
    const std::int64_t most = std::min(s.plan->state().positions, width * kStepPage);
    check_value(lengths[b] >= 0 && end <= most, kOp, ": sequence ", b, " has ", lengths[b],
                " positions and ", ends[b + 1] - ends[b], " new ones, expected 0 to ", most);
    std::vector<std::int64_t> own(pages.begin() + b * width,
                                  pages.begin() + b * width + divide_up(end, kStepPage));
    for (const std::int64_t page : own) {
      check_value(page >= 0 && page < static_cast<std::int64_t>(s.blocks.size()), kOp,
                  ": page_table has ", page, ", expected 0 to ", s.blocks.size() - 1);
    }
    runs.push_back({ends[b], ends[b + 1], lengths[b], nullptr});
    std::vector<Half*>& list = blocks.emplace_back();
    for (const std::int64_t page : own) list.push_back(s.block(page));
  }
  for (std::int64_t b = 0; b < count; ++b) runs[b].blocks = blocks[b].data();
}

std::vector<decode::Run> Sequences::within(std::int64_t first, std::int64_t end) const {
  std::vector<decode::Run> found;
  for (const decode::Run& run : runs) {
    const std::int64_t from = std::max(run.begin, first), to = std::min(run.end, end);
    if (from >= to) continue;
    found.push_back({from - first, to - first, run.position + from - run.begin, run.blocks});
  }
  return found;
}

}  // namespace

void decode_step(const Context& context, StepPages& pages, const DecodePages& step) {
  StepPages::State& s = pages.state();
  const decode::Hold hold(s, decode::kPagesAre);
  const std::int64_t vocabulary = s.plan->state().model.vocabulary;
  const int bits = step.activation_bits;
  check_options(context, bits, step.threads);
  const std::vector<std::int64_t> tokens = checked_tokens(step.tokens, vocabulary);
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t most = step.outputs.rank == 1 ? step.outputs.sizes[0] : -1;
  const auto outputs = listed<std::int64_t>("outputs", step.outputs, DType::kInt64, most);
  std::int64_t last = -1;
  for (const std::int64_t row : outputs) {
    check_value(row > last && row < count, kOp, ": outputs has ", row, " behind ", last,
                ", expected ascending rows below ", count);
    last = row;
  }
  check_logits(step.logits, most, vocabulary);
  const Sequences sequences(s, step, count);
  log_step(s, concat(count, " rows of ", sequences.runs.size(), " sequences"), bits);
  auto* logits = static_cast<float*>(step.logits.data);
  auto next = outputs.begin();
  for (std::int64_t first = 0; first < count; first += kMostRows) {
    const std::int64_t end = std::min(count, first + kMostRows);
    std::vector<std::int64_t> wanted;
    for (; next != outputs.end() && *next < end; ++next) wanted.push_back(*next - first);
    const std::vector<decode::Run> runs = sequences.within(first, end);
    run(context, s,
        {std::span(tokens).subspan(first, end - first), runs, wanted, logits, bits == 16},
        step.threads);
    logits += static_cast<std::int64_t>(wanted.size()) * vocabulary;
  }
}

double barrier_nanoseconds(const Context& context, int threads, std::int64_t rounds) {
  check_value(threads >= 1 && rounds >= 1, kOp, ": threads is ", threads, " and rounds is ", rounds,
              ", expected 1 or more");
  std::chrono::steady_clock::duration spent{};
  cpu::run_gang(context, threads, [&](cpu::Gang& gang, int rank) {
    gang.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < rounds; ++i) gang.barrier();
    if (rank == 0) spent = std::chrono::steady_clock::now() - start;
  });
  return std::chrono::duration<double, std::nano>(spent).count() / static_cast<double>(rounds);
}

}  // namespace transformer_kernels
