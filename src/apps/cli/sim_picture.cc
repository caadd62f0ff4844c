// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/sim_picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/cli/layer_strip.h"

namespace coluber::cli {
namespace {

constexpr std::array<std::string_view, 9> kEighths = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr int kLabelColumns = 10;

double share_of(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

std::string seconds_text(double seconds) {
  if (seconds < 1.0) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 120.0) return fmt::format("{:.1f} s", seconds);
  if (seconds < 7200.0) return fmt::format("{:.0f} min", seconds / 60.0);
  return fmt::format("{:.1f} h", seconds / 3600.0);
}

// One kind of a stacked chart.
struct Layer {
  double SimSample::* value;
  std::string_view name;
  std::string_view shade;  // without colours
  int color;               // of a terminal's 256
};
constexpr Layer kMemory[] = {
    {&SimSample::running_states, "states of running requests", "█", 166},
    {&SimSample::running_pages, "attention pages of running requests", "▓", 31},
    {&SimSample::cached_states, "states kept for later", "▒", 215},
    {&SimSample::cached_pages, "attention pages kept for later", "░", 117},
};

std::string painted(std::string_view text, int color, bool colors) {
  return colors ? fmt::format("\x1b[38;5;{}m{}\x1b[0m", color, text) : std::string(text);
}

class TerminalChart {
 public:
  TerminalChart(int rows, bool colors) : rows_(rows), colors_(colors) {}

  // Columns from the bottom up, in cells; each takes what its values fill.
  void stacked(const std::vector<std::vector<double>>& columns,
               const std::vector<std::pair<std::string_view, int>>& inks, double top, const std::string& top_label,
               std::string& out) const {
    for (int row = rows_ - 1; row >= 0; --row) {
      out += fmt::format("{:>{}} ", row == rows_ - 1 ? top_label : row == 0 ? "0" : "", kLabelColumns - 1);
      out += row == rows_ - 1 || row == 0 ? "┤" : "│";
      for (const std::vector<double>& values : columns) out += cell(values, inks, top, row);
      out += "\n";
    }
  }

  // Bars in eighths of a cell.
  void bars(const std::vector<double>& values, double top, int color, const std::string& top_label,
            std::string& out) const {
    for (int row = rows_ - 1; row >= 0; --row) {
      out += fmt::format("{:>{}} ", row == rows_ - 1 ? top_label : row == 0 ? "0" : "", kLabelColumns - 1);
      out += row == rows_ - 1 || row == 0 ? "┤" : "│";
      for (const double value : values) {
        const double filled = share_of(value, top) * rows_ * 8.0 - row * 8.0;
        // What is there at all is seen.
        const double least = row == 0 && value > 0.0 ? 1.0 : 0.0;
        out += painted(kEighths[static_cast<size_t>(std::clamp(std::round(filled), least, 8.0))], color, colors_);
      }
      out += "\n";
    }
  }

 private:
  std::string cell(const std::vector<double>& values, const std::vector<std::pair<std::string_view, int>>& inks,
                   double top, int row) const {
    const double middle = (row + 0.5) / rows_ * top;
    double sum = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      sum += values[i];
      if (sum >= middle) return painted(colors_ ? "█" : inks[i].first, inks[i].second, colors_);
    }
    return " ";
  }

  int rows_;
  bool colors_;
};

void time_axis(double end_s, size_t width, std::string& out) {
  out += std::string(kLabelColumns, ' ') + "└";
  for (size_t i = 0; i < width; ++i) out += "─";
  const std::string end = seconds_text(end_s);
  out += fmt::format("\n{:>{}}{:>{}}\n", "0 s", kLabelColumns + 4, end, std::max<int>(static_cast<int>(width) - 3, 1));
}

double most_of(const std::vector<SimSample>& samples, double SimSample::* value) {
  double most = 0.0;
  for (const SimSample& sample : samples) most = std::max(most, sample.*value);
  return most;
}

}  // namespace

double hit_rate(const SimResult& result) {
  return share_of(static_cast<double>(result.cache.hit_tokens), static_cast<double>(result.cache.query_tokens));
}

double reachable_rate(const SimResult& result) {
  return share_of(static_cast<double>(result.reusable_tokens), static_cast<double>(result.cache.query_tokens));
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  const size_t place = std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(place), values.end());
  return values[place];
}

Json sim_json(const SimResult& result) {
  Json::Object reasons;
  for (size_t i = 0; i < result.cache.miss_reasons.size(); ++i) {
    const auto reason = static_cast<MissReason>(i);
    if (reason != MissReason::kNone) reasons.emplace_back(miss_reason_name(reason), result.cache.miss_reasons[i]);
  }
  const auto quantiles = [](const std::vector<double>& values) {
    return Json(
        Json::Object{{"p50", quantile(values, 0.5)}, {"p90", quantile(values, 0.9)}, {"p99", quantile(values, 0.99)}});
  };
  Json json;
  json.set("requests", result.requests);
  json.set("refused", result.refused);
  json.set("simulated_s", result.end_s);
  json.set("busy_share", share_of(result.busy_s, result.end_s));
  json.set("steps", result.steps);
  json.set("query_tokens", result.cache.query_tokens);
  json.set("hit_tokens", result.cache.hit_tokens);
  json.set("hit_rate", hit_rate(result));
  json.set("reachable_tokens", result.reusable_tokens);
  json.set("reachable_rate", reachable_rate(result));
  json.set("miss_reasons", std::move(reasons));
  json.set("output_tokens", result.output_tokens);
  json.set("computed_tokens", result.computed_tokens);
  json.set("recomputed_tokens", result.cache.recomputed_tokens);
  json.set("preemptions", result.cache.preemptions);
  json.set("parked", result.cache.parked);
  json.set("checkpoints", Json::Object{{"published", result.cache.published}, {"evicted", result.evicted}});
  json.set("memory_bytes", result.memory_bytes);
  json.set("peak_bytes", Json::Object{{"recurrent", result.cache.peak_recurrent_bytes},
                                      {"attention", result.cache.peak_attention_bytes}});
  json.set("first_token_s", quantiles(result.first_token_s));
  json.set("whole_request_s", quantiles(result.whole_s));
  json.set("simulation_took_s", result.wall_s);
  return json;
}

