// SPDX-License-Identifier: Apache-2.0
//
// The life of requests: checked, forked into answers, stepped, delivered, ended.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "engine/device_choice.h"
#include "engine/engine_impl.h"
#include "engine/host_memory.h"
#include "tensor/device.h"

namespace coluber {

namespace {

// Slots beyond the running sequences: for sessions and their checkpoints, and for the prefix cache. Addresses only:
// memory comes with use.
constexpr int64_t kSessionSlots = 256;
constexpr int64_t kCachedSlots = 16384;
// Tokens of an answer that steps add without asking for memory.
constexpr int64_t kReservedTokens = 4096;
// Of a step whose every token is looked at: 64 MB.
constexpr int64_t kMostLogits = int64_t{1} << 24;

int64_t microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
}

void check_parking_dir(const std::string& folder) {
  std::error_code ignored;
  if (folder.empty()) return;
  if (!std::filesystem::is_directory(folder, ignored) || access(folder.c_str(), W_OK | X_OK) != 0)
    throw make_error(ErrorCode::kInvalidArgument,
                     "parking_dir must be a folder that may be written to, found '{}'; make it, or name another one",
                     folder);
}

StateCacheOptions cache_options(const EngineOptions& options, const LoadedModel& loaded) {
  check_parking_dir(options.parking_dir);
  const CacheConfig& config = loaded.config->cache;
  StateCacheOptions cache;
  const bool caches = config.checkpoint_mode != MambaCacheMode::kNone;
  cache.num_slots = loaded.config->scheduler.max_num_seqs + kSessionSlots + (caches ? kCachedSlots : 0);
  const bool is_given = options.kv_cache_memory_bytes > 0;
  const int64_t host_bytes = available_memory_bytes() / 10 * 9;
  if (loaded.device->is_host())
    cache.memory_bytes = is_given ? options.kv_cache_memory_bytes : host_bytes;
  else
    cache.memory_bytes = device_cache_bytes(options, *loaded.device);
  // Where nobody said how much memory to take, what is kept only in case must leave most of it alone.
  cache.cached_bytes = is_given ? 0 : cache.memory_bytes / 4;
  cache.parking_bytes =
      options.parking_memory_bytes > 0 ? options.parking_memory_bytes : std::min(cache.memory_bytes, host_bytes);
  cache.parking_dir = options.parking_dir;
  cache.preemption = options.preemption;
  cache.poison = options.poison_pools;
  cache.verify_states = options.verify_states;
  cache.tell_other_salts = options.report_other_salts;
  cache.shared_pages = options.cache_layout == CacheLayout::kShared;
  cache.wait_for_prefixes = options.scheduling_policy == SchedulingPolicy::kFcfs;
  cache.fingerprint = loaded.fingerprint;
  cache.policy.mode = config.checkpoint_mode;
  cache.policy.unit = options.block_size;
  cache.policy.block_size = config.checkpoint_block_size;
  cache.policy.match_unit = config.prefix_match_unit;
  cache.policy.retention_interval = config.mamba_retention_interval;
  cache.policy.drop_last_block = loaded.config->speculative.drop_last_block;
  return cache;
}

}  // namespace

Engine::Impl::Impl(const EngineOptions& engine_options, LoadedModel model)
    : options(engine_options), loaded(std::move(model)), scheduler(loaded.config->scheduler) {
  cache = std::make_unique<StateCache>(*loaded.config, *loaded.device, cache_options(options, loaded));
  runner = std::make_unique<Runner>(*loaded.config, *loaded.model, *cache, *loaded.pool, options.enforce_eager);
  seed_counter = options.seed ? *options.seed : (uint64_t{std::random_device{}()} << 32) ^ std::random_device{}();
}

uint64_t Engine::Impl::next_seed(const SamplingParams& params) { return params.seed ? *params.seed : seed_counter++; }

// ---- coming in -------------------------------------------------------------------------------------------------

