// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/engine_options.h"
#include "apps/cli/form_flags.h"
#include "apps/cli/logprobs.h"
#include "apps/cli/output.h"
#include "apps/cli/output_path.h"
#include "apps/cli/progress.h"
#include "apps/cli/run_session.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/answer_grammars.h"
#include "engine/model_text.h"
#include "formats/model_folder.h"

namespace coluber::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kDefaultMaxTokens = 256;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
double rate(int64_t count, double seconds) { return seconds > 0.0 ? static_cast<double>(count) / seconds : 0.0; }

struct RunOptions {
  EngineFlags engine;
  SamplingFlags sampling;
  FormFlags form;
  std::optional<std::string> prompt, prompt_ids, file, system, session;
  bool chat = false;
  bool raw = false;
  bool json = false;
  bool verbose = false;
};

struct Timings {
  double load_s = 0.0;
  double prefill_s = 0.0;
  double decode_s = 0.0;
};

struct Generated {
  std::vector<TokenOutput> tokens;
  std::string text;
  FinishReason finish_reason = FinishReason::kAbort;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  std::string error;
  ErrorCode error_code = ErrorCode::kOk;
};

void declare(Arguments& arguments, RunOptions& options) {
  options.engine.declare_model(arguments);
  arguments.section("Prompt (one of these, or text on standard input)");
  arguments.text("-p,--prompt", &options.prompt, "TEXT", "the prompt");
  arguments.text("--prompt-ids", &options.prompt_ids, "IDS", "token ids as 1,2,3 or @FILE; used as they are");
  arguments.text("-f,--file", &options.file, "FILE", "a text file; a line end at its very end is left out");
  arguments.text("--system", &options.system, "TEXT", "system message in front of the prompt; needs a chat template");
  arguments.flag("--chat", &options.chat, "use the chat template (the default where the model has one)");
  arguments.flag("--raw", &options.raw, "go on from the prompt as it is, without the chat template");
  arguments.section("Session");
  arguments.text("--session", &options.session, "FILE",
                 "go on from the session in FILE where it is there, and save it there at the end and on Ctrl-C");
  options.sampling.declare(arguments, kDefaultMaxTokens);
  options.form.declare(arguments);
  arguments.section("Output");
  arguments.flag("--json", &options.json, "one JSON object at the end instead of streamed text");
  arguments.flag("--verbose", &options.verbose, "timings on stderr, also where that is no terminal");
  options.engine.declare(arguments);
  options.engine.declare_memory(arguments);
  arguments.example("coluber run -p \"What does river mean?\"", "ask the built-in model");
  arguments.example("coluber run --raw -p \"Once upon a time\" -n 80 --seed 1",
                    "go on with a text, the same way every time");
  arguments.example("coluber run path/to/model -f question.txt --system \"Answer in one line.\"",
                    "another model, a prompt from a file");
  arguments.example("git log -1 | coluber run path/to/model --temperature 0 > answer.txt",
                    "in a pipe, always the likeliest token");
  arguments.example("coluber run --prompt-ids 1,2,3 --json --logprobs 5", "ids in, everything out, for a program");
  arguments.example("coluber run --session chat.session -p \"And in summer?\"",
                    "a conversation that goes on another day, without reading it again");
}

std::string without_last_line_end(std::string text) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (!text.empty() && text.back() == '\r') text.pop_back();
  return text;
}

void check_combinations(const RunOptions& options) {
  const int sources = options.prompt.has_value() + options.prompt_ids.has_value() + options.file.has_value();
  if (sources > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "run: more than one prompt; give one of --prompt, --prompt-ids and --file");
  }
  if (options.chat && options.raw) {
    throw Error(ErrorCode::kInvalidArgument, "run: --chat and --raw exclude each other; leave one out");
  }
  if ((options.chat || options.system) && options.prompt_ids) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "run: --prompt-ids are used as they are, so {} has no meaning with them; give --prompt instead",
                     options.chat ? "--chat" : "--system");
  }
  if (options.system && options.raw) {
    throw Error(ErrorCode::kInvalidArgument,
                "run: --system needs the chat template that --raw leaves out; drop one of them");
  }
}

// A session that is there goes on without a prompt too.
bool session_is_there(const RunOptions& options) { return options.session && file_exists(*options.session); }

