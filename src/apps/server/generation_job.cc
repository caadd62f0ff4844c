// SPDX-License-Identifier: Apache-2.0
#include "apps/server/generation_job.h"

#include <algorithm>
#include <ctime>

namespace coluber::server {
namespace {

// Bytes on their way to a client beyond which its chunks are gathered instead of written.
constexpr size_t kHighWater = 64 << 10;

void append(std::vector<TokenOutput>& to, std::vector<TokenOutput>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// A session that was made for a request which comes to nothing.
struct Dropped {
  SessionStore& sessions;
  SessionStore::Lease* lease;
  ~Dropped() {
    if (lease != nullptr) sessions.discard(*lease);
  }
};

}  // namespace

GenerationJob::GenerationJob(Serving& serving, Caller caller, std::unique_ptr<Dialect> dialect, OnDone on_done)
    : Job(serving, caller, std::move(on_done)),
      dialect_(std::move(dialect)),
      head_{std::string(dialect_->id_prefix()) + caller.id, static_cast<int64_t>(std::time(nullptr)),
            serving.facts.served_names.front(), serving.tokenizer} {}

// ---- going in --------------------------------------------------------------------------------------------------

ApiResult<std::shared_ptr<SessionStore::Lease>> GenerationJob::find_session(Json& body) {
  ApiResult<SessionUse> use = dialect_->session_use(body);
  if (!use) return tl::unexpected(std::move(use.error()));
  session_use_ = std::move(*use);
  switch (session_use_.kind) {
    case SessionUse::Kind::kNone:
      return nullptr;
    case SessionUse::Kind::kGoOn:
      return serving_.sessions.lend(owner_, session_use_.id);
    case SessionUse::Kind::kFork:
      return serving_.sessions.fork(owner_, session_use_.id, SessionKind::kResponse);
    case SessionUse::Kind::kNew:
      return serving_.sessions.create(owner_, SessionKind::kResponse);
  }
  return nullptr;
}

// Where it comes to nothing the session is free before the client hears of it, and one that was made for it is gone.
std::optional<ApiError> GenerationJob::accept(const std::string& body) {
  Result<Json> json = parse_body(body);
  if (!json) return api_error(json.error());
  Result<Json> translated = dialect_->translate(std::move(*json), nullptr);
  if (!translated) return api_error(translated.error());
  ApiResult<std::shared_ptr<Lease>> lease = find_session(*translated);
  if (!lease) return std::move(lease.error());
  Dropped dropped{serving_.sessions, session_use_.is_kept() ? lease->get() : nullptr};
  HeldSession held;
  if (*lease) {
    held = {(*lease)->num_tokens(), (*lease)->last_token(), {}};
    if (const Json* opening = (*lease)->note().find("opening")) held.opening = *opening;
    if (auto failure = dialect_->check_note((*lease)->note())) return api_error(*failure);
  }
  Result<CompletionRequest> parsed =
      parse_completion(*translated, dialect_->is_chat(), serving_.facts, serving_.engine.engine(),
                       *lease ? &held : nullptr, dialect_->is_open_ended());
  if (!parsed) return api_error(parsed.error());
  const auto request = std::make_shared<CompletionRequest>(std::move(*parsed));
  if (auto failure = hold_to_form(*request)) return api_error(*failure);
  if (*lease) request->session_id = (*lease)->id();
  const auto at = RequestTimes::Clock::now();
  std::vector<RequestId> ids =
      add_all(request->prompts.size(), [&](size_t prompt) { return add(*request, prompt, *lease); });
  if (!ids.empty()) dropped.lease = nullptr;
  serving_.http.post([job = self<GenerationJob>(), request, kept = session_use_.is_kept() ? *lease : nullptr,
                      ids = std::move(ids), at] {
    job->added(*request, at);
    job->started(request, kept, ids);
  });
  return std::nullopt;
}

std::optional<Failure> GenerationJob::hold_to_form(CompletionRequest& request) const {
  if (!request.form) return std::nullopt;
  const std::string& param = request.form->param;
  if (serving_.grammars == nullptr)
    return Failure{ErrorCode::kUnsupported,
                   fmt::format("'{}' is not supported: this model has no tokenizer, so its tokens have no text", param),
                   param};
  auto constraint = serving_.grammars->compile(*request.form);
  if (!constraint) return std::move(constraint.error());
  request.constraint = std::move(*constraint);
  return std::nullopt;
}

// On the engine's thread, before the client hears of the end.
void GenerationJob::session_ended(Lease& lease, FinishReason reason) {
  const bool failed = reason == FinishReason::kError;
  if (session_use_.is_kept() && (failed || reason == FinishReason::kAbort)) return serving_.sessions.discard(lease);
  if (!failed) lease.note().set("opening", Json());
  serving_.sessions.refresh(lease);
  if (!session_use_.is_kept()) lease.release();
}

Request GenerationJob::engine_request(const CompletionRequest& request, size_t prompt) const {
  Request made;
  made.prompt_ids = request.prompts[prompt];
  made.sampling = request.sampling;
  made.n = request.n;
  made.best_of = request.best_of;
  made.beam_width = request.beam_width > 1 ? request.beam_width : 0;
  made.length_penalty = request.length_penalty;
  made.early_stopping = request.early_stopping;
  made.priority = request.priority;
  made.cache_salt = request.cache_salt;
  made.constraint = request.constraint;
  return made;
}

// Where nobody said how long the answer may be, it may be what the memory for states has room for.
RequestId GenerationJob::add(const CompletionRequest& request, size_t prompt, const std::shared_ptr<Lease>& lease) {
  Request made = engine_request(request, prompt);
  if (lease) made.session = lease->session();
  for (;;) {
    try {
      return serving_.engine.add_request(
          made, [job = self<GenerationJob>(), prompt, lease](const RequestOutput& output) {
            if (lease && output.request_finished && output.finish_reason != FinishReason::kNone)
              job->session_ended(*lease, output.finish_reason);
            job->serving_.http.post([job, prompt, output] { job->take(prompt, output); });
          });
    } catch (const Error& error) {
      const bool too_long = error.code() == ErrorCode::kResourceExhausted && request.open_ended;
      if (!too_long || made.sampling.max_tokens <= 1) throw;
      made.sampling.max_tokens /= 2;
    }
  }
}

void GenerationJob::added(const CompletionRequest& request, RequestTimes::Clock::time_point at) {
  times_.added = at;
  if (trace_) trace_->describe(request);
}

void GenerationJob::started(std::shared_ptr<CompletionRequest> request, std::shared_ptr<Lease> kept,
                            std::vector<RequestId> ids) {
  if (!take_ids(std::move(ids))) return;
  kept_ = std::move(kept);
  if (kept_) head_.id = kept_->id();
  prompts_.resize(request->prompts.size());
  prompt_logprobs_.resize(request->prompts.size());
  for (size_t i = 0; i < prompts_.size(); ++i)
    prompts_[i].prompt_tokens = request->held_tokens + std::ssize(request->prompts[i]);
  const auto num_choices = static_cast<size_t>(request->n) * prompts_.size();
  choices_.resize(num_choices);
  for (size_t i = 0; i < num_choices; ++i) choices_[i].index = static_cast<int64_t>(i);
  chunked_.resize(num_choices);
  for (size_t i = 0; i < num_choices && !request->reading.is_plain(); ++i) readers_.emplace_back(request->reading);
  completion_tokens_.resize(num_choices);
  request_ = std::move(request);
  if (request_->stream) {
    HttpHeaders headers = headers_;
    headers.insert(headers.end(), {{"Content-Type", std::string(dialect_->stream_type())},
                                   {"Cache-Control", "no-cache"},
                                   {"X-Accel-Buffering", "no"}});
    stream_->start(200, headers);
    if (const std::string begin = dialect_->begin(head_, *request_); !begin.empty()) stream_->write(begin);
  }
  pump();
}

// ---- coming out ------------------------------------------------------------------------------------------------

void GenerationJob::take(size_t prompt, RequestOutput output) {
  if (done_) return;
  const std::optional<RequestTimes::Clock::time_point> before = times_.last_token;
  times_.output(output);
  if (!output.tokens.empty()) {
    if (before) {
      serving_.metrics.next_token(RequestTimes::between(*before, *times_.last_token), std::ssize(output.tokens));
    } else {
      serving_.metrics.first_token(RequestTimes::between(times_.begun, *times_.last_token));
    }
  }
  pending_.emplace_back(prompt, std::move(output));
  pump();
}

void GenerationJob::pump() {
  if (!request_) return;
  while (!done_ && !pending_.empty()) {
    if (request_->stream && stream_->queued_bytes() > kHighWater) return;  // `on_drain` goes on
    auto [prompt, output] = std::move(pending_.front());
    pending_.pop_front();
    // What has gathered meanwhile for the same answer goes into one chunk.
    while (output.finish_reason == FinishReason::kNone && !pending_.empty() && pending_.front().first == prompt &&
           pending_.front().second.index == output.index) {
      RequestOutput next = std::move(pending_.front().second);
      pending_.pop_front();
      std::vector<TokenOutput> tokens = std::move(output.tokens);
      append(tokens, next.tokens);
      next.tokens = std::move(tokens);
      next.text.insert(0, output.text);
      if (next.prompt_tokens_logprobs.empty()) next.prompt_tokens_logprobs = std::move(output.prompt_tokens_logprobs);
      output = std::move(next);
    }
    handle(prompt, output);
  }
  if (!done_ && ended_ == prompts_.size()) complete();
}

void GenerationJob::count(size_t prompt, const RequestOutput& output) {
  Usage& usage = prompts_[prompt];
  usage.cached_tokens = std::max(usage.cached_tokens, output.cached_tokens);
  usage.common_tokens = std::max(usage.common_tokens, output.common_tokens);
  if (output.index == 0) usage.miss_reason = output.miss_reason;
}

void GenerationJob::handle(size_t prompt, RequestOutput& output) {
  if (failed(output)) return;
  count(prompt, output);
  const size_t index = prompt * static_cast<size_t>(request_->n) + static_cast<size_t>(output.index);
  if (index >= choices_.size()) return end_with(api_error(500, "internal error", "internal"));
  Choice& choice = choices_[index];
  completion_tokens_[index] = output.completion_tokens;
  // The engine says them once; each answer that repeats the prompt repeats them.
  if (request_->echo && request_->n > 1) {
    if (!output.prompt_tokens_logprobs.empty()) prompt_logprobs_[prompt] = output.prompt_tokens_logprobs;
    if (!chunked_[index]) output.prompt_tokens_logprobs = prompt_logprobs_[prompt];
  }
  if (request_->echo && !chunked_[index]) output.text.insert(0, request_->prompt_texts[prompt]);
  AnswerDelta delta;
  if (readers_.empty()) {
    delta.content = std::move(output.text);
  } else {
    delta = readers_[index].push(output.text, output.finish_reason != FinishReason::kNone);
  }
  if (request_->stream) {
    send_chunk(choice, output, std::move(delta));
  } else {
    add_answer(choice, std::move(delta));
    append(choice.tokens, output.tokens);
    append(choice.prompt_logprobs, output.prompt_tokens_logprobs);
    choice.finish_reason = output.finish_reason;
  }
  chunked_[index] = true;
  if (output.finish_reason != FinishReason::kNone && output.request_finished) ++ended_;
}

void GenerationJob::send_chunk(Choice& choice, RequestOutput& output, AnswerDelta delta) {
  const size_t index = static_cast<size_t>(choice.index);
  const bool ends = output.finish_reason != FinishReason::kNone;
  const bool carries_tokens = request_->want_logprobs || request_->return_token_ids;
  // Tokens that have no text yet (part of a character, a stop text that may be beginning) need no chunk of their own.
  if (chunked_[index] && delta.empty() && !ends && !carries_tokens) return;
  choice.text.clear();
  choice.reasoning.clear();
  choice.calls.clear();
  add_answer(choice, std::move(delta));
  choice.tokens = std::move(output.tokens);
  choice.prompt_logprobs = std::move(output.prompt_tokens_logprobs);
  choice.finish_reason = output.finish_reason;
  choice.is_first = !chunked_[index];
  choice.is_last = ends && output.request_finished && ended_ + 1 == prompts_.size();
  stream_->write(dialect_->chunk(head_, *request_, choice, usage()));
  if (request_->want_logprobs) {
    choice.text_offset += text_length(head_.tokenizer, choice.tokens);
    if (request_->echo) choice.text_offset += text_length(head_.tokenizer, choice.prompt_logprobs);
  }
}

Usage GenerationJob::usage() const {
  Usage all;
  for (const Usage& prompt : prompts_) {
    all.prompt_tokens += prompt.prompt_tokens;
    all.cached_tokens += prompt.cached_tokens;
    all.common_tokens += prompt.common_tokens;
    if (all.miss_reason == MissReason::kNone) all.miss_reason = prompt.miss_reason;
  }
  for (const int64_t tokens : completion_tokens_) all.completion_tokens += tokens;
  if (request_) all.session_id = request_->session_id;
  return all;
}

void GenerationJob::complete() {
  const Usage all = usage();
  std::string end;
  Json whole;
  if (request_->stream)
    end = dialect_->end(head_, *request_, all);
  else
    whole = dialect_->whole(head_, *request_, choices_, all);
  if (kept_ && dialect_->keeps_session()) {
    dialect_->write_note(kept_->note());
    kept_->release();
  } else if (kept_) {
    serving_.workers.push([&sessions = serving_.sessions, kept = std::move(kept_)] { sessions.discard(*kept); });
  }
  if (request_->stream) {
    stream_->write(end);
    stream_->end();
  } else {
    respond(200, whole);
  }
  told(choices_.empty() ? FinishReason::kStop : choices_.front().finish_reason);
  finish(200);
}

void GenerationJob::ending(FinishReason reason) {
  if (reason == FinishReason::kError && !request_) return;
  told(reason);
}

// Metrics and traces hear how it ended.
void GenerationJob::told(FinishReason reason) {
  const Usage all = usage();
  serving_.metrics.ended(reason, times_, all.prompt_tokens, all.completion_tokens);
  if (!trace_) return;
  Json::Array reasons;
  for (const Choice& choice : choices_)
    if (choice.finish_reason != FinishReason::kNone) reasons.emplace_back(finish_reason_name(choice.finish_reason));
  trace_->times() = times_;
  trace_->set("gen_ai.response.id", head_.id);
  trace_->set("gen_ai.response.model", head_.model);
  trace_->set("gen_ai.response.finish_reasons", std::move(reasons));
  trace_->set("gen_ai.usage.input_tokens", all.prompt_tokens);
  trace_->set("gen_ai.usage.output_tokens", all.completion_tokens);
  trace_->set("gen_ai.usage.cache_read.input_tokens", all.cached_tokens);
  if (all.miss_reason != MissReason::kNone) trace_->set("coluber.cache.miss_reason", miss_reason_name(all.miss_reason));
}

}  // namespace coluber::server
