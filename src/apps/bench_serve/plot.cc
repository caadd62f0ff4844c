// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_serve/plot.h"

#include <algorithm>
#include <cmath>

#include "apps/cli/svg.h"
#include "base/error.h"

namespace coluber::bench_serve {
namespace {

using cli::kGrid;
using cli::kInk;
using cli::kSoft;

constexpr double kWidth = 1180.0, kLeft = 84.0, kRight = 1140.0;
constexpr double kRowsTop = 112.0, kRowsHeight = 380.0, kSpreadTop = 580.0, kSpreadHeight = 190.0;
constexpr std::string_view kWaits = "#e0a04a", kWrites = "#2f9e62", kFailed = "#d0453a", kCurve = "#2b7bba";

class Picture {
 public:
  explicit Picture(const Report& report) : report_(report) {}

  std::string draw(const std::string& title, const std::string& subtitle) {
    svg_.text(kLeft, 40, title, kInk, 22, "start", "bold");
    svg_.text(kLeft, 62, subtitle, kSoft, 13);
    rows();
    const double width = (kRight - kLeft - 3.0 * kGap) / 4.0;
    spread(kLeft, width, "First token (TTFT)", report_.ttft_ms);
    spread(kLeft + (width + kGap), width, "Per output token (TPOT)", report_.tpot_ms);
    spread(kLeft + 2.0 * (width + kGap), width, "Between tokens (ITL)", report_.itl_ms);
    spread(kLeft + 3.0 * (width + kGap), width, "Whole request (E2EL)", report_.e2el_ms);
    return svg_.finish(kWidth, 830);
  }

 private:
  static constexpr double kGap = 44.0;

  void legend(double x, std::string_view color, std::string_view name) {
    svg_.box(x, kRowsTop - 21, 11, 11, color);
    svg_.text(x + 17, kRowsTop - 11, name, kInk, 12);
  }

  // A line a request, in order of coming.
  void rows() {
    std::vector<const Measured*> order;
    for (const Measured& one : report_.requests) order.push_back(&one);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->begun_s < b->begun_s; });
    const double zero = order.empty() ? 0.0 : order.front()->begun_s;
    const double span = std::max(report_.duration_s, 1e-9);
    const auto x = [&](double at_s) { return kLeft + (kRight - kLeft) * (at_s - zero) / span; };
    svg_.text(kLeft, kRowsTop - 10, "Requests in order of coming", kInk, 14, "start", "bold");
    legend(kRight - 330, kWaits, "waits for its first token");
    legend(kRight - 160, kWrites, "is answered");
    legend(kRight - 60, kFailed, "failed");
    const double step = cli::round_step(span, 8.0);
    for (double at = 0.0; at <= span * 1.001; at += step) {
      const double place = kLeft + (kRight - kLeft) * at / span;
      svg_.line(place, kRowsTop, place, kRowsTop + kRowsHeight, kGrid);
      svg_.text(place, kRowsTop + kRowsHeight + 18, fmt::format("{:g} s", at), kSoft, 11, "middle");
    }
    const double height = kRowsHeight / static_cast<double>(std::max<size_t>(order.size(), 8));
    for (size_t i = 0; i < order.size(); ++i) {
      const Measured& one = *order[i];
      const double y = kRowsTop + height * static_cast<double>(i), thick = std::max(height * 0.8, 0.4);
      const bool failed = !one.error.empty();
      const double first = failed ? one.ended_s : one.first_s;
      svg_.box(x(one.begun_s), y, std::max(x(first) - x(one.begun_s), 0.6), thick, failed ? kFailed : kWaits);
      if (!failed) svg_.box(x(first), y, std::max(x(one.ended_s) - x(first), 0.0), thick, kWrites);
    }
    svg_.line(kLeft, kRowsTop + kRowsHeight, kRight, kRowsTop + kRowsHeight, kSoft);
  }

  // Which share of all took at most so long; the axis ends where the slowest hundredth begins to stretch it.
  void spread(double left, double width, std::string_view title, std::vector<double> values) {
    const double bottom = kSpreadTop + kSpreadHeight;
    svg_.text(left, kSpreadTop - 14, title, kInk, 14, "start", "bold");
    for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const double y = bottom - kSpreadHeight * share;
      svg_.line(left, y, left + width, y, share == 0.0 ? kSoft : kGrid);
      if (left == kLeft) svg_.text(left - 8, y + 4, fmt::format("{:.0f} %", 100.0 * share), kSoft, 11, "end");
    }
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    const Summary all = summary(values);
    const double most = std::max({std::min(values.back(), 1.3 * all.p99), all.p99, 1e-6});
    std::string path;
    for (size_t i = 0; i < values.size() && values[i] <= most; ++i) {
      const double y = bottom - kSpreadHeight * static_cast<double>(i + 1) / static_cast<double>(values.size());
      path += fmt::format("{}{:.1f},{:.1f} ", path.empty() ? "M" : "L", left + width * values[i] / most, y);
    }
    svg_.path(path, "none", kCurve, 2.0);
    const double step = cli::round_step(most, 3.0);
    for (double at = 0.0; at <= most * 1.001; at += step)
      svg_.text(left + width * at / most, bottom + 17, fmt::format("{:g}", std::round(at * 1000.0) / 1000.0), kSoft, 11,
                "middle");
    svg_.text(left, bottom + 36, fmt::format("ms; median {:.2f}, 99 % within {:.2f}", all.median, all.p99), kSoft, 12);
  }

  const Report& report_;
  cli::Svg svg_;
};

}  // namespace

std::string plot(const Report& report, const std::string& title, const std::string& subtitle) {
  return Picture(report).draw(title, subtitle);
}

}  // namespace coluber::bench_serve
