// SPDX-License-Identifier: Apache-2.0
#include "apps/server/service.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>

#include "apps/server/embedding_job.h"
#include "apps/server/foreign_dialect.h"
#include "apps/server/generation_job.h"
#include "apps/server/host_names.h"
#include "apps/server/json_fields.h"
#include "apps/server/page.h"
#include "apps/server/service_call.h"
#include "apps/server/small_bodies.h"
#include "base/ascii.h"

namespace coluber::server {
namespace {

constexpr int kWorkers = 2;
constexpr size_t kMaxIdBytes = 128;

// Looks at every byte of both, whatever they are.
bool same_secret(std::string_view given, std::string_view secret) {
  size_t differs = given.size() ^ secret.size();
  for (size_t i = 0; i < given.size(); ++i)
    differs |= static_cast<size_t>(static_cast<unsigned char>(given[i]) ^
                                   static_cast<unsigned char>(secret.empty() ? 1 : secret[i % secret.size()]));
  return differs == 0;
}

// How often it is looked whether a session has lain idle too long.
double session_check_s(double idle_timeout_s) { return std::clamp(idle_timeout_s / 4.0, 0.05, 15.0); }

bool is_plain_id(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIdBytes && std::all_of(text.begin(), text.end(), [](char c) {
    return ascii::is_digit(c) || ascii::is_letter(c) || c == '-' || c == '_' || c == '.';
  });
}

Failure missing_tokenizer() {
  return {ErrorCode::kInvalidArgument, "this model has no tokenizer, so it can neither read nor write text", {}};
}

}  // namespace

Service::Service(ServiceOptions options, std::unique_ptr<Engine> engine, std::unique_ptr<Tokenizer> tokenizer)
    : options_(std::move(options)), tokenizer_(std::move(tokenizer)), created_(std::time(nullptr)) {
  facts_.served_names = options_.served_names;
  facts_.vocab_size = engine->model_info().vocab_size;
  facts_.max_model_len = engine->config().max_model_len;
  facts_.defaults = engine->default_sampling();
  choose_readers(*engine);
  max_in_flight_ = engine->config().scheduler.max_num_seqs + options_.max_queue;
  std::random_device random;
  id_prefix_ = fmt::format("{:08x}{:08x}", random(), random());
  metrics_ = std::make_unique<Metrics>(facts_.served_names.front());
  if (options_.traces) traces_ = std::make_unique<TraceExporter>(*options_.traces);
  http_ = std::make_unique<HttpServer>(
      options_.http,
      [this](HttpRequest request, std::shared_ptr<HttpStream> stream) {
        handle(std::move(request), std::move(stream));
      },
      [](int status, const std::string& message) {
        return api_error(status, message, status == 413 ? "request_too_large" : "bad_request").json().dump();
      });
  choose_hosts();
  engine_ = std::make_unique<AsyncEngine>(std::move(engine));
  workers_ = std::make_unique<WorkQueue>(kWorkers);
  sessions_ = std::make_unique<SessionStore>(
      options_.sessions, *engine_, [this] { workers_->push([this] { sessions_->enforce_limits(); }); },
      [this] { workers_->push_urgent([this] { sessions_->give_way(); }); });
  serving_ = std::make_unique<Serving>(
      Serving{*engine_, *http_, *workers_, *metrics_, *sessions_, facts_, tokenizer_.get(), grammars_.get()});
  openapi_ = openapi().dump();
  http_->on_signal([this](int number) { on_signal(number); });
}

// How answers of conversations are read, and which special tokens a grammar may need for it.
void Service::choose_readers(const Engine& engine) {
  const std::string source = engine.chat_template_source();
  facts_.tool_format =
      options_.tool_call_parser == "auto" ? detect_tool_format(source) : find_tool_format(options_.tool_call_parser);
  if (options_.reasoning_parser != "none")
    facts_.reasoning_format = options_.reasoning_parser == "auto" ? detect_reasoning_format(source)
                                                                  : find_reasoning_format(options_.reasoning_parser);
  if (!tokenizer_) return;
  std::vector<std::string> special;
  const auto note = [&](std::string_view marker) {
    const std::optional<int32_t> id = tokenizer_->token_to_id(marker);
    if (!id || !tokenizer_->is_special(*id)) return false;
    special.emplace_back(marker);
    return true;
  };
  if (facts_.tool_format != nullptr)
    for (const std::string_view marker : facts_.tool_format->markers) facts_.calls_are_special |= note(marker);
  if (facts_.reasoning_format != nullptr)
    for (const std::string_view marker : {facts_.reasoning_format->begin, facts_.reasoning_format->end})
      facts_.reasoning_is_special |= note(marker);
  grammars_ = std::make_unique<AnswerGrammars>(*tokenizer_, facts_.vocab_size, engine.eos_token_ids(), special);
}

// First whatever calls into others, then what it calls.
Service::~Service() {
  workers_->stop();
  sessions_->close();
  engine_.reset();
  http_->settle();
}

// ---- before every route ----------------------------------------------------------------------------------------

// A key is something that a page under another name does not have, and whoever listens elsewhere wants to be found
// under names that nobody here knows.
void Service::choose_hosts() {
  for (const std::string& name : options_.allowed_hosts) hosts_.push_back(host_name(name));
  hosts_.push_back(host_name(options_.http.host));
  const std::string address = http_->address();
  const size_t start = address.find("://");
  const bool is_loopback =
      start != std::string::npos && is_loopback_name(host_name(std::string_view(address).substr(start + 3)));
  checks_host_ = !options_.allowed_hosts.empty() || (is_loopback && options_.api_keys.empty());
}

// No browser leaves the Host out, so that one without it does no harm.
bool Service::check_host(Call& call) {
  const std::string* host = call.request.header("host");
  if (!checks_host_ || host == nullptr) return true;
  const std::string name = host_name(*host);
  if (is_loopback_name(name) || (!name.empty() && std::find(hosts_.begin(), hosts_.end(), name) != hosts_.end()))
    return true;
  answer_error(call,
               api_error(403,
                         name.empty() ? "the Host of this request is no name of a host; expected the server's, with or "
                                        "without a port"
                                      : fmt::format("this server is not known as '{}'; if it should be, start it with "
                                                    "--allowed-host {}",
                                                    name, name),
                         "host_not_allowed"));
  return false;
}

bool Service::check_key(Call& call) {
  if (options_.api_keys.empty()) return true;
  std::string given;
  if (const std::string* header = call.request.header("authorization"); header && header->starts_with("Bearer "))
    given = header->substr(7);
  if (const std::string* header = call.request.header("x-api-key")) given = *header;
  bool known = false;
  for (const std::string& key : options_.api_keys) known |= same_secret(given, key);
  if (known) {
    call.key = given;
    return true;
  }
  call.headers.emplace_back("WWW-Authenticate", "Bearer");
  answer_error(
      call,
      api_error(401, given.empty() ? "a key is missing: send 'Authorization: Bearer KEY'" : "this key is not known",
                "invalid_api_key"));
  return false;
}

void Service::add_origin(Call& call) {
  const std::string* origin = call.request.header("origin");
  if (origin == nullptr) return;
  for (const std::string& allowed : options_.allowed_origins) {
    if (allowed != "*" && allowed != *origin) continue;
    call.headers.emplace_back("Access-Control-Allow-Origin", allowed == "*" ? "*" : *origin);
    call.headers.emplace_back("Vary", "Origin");
    return;
  }
}

void Service::handle(HttpRequest request, std::shared_ptr<HttpStream> stream) {
  const auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->stream = std::move(stream);
  const std::string* given = call->request.header("x-request-id");
  call->id = given != nullptr && is_plain_id(*given) ? *given : fmt::format("{}{:x}", id_prefix_, next_id_++);
  call->headers.emplace_back("X-Request-Id", call->id);
  add_origin(*call);
  if (call->request.method == "OPTIONS" && call->headers.size() > 1) {
    call->headers.insert(call->headers.end(),
                         {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                          {"Access-Control-Allow-Headers", "authorization, content-type, x-api-key"},
                          {"Access-Control-Max-Age", "600"}});
    return answer(*call, 204, {});
  }
  const Route* route = find_route(*call);
  if (route == nullptr || !check_host(*call) || (!route->is_open && !check_key(*call))) return;
  if (traces_ && !route->is_open) begin_trace(*call);
  (this->*route->handler)(call);
}

// Whoever asks for the request's trace decides whether there is one; of others there always is.
void Service::begin_trace(Call& call) {
  constexpr size_t kMaxStateBytes = 512;
  TraceContext context{trace_ids_.trace_id(), {}};
  if (const std::string* parent = call.request.header("traceparent"))
    if (auto parsed = parse_traceparent(*parent)) context = std::move(*parsed);
  if (!context.sampled) return;
  if (const std::string* state = call.request.header("tracestate"); state && !context.parent_id.empty())
    if (state->size() <= kMaxStateBytes) context.state = *state;
  call.trace = std::make_shared<RequestTrace>(std::move(context), trace_ids_,
                                              fmt::format("{} {}", call.request.method.substr(0, 16), call.route));
  call.trace->set("http.request.method", call.request.method.substr(0, 16));
  call.trace->set("http.route", call.route);
  call.trace->set("gen_ai.request.id", call.id);
}

// ---- answers ---------------------------------------------------------------------------------------------------

void Service::answer(Call& call, int status, std::string body, std::string_view type) {
  HttpHeaders headers = call.headers;
  if (status != 204) headers.emplace_back("Content-Type", type);
  call.stream->respond(status, headers, std::move(body));
  ended(call, status);
}

void Service::answer_error(Call& call, const ApiError& error) {
  if (call.trace) call.trace->set("error.type", error.code);
  if (error.status == 429 || error.status == 503) call.headers.emplace_back("Retry-After", "1");
  answer(call, error.status, call.error_body(error).dump());
}

void Service::ended(Call& call, int status) {
  metrics_->answered(call.route, status);
  if (call.trace) traces_->push(call.trace->finish(status));
  if (call.has_place) {
    call.has_place = false;
    --in_flight_;
    if (auto found = running_by_key_.find(call.key); found != running_by_key_.end() && --found->second == 0)
      running_by_key_.erase(found);
  }
  if (options_.access_log == "off") return stop_if_idle();
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - call.begun).count();
  const std::string* trace = call.request.header("traceparent");
  Json line(Json::Object{{"time", static_cast<int64_t>(std::time(nullptr))},
                         {"request_id", call.id},
                         {"method", call.request.method.substr(0, 16)},
                         {"route", call.route},
                         {"status", status},
                         {"ms", ms}});
  if (trace != nullptr) line.set("traceparent", trace->substr(0, kMaxIdBytes));
  if (call.trace) line.set("trace_id", call.trace->trace_id());
  if (options_.log_prompts && !call.request.body.empty()) line.set("body", call.request.body);
  const std::string text =
      options_.access_log == "json"
          ? line.dump(-1, true)
          : fmt::format("{} {} {} {} {:.1f} ms{}", call.id, line.at("method").as_string(), call.route, status, ms,
                        options_.log_prompts ? " " + line.dump(-1, true) : "");
  std::fprintf(stderr, "%s\n", text.c_str());
  stop_if_idle();
}

