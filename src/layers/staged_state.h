// SPDX-License-Identifier: Apache-2.0
//
// A layer's state as its kernels take it, for the rows of one call: floating-point states are read and written where
// they lie; states of whole numbers are expanded to float32 in the step's workspace before the kernel and rounded back
// by `write_back` after it, states exported from inside rows included. The one place where codes and scales meet a
// mixer. Lives in the forward's workspace scope and allocates nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/state/state_codec.h"
#include "kernels/state_slots.h"

namespace coluber {

class StagedState {
 public:
  // `slots` are the rows' in kv_cache()[state]. A row without tokens keeps its state, or gets zeros where it is fresh.
  StagedState(const MambaBase& layer, const ForwardBatch& batch, size_t state, const StateSlots& slots, int64_t rows,
              const StateExports& exports = {});

  const StateSlots& slots() const noexcept { return slots_; }
  const StateExports& exports() const noexcept { return exports_; }
  // After the kernel. Nothing to do for states that are no whole numbers.
  void write_back() const;

 private:
  void stage(const MambaBase& layer, size_t state, const StateSlots& slots);

  const ForwardBatch& batch_;
  StateSlots slots_;
  StateExports exports_;
  StateCodecArgs codec_;                   // rows 0: not staged
  const int32_t* export_slots_ = nullptr;  // in the cache
  int64_t num_exports_ = 0;
};

}  // namespace coluber
