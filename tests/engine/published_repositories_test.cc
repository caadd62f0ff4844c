// SPDX-License-Identifier: Apache-2.0
// What the configs of published repositories say, in their own words: each is read without a problem, and asks for the
// tensors that the repository holds, of its shapes. No weights are here, so that asking is as far as it gets.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coluber/engine.h"
#include "formats/safetensors.h"
#include "formats/temporary_folder_test.h"

namespace coluber {
namespace {

struct Published {
  const char* repository;
  const char* config;
  std::vector<std::string> asks;
};

const std::vector<Published>& all_published() {
  static const std::vector<Published> kAll = {
      {"state-spaces/mamba-2.8b-hf",
       R"({"architectures": ["MambaForCausalLM"], "model_type": "mamba", "bos_token_id": 0, "conv_kernel": 4,
           "d_inner": 5120, "d_model": 2560, "eos_token_id": 0, "expand": 2, "fused_add_norm": true,
           "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.1, "intermediate_size": 5120,
           "layer_norm_epsilon": 1e-05, "n_layer": 64, "num_hidden_layers": 64, "pad_vocab_size_multiple": 8,
           "rescale_prenorm_residual": false, "residual_in_fp32": true, "rms_norm": true, "ssm_cfg": {},
           "state_size": 16, "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1,
           "time_step_min": 0.001, "time_step_rank": 160, "time_step_scale": 1.0, "use_bias": false,
           "use_conv_bias": true, "vocab_size": 50280})",
       {"backbone.layers.0.mixer.in_proj.weight", "[10240, 2560]", "[192, 5120]"}},
      {"ai21labs/Jamba-v0.1",
       R"({"architectures": ["JambaForCausalLM"], "attention_dropout": 0.0, "attn_layer_offset": 4,
           "attn_layer_period": 8, "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_act": "silu",
           "hidden_size": 4096, "intermediate_size": 14336, "mamba_conv_bias": true, "mamba_d_conv": 4,
           "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_inner_layernorms": true,
           "mamba_proj_bias": false, "model_type": "jamba", "n_ctx": 262144, "num_attention_heads": 32,
           "num_experts": 16, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "num_logits_to_keep": 1, "output_router_logits": false, "rms_norm_eps": 1e-06, "sliding_window": null,
           "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_mamba_kernels": true,
           "vocab_size": 65536})",
       {"model.layers.0.mamba.in_proj.weight", "[16384, 4096]", "[14336, 4096]"}},
      {"nvidia/Nemotron-H-8B-Base-8K",
       R"({"architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_head_dim": 128,
           "chunk_size": 128, "conv_kernel": 4, "expand": 2, "hidden_size": 4096,
           "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
           "intermediate_size": 21504, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu",
           "mamba_num_heads": 128, "mamba_proj_bias": false, "max_position_embeddings": 8192, "mlp_bias": false,
           "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8, "num_attention_heads": 32,
           "num_hidden_layers": 52, "num_key_value_heads": 8, "num_logits_to_keep": 1, "residual_in_fp32": false,
           "rms_norm_eps": 1e-05, "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
           "time_step_limit": [0.0, Infinity], "time_step_max": 0.1, "time_step_min": 0.001, "use_bias": false,
           "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})",
       {"backbone.layers.0.mixer.in_proj.weight", "[18560, 4096]", "[21504, 4096]"}},
      {"ibm-ai-platform/Bamba-9B-v1",
       R"({"architectures": ["BambaForCausalLM"], "attention_bias": false, "attn_layer_indices": [9, 18, 27],
           "attn_rotary_emb": 64, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
           "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64,
           "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128,
           "mamba_proj_bias": false, "max_position_embeddings": 262144, "mlp_bias": false, "model_type": "bamba",
           "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_logits_to_keep": 1,
           "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
           "tie_word_embeddings": false, "vocab_size": 128256})",
       {"model.layers.0.mamba.in_proj.weight", "[16768, 4096]", "[128256, 4096]"}},
      {"ibm-granite/granite-4.0-h-micro",
       R"({"architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": false,
           "attention_multiplier": 0.015625, "embedding_multiplier": 12, "hidden_act": "silu", "hidden_size": 2048,
           "init_method": "mup", "intermediate_size": 8192, "layer_types": ["mamba", "mamba", "mamba", "mamba",
           "mamba", "attention", "mamba", "mamba"], "logits_scaling": 8, "mamba_chunk_size": 256,
           "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2,
           "mamba_n_groups": 1, "mamba_n_heads": 64, "mamba_proj_bias": false, "max_position_embeddings": 131072,
           "model_type": "granitemoehybrid", "normalization_function": "rmsnorm", "num_attention_heads": 32,
           "num_experts_per_tok": 0, "num_hidden_layers": 8, "num_key_value_heads": 8, "num_local_experts": 0,
           "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
           "rope_scaling": null, "rope_theta": 10000, "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192,
           "tie_word_embeddings": true, "vocab_size": 100352})",
       {"model.layers.0.mamba.in_proj.weight", "[8512, 2048]", "[16384, 2048]"}},
      {"ibm-granite/granite-4.0-micro",
       R"({"architectures": ["GraniteMoeHybridForCausalLM"], "attention_multiplier": 0.015625,
           "embedding_multiplier": 12, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 8192,
           "layer_types": ["attention", "attention"], "logits_scaling": 10, "mamba_d_conv": 4, "mamba_d_head": 40,
           "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128,
           "max_position_embeddings": 131072, "model_type": "granitemoehybrid", "num_attention_heads": 40,
           "num_experts_per_tok": 0, "num_hidden_layers": 2, "num_key_value_heads": 8, "num_local_experts": 0,
           "position_embedding_type": "rope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
           "rope_scaling": null, "rope_theta": 10000000, "shared_intermediate_size": 8192,
           "tie_word_embeddings": true, "vocab_size": 100352})",
       {"model.layers.0.self_attn.k_proj.weight", "[512, 2560]"}},
      {"tiiuae/Falcon-H1-0.5B-Instruct",
       R"({"architectures": ["FalconH1ForCausalLM"], "attention_bias": false, "attention_in_multiplier": 1.0,
           "attention_out_multiplier": 0.9375, "attn_layer_indices": null, "embedding_multiplier": 5.656854249492381,
           "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 2048,
           "key_multiplier": 0.390625, "lm_head_multiplier": 0.0390625, "mamba_chunk_size": 128,
           "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128,
           "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24, "mamba_norm_before_gate": false,
           "mamba_proj_bias": false, "mamba_rms_norm": false, "mamba_use_mlp": true,
           "max_position_embeddings": 16384, "mlp_bias": false, "mlp_expansion_factor": 8,
           "mlp_multipliers": [0.8838834764831844, 0.5859375], "model_type": "falcon_h1", "num_attention_heads": 8,
           "num_hidden_layers": 36, "num_key_value_heads": 2, "num_logits_to_keep": 1, "projectors_bias": false,
           "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25,
           "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
           "ssm_out_multiplier": 0.23570226039551584, "tie_word_embeddings": false, "vocab_size": 32784})",
       {"model.layers.0.mamba.in_proj.weight", "[3352, 1024]"}},
      {"Zyphra/Zamba2-2.7B",
       R"({"architectures": ["Zamba2ForCausalLM"], "adapter_rank": 128, "add_bias_linear": false,
           "attention_dropout": 0.0, "attention_head_dim": 160, "attention_hidden_size": 5120, "chunk_size": 256,
           "ffn_hidden_size": 10240, "hidden_act": "gelu", "hidden_size": 2560, "hybrid_layer_ids": [6, 12, 18, 24, 30,
           36, 42, 47, 51], "intermediate_size": 10240, "kv_channels": 80, "mamba_d_conv": 4, "mamba_d_state": 64,
           "mamba_expand": 2, "mamba_headdim": 64, "mamba_ngroups": 1, "max_position_embeddings": 4096,
           "model_type": "zamba2", "n_mamba_heads": 80, "num_attention_heads": 32, "num_hidden_layers": 54,
           "num_key_value_heads": 32, "num_logits_to_keep": 1, "num_mem_blocks": 2, "num_query_groups": 32,
           "rms_norm_eps": 1e-05, "rope_theta": 10000, "state_size": 64, "tie_word_embeddings": true,
           "time_step_limit": null, "use_conv_bias": true, "use_long_context": false, "use_mem_rope": false,
           "use_shared_attention_adapter": false, "use_shared_mlp_adapter": true, "vocab_size": 32000})",
       {"model.layers.0.mamba.in_proj.weight", "[10448, 2560]"}},
      {"google/recurrentgemma-2b",
       R"({"architectures": ["RecurrentGemmaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
           "attention_window_size": 2048, "block_types": ["recurrent", "recurrent", "attention"], "conv1d_width": 4,
           "embeddings_scale_by_sqrt_dim": true, "final_w_init_variance_scale": 0.07692307692307693, "head_dim": 256,
           "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2560, "intermediate_size": 15360,
           "logits_soft_cap": 30.0, "lru_width": 2560, "model_type": "recurrent_gemma", "num_attention_heads": 10,
           "num_hidden_layers": 26, "num_key_value_heads": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-06,
           "rope_theta": 10000.0, "vocab_size": 256000, "w_init_variance_scale": 0.01})",
       {"model.layers.0.temporal_block.linear_y.weight", "[7680, 2560]"}},
      {"LiquidAI/LFM2-1.2B",
       R"({"architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": true, "block_dim": 2048,
           "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0,
           "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": true,
           "block_use_xavier_init": true, "conv_L_cache": 3, "conv_bias": false, "conv_dim": 2048,
           "conv_dim_out": 2048, "conv_use_xavier_init": true, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12,
           14], "hidden_size": 2048, "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
           "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
           "rope_theta": 1000000.0, "use_pos_enc": true, "vocab_size": 65536})",
       {"model.layers.0.conv.in_proj.weight", "[6144, 2048]", "[8192, 2048]"}},
      {"LiquidAI/LFM2-8B-A1B",
       R"({"architectures": ["Lfm2MoeForCausalLM"], "conv_L_cache": 3, "conv_bias": false, "eos_token_id": 7,
           "hidden_size": 2048, "intermediate_size": 7168, "layer_types": ["conv", "conv", "full_attention", "conv"],
           "max_position_embeddings": 128000, "model_type": "lfm2_moe", "moe_intermediate_size": 1792,
           "norm_eps": 1e-05, "norm_topk_prob": true, "num_attention_heads": 32, "num_dense_layers": 2,
           "num_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 4, "num_key_value_heads": 8,
           "rope_theta": 1000000.0, "routed_scaling_factor": 1.0, "use_expert_bias": true, "vocab_size": 65536})",
       {"model.layers.0.feed_forward.w1.weight", "[7168, 2048]"}},
      {"Qwen/Qwen3-Next-80B-A3B-Instruct",
       R"({"architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
           "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4,
           "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120,
           "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
           "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
           "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512, "norm_topk_prob": true,
           "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
           "num_key_value_heads": 2, "output_router_logits": false, "partial_rotary_factor": 0.25,
           "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
           "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "use_sliding_window": false,
           "vocab_size": 151936})",
       {"model.layers.0.linear_attn.in_proj_qkvz.weight", "[12288, 2048]", "[151936, 2048]"}},
      {"moonshotai/Kimi-Linear-48B-A3B-Instruct",
       R"({"architectures": ["KimiLinearForCausalLM"], "bos_token_id": 163584, "eos_token_id": 163586,
           "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304,
           "intermediate_size": 9216, "kv_lora_rank": 512, "linear_attn_config": {"full_attn_layers": [4, 8],
           "head_dim": 128, "kda_layers": [1, 2, 3, 5, 6, 7], "num_heads": 32, "short_conv_kernel_size": 4},
           "mla_use_nope": true, "model_max_length": 1048576, "model_type": "kimi_linear",
           "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": true,
           "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1,
           "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 8, "num_key_value_heads": 32,
           "num_nextn_predict_layers": 0, "num_shared_experts": 1, "q_lora_rank": null, "qk_nope_head_dim": 128,
           "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
           "routed_scaling_factor": 2.446, "tie_word_embeddings": false, "topk_group": 1, "use_grouped_topk": true,
           "v_head_dim": 128, "vocab_size": 163840})",
       {"model.layers.0.self_attn.q_proj.weight", "[4096, 2304]", "[163840, 2304]"}},
      {"inclusionAI/Ring-mini-linear-2.0",
       R"({"architectures": ["BailingMoeLinearV2ForCausalLM"], "attention_dropout": 0.0, "embedding_dropout": 0.0,
           "first_k_dense_replace": 1, "group_norm_size": 4, "head_dim": 128, "hidden_act": "silu",
           "hidden_size": 2048, "intermediate_size": 5120, "layer_group_size": 5, "linear_silu": false,
           "max_position_embeddings": 131072, "max_window_layers": 20, "model_type": "bailing_moe_linear",
           "moe_intermediate_size": 512, "moe_router_enable_expert_bias": true, "n_group": 8, "norm_topk_prob": true,
           "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 20,
           "num_key_value_heads": 4, "num_shared_experts": 1, "output_router_logits": false,
           "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 600000,
           "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid",
           "tie_word_embeddings": false, "topk_group": 4, "use_bias": false, "use_qk_norm": true,
           "use_qkv_bias": false, "use_rmsnorm": true, "vocab_size": 157184})",
       {"model.layers.0.attention.query_key_value.weight", "[6144, 2048]", "[157184, 2048]"}},
      {"NX-AI/xLSTM-7b",
       R"({"architectures": ["xLSTMForCausalLM"], "add_embedding_dropout": false, "add_out_norm": true,
           "autocast_kernel_dtype": "bfloat16", "chunk_size": 64, "chunkwise_kernel": "chunkwise--triton_xl_chunk",
           "embedding_dim": 4096, "eps": 1e-06, "ffn_proj_factor": 2.667, "ffn_round_up_to_multiple_of": 64,
           "gate_soft_cap": 15.0, "head_dim": 512, "hidden_size": 4096, "inference_state_dtype": "float32",
           "mlstm_round_up_to_multiple_of": 64, "mode": "inference", "model_type": "xlstm", "norm_eps": 1e-06,
           "norm_reduction_force_float32": true, "num_blocks": 32, "num_heads": 8, "num_hidden_layers": 32,
           "output_logit_soft_cap": 30.0, "qk_dim_factor": 0.5, "return_last_states": true,
           "sequence_kernel": "native_sequence__triton", "step_kernel": "triton", "tie_word_embeddings": false,
           "use_bias": false, "use_cache": true, "v_dim_factor": 1.0, "vocab_size": 50304, "weight_mode": "single"})",
       {"backbone.blocks.0.mlstm_layer.q.weight", "[2048, 4096]", "[10944, 4096]"}},
      {"fla-hub/gla-1.3B-100B",
       R"({"architectures": ["GLAForCausalLM"], "attn_mode": "chunk", "bos_token_id": 1, "clamp_min": null,
           "conv_size": 4, "eos_token_id": 2, "expand_k": 0.5, "expand_v": 1, "fuse_cross_entropy": true,
           "fuse_norm": true, "hidden_act": "swish", "hidden_ratio": 4, "hidden_size": 2048,
           "initializer_range": 0.02, "intermediate_size": null, "max_position_embeddings": 2048, "model_type": "gla",
           "num_heads": 4, "num_hidden_layers": 24, "rms_norm_eps": 1e-06, "share_conv_kernel": true,
           "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_gk": true,
           "use_gv": false, "use_short_conv": false, "vocab_size": 32000})",
       {"model.layers.0.attn.q_proj.weight", "[1024, 2048]", "[5632, 2048]"}},
      {"fla-hub/retnet-1.3B-100B",
       R"({"architectures": ["RetNetForCausalLM"], "attn_mode": "chunk", "elementwise_affine": true, "expand_k": 1,
           "expand_v": 2, "feature_map": null, "fuse_cross_entropy": true, "fuse_norm": true, "hidden_act": "swish",
           "hidden_ratio": 2, "hidden_size": 2048, "intermediate_size": null, "max_position_embeddings": 2048,
           "model_type": "retnet", "norm_eps": 1e-06, "num_heads": 8, "num_hidden_layers": 24, "num_kv_heads": null,
           "tie_word_embeddings": false, "use_cache": true, "use_output_gate": true, "use_short_conv": false,
           "vocab_size": 32000})",
       {"model.layers.0.attn.v_proj.weight", "[4096, 2048]", "[2816, 2048]"}},
      {"fla-hub/delta_net-1.3B-100B",
       R"({"architectures": ["DeltaNetForCausalLM"], "attn_mode": "chunk", "chunk_size": 64, "conv_size": 4,
           "expand_k": 1, "expand_v": 1, "fuse_cross_entropy": true, "hidden_act": "swish", "hidden_ratio": 4,
           "hidden_size": 2048, "intermediate_size": null, "max_position_embeddings": 2048, "model_type": "delta_net",
           "norm_first": false, "num_heads": 16, "num_hidden_layers": 24, "qk_activation": "silu", "qk_norm": "l2",
           "rms_norm_eps": 1e-06, "share_conv_kernel": false, "tie_word_embeddings": false, "use_beta": true,
           "use_cache": true, "use_elu": false, "use_gate": false, "use_output_norm": true, "use_rope": false,
           "use_short_conv": true, "vocab_size": 32000})",
       {"model.layers.0.attn.q_proj.weight", "[2048, 2048]", "[2048, 1, 4]"}},
      {"fla-hub/hgrn2-1.3B-100B",
       R"({"architectures": ["HGRN2ForCausalLM"], "attn_mode": "chunk", "expand_ratio": 128, "hidden_act": "swish",
           "hidden_ratio": 4, "hidden_size": 2048, "intermediate_size": null, "max_position_embeddings": 2048,
           "model_type": "hgrn2", "num_heads": null, "num_hidden_layers": 24, "rms_norm_eps": 1e-06,
           "tie_word_embeddings": false, "use_cache": true, "use_lower_bound": true, "use_short_conv": false,
           "vocab_size": 32000})",
       {"model.layers.0.attn.f_proj.weight", "model.lower_bounds", "[24, 2048]"}},
  };
  return kAll;
}

TEST(PublishedRepositories, AreReadWithoutAProblemAndAskForTheirTensors) {
  for (const Published& published : all_published()) {
    SCOPED_TRACE(published.repository);
    TemporaryFolder folder;
    folder.write("config.json", published.config);
    const float stray = 0;
    write_safetensors(
        folder.at("model.safetensors"),
        {SafetensorsOutput::from_view(
            "stray", TensorView::contiguous(reinterpret_cast<const std::byte*>(&stray), DType::kFloat32, Shape{1}))});
    EngineOptions options;
    options.model = folder.folder();
    options.num_threads = 1;
    try {
      Engine::load(options);
      ADD_FAILURE() << "expected an error: there are no weights";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidData) << error.what();
      for (const std::string& words : published.asks)
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << words << " in: " << error.what();
    }
  }
}

}  // namespace
}  // namespace coluber
