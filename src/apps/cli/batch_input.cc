// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/batch_input.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "apps/cli/cli.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/limits.h"

namespace coluber::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr size_t kMaxInputBytes = size_t{1} << 36;
constexpr double kMaxArrivalS = 1e7;  // some four months

// The fields of one line, each asked for by name; gathers what is wrong. A null is a field that is not there.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  const Json* find(std::string_view name) {
    known_.push_back(name);
    const Json* value = object_.find(name);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  void wrong(std::string_view name, std::string_view expected, const Json& found) {
    std::string shown = found.dump(-1, true);
    if (shown.size() > 40) shown = shown.substr(0, 37) + "...";
    problem(fmt::format("'{}' must be {}, found {}", name, expected, shown));
  }

  void problem(const std::string& text) { problems_ += (problems_.empty() ? "" : "; ") + text; }

  template <typename Integer>
  void integer(std::string_view name, int64_t low, int64_t high, Integer* value) {
    const Json* found = find(name);
    if (found == nullptr) return;
    if (found->is_int() && found->as_int() >= low && found->as_int() <= high) {
      *value = static_cast<Integer>(found->as_int());
    } else {
      wrong(name, fmt::format("a whole number from {} to {}", low, high), *found);
    }
  }

  template <typename Integer>
  void integer(std::string_view name, int64_t low, int64_t high, std::optional<Integer>* value) {
    Integer given = 0;
    const size_t problems = problems_.size();
    integer(name, low, high, &given);
    const Json* found = object_.find(name);
    if (found != nullptr && !found->is_null() && problems_.size() == problems) *value = given;
  }

  template <typename Number>
  void number(std::string_view name, double low, double high, Number* value) {
    const Json* found = find(name);
    if (found == nullptr) return;
    if (found->is_number() && found->as_double() >= low && found->as_double() <= high) {
      *value = static_cast<Number>(found->as_double());
    } else {
      wrong(name, fmt::format("a number from {} to {}", low, high), *found);
    }
  }

  void boolean(std::string_view name, bool* value) {
    const Json* found = find(name);
    if (found == nullptr) return;
    if (found->is_bool()) {
      *value = found->as_bool();
    } else {
      wrong(name, "true or false", *found);
    }
  }

  // What nothing asked for is a mistyped name, more often than not.
  std::string finish() {
    for (const auto& [name, value] : object_.as_object()) {
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      std::string names;
      for (const std::string_view known : known_) names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
      problem(fmt::format("there is no field '{}'; the fields are {}", name.substr(0, 40), names));
    }
    return problems_;
  }

 private:
  const Json& object_;
  std::vector<std::string_view> known_;
  std::string problems_;
};

bool take_ids(const Json& list, int64_t low, int64_t high, std::vector<int32_t>* ids) {
  if (!list.is_array()) return false;
  for (const Json& item : list.as_array()) {
    if (!item.is_int() || item.as_int() < low || item.as_int() > high) return false;
    ids->push_back(static_cast<int32_t>(item.as_int()));
  }
  return true;
}

void read_id(Fields& fields, BatchRequest& request) {
  const Json* id = fields.find("id");
  if (id == nullptr) {
    fields.problem("'id' is missing: give each line one of its own, a text or a whole number");
  } else if (id->is_int() || (id->is_string() && !id->as_string().empty())) {
    request.id = *id;
  } else {
    fields.wrong("id", "a text or a whole number", *id);
  }
}

bool is_conversation(const Json& messages) {
  if (!messages.is_array() || messages.as_array().empty()) return false;
  return std::all_of(messages.as_array().begin(), messages.as_array().end(), [](const Json& message) {
    const Json* role = message.find("role");
    return role != nullptr && role->is_string();
  });
}

void read_conversation(Fields& fields, const Json* messages, BatchRequest& request) {
  const Json* tools = fields.find("tools");
  const Json* kwargs = fields.find("chat_template_kwargs");
  if (messages != nullptr && !is_conversation(*messages)) {
    fields.wrong("messages", "a list of {\"role\", \"content\"} with at least one", *messages);
  } else if (messages != nullptr) {
    request.messages = *messages;
  } else if (tools != nullptr || kwargs != nullptr) {
    fields.problem("'tools' and 'chat_template_kwargs' are for 'messages' only, which are missing");
  }
  if (tools != nullptr && !tools->is_array()) fields.wrong("tools", "a list", *tools);
  if (kwargs != nullptr && !kwargs->is_object()) fields.wrong("chat_template_kwargs", "an object", *kwargs);
  if (tools != nullptr) request.tools_json = tools->dump();
  if (kwargs != nullptr) request.template_kwargs_json = kwargs->dump();
}

