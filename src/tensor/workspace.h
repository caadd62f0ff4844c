// SPDX-License-Identifier: Apache-2.0
//
// Scratch memory of one step, on the host or a device: a bump arena. Grows while sizes are new (warm-up), then never
// again: `reset` folds what was needed into one block. Not thread-safe: taken by the step's thread before a parallel
// loop, used inside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/device.h"

namespace coluber {

class Workspace {
 public:
  explicit Workspace(Device& device = cpu_device()) : device_(device) {}

  // 64-byte aligned, not initialised; valid until the enclosing WorkspaceScope ends or `reset`.
  template <typename T>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(count * static_cast<int64_t>(sizeof(T))));
  }
  void* take_bytes(int64_t bytes);
  void reset();
  int64_t capacity_bytes() const noexcept;

 private:
  friend class WorkspaceScope;
  struct Free {
    Device* device;
    int64_t bytes;
    void operator()(std::byte* memory) const noexcept { device->deallocate(memory, bytes); }
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    int64_t size = 0;
    int64_t used = 0;
  };
  Block allocate(int64_t size);

  Device& device_;
  std::vector<Block> blocks_;
  size_t current_ = 0;
};

// Gives back what was taken since it was made.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(Workspace& workspace);
  ~WorkspaceScope();
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;

 private:
  Workspace& workspace_;
  size_t block_;
  int64_t used_;
};

}  // namespace coluber
