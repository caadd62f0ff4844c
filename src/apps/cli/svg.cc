// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/svg.h"

#include <fmt/core.h>

#include <cmath>

namespace coluber::cli {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

}  // namespace

double round_step(double span, double steps) {
  if (span <= 0.0) return 1.0;
  const double raw = span / steps;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw) return factor * power;
  return 10.0 * power;
}

void Svg::text(double x, double y, std::string_view text, std::string_view color, double size, std::string_view anchor,
               std::string_view weight) {
  out_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\" font-size=\"{}\" text-anchor=\"{}\" "
      "font-weight=\"{}\">{}</text>\n",
      x, y, color, size, anchor, weight, escaped(text));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view color, double width) {
  out_ +=
      fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"/>\n",
                  x1, y1, x2, y2, color, width);
}

void Svg::box(double x, double y, double width, double height, std::string_view color) {
  out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y, width,
                      height, color);
}

void Svg::path(const std::string& data, std::string_view fill, std::string_view stroke, double width) {
  out_ += fmt::format("<path d=\"{}\" fill=\"{}\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"/>\n",
                      data, fill, stroke, width);
}

std::string Svg::finish(double width, double height) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
      width, height, out_);
}

}  // namespace coluber::cli
