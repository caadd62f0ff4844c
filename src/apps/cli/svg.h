// SPDX-License-Identifier: Apache-2.0
//
// Lines, boxes, paths and texts of an SVG picture, and round steps of axes. Knows nothing of what is drawn.
#pragma once

#include <string>
#include <string_view>

namespace coluber::cli {

inline constexpr std::string_view kInk = "#1f2933", kSoft = "#6b7785", kGrid = "#e4e8ec";

// A number of 1, 2 or 5 times a power of ten, so that `span` has about `steps` of them.
double round_step(double span, double steps);

class Svg {
 public:
  void text(double x, double y, std::string_view text, std::string_view color = kInk, double size = 13,
            std::string_view anchor = "start", std::string_view weight = "normal");
  void line(double x1, double y1, double x2, double y2, std::string_view color, double width = 1.0);
  void box(double x, double y, double width, double height, std::string_view color);
  void path(const std::string& data, std::string_view fill, std::string_view stroke, double width = 1.5);
  std::string finish(double width, double height) const;

 private:
  std::string out_;
};

}  // namespace coluber::cli
