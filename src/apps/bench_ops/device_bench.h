// SPDX-License-Identifier: Apache-2.0
//
// What the operations of coluber-bench-ops share: a case of the command line, a row of the table, and states that
// rotate through more memory than the second-level cache holds.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/roofline/device_timing.h"
#include "kernels/state_slots.h"
#include "tensor/cuda_device.h"

namespace coluber::bench_ops {

// So many states that launches in turn never find one in the second-level cache, a batch of shuffled slots a launch;
// never those of the launch before.
class RotatingStates {
 public:
  RotatingStates(CudaDevice& device, int64_t batch, int64_t slot_bytes, DType state);
  StateSlots slots(int64_t launch) const;
  int64_t launches() const noexcept;  // that a graph should hold

 private:
  int64_t batch_, slot_bytes_, num_slots_, sets_;
  DType state_;
  DeviceArray states_, indices_;
};

struct Row {
  std::string operation, shape, state;
  int64_t batch = 0;
  Timing timing;
  double useful_bytes = 0;  // state, inputs and outputs once each
  double useful_flops = 0;
  int64_t tokens = 1;  // of a sequence
};

// What the command line says of a case.
struct Case {
  int64_t batch = 256;
  DType state = DType::kFloat32;
  bool overlap = true;    // a launch reads its states while the one before it still runs
  int64_t tokens = 8192;  // of a sequence's prefill
};

}  // namespace coluber::bench_ops