void read_prompt(Fields& fields, int64_t vocab_size, BatchRequest& request) {
  const Json* prompt = fields.find("prompt");
  const Json* ids = fields.find("prompt_ids");
  const Json* messages = fields.find("messages");
  const int given = (prompt != nullptr) + (ids != nullptr) + (messages != nullptr);
  if (given != 1) {
    fields.problem(fmt::format("{} prompts: give one of 'prompt', 'prompt_ids' and 'messages'",
                               given == 0 ? "there are no" : "there are several"));
  }
  if (prompt != nullptr) {
    if (prompt->is_string() && !prompt->as_string().empty()) {
      request.prompt = prompt->as_string();
    } else {
      fields.wrong("prompt", "a text that is not empty", *prompt);
    }
  }
  if (ids != nullptr && (!take_ids(*ids, 0, vocab_size - 1, &request.prompt_ids) || request.prompt_ids.empty())) {
    fields.wrong("prompt_ids", fmt::format("a list of token ids from 0 to {} with at least one", vocab_size - 1), *ids);
  }
  read_conversation(fields, messages, request);
}

void read_stops(Fields& fields, int64_t vocab_size, SamplingParams& sampling) {
  if (const Json* stop = fields.find("stop")) {
    sampling.stop.clear();
    const Json::Array one{*stop};
    const Json::Array& stops = stop->is_array() ? stop->as_array() : one;
    const bool fine = std::all_of(stops.begin(), stops.end(),
                                  [](const Json& text) { return text.is_string() && !text.as_string().empty(); });
    if (!fine) fields.wrong("stop", "a text or a list of texts, none of them empty", *stop);
    for (const Json& text : stops)
      if (text.is_string()) sampling.stop.push_back(text.as_string());
  }
  if (const Json* ids = fields.find("stop_token_ids")) {
    sampling.stop_token_ids.clear();
    if (!take_ids(*ids, 0, vocab_size - 1, &sampling.stop_token_ids))
      fields.wrong("stop_token_ids", fmt::format("a list of token ids from 0 to {}", vocab_size - 1), *ids);
  }
}

void read_biases(Fields& fields, int64_t vocab_size, SamplingParams& sampling) {
  if (const Json* ids = fields.find("allowed_token_ids")) {
    if (!take_ids(*ids, 0, vocab_size - 1, &sampling.allowed_token_ids))
      fields.wrong("allowed_token_ids", fmt::format("a list of token ids from 0 to {}", vocab_size - 1), *ids);
  }
  const Json* biases = fields.find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object())
    return fields.wrong("logit_bias", "an object of token ids and numbers, as {\"17\": -100}", *biases);
  for (const auto& [key, value] : biases->as_object()) {
    int32_t id = 0;
    const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_id = failure == std::errc() && end == key.data() + key.size() && id >= 0 && id < vocab_size;
    const bool is_bias = value.is_number() && std::abs(value.as_double()) <= 100.0;
    if (!is_id || !is_bias)
      return fields.problem(
          fmt::format("'logit_bias' must give token ids from 0 to {} numbers from -100 to 100, found "
                      "{} for '{}'",
                      vocab_size - 1, value.dump(-1, true), key.substr(0, 40)));
    sampling.logit_bias.push_back({id, static_cast<float>(value.as_double())});
  }
}

void read_sampling(Fields& fields, int64_t vocab_size, SamplingParams& sampling) {
  fields.integer("prompt_logprobs", 0, kMostLogprobs, &sampling.prompt_logprobs);
  fields.integer("max_tokens", sampling.prompt_logprobs ? 0 : 1, kMaxTokens, &sampling.max_tokens);
  fields.integer("min_tokens", 0, kMaxTokens, &sampling.min_tokens);
  fields.number("temperature", 0.0, 1e4, &sampling.temperature);
  fields.integer("top_k", -1, kMaxTokens, &sampling.top_k);
  fields.number("top_p", 0.0, 1.0, &sampling.top_p);
  fields.number("min_p", 0.0, 1.0, &sampling.min_p);
  fields.number("repetition_penalty", 0.0, 1e4, &sampling.repetition_penalty);
  fields.number("presence_penalty", -2.0, 2.0, &sampling.presence_penalty);
  fields.number("frequency_penalty", -2.0, 2.0, &sampling.frequency_penalty);
  fields.integer("seed", 0, std::numeric_limits<int64_t>::max(), &sampling.seed);
  fields.integer("logprobs", 0, kMostLogprobs, &sampling.logprobs);
  fields.boolean("ignore_eos", &sampling.ignore_eos);
  fields.boolean("skip_special_tokens", &sampling.skip_special_tokens);
  fields.boolean("include_stop_str_in_output", &sampling.include_stop_str_in_output);
  read_stops(fields, vocab_size, sampling);
  read_biases(fields, vocab_size, sampling);
}

