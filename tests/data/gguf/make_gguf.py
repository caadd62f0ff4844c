# SPDX-License-Identifier: Apache-2.0
"""GGUF files written by PyPI's `gguf` with the names and transforms of llama.cpp's converter.

    python3 make_gguf.py        # needs gguf, numpy, safetensors, sentencepiece

FAMILY.F32.head is a float32 file of tests/data/FAMILY without its tensors' bytes, which are those of FAMILY/model.safetensors
(FAMILY.F32.json says which tensor is which): a test puts both together. The quantised files are whole and of smaller, random models,
whose rows are as long as blocks need them; mamba2's Q4_0 is split. tokenizer.NAME.gguf hold what tests/data/tokenizers/NAME says and no
tensors.
"""
import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).parent
DATA = HERE.parent


def add_fields(writer, family, config):
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    if family == "lfm2":
        kinds = config["layer_types"]
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv([0 if kind == "conv" else config["num_key_value_heads"] for kind in kinds])
        multiple = config["block_multiple_of"]
        width = 2 * config["intermediate_size"] // 3
        writer.add_feed_forward_length(-(-width // multiple) * multiple)
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_layer_norm_rms_eps(config["norm_eps"])
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    else:
        writer.add_ssm_conv_kernel(config["conv_kernel"])
        writer.add_ssm_inner_size(config["expand"] * config["hidden_size"])
        writer.add_ssm_state_size(config["state_size"])
        writer.add_ssm_time_step_rank(config["num_heads"])
        writer.add_ssm_group_count(config["n_groups"])
        writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])


def converted(name, value, config):
    value = value.astype(np.float32)
    if name.endswith("A_log"):
        value = -np.exp(value)
    if "conv" in name and value.ndim == 3:
        value = value[:, 0]
    if name.endswith(("A_log", ".D")):
        value = value.reshape(-1, 1)
    if name.endswith("mixer.norm.weight"):
        value = value.reshape(config["n_groups"], -1)
    return np.ascontiguousarray(value)


