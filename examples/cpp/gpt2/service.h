// SPDX-License-Identifier: MIT
// The endpoints of the server: each answers at one path.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answer.h"
#include "http_server.h"
#include "metrics.h"
#include "requests.h"
#include "scheduler.h"
#include "tokenizer.h"

namespace gpt2 {

// The bounds behind which a request is refused.
struct Limits {
  std::int64_t body_bytes, new_tokens;
  std::int64_t context;  // tokens of a prompt and its answer
  double seconds;        // from a request's arrival to its last token
  double patience;       // in which a client has to send a request's body
};

// A request may ask if it brings the token, where there is one, and if it names this machine as its
// host where `local`: no page of the web that gave itself a local address can read answers.
struct Access {
  std::optional<std::string> token;
  bool local;
};

class Service {
 public:
  // All that is given outlives the service.
  Service(const Gpt2& model, const Tokenizer& tokenizer, Scheduler& scheduler, std::string name,
          const Limits& limits, Access access);

  // Puts the endpoints into a server.
  void add_to(HttpServer& server);

 private:
  struct Completion;

  void check(const httplib::Request& request) const;
  void complete(const httplib::Request& request, httplib::Response& response,
                const httplib::ContentReader& reader);
  std::vector<std::int32_t> tokens_of(const Asked& asked) const;
  void check_token(std::int32_t token, const std::string& place, const std::string& param) const;
  std::shared_ptr<Completion> open(const Asked& asked);
  std::string next(Completion& completion);
  void whole(const httplib::Request& request, httplib::Response& response, Completion& completion);
  bool stream(const httplib::Request& request, httplib::DataSink& sink, Completion& completion,
              bool include_usage);
  std::string models() const;

  const Gpt2& model_;
  const Tokenizer& tokenizer_;
  Scheduler& scheduler_;
  const std::string name_;
  const Limits limits_;
  const Access access_;
  const std::int64_t created_;
  Metrics metrics_;
};

}  // namespace gpt2
