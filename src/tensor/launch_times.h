// SPDX-License-Identifier: Apache-2.0
//
// How long each operation of a step takes on a CUDA device, for benchmarks: while a device is told to note its launches
// here (CudaDevice::note_launches), steps run kernel by kernel and an event follows each operation. The device is kept
// busy before the first of a step, so that the host is ahead of it and no time is that of launching; what an operation
// gains by beginning before the one in front of it has ended is lost. Owns its events and 256 MiB of the device; one
// thread, that of the steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensor/cuda_api.h"

namespace coluber {

class CudaDevice;

class LaunchTimes {
 public:
  explicit LaunchTimes(CudaDevice& device);
  ~LaunchTimes();
  LaunchTimes(const LaunchTimes&) = delete;
  LaunchTimes& operator=(const LaunchTimes&) = delete;

  // Around an operation's launches.
  void before();
  void after(const char* operation);
  // Waits for the device. Microseconds of each operation of the step, all its calls together; the next call of `before`
  // begins a new step.
  std::map<std::string, double> take();

 private:
  void* next_event();
  void keep_busy();

  CudaDevice& device_;
  void* memory_ = nullptr;
  std::vector<void*> events_;            // the first one precedes all operations
  std::vector<std::string> operations_;  // that end at the others
};

}  // namespace coluber