def write(family, kind, config, tensors, split=0):
    path = HERE / f"{family}.{kind}.gguf"
    writer = gguf.GGUFWriter(path, family, split_max_tensors=split)
    add_fields(writer, family, config)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config["num_hidden_layers"])
    block_type = getattr(gguf.GGMLQuantizationType, kind)
    block = gguf.GGML_QUANT_SIZES[block_type][0]
    origins = {}
    for name, value in tensors.items():
        known = name[:-8] + ".dt_proj.bias" if name.endswith(".dt_bias") else name
        stored = names.get_name(known, try_suffixes=(".weight", ".bias"))
        origins[stored] = name
        value = converted(name, value, config)
        is_matrix = value.ndim == 2 and value.shape[1] % block == 0 and not any(
            part in stored for part in ("conv", "norm", "ssm_a", "ssm_d"))
        if kind != "F32" and is_matrix:
            writer.add_tensor(stored, gguf.quants.quantize(value, block_type), raw_dtype=block_type)
        else:
            writer.add_tensor(stored, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, origins


def random_tensors(shapes):
    rng = np.random.default_rng(7)
    return {name: (1 + 0.1 * rng.standard_normal(shape) if name.endswith(("norm.weight", "norm_f.weight", "A_log", ".D"))
                   else rng.standard_normal(shape) / np.sqrt(shape[-1])) for name, shape in shapes.items()}


def small_mamba2():
    config = {"num_hidden_layers": 2, "hidden_size": 64, "expand": 2, "conv_kernel": 4, "state_size": 16, "num_heads": 8, "n_groups": 2,
              "layer_norm_epsilon": 1e-5, "bos_token_id": 1, "eos_token_id": 2}
    shapes = {"backbone.embeddings.weight": (256, 64), "backbone.norm_f.weight": (64,)}
    for layer in range(2):
        prefix = f"backbone.layers.{layer}."
        shapes |= {prefix + "norm.weight": (64,), prefix + "mixer.in_proj.weight": (328, 64), prefix + "mixer.conv1d.weight": (192, 1, 4),
                   prefix + "mixer.conv1d.bias": (192,), prefix + "mixer.dt_bias": (8,), prefix + "mixer.A_log": (8,),
                   prefix + "mixer.D": (8,), prefix + "mixer.norm.weight": (128,), prefix + "mixer.out_proj.weight": (64, 128)}
    return config, random_tensors(shapes)


def small_lfm2():
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 144,
              "block_multiple_of": 32, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "max_position_embeddings": 256,
              "norm_eps": 1e-5, "rope_parameters": {"rope_theta": 1e4}, "bos_token_id": 1, "eos_token_id": 2}
    shapes = {"model.embed_tokens.weight": (256, 64), "model.embedding_norm.weight": (64,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + "operator_norm.weight": (64,), prefix + "ffn_norm.weight": (64,), prefix + "feed_forward.w1.weight": (96, 64),
                   prefix + "feed_forward.w3.weight": (96, 64), prefix + "feed_forward.w2.weight": (64, 96)}
    prefix = "model.layers.0.conv."
    shapes |= {prefix + "conv.weight": (64, 1, 3), prefix + "in_proj.weight": (192, 64), prefix + "out_proj.weight": (64, 64)}
    prefix = "model.layers.1.self_attn."
    shapes |= {prefix + "q_proj.weight": (64, 64), prefix + "k_proj.weight": (32, 64), prefix + "v_proj.weight": (32, 64),
               prefix + "out_proj.weight": (64, 64), prefix + "q_layernorm.weight": (16,), prefix + "k_layernorm.weight": (16,)}
    return config, random_tensors(shapes)


def byte_level(writer, name, split):
    source = json.loads((DATA / "tokenizers" / name / "tokenizer.json").read_text())
    tokens = {i: (token, gguf.TokenType.NORMAL) for token, i in source["model"]["vocab"].items()}
    for added in source["added_tokens"]:
        tokens[added["id"]] = (added["content"], gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED)
    for i in range(max(tokens) + 3):
        tokens.setdefault(i, (f"[PAD{i}]", gguf.TokenType.UNUSED))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([tokens[i][0] for i in range(len(tokens))])
    writer.add_token_types([tokens[i][1] for i in range(len(tokens))])
    merges = source["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    return {content: i for i, (content, _) in tokens.items()}


def sentencepiece_bpe(writer, name):
    from sentencepiece import SentencePieceProcessor
    source = SentencePieceProcessor(str(DATA / "tokenizers" / name / "tokenizer.model"))
    ids = range(source.vocab_size())
    kinds = ((source.is_unknown, gguf.TokenType.UNKNOWN), (source.is_control, gguf.TokenType.CONTROL),
             (source.is_unused, gguf.TokenType.UNUSED), (source.is_byte, gguf.TokenType.BYTE))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([source.id_to_piece(i) for i in ids])
    writer.add_token_scores([source.get_score(i) for i in ids])
    writer.add_token_types([next((kind for test, kind in kinds if test(i)), gguf.TokenType.NORMAL) for i in ids])
    writer.add_bos_token_id(source.bos_id())
    writer.add_eos_token_id(source.eos_id())
    writer.add_add_bos_token(False)


def write_tokenizer(name, split):
    writer = gguf.GGUFWriter(HERE / f"tokenizer.{name}.gguf", "lfm2")
    if split:
        ids = byte_level(writer, name, split)
        if split == "llama-bpe":
            writer.add_bos_token_id(ids["<|begin_of_text|>"])
            writer.add_eos_token_id(ids["<|eot_id|>"])
            writer.add_chat_template("{% for m in messages %}{{ bos_token }}<{{ m.role }}>{{ m.content }}{% endfor %}")
    else:
        sentencepiece_bpe(writer, name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    for name, split in (("bpe_llama3", "llama-bpe"), ("bpe_qwen", "qwen2"), ("bpe_gpt2", "gpt-2"), ("bpe_falcon", "falcon"),
                        ("sp_bpe", None)):
        write_tokenizer(name, split)
    for family, small in (("mamba2", small_mamba2()), ("lfm2", small_lfm2())):
        config = json.loads((DATA / family / "config.json").read_text())
        path, origins = write(family, "F32", config, load_file(DATA / family / "model.safetensors"))
        (HERE / f"{family}.F32.head").write_bytes(path.read_bytes()[:gguf.GGUFReader(path).data_offset])
        path.unlink()
        (HERE / f"{family}.F32.json").write_text(json.dumps(origins, indent=1) + "\n")
        write(family, "Q8_0", *small)
        write(family, "Q4_0", *small, split=12 if family == "mamba2" else 0)


if __name__ == "__main__":
    main()