void Service::answer_on_worker(const std::shared_ptr<Call>& call, std::function<ApiResult<std::string>()> work) {
  if (!take_place(*call)) return;
  workers_->push([this, call, work = std::move(work)] {
    ApiResult<std::string> made;
    try {
      made = work();
    } catch (const std::exception& thrown) {
      made = tl::unexpected(api_error(thrown));
    }
    http_->post([this, call, made = std::move(made)] {
      if (made) {
        answer(*call, 200, *made);
      } else {
        answer_error(*call, made.error());
      }
    });
  });
}

void Service::answer_with_fields(const std::shared_ptr<Call>& call,
                                 std::function<ApiResult<std::string>(JsonFields& fields)> work) {
  answer_on_worker(call, [call, work = std::move(work)]() -> ApiResult<std::string> {
    const Result<Json> body = parse_body(call->request.body.empty() ? "{}" : call->request.body);
    if (!body) return tl::unexpected(api_error(body.error()));
    JsonFields fields(*body);
    return work(fields);
  });
}

bool Service::take_place(Call& call) {
  if (draining_) {
    answer_error(call, api_error(503, "the server is shutting down", "shutting_down"));
    return false;
  }
  if (in_flight_ >= max_in_flight_) {
    answer_error(call, api_error(429,
                                 fmt::format("{} requests are being answered or waiting; come back a little later "
                                             "(--max-queue)",
                                             in_flight_),
                                 "queue_full"));
    return false;
  }
  if (options_.max_requests_per_key > 0 && running_by_key_[call.key] >= options_.max_requests_per_key) {
    answer_error(call, api_error(429,
                                 fmt::format("this key has {} requests at once already (--max-requests-per-key)",
                                             options_.max_requests_per_key),
                                 "too_many_requests"));
    return false;
  }
  call.has_place = true;
  ++in_flight_;
  ++running_by_key_[call.key];
  return true;
}

