# SPDX-License-Identifier: Apache-2.0
"""Writes the quantised checkpoints beside this file, with the packages that people make them with.

    python make.py [NAME ...]       all of them without a name

Each folder is a tiny random model of transformers whose matrices a foreign package has packed, with the config that the
package writes. expected.json holds what the same package dequantises them to, in float32: the CRC-32 of each weight's
values as they lie in memory, zeros without their sign. (Where the package has another order of operations, expected.safetensors holds values.)
Scales and zero points are found by rounding to nearest: how well a model is quantised matters to nobody here.

Made with Python 3.11 on a CPU and: torch 2.15.0, transformers 5.17.0, safetensors 0.8.0, gptqmodel 7.7.0,
autoawq 0.2.9, compressed-tensors 0.20.1 (ct_int4_actorder: 0.10.2), bitsandbytes 0.50.2, nvidia-modelopt 0.47.0.
"""
import json
import os
import pathlib
import re
import sys
import tempfile
import zlib

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
torch.set_num_threads(1)


# ---- models -----------------------------------------------------------------------------------------------------

def mamba2(hidden=128, layers=2):
    return transformers.Mamba2Config(vocab_size=128, hidden_size=hidden, num_hidden_layers=layers, num_heads=hidden // 4,
                                     head_dim=8, state_size=16, n_groups=1, expand=2, conv_kernel=4, chunk_size=16,
                                     tie_word_embeddings=False)


def lfm2(hidden=128, inner=256, layers=("conv", "full_attention")):
    return transformers.Lfm2Config(vocab_size=128, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=len(layers),
                                   num_attention_heads=4, num_key_value_heads=2, layer_types=list(layers),
                                   block_auto_adjust_ff_dim=False, conv_L_cache=3, tie_word_embeddings=True)


def qwen3_next(hidden=64, expert=64):
    return transformers.Qwen3NextConfig(vocab_size=128, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
                                        num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                                        layer_types=["linear_attention", "full_attention"], linear_key_head_dim=16,
                                        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                                        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=expert,
                                        shared_expert_intermediate_size=64, partial_rotary_factor=0.25)


def jamba(hidden=64):
    return transformers.JambaConfig(vocab_size=128, hidden_size=hidden, intermediate_size=128, num_hidden_layers=2,
                                    num_attention_heads=2, num_key_value_heads=1, num_experts=2, num_experts_per_tok=1,
                                    expert_layer_period=2, expert_layer_offset=1, attn_layer_period=2,
                                    attn_layer_offset=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
                                    mamba_dt_rank=32, use_mamba_kernels=False, tie_word_embeddings=False,
                                    pad_token_id=0)


def granitemoehybrid(hidden=64, experts=0):
    return transformers.GraniteMoeHybridConfig(vocab_size=128, hidden_size=hidden, intermediate_size=64, num_hidden_layers=2,
                                               num_attention_heads=2, num_key_value_heads=1, layer_types=["mamba", "attention"],
                                               num_local_experts=experts, num_experts_per_tok=min(experts, 2),
                                               shared_intermediate_size=128,
                                               mamba_n_heads=32, mamba_d_head=4, mamba_n_groups=1, mamba_d_state=16,
                                               mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16,
                                               tie_word_embeddings=True)


