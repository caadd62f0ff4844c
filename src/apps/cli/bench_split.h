// SPDX-License-Identifier: Apache-2.0
//
// What a decode step on a CUDA device goes to: products with weights, states (convolutions and attention among them),
// other operations, and what is no operation: work of the host, logits on their way to it, gaps. For `coluber bench`.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/json.h"

namespace coluber::cli {

enum class StepPart { kProjections, kStates, kOther };
// Of an operation by its name (kernels/op.h).
StepPart step_part_of(std::string_view operation);

struct StepSplit {
  double step_us = 0.0;  // a whole step, from one token to the next
  std::map<std::string, double> operations_us;

  double us(StepPart part) const;
  // No operation's. Operations that are timed apart may come to more than a step in which they overlap: then 0.
  double rest_us() const;
};

Json split_json(const StepSplit& split);
std::string split_text(const StepSplit& split);

}  // namespace coluber::cli