RequestId Engine::Impl::add_request(Request request) {
  check_request(request);
  const RequestId id = next_id++;
  ActiveRequest active;
  active.session_tokens = std::ssize(held_tokens(request));
  active.prompt_tokens = active.answer_start = active.session_tokens + std::ssize(request.prompt_ids);
  active.max_total_tokens =
      active.prompt_tokens + std::min(loaded.config->max_model_len - active.prompt_tokens, request.sampling.max_tokens);
  active.arrival = id;
  active.seed = next_seed(request.sampling);
  active.request = std::move(request);
  std::unique_ptr<Sequence> sequence = active.request.session ? take_session(active, id) : std::make_unique<Sequence>();
  sequence->tokens.reserve(
      static_cast<size_t>(std::min(active.max_total_tokens, active.prompt_tokens + kReservedTokens)));
  const std::vector<int32_t> prompt = std::move(active.request.prompt_ids);
  sequence->tokens.insert(sequence->tokens.end(), prompt.begin(), prompt.end());
  sequence->num_prompt_tokens = active.prompt_tokens;
  sequence->request_id = id;
  if (!active.request.cache_salt.empty()) sequence->cache_salt = active.request.cache_salt;
  cache->follow_length(*sequence);
  prepare(active, *sequence);
  ActiveRequest& added = requests.emplace(id, std::move(active)).first->second;
  const int64_t answer = add_answer(id, added, std::move(sequence));
  scheduler.add({answer, answers.at(answer).sequence.get(), added.request.priority, added.arrival});
  return id;
}

// What is to be done beside sampling: reading the prompt, searching by beams.
void Engine::Impl::prepare(ActiveRequest& request, Sequence& sequence) {
  const SamplingParams& sampling = request.request.sampling;
  if (request.request.beam_width > 1) add_beams(request);
  if (!sampling.prompt_logprobs && request.request.pooling == Pooling::kNone) return;
  request.reader =
      std::make_unique<PromptReader>(request.request.pooling, sampling.prompt_logprobs, request.prompt_tokens);
  sequence.wants_all_logits = request.reader->wants_logits();
  sequence.shuns_cached = request.reader->needs_every_token();
  if (sequence.wants_all_logits)
    sequence.most_chunk_tokens = std::max<int64_t>(1, kMostLogits / loaded.model->info().vocab_size);
}

int64_t Engine::Impl::add_answer(RequestId id, ActiveRequest& request, std::unique_ptr<Sequence> sequence) {
  const int64_t number = next_answer++;
  const int64_t index = request.num_made++;
  SamplingParams params = request.request.sampling;
  if (request.chooses() && !params.logprobs) params.logprobs = 0;  // to weigh the answers
  const TokenConstraint* constraint = request.request.constraint.get();
  Generation generation(std::move(params), request.seed + static_cast<uint64_t>(index), loaded.eos_token_ids,
                        loaded.tokenizer.get(), request.first_draw,
                        constraint != nullptr ? constraint->clone() : nullptr);
  answers.emplace(number, Answer{id, index, std::move(sequence), std::move(generation), 0.0, {}});
  request.running.push_back(number);
  return number;
}

// Takes a copy of the states and shares the pages. Where there is no room for that it waits and computes the tokens
// itself, or finds them in the prefix cache.
int64_t Engine::Impl::fork_answer(RequestId id, ActiveRequest& request, const Sequence& from) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request_id = id;
  const bool has_row = scheduler.num_running() < loaded.config->scheduler.max_num_seqs;
  const bool has_states = from.state_slot != 0 && from.num_uncomputed() == 0;
  const bool shared = has_row && has_states && cache->share(from, *sequence);
  if (!shared) {
    sequence->tokens = from.tokens;
    sequence->num_prompt_tokens = from.num_prompt_tokens;
    sequence->cache_salt = from.cache_salt;
    sequence->prefix = from.prefix;
    sequence->lost_tokens = from.num_computed_tokens;
    cache->follow_length(*sequence);
  }
  sequence->num_starts = 1;
  const int64_t fork = add_answer(id, request, std::move(sequence));
  const Scheduler::Entry entry{fork, answers.at(fork).sequence.get(), request.request.priority, request.arrival};
  if (!shared || !scheduler.add_running(entry)) scheduler.add(entry);
  return fork;
}

// The other answers of a request, where its prompt ends.
void Engine::Impl::fork_answers(int64_t leader, std::span<const float> logits, std::vector<RequestOutput>& outputs) {
  const RequestId id = answers.at(leader).request;
  ActiveRequest& request = requests.at(id);
  const Sequence& from = *answers.at(leader).sequence;
  std::vector<int64_t> forks;
  while (request.num_made < request.wanted()) forks.push_back(fork_answer(id, request, from));
  for (const int64_t fork : forks) advance(fork, logits, outputs);
}

void Engine::Impl::abort(RequestId id) {
  const auto found = requests.find(id);
  if (found == requests.end()) return;
  const std::vector<int64_t> running = found->second.running;
  for (const int64_t answer : running) end_answer(answer, true);
  requests.erase(id);
}

