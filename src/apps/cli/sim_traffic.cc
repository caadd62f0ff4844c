// SPDX-License-Identifier: Apache-2.0
//
// Traffic that is made up: conversations, questions about documents, runs of agents.
#include <algorithm>
#include <cmath>
#include <queue>
#include <random>
#include <unordered_map>

#include "apps/cli/sim_tokens.h"
#include "apps/cli/sim_trace.h"
#include "base/error.h"

namespace coluber::cli {
namespace {

struct Shape {
  SyntheticTraffic traffic;
  double think_s = 0.0;          // from an answer to the next turn
  double edit_share = 0.0;       // turns that go on from an earlier place than the last answer
  double zipf = 1.0;             // of the shared beginnings' popularity
  double question_tokens = 0.0;  // rag: of a question, for turn_tokens are the document's
};

Shape shape_of(const std::string& kind) {
  if (kind == "chat")
    return {{.kind = kind, .shared_tokens = 600, .turn_tokens = 120, .output_tokens = 180, .turns = 5, .documents = 8},
            20.0,
            0.05,
            1.0,
            0.0};
  if (kind == "rag")
    return {
        {.kind = kind, .shared_tokens = 400, .turn_tokens = 2000, .output_tokens = 150, .turns = 2, .documents = 2000},
        30.0,
        0.0,
        1.0,
        60.0};
  if (kind == "agents")
    return {
        {.kind = kind, .shared_tokens = 5000, .turn_tokens = 400, .output_tokens = 120, .turns = 20, .documents = 4},
        2.0,
        0.1,
        0.7,
        0.0};
  if (kind == "mixed")
    return {{.kind = kind, .shared_tokens = 1500, .turn_tokens = 1, .output_tokens = 32, .turns = 1, .documents = 20},
            0.0,
            0.0,
            0.0,
            0.0};
  throw make_error(ErrorCode::kInvalidArgument, "cache-sim: --synthetic expects chat, rag, agents or mixed, found '{}'",
                   kind);
}

class SyntheticTrace : public SimTrace {
 public:
  explicit SyntheticTrace(const SyntheticTraffic& traffic)
      : shape_(shape_of(traffic.kind)), traffic_(with_defaults(traffic)), random_(traffic.seed) {
    double sum = 0.0;
    for (int64_t i = 0; i < traffic_.documents; ++i) {
      sum += std::pow(static_cast<double>(i + 1), -shape_.zipf);
      popularity_.push_back(sum);
    }
    begin_conversation(0.0);
  }

  std::optional<double> next_arrival() const override {
    if (made_ >= traffic_.requests || events_.empty()) return std::nullopt;
    return events_.top().at_s;
  }

  SimRequest take() override {
    const Event event = events_.top();
    events_.pop();
    const double conversations_a_second = traffic_.rate / static_cast<double>(traffic_.turns);
    if (event.is_first) begin_conversation(event.at_s + exponential(1.0 / conversations_a_second));
    Conversation& talk = talks_[event.conversation];
    if (uniform() < shape_.edit_share && talk.previous_tokens > 0) {  // the last turn is asked anew
      talk.tokens.resize(talk.previous_tokens);
    }
    talk.previous_tokens = talk.tokens.size();
    const double turn_tokens =
        shape_.question_tokens > 0.0 ? shape_.question_tokens : static_cast<double>(traffic_.turn_tokens);
    append_tokens(random_(), length(turn_tokens), talk.tokens);
    SimRequest request;
    request.arrival_s = event.at_s;
    request.prompt = talk.tokens;
    append_tokens(random_(), length(static_cast<double>(traffic_.output_tokens)), request.output);
    talk.tokens.insert(talk.tokens.end(), request.output.begin(), request.output.end());
    request.conversation = event.conversation;
    ++made_;
    return request;
  }

  void answered(int64_t conversation, double now_s) override {
    if (--talks_[conversation].turns_left <= 0) {
      talks_.erase(conversation);
      return;
    }
    events_.push({now_s + exponential(shape_.think_s), conversation, false});
  }

  int64_t num_requests() const override { return traffic_.requests; }

 private:
  struct Event {
    double at_s = 0.0;
    int64_t conversation = 0;
    bool is_first = false;
    bool operator<(const Event& other) const noexcept { return at_s > other.at_s; }  // a queue's top is the earliest
  };
  struct Conversation {
    std::vector<int32_t> tokens;
    size_t previous_tokens = 0;  // before the last turn
    int64_t turns_left = 0;
  };

  double uniform() { return std::uniform_real_distribution<double>()(random_); }
  double exponential(double mean) { return std::exponential_distribution<double>(1.0 / mean)(random_); }
  // Most are short and a few are long, as people's texts are.
  int64_t length(double mean) {
    constexpr double kSigma = 0.8;
    const double value = std::lognormal_distribution<double>(std::log(mean) - kSigma * kSigma / 2, kSigma)(random_);
    return std::max<int64_t>(1, std::llround(std::min(value, 20.0 * mean)));
  }

  int64_t popular_document() {
    const double at = uniform() * popularity_.back();
    return std::lower_bound(popularity_.begin(), popularity_.end(), at) - popularity_.begin();
  }

  void begin_conversation(double at_s) {
    const int64_t id = next_conversation_++;
    Conversation& talk = talks_[id];
    const auto turns = static_cast<double>(traffic_.turns);
    talk.turns_left = traffic_.turns <= 1 ? 1 : 1 + std::geometric_distribution<int64_t>(1.0 / turns)(random_);
    const int64_t document = popular_document();
    if (traffic_.kind == "rag") {
      append_tokens(name_seed("instructions"), traffic_.shared_tokens, talk.tokens);
      const uint64_t seed = name_seed(fmt::format("document {}", document));
      // A document has one length, whoever asks about it.
      std::mt19937_64 own(seed);
      std::swap(own, random_);
      const int64_t tokens = length(static_cast<double>(traffic_.turn_tokens));
      std::swap(own, random_);
      append_tokens(seed, tokens, talk.tokens);
    } else {
      append_tokens(name_seed(fmt::format("system {}", document)), traffic_.shared_tokens, talk.tokens);
    }
    events_.push({at_s, id, true});
  }

  Shape shape_;
  SyntheticTraffic traffic_;
  std::mt19937_64 random_;
  std::vector<double> popularity_;  // summed
  std::priority_queue<Event> events_;
  std::unordered_map<int64_t, Conversation> talks_;
  int64_t next_conversation_ = 0;
  int64_t made_ = 0;
};

}  // namespace

SyntheticTraffic with_defaults(SyntheticTraffic traffic) {
  const SyntheticTraffic own = shape_of(traffic.kind).traffic;
  const auto set = [](int64_t& value, int64_t otherwise) {
    if (value == 0) value = otherwise;
  };
  set(traffic.shared_tokens, own.shared_tokens);
  set(traffic.turn_tokens, own.turn_tokens);
  set(traffic.output_tokens, own.output_tokens);
  set(traffic.turns, own.turns);
  set(traffic.documents, own.documents);
  return traffic;
}

std::unique_ptr<SimTrace> make_synthetic_trace(const SyntheticTraffic& traffic) {
  if (traffic.kind == "mixed") return make_mixed_trace(with_defaults(traffic));
  return std::make_unique<SyntheticTrace>(traffic);
}

}  // namespace coluber::cli
