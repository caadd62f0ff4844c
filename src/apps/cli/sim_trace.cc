// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/sim_trace.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <unordered_map>

#include "apps/cli/batch_input.h"
#include "apps/cli/cli.h"
#include "apps/cli/sim_tokens.h"
#include "base/error.h"
#include "base/json.h"

namespace coluber::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kTokensAHash = 512;  // of traces that name blocks
constexpr double kMaxArrivalS = 1e9;

// One line's fields; messages name the line.
class TraceLine {
 public:
  TraceLine(std::string_view text, int64_t number) : number_(number) {
    Result<Json> json = parse_json(text, fmt::format("line {} of the trace", number));
    if (!json) throw Error(ErrorCode::kInvalidData, "cache-sim: " + json.error().message);
    json_ = std::move(*json);
    if (!json_.is_object()) wrong(fmt::format("expected an object, found {}", json_.type_name()));
  }

  [[noreturn]] void wrong(const std::string& problem) const {
    throw make_error(ErrorCode::kInvalidData, "cache-sim: line {} of the trace: {}", number_, problem);
  }

  const Json* find(std::string_view name) const {
    const Json* value = json_.find(name);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  double number(std::string_view name, double low, double high, double otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number() || value->as_double() < low || value->as_double() > high)
      wrong(fmt::format("'{}' must be a number from {} to {}, found {}", name, low, high, value->dump(-1, true)));
    return value->as_double();
  }

  int64_t integer(std::string_view name, int64_t low, int64_t high, int64_t otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_int() || value->as_int() < low || value->as_int() > high)
      wrong(fmt::format("'{}' must be a whole number from {} to {}, found {}", name, low, high, value->dump(-1, true)));
    return value->as_int();
  }

  std::string text(std::string_view name) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string()) wrong(fmt::format("'{}' must be a text, found {}", name, value->dump(-1, true)));
    return value->as_string();
  }

  std::vector<int32_t> ids(std::string_view name) const {
    std::vector<int32_t> ids;
    const Json* value = find(name);
    if (value == nullptr) return ids;
    if (!value->is_array()) wrong(fmt::format("'{}' must be a list of token ids", name));
    for (const Json& item : value->as_array()) {
      if (!item.is_int() || item.as_int() < 0 || item.as_int() > std::numeric_limits<int32_t>::max())
        wrong(fmt::format("'{}' must be a list of token ids, found {}", name, item.dump(-1, true)));
      ids.push_back(static_cast<int32_t>(item.as_int()));
    }
    return ids;
  }

  int64_t line() const noexcept { return number_; }

 private:
  Json json_;
  int64_t number_;
};

void append_prefixes(const TraceLine& line, std::vector<int32_t>& prompt) {
  const Json* prefixes = line.find("prefix");
  if (prefixes == nullptr) return;
  if (!prefixes->is_array()) line.wrong("'prefix' must be a list of [\"name\", tokens]");
  for (const Json& one : prefixes->as_array()) {
    const bool fine = one.is_array() && one.as_array().size() == 2 && one.as_array()[0].is_string() &&
                      one.as_array()[1].is_int() && one.as_array()[1].as_int() >= 0 &&
                      one.as_array()[1].as_int() <= kMaxTokens;
    if (!fine) line.wrong("'prefix' must be a list of [\"name\", tokens], found " + one.dump(-1, true));
    append_tokens(name_seed(one.as_array()[0].as_string()), one.as_array()[1].as_int(), prompt);
  }
}

void append_hashed(const TraceLine& line, int64_t length, std::vector<int32_t>& prompt) {
  for (const Json& hash : line.find("hash_ids")->as_array()) {
    if (!hash.is_int()) line.wrong("'hash_ids' must be a list of whole numbers");
    const int64_t more = std::min(kTokensAHash, length - static_cast<int64_t>(prompt.size()));
    append_tokens(mix_bits(static_cast<uint64_t>(hash.as_int()) + 1), std::max<int64_t>(more, 0), prompt);
  }
}

// What the line's own prompt is made of, without what its conversation had before.
void read_prompt(const TraceLine& line, std::vector<int32_t>& prompt) {
  if (line.find("prompt_ids") != nullptr) {
    prompt = line.ids("prompt_ids");
  } else if (const Json* hashes = line.find("hash_ids"); hashes != nullptr) {
    if (!hashes->is_array()) line.wrong("'hash_ids' must be a list");
    const int64_t length = line.integer("input_length", 1, kMaxTokens, 1);
    append_hashed(line, length, prompt);
    append_tokens(name_seed(fmt::format("line {}", line.line())), length - static_cast<int64_t>(prompt.size()), prompt);
  } else {
    append_prefixes(line, prompt);
    const int64_t tokens = line.integer("tokens", 0, kMaxTokens, -1);
    if (tokens < 0) line.wrong("there is no prompt; give 'prompt_ids', 'tokens' or 'hash_ids'");
    append_tokens(name_seed(fmt::format("line {}", line.line())), tokens - static_cast<int64_t>(prompt.size()), prompt);
  }
  if (prompt.empty()) line.wrong("the prompt has no tokens");
}

