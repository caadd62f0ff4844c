// SPDX-License-Identifier: Apache-2.0
#include "coluber/engine.h"

#include "base/error.h"
#include "base/json.h"
#include "coluber/session.h"
#include "engine/engine_impl.h"

namespace coluber {

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
std::string_view Engine::device() const noexcept { return impl_->loaded.device->name(); }
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

std::string Engine::token_bytes(int32_t id) const {
  if (!has_tokenizer()) throw make_error(ErrorCode::kNotFound, "{} has no tokenizer", impl_->loaded.path);
  return impl_->loaded.tokenizer->contains(id) ? impl_->loaded.tokenizer->token_bytes(id) : std::string();
}

std::string Engine::apply_chat_template(const std::string& messages_json, bool add_generation_prompt,
                                        const std::string& tools_json, const std::string& kwargs_json) const {
  return render_chat(messages_json, add_generation_prompt, tools_json, kwargs_json).text;
}

std::string Engine::chat_template_source() const {
  std::string all;
  if (impl_->loaded.chat_template)
    for (const auto& [name, one] : impl_->loaded.chat_template->named) all += one.source() + "\n";
  return all;
}

std::vector<int32_t> Engine::encode_chat(const ChatText& chat) const {
  if (!has_tokenizer())
    throw make_error(ErrorCode::kNotFound, "{} has no tokenizer; give token ids instead of text", impl_->loaded.path);
  return value_or_throw(impl_->loaded.tokenizer->encode_typed(chat.text, chat.typed));
}

ChatText Engine::render_chat(const std::string& messages_json, bool add_generation_prompt,
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
  return value_or_throw(impl_->loaded.chat_template->render_chat(variables));
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
void Engine::abort(RequestId id) { impl_->abort(id); }
bool Engine::has_unfinished_requests() const noexcept { return !impl_->requests.empty(); }
std::vector<RequestOutput> Engine::step() {
  std::vector<RequestOutput> outputs;
  impl_->step(outputs);
  return outputs;
}
void Engine::step(std::vector<RequestOutput>& outputs) { impl_->step(outputs); }
void Engine::on_lack_of_memory(std::function<bool()> make_way) { impl_->make_way = std::move(make_way); }
EngineStats Engine::stats() const { return impl_->stats(); }
std::string Engine::audit() const {
  std::vector<const Sequence*> sequences;
  for (const auto& [number, answer] : impl_->answers) sequences.push_back(answer.sequence.get());
  return impl_->cache->audit(sequences);
}
void Engine::clear_prefix_cache() { impl_->cache->clear_prefixes(); }
int64_t Engine::num_steps() const noexcept { return impl_->runner->num_steps(); }
int64_t Engine::free_state_slots() const noexcept { return impl_->cache->free_slots(); }
int64_t Engine::free_attention_pages() const noexcept { return impl_->cache->free_pages(); }
int64_t Engine::cache_bytes() const noexcept { return impl_->cache->mapped_bytes(); }

}  // namespace coluber