// The prompt as text; token ids come through `ids`.
std::string read_prompt(const RunOptions& options, std::vector<int32_t>* ids) {
  std::string text;
  std::string what = "the prompt";
  if (options.prompt_ids) {
    *ids = parse_token_ids(*options.prompt_ids, "--prompt-ids");
    if (ids->empty())
      throw Error(ErrorCode::kInvalidArgument,
                  "run: the prompt is empty: --prompt-ids holds no ids; give at least one");
    return text;
  }
  if (options.prompt) {
    text = *options.prompt;
  } else if (options.file) {
    text = without_last_line_end(read_text_file(*options.file));
    what = *options.file;
  } else if (!stdin_is_terminal()) {
    text = without_last_line_end(read_stdin());
    what = "the prompt on standard input";
  }
  if (text.empty() && session_is_there(options) && !options.prompt && !options.file) return text;
  if (text.empty()) {
    throw make_error(ErrorCode::kInvalidArgument, "run: {} is empty; a model needs at least one token to go on from",
                     options.prompt ? "the prompt after --prompt" : what);
  }
  check_utf8(text, what);
  return text;
}

// Throws where the model cannot read text in the way that is asked for; whether that is as a conversation's turn.
bool check_reads_text(const Engine& engine, const RunOptions& options) {
  if (!engine.has_tokenizer()) {
    throw Error(ErrorCode::kInvalidArgument,
                "run: this model has no tokenizer (tokenizer.json or its like), so it cannot read text; give token ids "
                "with --prompt-ids");
  }
  const bool chat = options.chat || (engine.has_chat_template() && !options.raw);
  if ((options.chat || options.system) && !engine.has_chat_template()) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "run: {} needs a chat template, and this model has none; leave it out",
                     options.chat ? "--chat" : "--system");
  }
  return chat;
}

std::vector<int32_t> encode_prompt(const Engine& engine, const RunOptions& options, const std::string& text) {
  const bool chat = check_reads_text(engine, options);
  std::vector<int32_t> ids;
  if (chat) {
    Json messages{Json::Array{}};
    const auto add = [&messages](const char* role, const std::string& content) {
      messages.push_back(Json(Json::Object{{"role", role}, {"content", content}}));
    };
    if (options.system) add("system", *options.system);
    add("user", text);
    // The template writes the special tokens itself.
    ids = engine.encode_chat(engine.render_chat(messages.dump()));
  } else {
    ids = engine.encode(text, true);
  }
  if (ids.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "run: the prompt gives no tokens; a model needs at least one to go on from");
  }
  return ids;
}

// Text where there is a tokenizer, ids between commas where there is none.
void stream(const Engine& engine, const RequestOutput& piece, bool first) {
  std::string text = piece.text;
  if (!engine.has_tokenizer()) {
    for (const TokenOutput& token : piece.tokens) {
      text += fmt::format("{}{}", first && text.empty() ? "" : ",", token.id);
    }
  }
  if (text.empty()) return;
  output().write(text);
  output().flush();
}

// Compiled before anything is computed. Null without a flag.
std::shared_ptr<const TokenConstraint> read_form(const Engine& engine, const RunOptions& options,
                                                 const std::string& model) {
  const std::optional<AskedGrammar> asked = options.form.asked();
  if (!asked) return nullptr;
  if (options.session)
    throw make_error(ErrorCode::kInvalidArgument, "run: {} does not go with --session; leave one out", asked->param);
  if (!engine.has_tokenizer())
    throw make_error(ErrorCode::kInvalidArgument,
                     "run: {} needs a tokenizer, and this model has none, so its tokens have no text", asked->param);
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(resolve_model(model));
  return value_or_throw(
      AnswerGrammars(*tokenizer, engine.model_info().vocab_size, engine.eos_token_ids()).compile(*asked));
}

