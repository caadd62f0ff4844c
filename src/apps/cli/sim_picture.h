// SPDX-License-Identifier: Apache-2.0
//
// What a simulation came to, as numbers, as a picture for a terminal and as SVG. Pure functions of the result.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/simulation.h"
#include "base/json.h"

namespace coluber::cli {

double hit_rate(const SimResult& result);        // of prompt tokens
double reachable_rate(const SimResult& result);  // what a cache that forgets nothing would have given, at most
double quantile(std::vector<double> values, double share);

Json sim_json(const SimResult& result);
std::string sim_summary(const SimResult& result);
// `columns` wide; with colours, or with shades that tell kinds apart.
std::string sim_terminal(const SimResult& result, int columns, bool colors);
// `title` and `subtitle` say what was simulated.
std::string sim_svg(const SimResult& result, const std::string& title, const std::string& subtitle);

}  // namespace coluber::cli
