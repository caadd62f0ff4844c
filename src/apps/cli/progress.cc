// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "apps/cli/cli.h"

namespace coluber::cli {
namespace {
constexpr auto kFirstDraw = std::chrono::milliseconds(300);
constexpr auto kRedraw = std::chrono::milliseconds(100);

std::string amount(int64_t value, const std::string& unit) {
  return unit == "B" ? fmt::format("{:.0f} MB", static_cast<double>(value) / 1e6) : std::to_string(value);
}
}  // namespace

ProgressBar::ProgressBar(std::string title, std::string unit)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      started_(std::chrono::steady_clock::now()),
      drawn_(started_),
      enabled_(stderr_is_terminal()) {}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::update(int64_t done, int64_t total, std::string_view note) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || total <= 0 || now - started_ < kFirstDraw || (visible_ && now - drawn_ < kRedraw)) return;
  drawn_ = now;
  visible_ = true;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const std::string text = fmt::format(" {:3.0f} % {}/{}{}{}", share * 100.0, amount(done, unit_), amount(total, unit_),
                                       unit_ == "B" ? "" : " " + unit_, note);
  const int width = std::clamp(terminal_columns() - static_cast<int>(title_.size() + text.size()) - 5, 5, 40);
  const int filled = static_cast<int>(share * width);
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < filled ? "█" : "░";
  std::fprintf(stderr, "\r\033[K%s %s%s", title_.c_str(), bar.c_str(), text.c_str());
  std::fflush(stderr);
}

void ProgressBar::finish() noexcept {
  if (visible_) std::fprintf(stderr, "\r\033[K");
  visible_ = false;
}

}  // namespace coluber::cli
