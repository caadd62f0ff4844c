// SPDX-License-Identifier: Apache-2.0
// What llama.cpp's converter makes of RWKV-6 (as Hugging Face names it) and RWKV-7 (as flash-linear-attention does).
#include "formats/gguf_config.h"

namespace coluber {
namespace {

using R = GgufRows;
using S = GgufShape;
using V = GgufValues;

std::string rwkv6_config(const GgufFile& file) {
  GgufConfig config(file, "rwkv6");
  config.copy("head_size", "wkv.head_size");
  config.copy("intermediate_size", "feed_forward_length");
  config.copy_real("layer_norm_epsilon", "attention.layer_norm_epsilon");
  return config.text();
}

std::string rwkv7_config(const GgufFile& file) {
  GgufConfig config(file, "rwkv7");
  config.copy("head_dim", "wkv.head_size");
  config.copy("intermediate_size", "feed_forward_length");
  config.copy_real("norm_eps", "attention.layer_norm_epsilon");
  config.set("norm_first", file.find("token_embd_norm.weight") != nullptr);
  return config.text();
}

const std::vector<GgufTensorRule> kRwkv6Layer = {
    {"attn_norm.weight", "ln1.weight"},
    {"attn_norm.bias", "ln1.bias"},
    {"attn_norm_2.weight", "ln2.weight"},
    {"attn_norm_2.bias", "ln2.bias"},
    {"time_mix_w1.weight", "attention.time_maa_w1", S::kAsStored, V::kAsStored, R::kTransposed},
    {"time_mix_w2.weight", "attention.time_maa_w2", S::kAsStored, V::kAsStored, R::kTransposed},
    {"time_mix_lerp_x.weight", "attention.time_maa_x", S::kLast},
    {"time_mix_lerp_fused.weight", "attention.time_maa_w", S::kLast, V::kAsStored, R::kPart, 0, 5},
    {"time_mix_lerp_fused.weight", "attention.time_maa_k", S::kLast, V::kAsStored, R::kPart, 1, 5},
    {"time_mix_lerp_fused.weight", "attention.time_maa_v", S::kLast, V::kAsStored, R::kPart, 2, 5},
    {"time_mix_lerp_fused.weight", "attention.time_maa_r", S::kLast, V::kAsStored, R::kPart, 3, 5},
    {"time_mix_lerp_fused.weight", "attention.time_maa_g", S::kLast, V::kAsStored, R::kPart, 4, 5},
    // Early files have them apart.
    {"time_mix_lerp_w.weight", "attention.time_maa_w", S::kLast},
    {"time_mix_lerp_k.weight", "attention.time_maa_k", S::kLast},
    {"time_mix_lerp_v.weight", "attention.time_maa_v", S::kLast},
    {"time_mix_lerp_r.weight", "attention.time_maa_r", S::kLast},
    {"time_mix_lerp_g.weight", "attention.time_maa_g", S::kLast},
    {"time_mix_first.weight", "attention.time_faaaa"},
    {"time_mix_decay.weight", "attention.time_decay", S::kLast},
    {"time_mix_decay_w1.weight", "attention.time_decay_w1", S::kAsStored, V::kAsStored, R::kTransposed},
    {"time_mix_decay_w2.weight", "attention.time_decay_w2", S::kAsStored, V::kAsStored, R::kTransposed},
    {"time_mix_key.weight", "attention.key.weight"},
    {"time_mix_value.weight", "attention.value.weight"},
    {"time_mix_receptance.weight", "attention.receptance.weight"},
    {"time_mix_gate.weight", "attention.gate.weight"},
    {"time_mix_ln.weight", "attention.ln_x.weight"},
    {"time_mix_ln.bias", "attention.ln_x.bias"},
    {"time_mix_output.weight", "attention.output.weight", S::kAsStored, V::kRescaled},
    {"channel_mix_lerp_k.weight", "feed_forward.time_maa_k", S::kLast},
    {"channel_mix_lerp_r.weight", "feed_forward.time_maa_r", S::kLast},
    {"channel_mix_key.weight", "feed_forward.key.weight"},
    {"channel_mix_value.weight", "feed_forward.value.weight", S::kAsStored, V::kRescaled},
    {"channel_mix_receptance.weight", "feed_forward.receptance.weight"},
};

const std::vector<GgufTensorRule> kRwkv7Layer = {
    {"attn_norm.weight", "attn_norm.weight"},
    {"attn_norm.bias", "attn_norm.bias"},
    {"attn_norm_2.weight", "ffn_norm.weight"},
    {"attn_norm_2.bias", "ffn_norm.bias"},
    {"time_mix_lerp_fused.weight", "attn.x_r", S::kLast, V::kAsStored, R::kPart, 0, 6},
    {"time_mix_lerp_fused.weight", "attn.x_w", S::kLast, V::kAsStored, R::kPart, 1, 6},
    {"time_mix_lerp_fused.weight", "attn.x_k", S::kLast, V::kAsStored, R::kPart, 2, 6},
    {"time_mix_lerp_fused.weight", "attn.x_v", S::kLast, V::kAsStored, R::kPart, 3, 6},
    {"time_mix_lerp_fused.weight", "attn.x_a", S::kLast, V::kAsStored, R::kPart, 4, 6},
    {"time_mix_lerp_fused.weight", "attn.x_g", S::kLast, V::kAsStored, R::kPart, 5, 6},
    {"time_mix_w0.weight", "attn.w_lora.lora.2.bias"},
    {"time_mix_w1.weight", "attn.w_lora.lora.0.weight"},
    {"time_mix_w2.weight", "attn.w_lora.lora.2.weight"},
    {"time_mix_a0.weight", "attn.a_lora.lora.2.bias"},
    {"time_mix_a1.weight", "attn.a_lora.lora.0.weight"},
    {"time_mix_a2.weight", "attn.a_lora.lora.2.weight"},
    {"time_mix_v0.weight", "attn.v_lora.lora.2.bias", S::kAsStored, V::kAsStored, R::kAll, 0, 1, "", true},
    {"time_mix_v1.weight", "attn.v_lora.lora.0.weight", S::kAsStored, V::kAsStored, R::kAll, 0, 1, "", true},
    {"time_mix_v2.weight", "attn.v_lora.lora.2.weight", S::kAsStored, V::kAsStored, R::kAll, 0, 1, "", true},
    {"time_mix_g1.weight", "attn.g_lora.lora.0.weight"},
    {"time_mix_g2.weight", "attn.g_lora.lora.2.weight"},
    {"time_mix_k_k.weight", "attn.k_k"},
    {"time_mix_k_a.weight", "attn.k_a"},
    {"time_mix_r_k.weight", "attn.r_k"},
    {"time_mix_receptance.weight", "attn.r_proj.weight"},
    {"time_mix_key.weight", "attn.k_proj.weight"},
    {"time_mix_value.weight", "attn.v_proj.weight"},
    {"time_mix_output.weight", "attn.o_proj.weight"},
    {"time_mix_ln.weight", "attn.g_norm.weight"},
    {"time_mix_ln.bias", "attn.g_norm.bias"},
    {"channel_mix_lerp_k.weight", "ffn.x_k"},
    {"channel_mix_key.weight", "ffn.key.weight"},
    {"channel_mix_value.weight", "ffn.value.weight"},
};

}  // namespace

std::vector<GgufArchitecture> gguf_rwkv_architectures() {
  return {
      {"rwkv6",
       "rwkv.blocks.",
       {{"token_embd.weight", "rwkv.embeddings.weight"},
        {"token_embd_norm.weight", "rwkv.blocks.0.pre_ln.weight"},
        {"token_embd_norm.bias", "rwkv.blocks.0.pre_ln.bias"},
        {"output_norm.weight", "rwkv.ln_out.weight"},
        {"output_norm.bias", "rwkv.ln_out.bias"},
        {"output.weight", "head.weight"}},
       kRwkv6Layer,
       rwkv6_config},
      {"rwkv7",
       "model.layers.",
       {{"token_embd.weight", "model.embeddings.weight"},
        {"token_embd_norm.weight", "model.layers.0.pre_norm.weight"},
        {"token_embd_norm.bias", "model.layers.0.pre_norm.bias"},
        {"output_norm.weight", "model.norm.weight"},
        {"output_norm.bias", "model.norm.bias"},
        {"output.weight", "lm_head.weight"}},
       kRwkv7Layer,
       rwkv7_config},
  };
}

}  // namespace coluber
