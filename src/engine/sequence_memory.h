// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler asks of memory. StateCache answers it with pools and a prefix tree; tests and simulations may
// answer it with less. One thread.
#pragma once

#include <cstdint>

#include "engine/sequence.h"

namespace coluber {

class SequenceMemory {
 public:
  virtual ~SequenceMemory() = default;
  // Gives a waiting sequence its slot and what is cached or parked of it. False, with nothing changed, where that
  // cannot be had now.
  virtual bool start(Sequence& sequence) = 0;
  // The sequence will start as soon as it can: others may keep what it shares with them.
  virtual void expect(const Sequence&) {}
  // Pages for `num_tokens` tokens in all. False, with nothing changed, where they cannot be had now.
  virtual bool grow(Sequence& sequence, int64_t num_tokens) = 0;
  // Where a chunk that could reach `end` tokens ends: there, or earlier where a state is to be kept.
  virtual int64_t chunk_end(const Sequence& sequence, int64_t end) const = 0;
  // Frees what the sequence holds; it can be started again.
  virtual void preempt(Sequence& sequence) = 0;
  // Differs from an earlier value where something became free since: whoever could not start may now.
  virtual uint64_t times_freed() const noexcept = 0;
};

}  // namespace coluber
