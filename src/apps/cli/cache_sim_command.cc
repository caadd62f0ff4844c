// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "apps/cli/arguments.h"
#include "apps/cli/cli.h"
#include "apps/cli/engine_options.h"
#include "apps/cli/inspect_facts.h"
#include "apps/cli/layer_strip.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "apps/cli/sim_compare.h"
#include "apps/cli/sim_picture.h"
#include "apps/cli/sim_trace.h"
#include "apps/cli/simulation.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/description.h"

namespace coluber::cli {
namespace {

constexpr int64_t kDefaultMaxNumSeqs = 64;
constexpr int64_t kDefaultMemoryBytes = int64_t{8} << 30;
constexpr int64_t kDefaultMaxModelLen = 131072;
constexpr double kMixedMemoryPart = 0.1;  // of the memory that all requests of mixed traffic need

// A hybrid of some seven billion parameters on a large CPU: 24 states of 1 MB, four attention layers.
struct SimOptions {
  EngineFlags engine;
  std::string trace, synthetic, model;
  std::optional<int64_t> state_bytes, kv_bytes_per_token;
  std::optional<double> step_ms = 12.0, prefill_us = 150.0, decode_us = 400.0, context_us = 4.0, copy_gbps = 10.0;
  std::optional<double> rate;
  std::optional<int64_t> requests, seed, shared_tokens, turn_tokens, output_tokens, turns, documents;
  std::optional<std::string> svg;
  bool compare = false;
  bool json = false;
  bool no_picture = false;
};

void declare_traffic(Arguments& arguments, SimOptions& options) {
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  arguments.positional("TRACE", &options.trace,
                       "requests, one line of JSON each (- is standard input): {\"arrival_s\", \"prompt_ids\" or "
                       "\"tokens\" with \"prefix\", \"output_tokens\"}; docs/batch.md has all forms");
  arguments.section("Traffic that is made up, in place of a trace");
  arguments.text(
      "--synthetic", &options.synthetic, "KIND",
      "chat: conversations behind a few system prompts; rag: questions about documents, some of them popular; "
      "agents: long tool descriptions, many short turns, some of them done again; mixed: prompts of 1 to 4000 tokens, "
      "30 % of them with a shared beginning, 5 % given up, all at once");
  arguments.integer("--requests", &options.requests, {1, 100000000}, "requests in all; without it 20000 (mixed: 2000)");
  arguments.number("--rate", &options.rate, {1e-6, 1e6}, "requests a second, on average; without it 2");
  arguments.integer("--seed", &options.seed, {0}, "the same seed makes the same requests");
  arguments.integer("--shared-tokens", &options.shared_tokens, {1, kMostTokens}, "of the beginning that many share");
  arguments.integer("--turn-tokens", &options.turn_tokens, {1, kMostTokens}, "of a turn, or of a document, on average");
  arguments.integer("--output-tokens", &options.output_tokens, {1, kMostTokens}, "of an answer, on average");
  arguments.integer("--turns", &options.turns, {1, 10000}, "of a conversation, on average");
  arguments.integer("--documents", &options.documents, {1, 10000000}, "documents, or different shared beginnings");
}

void declare(Arguments& arguments, SimOptions& options) {
  declare_traffic(arguments, options);
  arguments.section("The model: its memory, and its times in a linear cost model");
  arguments.text("--model", &options.model, "MODEL", "take the sizes of states and attention from this checkpoint");
  arguments.bytes("--state-bytes", &options.state_bytes, {}, "states of one sequence; without it and --model 24MB");
  arguments.bytes("--kv-bytes-per-token", &options.kv_bytes_per_token, {},
                  "keys and values of a token, all layers; without it and --model 16kB");
  arguments.number("--step-ms", &options.step_ms, {0.0, 1e6}, "every step: the weights are read once");
  arguments.number("--prefill-us", &options.prefill_us, {0.0, 1e9}, "a token of a prompt");
  arguments.number("--decode-us", &options.decode_us, {0.0, 1e9}, "a sequence that gets a token");
  arguments.number("--context-us", &options.context_us, {0.0, 1e9}, "for each thousand tokens before a token");
  arguments.number("--copy-gbps", &options.copy_gbps, {1e-3, 1e6}, "GB/s at which states and pages are copied");
  options.engine.declare_serving(arguments, kDefaultMaxNumSeqs);
  arguments.section("Engine");
  options.engine.declare_lengths(arguments);
  arguments.section("Output");
  arguments.flag("--compare", &options.compare,
                 "a table of all cache modes, beside an oracle that keeps whatever was ever computed");
  arguments.text("--svg", &options.svg, "FILE", "the picture as a file");
  arguments.flag("--json", &options.json, "one JSON object instead of text and picture");
  arguments.flag("--no-picture", &options.no_picture, "the numbers alone");
  arguments.example("coluber cache-sim --synthetic chat --svg chat.svg", "conversations on the default model");
  arguments.example(
      "coluber cache-sim --synthetic agents --rate 0.5 --kv-cache-memory-bytes 2GB --mamba-cache-mode align",
      "another policy, in less memory");
  arguments.example("coluber cache-sim trace.jsonl --model path/to/model --max-num-seqs 128", "traffic of your own");
  arguments.example("coluber cache-sim --synthetic mixed --compare",
                    "what each mode computes again, in memory for a tenth of the requests");
  arguments.footnote(
      "Without --kv-cache-memory-bytes the cache has 8GiB; of --synthetic mixed a tenth of what all its requests "
      "need.");
  arguments.footnote(
      "The scheduler, the prefix cache and the pools are the engine's own; only the model computes nothing, and the "
      "clock "
      "goes by the cost model: a step takes step + prefill x prompt tokens + decode x sequences + context x tokens "
      "before "
      "them + bytes copied / copy. Measure yours with 'coluber bench'.");
}

SimModel model_of(const SimOptions& options) {
  SimModel model;
  model.state_bytes = 24000000;
  model.kv_bytes_per_token = 16000;
  if (!options.model.empty()) {
    EngineOptions described;
    described.model = options.model;
    described.mamba_cache_mode = MambaCacheMode::kNone;
    const ModelDescription description = describe_model(described);
    const ModelFacts facts = gather_facts(description.model->info(), *description.config);
    model.state_bytes = facts.state_bytes_per_sequence;
    model.kv_bytes_per_token = facts.kv_bytes_per_token;
    model.prefill_checkpoint_alignment = facts.prefill_checkpoint_alignment;
  }
  model.state_bytes = options.state_bytes.value_or(model.state_bytes);
  model.kv_bytes_per_token = options.kv_bytes_per_token.value_or(model.kv_bytes_per_token);
  model.step_us = *options.step_ms * 1e3;
  model.prefill_us = *options.prefill_us;
  model.decode_us = *options.decode_us;
  model.context_us = *options.context_us;
  model.copy_gbps = *options.copy_gbps;
  return model;
}

SyntheticTraffic traffic_of(const SimOptions& options);

EngineOptions engine_options_of(const SimOptions& options, const SimModel& model) {
  EngineOptions engine = options.engine.options(false);
  if (engine.max_model_len == 0) engine.max_model_len = kDefaultMaxModelLen;
  if (engine.kv_cache_memory_bytes == 0 && options.synthetic == "mixed")
    engine.kv_cache_memory_bytes =
        memory_for_part(*make_synthetic_trace(traffic_of(options)), engine, model, kMixedMemoryPart);
  if (engine.kv_cache_memory_bytes == 0) engine.kv_cache_memory_bytes = kDefaultMemoryBytes;
  if (engine.verify_states) {
    throw Error(ErrorCode::kInvalidArgument,
                "cache-sim: --verify-states has no meaning here, for there are no states; leave it out");
  }
  if (!engine.parking_dir.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "cache-sim: --parking-dir has no meaning here, for nothing is written; leave it out, and give what may be "
        "parked as --parking-memory-bytes");
  }
  if (engine.report_other_salts) {
    throw Error(ErrorCode::kInvalidArgument,
                "cache-sim: --report-other-salts changes nothing here, for other salts are always told; leave it out");
  }
  return engine;
}

SyntheticTraffic traffic_of(const SimOptions& options) {
  SyntheticTraffic traffic;
  traffic.kind = options.synthetic;
  const bool is_mixed = options.synthetic == "mixed";
  traffic.requests = options.requests.value_or(is_mixed ? 2000 : 20000);
  traffic.rate = options.rate.value_or(is_mixed ? 0.0 : 2.0);
  traffic.seed = static_cast<uint64_t>(options.seed.value_or(1));
  traffic.shared_tokens = options.shared_tokens.value_or(0);
  traffic.turn_tokens = options.turn_tokens.value_or(0);
  traffic.output_tokens = options.output_tokens.value_or(0);
  traffic.turns = options.turns.value_or(0);
  traffic.documents = options.documents.value_or(0);
  return with_defaults(traffic);
}

void check(const SimOptions& options) {
  if (options.trace.empty() == options.synthetic.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        options.trace.empty()
            ? "cache-sim: there is no traffic; name a file of requests, or give --synthetic chat, rag, agents or mixed"
            : "cache-sim: both a trace and --synthetic were given; leave one out");
  }
  const bool makes_up = options.requests || options.rate || options.seed || options.shared_tokens ||
                        options.turn_tokens || options.output_tokens || options.turns || options.documents;
  if (!options.trace.empty() && makes_up) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "cache-sim: --requests, --rate, --seed and the sizes of made-up traffic have no meaning with a trace; leave "
        "them out");
  }
}

