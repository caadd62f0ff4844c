// SPDX-License-Identifier: Apache-2.0
//
// `coluber bench serve`: asks a server as many clients would, and says what they had to wait for.
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>

#include "apps/bench_serve/measured.h"
#include "apps/bench_serve/plot.h"
#include "apps/bench_serve/stream_client.h"
#include "apps/bench_serve/traffic.h"
#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "base/error.h"

namespace coluber::cli {
namespace {

using namespace bench_serve;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMaxSeconds = 1e7;

struct BenchServeOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string model, endpoint = "completions", requests_file, svg;
  std::optional<std::string> api_key;
  TrafficOptions traffic;
  std::optional<int64_t> requests, prefix_len, prefixes, turns;
  std::optional<double> rate, burstiness, timeout;
  int64_t max_concurrency = 0, warm_up = 0;
  bool ignore_eos = false, json = false;
};

void declare(Arguments& arguments, BenchServeOptions& options) {
  constexpr int64_t kMostWords = 1 << 20;
  TrafficOptions& traffic = options.traffic;
  arguments.section("Server");
  arguments.text("--url", &options.url, "URL", "of the server, with or without /v1 at its end");
  arguments.text("--model", &options.model, "NAME", "without it the first one that the server has");
  arguments.text("--api-key", &options.api_key, "KEY", "without it COLUBER_API_KEY, where that is set");
  arguments.choice("--endpoint", &options.endpoint, {"completions", "chat"}, "which of its routes to ask");
  arguments.number("--timeout", &options.timeout, {0.001, kMaxSeconds},
                   "seconds after which a request has failed; without it 600");
  arguments.section("Traffic");
  arguments.choice("--trace", &traffic.trace, {"random", "shared-prefix", "multi-turn"},
                   "random: prompts that share nothing; shared-prefix: they begin with one of a few long texts; "
                   "multi-turn: conversations, each turn sent with all before it");
  arguments.text("--requests-file", &options.requests_file, "FILE",
                 "these requests instead, one line of JSON each as 'coluber batch' takes them");
  arguments.integer("--requests", &options.requests, {1, 10000000},
                    "how many, turns counted; without it 100, or all of the file's");
  arguments.number("--request-rate", &options.rate, {1e-6, 1e6},
                   "that come in a second (multi-turn: conversations); without it all come at once");
  arguments.number("--burstiness", &options.burstiness, {0.001, 1000.0},
                   "1: independent of each other (Poisson); below 1 in bursts, above 1 evenly; without it 1");
  arguments.integer("--max-concurrency", &options.max_concurrency, {0, 1 << 20},
                    "that are asked at once; further ones wait here. 0: no limit");
  arguments.integer("--input-len", &traffic.input_len, {1, kMostWords},
                    "words of a prompt or turn, a token each or so");
  arguments.integer("--output-len", &traffic.output_len, {1, kMostWords}, "most tokens of an answer");
  arguments.integer("--prefix-len", &options.prefix_len, {0, kMostWords},
                    "words that prompts share; without it 512 in shared-prefix, else 0");
  arguments.integer("--prefixes", &options.prefixes, {1, 1 << 20}, "different ones; without it 4 in shared-prefix");
  arguments.integer("--turns", &options.turns, {1, 10000}, "of a conversation; without it 4 in multi-turn");
  arguments.flag("--ignore-eos", &options.ignore_eos,
                 "have answers go on to --output-len (a field of Coluber's and vLLM's)");
  arguments.integer("--seed", &traffic.seed, {0}, "the same seed asks the same, at the same times");
  arguments.integer("--warm-up", &options.warm_up, {0, 100000}, "requests before, one after the other, not counted");
  arguments.section("Result");
  arguments.flag("--json", &options.json, "one JSON object, under vLLM's names");
  arguments.text("--svg", &options.svg, "FILE", "also draw the run");
  arguments.example("coluber bench serve --request-rate 20", "100 requests at a server on this machine");
  arguments.example("coluber bench serve --trace shared-prefix --requests 500 --max-concurrency 64 --svg run.svg",
                    "what a cache of prefixes gives");
}

TrafficOptions traffic_options(const BenchServeOptions& options) {
  TrafficOptions traffic = options.traffic;
  const bool shares = traffic.trace == "shared-prefix", talks = traffic.trace == "multi-turn";
  const bool reads = !options.requests_file.empty();
  const auto only = [](bool fits, const std::optional<int64_t>& given, std::string_view flag, std::string_view where) {
    if (given && !fits)
      throw make_error(ErrorCode::kInvalidArgument, "bench serve: {} is for {}; leave it out or change --trace", flag,
                       where);
  };
  only(shares && !reads, options.prefixes, "--prefixes", "--trace shared-prefix");
  only((shares || talks) && !reads, options.prefix_len, "--prefix-len", "--trace shared-prefix and multi-turn");
  only(talks && !reads, options.turns, "--turns", "--trace multi-turn");
  if (options.burstiness && !options.rate)
    throw Error(ErrorCode::kInvalidArgument,
                "bench serve: --burstiness needs --request-rate; without it all come at once");
  traffic.prefix_len = options.prefix_len.value_or(shares ? 512 : 0);
  traffic.prefixes = options.prefixes.value_or(shares ? 4 : 1);
  traffic.turns = options.turns.value_or(talks ? 4 : 1);
  traffic.requests = options.requests.value_or(reads ? std::numeric_limits<int64_t>::max() : 100);
  traffic.rate = options.rate.value_or(0.0);
  traffic.burstiness = options.burstiness.value_or(1.0);
  return traffic;
}

Transfer succeed(Transfer transfer, std::string_view what) {
  if (!transfer.error.empty())
    throw make_error(ErrorCode::kIo, "bench serve: {} could not be asked: {}; is the server at --url?", what,
                     transfer.error);
  if (transfer.status != 200)
    throw make_error(ErrorCode::kIo, "bench serve: {} was answered with status {}: {}", what, transfer.status,
                     transfer.body().substr(0, 300));
  return transfer;
}

std::string first_model(StreamClient& client) {
  const Transfer answer = succeed(client.get("/models"), "/v1/models");
  const Result<Json> json = parse_json(answer.body(), "/v1/models");
  const Json* data = json ? json->find("data") : nullptr;
  if (data == nullptr || !data->is_array() || data->as_array().empty())
    throw Error(ErrorCode::kInvalidData, "bench serve: /v1/models lists no model; name one with --model");
  return data->as_array().front().at("id").as_string();
}

// Sends the traffic and gathers what comes. What can wait is read after the run: reading takes time from the server,
// where both are on one machine.
class Run {
 public:
  Run(StreamClient& client, const BenchServeOptions& options, std::string model, std::vector<Conversation> traffic)
      : client_(client), options_(options), model_(std::move(model)), traffic_(std::move(traffic)) {
    talks_.resize(traffic_.size());
  }