// ---- going out -------------------------------------------------------------------------------------------------

RequestOutput Engine::Impl::new_output(const Answer& answer) const {
  RequestOutput output;
  if (!spare.empty()) {
    output.tokens = std::move(spare.back().tokens);
    output.text = std::move(spare.back().text);
    output.tokens.clear();
    output.text.clear();
    spare.pop_back();
  }
  output.id = answer.request;
  output.index = answer.index;
  const ActiveRequest& request = requests.at(answer.request);
  output.prompt_tokens = request.prompt_tokens;
  output.completion_tokens = answer.generation.num_generated();
  output.cached_tokens = answer.sequence->prefix.hit_tokens;
  output.common_tokens = answer.sequence->prefix.common_tokens;
  output.miss_reason = answer.sequence->prefix.reason;
  output.queue_us = request.queue_us >= 0 ? request.queue_us : microseconds_since(request.added);
  output.cumulative_logprob = answer.cumulative_logprob;
  return output;
}

void Engine::Impl::end_answer(int64_t number, bool keep) {
  const auto found = answers.find(number);
  scheduler.remove(number);
  ActiveRequest& request = requests.at(found->second.request);
  if (request.request.session)
    give_session_back(request, *found->second.sequence, !keep);
  else if (keep)
    cache->finish(*found->second.sequence);
  else
    cache->release(*found->second.sequence);
  std::erase(request.running, number);
  answers.erase(found);
}

void Engine::Impl::deliver_best(ActiveRequest& request, std::vector<RequestOutput>& outputs) {
  const auto mean = [](const RequestOutput& output) {
    return output.completion_tokens > 0 ? output.cumulative_logprob / static_cast<double>(output.completion_tokens)
                                        : -1e30;
  };
  std::stable_sort(request.ended.begin(), request.ended.end(),
                   [&](const RequestOutput& a, const RequestOutput& b) { return mean(a) > mean(b); });
  for (int64_t i = 0; i < request.request.n; ++i) {
    RequestOutput& output = request.ended[static_cast<size_t>(i)];
    output.index = i;
    if (i == 0 && request.reader && output.finish_reason != FinishReason::kError)
      output.prompt_tokens_logprobs = request.reader->take_logprobs();
    output.request_finished = i + 1 == request.request.n;
    outputs.push_back(std::move(output));
  }
}

void Engine::Impl::deliver(int64_t number, RequestOutput output, std::vector<RequestOutput>& outputs) {
  Answer& answer = answers.at(number);
  const RequestId id = answer.request;
  ActiveRequest& request = requests.at(id);
  const bool ended = output.finish_reason != FinishReason::kNone;
  output.request_finished = ended && request.running.size() == 1 && request.num_made == request.wanted();
  const bool chooses = request.chooses();
  if (chooses) {
    for (TokenOutput& token : output.tokens) {
      if (!request.request.sampling.logprobs) token.logprob = 0.0f;
      answer.held.tokens.push_back(std::move(token));
    }
    output.tokens = std::move(answer.held.tokens);
    output.text = answer.held.text + output.text;
    if (!ended)
      answer.held = std::move(output);
    else
      request.ended.push_back(std::move(output));
  } else {
    if (request.reader && output.finish_reason != FinishReason::kError)
      output.prompt_tokens_logprobs = request.reader->take_logprobs();
    outputs.push_back(std::move(output));
  }
  if (!ended) return;
  const FinishReason reason = chooses ? request.ended.back().finish_reason : outputs.back().finish_reason;
  end_answer(number, reason != FinishReason::kError);
  if (!request.running.empty() || request.num_made < request.wanted()) return;
  if (chooses) deliver_best(request, outputs);
  requests.erase(id);
}

void Engine::Impl::fail_answer(int64_t number, ErrorCode code, const std::string& message,
                               std::vector<RequestOutput>& outputs) {
  const auto found = answers.find(number);
  if (found == answers.end()) return;  // it ended with another of its request
  Answer& answer = found->second;
  ActiveRequest& request = requests.at(answer.request);
  request.num_made = request.wanted();  // forks of it would fail likewise
  RequestOutput output = new_output(answer);
  output.finish_reason = FinishReason::kError;
  output.error = message;
  output.error_code = code;
  if (code == ErrorCode::kNonFinite) {
    ++non_finite_requests;
    cache->scrub(*answer.sequence);
  }
  if (request.beams) {  // they stand and fall together
    const std::vector<int64_t> running = request.running;
    for (const int64_t other : running)
      if (other != number) end_answer(other, false);
  }
  if (request.chooses()) request.request.n = std::min<int64_t>(request.request.n, std::ssize(request.ended) + 1);
  deliver(number, std::move(output), outputs);
}

