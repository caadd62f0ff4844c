// SPDX-License-Identifier: Apache-2.0
//
// Requests of the random traffic: what is asked, and what comes.
#include <algorithm>

#include "soak_traffic.h"

namespace coluber::soak {

namespace {

// Token t may come at place i where t + i is a multiple of three; nothing follows after so many.
class EveryThird : public TokenConstraint {
 public:
  EveryThird(int64_t begin, int64_t last) : place_(begin), last_(last) {}
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<EveryThird>(place_, last_); }
  void fill_mask(std::span<uint32_t> bitmask) override {
    std::ranges::fill(bitmask, 0u);
    for (int64_t id = (3 - place_ % 3) % 3; id < std::ssize(bitmask) * 32; id += 3)
      bitmask[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32);
  }
  bool accept(int32_t token) override {
    const bool fits = (token + place_) % 3 == 0;
    ++place_;
    ++num_accepted_;
    return fits;
  }
  bool is_terminated() const override { return num_accepted_ == last_; }

 private:
  int64_t place_;
  int64_t last_;
  int64_t num_accepted_ = 0;
};

}  // namespace

void Traffic::add() {
  if (std::ssize(asked_) > 12) return step();
  Asked asked;
  Request& request = asked.request;
  request.prompt_ids = prompt(kLongest - kMostNew);
  request.sampling = families::greedy(1 + upto("max_tokens", kMostNew));
  request.sampling.logprobs = 0;
  request.cache_salt = once_in("salt", 4) ? "b" : "";
  request.priority = upto("priority", 3);
  if (impl().options.max_num_seqs > 1 && once_in("beams", 12)) {
    ask_for_beams(asked);
  } else if (!once_in("pooled", 24)) {
    ask_for_answers(asked);
    steer(asked);
  } else {
    request.pooling = one_of("pooling", {Pooling::kLast, Pooling::kMean});
  }
  if (request.pooling == Pooling::kNone && once_in("scored", 10)) request.sampling.prompt_logprobs = 0;
  if (once_in("given_up", 10)) asked.cancel_after = upto("cancel_after", 6);
  RequestId id = 0;
  try {
    id = engine_->add_request(request);
  } catch (const Error& error) {  // beams that would not fit all at once
    if (request.beam_width < 2 || error.code() != ErrorCode::kResourceExhausted) throw;
    return;
  }
  computed_.push_back({request.cache_salt, request.prompt_ids});
  asked_[id] = std::move(asked);
}

void Traffic::ask_for_answers(Asked& asked) {
  Request& request = asked.request;
  if (!once_in("several", 4)) return;
  request.n = 1 + upto("n", 3);
  if (once_in("best", 2)) request.best_of = request.n + upto("best_of", 3);
  request.sampling.temperature = 1.5f;
  request.sampling.seed = static_cast<uint64_t>(upto("seed", int64_t{1} << 62));
}

void Traffic::ask_for_beams(Asked& asked) {
  Request& request = asked.request;
  request.beam_width = 2 + upto("width", std::min<int64_t>(impl().options.max_num_seqs - 1, 3));
  request.n = 1 + upto("n", request.beam_width);
  request.length_penalty = one_of("penalty", {1.0, 0.0, 2.0});
  request.early_stopping = once_in("early", 2);
  if (once_in("stop_ids", 2)) request.sampling.stop_token_ids = {static_cast<int32_t>(upto("stop", 250))};
}

