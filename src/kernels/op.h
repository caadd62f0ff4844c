// SPDX-License-Identifier: Apache-2.0
//
// An operation is a contract (args struct and function type), a table of candidates, best first, and one chosen
// candidate. Selection happens once, at the first use, is logged, and can be forced:
// COLUBER_FORCE_IMPL=selective_scan=ref,gemm=avx2. Tests and benchmarks walk `candidates()`;
// `selected_implementations()` lists what has been chosen so far. On a CUDA device an operation has one function, which
// libcoluber_cuda.so exports under its name (tensor/cuda_api.h), or none.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "coluber/execution.h"
#include "tensor/cuda_api.h"
#include "tensor/workspace.h"

namespace coluber {

template <typename Function>
struct Candidate {
  const char* name;  // "avx512_bf16", "avx512", "avx2", "ref"
  Isa isa;           // the tier that it needs
  Function function;
};

struct Selection {
  std::string operation;
  std::string implementation;
};

// Index of the first candidate that this machine can run and that is not ruled out by COLUBER_FORCE_IMPL. Throws
// Error(kInvalidArgument) where a forced name is unknown or cannot run here. Records the choice.
size_t select_candidate(std::string_view operation, std::span<const char* const> names, std::span<const Isa> isas);
std::vector<Selection> selected_implementations();

// The operation's function on CUDA devices. Throws Error(kUnsupported) where there is none.
CudaOperation find_cuda_operation(const char* operation);
// `args` as that function takes them. Throws Error(kDevice) with what went wrong.
void launch_on_cuda(const char* operation, CudaOperation function, const void* args, const Execution& on);

template <typename Function>
class Operation {
 public:
  Operation(const char* name, std::vector<Candidate<Function>> candidates)
      : name_(name), candidates_(std::move(candidates)) {}

  const char* name() const noexcept { return name_; }
  const std::vector<Candidate<Function>>& candidates() const noexcept { return candidates_; }
  const Candidate<Function>& reference() const noexcept { return candidates_.back(); }
  const Candidate<Function>& selected() const {
    std::call_once(once_, [this] {
      std::vector<const char*> names;
      std::vector<Isa> isas;
      for (const auto& candidate : candidates_) {
        names.push_back(candidate.name);
        isas.push_back(candidate.isa);
      }
      chosen_ = select_candidate(name_, names, isas);
    });
    return candidates_[chosen_];
  }
  template <typename... Args>
    requires std::is_invocable_v<Function, Args...>
  auto operator()(Args&&... args) const {
    return selected().function(std::forward<Args>(args)...);
  }
  // Where a step runs. On a device it returns before the work is done.
  template <typename Args>
  void operator()(const Args& args, const Execution& on) const {
    if (on.cuda != nullptr) {
      std::call_once(cuda_once_, [this] { cuda_ = find_cuda_operation(name_); });
      launch_on_cuda(name_, cuda_, &args, on);
    } else if constexpr (std::is_invocable_v<Function, const Args&, ThreadPool&, Workspace&>) {
      selected().function(args, *on.thread_pool, *on.workspace);
    } else {
      selected().function(args, *on.thread_pool);
    }
  }

 private:
  const char* name_;
  std::vector<Candidate<Function>> candidates_;  // best first, the reference last
  mutable std::once_flag once_;
  mutable size_t chosen_ = 0;
  mutable std::once_flag cuda_once_;
  mutable CudaOperation cuda_ = nullptr;
};

}  // namespace coluber
