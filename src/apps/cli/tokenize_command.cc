// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <limits>
#include <optional>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/output.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/model_text.h"
#include "formats/model_folder.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber::cli {
namespace {

constexpr std::string_view kModelHelp =
    "folder with a tokenizer (tokenizer.json, rwkv_vocab_v*.txt, tokenizer.model, tiktoken.model, or inside a .gguf), "
    "or "
    "that file; without it the built-in model";

struct TextOptions {
  std::string model;
  std::optional<std::string> value, file;
  bool jsonl = false;
  bool plain = false;  // tokenize: add no special tokens; detokenize: leave none out
};

std::unique_ptr<Tokenizer> tokenizer_of(const std::string& model) {
  return load_tokenizer(resolve_model(find_model(model), ModelNeeds::kTokenizer));
}

void check_source(std::string_view command, std::string_view flag, const TextOptions& options) {
  if (options.value && options.file) {
    throw make_error(ErrorCode::kInvalidArgument, "{}: both {} and --file were given; leave one out", command, flag);
  }
  if (options.jsonl && (options.value || options.file)) {
    throw make_error(ErrorCode::kInvalidArgument, "{}: --jsonl reads standard input; leave {} out", command,
                     options.value ? flag : "--file");
  }
}

std::string read_source(const TextOptions& options) {
  if (options.value) return *options.value;
  return options.file ? read_text_file(*options.file) : read_stdin();
}

// Calls `answer` with each line's object and writes what it returns; messages of what goes wrong name the line.
template <typename Answer>
void answer_lines(std::string_view command, const Answer& answer) {
  std::string line;
  for (int64_t number = 1; read_stdin_line(&line); ++number) {
    check_interrupt();
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      const Json request = value_or_throw(parse_json(line, fmt::format("line {}", number)));
      if (!request.is_object()) {
        throw make_error(ErrorCode::kInvalidArgument, "expected an object, found {}", request.type_name());
      }
      output().write(json_line(answer(request)));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kIo) throw;
      throw make_error(ErrorCode::kInvalidArgument, "{}: line {} of the input: {}", command, number, error.what());
    }
    // Whoever waits for each answer gets it; a file is answered in large pieces.
    if (!stdin_line_is_buffered()) output().flush();
  }
}

bool bool_or(const Json& request, std::string_view key, bool otherwise) {
  const Json* value = request.find(key);
  return value == nullptr || value->is_null() ? otherwise : value->as_bool();
}

void check_known(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!tokenizer.contains(ids[i])) {
      throw make_error(ErrorCode::kInvalidArgument,
                       "token id {} at position {} is not in the vocabulary of {} tokens, whose highest id is {}",
                       ids[i], i, tokenizer.vocab_size(), tokenizer.max_id());
    }
  }
}

Json tokenize_line(const Tokenizer& tokenizer, const Json& request, bool special) {
  const std::string& text = request.at("text").as_string();
  const std::vector<int32_t> ids =
      value_or_throw(tokenizer.encode(text, bool_or(request, "add_special_tokens", special)));
  return Json(Json::Object{{"ids", Json::Array(ids.begin(), ids.end())}});
}

Json detokenize_line(const Tokenizer& tokenizer, const Json& request, bool skip_special) {
  std::vector<int32_t> ids;
  for (const Json& item : request.at("ids").as_array()) {
    const int64_t id = item.as_int();
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      throw make_error(ErrorCode::kInvalidArgument, "token id {} at position {} is no token id", id, ids.size());
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  check_known(tokenizer, ids);
  return Json(Json::Object{{"text", tokenizer.decode(ids, bool_or(request, "skip_special_tokens", skip_special))}});
}

// True where there is nothing to read: a person in front of an empty terminal needs the usage.
bool nothing_to_read(const Arguments& arguments, const TextOptions& options, std::string_view message) {
  if (options.value || options.file || !stdin_is_terminal()) return false;
  std::fputs((arguments.help() + "\n").c_str(), stderr);
  notice(message);
  return true;
}

}  // namespace

