// SPDX-License-Identifier: Apache-2.0
#include "coluber/session.h"

#include <algorithm>

#include "base/error.h"
#include "engine/engine_impl.h"
#include "engine/export_state.h"
#include "engine/session_image.h"
#include "engine/session_impl.h"

namespace coluber {

struct SessionCheckpoint::Impl {
  Impl(StateCache& state_cache, std::unordered_set<const Sequence*>& all) : cache(state_cache), all_held(all) {
    all_held.insert(&held);
  }
  ~Impl() {
    all_held.erase(&held);
    cache.release(held);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  StateCache& cache;
  std::unordered_set<const Sequence*>& all_held;
  Sequence held;
  std::vector<float> logits;
  int64_t answer_start = kNoAnswer;
};

int64_t SessionCheckpoint::num_tokens() const noexcept { return impl_ ? impl_->held.num_computed_tokens : 0; }
int64_t SessionCheckpoint::memory_bytes() const noexcept {
  return impl_ && impl_->held.state_slot != 0 ? impl_->cache.state_layout().slot_bytes : 0;
}

void Session::Impl::check_here() const {
  if (is_lent)
    throw Error(ErrorCode::kInvalidArgument, "a request is going on with this session; wait for its end, or abort it");
}

void Session::Impl::forget() {
  engine.cache->release(sequence);
  sequence = Sequence{};
  last_logits.clear();
  answer_start = kNoAnswer;
  fresh_tokens = 0;
}

void Session::Impl::choose_stream(const SamplingParams& sampling, bool goes_on) {
  const bool is_same = sampler.has_seed && (!sampling.seed || (goes_on && *sampling.seed == sampler.seed));
  if (!is_same) sampler = {engine.next_seed(sampling), 0, true, kNoAnswer};
}

void Session::Impl::run_step(int64_t tokens, WantedLogits wanted, const HiddenSink* sink,
                             const std::function<void(const float*, int64_t)>& on_logits) {
  plan.clear();
  plan.add(sequence, tokens, wanted);
  engine.runner->set_hidden_sink(sink);
  try {
    engine.runner->run(plan);
  } catch (...) {
    engine.runner->set_hidden_sink(nullptr);
    forget();
    throw;
  }
  fresh_tokens += tokens;
  engine.runner->set_hidden_sink(nullptr);
  const std::span<const float> logits = engine.runner->logits(0);
  const auto vocab = engine.loaded.model->info().vocab_size;
  last_logits.clear();  // those of an earlier token are nobody's
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

void Session::Impl::check_extend(std::span<const int32_t> ids) const {
  check_ids(ids, engine.loaded.model->info().vocab_size);
  const int64_t total = sequence.num_computed_tokens + static_cast<int64_t>(ids.size());
  const int64_t limit = engine.loaded.config->max_model_len;
  if (total > limit)
    throw make_error(ErrorCode::kContextLength, "the session would hold {} tokens and the model's context limit is {}",
                     total, limit);
}

void Session::Impl::extend(std::span<const int32_t> ids, int64_t chunk,
                           const std::function<void(const float*, int64_t)>& on_logits) {
  check_extend(ids);
  const int64_t total = sequence.num_computed_tokens + static_cast<int64_t>(ids.size());
  if (!engine.cache->reserve(sequence, total) || !engine.cache->unshare(sequence))
    throw make_error(ErrorCode::kResourceExhausted, "no state slot or attention pages are free for {} tokens", total);
  sequence.tokens.resize(static_cast<size_t>(sequence.num_computed_tokens));
  sequence.tokens.insert(sequence.tokens.end(), ids.begin(), ids.end());
  // A single token that follows a state is a decode; everything else is a prompt.
  if (ids.size() > 1 || sequence.num_computed_tokens == 0) sequence.num_prompt_tokens = total;
  const int64_t step = chunk > 0 ? chunk : engine.loaded.config->scheduler.max_num_batched_tokens;
  const int64_t told = sequence.num_computed_tokens;
  engine.cache->follow_length(sequence);
  // Computed anew, it writes into all its pages, and a checkpoint may hold them too.
  if (sequence.num_computed_tokens < told && !engine.cache->unshare(sequence)) {
    forget();
    throw make_error(ErrorCode::kResourceExhausted, "no attention pages are free to compute {} tokens anew", total);
  }
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

std::span<const int32_t> Session::pending() const noexcept {
  return std::span(impl_->sequence.tokens).subspan(static_cast<size_t>(impl_->sequence.num_computed_tokens));
}

int64_t Session::memory_bytes() const noexcept {
  const Impl& s = *impl_;
  return s.sequence.state_slot != 0 ? s.engine.cache->bytes_for(s.sequence.num_computed_tokens) : 0;
}

void Session::Impl::put_pending(std::span<const int32_t> ids) {
  const std::vector<int32_t> copied(ids.begin(), ids.end());  // they may be the session's own
  sequence.tokens.resize(static_cast<size_t>(sequence.num_computed_tokens));
  sequence.tokens.insert(sequence.tokens.end(), copied.begin(), copied.end());
}

void Session::set_pending(std::span<const int32_t> ids) {
  impl_->check_here();
  check_ids(ids, impl_->engine.loaded.model->info().vocab_size);
  if (!std::ranges::equal(ids, pending())) impl_->answer_start = kNoAnswer;
  impl_->put_pending(ids);
}

void Session::extend(std::span<const int32_t> ids, int64_t chunk,
                     const std::function<void(const float* logits, int64_t rows)>& on_logits) {
  Impl& s = *impl_;
  s.check_here();
  if (chunk < 0) throw make_error(ErrorCode::kInvalidArgument, "chunk must be at least 0, found {}", chunk);
  s.check_extend(ids);
  if (ids.size() != 1 || !std::ranges::equal(ids, pending())) s.answer_start = kNoAnswer;
  s.extend(ids, chunk, on_logits);
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
  s.check_here();
  check_sampling(sampling, s.engine.loaded.model->info().vocab_size, s.engine.loaded.tokenizer != nullptr);
  if (sampling.prompt_logprobs)
    throw Error(ErrorCode::kUnsupported,
                "a session has no prompt_logprobs: its tokens are not computed again; take them from extend's logits");
  const auto prompt = s.sequence.num_computed_tokens;
  const int64_t limit = s.engine.loaded.config->max_model_len;
  const std::span<const float> first = last_logits();
  if (prompt >= limit)
    throw make_error(ErrorCode::kContextLength,
                     "the session holds {} tokens and the model's context limit is {}: there is no room for one more; "
                     "roll back or reset",
                     prompt, limit);
  const bool goes_on = s.answer_start != kNoAnswer && s.sequence.num_uncomputed() == 0;
  if (!goes_on) s.answer_start = prompt;
  s.choose_stream(sampling, goes_on);
  Generation generation(sampling, s.sampler.seed, s.engine.loaded.eos_token_ids, s.engine.loaded.tokenizer.get(),
                        static_cast<uint64_t>(s.sampler.position));
  std::vector<int32_t> tokens(s.sequence.tokens.begin(), s.sequence.tokens.begin() + prompt);
  RequestOutput output;
  output.prompt_tokens = prompt;
  output.cached_tokens = std::max<int64_t>(prompt - s.fresh_tokens, 0);
  std::span<const float> logits = first;
  while (output.finish_reason == FinishReason::kNone) {
    Generation::Result result = generation.next(logits, tokens, s.answer_start);
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
    s.put_pending(std::span(&id, 1));
    ++s.sampler.position;
    s.fresh_tokens = 0;
    const bool wants_more = !on_token || on_token(result.token, result.text);
    output.tokens.push_back(std::move(result.token));
    if (output.finish_reason != FinishReason::kNone) break;
    if (!wants_more) {
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
  s.check_here();
  if (s.sequence.num_computed_tokens == 0)
    throw make_error(ErrorCode::kInvalidArgument,
                     "an empty session has nothing to go back to; feed it at least one token");
  SessionCheckpoint checkpoint;
  checkpoint.impl_ = std::make_shared<SessionCheckpoint::Impl>(*s.engine.cache, s.engine.held);
  if (!s.engine.cache->share(s.sequence, checkpoint.impl_->held))
    throw make_error(ErrorCode::kResourceExhausted, "no state slot is free for a checkpoint; drop an older one");
  checkpoint.impl_->logits = s.last_logits;
  checkpoint.impl_->answer_start = s.answer_start;
  return checkpoint;
}

void Session::rollback(const SessionCheckpoint& checkpoint) {
  Impl& s = *impl_;
  s.check_here();
  if (!checkpoint.valid() || &checkpoint.impl_->cache != s.engine.cache.get())
    throw make_error(ErrorCode::kInvalidArgument, "the checkpoint is empty or of another engine");
  if (!s.engine.cache->share(checkpoint.impl_->held, s.sequence))
    throw make_error(ErrorCode::kResourceExhausted,
                     "no state slot is free to go back to a checkpoint; close a session");
  s.last_logits = checkpoint.impl_->logits;
  s.answer_start = checkpoint.impl_->answer_start;
  s.fresh_tokens = 0;
}

std::unique_ptr<Session> Session::fork() const {
  impl_->check_here();
  auto fork = std::make_unique<Impl>(impl_->engine);
  if (impl_->sequence.num_computed_tokens > 0 && !impl_->engine.cache->share(impl_->sequence, fork->sequence))
    throw make_error(ErrorCode::kResourceExhausted, "no state slot is free for a fork; close a session");
  fork->last_logits = impl_->last_logits;
  fork->answer_start = impl_->answer_start;
  return std::unique_ptr<Session>(new Session(std::move(fork)));
}

SessionImage Session::Impl::image() const {
  check_here();
  if (sequence.num_computed_tokens == 0)
    throw make_error(ErrorCode::kInvalidArgument,
                     "no token of the session is computed yet, so it has no state to save; let it read at least one");
  engine.cache->fold_rings(sequence);
  SessionImage image = make_session_image(engine.loaded, *engine.cache, sequence);
  image.logits = last_logits;
  image.sampler = sampler;
  image.sampler.answer_start = answer_start;
  return image;
}

void Session::save(const std::string& path) const { write_session_file(path, impl_->image()); }

std::function<void()> Session::save_later(std::string path) const {
  auto image = std::make_shared<SessionImage>(impl_->image());
  copy_bytes(*image);
  return [image = std::move(image), path = std::move(path)] { write_session_file(path, *image); };
}

void Session::load(const std::string& path) { load_later(path)(*this); }

std::function<void(Session& session)> Session::load_later(std::string path) {
  auto image = std::make_shared<const SessionImage>(read_session_file(path));
  return [image = std::move(image), path = std::move(path)](Session& session) {
    Impl& s = *session.impl_;
    s.check_here();
    check_session_image(s.engine.loaded, *s.engine.cache, *image, path);
    Sequence restored;
    restore_session_image(s.engine.loaded, *s.engine.cache, *image, restored);
    s.forget();
    s.sequence = std::move(restored);
    s.last_logits = image->logits;
    s.sampler = image->sampler;
    s.answer_start = image->sampler.answer_start;
  };
}

void Session::reset() {
  impl_->check_here();
  impl_->forget();
}

std::vector<ExportedState> Session::export_states() const {
  if (impl_->sequence.num_computed_tokens == 0)
    throw make_error(ErrorCode::kInvalidArgument, "an empty session has no states; feed it at least one token");
  impl_->engine.cache->fold_rings(impl_->sequence);
  return coluber::export_states(*impl_->engine.loaded.config, *impl_->engine.loaded.device, impl_->sequence);
}

}  // namespace coluber