SimRequest read_request(const TraceLine& line) {
  SimRequest request;
  request.arrival_s =
      line.number("arrival_s", 0.0, kMaxArrivalS, line.number("timestamp", 0.0, kMaxArrivalS * 1e3, 0.0) / 1e3);
  read_prompt(line, request.prompt);
  request.output = line.ids("output_ids");
  const int64_t output_tokens =
      line.integer("output_tokens", 1, kMaxTokens, line.integer("output_length", 0, kMaxTokens, 1));
  if (request.output.empty())
    append_tokens(name_seed(fmt::format("answer {}", line.line())), std::max<int64_t>(output_tokens, 1),
                  request.output);
  request.cache_salt = line.text("cache_salt");
  request.priority = line.integer("priority", -1000000, 1000000, 0);
  return request;
}

class RecordedTrace : public SimTrace {
 public:
  explicit RecordedTrace(const std::string& path) : input_(path) {
    lines_.reserve(input_.lines().size());
    for (const BatchInput::Line& text : input_.lines()) {
      check_interrupt();
      const TraceLine line(input_.text(text), text.number);
      const SimRequest request = read_request(line);
      Turn turn{&text, request.arrival_s};
      if (const std::string name = line.text("conversation"); !name.empty()) {
        turn.conversation = names_.emplace(name, static_cast<int64_t>(names_.size())).first->second;
      }
      lines_.push_back(turn);
    }
    std::stable_sort(lines_.begin(), lines_.end(),
                     [](const Turn& a, const Turn& b) { return a.arrival_s < b.arrival_s; });
  }

  std::optional<double> next_arrival() const override {
    if (!ready_.empty()) return ready_.front().arrival_s;
    advance();
    if (!ready_.empty()) return ready_.front().arrival_s;
    return next_ < lines_.size() ? std::optional(lines_[next_].arrival_s) : std::nullopt;
  }

  SimRequest take() override {
    Turn turn;
    if (!ready_.empty()) {
      turn = ready_.front();
      ready_.pop_front();
    } else {
      turn = lines_[next_++];
    }
    SimRequest request = read_request(TraceLine(input_.text(*turn.line), turn.line->number));
    request.arrival_s = turn.arrival_s;
    if (turn.conversation < 0) return request;
    Conversation& talk = talks_[turn.conversation];
    talk.is_open = true;
    request.conversation = turn.conversation;
    request.prompt.insert(request.prompt.begin(), talk.tokens.begin(), talk.tokens.end());
    talk.tokens = request.prompt;
    talk.tokens.insert(talk.tokens.end(), request.output.begin(), request.output.end());
    return request;
  }

  void answered(int64_t conversation, double now_s) override {
    Conversation& talk = talks_[conversation];
    talk.is_open = false;
    if (talk.held.empty()) return;
    Turn turn = talk.held.front();
    talk.held.pop_front();
    turn.arrival_s = std::max(turn.arrival_s, now_s);
    ready_.push_back(turn);
  }

  int64_t num_requests() const override { return static_cast<int64_t>(lines_.size()); }

 private:
  struct Turn {
    const BatchInput::Line* line = nullptr;
    double arrival_s = 0.0;
    int64_t conversation = -1;
  };
  struct Conversation {
    std::vector<int32_t> tokens;  // so far, with the answers
    bool is_open = false;         // a turn of it has no answer yet
    mutable std::deque<Turn> held;
  };

  // Turns that came before their predecessor was answered wait with their conversation.
  void advance() const {
    while (next_ < lines_.size()) {
      const auto talk = talks_.find(lines_[next_].conversation);
      if (talk == talks_.end() || !talk->second.is_open) return;
      talk->second.held.push_back(lines_[next_++]);
    }
  }

  BatchInput input_;
  std::vector<Turn> lines_;
  mutable size_t next_ = 0;
  std::deque<Turn> ready_;
  std::unordered_map<std::string, int64_t> names_;
  std::unordered_map<int64_t, Conversation> talks_;
};

}  // namespace

std::unique_ptr<SimTrace> read_sim_trace(const std::string& path) { return std::make_unique<RecordedTrace>(path); }

}  // namespace coluber::cli