int tokenize_command(const std::vector<std::string>& args) {
  Arguments arguments("tokenize",
                      "Writes the token ids of a text, as --prompt-ids and --ids take them. A folder or a file that "
                      "has only a tokenizer is enough.");
  TextOptions options;
  arguments.positional("MODEL", &options.model, kModelHelp);
  arguments.section("Input (one of these, or text on standard input)");
  arguments.text("-p,--prompt", &options.value, "TEXT", "the text");
  arguments.text("-f,--file", &options.file, "FILE", "a text file, taken whole");
  arguments.flag("--jsonl", &options.jsonl,
                 "standard input is lines {\"text\", \"add_special_tokens\"?}; each gives a line {\"ids\"}");
  arguments.flag("--no-add-special-tokens", &options.plain, "no tokens beyond those of the text itself");
  arguments.example("coluber tokenize -p \"Once upon a time\"", "ids of the built-in model");
  arguments.example("coluber tokenize path/to/model -f story.txt --no-add-special-tokens", "ids of a file");
  arguments.example("coluber run --prompt-ids \"$(coluber tokenize -p 'Once upon')\"", "generate from these very ids");
  arguments.example("coluber tokenize path/to/tokenizer.json --jsonl < texts.jsonl > ids.jsonl", "many texts");
  if (!arguments.parse(args)) return 0;
  check_source("tokenize", "--prompt", options);
  if (nothing_to_read(arguments, options,
                      "tokenize: there is no text; give it with -p TEXT, -f FILE, or through a pipe")) {
    return exit_code(ErrorCode::kInvalidArgument);
  }
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(options.model);
  if (options.jsonl) {
    answer_lines("tokenize", [&](const Json& request) { return tokenize_line(*tokenizer, request, !options.plain); });
    return 0;
  }
  const std::string text = read_source(options);
  check_utf8(text, "the text");
  std::string line;
  for (const int32_t id : value_or_throw(tokenizer->encode(text, !options.plain))) {
    line += fmt::format("{}{}", line.empty() ? "" : ",", id);
  }
  output().write(line + "\n");
  return 0;
}

int detokenize_command(const std::vector<std::string>& args) {
  Arguments arguments("detokenize",
                      "Writes the text of token ids. A folder or a file that has only a tokenizer is enough.");
  TextOptions options;
  arguments.positional("MODEL", &options.model, kModelHelp);
  arguments.section("Input (one of these, or ids on standard input)");
  arguments.text("--ids", &options.value, "IDS", "token ids as 1,2,3 or @FILE");
  arguments.text("-f,--file", &options.file, "FILE", "a file of ids between commas or white space");
  arguments.flag("--jsonl", &options.jsonl,
                 "standard input is lines {\"ids\", \"skip_special_tokens\"?}; each gives a line {\"text\"}");
  arguments.flag("--no-skip-special-tokens", &options.plain, "show special tokens in the text");
  arguments.example("coluber detokenize --ids 1206,746,262,570", "text of ids of the built-in model");
  arguments.example("coluber tokenize -p \"Once upon a time\" | coluber detokenize", "there and back");
  arguments.example("coluber detokenize path/to/model -f ids.txt --no-skip-special-tokens",
                    "ids from a file, nothing left out");
  arguments.example("coluber detokenize path/to/model --jsonl < ids.jsonl > texts.jsonl", "many lists of ids");
  if (!arguments.parse(args)) return 0;
  check_source("detokenize", "--ids", options);
  if (nothing_to_read(arguments, options,
                      "detokenize: there are no ids; give them with --ids, -f FILE, or through a pipe")) {
    return exit_code(ErrorCode::kInvalidArgument);
  }
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(options.model);
  if (options.jsonl) {
    answer_lines("detokenize",
                 [&](const Json& request) { return detokenize_line(*tokenizer, request, !options.plain); });
    return 0;
  }
  const std::vector<int32_t> ids = parse_token_ids(read_source(options), options.value ? "--ids" : "the input");
  check_known(*tokenizer, ids);
  output().write(tokenizer->decode(ids, !options.plain) + "\n");
  return 0;
}

}  // namespace coluber::cli
