// SPDX-License-Identifier: Apache-2.0
//
// What a user writes for a model on a hub: "org/name", "org/name@revision", "org/name:file" or all of it. Parsing and
// checking alone; nothing is fetched.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace coluber::hub {

struct HubReference {
  std::string repository;         // "org/name"
  std::string revision = "main";  // a branch, a tag, or a commit's 40 digits
  std::string file;               // of a repository with many GGUF files: one's name or a part of it ("Q4_K_M")

  bool is_commit() const noexcept;
  std::string text() const;  // as it is written
};

// Nothing where `text` is no reference: it has no slash or more than one before '@' and ':', or begins as a path does.
// Throws Error(kInvalidArgument) where it is one with a wrong part.
std::optional<HubReference> parse_hub_reference(std::string_view text);

// For a path of a URL: all but letters, digits and "-._~" as %XX, slashes too unless they are kept.
std::string url_escaped(std::string_view text, bool keep_slashes);

}  // namespace coluber::hub
