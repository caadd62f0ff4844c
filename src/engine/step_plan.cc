// SPDX-License-Identifier: Apache-2.0
#include "engine/step_plan.h"

#include "base/error.h"

namespace coluber {

void StepPlan::add(Sequence& sequence, int64_t tokens, WantedLogits logits) {
  COLUBER_CHECK(tokens > 0 && tokens <= sequence.num_uncomputed(), "planned {} of {} uncomputed tokens", tokens,
                sequence.num_uncomputed());
  PlanRow row;
  row.sequence = &sequence;
  row.num_tokens = tokens;
  row.read_slot = sequence.state_slot;
  row.read_position = sequence.num_computed_tokens;
  row.write_slot = sequence.state_slot;
  row.write_position = sequence.num_computed_tokens + tokens;
  row.logits = logits;
  rows.push_back(row);
  num_tokens += tokens;
}

}  // namespace coluber
