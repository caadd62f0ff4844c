// SPDX-License-Identifier: Apache-2.0
//
// The routes of the server and what stands before all of them: keys, limits, the bounded queue, logs, and the way down.
// Owns what is behind the routes. `run` serves until SIGTERM or SIGINT.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "apps/server/dialect.h"
#include "apps/server/job.h"

namespace coluber::server {

struct ServiceOptions {
  HttpServerOptions http;
  std::vector<std::string> served_names;
  std::vector<std::string> api_keys;  // empty: everybody may
  std::vector<std::string> allowed_origins;
  // Names by which requests may ask for the server, beside loopback names and http.host; empty: only a server without
  // keys at a loopback address looks.
  std::vector<std::string> allowed_hosts;
  int64_t max_queue = 256;           // answers beyond max_num_seqs that may wait
  int64_t max_requests_per_key = 0;  // at once; 0: no limit
  double request_timeout_s = 0.0;    // 0: none
  double shutdown_timeout_s = 30.0;
  std::optional<TraceExport> traces;  // nothing: none are made
  std::string access_log = "off";     // "off", "text", "json": one line a request to standard error
  bool log_prompts = false;
  bool page = true;                       // at /
  std::string tool_call_parser = "auto";  // or a ToolFormat's name
  std::string reasoning_parser = "auto";  // or "none", or a ReasoningFormat's name
  SessionOptions sessions;
};

class Service {
 public:
  Service(ServiceOptions options, std::unique_ptr<Engine> engine, std::unique_ptr<Tokenizer> tokenizer);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  std::string address() const { return http_->address(); }
  // Returns true where every request that had begun could end, false where some were stopped.
  bool run();

 private:
  struct Call;
  using Handler = void (Service::*)(const std::shared_ptr<Call>& call);
  struct Route {
    std::string_view method, path;
    Handler handler;
    bool is_open;  // needs no key
    std::string_view summary;
    Json (*body)(const ModelFacts& facts, const Engine& engine) = nullptr;  // its schema; null: there is none
    std::string_view type = "application/json", stream_type = {};           // of answers
    Json (*error_body)(const ApiError& error) = [](const ApiError& error) { return error.json(); };
  };
  static const Route kRoutes[];

  void handle(HttpRequest request, std::shared_ptr<HttpStream> stream);
  const Route* find_route(Call& call);
  void choose_hosts();
  bool check_host(Call& call);
  bool check_key(Call& call);
  bool take_place(Call& call);
  void add_origin(Call& call);
  void answer(Call& call, int status, std::string body, std::string_view type = "application/json");
  void answer_error(Call& call, const ApiError& error);
  void ended(Call& call, int status);
  // Runs `work` on a worker and answers with what it returns, or with what it throws.
  void answer_on_worker(const std::shared_ptr<Call>& call, std::function<ApiResult<std::string>()> work);
  // The same over the fields of the body, which may be missing.
  void answer_with_fields(const std::shared_ptr<Call>& call,
                          std::function<ApiResult<std::string>(JsonFields& fields)> work);

  Json openapi() const;
  Json described(const Route& route) const;
  void get_openapi(const std::shared_ptr<Call>& call);
  void get_health(const std::shared_ptr<Call>& call);
  void get_ready(const std::shared_ptr<Call>& call);
  void get_page(const std::shared_ptr<Call>& call);
  void get_version(const std::shared_ptr<Call>& call);
  void get_models(const std::shared_ptr<Call>& call);
  void get_model(const std::shared_ptr<Call>& call);
  void get_metrics(const std::shared_ptr<Call>& call);
  void post_tokenize(const std::shared_ptr<Call>& call);
  void post_detokenize(const std::shared_ptr<Call>& call);
  void post_completions(const std::shared_ptr<Call>& call);
  void post_chat_completions(const std::shared_ptr<Call>& call);
  void post_responses(const std::shared_ptr<Call>& call);
  void get_response(const std::shared_ptr<Call>& call);
  void delete_response(const std::shared_ptr<Call>& call);
  void post_messages(const std::shared_ptr<Call>& call);
  void post_count_tokens(const std::shared_ptr<Call>& call);
  void post_ollama_chat(const std::shared_ptr<Call>& call);
  void post_ollama_generate(const std::shared_ptr<Call>& call);
  void get_ollama_tags(const std::shared_ptr<Call>& call);
  void post_embeddings(const std::shared_ptr<Call>& call);
  void post_sessions(const std::shared_ptr<Call>& call);
  void get_sessions(const std::shared_ptr<Call>& call);
  void get_session(const std::shared_ptr<Call>& call);
  void delete_session(const std::shared_ptr<Call>& call);
  void fork_session(const std::shared_ptr<Call>& call);
  void roll_session_back(const std::shared_ptr<Call>& call);
  void save_session(const std::shared_ptr<Call>& call);
  static std::string owner_of(const Call& call);
  static Caller caller_of(const Call& call);
  void begin_trace(Call& call);
  void generate(const std::shared_ptr<Call>& call, std::unique_ptr<Dialect> dialect);
  void start_job(const std::shared_ptr<Call>& call,
                 const std::function<std::shared_ptr<Job>(Caller caller, Job::OnDone on_done)>& make);
  Json model_json(const std::string& name) const;

  void choose_readers(const Engine& engine);
  void keep_session_limits();
  void on_signal(int number);
  void stop_if_idle();

  ServiceOptions options_;
  ModelFacts facts_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<AnswerGrammars> grammars_;  // null where there is no tokenizer
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<TraceExporter> traces_;  // null: nobody wants them
  TraceIds trace_ids_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<AsyncEngine> engine_;
  std::unique_ptr<WorkQueue> workers_;
  std::unique_ptr<SessionStore> sessions_;
  std::unique_ptr<Serving> serving_;
  std::unordered_set<std::shared_ptr<Job>> jobs_;
  std::map<std::string, int64_t> running_by_key_;
  int64_t in_flight_ = 0;  // requests that have a place in the queue
  int64_t max_in_flight_ = 0;
  int64_t created_ = 0;
  bool checks_host_ = false;
  std::vector<std::string> hosts_;  // as host_name gives them
  std::string openapi_;
  uint64_t next_id_ = 0;
  std::string id_prefix_;
  bool draining_ = false;
  bool cut_short_ = false;
};

}  // namespace coluber::server
