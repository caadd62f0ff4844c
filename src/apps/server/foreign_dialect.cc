// SPDX-License-Identifier: Apache-2.0
#include "apps/server/foreign_dialect.h"

#include <algorithm>
#include <ctime>

namespace coluber::server {

ApiError renamed(ApiError error, const FieldNames& names) {
  for (const auto& [ours, theirs] : names) {
    // A place within our field is none within theirs.
    const bool is_within = error.param.size() > ours.size() && error.param.starts_with(ours) &&
                           (error.param[ours.size()] == '.' || error.param[ours.size()] == '[');
    if (error.param != ours && !is_within) continue;
    const std::string quoted = "'" + error.param + "'";
    const size_t at = error.message.find(quoted);
    if (at != std::string::npos) error.message.replace(at, quoted.size(), "'" + std::string(theirs) + "'");
    error.param = theirs;
    break;
  }
  return error;
}

bool read_text_parts(const Json& content, const std::vector<std::string_view>& types, std::string* text) {
  if (content.is_string()) {
    *text = content.as_string();
    return true;
  }
  if (!content.is_array()) return false;
  for (const Json& part : content.as_array()) {
    const Json* type = part.find("type");
    const Json* words = part.find("text");
    if (type == nullptr || !type->is_string() || words == nullptr || !words->is_string() ||
        std::find(types.begin(), types.end(), type->as_string()) == types.end())
      return false;
    *text += (text->empty() ? "" : "\n") + words->as_string();
  }
  return true;
}

std::string iso_time(int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string named_event(std::string_view name, const Json& data) {
  return "event: " + std::string(name) + "\ndata: " + data.dump() + "\n\n";
}

}  // namespace coluber::server
