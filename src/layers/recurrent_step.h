// SPDX-License-Identifier: Apache-2.0
//
// One step of a recurrent layer with RecurrentAttentionMetadata as the kernels read it: the rows of one token, then the
// others, each with its slot. Knows nothing of what is computed but the token shift, which several layers have. Lives
// while one forward runs.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "attention/recurrent_attention.h"
#include "coluber/model.h"
#include "kernels/state_slots.h"
#include "layers/recurrent_layer.h"
#include "layers/staged_state.h"

namespace coluber {

struct RecurrentRows {
  int64_t first_token = 0;
  int64_t rows = 0;
  const int32_t* query_start_loc = nullptr;  // [rows + 1] from first_token on; null: one token a row
};

class RecurrentStep {
 public:
  // Throws Error(kInternal) as check_step does.
  RecurrentStep(const MambaBase& layer, const ForwardBatch& batch, std::initializer_list<int64_t> state_elements);

  // Calls run(rows) for the rows of one token and for the others, where there are any.
  template <typename Run>
  void each(Run&& run) const {
    if (metadata_.num_decodes > 0) run(RecurrentRows{0, metadata_.num_decodes, nullptr});
    if (metadata_.num_prefills > 0)
      run(RecurrentRows{metadata_.num_decodes, metadata_.num_prefills, metadata_.query_start_loc_p.data()});
  }
  StateSlots slots(const RecurrentRows& rows, size_t state) const;
  // The places inside these rows whose states are wanted; none in rows of one token.
  StateExports exports(const RecurrentRows& rows) const;
  // The same for a state that may be of whole numbers.
  StagedState stage(const RecurrentRows& rows, size_t state) const {
    return StagedState(layer_, batch_, state, slots(rows, state), rows.rows, exports(rows));
  }
  // Of a tensor [T, width]: tokens that pad the batch have no row, and nothing else writes theirs.
  void zero_padding(float* values, int64_t width) const;
  // delta [T, cols]: the token before minus the token; `state` holds each row's last token.
  void token_shift(const float* x, int64_t cols, size_t state, float* delta) const;

 private:
  const MambaBase& layer_;
  const ForwardBatch& batch_;
  const RecurrentAttentionMetadata& metadata_;
};

}  // namespace coluber
