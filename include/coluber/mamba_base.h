// SPDX-License-Identifier: Apache-2.0
//
// The layer contract. A layer with a cache derives from `AttentionLayerBase`; a recurrent one from `MambaBase`, which
// declares its state and never owns memory: the cache allocates pages and `bind_kv_cache` hands the layer typed views
// into them. The names are vLLM's, letter for letter. Layers are made and bound on one thread, and read by many.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/backend.h"
#include "coluber/config.h"
#include "coluber/kv_cache_spec.h"
#include "coluber/tensor_view.h"

namespace coluber {

class ThreadPool;

// How a kernel orders the elements of a state inside its contract shape. Part of the layout tag; undone by
// `unpack_state` wherever a state leaves the engine.
enum class StateLaneOrder : uint8_t {
  kContract,        // row-major in the declared shape
  kChannelBlock16,  // [C, N] held as [C/16][N][16]; the last block is C % 16 wide
  kHeadBlock16,     // [H, C, N]: each head's [C, N] as kChannelBlock16
};

// How a state of the whole model is shared out over tensor-parallel ranks: along one axis of its contract shape, part
// by part (a convolution's channels are those of several projections, side by side).
struct StateSplit {
  struct Part {
    int64_t size = 0;         // along the axis, in the whole state
    int64_t units = 1;        // equal pieces that stay whole (heads, groups)
    bool may_repeat = false;  // where there are more ranks than units, several hold the same one
    bool operator==(const Part&) const = default;
  };
  int axis = 0;
  std::vector<Part> parts;  // none: every rank holds the whole state
  bool operator==(const StateSplit&) const = default;
};

// One state as its layer declares it; what `MambaBase::declared_states` puts together.
struct DeclaredState {
  std::string name;
  Shape shape;
  DType dtype{};
  StateLaneOrder order = StateLaneOrder::kContract;
  StateSplit split;
  int scales = -1;         // of whole numbers: which state holds their scales
  bool is_scales = false;  // of another state
};

// Where the scales of states lie: of each state the index of the one that holds its scales, or -1. States of whole
// numbers (int16, int8) are scaled where there is a float32 state for each of them behind all others, in the same
// order.
std::vector<int> find_state_scales(const std::vector<Shape>& shapes, const std::vector<DType>& dtypes);

class AttentionLayerBase {
 public:
  explicit AttentionLayerBase(std::string layer_name) : layer_name_(std::move(layer_name)) {}
  virtual ~AttentionLayerBase() = default;
  AttentionLayerBase(const AttentionLayerBase&) = delete;
  AttentionLayerBase& operator=(const AttentionLayerBase&) = delete;

  const std::string& layer_name() const noexcept { return layer_name_; }
  int layer_index() const noexcept { return layer_index_; }  // place in EngineConfig::layers; -1 before registration
  virtual bool supports_dcp() const noexcept { return true; }
  virtual const AttentionBackend& get_attn_backend() const = 0;
  virtual KVCacheSpec get_kv_cache_spec(const EngineConfig& config) const = 0;
  // `page` is the layer's pages as bytes, [B, 1, 1, C]; the block stride may be any number >= C.
  virtual void bind_kv_cache(const TensorView& page) = 0;

 private:
  friend struct EngineConfig;
  std::string layer_name_;
  int layer_index_ = -1;
};

class MambaBase : public AttentionLayerBase {
 public:
  using AttentionLayerBase::AttentionLayerBase;

  // One view a state; dimension 0 is the physical block, its stride the distance between blocks.
  const std::vector<TensorView>& kv_cache() const noexcept { return kv_cache_; }

