// SPDX-License-Identifier: MIT
#include "service.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <utility>

#include "access.h"
#include "log_probs.h"

namespace gpt2 {
namespace {

using httplib::Request;
using httplib::Response;
using nlohmann::json;
using Clock = Scheduler::Clock;

constexpr const char* kJson = "application/json";
constexpr std::int64_t kUsualTokens = 16;  // of a completion, as OpenAI's
constexpr int kGone = 499;                 // nginx's status for a client that left; nobody reads it
constexpr std::chrono::milliseconds kLook{50};  // between two looks whether a client is there

struct Endpoint {
  const char *path, *method, *name;
};
constexpr Endpoint kEndpoints[] = {{"/v1/completions", "POST", "completions"},
                                   {"/v1/models", "GET", "models"},
                                   {"/metrics", "GET", "numbers"},
                                   {"/health", "GET", "health"}};

const Endpoint* endpoint_of(const std::string& path) {
  const auto* found = std::find_if(std::begin(kEndpoints), std::end(kEndpoints),
                                   [&](const Endpoint& each) { return path == each.path; });
  return found == std::end(kEndpoints) ? nullptr : found;
}

double seconds_since(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

void refuse(Response& response, const Refusal& refusal) {
  response.status = refusal.status();
  if (refusal.status() == 401) response.set_header("WWW-Authenticate", "Bearer");
  if (refusal.status() == 429) response.set_header("Retry-After", "1");
  response.set_content(text_of(refusal.body()), kJson);
}

// Calls a function, and returns whether it did not throw; the answer is the refusal then. Only the
// log has more of what nobody foresaw.
template <class Function>
bool guarded(Response& response, Function function) {
  try {
    function();
    return true;
  } catch (const Refusal& refusal) {
    refuse(response, refusal);
  } catch (const QueueFull& error) {
    refuse(response, Refusal(429, error.what(), "", "queue_full"));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2: a request failed: %s\n", error.what());
    refuse(response,
           Refusal(500, "the server failed to answer this request", "", "internal_error"));
  }
  return false;
}

std::string event(const json& content) { return "data: " + text_of(content) + "\n\n"; }

bool send(httplib::DataSink& sink, const std::string& text) {
  return sink.write(text.data(), text.size());
}

}  // namespace

// A completion on its way. Whoever lets it go before its end has left.
struct Service::Completion {
  Completion(Service& service, Answer answer, const Asked& asked)
      : service(service),
        answer(std::move(answer)),
        text(asked.stop) {
    if (asked.sampling.likeliest.has_value()) log_probs.emplace(service.tokenizer_);
  }
  ~Completion() {
    if (request == nullptr) return;
    if (service.scheduler_.cancel(*request) && !is_refused) service.metrics_.count_cancelled();
    service.metrics_.count_end(seconds_since(began));
  }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // The log-probabilities of what was written since the last call.
  json take_log_probs() { return log_probs.has_value() ? log_probs->take(written) : json(); }

