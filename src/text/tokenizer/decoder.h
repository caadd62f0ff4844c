// SPDX-License-Identifier: Apache-2.0
//
// The "decoder" of a tokenizer.json: tokens back to text. A chain of stages, each of which takes tokens one by one and
// passes text on as soon as no later token can change it; decoding a whole list is the same chain run to its end, so
// streamed and whole results cannot differ. A DecodeChain is immutable and thread-safe; a DecodeStream is one run of
// it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/component.h"

namespace coluber {

// The receiver of a stage's output. A token may come in several parts; `starts` marks the first and `ends` the last.
// Parts are whole characters.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void token(std::string_view text, bool starts, bool ends) = 0;
  virtual void finish() = 0;  // no more tokens; the stage is as new afterwards
};

class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual std::unique_ptr<TokenSink> start(TokenSink& next) const = 0;
};

class DecodeChain {
 public:
  // No decoder: tokens are joined by spaces.
  DecodeChain();
  ~DecodeChain();
  void load(const Component& component);
  // Takes spaces before punctuation out of the final text (clean_up_tokenization_spaces).
  void add_cleanup();

  const std::vector<std::unique_ptr<DecodeStage>>& stages() const noexcept { return stages_; }

 private:
  void load_stage(const Component& component, int depth);
  std::vector<std::unique_ptr<DecodeStage>> stages_;
};

class DecodeStream {
 public:
  explicit DecodeStream(const DecodeChain& chain);
  ~DecodeStream();
  void push(std::string_view token);
  void finish();
  std::string take();  // the text that has come out since the last call

 private:
  class Output;
  std::unique_ptr<Output> output_;
  std::vector<std::unique_ptr<TokenSink>> stages_;  // last first
  TokenSink* first_;
};

}  // namespace coluber
