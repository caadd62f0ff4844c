// SPDX-License-Identifier: Apache-2.0
//
// What RWKV's layers share: the seam that a block calls them through, vectors that checkpoints store as [D], [1, 1, D]
// or [H, N], weights stored [in, out], and the small two-step products that make a token's own rates. Layers own their
// weights, never their states. Made and bound on one thread; one forward at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/mamba_base.h"
#include "coluber/model.h"
#include "kernels/wkv/time_mix.h"
#include "layers/linear.h"
#include "layers/recurrent_layer.h"
#include "layers/weight_loader.h"

namespace coluber {

class RwkvMixer : public MambaBase {
 public:
  using MambaBase::MambaBase;
  MambaAttentionBackendEnum mamba_type() const override { return MambaAttentionBackendEnum::kCustom; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return 1; }

  // x [T, hidden_size] to y [T, hidden_size], which do not overlap. `carry` [T, hidden_size] is what a layer of the
  // step hands to later ones (RWKV-7: the first layer's values), null where the kind has none.
  virtual void forward(const ForwardBatch& batch, const float* x, float* y, float* carry) = 0;
};

// Heads must divide the hidden size into sizes that the kernels take.
void expect_heads(SizeChecks& checks, int64_t hidden_size, int64_t num_heads);

// `size` values in any of the shapes that have as many.
std::vector<float> take_vector(WeightLoader& loader, std::string_view name, int64_t size);

// `name` [in, out], as y = x W has it.
Linear transposed_linear(WeightLoader& loader, std::string_view name, int64_t in, int64_t out);
// The same of a part of a tensor. What is not stored but the loader's zeros is not copied, however large.
Linear transposed_linear(WeightLoader& loader, const TensorView& matrix, bool is_stored);

// y = f(x down) up + bias, f a map or nothing.
class RwkvLora {
 public:
  // Two tensors [in, rank] and [rank, out], whose rank is the stored one; `bias` names a vector [out] or nothing.
  static RwkvLora transposed(WeightLoader& loader, std::string_view down, std::string_view up, std::string_view bias,
                             int64_t in, int64_t out, std::optional<WkvMap> map);
  // The same from `name`.lora.0.weight [rank, in], `name`.lora.2.weight [out, rank] and, with `bias`,
  // `name`.lora.2.bias [out].
  static RwkvLora sequential(WeightLoader& loader, const std::string& name, bool bias, int64_t in, int64_t out,
                             std::optional<WkvMap> map);

  // x [T, in] to y [T, out], mapped by `outer` behind the bias where it is given. y may be x.
  void forward(const ForwardBatch& batch, const float* x, float* y, std::optional<WkvMap> outer = std::nullopt) const;

 private:
  RwkvLora(Linear down, Linear up, std::vector<float> bias, std::optional<WkvMap> map);

  Linear down_, up_;
  std::vector<float> bias_;  // [out] or empty; added by the outer map
  std::optional<WkvMap> map_;
};

}  // namespace coluber
