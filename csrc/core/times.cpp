// SPDX-License-Identifier: MIT
#include "core/times.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <locale>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "core/check.h"
#include "core/log.h"
#include "core/plans.h"

namespace transformer_kernels {
namespace {

using Table = std::map<std::string, std::vector<Time>>;  // by the machine and what was timed

std::string key_of(const std::string& machine, const std::string& timed) {
  return machine + '\t' + timed;
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, '\t');) fields.push_back(field);
  return fields;
}

Time time_of(const std::string& field) {
  const std::size_t end = field.find('=');
  std::istringstream number(end == std::string::npos ? "" : field.substr(end + 1));
  number.imbue(std::locale::classic());  // a comma in the program's locale is none in the file
  double microseconds = 0;
  number >> microseconds;
  check_value(!number.fail() && number.peek() == std::istringstream::traits_type::eof() &&
                  microseconds > 0 && std::isfinite(microseconds),
              "a time is ", field, ", expected a name, = and microseconds");
  return {field.substr(0, end), microseconds};
}

void add_line(Table& table, const std::string& line, const std::string& versions,
              const std::string& machine) {
  const std::vector<std::string> fields = split(line);
  check_value(fields.size() > 3, "a line has ", fields.size(), " fields, expected 4 or more");
  std::vector<Time> times;
  std::transform(fields.begin() + 3, fields.end(), std::back_inserter(times), time_of);
  std::stable_sort(times.begin(), times.end(),
                   [](const Time& a, const Time& b) { return a.microseconds < b.microseconds; });
  if (!versions.empty() && fields[0] != versions) return;
  if (machine.empty()) table[key_of("", fields[2])] = times;
  table[key_of(fields[1], fields[2])] = std::move(times);
}

Table table_of(const std::string& path, const std::string& versions, const std::string& machine) {
  std::ifstream file(path);
  if (!file) return {};
  std::string line;
  std::getline(file, line);
  check_value(line == kTimesHeader, "the first line is \"", line, "\", expected \"", kTimesHeader,
              "\"");
  Table table;
  while (std::getline(file, line)) add_line(table, line, versions, machine);
  return table;
}

class Store {
 public:
  void set(Table table, const std::string& machine) {
    const std::lock_guard lock(mutex_);
    table_ = std::move(table);
    machine_ = machine;
    has_any_ = !table_.empty();
    const std::string plans = key_of(machine, "plan ");
    const auto first = table_.lower_bound(plans);
    has_plans_ = first != table_.end() && first->first.compare(0, plans.size(), plans) == 0;
  }
  void note(const std::string& device) {
    const std::lock_guard lock(mutex_);
    devices_.insert(device);
  }
  bool has_any() const { return has_any_; }
  bool has_plans() const { return has_plans_; }
  std::vector<Time> find(const std::string& machine, const std::string& timed) {
    const std::lock_guard lock(mutex_);
    const auto found = table_.find(key_of(machine, timed));
    return found == table_.end() ? std::vector<Time>{} : found->second;
  }
  std::set<std::string> machines() {
    const std::lock_guard lock(mutex_);
    std::set<std::string> found = devices_;
    found.insert(machine_);
    return found;
  }

 private:
  std::mutex mutex_;
  Table table_;
  std::string machine_;
  std::set<std::string> devices_;
  std::atomic<bool> has_any_ = false;
  std::atomic<bool> has_plans_ = false;  // of the machine
};

std::string read_into(Store& store, const std::string& path, const std::string& versions,
                      const std::string& machine) {
  try {
    store.set(table_of(path, versions, machine), machine);
    return {};
  } catch (const std::exception& error) {  // what calls this from C takes none
    store.set({}, "");
    return error.what();
  }
}

std::once_flag was_read;
Store& store() {
  static Store times;
  return times;
}

Store& read_store() {
  std::call_once(was_read, [] {
    const char* const path = std::getenv("TFK_TUNE_FILE");
    const char* const mode = std::getenv("TFK_TUNE");
    if (path == nullptr || (mode != nullptr && mode == std::string("0"))) return;
    const std::string fault = read_into(store(), path, "", "");
    if (!fault.empty()) log_line(concat("TFK_TUNE_FILE is not read: ", fault));
  });
  return store();
}

}  // namespace

std::string read_times(const std::string& path, const std::string& versions,
                       const std::string& machine) {
  std::call_once(was_read, [] {});
  return read_into(store(), path, versions, machine);
}

bool has_times() { return read_store().has_any(); }

bool has_times_of_plans() { return read_store().has_plans(); }

void note_device(const std::string& name) { store().note(name); }

std::vector<Time> times_of(const std::string& timed) {
  Store& store = read_store();
  for (const std::string& machine : store.machines()) {
    std::vector<Time> times = store.find(machine, timed);
    if (!times.empty()) return times;
  }
  return {};
}

std::vector<Time> times_of(const std::string& machine, const std::string& timed) {
  return read_store().find(machine, timed);
}

}  // namespace transformer_kernels
