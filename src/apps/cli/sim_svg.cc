// SPDX-License-Identifier: Apache-2.0
//
// The picture of a simulation as SVG: four panels over one axis of time, and the totals beside them.
#include <algorithm>
#include <cmath>

#include "apps/cli/layer_strip.h"
#include "apps/cli/sim_picture.h"
#include "apps/cli/svg.h"

namespace coluber::cli {
namespace {

constexpr double kWidth = 1180.0, kLeft = 84.0, kPlotWidth = 760.0, kRight = 880.0;
constexpr size_t kSamples = 256;
constexpr std::string_view kGreen = "#2f9e62", kPaleGreen = "#cdebd9", kRed = "#d0453a", kBlue = "#2b7bba";

struct Kind {
  double SimSample::* value;
  std::string_view name;
  std::string_view color;
};
constexpr Kind kMemory[] = {
    {&SimSample::running_states, "states, running", "#d9632a"},
    {&SimSample::running_pages, "attention, running", "#2b7bba"},
    {&SimSample::cached_states, "states, kept for later", "#f6bd8b"},
    {&SimSample::cached_pages, "attention, kept for later", "#a9d2ee"},
};

std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:g} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:g} k", value / 1e3);
  return fmt::format("{:g}", std::round(value * 100.0) / 100.0);
}

// One panel: its place, its scale, its axes.
class Panel {
 public:
  Panel(Svg& svg, double top, double height, double most, size_t count)
      : svg_(svg), top_(top), height_(height), most_(most > 0.0 ? most : 1.0), count_(count) {}

  void frame(std::string_view title, double step, const std::function<std::string(double)>& label, double end_s,
             bool names_time) const {
    svg_.text(kLeft, top_ - 10, title, kInk, 14, "start", "bold");
    for (double value = 0.0; value <= most_ * 1.001; value += step) {
      svg_.line(kLeft, y(value), kLeft + kPlotWidth, y(value), kGrid);
      svg_.text(kLeft - 8, y(value) + 4, label(value), kSoft, 11, "end");
    }
    const double unit = end_s > 7200.0 ? 3600.0 : end_s > 120.0 ? 60.0 : 1.0;
    const double time_step = round_step(end_s / unit, 8.0);
    for (double time = 0.0; time <= end_s / unit * 1.001; time += time_step) {
      const double at = kLeft + kPlotWidth * std::min(time * unit / std::max(end_s, 1e-9), 1.0);
      svg_.line(at, top_ + height_, at, top_ + height_ + 4, kSoft);
      if (names_time) svg_.text(at, top_ + height_ + 17, fmt::format("{:g}", time), kSoft, 11, "middle");
    }
    if (names_time)
      svg_.text(kLeft + kPlotWidth, top_ + height_ + 32,
                unit > 60.0  ? "hours"
                : unit > 1.0 ? "minutes"
                             : "seconds",
                kSoft, 11, "end");
    svg_.line(kLeft, top_ + height_, kLeft + kPlotWidth, top_ + height_, kSoft);
  }

  void area(const std::vector<double>& low, const std::vector<double>& high, std::string_view color) const {
    std::string data = points(high, false);
    data += points(low, true);
    svg_.path(data + "Z", color, "none");
  }

  void curve(const std::vector<double>& values, std::string_view color) const {
    svg_.path(points(values, false), "none", color, 1.8);
  }

 private:
  double y(double value) const { return top_ + height_ * (1.0 - std::clamp(value / most_, 0.0, 1.0)); }
  // Spans are flat: a step at each edge.
  std::string points(const std::vector<double>& values, bool backwards) const {
    std::string data;
    const double width = kPlotWidth / static_cast<double>(count_);
    for (size_t i = 0; i < count_; ++i) {
      const size_t at = backwards ? count_ - 1 - i : i;
      const double left = kLeft + width * static_cast<double>(at), right = left + width;
      data += fmt::format("{}{:.1f},{:.1f} L{:.1f},{:.1f} ", i == 0 && !backwards ? "M" : "L", backwards ? right : left,
                          y(values[at]), backwards ? left : right, y(values[at]));
    }
    return data;
  }

  Svg& svg_;
  double top_, height_, most_;
  size_t count_;
};

std::string bytes_label(double value) { return value <= 0.0 ? "0" : bytes_text(static_cast<int64_t>(value)); }
std::string percent_label(double value) { return fmt::format("{:.0f} %", value * 100.0); }
std::string seconds_label(double value) { return value <= 0.0 ? "0" : fmt::format("{:g} s", value); }

class Picture {
 public:
  explicit Picture(const SimResult& result)
      : result_(result), samples_(result.series.samples(kSamples, result.end_s)), none_(samples_.size(), 0.0) {}

  std::string draw(const std::string& title, const std::string& subtitle) {
    svg_.text(kLeft, 40, title, kInk, 22, "start", "bold");
    svg_.text(kLeft, 62, subtitle, kSoft, 13);
    hits(112);
    memory(312);
    requests(562);
    waits(712);
    totals(112);
    reasons(434);
    return svg_.finish(kWidth, 870);
  }

 private:
  std::vector<double> of(double SimSample::* value) const {
    std::vector<double> values;
    for (const SimSample& sample : samples_) values.push_back(sample.*value);
    return values;
  }

  void legend(double x, double y, std::string_view color, std::string_view name) {
    svg_.box(x, y - 10, 11, 11, color);
    svg_.text(x + 17, y, name, kInk, 12);
  }