bool Engine::Impl::keep_states(int64_t number, std::vector<RequestOutput>& outputs) {
  Sequence& sequence = *answers.at(number).sequence;
  if (cache->keep_step_end(sequence)) return true;
  fail_answer(number, ErrorCode::kNonFinite,
              fmt::format("the model's states are not finite after {} tokens; the request ends here",
                          sequence.num_computed_tokens),
              outputs);
  return false;
}

void Engine::Impl::advance(int64_t number, std::span<const float> logits, std::vector<RequestOutput>& outputs) {
  Answer& answer = answers.at(number);
  const int64_t answer_start = requests.at(answer.request).answer_start;
  advance(number, answer.generation.next(logits, answer.sequence->tokens, answer_start), outputs);
}

void Engine::Impl::advance(int64_t number, Generation::Result result, std::vector<RequestOutput>& outputs) {
  Answer& answer = answers.at(number);
  const ActiveRequest& request = requests.at(answer.request);
  Sequence& sequence = *answer.sequence;
  const bool failed = result.finish_reason == FinishReason::kError;
  if (failed) return fail_answer(number, result.error_code, result.error, outputs);
  if (!keep_states(number, outputs)) return;
  answer.cumulative_logprob += static_cast<double>(result.token.logprob);
  RequestOutput output = new_output(answer);
  output.finish_reason = result.finish_reason;
  output.text.append(result.text);
  sequence.tokens.push_back(result.token.id);
  output.tokens.push_back(std::move(result.token));
  cache->follow_length(sequence);
  if (output.finish_reason == FinishReason::kNone && sequence.num_tokens() >= request.max_total_tokens) {
    output.finish_reason = FinishReason::kLength;
    output.text += answer.generation.finish_text();
  }
  deliver(number, std::move(output), outputs);
}

// ---- steps -----------------------------------------------------------------------------------------------------

// A state that is not what the plan expects is never read: its sequence starts anew, the others go on.
void Engine::Impl::restart_broken_rows() {
  for (size_t row = 0; row < plan.rows.size();) {
    try {
      cache->check_read(plan.rows[row]);
      ++row;
    } catch (const Error& error) {
      if (cache->counters().broken_states == 0) log_warn("a sequence is computed anew: {}", error.what());
      cache->drop_broken(*plan.rows[row].sequence);
      scheduler.restart(plan_ids[row]);
      plan.num_tokens -= plan.rows[row].num_tokens;
      plan.rows.erase(plan.rows.begin() + static_cast<int64_t>(row));
      plan_ids.erase(plan_ids.begin() + static_cast<int64_t>(row));
    }
  }
}

// Only a prompt can be a request's first row.
void Engine::Impl::note_begun() {
  for (size_t row = 0; row < plan.rows.size(); ++row) {
    if (!plan.rows[row].sequence->is_prefilling()) continue;
    ActiveRequest& request = requests.at(answers.at(plan_ids[row]).request);
    if (request.queue_us < 0) request.queue_us = microseconds_since(request.added);
  }
}

bool Engine::Impl::run_plan(std::vector<RequestOutput>& outputs) {
  const auto begin = std::chrono::steady_clock::now();
  const HiddenSink sink = [this](int index, const float* values, int64_t, int64_t cols) {
    if (index == loaded.model->info().num_layers) pool_hidden(values, cols);
  };
  if (pools_in_plan()) runner->set_hidden_sink(&sink);
  try {
    runner->run(plan);
    runner->set_hidden_sink(nullptr);
  } catch (const std::exception& error) {  // a broken invariant, or no memory: only this step's requests end
    runner->set_hidden_sink(nullptr);
    log_warn("a step of {} requests failed: {}", plan.rows.size(), error.what());
    const auto* ours = dynamic_cast<const Error*>(&error);
    const ErrorCode code = ours != nullptr ? ours->code() : ErrorCode::kOutOfMemory;
    const std::vector<int64_t> failed = plan_ids;
    for (const int64_t answer : failed) fail_answer(answer, code, error.what(), outputs);
    return false;
  }
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - begin;
  cache->set_token_cost_us(elapsed.count() / static_cast<double>(plan.num_tokens));
  computed_tokens += plan.num_tokens;
  return true;
}

