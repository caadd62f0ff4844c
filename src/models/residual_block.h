// SPDX-License-Identifier: Apache-2.0
//
// The block of most decoders: halves of the form x = x + sum of out_i * layer_i(in_i * norm(x)), one after the other;
// a half has one layer, or several side by side. A family says which layers; the loop is here. Not for blocks whose
// residual is anything but this sum. Owns its layers; one forward at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "coluber/model.h"
#include "layers/norm.h"
#include "models/decoder.h"

namespace coluber {

struct BranchMultipliers {
  double in = 1;
  double out = 1;
};

class ResidualBlock final : public DecoderBlock {
 public:
  explicit ResidualBlock(int64_t hidden_size) : hidden_size_(hidden_size) {}

  // The layers that are added from here on read what this norm gives.
  void begin_half(std::variant<RmsNorm, LayerNorm> norm) { halves_.push_back({std::move(norm), {}}); }

  // A layer with forward(batch, x, y, accumulate). `kind` is what `inspect` shows ("mamba2"). A layer with a cache
  // knows its name; `name` is for the others.
  template <typename Layer>
  void add(std::string kind, std::unique_ptr<Layer> layer, BranchMultipliers multipliers = {}, std::string name = {}) {
    LayerInfo info{std::move(name), std::move(kind), nullptr};
    if constexpr (std::is_base_of_v<AttentionLayerBase, Layer>) {
      info.name = layer->layer_name();
      info.cache = layer.get();
    }
    add_as({std::move(info)}, std::move(layer), multipliers);
  }
  // The same for a layer that is made of several with caches.
  template <typename Layer>
  void add_as(std::vector<LayerInfo> infos, std::unique_ptr<Layer> layer, BranchMultipliers multipliers = {}) {
    std::shared_ptr<Layer> shared = std::move(layer);
    add_branch(std::move(infos), multipliers,
               [shared](const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
                 shared->forward(batch, x, y, accumulate);
               });
  }

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override;
  void describe(std::vector<LayerInfo>& layers) const override;

 private:
  // y [T, D] from x [T, D], added to it with `accumulate`.
  using Run = std::function<void(const ForwardBatch& batch, const float* x, float* y, bool accumulate)>;
  struct Branch {
    std::vector<LayerInfo> infos;
    BranchMultipliers multipliers;
    Run run;
  };
  struct Half {
    std::variant<RmsNorm, LayerNorm> norm;
    std::vector<Branch> branches;
  };
  void add_branch(std::vector<LayerInfo> infos, BranchMultipliers multipliers, Run run);
  void run_branch(const ForwardBatch& batch, const Branch& branch, const float* normed, float* x) const;

  int64_t hidden_size_;
  std::vector<Half> halves_;
};

}  // namespace coluber
