// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/engine_options.h"

#include "apps/cli/cli.h"
#include "apps/cli/progress.h"
#include "base/error.h"
#include "engine/host_memory.h"
#include "engine/limits.h"
#include "formats/weight_source.h"
#include "kernels/op_registry.h"
#include "kernels/scan/ssd_replay.h"

namespace coluber::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;
const std::vector<std::string> kConvDTypes = {"auto", "float32", "bfloat16", "float16"};
const std::vector<std::string> kStateDTypes = {"auto", "float32", "bfloat16", "float16", "int16", "int8"};
const std::vector<std::string> kPageDTypes = {"auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8"};

std::optional<DType> cache_dtype(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return name.starts_with("fp8") ? DType::kFloat8E4M3 : parse_dtype(name);
}

template <typename To, typename From>
void take(To* to, const std::optional<From>& from) {
  if (from) *to = static_cast<To>(*from);
}

// Modes auto and none have no blocks of states: what was said of them is not passed over in silence.
void tell_of_idle_flags(const EngineOptions& options) {
  const MambaCacheMode mode = options.mamba_cache_mode;
  if (mode != MambaCacheMode::kAuto && mode != MambaCacheMode::kNone) return;
  const std::pair<const char*, bool> flags[] = {
      {"--mamba-block-size", options.mamba_block_size.has_value()},
      {"--mamba-retention-interval", options.mamba_retention_interval.has_value()},
      {"--prefix-match-unit", options.prefix_match_unit.has_value()}};
  for (const auto& [name, is_given] : flags) {
    if (is_given)
      notice(fmt::format("{} changes nothing with --mamba-cache-mode {}: it is about the blocks of modes all and align",
                         name, mamba_cache_mode_name(mode)));
  }
}

}  // namespace

void EngineFlags::declare_model(Arguments& arguments) {
  arguments.positional("MODEL", &model,
                       fmt::format("folder of a checkpoint, a file of weights ({}) or the index of its shards; without "
                                   "it the built-in model",
                                   kWeightsFiles));
}

void EngineFlags::declare(Arguments& arguments) {
  arguments.section("Engine");
  arguments.integer("--threads", &threads_, {0, kMostThreads}, "threads to compute with; 0: one a usable core");
  arguments.text("--device", &device_, "DEVICE",
                 "cpu, cuda or cuda:N; auto: a CUDA device where there is one and the model runs there");
  arguments.number("--gpu-memory-utilization", &gpu_memory_utilization_, {0.0, 1.0},
                   "of a CUDA device's memory, what weights, states and scratch may take together; without it 0.9");
  arguments.choice("--dtype", &dtype_, {"float32", "auto"},
                   "float32 computes with fp32 activations, states and sums from weights as stored; auto may round "
                   "activations to bf16 inside matrix products where the processor multiplies bf16, and on a CUDA "
                   "device to the type of 16-bit weights");
  arguments.flag("--deterministic", &deterministic_,
                 "the same bits whatever else runs in the batch, however a prompt is cut and whatever comes from the "
                 "cache; somewhat slower");
  arguments.flag("--enforce-eager", &enforce_eager_,
                 "on a CUDA device, launch the kernels of each step one by one; without it steps of one token a "
                 "sequence are recorded as CUDA graphs, where the model's layers allow it");
  declare_lengths(arguments);
  arguments.choice("--mamba-cache-dtype", &mamba_cache_dtype_, kConvDTypes, "convolution states; auto: as activations");
  arguments.choice("--mamba-ssm-cache-dtype", &mamba_ssm_cache_dtype_, kStateDTypes,
                   "recurrent states; int16 and int8: a scale for each row (int8: experimental, see docs/numerics.md); "
                   "auto: as the config says, else float32");
  arguments.flag("--use-replayssm", &use_replayssm_,
                 "Mamba-2 (SSD): keep the last inputs of a sequence and write its state once they are "
                 "--replayssm-buffer-len; without either flag where that is faster");
  arguments.flag("--no-use-replayssm", &no_replayssm_, "Mamba-2 (SSD): write the state at every token");
  arguments.integer("--replayssm-buffer-len", &replayssm_buffer_len_, {1, kMaxSsdReplay},
                    "inputs that replay keeps, in memory beside each state");
  arguments.choice("--kv-cache-dtype", &kv_cache_dtype_, kPageDTypes,
                   "keys and values of attention; fp8 (fp8_e4m3) and int8: a scale for each token and head; auto: "
                   "float32");
}

