// SPDX-License-Identifier: MIT
#include "access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "files.h"

namespace gpt2 {
namespace {

constexpr const char* kVariable = "TFK_TOKEN";

}  // namespace

bool is_loopback(const std::string& host) {
  in_addr four;
  in6_addr six;
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, host.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return host == "localhost";
}

bool names_this_machine(const std::string& host) {
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    return end != host.npos && is_loopback(host.substr(1, end - 1));
  }
  return is_loopback(host.substr(0, host.find(':')));
}

bool brings_token(const std::string& authorization, const std::string& token) {
  const std::string wanted = "Bearer " + token;
  unsigned difference = authorization.size() != wanted.size();
  for (std::size_t i = 0; i < std::min(authorization.size(), wanted.size()); ++i) {
    difference |=
        static_cast<unsigned char>(authorization[i]) ^ static_cast<unsigned char>(wanted[i]);
  }
  return difference == 0;
}

std::optional<std::string> read_token(const std::filesystem::path& file) {
  const char* variable = std::getenv(kVariable);
  if (file.empty() && variable == nullptr) return std::nullopt;
  std::string token = file.empty() ? variable : read_text(file);
  while (!file.empty() && !token.empty() &&
         std::isspace(static_cast<unsigned char>(token.back()))) {
    token.pop_back();
  }
  // httplib decodes what follows a percent sign in a header.
  const bool is_plain = std::all_of(token.begin(), token.end(),
                                    [](char c) { return c >= ' ' && c <= '~' && c != '%'; });
  if (token.empty() || !is_plain) {
    throw std::runtime_error((file.empty() ? kVariable : file.string()) +
                             ": holds no token, expected printable ASCII characters but for %");
  }
  return token;
}

}  // namespace gpt2
