// SPDX-License-Identifier: Apache-2.0
//
// Requests of the random traffic, and what their answers must be.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "soak_traffic.h"

namespace coluber::soak {

void Traffic::add() {
  if (std::ssize(asked_) > 12) return step();
  Asked asked;
  Request& request = asked.request;
  request.prompt_ids = prompt(kLongest - kMostNew);
  request.sampling = families::greedy(1 + upto(kMostNew));
  request.sampling.logprobs = 0;
  request.cache_salt = once_in(4) ? "b" : "";
  request.priority = upto(3);
  if (once_in(4)) {
    request.n = 1 + upto(3);
    if (once_in(2)) request.best_of = request.n + upto(3);
    request.sampling.temperature = 1.5f;
    request.sampling.seed = random_();
  }
  if (once_in(10)) asked.cancel_after = upto(6);
  computed_.push_back({request.cache_salt, request.prompt_ids});
  const RequestId id = engine_->add_request(request);
  asked_[id] = std::move(asked);
}

void Traffic::cancel() {
  if (asked_.empty()) return;
  const auto chosen = std::next(asked_.begin(), upto(std::ssize(asked_)));
  engine_->abort(chosen->first);
  asked_.erase(chosen);
  check_books();
}

// A model that overflows: its state is not a number any more.
void Traffic::poison() {
  for (auto& [number, answer] : impl().answers) {
    const Sequence& sequence = *answer.sequence;
    if (sequence.state_slot == 0 || sequence.num_computed_tokens == 0 || !once_in(2)) continue;
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
  if (output.cached_tokens > most)
    fail(std::to_string(output.cached_tokens) + " cached tokens of " + std::to_string(most) + " ever said");
}

void Traffic::check_answer(Asked& asked, const RequestOutput& output, const std::vector<TokenOutput>& tokens) {
  const SamplingParams& sampling = asked.request.sampling;
  if (std::ssize(tokens) != sampling.max_tokens) return fail("an answer of another length than was asked for");
  if (asked.request.best_of > asked.request.n) {
    double mean = 0.0;
    for (const TokenOutput& token : tokens) mean += static_cast<double>(token.logprob);
    mean /= static_cast<double>(tokens.size());
    if (asked.answers.size() > 1 && mean > asked.worst_mean + 1e-6) fail("a better answer behind a worse one");
    asked.worst_mean = mean;
  }
  if (numerics_.deterministic) {
    check_exactly(asked, output.index, tokens);
  } else {
    check_tokens(asked.request.prompt_ids, tokens, sampling.temperature == 0.0f);
  }
  Ids ids = asked.request.prompt_ids;
  for (const TokenOutput& token : tokens) ids.push_back(token.id);
  computed_.push_back({asked.request.cache_salt, ids});
  said_.push_back(std::move(ids));
}

std::vector<TokenOutput> Traffic::answer_alone(const Asked& asked, int64_t index) {
  SamplingParams sampling = asked.request.sampling;
  if (sampling.seed) sampling.seed = *sampling.seed + static_cast<uint64_t>(index);
  auto session = reference_->open_session();
  session->extend(asked.request.prompt_ids, kLongest);
  return session->generate(sampling).tokens;
}

// The very tokens and bits of one sequence alone. Of the best of several it is known only that it is one of them: where
// memory was short some may have failed, and the others moved up.
void Traffic::check_exactly(Asked& asked, int64_t index, const std::vector<TokenOutput>& tokens) {
  const int64_t made = std::max(asked.request.n, asked.request.best_of);
  for (int64_t i = std::ssize(asked.expected); i < made; ++i) asked.expected.push_back(answer_alone(asked, i));
  const auto same = [](const TokenOutput& a, const TokenOutput& b) { return a.id == b.id && a.logprob == b.logprob; };
  const auto is_it = [&](const auto& answer) { return std::ranges::equal(answer, tokens, same); };
  const bool chosen = asked.request.best_of > asked.request.n;
  const auto& expected = asked.expected[static_cast<size_t>(index)];
  if (chosen ? std::ranges::any_of(asked.expected, is_it) : is_it(expected)) return;
  const auto parted = std::ranges::mismatch(expected, tokens, same);
  std::ostringstream text;
  text.precision(9);
  text << "answer " << index << " of " << made << " to " << asked.request.prompt_ids.size()
       << " tokens is not, bit for bit, that of one sequence alone from token " << parted.in2 - tokens.begin();
  if (parted.in1 != expected.end() && parted.in2 != tokens.end())
    text << ": " << parted.in2->id << " (" << parted.in2->logprob << "), alone " << parted.in1->id << " ("
         << parted.in1->logprob << ")";
  fail(text.str());
}

void Traffic::check_tokens(std::span<const int32_t> before, const std::vector<TokenOutput>& tokens, bool greedy) {
  Ids ids(before.begin(), before.end());
  for (const TokenOutput& token : tokens) ids.push_back(token.id);
  const std::span<const int32_t> read = std::span(ids).first(ids.size() - 1);
  const std::vector<float> logits = logits_alone(read);
  const double most = bound(read);
  ++compared_;
  const int64_t vocab = std::ssize(logits) / std::ssize(read);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float* row = logits.data() + (std::ssize(before) - 1 + static_cast<int64_t>(i)) * vocab;
    const float largest = *std::max_element(row, row + vocab);
    double sum = 0.0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v] - largest));
    const double expected = static_cast<double>(row[tokens[i].id] - largest) - std::log(sum);
    if (!(std::fabs(expected - static_cast<double>(tokens[i].logprob)) < most)) {
      std::ostringstream text;
      text << "token " << i << " of an answer to " << before.size() << " has log-probability " << tokens[i].logprob
           << ", expected " << expected << " within " << most;
      return fail_number(text.str());
    }
    if (greedy && largest - row[tokens[i].id] > most) return fail_number("a token that is not the likeliest");
  }
}

}  // namespace coluber::soak
