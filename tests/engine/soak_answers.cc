// SPDX-License-Identifier: Apache-2.0
//
// What the answers of the random traffic's requests must be.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "soak_traffic.h"

namespace coluber::soak {
namespace {

double logprob_of(const float* row, int64_t vocab, int32_t id) {
  const float largest = *std::max_element(row, row + vocab);
  double sum = 0.0;
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v] - largest));
  return static_cast<double>(row[id] - largest) - std::log(sum);
}

// The logits of a place as far as a request lets them count: what it forbids is minus infinity.
std::vector<float> steered(const float* row, int64_t vocab, const SamplingParams& sampling,
                           TokenConstraint* constraint) {
  std::vector<float> logits(row, row + vocab);
  for (const TokenBias& bias : sampling.logit_bias) logits[static_cast<size_t>(bias.id)] += bias.bias;
  std::vector<uint32_t> mask(static_cast<size_t>(vocab + 31) / 32, ~uint32_t{0});
  if (constraint != nullptr) constraint->fill_mask(mask);
  for (int64_t id = 0; id < vocab; ++id) {
    const bool is_masked = (mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1) == 0;
    const std::vector<int32_t>& allowed = sampling.allowed_token_ids;
    const bool is_left_out = !allowed.empty() && std::ranges::find(allowed, id) == allowed.end();
    if (is_masked || is_left_out) logits[static_cast<size_t>(id)] = -INFINITY;
  }
  return logits;
}

}  // namespace

void Traffic::check_answer(Asked& asked, const RequestOutput& output, const std::vector<TokenOutput>& tokens) {
  const Request& request = asked.request;
  if (request.pooling != Pooling::kNone) return check_embedding(asked, output.embedding);
  check_ending(asked, output, tokens);
  check_order(asked, output, tokens);
  if (numerics_.deterministic) {
    check_exactly(asked, output.index, tokens);
  } else {
    check_tokens(request.prompt_ids, tokens, request);
  }
  Ids ids = request.prompt_ids;
  for (const TokenOutput& token : tokens) ids.push_back(token.id);
  computed_.push_back({request.cache_salt, ids});
  said_.push_back(std::move(ids));
}

// The best of several and beams come best first.
void Traffic::check_order(Asked& asked, const RequestOutput& output, const std::vector<TokenOutput>& tokens) {
  const Request& request = asked.request;
  const bool is_beam = request.beam_width > 1;
  if (!is_beam && request.best_of <= request.n) return;
  double sum = 0.0;
  for (const TokenOutput& token : tokens) sum += static_cast<double>(token.logprob);
  if (std::fabs(sum - output.cumulative_logprob) > 1e-4)
    fail("an answer's probability is not that of its tokens together");
  int64_t length = std::ssize(tokens);
  if (is_beam) length += std::ssize(request.prompt_ids) - (output.finish_reason == FinishReason::kStop ? 1 : 0);
  const double score = sum / std::pow(static_cast<double>(length), is_beam ? request.length_penalty : 1.0);
  if (asked.answers.size() > 1 && score > asked.worst_score + 1e-6) fail("a better answer behind a worse one");
  asked.worst_score = score;
  for (const auto& [index, other] : asked.answers)
    if (is_beam && index < output.index && std::ranges::equal(other, tokens, {}, &TokenOutput::id, &TokenOutput::id))
      fail("two beams with the same tokens");
}

// It ends at the first token that ends it, for that reason, and nowhere else.
void Traffic::check_ending(const Asked& asked, const RequestOutput& output, const std::vector<TokenOutput>& tokens) {
  const SamplingParams& sampling = asked.request.sampling;
  Ids ids;
  bool stops = false;
  for (const TokenOutput& token : tokens) {
    if (stops) return fail("an answer goes on behind its end");
    ids.push_back(token.id);
    stops = std::ranges::find(sampling.stop_token_ids, token.id) != sampling.stop_token_ids.end() ||
            (asked.terminates_after > 0 && std::ssize(ids) == asked.terminates_after);
  }
  const auto says_stop = [&](const std::string& text) {
    return std::ranges::any_of(sampling.stop, [&](const std::string& stop) { return text.find(stop) != text.npos; });
  };
  // A token that ends the answer by its id is no text.
  const bool text_stops = !sampling.stop.empty() && !stops && says_stop(engine_->decode(ids));
  if (!sampling.stop.empty() && says_stop(asked.texts.at(output.index))) fail("a text with what should have ended it");
  const bool ends = stops || text_stops;
  if (ends != (output.finish_reason == FinishReason::kStop))
    return fail(std::string("an answer of ") + std::to_string(ids.size()) + " tokens ended with " +
                std::string(finish_reason_name(output.finish_reason)));
  if (!ends && std::ssize(ids) != sampling.max_tokens) fail("an answer of another length than was asked for");
}

std::vector<std::vector<TokenOutput>> Traffic::answers_alone(Request request) {
  request.sampling.prompt_logprobs.reset();
  std::map<int64_t, std::vector<TokenOutput>> found;
  reference_->add_request(std::move(request));
  while (reference_->has_unfinished_requests())
    for (RequestOutput& output : reference_->step())
      std::ranges::move(output.tokens, std::back_inserter(found[output.index]));
  std::vector<std::vector<TokenOutput>> answers;
  for (auto& [index, tokens] : found) answers.push_back(std::move(tokens));
  return answers;
}

