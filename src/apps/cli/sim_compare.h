// SPDX-License-Identifier: Apache-2.0
//
// The same traffic through every mode of the prefix cache, beside an oracle that keeps whatever was ever computed: what
// a policy costs in tokens that are computed again. One thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/cli/simulation.h"
#include "base/json.h"

namespace coluber::cli {

struct SimComparison {
  struct Row {
    std::string mode;
    SimResult result;
  };
  std::vector<Row> rows;
};

// `make_trace` makes the same traffic anew for each mode.
SimComparison compare_modes(
    const EngineOptions& options, const SimModel& model, const std::function<std::unique_ptr<SimTrace>()>& make_trace,
    const std::function<void(const std::string& mode, int64_t done, int64_t total)>& on_progress);
// Memory for a part of all requests of the traffic, whole.
int64_t memory_for_part(SimTrace& trace, const EngineOptions& options, const SimModel& model, double part);

std::string comparison_table(const SimComparison& comparison);
Json comparison_json(const SimComparison& comparison);

}  // namespace coluber::cli
