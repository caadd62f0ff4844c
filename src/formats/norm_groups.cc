// SPDX-License-Identifier: Apache-2.0
#include "formats/norm_groups.h"

#include <charconv>

namespace coluber {

bool norms_groups_together(std::string_view transformers_version) noexcept {
  constexpr std::string_view kMajor = "5.";
  constexpr int kFirstByGroup = 23;
  if (!transformers_version.starts_with(kMajor)) return false;
  const std::string_view rest = transformers_version.substr(kMajor.size());
  int minor = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), minor);
  return error == std::errc() && minor < kFirstByGroup;
}

}  // namespace coluber
