// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/bench_report.h"

#include <fmt/core.h>

namespace coluber::cli {
namespace {

Json range(const Spread& values) { return Json(Json::Array{values.low, values.high}); }

std::string machine_text(const BenchReport& r) {
  if (!r.device)
    return fmt::format("machine   reads {:.2f} GB/s, multiplies and adds {:.1f} GFLOP/s (float32)\n", r.memory_gbps,
                       r.gflops);
  return fmt::format("device    copies {:.0f} GB/s (read and written), {} {:.1f} TFLOP/s\n", r.memory_gbps,
                     r.device->products, r.gflops / 1e3);
}

std::string load_text(const BenchReport& r) {
  if (!r.device) return fmt::format("load      {:.2f} s, peak memory {:.0f} MB\n", r.load_s, r.peak_rss_mb);
  return fmt::format("load      {:.2f} s, peak memory {:.0f} MB of the host, {:.0f} MB of the device in use\n",
                     r.load_s, r.peak_rss_mb, r.device->memory_mb);
}

// A device's shares are often of a few per cent.
std::string share_text(const BenchReport& r, double share) {
  return r.device ? fmt::format("{:.1f} %", 100.0 * share) : fmt::format("{:.0f} %", 100.0 * share);
}

}  // namespace

double BenchReport::decode_roofline() const {
  return step_bytes * decode_tps.median / static_cast<double>(sizes.batch) / 1e9 / memory_gbps;
}

double BenchReport::prefill_roofline() const {
  const double prefills_per_second = prompt_tps.median / static_cast<double>(sizes.batch * sizes.prompt);
  return prefill_flops * prefills_per_second / 1e9 / gflops;
}

Json report_json(const BenchReport& r) {
  Json out;
  out.set("model", r.model);
  if (r.device) {
    out.set("device", r.device->name);
    out.set("device_name", r.device->product);
  } else {
    out.set("threads", r.threads);
  }
  out.set("prompt", r.sizes.prompt);
  out.set("gen", r.sizes.gen);
  out.set("batch", r.sizes.batch);
  out.set("reps", r.sizes.reps);
  out.set("prompt_tps", r.prompt_tps.median);
  out.set("prompt_tps_range", range(r.prompt_tps));
  out.set("decode_tps", r.decode_tps.median);
  out.set("decode_tps_range", range(r.decode_tps));
  out.set("load_s", r.load_s);
  out.set("peak_rss_mb", r.peak_rss_mb);
  if (r.device) {
    out.set("device_memory_mb", r.device->memory_mb);
    out.set("copy_gbps", r.memory_gbps);
    out.set("products", r.device->products);
    out.set("products_tflops", r.gflops / 1e3);
  } else {
    out.set("read_gbps", r.memory_gbps);
    out.set("fma_gflops", r.gflops);
  }
  out.set("decode_roofline", r.decode_roofline());
  out.set("prefill_roofline", r.prefill_roofline());
  if (r.split) out.set("decode_step", split_json(*r.split));
  return out;
}

std::string report_text(const BenchReport& r) {
  const std::string place =
      r.device ? fmt::format("{} ({})", r.device->name, r.device->product) : fmt::format("{} threads", r.threads);
  std::string text =
      fmt::format("{}, {}, batch {}, prompt {}, {} decode steps, {} repetition{}\n\n", r.model, place, r.sizes.batch,
                  r.sizes.prompt, r.sizes.gen, r.sizes.reps, r.sizes.reps == 1 ? "" : "s");
  text += machine_text(r);
  text += load_text(r);
  text += fmt::format("prefill   {:.1f} tokens/s [{:.1f} to {:.1f}], {} of the {}\n", r.prompt_tps.median,
                      r.prompt_tps.low, r.prompt_tps.high, share_text(r, r.prefill_roofline()),
                      r.device ? "rate of " + r.device->products : "multiply-add rate");
  text += fmt::format("decode    {:.1f} tokens/s [{:.1f} to {:.1f}], {} of the {} bandwidth ({:.1f} MB a step)\n",
                      r.decode_tps.median, r.decode_tps.low, r.decode_tps.high, share_text(r, r.decode_roofline()),
                      r.device ? "copy" : "read", r.step_bytes / 1e6);
  if (r.split) text += split_text(*r.split);
  if (r.step_bytes <= static_cast<double>(r.cache_bytes))
    text += fmt::format("          (the {} caches hold all that a step moves, so memory is no limit here)\n",
                        r.device ? "device's" : "processor's");
  return text;
}

}  // namespace coluber::cli
