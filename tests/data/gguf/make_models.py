# SPDX-License-Identifier: Apache-2.0
"""GGUF files of small random models, made by llama.cpp's own converter, with the logits of their checkpoints.

    python3 make_models.py LLAMA_CPP_SOURCE COLUBER [NAME...]    # needs torch, transformers, safetensors

NAME.BF16.gguf holds a model whose weights are bfloat16 numbers; NAME.logits.safetensors holds ids [24] and logits [24, V] of the
checkpoint that it was made from: those of transformers, or of `coluber logits` on the checkpoint where transformers has no such model
(OWN below). NAME.Q8_0.gguf is there where the converter moves rows or columns, to see that blocks move as values do.
Configs are brought into the spelling of published checkpoints, which is what the converter knows. Vocabularies are left out.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LLAMA = Path(sys.argv[1])
sys.path[:0] = [str(LLAMA), str(LLAMA / "gguf-py")]

import gguf
import torch
import transformers
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
IDS = [(i * 37 + 11) % 96 for i in range(24)]
COMMON = dict(vocab_size=96, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, bos_token_id=1, eos_token_id=2, pad_token_id=0)
MAMBA2 = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_expand=2)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
             head_dim=16, layer_types=["linear_attention", "full_attention"], num_hidden_layers=2, partial_rotary_factor=0.5)
EXPERTS = dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=16)

# Name: transformers' class and its config.
MODELS = {
    "falcon-h1": ("FalconH1", dict(
        COMMON, **MAMBA2, num_hidden_layers=2, intermediate_size=48, mamba_d_ssm=64, head_dim=16, mamba_rms_norm=True,
        mamba_norm_before_gate=False, ssm_multipliers=[0.5, 2.0, 1.0, 0.25, 4.0], mlp_multipliers=[0.5, 2.0], key_multiplier=0.5,
        lm_head_multiplier=0.5, embedding_multiplier=4.0, attention_in_multiplier=2.0, attention_out_multiplier=0.25,
        ssm_in_multiplier=0.5, ssm_out_multiplier=2.0)),  # folded into the weights: powers of two, so that they stay bfloat16 numbers
    "granitehybrid": ("GraniteMoeHybrid", dict(
        COMMON, **MAMBA2, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_local_experts=3, num_experts_per_tok=2,
        intermediate_size=24, shared_intermediate_size=40, attention_multiplier=0.2, embedding_multiplier=4.0, residual_multiplier=0.5,
        logits_scaling=0.5)),
    "jamba": ("Jamba", dict(
        COMMON, num_hidden_layers=2, intermediate_size=24, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
        expert_layer_offset=1, num_experts=3, num_experts_per_tok=2, mamba_d_state=8, mamba_dt_rank=2, use_mamba_kernels=False)),
    "lfm2moe": ("Lfm2Moe", dict(
        COMMON, num_hidden_layers=2, intermediate_size=48, moe_intermediate_size=24, num_dense_layers=1, num_experts=3, num_experts_per_tok=2,
        layer_types=["conv", "full_attention"], use_expert_bias=True)),
    "nemotron_h_moe": ("NemotronH", dict(
        COMMON, layers_block_type=["linear_attention", "full_attention", "moe"], head_dim=16, mamba_num_heads=4, mamba_head_dim=16,
        n_groups=2, ssm_state_size=8, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=16, routed_scaling_factor=1.5, use_mamba_kernels=False)),
    "qwen3next": ("Qwen3Next", dict(COMMON, **DELTA, **EXPERTS)),
    "qwen35moe": ("Qwen3_5Moe", dict(COMMON, **{**DELTA, "linear_value_head_dim": 32}, **EXPERTS)),  # a head of whole blocks
    "kimi-linear": ("KimiLinear", dict(
        {**COMMON, "num_key_value_heads": 2}, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"], linear_num_heads=2, linear_head_dim=16, linear_conv_kernel_dim=4, intermediate_size=48,
        kv_lora_rank=12, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, head_dim=8, moe_intermediate_size=24, num_experts=3,
        num_experts_per_token=2, num_shared_experts=1, routed_scaling_factor=1.5)),
}
OWN = ("minimax-01", "rwkv6", "rwkv7")
BLOCKS = {"granitehybrid", "qwen35moe", "qwen3next"}


def draw(name, shape, generator):
    normal = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        return torch.log(0.5 + 3 * torch.rand(shape, generator=generator))
    if name.endswith(("dt_bias", "dt_proj.bias")):
        return -1 + normal
    if name.endswith(".D") or "norm" in name and len(shape) == 1 and not name.endswith("bias"):
        return 1 + 0.2 * normal
    if name.endswith("bias") or len(shape) == 1:
        return 0.1 * normal
    return normal * shape[-1] ** -0.5


def own_tensors(name):
    if name == "minimax-01":
        shapes = {"model.embed_tokens.weight": (96, 32), "model.norm.weight": (32,), "lm_head.weight": (96, 32)}
        for layer in range(8):  # llama.cpp takes every eighth as attention
            at = f"model.layers.{layer}."
            shapes |= {at + "input_layernorm.weight": (32,), at + "post_attention_layernorm.weight": (32,)}
            if layer == 7:
                shapes |= {at + "self_attn." + k: v for k, v in {
                    "q_proj.weight": (32, 32), "k_proj.weight": (16, 32), "v_proj.weight": (16, 32), "o_proj.weight": (32, 32)}.items()}
            else:
                shapes |= {at + "self_attn." + k: v for k, v in {
                    "qkv_proj.weight": (96, 32), "out_proj.weight": (32, 32), "output_gate.weight": (32, 32), "norm.weight": (32,)}.items()}
            shapes[at + "block_sparse_moe.gate.weight"] = (2, 32)
            for expert in range(2):
                shapes |= {f"{at}block_sparse_moe.experts.{expert}.{w}.weight": s for w, s in (("w1", (8, 32)), ("w2", (32, 8)), ("w3", (8, 32)))}
        config = dict(architectures=["MiniMaxText01ForCausalLM"], model_type="minimax_text_01", vocab_size=96, hidden_size=32, head_dim=16,
                      num_hidden_layers=8, num_attention_heads=2, num_key_value_heads=1, intermediate_size=8, num_local_experts=2,
                      num_experts_per_tok=1, attn_type_list=[0] * 7 + [1], rotary_dim=8, rope_theta=10000.0, rms_norm_eps=1e-5, postnorm=True,
                      max_position_embeddings=512, tie_word_embeddings=False)
        config |= {f"layernorm_{kind}_{which}": 1.3 if which == "alpha" else 1.0
                   for kind in ("linear_attention", "full_attention", "mlp") for which in ("alpha", "beta")}
    elif name == "rwkv6":
        shapes = {"rwkv.embeddings.weight": (96, 64), "rwkv.ln_out.weight": (64,), "rwkv.ln_out.bias": (64,), "head.weight": (96, 64),
                  "rwkv.blocks.0.pre_ln.weight": (64,), "rwkv.blocks.0.pre_ln.bias": (64,)}
        for layer in range(2):
            at = f"rwkv.blocks.{layer}."
            shapes |= {f"{at}ln{i}.{kind}": (64,) for i in (1, 2) for kind in ("weight", "bias")}
            shapes |= {f"{at}attention.time_maa_{i}": (1, 1, 64) for i in "xwkvrg"}
            shapes |= {at + "attention." + k: v for k, v in {
                "time_maa_w1": (64, 20), "time_maa_w2": (5, 4, 64), "time_decay": (1, 1, 64), "time_decay_w1": (64, 8),
                "time_decay_w2": (8, 64), "time_faaaa": (1, 64), "ln_x.weight": (64,), "ln_x.bias": (64,)}.items()}
            shapes |= {f"{at}attention.{i}.weight": (64, 64) for i in ("receptance", "key", "value", "gate", "output")}
            shapes |= {at + "feed_forward." + k: v for k, v in {
                "time_maa_k": (1, 1, 64), "time_maa_r": (1, 1, 64), "key.weight": (64, 64), "value.weight": (64, 64),
                "receptance.weight": (64, 64)}.items()}
        config = dict(architectures=["Rwkv6ForCausalLM"], model_type="rwkv6", vocab_size=96, hidden_size=64, num_hidden_layers=2, head_size=64,
                      layer_norm_epsilon=1e-5, rescale_every=1, intermediate_size=64)
    else:
        shapes = {"model.embeddings.weight": (96, 64), "model.norm.weight": (64,), "model.norm.bias": (64,), "lm_head.weight": (96, 64),
                  "model.layers.0.pre_norm.weight": (64,), "model.layers.0.pre_norm.bias": (64,)}
        for layer in range(2):
            at = f"model.layers.{layer}."
            shapes |= {f"{at}{i}.{kind}": (64,) for i in ("attn_norm", "ffn_norm", "attn.g_norm") for kind in ("weight", "bias")}
            shapes |= {f"{at}attn.x_{i}": (1, 1, 64) for i in "rwkvag"}
            shapes |= {at + "attn." + i: (64,) for i in ("k_k", "k_a")} | {at + "attn.r_k": (1, 64), at + "ffn.x_k": (64,)}
            for letter in "wag" if layer == 0 else "wavg":
                shapes |= {f"{at}attn.{letter}_lora.lora.0.weight": (8, 64), f"{at}attn.{letter}_lora.lora.2.weight": (64, 8)}
                if letter != "g":
                    shapes[f"{at}attn.{letter}_lora.lora.2.bias"] = (64,)
            shapes |= {f"{at}attn.{i}_proj.weight": (64, 64) for i in "rkvo"}
            shapes |= {at + "ffn.key.weight": (96, 64), at + "ffn.value.weight": (64, 96)}
        config = dict(architectures=["RWKV7ForCausalLM"], model_type="rwkv7", vocab_size=96, hidden_size=64, num_hidden_layers=2, head_dim=64,
                      norm_eps=1e-5, intermediate_size=96, decay_low_rank_dim=8, a_low_rank_dim=8, v_low_rank_dim=8, gate_low_rank_dim=8,
                      norm_first=True, norm_bias=True)
    generator = torch.Generator().manual_seed(7)
    return config, {k: draw(k, v, generator).to(torch.bfloat16).float() for k, v in shapes.items()}


def make_transformers(name, folder):
    kind, fields = MODELS[name]
    config_class = getattr(transformers, kind + ("TextConfig" if kind.startswith("Qwen3_5") else "Config"))
    torch.manual_seed(1)
    model = getattr(transformers, kind + "ForCausalLM")(config_class(**fields)).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if value.is_floating_point() and "inv_freq" not in key:
                drawn = draw(key, tuple(value.shape), generator)
                if kind.startswith("Qwen3") and "norm" in key and not key.endswith("linear_attn.norm.weight"):
                    drawn -= 1
                value.copy_(drawn.to(torch.bfloat16))
        logits = model(torch.tensor([IDS]), use_cache=False).logits[0]
    model.save_pretrained(folder)
    respell(name, folder)
    return logits


# What published configs and tensors are called.
def respell(name, folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["architectures"] = [config["architectures"][0].replace("TextForCausalLM", "ForCausalLM")]
    if name == "granitehybrid":
        config["layer_types"] = [{"linear_attention": "mamba", "full_attention": "attention"}[k] for k in config["layer_types"]]
    if name == "nemotron_h_moe":
        config |= {"mamba_d_head": config["mamba_head_dim"], "num_hidden_layers": 3}
    if name == "falcon-h1":
        config["head_dim"] = 16
    if name == "kimi-linear":
        kinds = config.pop("layer_types")
        config["linear_attn_config"] = {
            "full_attn_layers": [i + 1 for i, k in enumerate(kinds) if k == "full_attention"],
            "kda_layers": [i + 1 for i, k in enumerate(kinds) if k != "full_attention"], "head_dim": config.pop("linear_head_dim"),
            "num_heads": config.pop("linear_num_heads"), "short_conv_kernel_size": config.pop("linear_conv_kernel_dim")}
        config |= {"first_k_dense_replace": config.pop("mlp_layer_types").count("dense"), "moe_router_activation_func": "sigmoid"}
        weights = folder / "model.safetensors"
        save_file({k.replace("0.block_sparse_moe.", "0.mlp."): v for k, v in load_file(weights).items()}, weights)
    path.write_text(json.dumps(config))


def convert(folder, out, kind):
    config = json.loads((folder / "config.json").read_text())
    ModelBase.load_hparams = staticmethod(lambda *_, **__: json.loads((folder / "config.json").read_text()))
    model_class = get_model_class(get_model_architecture(config, ModelType.TEXT))

    def set_vocab(self):
        self.gguf_writer.add_tokenizer_model("none")
        self.gguf_writer.add_vocab_size(config["vocab_size"])

    model_class.set_vocab = set_vocab
    model_class._get_suppress_tokens = lambda self: []
    model_class.no_mtp = True
    model_class.lerp_weights = {}
    model_class(folder, getattr(gguf.LlamaFileType, "MOSTLY_" + kind), out, eager=True).write()


def main():
    for name in sys.argv[3:] or [*MODELS, *OWN]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            if name in MODELS:
                logits = make_transformers(name, folder)
            else:
                config, tensors = own_tensors(name)
                (folder / "config.json").write_text(json.dumps(config))
                save_file(tensors, folder / "model.safetensors")
                out = folder / "own.safetensors"
                subprocess.run([sys.argv[2], "logits", folder, "--ids", ",".join(map(str, IDS)), "--out", out], check=True)
                logits = load_file(out)["logits"]
            for kind in ("BF16", "Q8_0") if name in BLOCKS else ("BF16",):
                convert(folder, HERE / f"{name}.{kind}.gguf", kind)
        expected = HERE / f"{name}.logits.safetensors"
        save_file({"ids": torch.tensor(IDS), "logits": logits.float().contiguous()}, expected)
        expected.chmod(0o644)
        print(name)


if __name__ == "__main__":
    main()