void EngineFlags::declare_lengths(Arguments& arguments) {
  arguments.integer("--max-model-len", &max_model_len_, {0, kMostSequenceTokens},
                    "most tokens of a sequence; 0: the model's limit");
  arguments.integer("--max-num-batched-tokens", &max_num_batched_tokens_, {1, kMostBatchedTokens},
                    "tokens of one step: the prompt is computed in chunks of this size");
}

void EngineFlags::declare_memory(Arguments& arguments) {
  arguments.bytes("--kv-cache-memory-bytes", &kv_cache_memory_bytes_, available_memory_bytes,
                  "memory for states and attention pages together, as 4GB, 512MiB or 25% of what is free; without it "
                  "as much as is needed, up to nine tenths of that");
  arguments.integer("--block-size", &block_size_, {1, kMostBlockTokens}, "tokens of an attention page");
  arguments.choice("--cache-layout", &cache_layout_, {"elastic", "shared"},
                   "elastic: states and attention pages of their own sizes, from memory that moves between them; "
                   "shared: pages of one size from one pool, as engines lay them out that know one size only");
  arguments.flag("--verify-states", &verify_states_,
                 "check a checksum of every state before it is used; a damaged one is computed anew");
}

void EngineFlags::declare_serving(Arguments& arguments, int64_t default_max_num_seqs) {
  serving_ = true;
  max_num_seqs_ = default_max_num_seqs;
  arguments.section("Many requests at once");
  arguments.integer("--max-num-seqs", &max_num_seqs_, {1, kMostSequences},
                    "requests that run at once; more give more tokens a second and need more memory");
  arguments.choice("--scheduling-policy", &scheduling_policy_, {"fcfs", "priority"},
                   "who goes first: who came first, or who has the lower \"priority\"");
  arguments.integer(
      "--long-prefill-token-threshold", &long_prefill_token_threshold_, {0, kMaxTokens},
      "most tokens of one prompt in a step while others wait, so that a long prompt does not hold up short "
      "ones; 0: no limit");
  arguments.choice(
      "--preemption", &preemption_, {"auto", "park", "recompute"},
      "when memory runs out, the latest request makes room: its states are put aside (park) or dropped and "
      "computed again (recompute); auto takes the cheaper");
  arguments.bytes("--parking-memory-bytes", &parking_memory_bytes_, available_memory_bytes,
                  "memory for requests put aside; without it as much as the cache has");
  arguments.text("--parking-dir", &parking_dir_, "DIR",
                 "where requests go that are put aside and do not fit into that memory: into files of this folder that "
                 "go with the process; without it they are computed again");
  arguments.section("State cache");
  arguments.flag("--enable-prefix-caching", &enable_prefix_caching_,
                 "prompts that begin alike share their states and attention pages (the default)");
  arguments.flag("--no-enable-prefix-caching", &no_prefix_caching_, "every prompt is computed from its first token");
  arguments.choice("--mamba-cache-mode", &mamba_cache_mode_, {"auto", "all", "align", "none"},
                   "where recurrent states are kept for later requests. auto: where they pay, at ends of prompts and "
                   "turns, where prompts part, and here and there in long ones; all: at every mamba block; align: at "
                   "block ends that steps reach; none: nowhere");
  arguments.integer("--mamba-block-size", &mamba_block_size_, {1, kMostSequenceTokens},
                    "tokens between states in modes all and align; without it 256");
  arguments.integer("--mamba-retention-interval", &mamba_retention_interval_, {0, kMaxTokens},
                    "of the states of modes all and align, one so many tokens stays; 0: those that a later prompt can "
                    "reach for certain; without it all stay");
  arguments.integer("--prefix-match-unit", &prefix_match_unit_, {1, kMostBlockTokens},
                    "mode align: the finest place at which a hit may end; divides both block sizes");
  arguments.flag("--report-other-salts", &report_other_salts_,
                 "tell a request that its prompt was asked under another cache_salt; it says what others ask");
  declare_memory(arguments);
}

