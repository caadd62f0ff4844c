// SPDX-License-Identifier: Apache-2.0
#include "engine/host_memory.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <optional>

namespace coluber {

namespace {

std::optional<int64_t> first_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::optional<int64_t> meminfo_bytes(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string word;
  int64_t kilobytes = 0;
  while (file >> word) {
    if (word == key && file >> kilobytes) return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// What control group v2 leaves, where it sets a limit ("max" is no number).
std::optional<int64_t> cgroup_left() {
  const auto limit = first_number("/sys/fs/cgroup/memory.max");
  const auto used = first_number("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return std::nullopt;
  return *limit - *used;
}

std::optional<int64_t> address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const auto pages = first_number("/proc/self/statm");
  return static_cast<int64_t>(limit.rlim_cur) - pages.value_or(0) * sysconf(_SC_PAGESIZE);
}

}  // namespace

int64_t available_memory_bytes() {
  int64_t left = std::numeric_limits<int64_t>::max();
  for (const auto& bound : {meminfo_bytes("MemAvailable:"), cgroup_left(), address_space_left()})
    if (bound) left = std::min(left, std::max<int64_t>(*bound, 0));
  return left;
}

std::string format_bytes(int64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000.0 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace coluber