  std::vector<Measured> all() {
    const double start = client_.now_s();
    size_t next = 0;
    while (next < traffic_.size() || running_ > 0) {
      check_interrupt();
      const bool has_room = options_.max_concurrency == 0 || running_ < options_.max_concurrency;
      const bool more = next < traffic_.size() && has_room;
      const double due = more ? start + traffic_[next].at_s : kNever;
      if (due <= client_.now_s()) {
        send(next++);
        ++running_;
        continue;
      }
      take(client_.wait(std::min(due, client_.now_s() + 0.1)));
    }
    for (const Transfer& transfer : unread_) measured_.push_back(measure(transfer));
    return std::move(measured_);
  }

  void one_after_the_other(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      check_interrupt();
      send(static_cast<size_t>(i) % traffic_.size());
      std::vector<Transfer> ended;
      while (ended.empty()) {
        check_interrupt();
        ended = client_.wait(client_.now_s() + 0.1);
      }
      succeed(std::move(ended.front()), "a request of --warm-up");
    }
  }

 private:
  // What has been said in a conversation, and where it is.
  struct Talk {
    size_t turn = 0;
    Json messages = Json(Json::Array{});
    std::string text;
  };

  bool is_chat() const { return options_.endpoint == "chat"; }

  void say(Talk& talk, std::string_view role, const std::string& text) const {
    if (text.empty()) return;
    if (is_chat())
      talk.messages.push_back(Json::Object{{"role", role}, {"content", text}});
    else
      talk.text += (talk.text.empty() ? "" : "\n\n") + text;
  }

  void send(size_t index) {
    const Conversation& conversation = traffic_[index];
    Talk& talk = talks_[index];
    Json body = conversation.fields;
    bool chat = is_chat();
    if (body.is_object()) {
      chat = body.find("messages") != nullptr;
    } else {
      if (talk.turn == 0) say(talk, "system", conversation.shared);
      say(talk, "user", conversation.turns[talk.turn].text);
      body = chat ? Json(Json::Object{{"messages", talk.messages}}) : Json(Json::Object{{"prompt", talk.text}});
      body.set("max_tokens", conversation.turns[talk.turn].output_tokens);
      body.set("temperature", 0);
    }
    body.set("model", model_);
    body.set("stream", true);
    body.set("stream_options", Json::Object{{"include_usage", true}});
    if (options_.ignore_eos) body.set("ignore_eos", true);
    client_.post(index, chat ? "/chat/completions" : "/completions", body.dump());
  }

