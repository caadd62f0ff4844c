// SPDX-License-Identifier: Apache-2.0
//
// What one step does: which rows run how many tokens, which slot each reads at which position and writes at which. The
// runner checks every read against the state's tag before anything is computed.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sequence.h"

namespace coluber {

// kLargest: those of the last token, of which only the largest counts.
enum class WantedLogits { kNone, kLargest, kLast, kAll };

struct PlanRow {
  Sequence* sequence = nullptr;
  int64_t num_tokens = 0;  // scheduled in this step
  int32_t read_slot = 0;
  int64_t read_position = 0;  // 0: starts from zeros, the slot is not read
  int32_t write_slot = 0;
  int64_t write_position = 0;
  WantedLogits logits = WantedLogits::kLast;
};

struct StepPlan {
  std::vector<PlanRow> rows;
  int64_t num_tokens = 0;

  void clear() {
    rows.clear();
    num_tokens = 0;
  }
  // Adds the next `num_tokens` uncomputed tokens of a sequence that owns its cache.
  void add(Sequence& sequence, int64_t tokens, WantedLogits logits);
};

}  // namespace coluber