std::string subtitle_of(const EngineOptions& engine, const SimModel& model) {
  const bool caches = engine.enable_prefix_caching && engine.mamba_cache_mode != MambaCacheMode::kNone;
  return fmt::format("{} for states of {} a sequence and {} of attention a token; {}, at most {} sequences at once",
                     bytes_text(engine.kv_cache_memory_bytes), bytes_text(model.state_bytes),
                     bytes_text(model.kv_bytes_per_token),
                     caches ? fmt::format("cache mode {}", mamba_cache_mode_name(engine.mamba_cache_mode))
                            : std::string("no prefix cache"),
                     engine.max_num_seqs);
}

int compare(const SimOptions& options, const EngineOptions& engine, const SimModel& model) {
  if (options.svg || options.trace == "-")
    throw Error(ErrorCode::kInvalidArgument,
                options.svg
                    ? "cache-sim: --svg draws one mode; leave it out with --compare"
                    : "cache-sim: --compare reads the trace once a mode; give a file instead of standard input");
  SimComparison comparison;
  {
    ProgressBar bar("simulating", "requests");
    comparison = compare_modes(
        engine, model,
        [&] {
          return options.trace.empty() ? make_synthetic_trace(traffic_of(options)) : read_sim_trace(options.trace);
        },
        [&bar](const std::string&, int64_t done, int64_t total) {
          check_interrupt();
          bar.update(done, total);
        });
  }
  if (options.json) {
    output().write(json_line(comparison_json(comparison)));
    return 0;
  }
  output().print("{} for states of {} a sequence and {} of attention a token; at most {} sequences at once\n",
                 bytes_text(engine.kv_cache_memory_bytes), bytes_text(model.state_bytes),
                 bytes_text(model.kv_bytes_per_token), engine.max_num_seqs);
  output().write(comparison_table(comparison));
  return 0;
}

}  // namespace