  void hits(double top) {
    std::vector<double> hit, reachable;
    double last_hit = 0.0, last_reachable = 0.0;  // where no prompt came, the last one's
    for (const SimSample& sample : samples_) {
      if (sample.query_tokens > 0.0) {
        last_hit = sample.hit_tokens / sample.query_tokens;
        last_reachable = std::max(last_hit, sample.common_tokens / sample.query_tokens);
      }
      hit.push_back(last_hit);
      reachable.push_back(last_reachable);
    }
    const Panel panel(svg_, top, 140, 1.0, samples_.size());
    panel.area(none_, reachable, kPaleGreen);
    panel.area(none_, hit, kGreen);
    panel.frame("Prompt tokens that were not computed", 0.25, percent_label, result_.end_s, false);
    legend(kLeft + 410, top - 10, kGreen, "from the cache");
    legend(kLeft + 540, top - 10, kPaleGreen, "begun alike earlier, but computed");
  }

  void memory(double top) {
    const double most = static_cast<double>(result_.memory_bytes);
    const Panel panel(svg_, top, 190, most, samples_.size());
    std::vector<double> low = none_;
    for (const Kind& kind : kMemory) {
      std::vector<double> high = low;
      for (size_t i = 0; i < high.size(); ++i) high[i] += samples_[i].*kind.value;
      panel.area(low, high, kind.color);
      low = std::move(high);
    }
    panel.frame("Memory", round_step(most, 6.0), bytes_label, result_.end_s, false);
    double x = kLeft + 90;
    for (const Kind& kind : kMemory) {
      legend(x, top - 10, kind.color, kind.name);
      x += 34.0 + 5.6 * static_cast<double>(kind.name.size());
    }
  }

  void requests(double top) {
    const std::vector<double> waiting = of(&SimSample::waiting), running = of(&SimSample::running);
    double most = 1.0;
    for (size_t i = 0; i < waiting.size(); ++i) most = std::max({most, waiting[i], running[i]});
    const Panel panel(svg_, top, 90, most, samples_.size());
    panel.area(none_, waiting, "#f3c4c0");
    panel.frame("Requests", round_step(most, 3.0), short_number, result_.end_s, false);
    panel.curve(running, kBlue);
    legend(kLeft + 540, top - 10, kBlue, "that run");
    legend(kLeft + 640, top - 10, "#f3c4c0", "that wait");
  }

  void waits(double top) {
    const std::vector<double> longest = of(&SimSample::longest_wait_s);
    const double most = std::max(0.1, *std::max_element(longest.begin(), longest.end()));
    const Panel panel(svg_, top, 90, most, samples_.size());
    panel.area(none_, longest, "#d9d2ea");
    panel.frame("Longest wait for a first token", round_step(most, 3.0), seconds_label, result_.end_s, true);
  }

  void row(double& y, std::string_view name, const std::string& value) {
    svg_.text(kRight, y, name, kSoft, 12);
    svg_.text(kWidth - 40, y, value, kInk, 12, "end");
    y += 21;
  }

  void totals(double top) {
    const CacheCounters& cache = result_.cache;
    svg_.text(kRight, top + 34, fmt::format("{:.1f} %", 100.0 * hit_rate(result_)), kGreen, 40, "start", "bold");
    svg_.text(kRight, top + 56,
              fmt::format("of prompt tokens from the cache, of {:.1f} %", 100.0 * reachable_rate(result_)), kSoft, 12);
    svg_.text(kRight, top + 72, "that earlier requests began with", kSoft, 12);
    double y = top + 104;
    row(y, "requests", short_number(static_cast<double>(result_.requests)));
    row(y, "first token, half of all", fmt::format("{:.2f} s", quantile(result_.first_token_s, 0.5)));
    row(y, "first token, 99 of 100", fmt::format("{:.2f} s", quantile(result_.first_token_s, 0.99)));
    row(y, "states at most", bytes_text(cache.peak_recurrent_bytes));
    row(y, "attention pages at most", bytes_text(cache.peak_attention_bytes));
    row(y, "states kept", short_number(static_cast<double>(cache.published)));
    row(y, "dropped again", short_number(static_cast<double>(result_.evicted)));
    row(y, "preempted", short_number(static_cast<double>(cache.preemptions)));
    row(y, "of them parked", short_number(static_cast<double>(cache.parked)));
    row(y, "tokens computed again", short_number(static_cast<double>(cache.recomputed_tokens)));
  }

  void reasons(double top) {
    svg_.text(kRight, top, "Requests that found less than", kInk, 14, "start", "bold");
    svg_.text(kRight, top + 18, "they could, and why", kInk, 14, "start", "bold");
    int64_t most = 1;
    for (size_t i = 1; i < result_.cache.miss_reasons.size(); ++i) most = std::max(most, result_.cache.miss_reasons[i]);
    double y = top + 44;
    for (size_t i = 1; i < result_.cache.miss_reasons.size(); ++i) {
      const int64_t count = result_.cache.miss_reasons[i];
      std::string name(miss_reason_name(static_cast<MissReason>(i)));
      std::replace(name.begin(), name.end(), '_', ' ');
      svg_.text(kRight, y, name, count > 0 ? kInk : kSoft, 12);
      svg_.text(kWidth - 40, y, short_number(static_cast<double>(count)), count > 0 ? kInk : kSoft, 12, "end");
      svg_.box(kRight, y + 6, kWidth - 40 - kRight, 6, kGrid);
      if (count > 0)
        svg_.box(kRight, y + 6, (kWidth - 40 - kRight) * static_cast<double>(count) / static_cast<double>(most), 6,
                 kRed);
      y += 36;
    }
  }

  const SimResult& result_;
  std::vector<SimSample> samples_;
  std::vector<double> none_;
  Svg svg_;
};

}  // namespace

std::string sim_svg(const SimResult& result, const std::string& title, const std::string& subtitle) {
  return Picture(result).draw(title, subtitle);
}

}  // namespace coluber::cli
