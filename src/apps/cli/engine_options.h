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
  // Of these, --max-model-len and --max-num-batched-tokens alone.
  void declare_lengths(Arguments& arguments);
  // Where the memory of states and pages comes from: for commands that run one sequence, or few.
  void declare_memory(Arguments& arguments);
  // Many requests at once, what the cache keeps of them, and who goes first; with `declare_memory`'s.
  void declare_serving(Arguments& arguments, int64_t default_max_num_seqs);
  // After parsing. Throws Error for a model that is not there.
  // Without `needs_model` an unnamed model stays unnamed.
  EngineOptions options(bool needs_model = true) const;

  std::string model;

 private:
  int64_t threads_ = 0;
  std::string device_ = "cpu";
  std::optional<double> gpu_memory_utilization_;
  std::string dtype_ = "float32";
  bool deterministic_ = false;
  bool enforce_eager_ = false;
  int64_t max_model_len_ = 0;
  int64_t max_num_batched_tokens_ = 512;
  std::string mamba_cache_dtype_ = "auto";
  std::string mamba_ssm_cache_dtype_ = "auto";
  std::string kv_cache_dtype_ = "auto";
  bool use_replayssm_ = false, no_replayssm_ = false;
  int64_t replayssm_buffer_len_ = EngineOptions().replayssm_buffer_len;
  void apply_serving(EngineOptions& options) const;

  int64_t block_size_ = EngineOptions().block_size;
  std::optional<int64_t> kv_cache_memory_bytes_, parking_memory_bytes_;
  std::optional<std::string> parking_dir_;
  std::string cache_layout_{cache_layout_name(EngineOptions().cache_layout)};
  bool verify_states_ = false;

  bool serving_ = false;
  int64_t max_num_seqs_ = EngineOptions().max_num_seqs;
  std::string mamba_cache_mode_ = "auto";
  bool enable_prefix_caching_ = false, no_prefix_caching_ = false;
  bool report_other_salts_ = false;
  std::optional<int64_t> mamba_block_size_, mamba_retention_interval_, prefix_match_unit_;
  std::string preemption_{preemption_mode_name(EngineOptions().preemption)};
  std::string scheduling_policy_{scheduling_policy_name(EngineOptions().scheduling_policy)};
  int64_t long_prefill_token_threshold_ = 0;
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
