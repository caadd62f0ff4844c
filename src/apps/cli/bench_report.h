// SPDX-License-Identifier: Apache-2.0
//
// What `coluber bench` tells, for a person and for a program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/cli/bench_split.h"
#include "base/json.h"

namespace coluber::cli {

struct BenchSizes {
  int64_t prompt = 512;
  int64_t gen = 64;
  int64_t batch = 1;
  int64_t reps = 3;
};

struct Spread {
  double median = 0.0, low = 0.0, high = 0.0;
};

// The CUDA device that the model ran on.
struct BenchDevice {
  std::string name;      // "cuda:0"
  std::string product;   // "NVIDIA H200"
  std::string products;  // which rate of products is measured
  double memory_mb = 0.0;
};

struct BenchReport {
  std::string model;
  BenchSizes sizes;
  std::optional<BenchDevice> device;  // none: the processor
  int threads = 0;                    // of the processor
  double load_s = 0.0, peak_rss_mb = 0.0;
  double memory_gbps = 0.0;  // the processor's reads; a device's copies, read and written
  double gflops = 0.0;       // the processor's float32 multiply-adds; a device's `products`
  int64_t cache_bytes = 0;   // of the processor or the device: what needs no memory
  Spread prompt_tps, decode_tps;
  double step_bytes = 0.0;         // that one decode step must move
  double prefill_flops = 0.0;      // of the prompts of a batch
  std::optional<StepSplit> split;  // of a decode step on a device

  // Shares of the two rates above.
  double decode_roofline() const;
  double prefill_roofline() const;
};

Json report_json(const BenchReport& report);
std::string report_text(const BenchReport& report);

}  // namespace coluber::cli
