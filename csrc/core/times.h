// SPDX-License-Identifier: MIT
// Times that were measured on this machine, which decide before any rule does. They stand in a text
// file of a line each, which Python writes (transformer_kernels/_times.py):
//
//   versions <tab> machine <tab> what was timed <tab> name=microseconds <tab> name=microseconds ...
//
// What was timed is an op and the description of its problem; a name is that of a row of the op's
// table (core/select.h).
#pragma once

#include <string>
#include <vector>

#include "transformer_kernels/api.h"

namespace transformer_kernels {

struct Time {
  std::string name;
  double microseconds;
};

inline constexpr const char* kTimesHeader = "transformer_kernels times 2";

// Reads the file in place of what was read before; one that does not exist has no times. Only lines
// of these versions apply, and to kernels only those of the machine or of a device that was noted;
// empty texts stand for any. Returns what is wrong with the file, which then has no times, or an
// empty text. Without a
// call, the file that TFK_TUNE_FILE names is read when a kernel is first chosen, if TFK_TUNE is not
// 0.
TFK_API std::string read_times(const std::string& path, const std::string& versions,
                               const std::string& machine);

// Lets times of a device's kernels apply, by its name.
TFK_API void note_device(const std::string& name);

// Whether there are any, at little cost.
TFK_API bool has_times();

// The times of a kernel's problem, or of anything timed on the named machine: the fastest first, of
// equals the one that the file names first. Empty where there are none.
TFK_API std::vector<Time> times_of(const std::string& timed);
TFK_API std::vector<Time> times_of(const std::string& machine, const std::string& timed);

}  // namespace transformer_kernels
