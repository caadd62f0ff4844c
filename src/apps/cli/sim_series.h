// SPDX-License-Identifier: Apache-2.0
//
// What a simulation draws: averages over equal spans of time, whatever the length of the whole. Where spans run out,
// two become one. Plain values; one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace coluber::cli {

struct SimSample {
  // Averages over the span; bytes of sequences that run, and of what only the prefix cache holds.
  double running = 0.0, waiting = 0.0;
  double running_states = 0.0, cached_states = 0.0, running_pages = 0.0, cached_pages = 0.0, parked = 0.0;
  // Sums.
  double query_tokens = 0.0, hit_tokens = 0.0, common_tokens = 0.0;
  double longest_wait_s = 0.0;  // of requests whose answer began in the span
};

class SimSeries {
 public:
  static constexpr size_t kMostSpans = 512;

  // The gauges of `now` held from `from_s` for `seconds`.
  void add_gauges(double from_s, double seconds, const SimSample& now);
  void add_prompt(double at_s, int64_t query_tokens, int64_t hit_tokens, int64_t common_tokens);
  void add_wait(double at_s, double wait_s);

  double span_s() const noexcept { return span_s_; }
  // `count` samples or fewer, over [0, end_s].
  std::vector<SimSample> samples(size_t count, double end_s) const;

 private:
  struct Span {
    SimSample sums;  // gauges times seconds
    double seconds = 0.0;
  };
  Span& at(double time_s);
  static void merge(Span& into, const Span& from);

  std::vector<Span> spans_;
  double span_s_ = 1e-3;
};

}  // namespace coluber::cli
