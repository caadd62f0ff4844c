// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/layer_strip.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "apps/cli/cli.h"

namespace coluber::cli {
namespace {

constexpr const char* kGlyphs[] = {"█", "▒", "◆", "░", "▚", "▤", "◇", "○"};
constexpr const char* kColors[] = {"\033[36m", "\033[33m", "\033[35m", "\033[32m",
                                   "\033[34m", "\033[31m", "\033[37m", "\033[90m"};
constexpr const char* kPlain = "\033[0m";
constexpr size_t kNumGlyphs = std::size(kGlyphs);

}  // namespace

std::string LayerStrip::bar(size_t place, int cells) const {
  const size_t glyph = place % kNumGlyphs;
  std::string out;
  for (int i = 0; i < cells; ++i) out += kGlyphs[glyph];
  return colors_ && cells > 0 ? kColors[glyph] + out + kPlain : out;
}

std::string LayerStrip::draw(const std::vector<std::string>& kinds,
                             const std::function<std::string(const std::string& kind)>& note) const {
  std::map<std::string, size_t> place_of;  // in order of appearance
  std::vector<std::pair<std::string, int64_t>> legend;
  std::string out = "  ";
  int column = 0;
  const int width = std::clamp(terminal_columns() - 4, 16, 96);
  for (const std::string& kind : kinds) {
    const auto [found, is_new] = place_of.try_emplace(kind, legend.size());
    if (is_new) legend.emplace_back(kind, 0);
    ++legend[found->second].second;
    if (column == width) out += "\n  ", column = 0;
    out += cell(found->second);
    ++column;
  }
  out += "\n";
  for (size_t place = 0; place < legend.size(); ++place) {
    const auto& [kind, count] = legend[place];
    out += fmt::format("  {} {} × {}{}\n", cell(place), kind, count, note ? note(kind) : "");
  }
  return out;
}

bool stdout_has_colors() { return stdout_is_terminal() && std::getenv("NO_COLOR") == nullptr; }

std::string bytes_text(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (value < 1e6) return fmt::format("{:.1f} kB", value / 1e3);
  if (value < 1e9) return fmt::format("{:.1f} MB", value / 1e6);
  if (value < 1e12) return fmt::format("{:.2f} GB", value / 1e9);
  return fmt::format("{:.2f} TB", value / 1e12);
}

}  // namespace coluber::cli
