// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/engine_options.h"

#include "apps/cli/cli.h"
#include "apps/cli/progress.h"
#include "base/error.h"
#include "formats/weight_source.h"
#include "kernels/op_registry.h"

namespace coluber::cli {
namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxTokens = int64_t{1} << 31;
const std::vector<std::string> kStateDTypes = {"auto", "float32", "bfloat16", "float16"};

std::optional<DType> state_dtype(const std::string& name) { return name == "auto" ? std::nullopt : parse_dtype(name); }

template <typename To, typename From>
void take(To* to, const std::optional<From>& from) {
  if (from) *to = static_cast<To>(*from);
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
  arguments.integer("--threads", &threads_, {0, kMaxThreads}, "threads to compute with; 0: one a usable core");
  arguments.choice("--dtype", &dtype_, {"float32", "auto"},
                   "float32 computes with fp32 activations, states and sums from weights as stored; auto may round "
                   "activations to bf16 inside matrix products where the processor multiplies bf16");
  arguments.integer("--max-model-len", &max_model_len_, {0, kMaxTokens},
                    "most tokens of a sequence; 0: the model's limit");
  arguments.integer("--max-num-batched-tokens", &max_num_batched_tokens_, {1, kMaxTokens},
                    "tokens of one step: the prompt is computed in chunks of this size");
  arguments.choice("--mamba-cache-dtype", &mamba_cache_dtype_, kStateDTypes,
                   "convolution states; auto: as activations");
  arguments.choice("--mamba-ssm-cache-dtype", &mamba_ssm_cache_dtype_, kStateDTypes,
                   "recurrent states; auto: as the config says, else float32");
  arguments.choice("--kv-cache-dtype", &kv_cache_dtype_, kStateDTypes, "keys and values of attention; auto: float32");
}

EngineOptions EngineFlags::options(bool needs_model) const {
  check_forced_implementations();  // the engine's check, before a machine is measured or a folder looked for
  EngineOptions options;
  options.model = needs_model ? model_or_builtin(model) : model;
  options.num_threads = static_cast<int>(threads_);
  options.dtype = dtype_;
  options.max_model_len = max_model_len_;
  options.max_num_batched_tokens = max_num_batched_tokens_;
  options.mamba_cache_dtype = state_dtype(mamba_cache_dtype_);
  options.mamba_ssm_cache_dtype = state_dtype(mamba_ssm_cache_dtype_);
  options.kv_cache_dtype = state_dtype(kv_cache_dtype_);
  return options;
}

void SamplingFlags::declare(Arguments& arguments, int64_t default_max_tokens) {
  default_max_tokens_ = default_max_tokens;
  arguments.section("Sampling (what is not given comes from the model's generation_config.json)");
  arguments.integer(
      "-n,--max-tokens", &max_tokens_, {1, kMaxTokens},
      fmt::format("most tokens to generate; without it the model's max_new_tokens, else {}", default_max_tokens));
  arguments.number("--temperature", &temperature_, {0.0, 1e4}, "0 always takes the likeliest token");
  arguments.integer("--top-k", &top_k_, {-1, kMaxTokens}, "sample among the K likeliest tokens; 0 or -1: all");
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
  arguments.integer("--logprobs", &logprobs_, {0, 1 << 20},
                    "log-probabilities of the K likeliest tokens at each place");
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