// ---- small routes ----------------------------------------------------------------------------------------------

void Service::get_health(const std::shared_ptr<Call>& call) { answer(*call, 200, "{\"status\":\"ok\"}"); }

void Service::get_ready(const std::shared_ptr<Call>& call) {
  if (draining_) return answer_error(*call, api_error(503, "the server is shutting down", "shutting_down"));
  answer(*call, 200, "{\"status\":\"ready\"}");
}

void Service::get_page(const std::shared_ptr<Call>& call) {
  const PageFile* file = options_.page ? find_page_file(call->argument) : nullptr;
  if (file == nullptr) return answer_error(*call, api_error(404, "there is no such page", "not_found"));
  for (auto& header : page_headers(*file)) call->headers.push_back(std::move(header));
  const std::string* known = call->request.header("if-none-match");
  if (known != nullptr && known->find(file->etag) != std::string::npos) return answer(*call, 304, {}, file->type);
  answer(*call, 200, std::string(file->bytes), file->type);
}

void Service::get_version(const std::shared_ptr<Call>& call) {
  answer(*call, 200, Json(Json::Object{{"version", COLUBER_VERSION}}).dump());
}

Json Service::model_json(const std::string& name) const {
  return Json(Json::Object{{"id", name},
                           {"object", "model"},
                           {"created", created_},
                           {"owned_by", "coluber"},
                           {"root", facts_.served_names.front()},
                           {"parent", Json()},
                           {"max_model_len", facts_.max_model_len},
                           {"has_tokenizer", tokenizer_ != nullptr},
                           {"has_chat_template", engine_->engine().has_chat_template()}});
}

