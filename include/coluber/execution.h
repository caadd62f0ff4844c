// SPDX-License-Identifier: Apache-2.0
//
// Where a step's operations run and take their scratch memory: on threads or, with `cuda`, on a CUDA device. Operations
// (kernels/op.h) take it beside their arguments, so that one forward serves both. Owns nothing; one step at a time.
#pragma once

namespace coluber {

class CudaStep;
class ThreadPool;
class Workspace;

struct Execution {
  ThreadPool* thread_pool = nullptr;
  Workspace* workspace = nullptr;  // of memory that the operations can reach
  CudaStep* cuda = nullptr;        // null: on the CPU
};

}  // namespace coluber
