// SPDX-License-Identifier: Apache-2.0
//
// Layers drawn as a row of cells, one glyph a kind, with a legend; and bars of such glyphs. Text only: the caller says
// whether there are colours. Used on the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace coluber::cli {

class LayerStrip {
 public:
  explicit LayerStrip(bool colors) : colors_(colors) {}

  // The cells, first layer to last, in lines that fit the terminal, then a line of legend for each kind; `note` adds to
  // a kind's line.
  std::string draw(const std::vector<std::string>& kinds,
                   const std::function<std::string(const std::string& kind)>& note = {}) const;
  std::string cell(size_t place) const { return bar(place, 1); }
  std::string bar(size_t place, int cells) const;

 private:
  bool colors_;
};

// Colours where standard output is a terminal and NO_COLOR is not set.
bool stdout_has_colors();
std::string bytes_text(int64_t bytes);  // "1.2 MB"

}  // namespace coluber::cli