void Service::get_models(const std::shared_ptr<Call>& call) {
  Json::Array models;
  for (const std::string& name : facts_.served_names) models.push_back(model_json(name));
  answer(*call, 200, Json(Json::Object{{"object", "list"}, {"data", std::move(models)}}).dump());
}

void Service::get_model(const std::shared_ptr<Call>& call) {
  const auto& names = facts_.served_names;
  if (std::find(names.begin(), names.end(), call->argument) != names.end())
    return answer(*call, 200, model_json(call->argument).dump());
  answer_error(*call, api_error(404, fmt::format("this model does not exist here; served is '{}'", names.front()),
                                "model_not_found"));
}

void Service::get_ollama_tags(const std::shared_ptr<Call>& call) {
  const ModelInfo& info = engine_->engine().model_info();
  const std::string& family = info.architecture;
  Json::Array models;
  for (const std::string& name : facts_.served_names)
    models.push_back(Json(Json::Object{
        {"name", name},
        {"model", name},
        {"modified_at", iso_time(created_)},
        {"size", info.weight_bytes},
        {"details", Json::Object{{"format", "coluber"},
                                 {"family", family},
                                 {"families", Json::Array{Json(family)}},
                                 {"parameter_size", fmt::format("{:.1f}M", static_cast<double>(info.parameters) / 1e6)},
                                 {"quantization_level", ""}}}}));
  answer(*call, 200, Json(Json::Object{{"models", std::move(models)}}).dump());
}