def random_model(config, dtype):
    """The model's tensors as save_pretrained names them, and its config."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, p in model.named_parameters():
            uniform = lambda low, high: low + (high - low) * torch.rand(p.shape, generator=draw)
            if "A_log" in name:
                p.copy_(torch.log(uniform(0.5, 4)))
            elif "dt_bias" in name or "dt_proj.bias" in name:
                p.copy_(uniform(-4, -1))
            elif p.dim() == 1:
                p.copy_(uniform(-0.1, 0.1) if name.endswith("bias") else uniform(0.7, 1.3))
            else:
                p.copy_(torch.randn(p.shape, generator=draw) * (0.5 if "embed" in name else p.shape[-1] ** -0.5))
    folder = tempfile.mkdtemp()
    model.to(dtype).save_pretrained(folder)
    return load_file(folder + "/model.safetensors"), json.load(open(folder + "/config.json"))


def matrices(tensors, left_out, stacks=False):
    """Names of the modules that packages quantise: matrices of linear layers, and stacks of them."""
    skip = re.compile("embed|conv1d|conv\\.conv|router|A_log|mlp\\.gate\\.|" + "|".join(left_out or ["$^"]))
    return [n[:-len(".weight")] for n, t in tensors.items()
            if n.endswith(".weight") and (t.dim() == 2 or stacks and t.dim() == 3) and not skip.search(n)]


class Checkpoint:
    """One folder: tensors, what they are expected to be, and the config."""

    def __init__(self, name, config, package, dtype=torch.float16, left_out=(), stacks=False):
        self.folder, self.package = HERE / name, package
        self.tensors, self.config = random_model(config, dtype)
        self.expected, self.values = {}, {}
        self.names = matrices(self.tensors, left_out, stacks)

    def weight(self, module):
        return self.tensors.pop(module + ".weight").float()

    def add(self, prefix, parts, dequantized, exact=True, weight=None):
        for name, tensor in parts.items():
            if tensor is not None:
                self.tensors[prefix + name] = tensor.detach().contiguous().clone()
        weight = weight or prefix + "weight"
        dequantized = dequantized.detach().float().contiguous() + 0.0  # packages differ in the sign of zeros
        if exact:
            self.expected[weight] = {"shape": list(dequantized.shape), "crc32": zlib.crc32(dequantized.numpy().tobytes())}
        else:
            self.values[weight] = dequantized

    def save(self, quantization, beside=None):
        self.folder.mkdir(exist_ok=True)
        save_file(self.tensors, str(self.folder / "model.safetensors"), metadata={"format": "pt"})
        if beside:
            (self.folder / beside).write_text(json.dumps(quantization, indent=1, default=str) + "\n")
        else:
            self.config["quantization_config"] = quantization
        (self.folder / "config.json").write_text(json.dumps(self.config, indent=1, default=str) + "\n")
        (self.folder / "expected.json").write_text(
            json.dumps({"package": self.package, "weights": self.expected}, indent=1) + "\n")
        if self.values:
            save_file(self.values, str(self.folder / "expected.safetensors"))


def rounding(w, bits, group, symmetric, order=None):
    """Scales, zero points [N, groups] and the group of each column, for codes from 0 to 2^bits - 1."""
    n, k = w.shape
    g_idx = torch.arange(k) // group
    if order is not None:
        g_idx = g_idx[order]
    scales, zeros, top = [], [], 2 ** bits - 1
    for g in range(int(g_idx.max()) + 1):
        part = w[:, g_idx == g]
        if symmetric:
            scales.append(part.abs().amax(1) * 2 / top)
            zeros.append(torch.full((n,), float((top + 1) // 2)))
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales.append((high - low) / top)
            zeros.append((-low / scales[-1]).round().clamp(1, top - 1))
    return torch.stack(scales, 1).half().float(), torch.stack(zeros, 1), g_idx.int()


# ---- GPTQ and AWQ -----------------------------------------------------------------------------------------------

def gptq_linear(c, module, bits, group, symmetric, act_order, version):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization.config import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
    w = c.weight(module)
    n, k = w.shape
    size = k if group == -1 else group
    order = torch.randperm(k, generator=torch.Generator().manual_seed(k)) if act_order else None
    scales, zeros, g_idx = rounding(w, bits, size, symmetric, order)
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = w
    packed = TorchLinear(bits=bits, group_size=group, desc_act=act_order, sym=symmetric, in_features=k, out_features=n,
                         bias=False, pack_dtype=torch.int32, register_buffers=True)
    packed.pack(linear, scales, zeros, g_idx)
    packed.post_init()
    parts = {name: t.clone() for name, t in packed.state_dict().items()}
    packed.scales = packed.scales.float()
    dequantized = packed.dequantize_weight().T
    if version == 1:
        packed.qzeros = parts["qzeros"].clone()
        convert_gptq_v2_to_v1_format_module(packed, QuantizeConfig(bits=bits, group_size=group, desc_act=act_order,
                                                                   sym=symmetric))
        parts["qzeros"] = packed.qzeros
    c.add(module + ".", parts, dequantized)


def gptq_config(bits, group, symmetric, act_order, version, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order,
            "checkpoint_format": "gptq" if version == 1 else "gptq_v2", "pack_dtype": "int32", "lm_head": True, **more}


def gptq(name, model, bits, group, symmetric, act_order, version):
    c = Checkpoint(name, model, "gptqmodel 7.7.0")
    for module in c.names:
        gptq_linear(c, module, bits, group, symmetric, act_order, version)
    c.save(gptq_config(bits, group, symmetric, act_order, version))


def gptq_dynamic():
    """Other numbers of bits and other groups for some modules, as `dynamic` says; the head is left out."""
    c = Checkpoint("gptq_dynamic", lfm2(64, 128), "gptqmodel 7.7.0", left_out=["lm_head"])
    rules = {"w1": (8, 32), "w2": (3, 64), "w3": (2, 16), "q_proj": (8, -1)}
    for module in c.names:
        bits, group = rules.get(module.split(".")[-1], (4, 32))
        gptq_linear(c, module, bits, group, False, False, 1)
    dynamic = {f"+:.*\\.{m}": {"bits": b, "group_size": g} for m, (b, g) in rules.items()}
    c.save(gptq_config(4, 32, False, False, 1, dynamic=dynamic))


def gptq_beside():
    """As AutoGPTQ wrote it: quantize_config.json, and nothing in config.json."""
    c = Checkpoint("gptq_beside", granitemoehybrid(), "gptqmodel 7.7.0", left_out=["out_proj"])
    for module in c.names:
        gptq_linear(c, module, 4, 16, True, False, 1)
    c.save({"bits": 4, "group_size": 16, "damp_percent": 0.01, "desc_act": False, "sym": True, "true_sequential": True,
            "model_name_or_path": None, "model_file_base_name": "model"}, beside="quantize_config.json")


def awq4():
    """Experts; what stays unquantised beside them is what published checkpoints leave out."""
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm
    left_out = ["in_proj_ba", "shared_expert", "lm_head", "self_attn"]
    c = Checkpoint("awq4", qwen3_next(), "autoawq 0.2.9", left_out=left_out)
    for module in c.names:
        w = c.weight(module)
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
        linear.weight.data = w
        scales, zeros, _ = rounding(w, 4, 32, False)
        q = WQLinear_GEMM.from_linear(linear, 4, 32, False, scales.T.contiguous(), zeros.int().T.contiguous())
        c.add(module + ".", {n: getattr(q, n) for n in ("qweight", "qzeros", "scales")},
              dequantize_gemm(q.qweight, q.qzeros, q.scales.float(), 4, 32).T)
    c.save({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": left_out})


def awq8():
    from gptqmodel.quantization.awq.utils import packing_utils
    c = Checkpoint("awq8", lfm2(64, 64), "gptqmodel 7.7.0")
    for module in c.names:
        w = c.weight(module)
        scales, zeros, _ = rounding(w, 8, 64, False)
        scales, zeros = scales.T.contiguous(), zeros.T.contiguous().int()
        codes = (w.T / scales.repeat_interleave(64, 0) + zeros.repeat_interleave(64, 0)).round().clamp(0, 255).int()
        qweight, qzeros = packing_utils.pack_awq(codes, zeros, 8)
        iweight, izeros = packing_utils.unpack_awq(qweight, qzeros, 8, count=w.shape[0])
        iweight, izeros = packing_utils.reverse_awq_order(iweight, izeros, 8)
        values = (iweight - izeros.repeat_interleave(64, 0)).float() * scales.repeat_interleave(64, 0)
        c.add(module + ".", {"qweight": qweight, "qzeros": qzeros, "scales": scales.half()}, values.T)
    c.save({"quant_method": "awq", "bits": 8, "group_size": 64, "zero_point": True, "version": "gemm"})


# ---- compressed-tensors -----------------------------------------------------------------------------------------

def ct_parts(w, fmt, args):
    """The tensors that a compressor writes for a weight, and what it makes of them with float32 scales."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    args = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = {"weight": w}
    n, k = w.shape
    strategy = args.strategy
    if strategy == "block":
        rows, cols = args.block_structure
        blocks = torch.nn.functional.pad(w, (0, -k % cols, 0, -n % rows))
        blocks = blocks.reshape((n + rows - 1) // rows, rows, (k + cols - 1) // cols, cols)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    elif strategy == "tensor":
        low, high = w.min().reshape(1), w.max().reshape(1)
    elif strategy == "channel":
        low, high = w.amin(1, True), w.amax(1, True)
    else:
        groups = w.reshape(n, k // args.group_size, args.group_size)
        low, high = groups.amin(2), groups.amax(2)
    global_scale = None
    if strategy == "tensor_group":
        from compressed_tensors.quantization.utils import generate_gparam
        global_scale = generate_gparam(w.min(), w.max())
        state["weight_global_scale"] = global_scale
    scale, zero = calculate_qparams(low, high, args, global_scale=global_scale)
    scale = scale if fmt in ("nvfp4-pack-quantized", "mxfp4-pack-quantized") else scale.bfloat16().float()
    state["weight_scale"] = scale
    if not args.symmetric:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(fmt)
    packed = compressor.compress(dict(state), scheme)
    if fmt in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):  # whose own way rounds to bfloat16
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization.lifecycle.forward import dequantize
        return packed, dequantize(x_q=unpack_fp4_from_uint8(packed["weight_packed"], n, k, torch.float32),
                                  scale=compressor._decompress_scale(packed["weight_scale"], torch.float32),
                                  args=args, global_scale=global_scale, dtype=torch.float32)
    dequantized = compressor.decompress(dict(packed), scheme)["weight"].float()
    packed["weight_scale"] = packed["weight_scale"].bfloat16()
    return packed, dequantized


def compressed(name, model, fmt, schemes, dtype=torch.bfloat16, left_out=()):
    """`schemes`: format and arguments of the weights by the end of a module's name; "" is everything else."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    c = Checkpoint(name, model, "compressed-tensors 0.20.1", dtype, left_out)
    for module in c.names:
        own, args = next(s for end, s in schemes.items() if module.endswith(end))
        w = c.weight(module)
        packed, dequantized = ct_parts(w, own, args)
        c.add(module + ".", packed, dequantized)
    groups = {f"group_{i}": QuantizationScheme(targets=["Linear" if not end else f"re:.*{end}$"],
                                               weights=QuantizationArgs(**args), format=own)
              for i, (end, (own, args)) in enumerate(schemes.items())}
    config = QuantizationConfig(config_groups=groups, format=fmt, quantization_status="compressed", ignore=list(left_out))
    c.save(json.loads(config.model_dump_json()))


INT4 = dict(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)


def ct_actorder():
    """Groups of scattered columns; later versions do not write them any more."""
    import compressed_tensors
    from compressed_tensors.quantization import QuantizationArgs
    if not compressed_tensors.__version__.startswith("0.10."):
        return print("ct_int4_actorder is left as it is: it needs compressed-tensors 0.10.2")
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import PackedQuantizationCompressor
    c = Checkpoint("ct_int4_actorder", mamba2(64, 1), "compressed-tensors 0.10.2", torch.bfloat16)
    args = QuantizationArgs(**INT4, actorder="group")
    for module in c.names:
        w = c.weight(module)
        order = torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(7))
        scale, _, g_idx = rounding(w, 4, 32, True, order)
        scale = scale.bfloat16().float()
        compressor = PackedQuantizationCompressor()
        packed = compressor.compress_weight(w, scale, args, g_idx=g_idx)
        values = compressor.decompress_weight({**packed, "weight_scale": scale, "weight_g_idx": g_idx}, args)
        c.add(module + ".", {**packed, "weight_scale": scale.bfloat16(), "weight_g_idx": g_idx}, values)
    c.save({"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "ignore": [], "config_groups": {"group_0": {"targets": ["Linear"],
                                                        "weights": json.loads(args.model_dump_json())}}})


def ct_fixtures():
    pack, plain = "pack-quantized", "float-quantized"
    fp8 = dict(num_bits=8, type="float", symmetric=True)
    return {
        "ct_int4_asym": lambda: compressed("ct_int4_asym", granitemoehybrid(), pack,
                                           {"": (pack, {**INT4, "symmetric": False})}),
        "ct_int4_actorder": ct_actorder,
        "ct_mixed": lambda: compressed("ct_mixed", lfm2(64, 128), "mixed-precision", {
            "w1": (pack, dict(num_bits=8, type="int", strategy="channel", symmetric=True)),
            "w2": (pack, dict(num_bits=4, type="int", strategy="channel", symmetric=False)),
            "w3": ("int-quantized", dict(num_bits=8, type="int", strategy="channel", symmetric=True)),
            "q_proj": ("naive-quantized", dict(num_bits=8, type="int", strategy="channel", symmetric=False)),
            "k_proj": (pack, dict(num_bits=4, type="int", strategy="tensor", symmetric=True)),
            "v_proj": (pack, dict(num_bits=3, type="int", strategy="group", group_size=16, symmetric=True)),
            "": (plain, {**fp8, "strategy": "channel"})}, left_out=["self_attn.out_proj"]),
        "ct_fp8": lambda: compressed("ct_fp8", qwen3_next(), plain, {
            "experts.0.up_proj": (plain, {**fp8, "strategy": "block", "block_structure": [48, 32]}),
            "o_proj": (plain, {**fp8, "strategy": "tensor"}),
            "": (plain, {**fp8, "strategy": "channel"})}, left_out=["lm_head"]),
        "ct_nvfp4": lambda: compressed("ct_nvfp4", lfm2(64, 64), "nvfp4-pack-quantized", {
            "": ("nvfp4-pack-quantized", dict(num_bits=4, type="float", strategy="tensor_group", group_size=16,
                                              symmetric=True, scale_dtype="torch.float8_e4m3fn"))}),
        "ct_mxfp4": lambda: compressed("ct_mxfp4", mamba2(64, 1), "mxfp4-pack-quantized", {
            "": ("mxfp4-pack-quantized", dict(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True,
                                              scale_dtype="torch.uint8"))}),
    }


# ---- FP8 of transformers ----------------------------------------------------------------------------------------

def fp8(name, model, block, scale_fmt="float", left_out=(), stacks=False):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
    from transformers import FineGrainedFP8Config
    config = FineGrainedFP8Config(weight_block_size=block, modules_to_not_convert=list(left_out) or None)
    config.scale_fmt = scale_fmt
    quantizer = type("Quantizer", (), {"quantization_config": config})()
    c = Checkpoint(name, model, "transformers 5.17.0", torch.bfloat16, left_out, stacks)
    for module in c.names:
        w = c.weight(module)
        parts = Fp8Quantize(quantizer).convert({module + ".weight": w})
        values, scales = parts[module + ".weight"], parts[module + ".weight_scale_inv"]
        dequantized = Fp8Dequantize(quantizer)._dequantize_one(values, scales.float())
        c.add("", parts, dequantized, weight=module + ".weight")
    c.save(json.loads(json.dumps(config.to_dict(), default=str)))


# ---- bitsandbytes -----------------------------------------------------------------------------------------------

def bnb4(name, model, kind, double, left_out=()):
    import bitsandbytes.functional as F
    c = Checkpoint(name, model, "bitsandbytes 0.50.2", torch.bfloat16, left_out)
    for module in c.names:
        w = c.weight(module)
        packed, state = F.quantize_4bit(w, quant_type=kind, compress_statistics=double)
        parts = {"": packed, **{"." + n: t for n, t in state.as_dict(packed=True).items()}}
        c.add(module + ".weight", parts, F.dequantize_4bit(packed, state), weight=module + ".weight")
    from transformers import BitsAndBytesConfig
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=double)
    c.save(json.loads(json.dumps(config.to_dict(), default=str)))


def bnb8():
    import bitsandbytes.functional as F
    from transformers import BitsAndBytesConfig
    c = Checkpoint("bnb_int8", mamba2(64, 1), "bitsandbytes 0.50.2", torch.float16, ["lm_head"])
    for module in c.names:
        codes, scales, _ = F.int8_vectorwise_quant(c.weight(module).half())
        parts = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        c.add(module + ".", parts, F.int8_vectorwise_dequant(codes, scales), exact=False)
    c.save(json.loads(json.dumps(BitsAndBytesConfig(load_in_8bit=True).to_dict(), default=str)))


# ---- ModelOpt ---------------------------------------------------------------------------------------------------

def modelopt_fp8(w, module):
    """Of the whole; of blocks for what enters an MLP and of rows for what leaves it."""
    import modelopt.torch.export.quant_utils as export
    from modelopt.torch.quantization.qtensor import FP8QTensor
    if module.endswith("down_proj"):
        scale = w.abs().amax(1) / 448.0
        packed = export.to_quantized_weight(w, scale, export.QUANTIZATION_FP8_PC_PT)
        return packed, scale, packed.float() * scale[:, None]
    if module.endswith("up_proj"):
        blocks = w.reshape(w.shape[0] // 32, 32, w.shape[1] // 32, 32)
        scale = blocks.abs().amax((1, 3), keepdim=True) / 448.0
        packed = export.to_quantized_weight(w, scale, export.QUANTIZATION_FP8_PB_WO, block_size=32)
        values = FP8QTensor(w.shape, torch.float32, packed).dequantize(
            torch.float32, scale=scale.squeeze(), block_sizes={-1: 32, -2: 32})
        return packed, scale, values
    scale = w.abs().max() / 448.0
    packed = export.to_quantized_weight(w, scale, export.QUANTIZATION_FP8)
    return packed, scale, export.from_quantized_weight(packed, scale, export.QUANTIZATION_FP8, torch.float32)


def modelopt(name, model, algorithm, beside):
    import modelopt.torch.export.quant_utils as export
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
    c = Checkpoint(name, model, "nvidia-modelopt 0.47.0", torch.bfloat16, ["lm_head"])
    for module in c.names:
        w = c.weight(module)
        if algorithm == "NVFP4":
            factor = w.abs().max() / (6.0 * 448.0)
            scale = NVFP4QTensor.get_weights_scaling_factor(w, 16, factor)[0]
            packed = export.to_quantized_weight(w, scale, export.QUANTIZATION_NVFP4, factor, 16)
            values = NVFP4QTensor(w.shape, torch.float32, packed).dequantize(
                dtype=torch.float32, scale=scale, double_scale=factor, block_sizes={-1: 16})
            parts = {"weight": packed, "weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.tensor(0.5)}
        else:
            packed, scale, values = modelopt_fp8(w, module)
            parts = {"weight": packed, "weight_scale": scale, "input_scale": torch.tensor(0.5)}
        c.add(module + ".", parts, values)
    exported = {"producer": {"name": "modelopt", "version": "0.47.0"},
                "quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": None, "group_size": 16,
                                 "exclude_modules": ["lm_head"]}}
    if beside:
        return c.save(exported, beside="hf_quant_config.json")
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
    c.save({"quant_method": "modelopt", **convert_hf_quant_config_format(exported)})


FIXTURES = {
    "gptq4_actorder": lambda: gptq("gptq4_actorder", mamba2(), 4, 32, False, True, 1),
    "gptq4_v2": lambda: gptq("gptq4_v2", lfm2(), 4, 128, True, False, 2),
    "gptq8_rows": lambda: gptq("gptq8_rows", jamba(), 8, -1, True, False, 1),
    "gptq_dynamic": gptq_dynamic,
    "gptq_beside": gptq_beside,
    "awq4": awq4,
    "awq8": awq8,
    **ct_fixtures(),
    "fp8_block": lambda: fp8("fp8_block", lfm2(128, 128, ("conv", "full_attention")), [128, 128], left_out=["k_proj", "v_proj"]),
    "fp8_ue8m0": lambda: fp8("fp8_ue8m0", granitemoehybrid(), [4, 32], "ue8m0"),
    "fp8_stacked": lambda: fp8("fp8_stacked", granitemoehybrid(experts=4), [32, 64], left_out=["mamba", "self_attn"],
                               stacks=True),
    "bnb_nf4": lambda: bnb4("bnb_nf4", qwen3_next(), "nf4", True, ["lm_head"]),
    "bnb_fp4": lambda: bnb4("bnb_fp4", mamba2(64, 1), "fp4", False),
    "bnb_int8": bnb8,
    "modelopt_fp8": lambda: modelopt("modelopt_fp8", jamba(), "MIXED_PRECISION", True),
    "modelopt_nvfp4": lambda: modelopt("modelopt_nvfp4", lfm2(64, 64), "NVFP4", False),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIXTURES:
        FIXTURES[name]()
        print(name)
