// SPDX-License-Identifier: Apache-2.0
//
// What a benchmark of a server asks it, and when: conversations of one turn or several, made up from a seed or read
// from a file. Texts are common words, about a token each: how many tokens a server makes of them is for it to say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace coluber::bench_serve {

struct Turn {
  std::string text;
  int64_t output_tokens = 0;
};

struct Conversation {
  double at_s = 0.0;   // it begins; its later turns follow the answer before them
  std::string shared;  // text that others begin with as well; may be empty
  std::vector<Turn> turns;
  Json fields;  // of a request that a file gave as it is; then there is one turn
};

struct TrafficOptions {
  std::string trace = "random";  // "random", "shared-prefix", "multi-turn"
  int64_t requests = 100;        // turns in all
  double rate = 0.0;             // conversations a second; 0: all at once
  double burstiness = 1.0;       // shape of the gamma distribution of the times between: 1 Poisson, below it bursts
  int64_t input_len = 128;       // words of a turn
  int64_t output_len = 64;
  int64_t prefix_len = 0;  // words
  int64_t prefixes = 1;    // different ones
  int64_t turns = 1;       // of a conversation
  int64_t seed = 0;
};

std::vector<Conversation> make_traffic(const TrafficOptions& options);
// One line of JSON a request, as `coluber batch` reads them. Throws Error naming the line.
std::vector<Conversation> read_traffic(const std::string& path, const TrafficOptions& options);

}  // namespace coluber::bench_serve