void Service::get_metrics(const std::shared_ptr<Call>& call) {
  const HttpServerStats http = http_->stats();
  const int64_t in_flight = in_flight_;
  // Without a place in the queue: a full server must be seen.
  workers_->push_urgent([this, call, http, in_flight] {
    const TraceExporter::Counts traces = traces_ ? traces_->counts() : TraceExporter::Counts{};
    std::string text = metrics_->text(engine_->stats(), http, {sessions_->counts(), traces, in_flight});
    http_->post(
        [this, call, text = std::move(text)] { answer(*call, 200, text, "text/plain; version=0.0.4; charset=utf-8"); });
  });
}

void Service::post_tokenize(const std::shared_ptr<Call>& call) {
  answer_with_fields(call, [this](JsonFields& fields) -> ApiResult<std::string> {
    if (tokenizer_ == nullptr) return tl::unexpected(api_error(missing_tokenizer()));
    const TokenizeBody body = read_tokenize(fields, facts_, engine_->engine());
    if (auto failure = fields.finish()) return tl::unexpected(api_error(*failure));
    const Result<std::vector<int32_t>> ids =
        body.conversation ? body.conversation->encode(engine_->engine()) : tokenizer_->encode(body.text, body.special);
    if (!ids) return tl::unexpected(api_error(ids.error()));
    Json::Array tokens, texts;
    for (const int32_t id : *ids) tokens.emplace_back(id);
    for (const int32_t id : *ids) texts.emplace_back(tokenizer_->token_bytes(id));
    Json made(Json::Object{{"count", static_cast<int64_t>(ids->size())},
                           {"max_model_len", facts_.max_model_len},
                           {"tokens", std::move(tokens)},
                           {"token_strs", body.wants_strings ? Json(std::move(texts)) : Json()}});
    return made.dump();
  });
}

void Service::post_detokenize(const std::shared_ptr<Call>& call) {
  answer_with_fields(call, [this](JsonFields& fields) -> ApiResult<std::string> {
    if (tokenizer_ == nullptr) return tl::unexpected(api_error(missing_tokenizer()));
    const DetokenizeBody body = read_detokenize(fields, facts_, engine_->engine());
    if (auto failure = fields.finish()) return tl::unexpected(api_error(*failure));
    return Json(Json::Object{{"prompt", tokenizer_->decode(body.tokens, false)}}).dump();
  });
}

void Service::post_count_tokens(const std::shared_ptr<Call>& call) {
  answer_on_worker(call, [this, call]() -> ApiResult<std::string> {
    const Result<Json> given = parse_body(call->request.body);
    if (!given) return tl::unexpected(api_error(given.error()));
    const Result<Json> body = anthropic_conversation(*given, nullptr);
    if (!body) return tl::unexpected(api_error(body.error()));
    JsonFields fields(*body);
    const Result<int64_t> count = count_tokens(fields, facts_, engine_->engine());
    if (!count) return tl::unexpected(api_error(count.error()));
    return Json(Json::Object{{"input_tokens", *count}}).dump();
  });
}

