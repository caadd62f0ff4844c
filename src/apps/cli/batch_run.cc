// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/batch_run.h"

#include <algorithm>
#include <thread>

#include "apps/cli/cli.h"
#include "apps/cli/logprobs.h"
#include "base/error.h"

namespace coluber::cli {
namespace {

// The engine chooses among what it holds; more than it can soon run would only take memory.
constexpr size_t kMinActive = 64;
constexpr double kLookAgainS = 0.05;  // for Ctrl-C, while nothing has arrived

Json percentiles(std::vector<double> values) {
  if (values.empty()) return Json();
  std::sort(values.begin(), values.end());
  const auto at = [&values](double share) {
    return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
  };
  return Json(Json::Object{{"p50", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", values.back()}});
}

double share_of(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

bool BatchRun::Later::operator()(const Waiting& a, const Waiting& b) const noexcept {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.arrival_s != b.arrival_s) return a.arrival_s > b.arrival_s;
  return a.line->number > b.line->number;
}

BatchRun::BatchRun(Engine& engine, const BatchInput& input, BatchOutput& output, SamplingParams defaults,
                   const Tokenizer* tokenizer, std::optional<AskedGrammar> form)
    : engine_(engine),
      input_(input),
      output_(output),
      defaults_(std::move(defaults)),
      tokenizer_(tokenizer),
      form_(std::move(form)),
      max_active_(std::max(kMinActive, 2 * static_cast<size_t>(engine.config().scheduler.max_num_seqs))) {
  if (tokenizer_ != nullptr)
    grammars_ = std::make_unique<AnswerGrammars>(*tokenizer_, engine.model_info().vocab_size, engine.eos_token_ids());
}

std::shared_ptr<const TokenConstraint> BatchRun::constraint_for(const BatchRequest& given) const {
  const std::optional<AskedGrammar>& form = given.form ? given.form : form_;
  if (!form) return nullptr;
  if (!grammars_)
    throw make_error(ErrorCode::kInvalidArgument,
                     "'{}' needs a tokenizer, and this model has none, so its tokens have no text", form->param);
  return value_or_throw(grammars_->compile(*form));
}

void BatchRun::check_lines() {
  std::unordered_map<std::string, int64_t> line_of_id;
  const int64_t vocab_size = engine_.model_info().vocab_size;
  counts_.lines = static_cast<int64_t>(input_.lines().size());
  for (const BatchInput::Line& line : input_.lines()) {
    check_interrupt();
    ParsedLine parsed = parse_batch_line(input_.text(line), defaults_, vocab_size);
    Json id = parsed.request.id;
    if (!id.is_null()) {
      const auto [first, is_new] = line_of_id.emplace(batch_id_key(id), line.number);
      // The id would say that the first of the two is done.
      if (!is_new) {
        parsed.problem = fmt::format("the id {} is that of line {} already", id.dump(-1, true), first->second);
        id = Json();
      }
    }
    if (id.is_null() ? output_.is_line_done(line.number) : output_.is_done(batch_id_key(id))) {
      ++counts_.done_before;
    } else if (!parsed.problem.empty()) {
      write_problem(id, line.number, ErrorCode::kInvalidArgument, parsed.problem);
    } else {
      const bool by_priority = engine_.config().scheduler.by_priority;
      coming_.push_back({&line, file_of(parsed.request.session), by_priority ? parsed.request.priority : 0,
                         parsed.request.arrival_s});
      if (parsed.request.priority != 0) ++counts_.with_priority;
    }
  }
  std::stable_sort(coming_.begin(), coming_.end(),
                   [](const Waiting& a, const Waiting& b) { return a.arrival_s < b.arrival_s; });
  chain_sessions();
}

void BatchRun::admit() {
  const double now = now_s();
  while (next_ < coming_.size() && coming_[next_].arrival_s <= now) arrived_.push(coming_[next_++]);
  while (active_.size() < max_active_ && !arrived_.empty() && !interrupted()) {
    const Waiting waiting = arrived_.top();
    // A session brings its states: one that has no row yet would only take memory.
    if (!waiting.session.empty() && std::cmp_greater_equal(active_.size(), engine_.config().scheduler.max_num_seqs))
      return;
    arrived_.pop();
    if (!start(waiting)) {
      arrived_.push(waiting);
      return;
    }
  }
}

Request BatchRun::make_request(const BatchRequest& given) const {
  Request request;
  request.sampling = given.sampling;
  request.n = given.n;
  request.best_of = given.best_of;
  request.beam_width = given.beam_width;
  request.length_penalty = given.length_penalty;
  request.early_stopping = given.early_stopping;
  request.priority = given.priority;
  request.cache_salt = given.cache_salt;
  request.constraint = constraint_for(given);
  return request;
}

std::vector<int32_t> BatchRun::prompt_ids(const BatchRequest& given) const {
  if (!given.prompt_ids.empty()) return given.prompt_ids;
  if (!engine_.has_tokenizer()) {
    throw Error(ErrorCode::kInvalidArgument,
                "this model has no tokenizer (tokenizer.json or its like), so it cannot read text; give 'prompt_ids'");
  }
  // The template writes the special tokens itself.
  std::vector<int32_t> ids = given.prompt
                                 ? engine_.encode(*given.prompt, true)
                                 : engine_.encode_chat(engine_.render_chat(
                                       given.messages->dump(), true, given.tools_json, given.template_kwargs_json));
  if (ids.empty())
    throw Error(ErrorCode::kInvalidArgument, "the prompt gives no tokens; a model needs at least one to go on from");
  return ids;
}

bool BatchRun::start(const Waiting& waiting) {
  Active active;
  active.request = parse_batch_line(input_.text(*waiting.line), defaults_, engine_.model_info().vocab_size).request;
  active.line = waiting.line->number;
  active.session_file = waiting.session;
  active.outputs.resize(static_cast<size_t>(active.request.n));
  try {
    if (!waiting.session.empty() && !open_session(active)) return false;
    Request request = make_request(active.request);
    if (active.session) {
      request.session = active.session->session();
      request.prompt_ids = session_ids(*active.session, active.request);
      active.prompt_tokens = active.session->num_held();
    } else {
      request.prompt_ids = prompt_ids(active.request);
    }
    active.prompt_tokens += std::ssize(request.prompt_ids);
    const RequestId id = engine_.add_request(std::move(request));
    active.request.messages.reset();
    active.request.prompt_ids = {};
    active_.emplace(id, std::move(active));
  } catch (const Error& error) {
    write_problem(active.request.id, active.line, error.code(), error.what());
    end_session_line(waiting.session);
  }
  return true;
}

void BatchRun::take(RequestOutput&& piece) {
  const auto found = active_.find(piece.id);
  if (found == active_.end()) return;
  Active& active = found->second;
  if (!piece.tokens.empty() && active.first_token_s < 0.0) active.first_token_s = now_s();
  Output& output = active.outputs.at(static_cast<size_t>(piece.index));
  output.tokens.insert(output.tokens.end(), std::make_move_iterator(piece.tokens.begin()),
                       std::make_move_iterator(piece.tokens.end()));
  output.text += piece.text;
  output.finish_reason = piece.finish_reason;
  output.cumulative_logprob = piece.cumulative_logprob;
  if (!piece.prompt_tokens_logprobs.empty()) active.prompt_logprobs = std::move(piece.prompt_tokens_logprobs);
  active.completion_tokens += static_cast<int64_t>(piece.tokens.size());
  const bool ended = piece.finish_reason != FinishReason::kNone && piece.request_finished;
  active.last = std::move(piece);
  active.last.tokens.clear();
  if (ended) {
    finish(found->first);
    return;
  }
  const auto& limit = active.request.cancel_after_tokens;
  if (!limit || active.completion_tokens < *limit) return;
  engine_.abort(found->first);
  for (Output& one : active.outputs)
    if (one.finish_reason == FinishReason::kNone) one.finish_reason = FinishReason::kAbort;
  ++counts_.cancelled;
  finish(found->first);
}

Json BatchRun::result_json(const Active& active) const {
  Json::Array outputs;
  for (const Output& output : active.outputs) {
    Json::Array ids;
    for (const TokenOutput& token : output.tokens) ids.emplace_back(token.id);
    Json one;
    one.set("ids", std::move(ids));
    one.set("text", engine_.has_tokenizer() ? Json(output.text) : Json());
    one.set("finish_reason", finish_reason_name(output.finish_reason));
    if (active.request.sampling.logprobs) one.set("logprobs", openai_logprobs(tokenizer_, output.tokens));
    if (active.request.beam_width > 1) one.set("cumulative_logprob", output.cumulative_logprob);
    outputs.push_back(std::move(one));
  }
  Json result;
  result.set("id", active.request.id);
  result.set("outputs", std::move(outputs));
  if (active.request.sampling.prompt_logprobs)
    result.set("prompt_logprobs", openai_prompt_logprobs(tokenizer_, active.prompt_logprobs));
  result.set("usage", Json::Object{{"prompt_tokens", active.prompt_tokens},
                                   {"completion_tokens", active.completion_tokens},
                                   {"cached_tokens", active.last.cached_tokens}});
  const MissReason reason = active.last.miss_reason;
  result.set("cache", Json::Object{{"hit_tokens", active.last.cached_tokens},
                                   {"miss_reason", reason == MissReason::kNone ? Json() : miss_reason_name(reason)}});
  if (!active.last.error.empty()) {
    result.set("error",
               Json::Object{{"code", error_code_name(active.last.error_code)}, {"message", active.last.error}});
  }
  return result;
}

void BatchRun::finish(RequestId id) {
  Active active = std::move(active_.at(id));
  active_.erase(id);
  if (save_session(active)) write_result(active);
  active.session.reset();  // before the next line takes what was saved
  end_session_line(active.session_file);
}

void BatchRun::write_result(const Active& active) {
  output_.write(result_json(active));
  ++counts_.done;
  if (!active.last.error.empty()) ++counts_.failed;
  counts_.prompt_tokens += active.prompt_tokens;
  counts_.completion_tokens += active.completion_tokens;
  counts_.cached_tokens += active.last.cached_tokens;
  const double arrived_s = active.request.arrival_s;
  if (active.first_token_s >= 0.0) first_token_s_.push_back(active.first_token_s - arrived_s);
  whole_s_.push_back(now_s() - arrived_s);
}

void BatchRun::write_problem(const Json& id, int64_t line, ErrorCode code, const std::string& problem) {
  Json result;
  result.set("id", id);
  result.set("line", line);
  result.set("error", Json::Object{{"code", error_code_name(code)}, {"message", problem}});
  output_.write(result);
  ++counts_.done;
  ++counts_.failed;
}

Json BatchRun::stats() const {
  const EngineStats engine = engine_.stats();
  Json::Object reasons;
  for (size_t i = 0; i < engine.miss_reasons.size(); ++i) {
    const auto reason = static_cast<MissReason>(i);
    if (reason != MissReason::kNone) reasons.emplace_back(miss_reason_name(reason), engine.miss_reasons[i]);
  }
  Json stats;
  stats.set("requests", Json::Object{{"lines", counts_.lines},
                                     {"done_before", counts_.done_before},
                                     {"done", counts_.done},
                                     {"failed", counts_.failed},
                                     {"cancelled", counts_.cancelled}});
  stats.set("seconds", seconds_);
  stats.set("prompt_tokens", counts_.prompt_tokens);
  stats.set("completion_tokens", counts_.completion_tokens);
  stats.set("completion_tokens_per_second",
            seconds_ > 0.0 ? static_cast<double>(counts_.completion_tokens) / seconds_ : 0.0);
  stats.set("first_token_s", percentiles(first_token_s_));
  stats.set("whole_request_s", percentiles(whole_s_));
  stats.set("steps", engine.steps);
  stats.set("query_tokens", engine.query_tokens);
  stats.set("hit_tokens", engine.hit_tokens);
  stats.set("hit_rate", share_of(engine.hit_tokens, engine.query_tokens));
  stats.set("miss_reasons", std::move(reasons));
  stats.set("computed_tokens", engine.computed_tokens);
  stats.set("recomputed_tokens", engine.recomputed_tokens);
  stats.set("preemptions", engine.preemptions);
  stats.set("parked", engine.parked);
  stats.set("parked_to_files", engine.parked_to_files);
  stats.set("checkpoints",
            Json::Object{{"published", engine.checkpoints_published}, {"evicted", engine.checkpoints_evicted}});
  stats.set("memory_bytes", engine.memory_bytes);
  stats.set("peak_bytes",
            Json::Object{{"recurrent", engine.peak_recurrent_bytes}, {"attention", engine.peak_attention_bytes}});
  stats.set("cached_bytes",
            Json::Object{{"recurrent", engine.cached_recurrent_bytes}, {"attention", engine.cached_attention_bytes}});
  stats.set("broken_states", engine.broken_states);
  stats.set("non_finite_requests", engine.non_finite_requests);
  stats.set("leaked_slots", engine.leaked_slots);
  return stats;
}

void BatchRun::show_progress() {
  const double seconds = now_s();
  if (seconds <= 0.0) return;
  bar_.update(counts_.done_before + counts_.done, counts_.lines,
              fmt::format(", {:.0f} tokens/s, {:.0f} % of prompts from the cache",
                          static_cast<double>(counts_.completion_tokens) / seconds,
                          100.0 * share_of(counts_.cached_tokens, counts_.prompt_tokens)));
}

void BatchRun::wait_for_arrival() const {
  const double wait_s = std::min(kLookAgainS, coming_[next_].arrival_s - now_s());
  if (wait_s > 0.0) std::this_thread::sleep_for(std::chrono::duration<double>(wait_s));
}

void BatchRun::run() {
  check_lines();
  started_ = Clock::now();
  while (!interrupted()) {
    admit();
    if (engine_.has_unfinished_requests()) {
      for (RequestOutput& piece : engine_.step()) take(std::move(piece));
    } else if (next_ < coming_.size()) {
      wait_for_arrival();
    } else if (arrived_.empty()) {
      break;
    }
    show_progress();
  }
  for (const auto& [id, active] : active_) engine_.abort(id);
  active_.clear();
  seconds_ = now_s();
  bar_.finish();
}

}  // namespace coluber::cli
