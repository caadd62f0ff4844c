// SPDX-License-Identifier: Apache-2.0
//
// One call as a JSON object, {"name": ..., "arguments": {...}} in any order ("parameters" is as good), one character at
// a time. Until it is sure to be a call its text is held back, so that it can become text again; then arguments come
// out as they come in. One call, one thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/tool_parser/json_value.h"

namespace coluber {

class JsonCall {
 public:
  enum class State { kGoing, kEnded, kNoCall };
  // `names`: what may be called; empty: anything.
  explicit JsonCall(const std::vector<std::string>& names) : names_(names) {}

  State take(char c);
  bool is_sure() const noexcept { return sure_; }
  const std::string& name() const noexcept { return name_; }
  const std::string& text() const noexcept { return text_; }  // all of it
  std::string take_arguments() { return std::exchange(arguments_, {}); }

 private:
  enum class Place { kStart, kKeyOrEnd, kKey, kInKey, kColon, kValue, kInValue, kCommaOrEnd };
  State in_value(char c);
  State end_value();
  bool is_arguments() const { return key_ == "arguments" || key_ == "parameters"; }
  void become_sure();

  const std::vector<std::string>& names_;
  Place place_ = Place::kStart;
  JsonValueEnd end_;
  std::string text_, key_, value_, name_, arguments_;
  bool sure_ = false, has_name_ = false, has_arguments_ = false;
};

}  // namespace coluber