Generated generate(Engine& engine, const std::vector<int32_t>& prompt, const SamplingParams& sampling,
                   std::shared_ptr<const TokenConstraint> form, bool streaming, Timings* timings) {
  Generated result;
  const auto start = Clock::now();
  auto decode_start = start;
  const RequestId id = engine.add_request({.prompt_ids = prompt, .sampling = sampling, .constraint = std::move(form)});
  ProgressBar bar("reading the prompt", "tokens");
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  int64_t fed = 0;
  while (engine.has_unfinished_requests()) {
    if (interrupted()) {
      engine.abort(id);
      break;
    }
    for (const RequestOutput& piece : engine.step()) {
      if (result.tokens.empty() && !piece.tokens.empty()) {
        timings->prefill_s = seconds_since(start);
        decode_start = Clock::now();
        bar.finish();
      }
      if (streaming) stream(engine, piece, result.tokens.empty());
      result.tokens.insert(result.tokens.end(), piece.tokens.begin(), piece.tokens.end());
      result.text += piece.text;
      result.prompt_tokens = piece.prompt_tokens;
      result.cached_tokens = piece.cached_tokens;
      if (piece.finish_reason != FinishReason::kNone) {
        result.finish_reason = piece.finish_reason;
        result.error = piece.error;
        result.error_code = piece.error_code;
      }
    }
    fed += engine.config().scheduler.max_num_batched_tokens;
    if (result.tokens.empty()) bar.update(std::min(fed, prompt_tokens), prompt_tokens);
  }
  timings->decode_s = result.tokens.empty() ? 0.0 : seconds_since(decode_start);
  return result;
}

std::vector<int32_t> encode_continuation(const Engine& engine, const RunSession& session, const RunOptions& options,
                                         const std::string& text) {
  if (options.system) {
    throw Error(ErrorCode::kInvalidArgument,
                "run: --system stands at the beginning of a session, and this one has begun; leave it out");
  }
  return check_reads_text(engine, options) ? session.next_turn(text) : session.next_text(text);
}

Generated generate_in_session(Engine& engine, RunSession& session, const std::vector<int32_t>& ids,
                              const SamplingParams& sampling, bool streaming, Timings* timings) {
  Generated result;
  const auto start = Clock::now();
  ProgressBar bar("reading the prompt", "tokens");
  if (session.read(ids, [&bar](int64_t done, int64_t total) { bar.update(done, total); })) {
    bar.finish();
    timings->prefill_s = seconds_since(start);
    const auto decode_start = Clock::now();
    bool first = true;
    RequestOutput output = session.answer(sampling, [&](const TokenOutput& token, const std::string& text) {
      RequestOutput piece;
      piece.tokens.push_back(token);
      piece.text = text;
      if (streaming) stream(engine, piece, std::exchange(first, false));
      return !interrupted();
    });
    timings->decode_s = seconds_since(decode_start);
    result.tokens = std::move(output.tokens);
    result.text = std::move(output.text);
    result.finish_reason = output.finish_reason;
    result.prompt_tokens = output.prompt_tokens;
    result.cached_tokens = output.cached_tokens;
    result.error = output.error;
    result.error_code = output.error_code;
  }
  return result;
}

// What went wrong, if anything did.
std::exception_ptr save(const RunSession& session, const Generated& generated) {
  try {
    // A session that failed is not worth more than the one in the file.
    if (generated.finish_reason != FinishReason::kError) session.save();
  } catch (const Error&) {
    return std::current_exception();
  }
  return nullptr;
}

// The engine gives text, which hides the bytes of a token that is part of a character; so the tokenizer is read again.
Json logprobs_json(const Engine& engine, const std::string& model, const Generated& generated) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (engine.has_tokenizer()) tokenizer = find_tokenizer(resolve_model(model));
  return openai_logprobs(tokenizer.get(), generated.tokens);
}

Json result_json(const Engine& engine, const std::vector<int32_t>& prompt, const Generated& generated,
                 const Timings& timings, const std::optional<Json>& logprobs) {
  Json::Array prompt_ids(prompt.begin(), prompt.end());
  Json::Array output_ids;
  for (const TokenOutput& token : generated.tokens) output_ids.emplace_back(token.id);
  const int64_t prompt_tokens = generated.prompt_tokens;
  const int64_t completion_tokens = static_cast<int64_t>(generated.tokens.size());
  Json out;
  out.set("prompt_ids", std::move(prompt_ids));
  out.set("output_ids", std::move(output_ids));
  out.set("text", engine.has_tokenizer() ? Json(generated.text) : Json());
  out.set("finish_reason", finish_reason_name(generated.finish_reason));
  if (logprobs) out.set("logprobs", *logprobs);
  out.set("usage", Json::Object{{"prompt_tokens", prompt_tokens},
                                {"completion_tokens", completion_tokens},
                                {"cached_tokens", generated.cached_tokens}});
  out.set("timings", Json::Object{{"load_s", timings.load_s},
                                  {"prefill_s", timings.prefill_s},
                                  {"decode_s", timings.decode_s},
                                  {"prompt_tps", rate(prompt_tokens - generated.cached_tokens, timings.prefill_s)},
                                  {"decode_tps", rate(completion_tokens - 1, timings.decode_s)}});
  return out;
}

