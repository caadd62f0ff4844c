// SPDX-License-Identifier: Apache-2.0
#include "tensor/launch_times.h"

#include "base/error.h"
#include "base/log.h"
#include "tensor/cuda_device.h"

namespace coluber {
namespace {

// 60 to 80 us each on an H200, 15 ms and more in all: a step of 500 operations is launched in 5.
constexpr int64_t kFilledBytes = int64_t{256} << 20;
constexpr int kFills = 200;

}  // namespace

LaunchTimes::LaunchTimes(CudaDevice& device) : device_(device) {
  device_.use();
  memory_ = device_.allocate(kFilledBytes);
}

LaunchTimes::~LaunchTimes() {
  if (device_.launch_times() == this) device_.note_launches(nullptr);
  device_.deallocate(memory_, kFilledBytes);
  for (void* event : events_)
    if (const CudaStatus status = device_.api().destroy_event(event)) log_warn("cannot give back an event: {}", status);
}

void LaunchTimes::keep_busy() {
  for (int i = 0; i < kFills; ++i) device_.fill(memory_, std::byte{0}, kFilledBytes);
}

void* LaunchTimes::next_event() {
  const size_t used = operations_.size() + 1;
  if (events_.size() < used) {
    void* event = nullptr;
    check_cuda(device_.api().create_event(&event), "make an event");
    events_.push_back(event);
  }
  return events_[used - 1];
}

void LaunchTimes::before() {
  if (!operations_.empty()) return;
  void* event = next_event();
  keep_busy();
  check_cuda(device_.api().record_event(event, device_.stream()), "record an event");
}

void LaunchTimes::after(const char* operation) {
  operations_.emplace_back(operation);
  check_cuda(device_.api().record_event(next_event(), device_.stream()), "record an event");
}

std::map<std::string, double> LaunchTimes::take() {
  device_.synchronize();
  std::map<std::string, double> times;
  for (size_t i = 0; i < operations_.size(); ++i) {
    double us = 0;
    check_cuda(device_.api().elapsed_us(events_[i], events_[i + 1], &us), "read an event");
    times[operations_[i]] += us;
  }
  operations_.clear();
  return times;
}

}  // namespace coluber