// No memory, and nobody left who could be asked for it: sessions hold it. Where they make no way, waiting would never
// end.
void Engine::Impl::fail_stuck(std::vector<RequestOutput>& outputs) {
  const int64_t answer = scheduler.stuck();
  if (answer == 0 || (make_way && make_way())) return;
  fail_answer(answer, ErrorCode::kResourceExhausted,
              "no state slot or attention pages are free: open sessions hold them; close one and ask again", outputs);
}

// Rows of which no more than the largest logit will be asked.
void Engine::Impl::note_largest() {
  for (size_t row = 0; row < plan.rows.size(); ++row) {
    const Answer& answer = answers.at(plan_ids[row]);
    const ActiveRequest& request = requests.at(answer.request);
    const bool is_alone = !request.beams && request.num_made == request.wanted();
    if (plan.rows[row].logits == WantedLogits::kLast && is_alone && answer.generation.takes_largest())
      plan.rows[row].logits = WantedLogits::kLargest;
  }
}

void Engine::Impl::take_row(size_t row, std::vector<RequestOutput>& outputs) {
  const int64_t number = plan_ids[row];
  if (!answers.contains(number)) return;  // it ended with another of its request
  if (!read_prompt(row, outputs)) return;
  if (answers.at(number).sequence->num_uncomputed() > 0) {
    keep_states(number, outputs);
    return;
  }
  if (const std::optional<int32_t> largest = runner->largest(row)) {
    Answer& answer = answers.at(number);
    return advance(number, answer.generation.next_largest(*largest, answer.sequence->tokens.size()), outputs);
  }
  const std::span<const float> logits = runner->logits(row).last(static_cast<size_t>(loaded.model->info().vocab_size));
  const ActiveRequest& request = requests.at(answers.at(number).request);
  if (request.beams) return advance_beam(number, logits, outputs);
  if (request.num_made < request.wanted()) fork_answers(number, logits, outputs);
  advance(number, logits, outputs);
}

void Engine::Impl::step(std::vector<RequestOutput>& outputs) {
  spare.swap(outputs);
  outputs.clear();
  scheduler.schedule(*cache, plan, plan_ids);
  if (plan.rows.empty()) {
    fail_stuck(outputs);
    return;
  }
  restart_broken_rows();
  note_begun();
  note_largest();
  if (plan.rows.empty() || !run_plan(outputs)) return;
  for (size_t row = 0; row < plan.rows.size(); ++row) take_row(row, outputs);
}

EngineStats Engine::Impl::stats() const {
  const CacheCounters& counted = cache->counters();
  const PrefixTree* tree = cache->tree();
  EngineStats stats;
  stats.steps = runner->num_steps();
  stats.graph_steps = runner->num_graph_steps();
  stats.query_tokens = counted.query_tokens;
  stats.hit_tokens = counted.hit_tokens;
  stats.miss_reasons = counted.miss_reasons;
  stats.computed_tokens = computed_tokens;
  stats.preemptions = counted.preemptions;
  stats.parked = counted.parked;
  stats.parked_to_files = counted.parked_to_files;
  stats.recomputed_tokens = counted.recomputed_tokens;
  stats.checkpoints_published = counted.published;
  stats.checkpoints_evicted = tree != nullptr ? tree->num_evicted() : 0;
  stats.broken_states = counted.broken_states;
  stats.non_finite_requests = non_finite_requests;
  stats.running = scheduler.num_running();
  stats.waiting = scheduler.num_waiting();
  stats.recurrent_bytes = cache->recurrent_bytes();
  stats.attention_bytes = cache->attention_bytes();
  if (tree != nullptr) {
    stats.cached_recurrent_bytes = tree->num_slots() * tree->options().slot_bytes;
    stats.cached_attention_bytes = tree->num_pages() * tree->options().page_bytes;
  }
  stats.parked_bytes = counted.parked_bytes;
  stats.parked_file_bytes = counted.parked_file_bytes;
  stats.peak_recurrent_bytes = counted.peak_recurrent_bytes;
  stats.peak_attention_bytes = counted.peak_attention_bytes;
  stats.memory_bytes = cache->memory_bytes();
  const auto holds_slot = [](const auto& answer) { return answer.second.sequence->state_slot != 0; };
  stats.leaked_slots = cache->request_slots() - std::ranges::count_if(answers, holds_slot);
  return stats;
}

}  // namespace coluber
