// SPDX-License-Identifier: Apache-2.0
//
// The requests of `coluber batch`: one line of JSON each, read from a file or from standard input, checked before
// anything is computed. Knows the fields of a line and nothing of an engine. A line that is wrong is told with all that
// is wrong with it and stops no other. Plain values; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "coluber/engine.h"
#include "text/grammar/asked_grammar.h"

namespace coluber::cli {

struct BatchRequest {
  Json id;  // a text or a whole number, as it was given
  // One of these three.
  std::optional<std::string> prompt;  // text, gone on from without the chat template
  std::vector<int32_t> prompt_ids;
  std::optional<Json> messages;  // for the chat template
  std::string tools_json, template_kwargs_json;

  SamplingParams sampling;
  int64_t n = 1;
  int64_t best_of = 0;     // 0: n
  int64_t beam_width = 0;  // 0: no beams
  double length_penalty = 1.0;
  bool early_stopping = false;
  int64_t priority = 0;  // lower comes first
  std::string cache_salt;
  double arrival_s = 0.0;  // seconds after the start before which the request is not there yet
  std::optional<int64_t> cancel_after_tokens;
  std::optional<AskedGrammar> form;  // of the answer
  std::string session;               // a file that the line goes on from and is saved in; empty: none
};

struct ParsedLine {
  BatchRequest request;
  std::string problem;  // everything that is wrong; empty where the request may run
};

// `defaults` hold for what the line does not say.
ParsedLine parse_batch_line(std::string_view line, const SamplingParams& defaults, int64_t vocab_size);

// The lines of an input, held in memory as text: what is made of a line is made when its turn comes.
class BatchInput {
 public:
  struct Line {
    int64_t number = 0;  // from 1, as editors count
    size_t offset = 0, length = 0;
  };

  // "-" is standard input; it and pipes are read to their end. Throws Error(kIo, kNotFound).
  explicit BatchInput(const std::string& path);

  const std::vector<Line>& lines() const noexcept { return lines_; }  // without empty ones
  std::string_view text(const Line& line) const noexcept {
    return std::string_view(text_).substr(line.offset, line.length);
  }

 private:
  std::string text_;
  std::vector<Line> lines_;
};

// How an id is compared: 7 and "7" are two ids.
std::string batch_id_key(const Json& id);

}  // namespace coluber::cli