  // Local to the rank; (conv, recurrent) where both exist, then the scales of states of whole numbers. Orders, names
  // and splits below are those of the states before the scales.
  virtual std::vector<Shape> get_state_shape() const = 0;
  virtual std::vector<DType> get_state_dtype() const = 0;  // same order and length
  virtual MambaAttentionBackendEnum mamba_type() const = 0;
  virtual std::string_view custom_backend() const noexcept { return {}; }  // CUSTOM only: the registered backend's name
  virtual std::vector<StateLaneOrder> get_state_lane_order() const;        // default: kContract for every state
  // What each state is called where it leaves the engine ("conv", "recurrent", "att_shift"). The default: (conv,
  // recurrent) or what of it the `mamba_type` has; CUSTOM states are numbered.
  virtual std::vector<std::string> get_state_names() const;
  virtual bool is_kv_cache_tp_replicated() const noexcept { return false; }
  // How states whose whole shapes are `whole` (those of tensor_parallel_size 1) are shared out. The default follows the
  // `mamba_type`; states of CUSTOM layers are not split.
  virtual std::vector<StateSplit> get_state_split(const std::vector<Shape>& whole) const;
  bool supports_dcp() const noexcept override { return false; }
  virtual std::optional<int64_t> get_prefill_checkpoint_alignment() const { return std::nullopt; }
  // Every state with all that is said of it, scales included ("recurrent.scale").
  std::vector<DeclaredState> declared_states() const;
  // How a bound state of whole numbers is kept: the place of its scales in kv_cache(), -1 for other states.
  int scales_of(size_t state) const noexcept { return state < scales_.size() ? scales_[state] : -1; }
  StateLaneOrder bound_lane_order(size_t state) const noexcept {
    return state < orders_.size() ? orders_[state] : StateLaneOrder::kContract;
  }
  size_t num_bound_scales() const noexcept { return num_scales_; }

  // Replay (CacheConfig::use_replayssm): a layer that has it keeps a slot's last inputs in a ring of
  // replayssm_buffer_len places beside the states, and writes the states when the ring is full. Who steps the layer
  // counts the inputs.
  virtual bool supports_replayssm() const noexcept { return false; }
  virtual std::vector<Shape> get_replayssm_shape() const { return {}; }  // float32; empty: no ring
  // Writes the states of `slot` with its ring's `count` inputs in them: the ring is empty then.
  virtual void fold_replayssm(int32_t slot, int32_t count, ThreadPool& pool);
  const std::vector<TensorView>& replayssm_cache() const noexcept { return replayssm_cache_; }
  // As bind_kv_cache, for the ring.
  void bind_replayssm_cache(const TensorView& page, const std::vector<int64_t>& offsets);

  // Throws Error(kInvalidConfig) where the configuration has no mamba block size.
  KVCacheSpec get_kv_cache_spec(const EngineConfig& config) const override;
  const AttentionBackend& get_attn_backend() const override;
  // Packs the states back to back in the page (the contract's layout). Throws Error(kInvalidConfig) where an offset is
  // no multiple of a state's element size or the page is too small.
  void bind_kv_cache(const TensorView& page) override;
  // The engine's layout: each state at the offset given, in bytes.
  void bind_kv_cache(const TensorView& page, const std::vector<int64_t>& state_offsets);

 private:
  std::vector<TensorView> kv_cache_;
  std::vector<int> scales_;
  std::vector<StateLaneOrder> orders_;
  size_t num_scales_ = 0;
  std::vector<TensorView> replayssm_cache_;
};

// Byte offsets of states in a page, packed back to back (alignment 1: the contract) or each at a multiple of
// `alignment`. `total_bytes`, where given, receives the page bytes.
std::vector<int64_t> state_offsets(const std::vector<Shape>& shapes, const std::vector<DType>& dtypes,
                                   int64_t alignment, int64_t* total_bytes = nullptr);
// Views of each state over a byte page view [B, 1, 1, C]: the function behind bind_kv_cache.
std::vector<TensorView> bind_state_views(const TensorView& page, const std::vector<Shape>& shapes,
                                         const std::vector<DType>& dtypes, const std::vector<int64_t>& offsets);
// Writes one block's state as float32, row-major in its contract shape. `scales` are those of a state of whole numbers.
void unpack_state(const TensorView& block, StateLaneOrder order, float* out, const TensorView* scales = nullptr);

}  // namespace coluber