void EngineFlags::apply_serving(EngineOptions& options) const {
  if (enable_prefix_caching_ && no_prefix_caching_) {
    throw Error(ErrorCode::kInvalidArgument,
                "--enable-prefix-caching and --no-enable-prefix-caching exclude each other; leave one out");
  }
  options.max_num_seqs = max_num_seqs_;
  options.enable_prefix_caching = !no_prefix_caching_;
  options.mamba_cache_mode = no_prefix_caching_ ? MambaCacheMode::kNone : *parse_mamba_cache_mode(mamba_cache_mode_);
  options.mamba_block_size = mamba_block_size_;
  options.mamba_retention_interval = mamba_retention_interval_;
  options.prefix_match_unit = prefix_match_unit_;
  tell_of_idle_flags(options);
  options.report_other_salts = report_other_salts_;
  options.preemption = *parse_preemption_mode(preemption_);
  options.parking_memory_bytes = parking_memory_bytes_.value_or(0);
  options.parking_dir = parking_dir_.value_or("");
  options.scheduling_policy = *parse_scheduling_policy(scheduling_policy_);
  options.long_prefill_token_threshold = long_prefill_token_threshold_;
}

EngineOptions EngineFlags::options(bool needs_model) const {
  check_forced_implementations();  // the engine's check, before a machine is measured or a folder looked for
  EngineOptions options;
  options.model = needs_model ? find_model(model) : model;
  options.num_threads = static_cast<int>(threads_);
  options.device = device_;
  options.gpu_memory_utilization = gpu_memory_utilization_.value_or(options.gpu_memory_utilization);
  options.dtype = dtype_;
  options.deterministic = deterministic_;
  options.enforce_eager = enforce_eager_;
  options.max_model_len = max_model_len_;
  options.max_num_batched_tokens = max_num_batched_tokens_;
  options.mamba_cache_dtype = cache_dtype(mamba_cache_dtype_);
  options.mamba_ssm_cache_dtype = cache_dtype(mamba_ssm_cache_dtype_);
  options.kv_cache_dtype = cache_dtype(kv_cache_dtype_);
  if (use_replayssm_ && no_replayssm_) {
    throw Error(ErrorCode::kInvalidArgument,
                "--use-replayssm and --no-use-replayssm exclude each other; leave one out");
  }
  options.use_replayssm = use_replayssm_ ? ReplayMode::kOn : no_replayssm_ ? ReplayMode::kOff : ReplayMode::kAuto;
  options.replayssm_buffer_len = replayssm_buffer_len_;
  options.block_size = block_size_;
  options.kv_cache_memory_bytes = kv_cache_memory_bytes_.value_or(0);
  options.cache_layout = *parse_cache_layout(cache_layout_);
  options.verify_states = verify_states_;
  if (serving_) apply_serving(options);
  return options;
}

