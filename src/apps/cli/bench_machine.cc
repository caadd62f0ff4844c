// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/bench_machine.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "apps/cli/cli.h"
#include "kernels/roofline/device_roofline.h"
#include "kernels/roofline/roofline.h"

namespace coluber::cli {

BenchMachine::BenchMachine(std::string_view device, int threads) : threads_(threads) {
  if (const std::optional<int32_t> ordinal = cuda_ordinal(device)) device_ = &cuda_device(*ordinal);
}

void BenchMachine::measure() {
  const EndAtInterrupt guard;
  note_memory();
  if (device_ != nullptr) {
    memory_gbps_.push_back(copy_bandwidth(*device_) / 1e9);
    gflops_.push_back(product_rate(*device_) / 1e9);
  } else {
    memory_gbps_.push_back(measure_read_bandwidth(threads_));
    gflops_.push_back(measure_fma_gflops(threads_));
  }
  // The system's own peak starts anew after the probe.
  std::ofstream("/proc/self/clear_refs") << "5";
}

void BenchMachine::note_memory() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) peak_mb_ = std::max(peak_mb_, std::stod(line.substr(6)) * 1024.0 / 1e6);
  }
  if (device_ == nullptr) return;
  const int64_t used = device_->info().total_bytes - device_->free_bytes();
  device_peak_mb_ = std::max(device_peak_mb_, static_cast<double>(used) / 1e6);
}

}  // namespace coluber::cli
