// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/bench_split.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace coluber::cli {
namespace {

constexpr std::array<std::string_view, 2> kProjections = {"gemm", "run_experts"};
constexpr std::array<std::string_view, 13> kStates = {
    "causal_conv1d",   "causal_conv1d_update",   "conv_windows",
    "delta_rule",      "gated_linear_attention", "gated_linear_attention_update",
    "paged_attention", "selective_scan",         "selective_state_update",
    "short_conv",      "short_conv_update",      "ssd_chunk_scan",
    "ssd_state_update"};

double share(const StepSplit& split, double us) { return split.step_us > 0.0 ? us / split.step_us : 0.0; }

}  // namespace

StepPart step_part_of(std::string_view operation) {
  if (std::ranges::find(kProjections, operation) != kProjections.end()) return StepPart::kProjections;
  return std::ranges::find(kStates, operation) != kStates.end() ? StepPart::kStates : StepPart::kOther;
}

double StepSplit::us(StepPart part) const {
  double sum = 0.0;
  for (const auto& [operation, us] : operations_us) sum += step_part_of(operation) == part ? us : 0.0;
  return sum;
}

double StepSplit::rest_us() const {
  double rest = step_us;
  for (const auto& [operation, us] : operations_us) rest -= us;
  return std::max(rest, 0.0);
}

Json split_json(const StepSplit& split) {
  Json operations{Json::Object{}};
  for (const auto& [operation, us] : split.operations_us) operations.set(operation, us);
  Json out;
  out.set("step_us", split.step_us);
  out.set("projections_us", split.us(StepPart::kProjections));
  out.set("states_us", split.us(StepPart::kStates));
  out.set("other_operations_us", split.us(StepPart::kOther));
  out.set("rest_us", split.rest_us());
  out.set("operations_us", std::move(operations));
  return out;
}

std::string split_text(const StepSplit& split) {
  const auto part = [&](double us) { return fmt::format("{:.0f} us ({:.1f} %)", us, 100.0 * share(split, us)); };
  const double other = split.us(StepPart::kOther), rest = split.rest_us();
  return fmt::format(
      "step      {:.0f} us: projections {}, states {}, everything else {}:\n"
      "          other operations {}, the host, logits on their way to it and gaps {}\n",
      split.step_us, part(split.us(StepPart::kProjections)), part(split.us(StepPart::kStates)), part(other + rest),
      part(other), part(rest));
}

}  // namespace coluber::cli
