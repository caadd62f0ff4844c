// SPDX-License-Identifier: Apache-2.0
//
// What an operation of the random traffic chooses, each choice under a name: by chance, or as it was written down. So a
// trace can be kept as text that goes on meaning the same when the traffic learns to choose more: a choice that was not
// written down is the first there is, which is always the plain one. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <sstream>
#include <string>

namespace coluber::soak {

class Draws {
 public:
  void by_chance(uint64_t seed) {
    random_.seed(seed);
    written_.clear();
    times_.clear();
    is_chance_ = true;
    line_.clear();
  }
  // "operation name=value name=value ...": what was drawn, but for zeros.
  void as_written(const std::string& line) {
    std::istringstream words(line);
    words >> line_;
    written_.clear();
    times_.clear();
    is_chance_ = false;
    for (std::string word; words >> word;) {
      const size_t at = word.find('=');
      written_[word.substr(0, at)] = std::stoll(word.substr(at + 1));
    }
  }
  // The operation: as written, or one of `weights` by chance.
  template <typename Weights>
  const std::string& operation(const Weights& weights) {
    if (!is_chance_) return line_;
    int64_t whole = 0;
    for (const auto& one : weights) whole += one.weight;
    auto left = static_cast<int64_t>(random_() % static_cast<uint64_t>(whole));
    for (const auto& one : weights) {
      if (left < one.weight && line_.empty()) line_ = one.name;
      left -= one.weight;
    }
    return line_;
  }
  void name_operation(const std::string& name) { line_ = name; }

  // 0 to n - 1. What is drawn by the same name again is written as name.2, name.3, ...
  int64_t upto(const char* name, int64_t n) {
    const int64_t time = ++times_[name];
    const std::string whole = time == 1 ? name : std::string(name) + "." + std::to_string(time);
    if (!is_chance_) {
      const auto value = written_.find(whole);
      return value == written_.end() ? 0 : value->second % n;
    }
    const auto value = static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
    if (value != 0) line_ += " " + whole + "=" + std::to_string(value);
    return value;
  }
  bool once_in(const char* name, int64_t n) { return upto(name, n) == 1; }
  const std::string& line() const noexcept { return line_; }

 private:
  std::mt19937_64 random_;
  std::map<std::string, int64_t> written_;
  std::map<std::string, int64_t> times_;  // that a name was drawn
  std::string line_;
  bool is_chance_ = true;
};

}  // namespace coluber::soak
