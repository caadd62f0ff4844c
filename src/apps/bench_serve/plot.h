// SPDX-License-Identifier: Apache-2.0
//
// A run as a picture: when each request waited and was answered, how many ran, and how the four latencies spread.
#pragma once

#include <string>

#include "apps/bench_serve/measured.h"

namespace coluber::bench_serve {

std::string plot(const Report& report, const std::string& title, const std::string& subtitle);

}  // namespace coluber::bench_serve