// ---- text ------------------------------------------------------------------------------------------------------

Caller Service::caller_of(const Call& call) { return {call.stream, call.headers, call.id, owner_of(call), call.trace}; }

void Service::generate(const std::shared_ptr<Call>& call, std::unique_ptr<Dialect> dialect) {
  start_job(call, [this, &dialect](Caller caller, Job::OnDone on_done) {
    return std::make_shared<GenerationJob>(*serving_, std::move(caller), std::move(dialect), std::move(on_done));
  });
}

void Service::post_completions(const std::shared_ptr<Call>& call) { generate(call, openai_completions()); }
void Service::post_chat_completions(const std::shared_ptr<Call>& call) { generate(call, openai_chat()); }
void Service::post_responses(const std::shared_ptr<Call>& call) { generate(call, openai_responses()); }
void Service::post_messages(const std::shared_ptr<Call>& call) { generate(call, anthropic_messages()); }
void Service::post_ollama_chat(const std::shared_ptr<Call>& call) { generate(call, ollama_chat()); }
void Service::post_ollama_generate(const std::shared_ptr<Call>& call) { generate(call, ollama_generate()); }

void Service::post_embeddings(const std::shared_ptr<Call>& call) {
  start_job(call, [this](Caller caller, Job::OnDone on_done) {
    return std::make_shared<EmbeddingJob>(*serving_, std::move(caller), std::move(on_done));
  });
}

void Service::start_job(const std::shared_ptr<Call>& call,
                        const std::function<std::shared_ptr<Job>(Caller caller, Job::OnDone on_done)>& make) {
  if (!take_place(*call)) return;
  std::string body = options_.log_prompts ? call->request.body : std::move(call->request.body);
  auto holder = std::make_shared<std::weak_ptr<Job>>();
  const std::shared_ptr<Job> job = make(caller_of(*call), [this, call, holder](int status) {
    if (const auto self = holder->lock()) jobs_.erase(self);
    ended(*call, status);
  });
  *holder = job;
  jobs_.insert(job);
  job->begin(std::move(body));
  if (options_.request_timeout_s <= 0.0) return;
  http_->post_after(options_.request_timeout_s, [weak = std::weak_ptr<Job>(job), this] {
    const auto late = weak.lock();
    if (late && jobs_.contains(late))
      late->end_with(api_error(504, "the request took longer than is allowed (--request-timeout)", "timeout"));
  });
}

// ---- the way down ----------------------------------------------------------------------------------------------

void Service::on_signal(int number) {
  if (draining_) {
    cut_short_ = !jobs_.empty();
    return http_->stop();
  }
  draining_ = true;
  std::fprintf(stderr, "coluber: signal %d: no new requests; %zu are running and have %.0f s to end\n", number,
               jobs_.size(), options_.shutdown_timeout_s);
  http_->drain();
  http_->post_after(options_.shutdown_timeout_s, [this] {
    cut_short_ = !jobs_.empty();
    const auto late = jobs_;
    for (const auto& job : late) job->end_with(api_error(503, "the server is shutting down", "shutting_down"));
    http_->post_after(1.0, [this] { http_->stop(); });
  });
  stop_if_idle();
}

// The last answers are still on their way to their clients: connections close by themselves once they are sent.
void Service::stop_if_idle() {
  if (!draining_ || in_flight_ > 0) return;
  if (http_->stats().connections == 0) return http_->stop();
  http_->post_after(0.02, [this] { stop_if_idle(); });
}

void Service::keep_session_limits() {
  workers_->push([this] { sessions_->enforce_limits(); });
  http_->post_after(session_check_s(options_.sessions.idle_timeout_s), [this] { keep_session_limits(); });
}

bool Service::run() {
  if (options_.sessions.idle_timeout_s > 0.0) keep_session_limits();
  http_->run();
  sessions_->park_all();
  return !cut_short_;
}

}  // namespace coluber::server