// The very tokens and bits of one sequence alone. Of the best of several it is known only that it is one of them: where
// memory was short some may have failed, and the others moved up.
void Traffic::check_exactly(Asked& asked, int64_t index, const std::vector<TokenOutput>& tokens) {
  const int64_t made = std::max(asked.request.n, asked.request.best_of);
  if (asked.expected.empty() && asked.request.beam_width > 1) asked.expected = answers_alone(asked.request);
  for (int64_t i = std::ssize(asked.expected); i < made; ++i) {
    Request one = asked.request;
    one.n = 1;
    one.best_of = 0;
    if (one.sampling.seed) *one.sampling.seed += static_cast<uint64_t>(i);
    asked.expected.push_back(answers_alone(one).at(0));
  }
  const auto same = [](const TokenOutput& a, const TokenOutput& b) { return a.id == b.id && a.logprob == b.logprob; };
  const auto is_it = [&](const auto& answer) { return std::ranges::equal(answer, tokens, same); };
  const bool chosen = asked.request.best_of > asked.request.n;
  if (index >= std::ssize(asked.expected)) return fail("more beams than alone");
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

void Traffic::check_tokens(std::span<const int32_t> before, const std::vector<TokenOutput>& tokens,
                           const Request& request) {
  Ids ids(before.begin(), before.end());
  for (const TokenOutput& token : tokens) ids.push_back(token.id);
  const std::span<const int32_t> read = std::span(ids).first(ids.size() - 1);
  const std::vector<float> logits = logits_alone(read);
  Bound near = bound(read);
  ++compared_;
  const int64_t vocab = std::ssize(logits) / std::ssize(read);
  const auto constraint = request.constraint ? request.constraint->clone() : nullptr;
  const bool is_greedy = request.sampling.temperature == 0.0f && request.beam_width < 2;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float* row = logits.data() + (std::ssize(before) - 1 + static_cast<int64_t>(i)) * vocab;
    const int32_t id = tokens[i].id;
    const double expected = logprob_of(row, vocab, id);
    if (!is_within(std::fabs(expected - static_cast<double>(tokens[i].logprob)), near)) {
      std::ostringstream text;
      text << "token " << i << " of an answer to " << before.size() << " has log-probability " << tokens[i].logprob
           << ", expected " << expected << " within " << near.most;
      return fail_number(text.str());
    }
    const std::vector<float> may_come = steered(row, vocab, request.sampling, constraint.get());
    if (std::isinf(may_come[static_cast<size_t>(id)])) return fail("a token that was not allowed");
    const double likelier = std::ranges::max(may_come) - may_come[static_cast<size_t>(id)];
    if (is_greedy && !is_within(likelier, near)) return fail_number("a token that is not the likeliest");
    if (constraint) constraint->accept(id);
  }
}

void Traffic::check_prompt(const Asked& asked, const std::vector<TokenOutput>& scored) {
  const Ids& prompt = asked.request.prompt_ids;
  if (!std::ranges::equal(scored, prompt, {}, &TokenOutput::id)) return fail("other tokens scored than the prompt's");
  const std::vector<float> logits = logits_alone(prompt);
  Bound near = bound(prompt);
  if (numerics_.deterministic) near.most = 1e-5;
  ++compared_;
  const int64_t vocab = std::ssize(logits) / std::ssize(prompt);
  for (size_t i = 1; i < scored.size(); ++i) {
    const double expected = logprob_of(logits.data() + static_cast<int64_t>(i - 1) * vocab, vocab, prompt[i]);
    if (!is_within(std::fabs(expected - static_cast<double>(scored[i].logprob)), near))
      return fail_number("token " + std::to_string(i) + " of a prompt has another log-probability than alone");
  }
}

std::vector<float> Traffic::embedding_alone(Engine& engine, const Request& request, int64_t chunk) {
  std::vector<double> sum;
  std::vector<float> last;
  const auto session = engine.open_session();
  session->set_hidden_sink([&](int index, const float* values, int64_t rows, int64_t cols) {
    if (index != engine.model_info().num_layers) return;
    sum.resize(static_cast<size_t>(cols), 0.0);
    for (int64_t i = 0; i < rows * cols; ++i) sum[static_cast<size_t>(i % cols)] += static_cast<double>(values[i]);
    last.assign(values + (rows - 1) * cols, values + rows * cols);
  });
  session->extend(request.prompt_ids, chunk);
  if (request.pooling == Pooling::kLast) return last;
  for (size_t i = 0; i < sum.size(); ++i)
    last[i] = static_cast<float>(sum[i] / static_cast<double>(request.prompt_ids.size()));
  return last;
}

void Traffic::check_embedding(const Asked& asked, const std::vector<float>& found) {
  constexpr double kOfOrder = 3e-3, kTimesRounding = 6.0;
  const std::vector<float> expected = embedding_alone(*reference_, asked.request, kLongest);
  if (found.size() != expected.size()) return fail("an embedding of another size");
  ++compared_;
  if (numerics_.deterministic) {
    if (found != expected) fail("an embedding is not, bit for bit, that of one sequence alone");
    return;
  }
  double largest = 1.0, rounding = 0.0;
  for (const float value : expected) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  if (unrounded_) {
    const std::vector<float> exact = embedding_alone(*unrounded_, asked.request, kLongest);
    const std::vector<float> rounded = embedding_alone(*reference_, asked.request, 1);
    for (size_t i = 0; i < exact.size(); ++i)
      rounding = std::max(rounding, std::fabs(static_cast<double>(rounded[i]) - static_cast<double>(exact[i])));
  }
  for (size_t i = 0; i < found.size(); ++i)
    if (!(std::fabs(static_cast<double>(found[i]) - static_cast<double>(expected[i])) <
          kOfOrder * largest + kTimesRounding * rounding))
      return fail_number("number " + std::to_string(i) + " of an embedding is not that of one sequence alone");
}

}  // namespace coluber::soak
