// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/bench_report.h"

#include <gtest/gtest.h>

namespace coluber::cli {
namespace {

BenchReport report() {
  BenchReport r;
  r.model = "models/a";
  r.sizes = {.prompt = 100, .gen = 8, .batch = 2, .reps = 1};
  r.threads = 6;
  r.memory_gbps = 50;
  r.gflops = 400;
  r.cache_bytes = 1 << 20;
  r.prompt_tps = {1000, 900, 1100};
  r.decode_tps = {20, 19, 21};
  r.step_bytes = 1e9;
  r.prefill_flops = 8e9;
  return r;
}

BenchReport device_report() {
  BenchReport r = report();
  r.device = BenchDevice{"cuda:1", "Some GPU", "bfloat16 products by mma.sync", 3000};
  r.memory_gbps = 4000;
  r.gflops = 500e3;
  return r;
}

TEST(BenchReport, SharesAreOfTheRatesThatAreTold) {
  EXPECT_DOUBLE_EQ(report().decode_roofline(), 10 * 1e9 / 50e9);   // ten steps a second
  EXPECT_DOUBLE_EQ(report().prefill_roofline(), 5 * 8e9 / 400e9);  // five batches of prompts a second
  EXPECT_DOUBLE_EQ(device_report().decode_roofline(), 10 * 1e9 / 4000e9);
  EXPECT_DOUBLE_EQ(device_report().prefill_roofline(), 5 * 8e9 / 500e12);
}

TEST(BenchReport, OfTheProcessorTellsItsThreadsAndRates) {
  const Json json = report_json(report());
  EXPECT_EQ(json.find("threads")->as_int(), 6);
  EXPECT_EQ(json.find("read_gbps")->as_double(), 50);
  EXPECT_EQ(json.find("fma_gflops")->as_double(), 400);
  EXPECT_EQ(json.find("device"), nullptr);
  EXPECT_EQ(json.find("copy_gbps"), nullptr);
  EXPECT_EQ(report_text(report()),
            "models/a, 6 threads, batch 2, prompt 100, 8 decode steps, 1 repetition\n\n"
            "machine   reads 50.00 GB/s, multiplies and adds 400.0 GFLOP/s (float32)\n"
            "load      0.00 s, peak memory 0 MB\n"
            "prefill   1000.0 tokens/s [900.0 to 1100.0], 10 % of the multiply-add rate\n"
            "decode    20.0 tokens/s [19.0 to 21.0], 20 % of the read bandwidth (1000.0 MB a step)\n");
}

TEST(BenchReport, OfADeviceTellsNothingOfTheProcessorsRates) {
  const Json json = report_json(device_report());
  for (const char* name : {"threads", "read_gbps", "fma_gflops"}) EXPECT_EQ(json.find(name), nullptr) << name;
  EXPECT_EQ(json.find("device")->as_string(), "cuda:1");
  EXPECT_EQ(json.find("device_name")->as_string(), "Some GPU");
  EXPECT_EQ(json.find("copy_gbps")->as_double(), 4000);
  EXPECT_EQ(json.find("products_tflops")->as_double(), 500);
  EXPECT_EQ(json.find("products")->as_string(), "bfloat16 products by mma.sync");
  EXPECT_EQ(json.find("device_memory_mb")->as_double(), 3000);
  EXPECT_EQ(report_text(device_report()),
            "models/a, cuda:1 (Some GPU), batch 2, prompt 100, 8 decode steps, 1 repetition\n\n"
            "device    copies 4000 GB/s (read and written), bfloat16 products by mma.sync 500.0 TFLOP/s\n"
            "load      0.00 s, peak memory 0 MB of the host, 3000 MB of the device in use\n"
            "prefill   1000.0 tokens/s [900.0 to 1100.0], 0.0 % of the rate of bfloat16 products by mma.sync\n"
            "decode    20.0 tokens/s [19.0 to 21.0], 0.2 % of the copy bandwidth (1000.0 MB a step)\n");
}

TEST(BenchReport, TellsWhereACacheHoldsTheStep) {
  BenchReport r = device_report();
  EXPECT_EQ(report_text(r).find("caches hold"), std::string::npos);
  r.step_bytes = 1 << 20;
  EXPECT_NE(report_text(r).find("the device's caches hold all"), std::string::npos);
}

}  // namespace
}  // namespace coluber::cli
