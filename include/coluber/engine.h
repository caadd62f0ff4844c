// SPDX-License-Identifier: Apache-2.0
//
// The engine: a model, its state cache and the step loop. Requests are added, `step` runs one batch, outputs come back.
// Not thread-safe: one thread owns an engine. See session.h for one sequence whose state stays between calls.
//
//   auto engine = Engine::load({.model = "models/asp-7m"});
//   auto id = engine->add_request({.prompt_ids = engine->encode("Once upon a time")});
//   while (engine->has_unfinished_requests())
//     for (const RequestOutput& output : engine->step()) std::cout << output.text;
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/config.h"
#include "coluber/error.h"
#include "coluber/model.h"

namespace coluber {

class Session;

struct EngineOptions {
  std::string model;    // folder of a checkpoint, or a file in one
  int num_threads = 0;  // 0: one a usable core
  bool pin_threads = false;
  std::string dtype = "float32";  // "float32" or "auto"
  int64_t max_model_len = 0;      // 0: the model's limit
  int64_t max_num_batched_tokens = 512;
  int64_t max_num_seqs = 8;
  int64_t block_size = 16;
  std::optional<DType> mamba_cache_dtype;      // conv states
  std::optional<DType> mamba_ssm_cache_dtype;  // recurrent states
  std::optional<DType> kv_cache_dtype;
  MambaCacheMode mamba_cache_mode = MambaCacheMode::kNone;
  int64_t tensor_parallel_size = 1;    // describes a shard's state in `inspect`; more than 1 cannot run yet
  int64_t num_speculative_tokens = 0;  // likewise
  int64_t kv_cache_memory_bytes = 0;   // 0: what max_num_seqs sequences of max_model_len need, capped by free memory
  bool poison_pools = false;           // tests: new pages are filled with NaN
  std::optional<uint64_t> seed;        // default seed of requests without one; unset: from the clock
  std::function<void(int64_t done_bytes, int64_t total_bytes)> load_progress;
};

// vLLM's names and meanings.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy; ties go to the lowest id
  int64_t top_k = 0;         // 0 or -1: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::optional<uint64_t> seed;
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;
  std::optional<int> logprobs;  // how many of the likeliest tokens to report; 0: the chosen one only

  // Every parameter checked, all problems in one message; empty where fine.
  std::string problems(int64_t vocab_size) const;
};

enum class FinishReason { kNone, kStop, kLength, kAbort, kError };
std::string_view finish_reason_name(FinishReason reason) noexcept;  // "stop", "length", "abort", "error"

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;
};

struct TokenOutput {
  int32_t id = 0;
  float logprob = 0.0f;                    // only with SamplingParams::logprobs
  std::vector<TokenLogprob> top_logprobs;  // likewise, likeliest first
};

using RequestId = int64_t;

struct Request {
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
};

struct RequestOutput {
  RequestId id = 0;
  std::vector<TokenOutput> tokens;  // new in this step
  std::string text;                 // new text; whole UTF-8 characters, held back while a stop string may be starting
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;                      // kError: what happened
  ErrorCode error_code = ErrorCode::kOk;  // kError: whose fault it is
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

class Engine {
 public:
  // Throws Error for anything wrong with the model or the options.
  static std::unique_ptr<Engine> load(const EngineOptions& options);
  // A model whose config and tensors are in memory, without a tokenizer.
  static std::unique_ptr<Engine> from_weights(const EngineOptions& options, const std::string& config_json,
                                              std::unique_ptr<WeightSource> weights);
  ~Engine();

  const ModelInfo& model_info() const noexcept;
  const EngineConfig& config() const noexcept;
  SamplingParams default_sampling() const;  // generation_config.json over the defaults above
  std::span<const int32_t> eos_token_ids() const noexcept;
  int num_threads() const noexcept;

  bool has_tokenizer() const noexcept;
  std::vector<int32_t> encode(std::string_view text,
                              bool add_special_tokens = true) const;  // throws without a tokenizer
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;
  bool has_chat_template() const noexcept;
  // `messages_json`: [{"role", "content"}, ...]; `kwargs_json`: extra variables. Throws Error(kInvalidArgument) with
  // the template's message.
  std::string apply_chat_template(const std::string& messages_json, bool add_generation_prompt = true,
                                  const std::string& tools_json = {}, const std::string& kwargs_json = {}) const;

  // Throws Error(kInvalidArgument, kContextLength) for a request that cannot run.
  RequestId add_request(Request request);
  void abort(RequestId id);
  bool has_unfinished_requests() const noexcept;
  // One batch: decodes and prefill chunks. Outputs of the requests that got tokens or ended.
  std::vector<RequestOutput> step();

  std::unique_ptr<Session> open_session();

  int64_t num_steps() const noexcept;
  int64_t free_state_slots() const noexcept;
  int64_t free_attention_pages() const noexcept;
  int64_t cache_bytes() const noexcept;  // memory mapped for states and pages now

 private:
  friend class Session;
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber
