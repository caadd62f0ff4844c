// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_serve/traffic.h"

#include <algorithm>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/mapped_file.h"

namespace coluber::bench_serve {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr std::string_view kWords[] = {
    "time",   "year",   "people", "way",   "day",     "man",    "thing", "woman", "life",  "child", "world",
    "school", "state",  "family", "group", "country", "hand",   "part",  "place", "case",  "week",  "system",
    "water",  "night",  "point",  "home",  "room",    "mother", "area",  "money", "story", "fact",  "month",
    "lot",    "right",  "study",  "book",  "eye",     "job",    "word",  "river", "side",  "kind",  "head",
    "house",  "friend", "father", "power", "hour",    "game",   "line",  "end",   "law",   "car",   "city",
    "name",   "team",   "minute", "idea",  "body",    "back",   "face",  "door",  "air"};

std::string words(std::mt19937_64& random, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random() % std::size(kWords)];
  }
  return text;
}

void set_arrivals(const TrafficOptions& options, std::vector<Conversation>& all) {
  if (options.rate <= 0.0) return;
  std::mt19937_64 random(static_cast<uint64_t>(options.seed) + 1);
  std::gamma_distribution<double> gap(options.burstiness, 1.0 / (options.rate * options.burstiness));
  double at = 0.0;
  for (Conversation& conversation : all) {
    conversation.at_s = at;
    at += gap(random);
  }
}

}  // namespace

std::vector<Conversation> make_traffic(const TrafficOptions& options) {
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  std::vector<std::string> shared(static_cast<size_t>(options.prefixes));
  for (std::string& text : shared) text = words(random, options.prefix_len);
  std::vector<Conversation> all;
  for (int64_t left = options.requests; left > 0;) {
    Conversation conversation;
    conversation.shared = shared[random() % shared.size()];
    for (int64_t turn = 0; turn < options.turns && left > 0; ++turn, --left)
      conversation.turns.push_back({words(random, options.input_len), options.output_len});
    all.push_back(std::move(conversation));
  }
  set_arrivals(options, all);
  return all;
}

std::vector<Conversation> read_traffic(const std::string& path, const TrafficOptions& options) {
  std::istringstream lines(read_text_file(path, kMaxFileBytes));
  std::vector<Conversation> all;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line) && std::ssize(all) < options.requests;) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string source = fmt::format("{}, line {}", path, number);
    Result<Json> json = parse_json(line, source, {.refuse_duplicate_keys = true});
    if (!json) throw Error(json.error().code, json.error().message);
    if (json->find("prompt") == nullptr && json->find("messages") == nullptr)
      throw make_error(ErrorCode::kInvalidArgument,
                       "{}: expected an object with 'prompt' or 'messages', as 'coluber batch' takes it", source);
    Conversation conversation;
    conversation.turns.push_back({});
    conversation.fields = std::move(*json);
    all.push_back(std::move(conversation));
  }
  if (all.empty()) throw make_error(ErrorCode::kInvalidArgument, "{} holds no request", path);
  set_arrivals(options, all);
  return all;
}

}  // namespace coluber::bench_serve
