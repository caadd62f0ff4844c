// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "base/printable.h"

namespace coluber {
namespace {

std::optional<LogLevel> parse_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warn" || name == "warning") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return std::nullopt;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

struct Logger {
  std::atomic<LogLevel> level{LogLevel::kWarn};
  std::shared_ptr<spdlog::logger> sink;

  Logger() {
    // Not registered with spdlog: a host program that uses spdlog too keeps its own registry to itself.
    sink = std::make_shared<spdlog::logger>("coluber", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    sink->set_level(spdlog::level::trace);
    sink->set_pattern("%^%l%$: %v");
    const char* wanted = std::getenv("COLUBER_LOG_LEVEL");
    if (wanted == nullptr || *wanted == '\0') return;
    if (const std::optional<LogLevel> parsed = parse_level(wanted)) {
      level = *parsed;
    } else {
      sink->warn("COLUBER_LOG_LEVEL is '{}'; expected debug, info, warn, error or off; keeping warn", wanted);
    }
  }
};

// Never destroyed: threads and other static destructors may still log at exit.
Logger& logger() {
  static Logger* const instance = new Logger;
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().level.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) noexcept {
  return level != LogLevel::kOff && level >= logger().level.load(std::memory_order_relaxed);
}

void log_message(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) return;
  logger().sink->log(to_spdlog(level), "{}", printable(message));
}

}  // namespace coluber
