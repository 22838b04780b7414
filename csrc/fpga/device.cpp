// SPDX-License-Identifier: MIT
// An array as ops see it: its parameter set, its transport and its counters.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "core/check.h"
#include "core/log.h"
#include "fpga/array.h"
#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::fpga {
namespace {

std::string known_sets() {
  std::string text;
  for (const std::string& name : set_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The value of an environment variable, or `otherwise` where it is absent or empty.
std::string setting(const char* variable, const char* otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? text : otherwise;
}

int multipliers(const ParameterSet& set) { return set.rows * set.lanes; }

// For ops that have no head dim.
constexpr std::int64_t kUsualHeadDim = 64;

// The set that has every operation, the smallest head dim that fits, and among those the most
// multipliers; null where none fits.
const ParameterSet* best_set(std::int64_t head_dim) {
  const ParameterSet* best = nullptr;
  for (const ParameterSet& set : kParameterSets) {
    if (set.head_dim < head_dim || !set.softmax || !set.matmul) continue;
    const bool is_better =
        best == nullptr || set.head_dim < best->head_dim ||
        (set.head_dim == best->head_dim && multipliers(set) > multipliers(*best));
    if (is_better) best = &set;
  }
  return best;
}

// The arrays of the environment, by set and transport.
struct Opened {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Array>> arrays;
};

Opened& opened() {
  static Opened arrays;
  return arrays;
}

}  // namespace

const ParameterSet& find_set(std::string_view name) {
  for (const ParameterSet& set : kParameterSets) {
    if (name_of(set) == name) return set;
  }
  throw Error(Error::Kind::kValue,
              concat("fpga: array is '", name, "', expected one of ", known_sets()));
}

std::vector<std::string> set_names() {
  std::vector<std::string> names;
  for (const ParameterSet& set : kParameterSets) names.push_back(name_of(set));
  return names;
}

struct Array::State {
  const ParameterSet& set;
  std::string name;
  std::unique_ptr<Transport> transport;
  Options options;
  std::mutex use;
  mutable std::mutex counting;
  Counters counters;
};

Array::Array(std::string_view set) : Array(set, model_transport(set)) {}

Array::Array(std::string_view set, std::unique_ptr<Transport> transport, Options options)
    : state_(new State{.set = find_set(set),
                       .name = std::string(set),
                       .transport = std::move(transport),
                       .options = options,
                       .use = {},
                       .counting = {},
                       .counters = {}}) {
  check_value(state_->transport != nullptr, "fpga: transport is null, expected one");
}

Array::~Array() = default;

const ParameterSet& Array::set() const { return state_->set; }
const std::string& Array::name() const { return state_->name; }
const Options& Array::options() const { return state_->options; }

Counters Array::counters() const {
  const std::lock_guard lock(state_->counting);
  return state_->counters;
}

void Array::reset_counters() {
  const std::lock_guard lock(state_->counting);
  state_->counters = {};
}

std::unique_lock<std::mutex> Array::acquire() { return std::unique_lock(state_->use); }

void Array::run(const Command& command, std::span<const std::uint8_t> in,
                std::span<std::uint8_t> out, std::uint64_t useful) {
  const std::uint64_t cycles = state_->transport->run(command, in, out);
  const std::lock_guard lock(state_->counting);
  Counters& counters = state_->counters;
  counters.cycles += cycles;
  counters.commands += 1;
  counters.bytes_in += in.size();
  counters.bytes_out += out.size();
  counters.useful += useful;
  counters.possible += cycles * multipliers(state_->set);
}

Array& environment_array(const char* op, std::int64_t head_dim) {
  const ParameterSet* const fitting = best_set(head_dim > 0 ? head_dim : kUsualHeadDim);
  const std::string set = setting("TFK_FPGA_ARRAY", "");
  check_value(!set.empty() || fitting != nullptr, op, ": a head dim is ", head_dim,
              ", expected one that an array is built for (", known_sets(), ")");
  const std::string name = set.empty() ? name_of(*fitting) : set;
  const std::string transport = setting("TFK_FPGA_TRANSPORT", "model");
  const std::lock_guard lock(opened().mutex);
  std::unique_ptr<Array>& array = opened().arrays[{name, transport}];
  if (array == nullptr) array = std::make_unique<Array>(name, open_transport(name, transport));
  return *array;
}

Counters environment_counters() {
  Counters sum;
  const std::lock_guard lock(opened().mutex);
  for (const auto& [key, array] : opened().arrays) {
    if (array == nullptr) continue;
    const Counters counters = array->counters();
    sum.cycles += counters.cycles;
    sum.commands += counters.commands;
    sum.bytes_in += counters.bytes_in;
    sum.bytes_out += counters.bytes_out;
    sum.useful += counters.useful;
    sum.possible += counters.possible;
  }
  return sum;
}

}  // namespace transformer_kernels::fpga
