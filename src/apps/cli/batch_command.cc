// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/cli/arguments.h"
#include "apps/cli/batch_input.h"
#include "apps/cli/batch_output.h"
#include "apps/cli/batch_run.h"
#include "apps/cli/cli.h"
#include "apps/cli/engine_options.h"
#include "apps/cli/form_flags.h"
#include "apps/cli/output.h"
#include "apps/cli/output_path.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/model_text.h"
#include "formats/model_folder.h"

namespace coluber::cli {
namespace {

constexpr int64_t kDefaultMaxTokens = 256;
constexpr int64_t kDefaultMaxNumSeqs = 32;

struct BatchOptions {
  EngineFlags engine;
  SamplingFlags sampling;
  FormFlags form;
  std::string input, output;
  std::optional<std::string> stats;
};

void declare(Arguments& arguments, BatchOptions& options) {
  options.engine.declare_model(arguments);
  arguments.section("Files");
  arguments.text("--input", &options.input, "FILE", "requests, one line of JSON each; - is standard input");
  arguments.text("--output", &options.output, "FILE",
                 "results, one line each in the order in which they end; where it has some already, the rest is "
                 "computed and added. - is standard output");
  arguments.text(
      "--stats", &options.stats, "FILE",
      "what the run took and what the cache gave: hit rate, why prompts missed, memory by kind; - is standard "
      "output");
  options.engine.declare_serving(arguments, kDefaultMaxNumSeqs);
  options.sampling.declare(arguments, kDefaultMaxTokens);
  options.form.declare(arguments);
  options.engine.declare(arguments);
  arguments.example("coluber batch --input questions.jsonl --output answers.jsonl", "the built-in model");
  arguments.example("coluber batch path/to/model --input q.jsonl --output a.jsonl --max-num-seqs 64 --stats s.json",
                    "many at once, and what came of it");
  arguments.example("echo '{\"id\":1,\"prompt\":\"Once upon a time\"}' | coluber batch --input - --output -",
                    "in a pipe");
  arguments.example(
      "echo '{\"id\":1,\"prompt\":\"Once upon\",\"n\":2,\"beam_width\":4}' | coluber batch --input - --output -",
      "the two likeliest of four beams");
  arguments.footnote(
      "A line of the input: {\"id\", \"prompt\" or \"prompt_ids\" or \"messages\"} and, where they differ from the "
      "flags, every sampling parameter under its flag's name (\"max_tokens\", \"temperature\", \"seed\", \"stop\", "
      "...), "
      "\"priority\" (lower comes first), \"cache_salt\" (prompts of different salts share no cache), \"arrival_s\" "
      "(not "
      "before so many seconds), \"cancel_after_tokens\", \"n\" and \"best_of\", \"beam_width\", \"session\" (a file of "
      "'coluber run --session' to go on with), \"prompt_logprobs\", \"logit_bias\", \"response_format\" or "
      "\"structured_outputs\" (the form of the answer). docs/batch.md tells all of them. "
      "\"prompt\" is gone on from as it is; \"messages\" go through the chat template.");
  arguments.footnote(
      "A line that is wrong gives a result with an \"error\" and stops no other. Ctrl-C leaves a file that the same "
      "command goes on with.");
}

void check_files(const BatchOptions& options) {
  if (options.input.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch: --input is missing; name a file of requests, or - for standard input");
  }
  if (options.output.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch: --output is missing; name a file for the results, or - for standard output");
  }
  if (options.input == "-" && stdin_is_terminal()) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch: --input - reads standard input, which is a terminal; name a file or use a pipe");
  }
  std::error_code ignored;
  const std::pair<const char*, std::string> written[] = {{"--output", options.output},
                                                         {"--stats", options.stats.value_or("")}};
  for (const auto& [flag, path] : written) {
    if (path.empty() || path == "-") continue;
    if (std::filesystem::equivalent(path, options.input, ignored)) {
      throw make_error(ErrorCode::kInvalidArgument, "batch: {} names the file of the requests, '{}'; name another one",
                       flag, path);
    }
  }
  if (options.stats &&
      (*options.stats == options.output || std::filesystem::equivalent(*options.stats, options.output, ignored))) {
    throw make_error(ErrorCode::kInvalidArgument,
                     "batch: --stats names the file of the results, '{}'; name another one", *options.stats);
  }
}

void write_stats(const std::string& path, const Json& stats) {
  const std::string text = stats.dump(2) + "\n";
  if (path == "-") {
    output().write(text);
    return;
  }
  write_file_atomically(path, [&text](FileWriter& file) { file.append(std::string_view(text)); });
}

void report(const BatchRun::Counts& counts, double seconds, const BatchOutput& output, const EngineOptions& engine) {
  if (output.dropped_torn_line())
    notice("batch: the last line of the output was torn; it was dropped, and its request is computed anew");
  if (counts.with_priority > 0 && engine.scheduling_policy != SchedulingPolicy::kPriority) {
    notice(fmt::format("batch: {} lines have a priority, which is looked at only with --scheduling-policy priority",
                       counts.with_priority));
  }
  if (counts.failed > 0)
    notice(fmt::format("batch: {} of {} requests failed; their results say why", counts.failed, counts.lines));
  if (!stderr_is_terminal()) return;
  notice(fmt::format(
      "batch: {} requests in {:.1f} s, {} tokens generated ({:.0f} a second), {} of {} prompt tokens from "
      "the cache{}",
      counts.done, seconds, counts.completion_tokens,
      seconds > 0.0 ? static_cast<double>(counts.completion_tokens) / seconds : 0.0, counts.cached_tokens,
      counts.prompt_tokens, counts.done_before > 0 ? fmt::format("; {} were done before", counts.done_before) : ""));
}

}  // namespace

int batch_command(const std::vector<std::string>& args) {
  Arguments arguments("batch",
                      "Answers a file of requests, many at once: prompts that begin alike share what was computed of "
                      "them, and each result is written when it ends.");
  BatchOptions options;
  declare(arguments, options);
  if (!arguments.parse(args)) return 0;
  check_files(options);
  const EngineOptions engine_options = options.engine.options();
  if (options.output != "-") check_output_path("batch: --output", options.output, engine_options.model);
  if (options.stats && *options.stats != "-") check_output_path("batch: --stats", *options.stats, engine_options.model);
  const BatchInput input(options.input);
  BatchOutput output(options.output);
  const std::unique_ptr<Engine> engine = load_engine_with_progress(engine_options);
  const SamplingParams defaults = options.sampling.apply(engine->default_sampling(), engine->model_info().vocab_size);
  std::unique_ptr<Tokenizer> tokenizer;
  if (engine->has_tokenizer()) tokenizer = find_tokenizer(resolve_model(engine_options.model));

  BatchRun run(*engine, input, output, defaults, tokenizer.get(), options.form.asked());
  run.run();
  if (options.stats) write_stats(*options.stats, run.stats());
  report(run.counts(), run.seconds(), output, engine_options);
  if (interrupted()) {
    throw make_error(ErrorCode::kCancelled, "stopped by Ctrl-C: {} of {} requests have their results{}",
                     run.counts().done_before + run.counts().done, run.counts().lines,
                     options.output == "-" ? "" : "; the same command goes on with the rest");
  }
  return 0;
}

}  // namespace coluber::cli