// What else than the model has a say in which tokens come, and when the answer ends.
void Traffic::steer(Asked& asked) {
  SamplingParams& sampling = asked.request.sampling;
  if (once_in("biased", 8)) {
    const auto first = static_cast<int32_t>(upto("bias_at", 240));
    for (int32_t i = 0; i < 3; ++i)
      sampling.logit_bias.push_back({first + 3 * i, static_cast<float>(upto("bias", 11) - 5)});
  }
  const int64_t limits = upto("limited", 12);
  if (limits == 1) {
    const auto first = static_cast<int32_t>(upto("allowed_from", 200));
    for (int64_t i = 0; i < 5 + upto("allowed", 40); ++i)
      sampling.allowed_token_ids.push_back(first + static_cast<int32_t>(i));
  }
  if (limits == 2) {
    asked.terminates_after = upto("terminates", kMostNew);
    asked.request.constraint = std::make_shared<EveryThird>(upto("third", 3), asked.terminates_after);
  }
  if (once_in("stop_ids", 6))
    for (int i = 0; i < 6; ++i) sampling.stop_token_ids.push_back(static_cast<int32_t>(upto("stop", 250)));
  if (engine_->has_tokenizer() && once_in("stop_text", 5)) {
    const std::string text = engine_->decode(std::vector<int32_t>{static_cast<int32_t>(upto("stop_text_id", 250))});
    if (!text.empty() && text.find("\xEF\xBF\xBD") == std::string::npos) sampling.stop.push_back(text);
  }
}

void Traffic::cancel() {
  if (asked_.empty()) return;
  const auto chosen = std::next(asked_.begin(), upto("which", std::ssize(asked_)));
  engine_->abort(chosen->first);
  asked_.erase(chosen);
  check_books();
}

// A model that overflows: its state is not a number any more.
void Traffic::poison() {
  for (auto& [number, answer] : impl().answers) {
    const Sequence& sequence = *answer.sequence;
    if (sequence.state_slot == 0 || sequence.num_computed_tokens == 0 || !once_in("this", 2)) continue;
    if (impl().cache->state_layout().slot_bytes == 0 || impl().options.verify_states) return;
    impl().cache->fill_with_nan(sequence);
    asked_.at(answer.request).poisoned = true;
    return;
  }
}

void Traffic::step() {
  ++steps_;
  for (RequestOutput& output : engine_->step()) take(output);
  check_books();
}

void Traffic::take(RequestOutput& output) {
  const auto found = asked_.find(output.id);
  if (found == asked_.end()) {
    if (!aborted_.contains(output.id)) fail("an output of no request");
    return;
  }
  Asked& asked = found->second;
  check_hit(asked, output);
  if (!output.prompt_tokens_logprobs.empty() && !asked.poisoned) check_prompt(asked, output.prompt_tokens_logprobs);
  asked.texts[output.index] += output.text;
  std::vector<TokenOutput>& tokens = asked.answers[output.index];
  for (const TokenOutput& token : output.tokens) tokens.push_back(token);
  if (output.finish_reason == FinishReason::kError) {
    const bool was_poisoned = output.error_code == ErrorCode::kNonFinite && asked.poisoned;
    // What sessions hold is theirs.
    const bool was_short = output.error_code == ErrorCode::kResourceExhausted && !impl().held.empty();
    if (!was_poisoned && !was_short) fail("an error: " + output.error);
  } else if (output.finish_reason != FinishReason::kNone && !asked.poisoned) {
    check_answer(asked, output, tokens);
  }
  if (output.request_finished && output.finish_reason != FinishReason::kNone) {
    asked_.erase(found);
  } else if (asked.cancel_after >= 0 && std::ssize(tokens) > asked.cancel_after) {
    engine_->abort(output.id);
    aborted_.insert(output.id);  // other answers of it may have come in the same step
    asked_.erase(found);
  }
}

// What was found in the cache is no more than what somebody with that salt has said to this engine.
void Traffic::check_hit(const Asked& asked, const RequestOutput& output) {
  int64_t most = 0;
  bool self = false;
  const Ids& prompt = asked.request.prompt_ids;
  for (const Said& other : computed_) {
    if (other.salt != asked.request.cache_salt) continue;
    if (!self && other.ids == prompt) {
      self = true;
      continue;
    }
    const auto parted = std::mismatch(other.ids.begin(), other.ids.end(), prompt.begin(), prompt.end()).first;
    most = std::max<int64_t>(most, parted - other.ids.begin());
  }
  if (asked.request.sampling.prompt_logprobs) most = 0;
  if (output.cached_tokens > most)
    fail(std::to_string(output.cached_tokens) + " cached tokens of " + std::to_string(most) + " ever said");
}

}  // namespace coluber::soak
