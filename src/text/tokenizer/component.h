// SPDX-License-Identifier: Apache-2.0
//
// Reading the parts of a tokenizer.json: a JSON object together with its place in the file, so that every message can
// say where a value is wrong, what was expected and what was found. Used only while loading; all faults are thrown as
// Error.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace coluber {

class Component {
 public:
  // `place` reads like "tokenizer.json: pre_tokenizer.pretokenizers[1]". `json` must outlive the component.
  Component(const Json& json, std::string place);

  const Json& json() const noexcept { return *json_; }
  const std::string& place() const noexcept { return place_; }
  const std::string& type() const;  // the "type" member

  bool has(std::string_view key) const noexcept;  // there and not null
  Component child(std::string_view key) const;
  std::vector<Component> children(std::string_view key) const;  // the members of an array
  bool boolean(std::string_view key, std::optional<bool> fallback = std::nullopt) const;
  const std::string& text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view fallback) const;  // fallback where missing or null
  int64_t integer(std::string_view key, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = std::nullopt) const;
  std::string character(std::string_view key, std::string_view fallback = {}) const;  // exactly one character

  // Throws kUnsupported: this component's kind is not among `known`.
  [[noreturn]] void unknown_kind(std::string_view what, std::initializer_list<std::string_view> known) const;
  [[noreturn]] void refuse(const std::string& message) const;  // kInvalidData with the place

 private:
  const Json* json_;
  std::string place_;
};

}  // namespace coluber
