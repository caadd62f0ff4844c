// SPDX-License-Identifier: Apache-2.0
//
// Random traffic over one engine, held to a reference that cannot be wrong: each answer is computed again by one
// sequence alone, in one piece, without a cache, and the probability of every token compared. Whatever the random
// numbers, it is repeatable from its seed. One thread.
#pragma once

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "engine/engine_impl.h"
#include "families.h"

namespace coluber {

struct EngineTestAccess {
  static Engine::Impl& impl(Engine& engine) { return *engine.impl_; }
};

namespace soak {

struct Trace {
  std::string family;
  uint64_t seed = 0;
  int64_t operations = 400;
  PlantedFault fault = PlantedFault::kNone;
  CacheLayout layout = CacheLayout::kElastic;
};

class Traffic {
 public:
  explicit Traffic(const Trace& trace) : trace_(trace), random_(trace.seed) {}

  // The first thing that is wrong; empty where all is well.
  std::string run() {
    try {
      load();
      for (done_ = 0; done_ < trace_.operations && problem_.empty(); ++done_) operate();
      for (int64_t steps = 0; engine_->has_unfinished_requests() && problem_.empty(); ++steps) {
        step();
        if (steps > 20000) fail("requests do not end");
      }
      if (problem_.empty()) check_end();
    } catch (const std::exception& error) {
      fail(std::string("thrown: ") + error.what());
    }
    return problem_;
  }
  int64_t operations() const { return done_ + steps_; }
  std::string describe() const { return description_; }

 private:
  struct Asked {
    std::vector<int32_t> prompt;
    std::string salt;
    bool greedy = true;
    bool poisoned = false;  // NaN was put into its state
    int64_t cancel_after = -1;
    std::map<int64_t, std::vector<TokenOutput>> answers;
  };

