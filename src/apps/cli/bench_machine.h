// SPDX-License-Identifier: Apache-2.0
//
// What the processor, or the CUDA device that a model runs on, can do: measured before the model is and after each
// repetition, since neighbours come and go. Keeps the books of peak memory, in which the probes' own buffers have no
// place. One thread, that of the engine's steps.
#pragma once

#include <string_view>
#include <vector>

#include "tensor/cuda_device.h"

namespace coluber::cli {

class BenchMachine {
 public:
  // `device`: as Engine::device names it; `threads` count on the CPU alone.
  BenchMachine(std::string_view device, int threads);

  void measure();
  // Called where sequences hold what they need most; not timed.
  void note_memory();

  // Null: the processor.
  CudaDevice* device() const { return device_; }
  double peak_memory_mb() const { return peak_mb_; }           // of the process, of all that ran between probes
  double device_memory_mb() const { return device_peak_mb_; }  // in use on the device, whoever uses it
  // 1e9 bytes a second, of every measurement: reads of the processor, copies of a device, read and written.
  const std::vector<double>& memory_gbps() const { return memory_gbps_; }
  // 1e9 operations a second: float32 multiply-adds of the processor, kDeviceProducts of a device.
  const std::vector<double>& gflops() const { return gflops_; }

 private:
  CudaDevice* device_ = nullptr;
  int threads_;
  double peak_mb_ = 0.0, device_peak_mb_ = 0.0;
  std::vector<double> memory_gbps_, gflops_;
};

}  // namespace coluber::cli