int cache_sim_command(const std::vector<std::string>& args) {
  Arguments arguments(
      "cache-sim",
      "Replays traffic through the scheduler and the prefix cache, with a model that computes nothing, and "
      "draws what the cache would give, what memory it would take and how long requests would wait.");
  SimOptions options;
  declare(arguments, options);
  if (!arguments.parse(args)) return 0;
  check(options);
  const SimModel model = model_of(options);
  const EngineOptions engine = engine_options_of(options, model);
  const bool is_made_up = options.trace.empty();
  if (options.compare) return compare(options, engine, model);
  const std::unique_ptr<SimTrace> trace =
      is_made_up ? make_synthetic_trace(traffic_of(options)) : read_sim_trace(options.trace);
  Simulation simulation(engine, model, *trace);
  {
    ProgressBar bar("simulating", "requests");
    simulation.run([&bar](int64_t done, int64_t total) {
      check_interrupt();
      bar.update(done, total);
    });
  }
  const SimResult& result = simulation.result();
  const std::string subtitle = subtitle_of(engine, model);
  if (options.svg) {
    const std::string title = is_made_up ? fmt::format("{} requests of {}", result.requests, options.synthetic)
                                         : fmt::format("{} requests of {}", result.requests,
                                                       options.trace == "-" ? "a trace" : options.trace);
    const std::string svg = sim_svg(result, title, subtitle);
    write_file_atomically(*options.svg, [&svg](FileWriter& file) { file.append(std::string_view(svg)); });
  }
  if (options.json) {
    output().write(json_line(sim_json(result)));
    return 0;
  }
  const size_t middle = subtitle.find("; ");
  output().print("{};\n{}\n{}", subtitle.substr(0, middle), subtitle.substr(middle + 2), sim_summary(result));
  if (!options.no_picture) output().write(sim_terminal(result, terminal_columns(), stdout_has_colors()));
  return 0;
}

}  // namespace coluber::cli
