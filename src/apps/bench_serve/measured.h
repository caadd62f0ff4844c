// SPDX-License-Identifier: Apache-2.0
//
// What one streamed answer says of its server, and what many of them come to, under vLLM's names. Pure functions of
// transfers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench_serve/stream_client.h"
#include "base/json.h"

namespace coluber::bench_serve {

struct Measured {
  double begun_s = 0.0, first_s = 0.0, last_s = 0.0,
         ended_s = 0.0;        // of the request, of its text's first and last chunk
  std::vector<double> gaps_s;  // between chunks with text
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::string answer;
  std::string error;  // empty where the answer is whole
};

// Reads the events of a stream of either completion route.
Measured measure(const Transfer& transfer);

struct Summary {
  double mean = 0.0, median = 0.0, p90 = 0.0, p95 = 0.0, p99 = 0.0;
};
Summary summary(std::vector<double> values);

struct Report {
  std::vector<Measured> requests;  // all of them
  double duration_s = 0.0;
  int64_t completed = 0, failed = 0, max_concurrent = 0;
  int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::vector<double> ttft_ms, tpot_ms, itl_ms, e2el_ms;  // of the completed ones
  std::vector<std::pair<std::string, int64_t>> errors;    // and how often
};

Report report(std::vector<Measured> requests);
// vLLM's keys.
Json report_json(const Report& report);
std::string report_text(const Report& report);

}  // namespace coluber::bench_serve
