// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/sim_series.h"

#include <algorithm>

namespace coluber::cli {
namespace {

constexpr double SimSample::* kGauges[] = {
    &SimSample::running,       &SimSample::waiting,      &SimSample::running_states, &SimSample::cached_states,
    &SimSample::running_pages, &SimSample::cached_pages, &SimSample::parked};
constexpr double SimSample::* kCounts[] = {&SimSample::query_tokens, &SimSample::hit_tokens, &SimSample::common_tokens};

}  // namespace

void SimSeries::merge(Span& into, const Span& from) {
  for (const auto gauge : kGauges) into.sums.*gauge += from.sums.*gauge;
  for (const auto count : kCounts) into.sums.*count += from.sums.*count;
  into.sums.longest_wait_s = std::max(into.sums.longest_wait_s, from.sums.longest_wait_s);
  into.seconds += from.seconds;
}

SimSeries::Span& SimSeries::at(double time_s) {
  while (time_s >= span_s_ * static_cast<double>(kMostSpans)) {
    for (size_t i = 0; 2 * i < spans_.size(); ++i) {
      Span merged = spans_[2 * i];
      if (2 * i + 1 < spans_.size()) merge(merged, spans_[2 * i + 1]);
      spans_[i] = merged;
    }
    spans_.resize((spans_.size() + 1) / 2);
    span_s_ *= 2.0;
  }
  const auto index = static_cast<size_t>(time_s / span_s_);
  if (index >= spans_.size()) spans_.resize(index + 1);
  return spans_[index];
}

void SimSeries::add_gauges(double from_s, double seconds, const SimSample& now) {
  const double end_s = from_s + seconds;
  at(end_s);  // the spans have their width
  while (from_s < end_s) {
    const auto index = static_cast<size_t>(from_s / span_s_);
    double until_s = std::min(end_s, static_cast<double>(index + 1) * span_s_);
    if (until_s <= from_s) until_s = end_s;  // beyond what doubles tell apart
    Span& span = at(from_s);
    for (const auto gauge : kGauges) span.sums.*gauge += now.*gauge * (until_s - from_s);
    span.seconds += until_s - from_s;
    from_s = until_s;
  }
}

void SimSeries::add_prompt(double at_s, int64_t query_tokens, int64_t hit_tokens, int64_t common_tokens) {
  SimSample& sums = at(at_s).sums;
  sums.query_tokens += static_cast<double>(query_tokens);
  sums.hit_tokens += static_cast<double>(hit_tokens);
  sums.common_tokens += static_cast<double>(common_tokens);
}

void SimSeries::add_wait(double at_s, double wait_s) {
  SimSample& sums = at(at_s).sums;
  sums.longest_wait_s = std::max(sums.longest_wait_s, wait_s);
}

std::vector<SimSample> SimSeries::samples(size_t count, double end_s) const {
  const size_t used = std::min(spans_.size(), static_cast<size_t>(end_s / span_s_) + 1);
  count = std::clamp<size_t>(count, 1, std::max<size_t>(used, 1));
  std::vector<SimSample> samples;
  for (size_t i = 0; i < count; ++i) {
    Span sum;
    for (size_t span = i * used / count; span < (i + 1) * used / count; ++span) merge(sum, spans_[span]);
    if (sum.seconds > 0.0)
      for (const auto gauge : kGauges) sum.sums.*gauge /= sum.seconds;
    samples.push_back(sum.sums);
  }
  return samples;
}

}  // namespace coluber::cli
