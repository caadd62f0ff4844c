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

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/chat_text.h"
#include "coluber/config.h"
#include "coluber/error.h"
#include "coluber/model.h"
#include "coluber/prefix_cache.h"

namespace coluber {

class Session;

// What happens to a sequence that must make room for another: its states and attention pages are copied aside and come
// back, or they are dropped and computed anew; kAuto takes the cheaper.
enum class PreemptionMode { kAuto, kPark, kRecompute };
std::string_view preemption_mode_name(PreemptionMode mode) noexcept;  // "auto", "park", "recompute"
std::optional<PreemptionMode> parse_preemption_mode(std::string_view name) noexcept;

// Who goes first: by arrival, or by Request::priority and then by arrival.
enum class SchedulingPolicy { kFcfs, kPriority };
std::string_view scheduling_policy_name(SchedulingPolicy policy) noexcept;  // "fcfs", "priority"
std::optional<SchedulingPolicy> parse_scheduling_policy(std::string_view name) noexcept;

// How states lie in memory: each at a multiple of 128 bytes in a pool of its own, or as the contract packs them with
// one page size for states and attention.
enum class CacheLayout { kElastic, kShared };
std::string_view cache_layout_name(CacheLayout layout) noexcept;  // "elastic", "shared"
std::optional<CacheLayout> parse_cache_layout(std::string_view name) noexcept;

// Whether layers that can write their states every so many steps only, and keep a ring of the last inputs until then:
// kAuto where that is faster.
enum class ReplayMode { kAuto, kOn, kOff };
std::string_view replay_mode_name(ReplayMode mode) noexcept;  // "auto", "on", "off"

struct EngineOptions {
  std::string model;    // folder of a checkpoint, or a file in one
  int num_threads = 0;  // 0: one a usable core
  bool pin_threads = false;
  std::string device = "cpu";           // "cpu", "cuda" or "cuda:N"; "auto": a CUDA device where there is one
  double gpu_memory_utilization = 0.9;  // of a CUDA device's memory, what weights, states and scratch may take together
  std::string dtype = "float32";        // "float32" or "auto"
  // Results have the same bits whatever the batch, the chunks of a prompt and what came from the cache.
  bool deterministic = false;
  bool enforce_eager = false;  // a CUDA device gets each step kernel by kernel, never as one recorded launch
  int64_t max_model_len = 0;   // 0: the model's limit
  int64_t max_num_batched_tokens = 512;
  int64_t max_num_seqs = 8;
  int64_t block_size = 16;
  std::optional<DType> mamba_cache_dtype;      // conv states
  std::optional<DType> mamba_ssm_cache_dtype;  // recurrent states; unset: as the config says, else float32
  std::optional<DType> kv_cache_dtype;
  // Which states are kept for later requests that begin alike: none; one a mamba block (kAll); those at block ends that
  // steps reach (kAlign); where they pay (kAuto). kNone and enable_prefix_caching = false are the same.
  MambaCacheMode mamba_cache_mode = MambaCacheMode::kAuto;
  bool enable_prefix_caching = true;
  std::optional<int64_t> mamba_block_size;          // tokens of a state block in modes all and align; unset: 256
  std::optional<int64_t> mamba_retention_interval;  // all, align: keep one state so many tokens; 0: reachable ones only
  std::optional<int64_t> prefix_match_unit;         // align: finest hit; divides block_size and mamba_block_size
  PreemptionMode preemption = PreemptionMode::kAuto;
  int64_t parking_memory_bytes = 0;  // for parked sequences; 0: as much as the cache
  // Folder for sequences that no longer fit there, in files without a name; empty: they are computed anew.
  std::string parking_dir;
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kFcfs;
  int64_t long_prefill_token_threshold = 0;  // most tokens of one prompt in a step while others wait; 0: no limit
  CacheLayout cache_layout = CacheLayout::kElastic;
  ReplayMode use_replayssm = ReplayMode::kAuto;
  int64_t replayssm_buffer_len = 16;  // inputs in a ring
  // A request whose prompt was asked under another cache_salt is told so (kDifferentAdapterOrSalt): for one who is all
  // tenants. Else it hears kNoCommonPrefix, and only the stats know better.
  bool report_other_salts = false;
  bool verify_states = false;          // checksums of every state that is read
  int64_t tensor_parallel_size = 1;    // describes a shard's state in `inspect`; more than 1 cannot run yet
  int64_t num_speculative_tokens = 0;  // likewise
  int64_t kv_cache_memory_bytes = 0;   // 0: what max_num_seqs sequences of max_model_len need, capped by free memory
  bool poison_pools = false;           // tests: new pages are filled with NaN
  std::optional<uint64_t> seed;        // default seed of requests without one; unset: from the clock
  std::function<void(int64_t done_bytes, int64_t total_bytes)> load_progress;
};

struct TokenBias {
  int32_t id = 0;
  float bias = 0.0f;
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
  // The same of the prompt's own tokens, each after those before it. Such a prompt is computed whole, and max_tokens
  // may be 0.
  std::optional<int> prompt_logprobs;
  std::vector<TokenBias> logit_bias;       // added to the logits, before penalties; -100 to 100, each id once
  std::vector<int32_t> allowed_token_ids;  // no other token is chosen; empty: all

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

// Which token may come next: a grammar, for instance. Given to a request as a prototype, of which the engine makes one
// clone for each answer and never calls another function. A clone is called on the thread that steps the engine, in
// the course of `step`; it must not call the engine. What it throws ends its answer with an error.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // At the beginning: no token accepted yet.
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
  // Called before each token is chosen. Bit t % 32 of word t / 32: token t may come next. All bits are set beforehand,
  // so that a constraint that forbids nothing now has nothing to do. End tokens are tokens like others: they should be
  // allowed only where the answer may end. Where no token is left the answer ends with an error.
  virtual void fill_mask(std::span<uint32_t> bitmask) = 0;
  // Told of every token that was chosen, end tokens included. False: the answer ends with an error.
  virtual bool accept(int32_t token) = 0;
  // After `accept`: nothing can follow. The answer ends with FinishReason::kStop.
  virtual bool is_terminated() const = 0;
};

// A vector of [hidden_size] for the prompt, instead of an answer: the last layer's hidden states after the final norm,
// of the last token or their mean. Not normalised.
enum class Pooling { kNone, kLast, kMean };
std::string_view pooling_name(Pooling pooling) noexcept;  // "none", "last", "mean"
std::optional<Pooling> parse_pooling(std::string_view name) noexcept;

struct Request {
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  int64_t n = 1;        // answers wanted; answer i samples with seed + i; the prompt is computed once
  int64_t best_of = 0;  // answers made, of which the n likeliest (mean log-probability) are given; 0: n
  // More than 1: beam search instead of sampling, n <= beam_width; 0: off. Beams heed max_tokens, min_tokens,
  // stop_token_ids, ignore_eos and logprobs; nothing is drawn, so that temperature and its like do not matter. Answers
  // come best first, all when the search has ended. See docs/batch.md.
  int64_t beam_width = 0;
  double length_penalty = 1.0;  // beams: score = cumulative_logprob / tokens (prompt and answer) ^ length_penalty
  bool early_stopping = false;  // beams: end as soon as beam_width of them have ended, whatever could still come
  int64_t priority = 0;         // lower goes first, with SchedulingPolicy::kPriority
  std::string cache_salt = {};  // requests share cached prefixes only where their salts are equal
  std::shared_ptr<const TokenConstraint> constraint = {};
  Pooling pooling = Pooling::kNone;  // other than kNone: nothing is generated, sampling is not looked at
  // The prompt, which may be empty then, follows what the session holds, its pending tokens first, in the batch like
  // any other. The session is the request's until that has ended; then it holds all of it, the answer's last token
  // pending. Of one that was aborted it holds what there was, of one that failed nothing: it is as before, to be
  // computed anew. Without a seed it draws from the session's own stream; an empty prompt goes on with the answer
  // before, if an answer came last. One answer; without prompt_logprobs, Pooling::kMean and, unless the session is new,
  // cache_salt. What a session says after its first request is not kept for other prompts.
  std::shared_ptr<Session> session = {};
};

struct RequestOutput {
  RequestId id = 0;
  int64_t index = 0;                // which of the n answers
  std::vector<TokenOutput> tokens;  // new in this step
  std::string text;                 // new text; whole UTF-8 characters, held back while a stop string may be starting
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;                      // kError: what happened
  ErrorCode error_code = ErrorCode::kOk;  // kError: whose fault it is
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, not computed because their states were in the cache
  int64_t common_tokens = 0;  // of the prompt, that an earlier request began with
  MissReason miss_reason = MissReason::kNone;
  int64_t queue_us = 0;             // from add_request to the first step that computed something of the request
  bool request_finished = true;     // the last output of its request (with n > 1 several answers end)
  double cumulative_logprob = 0.0;  // of the answer so far; with logprobs, best_of or beams
  // With SamplingParams::prompt_logprobs, in the first output of the request: one a prompt token. Nothing comes before
  // the first, whose log-probability is 0.
  std::vector<TokenOutput> prompt_tokens_logprobs;
  std::vector<float> embedding;  // with Request::pooling, in the only output of the request, which ends with kStop
};

// Counts since the engine was made, and what is so now.
struct EngineStats {
  int64_t steps = 0;
  int64_t graph_steps = 0;                              // of them, those that a CUDA device did in one launch
  int64_t query_tokens = 0;                             // prompt tokens of admitted requests
  int64_t hit_tokens = 0;                               // of them, found in the cache
  std::array<int64_t, kNumMissReasons> miss_reasons{};  // requests, by MissReason
  int64_t computed_tokens = 0;                          // tokens run through the model
  int64_t preemptions = 0;
  int64_t parked = 0;             // of them, copied aside
  int64_t parked_to_files = 0;    // of those, into files
  int64_t recomputed_tokens = 0;  // computed again after a preemption or a broken state
  int64_t checkpoints_published = 0;
  int64_t checkpoints_evicted = 0;
  int64_t broken_states = 0;  // states whose tag or checksum was not what the plan expected; never used
  int64_t non_finite_requests = 0;
  int64_t running = 0;
  int64_t waiting = 0;  // among them the preempted
  int64_t recurrent_bytes = 0;
  int64_t attention_bytes = 0;
  int64_t cached_recurrent_bytes = 0;  // of them, held by the prefix cache alone
  int64_t cached_attention_bytes = 0;
  int64_t parked_bytes = 0;       // in memory
  int64_t parked_file_bytes = 0;  // in files
  int64_t peak_recurrent_bytes = 0;
  int64_t peak_attention_bytes = 0;
  int64_t memory_bytes = 0;  // the budget of states and pages
  int64_t leaked_slots = 0;  // slots in use that no request, session or checkpoint owns: always 0
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
  std::string_view device() const noexcept;  // that the model runs on: "cpu" or "cuda:N"

