// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/sim_compare.h"

#include <algorithm>

#include "apps/cli/layer_strip.h"
#include "apps/cli/output.h"
#include "apps/cli/sim_picture.h"
#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber::cli {
namespace {

constexpr MambaCacheMode kModes[] = {MambaCacheMode::kAuto, MambaCacheMode::kAll, MambaCacheMode::kAlign,
                                     MambaCacheMode::kNone};

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string seconds(double value) { return fmt::format("{:.1f} s", value); }

}  // namespace

SimComparison compare_modes(
    const EngineOptions& options, const SimModel& model, const std::function<std::unique_ptr<SimTrace>()>& make_trace,
    const std::function<void(const std::string& mode, int64_t done, int64_t total)>& on_progress) {
  SimComparison comparison;
  for (const MambaCacheMode mode : kModes) {
    EngineOptions changed = options;
    changed.mamba_cache_mode = mode;
    changed.enable_prefix_caching = mode != MambaCacheMode::kNone;
    if (mode != MambaCacheMode::kAlign) changed.prefix_match_unit.reset();
    const std::unique_ptr<SimTrace> trace = make_trace();
    Simulation simulation(changed, model, *trace);
    simulation.keep_oracle();
    const std::string name(mamba_cache_mode_name(mode));
    simulation.run([&](int64_t done, int64_t total) { on_progress(name, done, total); });
    comparison.rows.push_back({name, simulation.result()});
  }
  return comparison;
}

int64_t memory_for_part(SimTrace& trace, const EngineOptions& options, const SimModel& model, double part) {
  double bytes = 0.0;
  while (trace.next_arrival()) {
    const SimRequest request = trace.take();
    const int64_t tokens = std::ssize(request.prompt) + std::ssize(request.output);
    bytes += static_cast<double>(model.state_bytes) +
             static_cast<double>(ceil_div(tokens, options.block_size) * options.block_size * model.kv_bytes_per_token);
  }
  return static_cast<int64_t>(bytes * part);
}

std::string comparison_table(const SimComparison& comparison) {
  std::string out = fmt::format("{:<8}{:>16}{:>12}{:>10}{:>12}{:>14}{:>14}{:>14}{:>12}\n", "mode", "prompt tokens",
                                "of oracle", "hits", "preempted", "peak memory", "wait, median", "wait, 90 %", "whole");
  const int64_t oracle = comparison.rows.front().result.oracle_tokens;
  for (const SimComparison::Row& row : comparison.rows) {
    const SimResult& r = row.result;
    out += fmt::format("{:<8}{:>16}{:>12.3f}{:>9.1f}%{:>12}{:>14}{:>14}{:>14}{:>12}\n", row.mode, r.prompt_work,
                       ratio(r.prompt_work, r.oracle_tokens), 100.0 * hit_rate(r), r.cache.preemptions,
                       bytes_text(r.peak_bytes), seconds(quantile(r.first_token_s, 0.5)),
                       seconds(quantile(r.first_token_s, 0.9)), seconds(r.end_s));
  }
  out += fmt::format("{:<8}{:>16}{:>12.3f}{:>9.1f}%\n", "oracle", oracle, 1.0,
                     100.0 - 100.0 * ratio(oracle, comparison.rows.front().result.cache.query_tokens));
  return out;
}

Json comparison_json(const SimComparison& comparison) {
  Json::Array rows;
  for (const SimComparison::Row& row : comparison.rows) {
    Json json = sim_json(row.result);
    json.set("mode", row.mode);
    json.set("prompt_tokens_computed", row.result.prompt_work);
    json.set("oracle_tokens", row.result.oracle_tokens);
    json.set("of_oracle", ratio(row.result.prompt_work, row.result.oracle_tokens));
    rows.push_back(std::move(json));
  }
  return Json(std::move(rows));
}

}  // namespace coluber::cli