void SamplingFlags::declare(Arguments& arguments, int64_t default_max_tokens) {
  default_max_tokens_ = default_max_tokens;
  arguments.section("Sampling (what is not given comes from the model's generation_config.json)");
  arguments.integer(
      "-n,--max-tokens", &max_tokens_, {1, kMaxTokens},
      fmt::format("most tokens to generate; without it the model's max_new_tokens, else {}", default_max_tokens));
  arguments.number("--temperature", &temperature_, {0.0, 1e4}, "0 always takes the likeliest token");
  arguments.integer("--top-k", &top_k_, {-1, kMaxTokens}, "sample among the N likeliest tokens; 0 or -1: all");
  arguments.number("--top-p", &top_p_, {0.0, 1.0},
                   "sample among the likeliest tokens that together reach this probability");
  arguments.number("--min-p", &min_p_, {0.0, 1.0},
                   "leave out tokens below this share of the likeliest one's probability");
  arguments.number("--repetition-penalty", &repetition_, {0.0, 1e4}, "above 1: tokens seen before get less likely");
  arguments.number("--presence-penalty", &presence_, {-2.0, 2.0}, "taken off the logits of generated tokens, once");
  arguments.number("--frequency-penalty", &frequency_, {-2.0, 2.0}, "taken off the logits once for each occurrence");
  arguments.integer("--seed", &seed_, {0}, "the same seed and logits give the same tokens everywhere");
  arguments.texts("--stop", &stop_, "TEXT", "end at this text, which is left out; may be given several times");
  arguments.texts("--stop-token-ids", &stop_token_ids_, "IDS", "end at one of these tokens, as 1,2,3");
  arguments.flag("--include-stop-str-in-output", &include_stop_, "keep the stop text at the end");
  arguments.flag("--ignore-eos", &ignore_eos_, "go on after the model's end tokens");
  arguments.integer("--min-tokens", &min_tokens_, {0, kMaxTokens}, "tokens to generate before an end is allowed");
  arguments.flag("--no-skip-special-tokens", &keep_special_, "show special tokens in the text");
  arguments.integer("--logprobs", &logprobs_, {0, kMostLogprobs},
                    "log-probabilities of the N likeliest tokens at each place");
}

SamplingParams SamplingFlags::apply(SamplingParams params, int64_t vocab_size) const {
  // The library's default means that the model asks for none.
  if (params.max_tokens == SamplingParams().max_tokens) params.max_tokens = default_max_tokens_;
  take(&params.max_tokens, max_tokens_);
  take(&params.temperature, temperature_);
  take(&params.top_k, top_k_);
  take(&params.top_p, top_p_);
  take(&params.min_p, min_p_);
  take(&params.repetition_penalty, repetition_);
  take(&params.presence_penalty, presence_);
  take(&params.frequency_penalty, frequency_);
  take(&params.min_tokens, min_tokens_);
  if (seed_) params.seed = static_cast<uint64_t>(*seed_);
  if (logprobs_) params.logprobs = static_cast<int>(*logprobs_);
  for (const std::string& text : stop_) {
    if (text.empty()) throw make_error(ErrorCode::kInvalidArgument, "--stop expects a text, found an empty one");
    check_utf8(text, "the text after --stop");
    params.stop.push_back(text);
  }
  for (const std::string& list : stop_token_ids_) {
    const std::vector<int32_t> ids = parse_token_ids(list, "--stop-token-ids");
    check_token_ids(ids, vocab_size);
    params.stop_token_ids.insert(params.stop_token_ids.end(), ids.begin(), ids.end());
  }
  params.ignore_eos = params.ignore_eos || ignore_eos_;
  params.include_stop_str_in_output = params.include_stop_str_in_output || include_stop_;
  params.skip_special_tokens = !keep_special_;
  if (const std::string problems = params.problems(vocab_size); !problems.empty()) {
    throw Error(ErrorCode::kInvalidArgument, problems);
  }
  return params;
}

std::unique_ptr<Engine> load_engine_with_progress(EngineOptions options) {
  ProgressBar bar("loading", "B");
  options.load_progress = [&bar](int64_t done, int64_t total) {
    check_interrupt();
    bar.update(done, total);
  };
  return Engine::load(options);
}

}  // namespace coluber::cli
