// SPDX-License-Identifier: Apache-2.0
//
// A fixed set of threads for fork-join loops inside kernels. The caller is thread 0. Workers spin briefly for the next
// loop, then park. Each thread starts with its own contiguous share of the chunks, so that the same thread meets the
// same heads every step; a thread that is done takes chunks from the others, and the join waits only for chunks that
// have been taken: a core that a neighbour process holds costs that core, never the others. One loop at a time; loops
// do not nest; bodies do not throw.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace coluber {

class ThreadPool {
 public:
  // `num_threads` counts the caller. `pin` ties worker i to the i-th allowed core. Throws Error(kInvalidArgument)
  // below 1.
  explicit ThreadPool(int num_threads, bool pin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const noexcept;

  // Calls body(begin, end, thread) over [0, n) in chunks of `grain` (the last may be shorter), each chunk once.
  // `thread` < size() and no two bodies run at once with the same `thread`.
  template <typename Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) {
    if (n <= 0) return;
    using Plain = std::remove_reference_t<Body>;
    run(
        n, grain,
        [](void* context, int64_t begin, int64_t end, int thread) {
          (*static_cast<Plain*>(context))(begin, end, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Function = void (*)(void* context, int64_t begin, int64_t end, int thread);
  void run(int64_t n, int64_t grain, Function function, void* context);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Cores this process may run on (affinity and cgroup quota), at least 1.
int usable_cores();

}  // namespace coluber
