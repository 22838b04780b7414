// SPDX-License-Identifier: MIT
// The command that serves a model over HTTP, until it is told to end.
#include "serve.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "access.h"
#include "http_server.h"
#include "options.h"
#include "scheduler.h"
#include "service.h"

namespace gpt2 {
namespace {

constexpr std::chrono::seconds kGrace{5};  // that answers have to end, where the server has to

struct ServeOptions {
  ModelOptions model;
  Path token_file;
  std::string name, host = "127.0.0.1";
  int port = 8000;
  std::int64_t sequences = 16, queue = 256, connections = 1000;
  std::int64_t cache_tokens = 0;  // 0: as many as may run at a time
  Limits limits = {
      .body_bytes = 1 << 20, .new_tokens = 4096, .context = 4096, .seconds = 600, .patience = 30};
};

// The signals that end the server, which only the thread that waits for them gets.
sigset_t ends() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

std::string url_of(const std::string& host, int port) {
  const bool is_six = host.find(':') != host.npos;
  return "http://" + (is_six ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string name_of(const Path& model) {
  const Path path = std::filesystem::canonical(model);
  return (std::filesystem::is_directory(path) ? path.filename() : path.stem()).string();
}

// Serves until a signal comes; throws where the server cannot go on before.
void run(HttpServer& server, Scheduler& scheduler, const std::string& ready) {
  const sigset_t set = ends();
  bool is_well = true;
  std::thread accepting([&] {
    is_well = server.serve([&] {
      std::puts(ready.c_str());
      std::fflush(stdout);
    });
    if (!is_well) kill(getpid(), SIGTERM);
  });
  int signal = 0;
  sigwait(&set, &signal);
  server.finish(kGrace);
  scheduler.stop();
  server.abort();
  accepting.join();
  if (!is_well) throw std::runtime_error("no more connections can be accepted");
}

void serve(const ServeOptions& options) {
  const Access access = {.token = read_token(options.token_file),
                         .local = is_loopback(options.host)};
  if (!access.token.has_value() && !access.local) {
    throw std::runtime_error("--host is " + options.host +
                             ", which other machines see: give a token (--token-file, or the "
                             "environment variable TFK_TOKEN)");
  }
  const Gpt2 model = options.model.load();
  const Tokenizer tokenizer = options.model.load_tokenizer(model);
  Limits limits = options.limits;
  limits.context = std::min(limits.context, model.config().positions);
  const std::int64_t wanted =
      options.cache_tokens > 0 ? options.cache_tokens : options.sequences * limits.context;
  const std::int64_t pages = (wanted + kPage - 1) / kPage;
  limits.context = std::min(limits.context, pages * kPage);

  const sigset_t set = ends();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);  // before there are threads
  Scheduler scheduler(model, {.sequences = options.sequences,
                              .waiting = options.queue,
                              .pages = pages,
                              .stop = tokenizer.end_of_text()});
  const std::string name = options.name.empty() ? name_of(options.model.path) : options.name;
  Service service(model, tokenizer, scheduler, name, limits, access);
  HttpServer server(options.connections,
                    std::chrono::duration_cast<HttpServer::Duration>(
                        std::chrono::duration<double>(limits.patience)),
                    text_of(Refusal(503, "too many connections, try again later").body()));
  service.add_to(server);
  const int port = server.bind(options.host, options.port);
  run(server, scheduler, name + " is served at " + url_of(options.host, port) + "; Ctrl-C ends it");
}

}  // namespace

void add_serve(CLI::App& app) {
  const auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Answer requests over HTTP, as OpenAI's API has");
  const auto number = numbers_of(*command);
  const auto positive = CLI::Range(1.0, 1e12);
  const auto seconds = CLI::Range(1e-3, 1e9);
  add_model(*command, options->model);
  command->add_option("--name", options->name, "The model's name; without it the file's");
  number("--host", options->host, "The address; one that other machines see needs a token");
  number("--port", options->port, "0 takes one that is free")->check(CLI::Range(0, 65535));
  command->add_option("--token-file", options->token_file,
                      "A file with the bearer token that requests have to bring; without it the "
                      "token is in the environment variable TFK_TOKEN");
  number("--sequences", options->sequences, "The most requests that run at a time")
      ->check(CLI::Range(1, 4096));
  number("--queue", options->queue, "The most requests that wait")->check(positive);
  number("--connections", options->connections, "The most connections")->check(positive);
  command
      ->add_option("--cache-tokens", options->cache_tokens,
                   "Tokens that the cache holds; without it the context of each request that "
                   "runs")
      ->check(positive);
  number("--context", options->limits.context, "The most tokens of a prompt and its answer")
      ->check(positive);
  number("--max-tokens", options->limits.new_tokens, "The most tokens of an answer")
      ->check(positive);
  number("--max-body", options->limits.body_bytes, "The most bytes of a body")->check(positive);
  number("--timeout", options->limits.seconds, "The most seconds of an answer")->check(seconds);
  number("--patience", options->limits.patience,
         "Seconds in which a client has to send a request, and to read what is ready for it")
      ->check(seconds);
  command->callback([options] { serve(*options); });
}

}  // namespace gpt2