  void take(std::vector<Transfer> ended) {
    for (Transfer& transfer : ended) {
      const size_t index = transfer.id;
      Talk& talk = talks_[index];
      if (talk.turn + 1 == traffic_[index].turns.size()) {
        --running_;
        unread_.push_back(std::move(transfer));
        continue;
      }
      measured_.push_back(measure(transfer));
      if (!measured_.back().error.empty()) {
        --running_;  // the later turns have nothing to follow
        continue;
      }
      say(talk, "assistant", measured_.back().answer);
      ++talk.turn;
      send(index);
    }
  }

  StreamClient& client_;
  const BenchServeOptions& options_;
  const std::string model_;
  const std::vector<Conversation> traffic_;
  std::vector<Talk> talks_;
  std::vector<Transfer> unread_;
  std::vector<Measured> measured_;
  int64_t running_ = 0;
};

std::string key_of(const BenchServeOptions& options) {
  if (options.api_key) return *options.api_key;
  const char* key = std::getenv("COLUBER_API_KEY");
  return key == nullptr ? std::string() : key;
}

Json settings_json(const BenchServeOptions& options, const TrafficOptions& traffic, const std::string& model) {
  return Json(Json::Object{{"url", options.url},
                           {"model", model},
                           {"endpoint", options.endpoint},
                           {"trace", options.requests_file.empty() ? traffic.trace : options.requests_file},
                           {"request_rate", traffic.rate > 0.0 ? Json(traffic.rate) : Json()},
                           {"burstiness", traffic.burstiness},
                           {"max_concurrency", options.max_concurrency},
                           {"seed", traffic.seed}});
}

void write_plot(const BenchServeOptions& options, const TrafficOptions& traffic, const std::string& model,
                const Report& all) {
  const std::string title = fmt::format("{}: {} requests, {:.1f} output tokens a second", model, all.completed,
                                        static_cast<double>(all.output_tokens) / std::max(all.duration_s, 1e-9));
  const std::string rate = traffic.rate > 0.0 ? fmt::format("{:g} a second", traffic.rate) : "all at once";
  const std::string what = options.requests_file.empty() ? traffic.trace : options.requests_file;
  std::ofstream file(options.svg, std::ios::binary);
  file << plot(all, title, fmt::format("{}, {}, at most {} at once", what, rate, all.max_concurrent));
  if (!file.flush())
    throw make_error(ErrorCode::kIo, "bench serve: --svg '{}' cannot be written; is its folder there?", options.svg);
}

}  // namespace

int bench_serve_command(const std::vector<std::string>& args) {
  Arguments arguments("bench serve",
                      "Asks an OpenAI-compatible server as many clients would, streaming, and says how long they "
                      "waited: for the first token, from token to token, for whole answers.");
  BenchServeOptions options;
  declare(arguments, options);
  if (!arguments.parse(args)) return 0;
  const TrafficOptions traffic = traffic_options(options);
  std::vector<Conversation> asked =
      options.requests_file.empty() ? make_traffic(traffic) : read_traffic(options.requests_file, traffic);
  StreamClient client(options.url, key_of(options), options.timeout.value_or(600.0));
  const std::string model = options.model.empty() ? first_model(client) : options.model;
  if (options.warm_up > 0) {
    TrafficOptions other = traffic;
    other.seed += 1;  // or the run would find its prompts in the cache
    Run(client, options, model, options.requests_file.empty() ? make_traffic(other) : asked)
        .one_after_the_other(options.warm_up);
  }
  const Report all = report(Run(client, options, model, std::move(asked)).all());
  if (all.completed == 0)
    throw make_error(ErrorCode::kIo, "bench serve: none of {} requests was answered; the first failed with: {}",
                     all.failed, all.errors.front().first);
  if (!options.svg.empty()) write_plot(options, traffic, model, all);
  if (options.json) {
    Json json = report_json(all);
    json.set("settings", settings_json(options, traffic, model));
    output().write(json_line(json));
  } else {
    output().write(report_text(all));
  }
  return 0;
}

}  // namespace coluber::cli
