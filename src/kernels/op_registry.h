// SPDX-License-Identifier: Apache-2.0
//
// The names of all operations that a program holds, known before any of them is used: each enters itself, one line
// beside its accessor, so that COLUBER_FORCE_IMPL can be checked at the start instead of being ignored where it names
// nothing. Choosing is op.h's. Entries are made while the program starts, on one thread; checks may come from any.
//
//   const RegisterOperations kEntered(causal_conv1d, causal_conv1d_update);
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace coluber {

struct OperationNames {
  std::string operation;
  std::vector<std::string> implementations;  // best first
  std::vector<Isa> isas;                     // the tier that each needs
};

// Asked for only when a check needs it: tables are made at their first use.
void enter_operation(std::function<OperationNames()> names);

class RegisterOperations {
 public:
  template <typename... Function>
  explicit RegisterOperations(const Operation<Function>& (*... accessor)()) {
    (enter_operation([accessor] { return names_of(accessor()); }), ...);
  }

 private:
  template <typename Function>
  static OperationNames names_of(const Operation<Function>& operation) {
    OperationNames names;
    names.operation = operation.name();
    for (const auto& candidate : operation.candidates()) {
      names.implementations.emplace_back(candidate.name);
      names.isas.push_back(candidate.isa);
    }
    return names;
  }
};

// Sorted by name.
std::vector<OperationNames> known_operations();
// Throws Error(kInvalidArgument) with everything that is wrong with COLUBER_FORCE_IMPL and COLUBER_FORCE_ISA: items
// that are none, operations and implementations that there are not, tiers that this run does not have.
void check_forced_implementations();

}  // namespace coluber
