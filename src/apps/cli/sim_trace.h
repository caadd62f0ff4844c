// SPDX-License-Identifier: Apache-2.0
//
// The traffic of `coluber cache-sim`: requests in order of arrival, read from a trace or made up. A turn of a
// conversation arrives when its predecessor has been answered, so a trace is told of every answer. Tokens are made up
// from names: equal names give equal tokens, so prompts share what a trace says they share. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace coluber::cli {

struct SimRequest {
  double arrival_s = 0.0;
  std::vector<int32_t> prompt;
  std::vector<int32_t> output;  // what the model would answer; at least one token
  std::string cache_salt;
  int64_t priority = 0;
  std::optional<int64_t> cancel_after;  // it is given up after so many tokens of the answer
  int64_t conversation = -1;            // to be told of the answer; -1: none
};

class SimTrace {
 public:
  virtual ~SimTrace() = default;
  // When the next request arrives; none where all have, or those to come wait for answers.
  virtual std::optional<double> next_arrival() const = 0;
  virtual SimRequest take() = 0;
  // The request of that conversation has its whole answer.
  virtual void answered(int64_t conversation, double now_s) = 0;
  virtual int64_t num_requests() const = 0;  // of the whole trace
};

// Lines of JSON, in any of these forms (docs/batch.md):
//   {"arrival_s", "prompt_ids": [...], "output_tokens": n or "output_ids": [...]}
//   {"arrival_s", "tokens": n, "prefix": [["name", tokens], ...], "output_tokens": n}
//   {"arrival_s", "conversation": "name", "tokens": n of this turn, "output_tokens": n}
//   {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}   512 tokens a hash
// "-" is standard input. Throws Error(kInvalidData) naming the line.
std::unique_ptr<SimTrace> read_sim_trace(const std::string& path);

struct SyntheticTraffic {
  std::string kind = "chat";  // "chat", "rag", "agents" or "mixed"
  int64_t requests = 20000;
  double rate = 4.0;  // requests a second, on average; mixed: 0 means all at once
  uint64_t seed = 1;
  int64_t shared_tokens = 0;  // system prompt, instructions or tools; 0: the kind's own
  int64_t turn_tokens = 0;    // of a user's turn, a document, or what a tool returns
  int64_t output_tokens = 0;
  int64_t turns = 0;      // of a conversation or a run, on average
  int64_t documents = 0;  // rag: documents there are; chat and agents: different shared beginnings
};
// With the kind's own values in place of zeros.
SyntheticTraffic with_defaults(SyntheticTraffic traffic);
std::unique_ptr<SimTrace> make_synthetic_trace(const SyntheticTraffic& traffic);
std::unique_ptr<SimTrace> make_mixed_trace(const SyntheticTraffic& traffic);  // its kind "mixed"

}  // namespace coluber::cli