  Service& service;
  Answer answer;
  Text text;
  std::optional<LogProbs> log_probs;  // where they are asked for
  std::int64_t written = 0;           // characters
  std::string reason;                 // why it has ended
  bool is_refused = false;            // by the server, behind its beginning
  const Clock::time_point began = Clock::now();
  std::shared_ptr<Scheduler::Request> request;
};

Service::Service(const Gpt2& model, const Tokenizer& tokenizer, Scheduler& scheduler,
                 std::string name, const Limits& limits, Access access)
    : model_(model),
      tokenizer_(tokenizer),
      scheduler_(scheduler),
      name_(std::move(name)),
      limits_(limits),
      access_(std::move(access)),
      created_(std::time(nullptr)) {}

void Service::add_to(HttpServer& server) {
  // A request that no endpoint takes is refused before httplib reads its body.
  server.set_pre_routing_handler([this](const Request& request, Response& response) {
    return guarded(response, [&] { check(request); }) ? HttpServer::HandlerResponse::Unhandled
                                                      : HttpServer::HandlerResponse::Handled;
  });
  server.Post("/v1/completions", [this](const Request& request, Response& response,
                                        const httplib::ContentReader& reader) {
    guarded(response, [&] { complete(request, response, reader); });
  });
  server.Get("/v1/models",
             [this](const Request&, Response& response) { response.set_content(models(), kJson); });
  server.Get("/metrics", [this](const Request&, Response& response) {
    response.set_content(metrics_.text(scheduler_.status()),
                         "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/health", [](const Request&, Response& response) {
    response.set_content(text_of({{"status", "ok"}}), kJson);
  });
  server.set_error_handler([](const Request&, Response& response) {  // of httplib's own errors
    if (response.body.empty())
      refuse(response, Refusal(response.status, "the request cannot be read"));
  });
  server.set_logger([this](const Request& request, const Response& response) {
    const Endpoint* endpoint = endpoint_of(request.path);
    metrics_.count_answer(endpoint == nullptr ? "none" : endpoint->name, response.status);
  });
}

void Service::check(const Request& request) const {
  const Endpoint* endpoint = endpoint_of(request.path);
  if (endpoint == nullptr) throw Refusal(404, "Not Found");
  if (request.method != endpoint->method) throw Refusal(405, "Method Not Allowed");
  if (request.path == "/health") return;
  if (access_.local && !names_this_machine(request.get_header_value("Host"))) {
    throw Refusal(403, "the host is none of this machine's names", "host");
  }
  if (access_.token.has_value() &&
      !brings_token(request.get_header_value("Authorization"), *access_.token)) {
    throw Refusal(401, "the bearer token is missing or wrong", "", "invalid_api_key");
  }
}

std::string Service::models() const {
  const json own = {{"id", name_},
                    {"object", "model"},
                    {"created", created_},
                    {"owned_by", "transformer-kernels"}};
  return text_of({{"object", "list"}, {"data", json::array({own})}});
}

void Service::complete(const Request& request, Response& response,
                       const httplib::ContentReader& reader) {
  // A page of another origin can send other types without asking first.
  const std::string type = request.get_header_value("Content-Type");
  if (type.substr(0, type.find_first_of("; \t")) != kJson) {
    throw Refusal(415, "the content type is not application/json", "content-type");
  }
  const Asked asked = read_asked(read_body(request, reader, limits_.body_bytes, limits_.patience));
  const std::shared_ptr<Completion> completion = open(asked);
  if (!asked.stream) return whole(request, response, *completion);
  response.set_header("Cache-Control", "no-cache");
  response.set_chunked_content_provider(
      "text/event-stream",
      [=, this, &request, usage = asked.include_usage](std::size_t, httplib::DataSink& sink) {
        return stream(request, sink, *completion, usage);
      });
}

std::vector<std::int32_t> Service::tokens_of(const Asked& asked) const {
  const auto* text = std::get_if<std::string>(&asked.prompt);
  std::vector<std::int32_t> tokens = text != nullptr
                                         ? tokenizer_.encode(*text)
                                         : std::get<std::vector<std::int32_t>>(asked.prompt);
  if (tokens.empty()) throw Refusal(400, "prompt_tokens is empty");
  check_token(*std::max_element(tokens.begin(), tokens.end()), "prompt_tokens", "");
  return tokens;
}

void Service::check_token(std::int32_t token, const std::string& place,
                          const std::string& param) const {
  if (const std::int64_t vocabulary = model_.config().vocabulary; token >= vocabulary) {
    throw Refusal(400,
                  place + " has the token " + std::to_string(token) + ", expected less than " +
                      std::to_string(vocabulary),
                  param);
  }
}

std::shared_ptr<Service::Completion> Service::open(const Asked& asked) {
  if (asked.model.has_value() && *asked.model != name_) {
    throw Refusal(404, "no such model, expected " + name_, "model", "model_not_found");
  }
  const std::int64_t count = asked.max_tokens.value_or(std::min(kUsualTokens, limits_.new_tokens));
  if (count > limits_.new_tokens) {
    throw Refusal(400,
                  "max_tokens is " + std::to_string(count) + ", expected at most " +
                      std::to_string(limits_.new_tokens),
                  "max_tokens");
  }
  for (const Bias& bias : asked.sampling.bias) check_token(bias.token, "logit_bias", "logit_bias");
  std::vector<std::int32_t> tokens = tokens_of(asked);
  const std::int64_t length = std::ssize(tokens);
  if (count > limits_.context - length + 1) {  // the last is never stored
    throw Refusal(400,
                  "the prompt has " + std::to_string(length) + " tokens and the answer may have " +
                      std::to_string(count) + ", which is more than the context of " +
                      std::to_string(limits_.context),
                  "", "context_length_exceeded");
  }
  auto completion = std::make_shared<Completion>(*this, Answer(name_, length), asked);
  completion->request =
      scheduler_.submit({.prompt = std::move(tokens), .tokens = count, .sampling = asked.sampling});
  metrics_.count_prompt(length);
  return completion;
}

// The next text, which may be empty. Sets the reason where it is the last.
std::string Service::next(Completion& completion) {
  const auto most =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits_.seconds));
  const Clock::time_point end = completion.began + most;
  const Scheduler::News news =
      scheduler_.wait(*completion.request, std::min(end, Clock::now() + kLook));
  std::string text;
  for (const Drawn& drawn : news.tokens) {
    const bool is_first = completion.answer.new_tokens++ == 0;
    metrics_.count_token(is_first ? seconds_since(completion.began) : -1);
    if (completion.log_probs.has_value()) completion.log_probs->add(drawn, completion.text.count());
    text += completion.text.add(tokenizer_.decode({&drawn.chosen.token, 1}));
    if (completion.text.is_over()) break;
  }
  if (completion.text.is_over()) {
    scheduler_.cancel(*completion.request);
    completion.reason = "stop";
  } else if (news.end == End::kStop || news.end == End::kLength) {
    text += completion.text.finish();
    completion.reason = news.end == End::kStop || completion.text.is_over() ? "stop" : "length";
  } else if (news.end == End::kFailed) {
    throw Refusal(500, "the model failed", "", "internal_error");
  } else if (Clock::now() >= end) {
    completion.is_refused = true;
    throw Refusal(503, "the answer took too long", "", "timeout");
  }
  completion.written += count_characters(text);
  return text;
}

void Service::whole(const Request& request, Response& response, Completion& completion) {
  std::string text;
  while (completion.reason.empty()) {
    text += next(completion);
    if (completion.reason.empty() && HttpServer::has_left(request)) {
      response.status = kGone;
      return;
    }
  }
  const json answer = completion.answer.whole(text, completion.reason, completion.take_log_probs());
  response.set_content(text_of(answer), kJson);
}

bool Service::stream(const Request& request, httplib::DataSink& sink, Completion& completion,
                     bool include_usage) {
  const Answer& answer = completion.answer;
  try {
    while (completion.reason.empty()) {
      const std::string text = next(completion);
      if (!text.empty() || !completion.reason.empty()) {
        const json piece = answer.piece(text, completion.reason, completion.take_log_probs());
        if (!send(sink, event(piece))) return false;
      }
      if (completion.reason.empty() && HttpServer::has_left(request)) return false;
    }
    if (include_usage) send(sink, event(answer.end()));
    send(sink, "data: [DONE]\n\n");
  } catch (const Refusal& refusal) {  // the status was sent before it was known
    send(sink, event(refusal.body()));
  }
  sink.done();
  return true;
}

}  // namespace gpt2
