// SPDX-License-Identifier: Apache-2.0
#include "coluber/session.h"

#include <algorithm>

#include "base/error.h"
#include "engine/engine_impl.h"
#include "engine/export_state.h"

namespace coluber {

struct SessionCheckpoint::Impl {
  Impl(StateCache& state_cache, int32_t slot, const Sequence& sequence)
      : cache(state_cache),
        state_slot(slot),
        tokens(sequence.tokens.begin(), sequence.tokens.begin() + sequence.num_computed_tokens) {}
  ~Impl() { cache.release_slot(state_slot); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  StateCache& cache;
  int32_t state_slot;
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  PrefixHash prefix_hash;
};

int64_t SessionCheckpoint::num_tokens() const noexcept {
  return impl_ ? static_cast<int64_t>(impl_->tokens.size()) : 0;
}

struct Session::Impl {
  explicit Impl(Engine::Impl& engine_impl) : engine(engine_impl) {}
  ~Impl() { engine.cache->release(sequence); }

  void run_step(int64_t tokens, WantedLogits wanted, const HiddenSink* sink,
                const std::function<void(const float*, int64_t)>& on_logits);
  void extend(std::span<const int32_t> ids, int64_t chunk, const std::function<void(const float*, int64_t)>& on_logits);
  // Computes what is not yet, steps of at most `step` tokens. The first `told` tokens have been computed before, in
  // another length's way: nobody hears of them again.
  void compute(int64_t step, int64_t told, const std::function<void(const float*, int64_t)>& on_logits);