  bool has_tokenizer() const noexcept;
  std::vector<int32_t> encode(std::string_view text,
                              bool add_special_tokens = true) const;  // throws without a tokenizer
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;
  // What the token adds to a text, which may be part of a character; empty for ids that the tokenizer does not know.
  std::string token_bytes(int32_t id) const;
  bool has_chat_template() const noexcept;
  // `messages_json`: [{"role", "content"}, ...]; `kwargs_json`: extra variables. Throws Error(kInvalidArgument) with
  // the template's message.
  std::string apply_chat_template(const std::string& messages_json, bool add_generation_prompt = true,
                                  const std::string& tools_json = {}, const std::string& kwargs_json = {}) const;
  // The same, with what somebody typed apart; and its tokens, in which nobody has typed a special token.
  ChatText render_chat(const std::string& messages_json, bool add_generation_prompt = true,
                       const std::string& tools_json = {}, const std::string& kwargs_json = {}) const;
  std::vector<int32_t> encode_chat(const ChatText& chat) const;
  // The chat templates' own text, one behind another; empty where there is none.
  std::string chat_template_source() const;

  // Throws Error(kInvalidArgument, kContextLength) for a request that cannot run.
  RequestId add_request(Request request);
  void abort(RequestId id);
  bool has_unfinished_requests() const noexcept;
  // One batch: decodes and prefill chunks. Outputs of the requests that got tokens or ended.
  std::vector<RequestOutput> step();
  // The same into `outputs`, whose memory serves again: once warm, such steps of decoding allocate nothing.
  void step(std::vector<RequestOutput>& outputs);

  std::unique_ptr<Session> open_session();
  // Called within a step where no request can go on because sessions hold the memory. True: way is being made for them,
  // and they wait; false, or no `make_way`: the first of them ends with kResourceExhausted. It must not call the
  // engine.
  void on_lack_of_memory(std::function<bool()> make_way);

  EngineStats stats() const;
  // For tests, with no session open: the first contradiction between the cache's counts and what requests hold, or
  // empty.
  std::string audit() const;
  // Drops every cached prefix that no request uses now.
  void clear_prefix_cache();

  int64_t num_steps() const noexcept;
  int64_t free_state_slots() const noexcept;
  int64_t free_attention_pages() const noexcept;
  int64_t cache_bytes() const noexcept;  // memory mapped for states and pages now

 private:
  friend class Session;
  friend struct EngineTestAccess;
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace coluber
