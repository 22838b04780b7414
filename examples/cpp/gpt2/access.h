// SPDX-License-Identifier: MIT
// Who may ask the server.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace gpt2 {

// Whether an address is seen by this machine alone.
bool is_loopback(const std::string& host);

// Whether a header names this machine as the host of a request, with any port.
bool names_this_machine(const std::string& host);

// Whether a header brings the bearer token, in a time that depends on the lengths alone.
bool brings_token(const std::string& authorization, const std::string& token);

// The bearer token of a file, or without one that of the environment variable TFK_TOKEN; nothing
// where neither is there. Throws std::runtime_error where there is one that nobody can send.
std::optional<std::string> read_token(const std::filesystem::path& file);

}  // namespace gpt2
