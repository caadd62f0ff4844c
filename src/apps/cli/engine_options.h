// SPDX-License-Identifier: Apache-2.0
//
// Options that several subcommands share, under vLLM's names: how the engine is set up and how tokens are sampled. A
// sampling flag that was not given leaves what generation_config.json says.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/arguments.h"
#include "coluber/engine.h"

namespace coluber::cli {

class EngineFlags {
 public:
  void declare_model(Arguments& arguments);
  // --threads, --dtype, --max-model-len, --max-num-batched-tokens and the state dtypes.
  void declare(Arguments& arguments);
  // After parsing. Throws Error for a model that is not there.
  // Without `needs_model` an unnamed model stays unnamed.
  EngineOptions options(bool needs_model = true) const;

  std::string model;

 private:
  int64_t threads_ = 0;
  std::string dtype_ = "float32";
  int64_t max_model_len_ = 0;
  int64_t max_num_batched_tokens_ = 512;
  std::string mamba_cache_dtype_ = "auto";
  std::string mamba_ssm_cache_dtype_ = "auto";
  std::string kv_cache_dtype_ = "auto";
};

class SamplingFlags {
 public:
  void declare(Arguments& arguments, int64_t default_max_tokens);
  // The flags over `defaults`. Throws Error(kInvalidArgument) naming every parameter that is wrong for the vocabulary.
  SamplingParams apply(SamplingParams defaults, int64_t vocab_size) const;

 private:
  int64_t default_max_tokens_ = 0;
  std::optional<double> temperature_, top_p_, min_p_, repetition_, presence_, frequency_;
  std::optional<int64_t> max_tokens_, top_k_, min_tokens_, seed_, logprobs_;
  std::vector<std::string> stop_;
  std::vector<std::string> stop_token_ids_;
  bool ignore_eos_ = false;
  bool keep_special_ = false;
  bool include_stop_ = false;
};

// Loads with a progress bar and Ctrl-C.
std::unique_ptr<Engine> load_engine_with_progress(EngineOptions options);

}  // namespace coluber::cli
