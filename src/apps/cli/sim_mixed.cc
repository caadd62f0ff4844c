// SPDX-License-Identifier: Apache-2.0
//
// Traffic without turns: prompts of every length, of which a part begin like others, and some are given up.
#include <algorithm>
#include <cmath>
#include <random>

#include "apps/cli/sim_tokens.h"
#include "apps/cli/sim_trace.h"

namespace coluber::cli {
namespace {

constexpr double kSharedPart = 0.3;  // of the requests, that begin with one of the shared texts
constexpr double kCancelledPart = 0.05;
constexpr int64_t kLongestPrompt = 4000;

class MixedTrace : public SimTrace {
 public:
  explicit MixedTrace(const SyntheticTraffic& traffic) : traffic_(traffic), random_(traffic.seed) {
    for (int64_t i = 0; i < traffic.documents; ++i) lengths_.push_back(below(2 * traffic.shared_tokens) + 1);
  }

  std::optional<double> next_arrival() const override {
    if (made_ >= traffic_.requests) return std::nullopt;
    return at_s_;
  }

  SimRequest take() override {
    SimRequest request;
    request.arrival_s = at_s_;
    const int64_t length = 1 + below(kLongestPrompt);
    if (uniform() < kSharedPart) {
      const int64_t document = below(traffic_.documents);
      const int64_t shared = std::min(lengths_[static_cast<size_t>(document)], length - 1);
      append_tokens(name_seed("mixed") + static_cast<uint64_t>(document), shared, request.prompt);
    }
    append_tokens(random_(), length - std::ssize(request.prompt), request.prompt);
    append_tokens(random_(), 1 + below(2 * traffic_.output_tokens), request.output);
    if (uniform() < kCancelledPart) request.cancel_after = below(std::ssize(request.output));
    ++made_;
    if (traffic_.rate > 0.0) at_s_ += std::exponential_distribution<double>(traffic_.rate)(random_);
    return request;
  }

  void answered(int64_t, double) override {}
  int64_t num_requests() const override { return traffic_.requests; }

 private:
  double uniform() { return std::uniform_real_distribution<double>()(random_); }
  int64_t below(int64_t count) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(count)); }

  SyntheticTraffic traffic_;
  std::mt19937_64 random_;
  std::vector<int64_t> lengths_;  // of the shared texts
  int64_t made_ = 0;
  double at_s_ = 0.0;
};

}  // namespace

std::unique_ptr<SimTrace> make_mixed_trace(const SyntheticTraffic& traffic) {
  return std::make_unique<MixedTrace>(traffic);
}

}  // namespace coluber::cli