// Nothing is sampled by beams. What the flags and the model say of sampling is left alone; what a line says itself
// would be a mistake to pass over.
void read_beams(Fields& fields, const Json& line, BatchRequest& request) {
  fields.integer("beam_width", 1, kMostAnswers, &request.beam_width);
  fields.number("length_penalty", -kMostLengthPenalty, kMostLengthPenalty, &request.length_penalty);
  fields.boolean("early_stopping", &request.early_stopping);
  const auto is_given = [&line](std::string_view name) {
    const Json* value = line.find(name);
    return value != nullptr && !value->is_null();
  };
  if (request.beam_width <= 1) {
    for (const std::string_view name : {"length_penalty", "early_stopping"})
      if (is_given(name)) fields.problem(fmt::format("'{}' is for beams: give a 'beam_width' above 1 too", name));
    return;
  }
  if (request.beam_width < request.n)
    fields.problem(fmt::format("'beam_width' must be at least 'n', found {} and {}", request.beam_width, request.n));
  for (const std::string_view name :
       {"temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "stop", "include_stop_str_in_output", "logit_bias", "allowed_token_ids", "best_of", "cancel_after_tokens"})
    if (is_given(name))
      fields.problem(
          fmt::format("'{}' does not go with 'beam_width': beams follow the model's own probabilities, "
                      "draw nothing, and have no text before the search ends",
                      name));
  request.sampling.stop.clear();
  request.sampling.repetition_penalty = 1.0f;
  request.sampling.presence_penalty = request.sampling.frequency_penalty = 0.0f;
}

void read_form(Fields& fields, BatchRequest& request) {
  Result<std::optional<AskedGrammar>> asked =
      read_asked_grammar([&fields](std::string_view name) { return fields.find(name); });
  if (!asked) return fields.problem(asked.error().message);
  request.form = std::move(*asked);
  if (request.form && request.beam_width > 1)
    fields.problem(fmt::format("'{}' does not go with 'beam_width': beams follow the model's own probabilities",
                               request.form->param));
}

void read_session(Fields& fields, BatchRequest& request) {
  const Json* session = fields.find("session");
  if (session == nullptr) return;
  if (!session->is_string() || session->as_string().empty())
    return fields.wrong("session", "the name of a file", *session);
  request.session = session->as_string();
  if (request.n > 1 || request.best_of > 1 || request.beam_width > 1)
    fields.problem("a 'session' goes on with one answer: leave out 'n', 'best_of' and 'beam_width'");
  if (request.sampling.prompt_logprobs)
    fields.problem("'prompt_logprobs' do not go with 'session': what it holds is not computed again");
}

void read_serving(Fields& fields, BatchRequest& request) {
  fields.integer("n", 1, kMostAnswers, &request.n);
  fields.integer("best_of", 1, kMostAnswers, &request.best_of);
  if (request.best_of != 0 && request.best_of < request.n)
    fields.problem(fmt::format("'best_of' must be at least 'n', found {} and {}", request.best_of, request.n));
  fields.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                 &request.priority);
  if (const Json* salt = fields.find("cache_salt")) {
    if (salt->is_string()) {
      request.cache_salt = salt->as_string();
    } else {
      fields.wrong("cache_salt", "a text", *salt);
    }
  }
  fields.number("arrival_s", 0.0, kMaxArrivalS, &request.arrival_s);
  fields.integer("cancel_after_tokens", 0, kMaxTokens, &request.cancel_after_tokens);
}

}  // namespace

ParsedLine parse_batch_line(std::string_view line, const SamplingParams& defaults, int64_t vocab_size) {
  ParsedLine parsed;
  if (const size_t at = first_invalid_utf8(line); at != std::string_view::npos) {
    parsed.problem = fmt::format("not valid UTF-8: byte 0x{:02X} at offset {} starts no character",
                                 static_cast<unsigned char>(line[at]), at);
    return parsed;
  }
  Result<Json> json = parse_json(line, "the line", {.refuse_duplicate_keys = true});
  if (!json) {
    parsed.problem = json.error().message;
    return parsed;
  }
  if (!json->is_object()) {
    parsed.problem = fmt::format("expected an object, found {}", json->type_name());
    return parsed;
  }
  Fields fields(*json);
  parsed.request.sampling = defaults;
  read_id(fields, parsed.request);
  read_prompt(fields, vocab_size, parsed.request);
  read_sampling(fields, vocab_size, parsed.request.sampling);
  read_serving(fields, parsed.request);
  read_beams(fields, *json, parsed.request);
  read_form(fields, parsed.request);
  read_session(fields, parsed.request);
  parsed.problem = fields.finish();
  // Only what is right field by field is worth a look as a whole.
  if (parsed.problem.empty()) parsed.problem = parsed.request.sampling.problems(vocab_size);
  return parsed;
}

BatchInput::BatchInput(const std::string& path) {
  text_ = path == "-" ? read_stdin(kMaxInputBytes) : read_text_file(path, kMaxInputBytes);
  int64_t number = 0;
  for (size_t at = 0; at < text_.size();) {
    const size_t end = std::min(text_.find('\n', at), text_.size());
    ++number;
    if (std::string_view(text_).substr(at, end - at).find_first_not_of(" \t\r") != std::string_view::npos)
      lines_.push_back({number, at, end - at});
    at = end + 1;
  }
}

std::string batch_id_key(const Json& id) { return id.dump(); }

}  // namespace coluber::cli
