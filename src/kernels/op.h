// SPDX-License-Identifier: Apache-2.0
//
// An operation is a contract (args struct and function type), a table of candidates, best first, and one chosen
// candidate. Selection happens once, at the first use, is logged, and can be forced:
// COLUBER_FORCE_IMPL=selective_scan=ref,gemm=avx2. Tests and benchmarks walk `candidates()`;
// `selected_implementations()` lists what has been chosen so far.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_features.h"

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
  auto operator()(Args&&... args) const {
    return selected().function(std::forward<Args>(args)...);
  }

 private:
  const char* name_;
  std::vector<Candidate<Function>> candidates_;  // best first, the reference last
  mutable std::once_flag once_;
  mutable size_t chosen_ = 0;
};

}  // namespace coluber
