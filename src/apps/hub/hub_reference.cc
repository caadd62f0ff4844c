// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/hub_reference.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/printable.h"

namespace coluber::hub {
namespace {

constexpr size_t kMaxNameLength = 96;
constexpr size_t kMaxRevisionLength = 255, kMaxFileLength = 1024;

bool is_name_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameLength && std::all_of(name.begin(), name.end(), is_name_letter) &&
         name.front() != '.' && name.front() != '-' && name.back() != '.' && name.back() != '-' &&
         name.find("..") == std::string_view::npos && name.find("--") == std::string_view::npos;
}

// Neither steps out of a folder nor holds what no file system or Git name has.
bool is_relative_path(std::string_view path, size_t max_length) {
  if (path.empty() || path.size() > max_length || path.front() == '/' || path.back() == '/') return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

bool HubReference::is_commit() const noexcept {
  return revision.size() == 40 && revision.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string HubReference::text() const {
  return repository + (revision == "main" ? "" : "@" + revision) + (file.empty() ? "" : ":" + file);
}

std::optional<HubReference> parse_hub_reference(std::string_view text) {
  const size_t end = std::min(text.find_first_of("@:"), text.size());
  const std::string_view repository = text.substr(0, end);
  const size_t slash = repository.find('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == repository.size() || repository.front() == '.' ||
      repository.front() == '~' || repository.find('/', slash + 1) != std::string_view::npos)
    return std::nullopt;
  HubReference reference;
  reference.repository = repository;
  std::string_view rest = text.substr(end);
  if (rest.starts_with('@')) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    reference.revision = rest.substr(1, colon - 1);
    rest.remove_prefix(colon);
    if (!is_relative_path(reference.revision, kMaxRevisionLength))
      throw make_error(ErrorCode::kInvalidArgument,
                       "'{}': '{}' is no revision; expected a branch, a tag or a commit after '@', such as {}@main",
                       printable(text), printable(reference.revision), printable(repository));
  }
  if (!rest.empty()) {
    reference.file = rest.substr(1);
    if (!is_relative_path(reference.file, kMaxFileLength))
      throw make_error(ErrorCode::kInvalidArgument,
                       "'{}': '{}' names no file; expected one of the repository's after ':', such as {}:model.gguf",
                       printable(text), printable(reference.file), printable(repository));
  }
  for (const std::string_view name : {repository.substr(0, slash), repository.substr(slash + 1)}) {
    if (is_name(name)) continue;
    throw make_error(ErrorCode::kInvalidArgument,
                     "'{}': '{}' cannot be part of a repository's name; expected letters, digits, '-', '_' and '.', "
                     "as in org/name",
                     printable(text), printable(name));
  }
  return reference;
}

std::string url_escaped(std::string_view text, bool keep_slashes) {
  std::string result;
  for (const char c : text) {
    if (is_name_letter(c) || c == '~' || (c == '/' && keep_slashes)) {
      result.push_back(c);
    } else {
      result += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return result;
}

}  // namespace coluber::hub