std::string sim_summary(const SimResult& result) {
  const CacheCounters& cache = result.cache;
  std::string out =
      fmt::format("{} requests in {} of simulated time ({:.0f} % of it busy), {} steps; simulated in {}\n\n",
                  result.requests, seconds_text(result.end_s), 100.0 * share_of(result.busy_s, result.end_s),
                  result.steps, seconds_text(result.wall_s));
  out += fmt::format("prompt tokens from the cache   {:5.1f} %   (earlier requests began with {:.1f} %)\n",
                     100.0 * hit_rate(result), 100.0 * reachable_rate(result));
  out += fmt::format("most memory of each kind       {} of states, {} of attention pages, of {} for both\n",
                     bytes_text(cache.peak_recurrent_bytes), bytes_text(cache.peak_attention_bytes),
                     bytes_text(result.memory_bytes));
  out +=
      fmt::format("first token after              {} (half of all), {} (9 of 10), {} (99 of 100)\n",
                  seconds_text(quantile(result.first_token_s, 0.5)), seconds_text(quantile(result.first_token_s, 0.9)),
                  seconds_text(quantile(result.first_token_s, 0.99)));
  out += fmt::format("preempted                      {} times, {} parked, {} tokens computed again\n",
                     cache.preemptions, cache.parked, cache.recomputed_tokens);
  out += fmt::format("states kept                    {}, {} dropped again\n", cache.published, result.evicted);
  if (result.refused > 0)
    out +=
        fmt::format("refused                        {}: longer than the memory or --max-model-len\n", result.refused);
  std::string reasons;
  int64_t short_of = 0;
  for (size_t i = 1; i < cache.miss_reasons.size(); ++i) {
    short_of += cache.miss_reasons[i];
    if (cache.miss_reasons[i] > 0)
      reasons += fmt::format("  {:<31} {}\n", miss_reason_name(static_cast<MissReason>(i)), cache.miss_reasons[i]);
  }
  if (short_of > 0) out += fmt::format("\nRequests that found less than they could, and why\n{}", reasons);
  return out;
}

std::string sim_terminal(const SimResult& result, int columns, bool colors) {
  const auto width = static_cast<size_t>(std::clamp(columns - kLabelColumns - 2, 20, 160));
  std::vector<SimSample> samples = result.series.samples(width, result.end_s);
  // Short runs have few spans: each is drawn as wide as it is.
  std::vector<SimSample> cells;
  for (size_t i = 0; i < width; ++i) cells.push_back(samples[i * samples.size() / width]);
  std::string out = "\nPrompt tokens from the cache " + painted("█", 34, colors) +
                    ", and what earlier requests began with " + painted(colors ? "█" : "░", 194, colors) + "\n";
  std::vector<std::vector<double>> hits, memory;
  std::vector<double> waiting;
  for (const SimSample& cell : cells) {
    const double hit = share_of(cell.hit_tokens, cell.query_tokens);
    hits.push_back({hit, std::max(0.0, share_of(cell.common_tokens, cell.query_tokens) - hit)});
    std::vector<double> column;
    for (const Layer& layer : kMemory) column.push_back(cell.*layer.value);
    memory.push_back(std::move(column));
    waiting.push_back(cell.waiting);
  }
  TerminalChart(8, colors).stacked(hits, {{"█", 34}, {"░", 194}}, 1.0, "100 %", out);
  time_axis(result.end_s, width, out);
  out += "\nMemory";
  std::vector<std::pair<std::string_view, int>> inks;
  for (const Layer& layer : kMemory) {
    inks.emplace_back(layer.shade, layer.color);
    const bool breaks = inks.size() % 2 == 1;  // two in a line of eighty columns
    out += fmt::format("{} {} {:<37}", breaks ? "\n " : "", painted(colors ? "█" : layer.shade, layer.color, colors),
                       layer.name);
  }
  out += "\n";
  TerminalChart(12, colors)
      .stacked(memory, inks, static_cast<double>(result.memory_bytes), bytes_text(result.memory_bytes), out);
  time_axis(result.end_s, width, out);
  const double most = std::max(1.0, most_of(cells, &SimSample::waiting));
  out += "\nRequests that wait\n";
  TerminalChart(4, colors).bars(waiting, most, 160, fmt::format("{:.0f}", most), out);
  time_axis(result.end_s, width, out);
  return out;
}

}  // namespace coluber::cli
