// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

namespace coluber {

// Seconds of the processor that the calling thread has had: what others on the machine do is not in them.
inline double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace coluber