  int64_t upto(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool once_in(int64_t n) { return upto(n) == 0; }
  void fail(const std::string& what) {
    if (problem_.empty()) problem_ = "operation " + std::to_string(done_) + ": " + what;
  }

  auto& impl() { return EngineTestAccess::impl(*engine_); }

  void load() {
    EngineOptions options = families::options_for(trace_.family);
    options.num_threads = 1;
    EngineOptions plain = options;
    plain.enable_prefix_caching = false;
    reference_ = Engine::load(plain);
    options.poison_pools = true;
    options.verify_states = once_in(2);
    options.mamba_cache_mode = std::vector{MambaCacheMode::kAuto, MambaCacheMode::kAuto, MambaCacheMode::kAll,
                                           MambaCacheMode::kAlign, MambaCacheMode::kNone}[static_cast<size_t>(upto(5))];
    if (trace_.fault != PlantedFault::kNone) options.mamba_cache_mode = MambaCacheMode::kAuto;
    options.block_size = 4 << upto(3);
    options.mamba_block_size = options.block_size * (1 + upto(4));
    options.max_num_seqs = 1 + upto(6);
    options.max_num_batched_tokens = options.max_num_seqs + 3 + upto(80);
    options.preemption =
        std::vector{
            PreemptionMode::kAuto, PreemptionMode::kPark,
            PreemptionMode::kRecompute}[static_cast<size_t>(trace_.fault == PlantedFault::kLeakSlot   ? 2
                                                            : trace_.fault == PlantedFault::kDropPark ? 1
                                                                                                      : upto(3))];
    options.scheduling_policy = once_in(2) ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    if (once_in(3)) options.long_prefill_token_threshold = 1 + upto(30);
    options.cache_layout = trace_.layout;
    options.kv_cache_memory_bytes = int64_t{1} << 30;
    engine_ = Engine::load(options);
    const int64_t one = impl().cache->bytes_for(kLongest);
    options.kv_cache_memory_bytes = one + one * upto(4);  // from a pool for one sequence on
    engine_ = Engine::load(options);
    impl().cache->plant(trace_.fault);
    free_slots_ = engine_->free_state_slots();
    free_pages_ = engine_->free_attention_pages();
    std::ostringstream text;
    text << trace_.family << " seed " << trace_.seed << ": " << mamba_cache_mode_name(options.mamba_cache_mode) << ", "
         << preemption_mode_name(options.preemption) << ", " << scheduling_policy_name(options.scheduling_policy)
         << ", blocks of " << options.block_size << " and " << *options.mamba_block_size << ", " << options.max_num_seqs
         << " sequences, " << options.max_num_batched_tokens << " tokens, " << options.kv_cache_memory_bytes
         << " bytes";
    description_ = text.str();
  }

  void operate() {
    const int64_t action = upto(100);
    if (action < 35) return add();
    if (action < 92) return step();
    if (action < 96) return cancel();
    if (action < 99) return poison();
    engine_->clear_prefix_cache();
  }

  // Begins like something that was said before, more often than not.
  std::vector<int32_t> prompt() {
    std::vector<int32_t> ids;
    if (!said_.empty() && !once_in(4)) {
      ids = said_[static_cast<size_t>(upto(std::ssize(said_)))].second;
      if (once_in(2)) ids.resize(static_cast<size_t>(1 + upto(std::ssize(ids))));
      if (once_in(5)) ids[static_cast<size_t>(upto(std::ssize(ids)))] = static_cast<int32_t>(upto(250));
    }
    for (int64_t i = once_in(3) ? upto(60) : upto(8); i >= 0; --i) ids.push_back(static_cast<int32_t>(upto(250)));
    if (std::ssize(ids) > kLongest - kMostNew) ids.resize(static_cast<size_t>(kLongest - kMostNew - upto(20)));
    return ids;
  }

  void add() {
    if (std::ssize(asked_) > 12) return step();
    Asked asked;
    asked.prompt = prompt();
    asked.salt = once_in(4) ? "b" : "";
    Request request{asked.prompt, families::greedy(1 + upto(kMostNew))};
    request.sampling.logprobs = 0;
    request.cache_salt = asked.salt;
    request.priority = upto(3);
    if (once_in(4)) {
      request.n = 2 + upto(2);
      request.sampling.temperature = 1.5f;
      request.sampling.seed = random_();
      asked.greedy = false;
    }
    if (once_in(10)) asked.cancel_after = upto(6);
    begun_.emplace_back(asked.salt, asked.prompt);
    asked_[engine_->add_request(std::move(request))] = std::move(asked);
  }

  void cancel() {
    if (asked_.empty()) return;
    const auto chosen = std::next(asked_.begin(), upto(std::ssize(asked_)));
    engine_->abort(chosen->first);
    asked_.erase(chosen);
    check_books();
  }

  // A model that overflows: its state is not a number any more.
  void poison() {
    for (auto& [number, answer] : impl().answers) {
      const Sequence& sequence = *answer.sequence;
      if (sequence.state_slot == 0 || sequence.num_computed_tokens == 0 || !once_in(2)) continue;
      if (impl().cache->state_layout().slot_bytes == 0 || impl().options.verify_states) return;
      impl().cache->fill_with_nan(sequence);
      asked_.at(answer.request).poisoned = true;
      return;
    }
  }

  void step() {
    ++steps_;
    for (RequestOutput& output : engine_->step()) take(output);
    check_books();
  }

  void check_books() {
    const std::string books = engine_->audit();
    if (!books.empty()) fail(books);
    const EngineStats stats = engine_->stats();
    if (stats.leaked_slots != 0) fail(std::to_string(stats.leaked_slots) + " leaked slots");
    if (stats.broken_states != 0) fail("a state was not what its tag said");
    if (stats.recurrent_bytes + stats.attention_bytes > stats.memory_bytes) fail("more memory than allowed");
  }

  void take(RequestOutput& output) {
    const auto found = asked_.find(output.id);
    if (found == asked_.end()) {
      if (!aborted_.contains(output.id)) fail("an output of no request");
      return;
    }
    Asked& asked = found->second;
    check_hit(asked, output);
    std::vector<TokenOutput>& tokens = asked.answers[output.index];
    for (TokenOutput& token : output.tokens) tokens.push_back(std::move(token));
    if (output.finish_reason == FinishReason::kError) {
      if (output.error_code != ErrorCode::kNonFinite || !asked.poisoned) fail("an error: " + output.error);
    } else if (output.finish_reason != FinishReason::kNone && !asked.poisoned) {
      check_answer(asked, tokens);
    }
    if (output.request_finished && output.finish_reason != FinishReason::kNone) {
      asked_.erase(found);
    } else if (asked.cancel_after >= 0 && std::ssize(tokens) > asked.cancel_after) {
      engine_->abort(output.id);
      aborted_.insert(output.id);  // other answers of it may have come in the same step
      asked_.erase(found);
    }
  }

  // What was found in the cache is no more than what somebody with that salt has said.
  void check_hit(const Asked& asked, const RequestOutput& output) {
    int64_t most = 0;
    bool self = false;
    const auto compare = [&](const auto& other) {
      if (other.first != asked.salt) return;
      if (!self && other.second == asked.prompt) {
        self = true;
        return;
      }
      const auto parted =
          std::mismatch(other.second.begin(), other.second.end(), asked.prompt.begin(), asked.prompt.end()).first;
      most = std::max<int64_t>(most, parted - other.second.begin());
    };
    std::ranges::for_each(begun_, compare);
    std::ranges::for_each(said_, compare);
    if (output.cached_tokens > most)
      fail(std::to_string(output.cached_tokens) + " cached tokens of " + std::to_string(most) + " ever said");
  }

  void check_answer(const Asked& asked, const std::vector<TokenOutput>& tokens) {
    std::vector<int32_t> ids = asked.prompt;
    for (const TokenOutput& token : tokens) ids.push_back(token.id);
    auto session = reference_->open_session();
    const std::vector<float> logits =
        families::logits_of(*session, std::span(ids).first(ids.size() - 1), std::ssize(ids));
    const auto vocab = static_cast<int64_t>(session->last_logits().size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const float* row = logits.data() + (std::ssize(asked.prompt) - 1 + static_cast<int64_t>(i)) * vocab;
      const float largest = *std::max_element(row, row + vocab);
      double sum = 0.0;
      for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v] - largest));
      const double expected = static_cast<double>(row[tokens[i].id] - largest) - std::log(sum);
      if (!(std::fabs(expected - static_cast<double>(tokens[i].logprob)) < kBound)) {
        std::ostringstream text;
        text << "token " << i << " of an answer to " << asked.prompt.size() << " has log-probability "
             << tokens[i].logprob << ", expected " << expected;
        return fail(text.str());
      }
      if (asked.greedy && largest - row[tokens[i].id] > kBound) return fail("a token that is not the likeliest");
    }
    said_.emplace_back(asked.salt, std::move(ids));
  }

  void check_end() {
    check_books();
    engine_->clear_prefix_cache();
    if (engine_->free_state_slots() != free_slots_) fail("slots are left in use");
    if (engine_->free_attention_pages() != free_pages_) fail("pages are left in use");
    if (engine_->stats().parked_bytes != 0) fail("parked bytes are left");
  }

  static constexpr int64_t kLongest = 240;
  static constexpr int64_t kMostNew = 14;
  static constexpr double kBound = 3e-3;

  Trace trace_;
  std::mt19937_64 random_;
  std::unique_ptr<Engine> reference_;
  std::unique_ptr<Engine> engine_;
  std::map<RequestId, Asked> asked_;
  std::vector<std::pair<std::string, std::vector<int32_t>>> begun_;  // prompts, by salt
  std::vector<std::pair<std::string, std::vector<int32_t>>> said_;   // prompts with answers
  std::set<RequestId> aborted_;
  std::string problem_;
  std::string description_;
  int64_t done_ = 0;
  int64_t steps_ = 0;
  int64_t free_slots_ = 0;
  int64_t free_pages_ = 0;
};

}  // namespace soak
}  // namespace coluber