void tell_json(const Engine& engine, const std::string& model, const std::vector<int32_t>& prompt,
               const Generated& generated, const Timings& timings, bool with_logprobs) {
  std::optional<Json> logprobs;
  if (with_logprobs) logprobs = logprobs_json(engine, model, generated);
  output().write(json_line(result_json(engine, prompt, generated, timings, logprobs)));
}

void report_timings(int64_t prompt_tokens, int64_t completion_tokens, const Timings& timings) {
  std::fprintf(
      stderr, "%s\n",
      fmt::format("loaded in {:.2f} s; {} prompt tokens in {:.2f} s ({:.0f} a second); {} tokens, {:.1f} a second",
                  timings.load_s, prompt_tokens, timings.prefill_s, rate(prompt_tokens, timings.prefill_s),
                  completion_tokens, rate(completion_tokens - 1, timings.decode_s))
          .c_str());
}

}  // namespace

int run_command(const std::vector<std::string>& args) {
  Arguments arguments("run",
                      "Generates text from a prompt and writes it as it comes. A model with a chat template answers "
                      "the prompt; with --raw, and where there is no template, it goes on from it.");
  RunOptions options;
  declare(arguments, options);
  if (!arguments.parse(args)) return 0;
  check_combinations(options);
  if (!options.prompt && !options.prompt_ids && !options.file && stdin_is_terminal() && !session_is_there(options)) {
    std::fputs((arguments.help() + "\n").c_str(), stderr);
    notice("run: there is no prompt; give one with -p TEXT, -f FILE, --prompt-ids, or through a pipe");
    return exit_code(ErrorCode::kInvalidArgument);
  }
  std::vector<int32_t> ids;
  const std::string text = read_prompt(options, &ids);
  Timings timings;
  const auto start = Clock::now();
  const EngineOptions engine_options = options.engine.options();
  const std::string& model = engine_options.model;
  const std::unique_ptr<Engine> engine = load_engine_with_progress(engine_options);
  timings.load_s = seconds_since(start);
  const int64_t vocab_size = engine->model_info().vocab_size;
  check_token_ids(ids, vocab_size);
  const SamplingParams sampling = options.sampling.apply(engine->default_sampling(), vocab_size);
  if (!sampling.stop.empty() && !engine->has_tokenizer()) {
    throw Error(ErrorCode::kInvalidArgument,
                "run: --stop needs a tokenizer, and this model has none; use --stop-token-ids");
  }
  if (sampling.logprobs && !options.json) {
    throw Error(ErrorCode::kInvalidArgument, "run: --logprobs are shown with --json only; add it");
  }
  std::shared_ptr<const TokenConstraint> form = read_form(*engine, options, model);
  std::optional<RunSession> session;
  if (options.session) {
    check_output_path("run: --session", *options.session, model);
    session.emplace(*engine, *options.session);
  }
  const bool continues = session && !session->is_new();
  if (!options.prompt_ids && !(continues && text.empty()))
    ids = continues ? encode_continuation(*engine, *session, options, text) : encode_prompt(*engine, options, text);

  const Generated generated = session ? generate_in_session(*engine, *session, ids, sampling, !options.json, &timings)
                                      : generate(*engine, ids, sampling, std::move(form), !options.json, &timings);
  // Saved before the answer is told, which a closed pipe may end; told also where it cannot be saved.
  const std::exception_ptr unsaved = session ? save(*session, generated) : nullptr;
  if (options.json) {
    tell_json(*engine, model, ids, generated, timings, sampling.logprobs.has_value());
  } else {
    output().write("\n");
  }
  output().flush();
  if (unsaved) std::rethrow_exception(unsaved);
  if (generated.finish_reason == FinishReason::kError) throw Error(generated.error_code, "run: " + generated.error);
  if (interrupted()) throw Error(ErrorCode::kCancelled, "stopped by Ctrl-C");
  if (options.verbose || (stderr_is_terminal() && !options.json)) {
    report_timings(generated.prompt_tokens - generated.cached_tokens, static_cast<int64_t>(generated.tokens.size()),
                   timings);
  }
  return 0;
}

}  // namespace coluber::cli
