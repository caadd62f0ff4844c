// SPDX-License-Identifier: Apache-2.0
#include "coluber/engine.h"

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "coluber/session.h"
#include "engine/engine_impl.h"
#include "engine/host_memory.h"
#include "tensor/device.h"

namespace coluber {

namespace {

// Slots beyond the running sequences, for sessions and their checkpoints. Addresses only: memory comes with use.
constexpr int64_t kSessionSlots = 256;

StateCacheOptions cache_options(const EngineOptions& options, const LoadedModel& loaded) {
  StateCacheOptions cache;
  cache.num_slots = loaded.config->scheduler.max_num_seqs + kSessionSlots;
  cache.memory_bytes =
      options.kv_cache_memory_bytes > 0 ? options.kv_cache_memory_bytes : available_memory_bytes() / 10 * 9;
  cache.poison = options.poison_pools;
  cache.fingerprint = loaded.fingerprint;
  return cache;
}

}  // namespace

Engine::Impl::Impl(const EngineOptions& engine_options, LoadedModel model)
    : options(engine_options), loaded(std::move(model)), scheduler(loaded.config->scheduler) {
  cache = std::make_unique<StateCache>(*loaded.config, cpu_device(), cache_options(options, loaded));
  runner = std::make_unique<Runner>(*loaded.config, *loaded.model, *cache, *loaded.pool);
  seed_counter = options.seed ? *options.seed : (uint64_t{std::random_device{}()} << 32) ^ std::random_device{}();
}

uint64_t Engine::Impl::next_seed(const SamplingParams& params) { return params.seed ? *params.seed : seed_counter++; }

RequestId Engine::Impl::add_request(Request request) {
  const ModelInfo& info = loaded.model->info();
  check_sampling(request.sampling, info.vocab_size, loaded.tokenizer != nullptr);
  check_ids(request.prompt_ids, info.vocab_size);
  if (request.n != 1 || request.best_of > 1 || request.beam_width > 1)
    throw make_error(ErrorCode::kUnsupported, "n, best_of and beam_width above 1 cannot run yet");
  const auto prompt = static_cast<int64_t>(request.prompt_ids.size());
  if (prompt == 0) throw make_error(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
  const int64_t limit = loaded.config->max_model_len;
  if (prompt >= limit)
    throw make_error(
        ErrorCode::kContextLength,
        "the prompt has {} tokens and the model's context limit is {} with room for one more token; shorten the prompt",
        prompt, limit);
  // max_tokens may be as large as its type allows: "no limit".
  const int64_t total = prompt + std::min(limit - prompt, request.sampling.max_tokens);
  if (!cache->can_ever_hold(total))
    throw make_error(
        ErrorCode::kResourceExhausted,
        "a sequence of {} tokens needs {} of cache and {} may be used; ask for fewer tokens or allow more memory",
        total, format_bytes(cache->bytes_for(total)), format_bytes(cache->memory_bytes()));
  const RequestId id = next_id++;
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(request.prompt_ids);
  sequence->num_prompt_tokens = prompt;
  cache->follow_length(*sequence);
  const uint64_t seed = next_seed(request.sampling);
  Generation generation(std::move(request.sampling), seed, loaded.eos_token_ids, loaded.tokenizer.get());
  scheduler.add({id, sequence.get()});
  requests.emplace(id, ActiveRequest{std::move(sequence), total, std::move(generation), prompt});
  return id;
}

void Engine::Impl::end_request(RequestId id) {
  auto found = requests.find(id);
  if (found == requests.end()) return;
  scheduler.remove(id);
  cache->release(*found->second.sequence);
  requests.erase(found);
}

RequestOutput Engine::Impl::advance(RequestId id, std::span<const float> logits) {
  ActiveRequest& request = requests.at(id);
  Sequence& sequence = *request.sequence;
  Generation::Result result = request.generation.next(logits, sequence.tokens, request.prompt_tokens);
  RequestOutput output;
  output.id = id;
  output.finish_reason = result.finish_reason;
  output.error = std::move(result.error);
  output.error_code = result.error_code;
  output.text = std::move(result.text);
  output.prompt_tokens = request.prompt_tokens;
  if (output.finish_reason != FinishReason::kError) {
    output.tokens.push_back(std::move(result.token));
    sequence.tokens.push_back(output.tokens.back().id);
    cache->follow_length(sequence);
    if (output.finish_reason == FinishReason::kNone && sequence.num_tokens() >= request.max_total_tokens) {
      output.finish_reason = FinishReason::kLength;
      output.text += request.generation.finish_text();
    }
  } else {
    cache->scrub(sequence);
  }
  output.completion_tokens = request.generation.num_generated();
  return output;
}

std::vector<RequestOutput> Engine::Impl::fail_step(ErrorCode code, const std::string& message) {
  std::vector<RequestOutput> outputs;
  for (int64_t id : plan_ids) {
    RequestOutput output;
    output.id = id;
    output.finish_reason = FinishReason::kError;
    output.error = message;
    output.error_code = code;
    output.prompt_tokens = requests.at(id).prompt_tokens;
    outputs.push_back(std::move(output));
    end_request(id);
  }
  return outputs;
}

// Nothing runs and nothing could be admitted: sessions hold the memory. Waiting would never end.
std::optional<RequestOutput> Engine::Impl::fail_stuck_request() {
  if (requests.empty()) return std::nullopt;
  RequestOutput output;
  output.id = requests.begin()->first;
  output.finish_reason = FinishReason::kError;
  output.error_code = ErrorCode::kResourceExhausted;
  output.error = "no state slot or attention pages are free: open sessions hold them; close one and ask again";
  end_request(output.id);
  return output;
}

std::vector<RequestOutput> Engine::Impl::step() {
  scheduler.schedule(
      [this](const Scheduler::Entry& entry) {
        return cache->reserve(*entry.sequence, requests.at(entry.id).max_total_tokens);
      },
      plan, plan_ids);
  std::vector<RequestOutput> outputs;
  if (plan.rows.empty()) {
    if (auto stuck = fail_stuck_request()) outputs.push_back(std::move(*stuck));
    return outputs;
  }
  try {
    runner->run(plan);
  } catch (const std::exception& error) {  // a broken invariant, or no memory: only this step's requests end
    log_warn("a step of {} requests failed: {}", plan.rows.size(), error.what());
    const auto* ours = dynamic_cast<const Error*>(&error);
    return fail_step(ours != nullptr ? ours->code() : ErrorCode::kOutOfMemory, error.what());
  }
  for (size_t row = 0; row < plan.rows.size(); ++row) {
    if (plan.rows[row].logits == WantedLogits::kNone) continue;
    outputs.push_back(advance(plan_ids[row], runner->logits(row)));
  }
  for (const RequestOutput& output : outputs)
    if (output.finish_reason != FinishReason::kNone) end_request(output.id);
  return outputs;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::load(const EngineOptions& options) {
  return std::unique_ptr<Engine>(new Engine(std::make_unique<Impl>(options, load_model(options))));
}

std::unique_ptr<Engine> Engine::from_weights(const EngineOptions& options, const std::string& config_json,
                                             std::unique_ptr<WeightSource> weights) {
  if (!weights) throw make_error(ErrorCode::kInvalidArgument, "from_weights was given no weights (a null pointer)");
  auto impl = std::make_unique<Impl>(options, load_model(options, config_json, std::move(weights)));
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const ModelInfo& Engine::model_info() const noexcept { return impl_->loaded.model->info(); }
const EngineConfig& Engine::config() const noexcept { return *impl_->loaded.config; }
std::span<const int32_t> Engine::eos_token_ids() const noexcept { return impl_->loaded.eos_token_ids; }
int Engine::num_threads() const noexcept { return impl_->loaded.pool->size(); }
bool Engine::has_tokenizer() const noexcept { return impl_->loaded.tokenizer != nullptr; }
bool Engine::has_chat_template() const noexcept {
  return impl_->loaded.chat_template.has_value() || !impl_->loaded.chat_template_error.empty();
}

std::vector<int32_t> Engine::encode(std::string_view text, bool add_special_tokens) const {
  if (!has_tokenizer())
    throw make_error(ErrorCode::kNotFound, "{} has no tokenizer; give token ids instead of text", impl_->loaded.path);
  return value_or_throw(impl_->loaded.tokenizer->encode(text, add_special_tokens));
}

std::string Engine::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  if (!has_tokenizer()) throw make_error(ErrorCode::kNotFound, "{} has no tokenizer", impl_->loaded.path);
  return impl_->loaded.tokenizer->decode(ids, skip_special_tokens);
}

std::string Engine::apply_chat_template(const std::string& messages_json, bool add_generation_prompt,
                                        const std::string& tools_json, const std::string& kwargs_json) const {
  if (!impl_->loaded.chat_template_error.empty())
    throw make_error(ErrorCode::kInvalidData,
                     "the chat template cannot be used: {}; mend it, or give the prompt as plain text (--raw)",
                     impl_->loaded.chat_template_error);
  if (!has_chat_template())
    throw make_error(ErrorCode::kNotFound, "{} has no chat template; give the prompt as plain text",
                     impl_->loaded.path);
  Json variables =
      kwargs_json.empty() ? Json(Json::Object{}) : value_or_throw(parse_json(kwargs_json, "chat template kwargs"));
  if (!variables.is_object())
    throw make_error(ErrorCode::kInvalidArgument, "chat template kwargs must be an object, found {}",
                     variables.type_name());
  variables.set("messages", value_or_throw(parse_json(messages_json, "messages")));
  variables.set("add_generation_prompt", add_generation_prompt);
  if (!tools_json.empty()) variables.set("tools", value_or_throw(parse_json(tools_json, "tools")));
  return value_or_throw(impl_->loaded.chat_template->render(variables));
}

SamplingParams Engine::default_sampling() const {
  const GenerationConfig& given = impl_->loaded.generation;
  SamplingParams params;
  auto set = [](auto& parameter, const auto& value) {
    if (value) parameter = static_cast<std::decay_t<decltype(parameter)>>(*value);
  };
  set(params.temperature, given.temperature);
  if (given.do_sample && !*given.do_sample) params.temperature = 0.0f;
  set(params.top_k, given.top_k);
  set(params.top_p, given.top_p);
  set(params.min_p, given.min_p);
  set(params.repetition_penalty, given.repetition_penalty);
  set(params.presence_penalty, given.presence_penalty);
  set(params.frequency_penalty, given.frequency_penalty);
  set(params.max_tokens, given.max_new_tokens);
  return params;
}

RequestId Engine::add_request(Request request) { return impl_->add_request(std::move(request)); }
void Engine::abort(RequestId id) { impl_->end_request(id); }
bool Engine::has_unfinished_requests() const noexcept { return !impl_->requests.empty(); }
std::vector<RequestOutput> Engine::step() { return impl_->step(); }
EngineStats Engine::stats() const {
  EngineStats stats;
  stats.steps = impl_->runner->num_steps();
  stats.memory_bytes = impl_->cache->memory_bytes();
  return stats;
}
void Engine::clear_prefix_cache() {}
int64_t Engine::num_steps() const noexcept { return impl_->runner->num_steps(); }
int64_t Engine::free_state_slots() const noexcept { return impl_->cache->free_slots(); }
int64_t Engine::free_attention_pages() const noexcept { return impl_->cache->free_pages(); }
int64_t Engine::cache_bytes() const noexcept { return impl_->cache->mapped_bytes(); }

}  // namespace coluber