  Engine::Impl& engine;
  Sequence sequence;
  std::vector<float> last_logits;
  HiddenSink hidden_sink;
  StepPlan plan;
};

void Session::Impl::run_step(int64_t tokens, WantedLogits wanted, const HiddenSink* sink,
                             const std::function<void(const float*, int64_t)>& on_logits) {
  plan.clear();
  plan.add(sequence, tokens, wanted);
  engine.runner->set_hidden_sink(sink);
  try {
    engine.runner->run(plan);
  } catch (...) {
    engine.runner->set_hidden_sink(nullptr);
    engine.cache->release(sequence);
    sequence = Sequence{};
    last_logits.clear();
    throw;
  }
  engine.runner->set_hidden_sink(nullptr);
  const std::span<const float> logits = engine.runner->logits(0);
  const auto vocab = engine.loaded.model->info().vocab_size;
  if (logits.empty()) return;
  last_logits.assign(logits.end() - vocab, logits.end());
  if (on_logits) on_logits(logits.data(), static_cast<int64_t>(logits.size()) / vocab);
}

void Session::Impl::compute(int64_t step, int64_t told, const std::function<void(const float*, int64_t)>& on_logits) {
  while (sequence.num_uncomputed() > 0) {
    const bool is_new = sequence.num_computed_tokens >= told;
    const int64_t tokens = std::min(step, is_new ? sequence.num_uncomputed() : told - sequence.num_computed_tokens);
    const bool last = tokens == sequence.num_uncomputed();
    const WantedLogits wanted = !is_new     ? WantedLogits::kNone
                                : on_logits ? WantedLogits::kAll
                                : last      ? WantedLogits::kLast
                                            : WantedLogits::kNone;
    run_step(tokens, wanted, is_new ? &hidden_sink : nullptr, on_logits);
  }
}

void Session::Impl::extend(std::span<const int32_t> ids, int64_t chunk,
                           const std::function<void(const float*, int64_t)>& on_logits) {
  check_ids(ids, engine.loaded.model->info().vocab_size);
  const int64_t total = sequence.num_computed_tokens + static_cast<int64_t>(ids.size());
  const int64_t limit = engine.loaded.config->max_model_len;
  if (total > limit)
    throw make_error(ErrorCode::kContextLength, "the session would hold {} tokens and the model's context limit is {}",
                     total, limit);
  if (!engine.cache->reserve(sequence, total))
    throw make_error(ErrorCode::kResourceExhausted, "no state slot or attention pages are free for {} tokens", total);
  sequence.tokens.resize(static_cast<size_t>(sequence.num_computed_tokens));
  sequence.tokens.insert(sequence.tokens.end(), ids.begin(), ids.end());
  // A single token that follows a state is a decode; everything else is a prompt.
  if (ids.size() > 1 || sequence.num_computed_tokens == 0) sequence.num_prompt_tokens = total;
  const int64_t step = chunk > 0 ? chunk : engine.loaded.config->scheduler.max_num_batched_tokens;
  const int64_t told = sequence.num_computed_tokens;
  engine.cache->follow_length(sequence);
  compute(step, told, on_logits);
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

std::unique_ptr<Session> Engine::open_session() {
  return std::unique_ptr<Session>(new Session(std::make_unique<Session::Impl>(*impl_)));
}

std::span<const int32_t> Session::tokens() const noexcept {
  return {impl_->sequence.tokens.data(), static_cast<size_t>(impl_->sequence.num_computed_tokens)};
}

void Session::extend(std::span<const int32_t> ids, int64_t chunk,
                     const std::function<void(const float* logits, int64_t rows)>& on_logits) {
  if (chunk < 0) throw make_error(ErrorCode::kInvalidArgument, "chunk must be at least 0, found {}", chunk);
  impl_->extend(ids, chunk, on_logits);
}

void Session::set_hidden_sink(HiddenSink sink) { impl_->hidden_sink = std::move(sink); }

std::span<const float> Session::last_logits() const {
  if (impl_->last_logits.empty())
    throw make_error(ErrorCode::kInvalidArgument, "the session has no logits yet; feed it at least one token");
  return impl_->last_logits;
}

RequestOutput Session::generate(
    const SamplingParams& sampling,
    const std::function<bool(const TokenOutput& token, const std::string& text)>& on_token) {
  Impl& s = *impl_;
  check_sampling(sampling, s.engine.loaded.model->info().vocab_size, s.engine.loaded.tokenizer != nullptr);
  Generation generation(sampling, s.engine.next_seed(sampling), s.engine.loaded.eos_token_ids,
                        s.engine.loaded.tokenizer.get());
  const auto prompt = s.sequence.num_computed_tokens;
  const int64_t limit = s.engine.loaded.config->max_model_len;
  const std::span<const float> first = last_logits();
  if (prompt >= limit)
    throw make_error(ErrorCode::kContextLength,
                     "the session holds {} tokens and the model's context limit is {}: there is no room for one more; "
                     "roll back or reset",
                     prompt, limit);
  std::vector<int32_t> tokens(s.sequence.tokens.begin(), s.sequence.tokens.begin() + prompt);
  RequestOutput output;
  output.prompt_tokens = prompt;
  std::span<const float> logits = first;
  while (output.finish_reason == FinishReason::kNone) {
    Generation::Result result = generation.next(logits, tokens, prompt);
    output.finish_reason = result.finish_reason;
    output.error = result.error;
    output.error_code = result.error_code;
    output.text += result.text;
    if (result.finish_reason == FinishReason::kError) {
      reset();
      break;
    }
    tokens.push_back(result.token.id);
    const int32_t id = result.token.id;
    const bool goes_on = !on_token || on_token(result.token, result.text);
    output.tokens.push_back(std::move(result.token));
    if (output.finish_reason != FinishReason::kNone) break;
    if (!goes_on) {
      output.finish_reason = FinishReason::kAbort;
    } else if (static_cast<int64_t>(tokens.size()) >= limit) {
      output.finish_reason = FinishReason::kLength;
    } else {
      s.extend(std::span(&id, 1), 1, {});
      logits = s.last_logits;
    }
  }
  if (output.finish_reason == FinishReason::kAbort || output.finish_reason == FinishReason::kLength)
    output.text += generation.finish_text();
  output.completion_tokens = generation.num_generated();
  return output;
}

SessionCheckpoint Session::checkpoint() {
  Impl& s = *impl_;
  if (s.sequence.num_computed_tokens == 0)
    throw make_error(ErrorCode::kInvalidArgument,
                     "an empty session has nothing to go back to; feed it at least one token");
  const int32_t slot = s.engine.cache->copy_to_new_slot(s.sequence);
  if (slot == 0)
    throw make_error(ErrorCode::kResourceExhausted, "no state slot is free for a checkpoint; drop an older one");
  SessionCheckpoint checkpoint;
  checkpoint.impl_ = std::make_shared<SessionCheckpoint::Impl>(*s.engine.cache, slot, s.sequence);
  checkpoint.impl_->logits = s.last_logits;
  checkpoint.impl_->prefix_hash = s.sequence.prefix_hash;
  return checkpoint;
}

void Session::rollback(const SessionCheckpoint& checkpoint) {
  Impl& s = *impl_;
  if (!checkpoint.valid() || &checkpoint.impl_->cache != s.engine.cache.get())
    throw make_error(ErrorCode::kInvalidArgument, "the checkpoint is empty or of another engine");
  const std::vector<int32_t>& held = checkpoint.impl_->tokens;
  const std::span<const int32_t> now = tokens();
  // Attention pages hold one continuation: the checkpoint's keys are still there only while its tokens begin the
  // session's.
  if (held.size() > now.size() || !std::equal(held.begin(), held.end(), now.begin()))
    throw make_error(ErrorCode::kInvalidArgument, "the checkpoint of {} tokens is no prefix of the session's {} tokens",
                     held.size(), now.size());
  s.engine.cache->copy_back(checkpoint.impl_->state_slot, s.sequence);
  s.sequence.tokens = held;
  s.sequence.num_computed_tokens = static_cast<int64_t>(held.size());
  s.sequence.num_prompt_tokens = std::min(s.sequence.num_prompt_tokens, s.sequence.num_computed_tokens);
  s.sequence.prefix_hash = checkpoint.impl_->prefix_hash;
  s.last_logits = checkpoint.impl_->logits;
  s.engine.cache->follow_length(s.sequence);
  s.compute(s.engine.loaded.config->scheduler.max_num_batched_tokens, s.sequence.num_tokens(), {});
}

void Session::reset() {
  impl_->engine.cache->release(impl_->sequence);
  impl_->sequence = Sequence{};
  impl_->last_logits.clear();
}

std::vector<ExportedState> Session::export_states() const {
  if (impl_->sequence.num_computed_tokens == 0)
    throw make_error(ErrorCode::kInvalidArgument, "an empty session has no states; feed it at least one token");
  return coluber::export_states(*impl_->engine.loaded.config, impl_->sequence);
}

}  // namespace coluber
