// SPDX-License-Identifier: Apache-2.0
//
// What the recurrent mixers share: a layer's name from its loader, checks of a configuration that report all problems
// at once, the slots that a step's metadata names as the kernels read them, and the checks of a step that come before
// any kernel. Pure functions over borrowed data.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "coluber/attention_metadata.h"
#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/conv/causal_conv1d.h"
#include "kernels/conv/conv_windows.h"
#include "kernels/state_slots.h"
#include "layers/weight_loader.h"

namespace coluber {

// The loader's prefix without its last dot: "model.layers.2.mixer".
std::string layer_name_of(const WeightLoader& loader);

// Throws Error(kInvalidConfig) where so many tensor-parallel ranks cannot hold as many of the layer's `heads` each;
// `may_repeat`: one head may be held by several.
void expect_even_shares(const AttentionLayerBase& layer, const char* heads, int64_t count, int64_t ranks,
                        bool may_repeat = false);

// Collects what is wrong with a layer's sizes; `finish` throws one Error(kInvalidConfig) that lists all of it.
class SizeChecks {
 public:
  void expect(bool fine, const std::string& message) {
    if (!fine) problems_ += "\n  " + message;
  }
  void expect_positive(const char* what, int64_t value);
  void expect_between(const char* what, int64_t value, int64_t low, int64_t high);
  void finish(const char* kind, const WeightLoader& loader) const;

 private:
  std::string problems_;
};

// A convolution's weight [C, 1, W] as the kernels read it, [W, C].
std::vector<float> read_conv_weight(WeightLoader& loader, std::string_view name, int64_t channels, int64_t width);
FloatArray take_conv_weight(WeightLoader& loader, std::string_view name, int64_t channels, int64_t width);

// A layer's state (a view from kv_cache()) as kernels find its slots: `indices` [R] are read and written in place;
// `has_initial_state` [R], null where every row has one.
StateSlots slots_in(const TensorView& state, const int32_t* indices, const uint8_t* has_initial_state);
// Rows [0, num_decodes) are tokens [0, num_decodes); the prefills' tokens follow.
StateSlots decode_slots(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state);
StateSlots prefill_slots(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state);

// A step's rows for one state: decodes of a token each, from the first token on, then prefills.
struct StepRows {
  int64_t decodes = 0;
  StateSlots decode_slots;
  int64_t prefills = 0;
  StateSlots prefill_slots;
  int64_t first_prefill_token = 0;          // that prefill_starts are counted from
  const int32_t* prefill_starts = nullptr;  // [prefills + 1]
};

StepRows step_rows(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state);

// The states that the step wants from inside its prefills; none where it wants none.
StateExports prefill_exports(const Execution& on, const PrefillExports& exports);
// The windows of a convolution at those places, before the convolution. `args` says everything but rows and state, from
// the step's first token on.
void export_windows(const Execution& on, ConvWindowsArgs args, const StepRows& rows, const StateExports& exports);
// The same where a step's state is the last `taps` of x [T, channels]: of those before each place that it wants.
void export_windows(const Execution& on, const BaseMambaAttentionMetadata& metadata, const TensorView& state,
                    const float* x, int64_t channels, int64_t taps);
// A causal convolution of the rows, and its windows at the places of `exports`. `args` says everything but rows and
// state, from the step's first token on.
void convolve_rows(CausalConv1dArgs args, const StepRows& rows, const StateExports& exports, const Execution& on);
void convolve_rows(CausalConv1dArgs args, const BaseMambaAttentionMetadata& metadata, const TensorView& state,
                   const Execution& on);

// Of a tensor [T, width]: tokens from `computed` on pad the batch; they have no row, and nothing else writes theirs.
void zero_padding(const ForwardBatch& batch, int64_t computed, float* values, int64_t width);

// Throws Error(kInternal) where the layer has no cache, its states are not whole on this rank (`state_elements`: of
// each state), or the step asks for what these layers do not do: several tokens a decode row, more tokens than the
// batch has. Allocates nothing.
void check_step(const MambaBase& layer, std::span<const int64_t> state_elements,
                const BaseMambaAttentionMetadata& metadata, int64_t num_tokens);
void check_bound(const MambaBase& layer, std::span<const int64_t> state_elements);
inline void check_step(const MambaBase& layer, std::initializer_list<int64_t> state_elements,
                       const BaseMambaAttentionMetadata& metadata, int64_t num_tokens) {
  check_step(layer, std::span(state_elements.begin(), state_elements.size()), metadata, num_tokens);
}
inline void check_bound(const MambaBase& layer, std::initializer_list<int64_t> state_elements) {
  check_bound(layer, std::span(state_elements.begin(), state_elements.size()));
}

}  // namespace coluber
