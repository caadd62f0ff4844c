// SPDX-License-Identifier: Apache-2.0
//
// A sequence of this engine as the content of a session file, and back. Knows the engine's layout; the file's is
// session_file.h's. Private to the engine folder.
#pragma once

#include <string>
#include <vector>

#include "cache/session_file.h"
#include "engine/load.h"
#include "engine/state_cache.h"

namespace coluber {

// How this engine keeps states and pages.
SessionLayout session_layout(const EngineConfig& config, const StateLayout& states, const AttentionLayout& attention);

// What the engine holds of a sequence. The image points into the engine's memory: write it before the next step.
SessionImage make_session_image(const LoadedModel& loaded, const StateCache& cache, const Sequence& sequence);

// The image comes to own its bytes: it may be written after any step.
void copy_bytes(SessionImage& image);

// Throws Error(kInvalidData, kInvalidConfig) naming the file and why it cannot go on here: another model, a share of a
// rank, states of another dtype, more tokens than the context holds.
void check_session_image(const LoadedModel& loaded, const StateCache& cache, const SessionImage& image,
                         const std::string& path);
// A checked image's states in a sequence that holds nothing. Throws Error(kResourceExhausted) where there is no memory
// for it; the sequence then holds nothing still.
void restore_session_image(const LoadedModel& loaded, StateCache& cache, const SessionImage& image, Sequence& sequence);

}  // namespace coluber
