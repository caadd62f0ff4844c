// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/engine_options.h"
#include "apps/server/host_names.h"
#include "apps/server/service.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/host_memory.h"
#include "engine/model_text.h"
#include "formats/model_folder.h"

namespace coluber::cli {
namespace {

using server::Service;
using server::ServiceOptions;

constexpr int64_t kDefaultMaxNumSeqs = 32;
constexpr size_t kMaxKeyFileBytes = 1 << 20;
constexpr double kMaxSeconds = 1e7;

struct ServeOptions {
  EngineFlags engine;
  ServiceOptions service;
  int64_t port = 8000;
  std::vector<std::string> api_keys;
  std::optional<std::string> api_key_file;
  std::optional<std::string> traces_endpoint;
  bool no_page = false;
  std::optional<int64_t> max_session_bytes;
  std::optional<double> session_idle_timeout;
  std::optional<double> header_timeout, body_timeout, idle_timeout, write_timeout, request_timeout, shutdown_timeout;
};

void declare_address(Arguments& arguments, ServeOptions& options) {
  auto& http = options.service.http;
  arguments.section("Address");
  arguments.text("--host", &http.host, "ADDRESS",
                 "where to listen; 0.0.0.0 or :: lets other machines in, and then --api-key is a good idea");
  arguments.integer("--port", &options.port, {0, 65535}, "0: any free one, which is told");
  arguments.text("--unix-socket", &http.unix_socket, "PATH", "listen at this socket instead of an address");
  arguments.text("--ssl-certfile", &http.ssl_certfile, "FILE",
                 "serve TLS with this certificate (PEM, its chain behind it)");
  arguments.text("--ssl-keyfile", &http.ssl_keyfile, "FILE", "the certificate's key (PEM)");
  arguments.texts(
      "--served-model-name", &options.service.served_names, "NAME",
      "what clients call the model; the first stands in answers. Without it the name of the model's folder");
  arguments.flag("--no-page", &options.no_page, "serve the API alone, without the page at /");
}

void declare_sessions(Arguments& arguments, ServeOptions& options) {
  server::SessionOptions& sessions = options.service.sessions;
  arguments.section("Sessions");
  arguments.text("--session-dir", &sessions.dir, "DIR",
                 "folder for sessions that clients save, and for those that are parked: beyond the limits below, and "
                 "all of them at the end; the next server finds them. Without it sessions end with the server");
  arguments.integer("--max-sessions", &sessions.max_sessions, {0, 1 << 24}, "sessions that may exist, parked ones too");
  arguments.bytes("--max-session-bytes", &options.max_session_bytes, available_memory_bytes,
                  "memory of sessions that no request uses, of the cache; without it a quarter of the cache");
  arguments.integer("--max-session-checkpoints", &sessions.max_checkpoints, {0, 1024},
                    "places where a turn began that a session can go back to without computing; each holds a copy of "
                    "the states");
  arguments.number("--session-idle-timeout", &options.session_idle_timeout, {0.0, kMaxSeconds},
                   "seconds after which an idle session is parked or, without --session-dir, ended; 0: never; without "
                   "it 600");
}

void declare_access(Arguments& arguments, ServeOptions& options) {
  ServiceOptions& service = options.service;
  arguments.section("Who may come in");
  arguments.texts("--api-key", &options.api_keys, "KEY",
                  "clients must send this key; may be given several times. Others on this machine can see it: "
                  "COLUBER_API_KEY and --api-key-file keep it to yourself");
  arguments.text("--api-key-file", &options.api_key_file, "FILE", "keys, one a line");
  arguments.texts(
      "--allowed-origin", &service.allowed_origins, "ORIGIN",
      "web pages from here may use the server (CORS); * is every page. Without it no page of another origin "
      "may");
  arguments.texts(
      "--allowed-host", &service.allowed_hosts, "NAME",
      "a name in the Host of requests that are answered, beside localhost, loopback addresses and --host; "
      "may be given several times. Without it a server without keys at a loopback address answers those "
      "alone, so that no web page can use it under a name of its own (DNS rebinding), and others answer any");
  arguments.integer("--max-requests-per-key", &service.max_requests_per_key, {0, 1 << 20},
                    "requests of one key at once; 0: no limit");
  arguments.section("Limits");
  arguments.integer("--max-queue", &service.max_queue, {0, 1 << 20},
                    "requests that may wait beyond those that run; more are answered 429 at once");
  arguments.integer("--max-request-bytes", &service.http.max_body_bytes, {1024, int64_t{1} << 30},
                    "longest body of a request");
  arguments.integer("--max-connections", &service.http.max_connections, {1, 1 << 20}, "connections at once");
  arguments.number("--request-timeout", &options.request_timeout, {0.0, kMaxSeconds},
                   "seconds a request may take; 0 (the default): as long as it needs");
  arguments.number("--header-timeout", &options.header_timeout, {0.01, kMaxSeconds},
                   "seconds in which the head of a request must come; without it 10");
  arguments.number("--body-timeout", &options.body_timeout, {0.01, kMaxSeconds},
                   "seconds in which its body must come; without it 60");
  arguments.number("--idle-timeout", &options.idle_timeout, {0.01, kMaxSeconds},
                   "seconds that a connection may lie idle; without it 75");
  arguments.number("--stream-write-timeout", &options.write_timeout, {0.01, kMaxSeconds},
                   "seconds in which a client must take some of its answer before it is cut; without it 30");
  arguments.number("--shutdown-timeout", &options.shutdown_timeout, {0.0, kMaxSeconds},
                   "seconds that running requests have to end after SIGTERM or Ctrl-C; a second one stops at once; "
                   "without it 30");
  declare_sessions(arguments, options);
  arguments.section("Logs and traces");
  arguments.choice("--access-log", &service.access_log, {"off", "text", "json"},
                   "a line for each request to standard error, without what was asked");
  arguments.text("--otlp-traces-endpoint", &options.traces_endpoint, "URL",
                 "send a trace of each request to this collector (OTLP over HTTP, as http://localhost:4318/v1/traces), "
                 "without what was asked");
  arguments.flag("--log-prompts", &service.log_prompts, "with what was asked: bodies of requests stand in the log");
}

template <typename List, typename Name>
std::vector<std::string> names_of(std::vector<std::string> first, const List& list, const Name& name_of) {
  for (const auto& one : list) first.emplace_back(name_of(one));
  return first;
}

void declare_answers(Arguments& arguments, ServeOptions& options) {
  arguments.section("How answers are read");
  arguments.choice("--tool-call-parser", &options.service.tool_call_parser,
                   names_of({"auto"}, tool_formats(), [](const ToolFormat* format) { return format->name; }),
                   "how the model writes calls of tools; auto: as its chat template tells");
  arguments.choice(
      "--reasoning-parser", &options.service.reasoning_parser,
      names_of({"auto", "none"}, reasoning_formats(), [](const ReasoningFormat& format) { return format.name; }),
      "the marks around what the model thinks before it answers; auto: as its chat template tells");
}

void declare(Arguments& arguments, ServeOptions& options) {
  options.engine.declare_model(arguments);
  declare_address(arguments, options);
  declare_access(arguments, options);
  declare_answers(arguments, options);
  options.engine.declare_serving(arguments, kDefaultMaxNumSeqs);
  options.engine.declare(arguments);
  arguments.example("coluber serve", "the built-in model at http://127.0.0.1:8000");
  arguments.example("coluber serve path/to/model --host 0.0.0.0 --api-key-file keys.txt", "for others, with keys");
  arguments.example(
      "curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\":\"Once upon a time\",\"max_tokens\":20}'", "ask it");
  arguments.footnote(
      "Clients of OpenAI's API work with the base URL http://HOST:PORT/v1. docs/api.md lists the routes and their "
      "fields, "
      "docs/serving.md tells how to run this in front of users.");
}

std::vector<std::string> keys(const ServeOptions& options) {
  std::vector<std::string> all = options.api_keys;
  if (const char* key = std::getenv("COLUBER_API_KEY"); key != nullptr) all.emplace_back(key);
  if (options.api_key_file) {
    std::istringstream lines(read_text_file(*options.api_key_file, kMaxKeyFileBytes));
    size_t found = 0;
    for (std::string line; std::getline(lines, line);) {
      line.erase(line.find_last_not_of(" \t\r") + 1);
      if (line.empty()) continue;
      all.push_back(line);
      ++found;
    }
    // Nobody wants a file of keys that lets everybody in.
    if (found == 0)
      throw make_error(ErrorCode::kInvalidArgument, "--api-key-file {} holds no key; expected one a line",
                       *options.api_key_file);
  }
  for (const std::string& key : all)
    if (key.empty())
      throw Error(ErrorCode::kInvalidArgument, "--api-key and COLUBER_API_KEY expect a key, found an empty one");
  return all;
}

void take(double* to, const std::optional<double>& from) { *to = from.value_or(*to); }

ServiceOptions service_options(const ServeOptions& options, const std::string& model) {
  ServiceOptions service = options.service;
  service.http.port = static_cast<int>(options.port);
  service.api_keys = keys(options);
  service.page = !options.no_page;
  if (options.traces_endpoint) service.traces = server::trace_export(*options.traces_endpoint);
  take(&service.http.header_timeout_s, options.header_timeout);
  take(&service.http.body_timeout_s, options.body_timeout);
  take(&service.http.idle_timeout_s, options.idle_timeout);
  take(&service.http.write_timeout_s, options.write_timeout);
  take(&service.request_timeout_s, options.request_timeout);
  take(&service.shutdown_timeout_s, options.shutdown_timeout);
  take(&service.sessions.idle_timeout_s, options.session_idle_timeout);
  service.sessions.max_bytes = options.max_session_bytes.value_or(0);
  if (service.served_names.empty()) {
    const std::filesystem::path path = std::filesystem::absolute(model).lexically_normal();
    service.served_names.push_back(path.has_filename() ? path.filename() : path.parent_path().filename());
  }
  for (const std::string& host : service.allowed_hosts)
    if (server::host_name(host).empty())
      throw make_error(ErrorCode::kInvalidArgument,
                       "--allowed-host expects the name or address of a host, as in 'box.example', '10.0.0.2' or "
                       "'[fd00::2]', found '{}'",
                       host);
  for (const std::string& name : service.served_names) {
    check_utf8(name, "the name after --served-model-name");
    if (name.empty())
      throw Error(ErrorCode::kInvalidArgument, "--served-model-name expects a name, found an empty one");
  }
  return service;
}

}  // namespace

int serve_command(const std::vector<std::string>& args) {
  Arguments arguments(
      "serve",
      "Serves a model over HTTP, as OpenAI's API: many clients at once, streams, and prompts that begin "
      "alike share what was computed of them.");
  ServeOptions options;
  declare(arguments, options);
  if (!arguments.parse(args)) return 0;
  const EngineOptions engine_options = options.engine.options();
  ServiceOptions service = service_options(options, engine_options.model);
  std::unique_ptr<Engine> engine = load_engine_with_progress(engine_options);
  std::unique_ptr<Tokenizer> tokenizer;
  if (engine->has_tokenizer()) tokenizer = find_tokenizer(resolve_model(engine_options.model));
  const std::string name = service.served_names.front();
  Service server(std::move(service), std::move(engine), std::move(tokenizer));
  notice(fmt::format("serving '{}' at {}", name, server.address()));
  if (!server.run()) throw Error(ErrorCode::kCancelled, "stopped before every request had ended");
  return 0;
}

}  // namespace coluber::cli
