// SPDX-License-Identifier: Apache-2.0
//
// Logging to stderr. Only apps choose the level and the place; the library writes through these functions and never
// prints. The level comes from COLUBER_LOG_LEVEL (debug, info, warn, error, off) or `set_log_level`. Thread-safe.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace coluber {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level) noexcept;
void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kDebug)) log_message(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kInfo)) log_message(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kWarn)) log_message(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace coluber
