#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fla.json: logits that flash-linear-attention's own modelling code gives, in float64 with its kernels replaced by
plain recurrences, for checkpoints of tests/data under flags that they do not have. Needs the sources of the packages
flash-linear-attention and fla-core (made with 0.6.0) in the folder given, and transformers."""

import argparse
import importlib.util
import json
import math
import pathlib
import sys
import types

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from transformers.activations import ACT2FN

HERE = pathlib.Path(__file__).parent
CASES = [
    ("delta_net_b", {"qk_activation": "elu"}),
    ("delta_net_b", {"qk_activation": "identity", "qk_norm": "sum"}),
    ("delta_net_b", {"qk_activation": "silu", "use_short_conv": False}),
    ("delta_net_b", {"qk_activation": "relu", "qk_norm": "l2", "use_short_conv": False}),
    ("gated_deltanet", {"output_gate_activation": "sigmoid"}),
    ("gated_deltanet", {"use_short_conv": False}),
    ("gla", {"feature_map": "relu"}),
    ("gla", {"feature_map": "sqrelu"}),
    ("gla", {"feature_map": "gelu"}),
    ("retnet", {"feature_map": "gelu"}),
    ("retnet", {"feature_map": "tanh"}),
]
CLASSES = {"delta_net": "DeltaNet", "gated_deltanet": "GatedDeltaNet", "gla": "GLA", "retnet": "RetNet"}


def l2(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def delta(q, k, v, beta, g=None, use_qk_l2norm_in_kernel=False, **_):
    if use_qk_l2norm_in_kernel:
        q, k = l2(q), l2(k)
    k, q = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (k, q))
    state, out = torch.zeros(v.shape[2], k.shape[-1], v.shape[-1]), []
    for t in range(q.shape[1]):
        if g is not None:
            state = state * g[0, t].exp()[:, None, None]
        new = beta[0, t][:, None] * (v[0, t] - torch.einsum("hk,hkv->hv", k[0, t], state))
        state = state + torch.einsum("hk,hv->hkv", k[0, t], new)
        out.append(torch.einsum("hk,hkv->hv", q[0, t] * q.shape[-1] ** -0.5, state))
    return torch.stack(out)[None], None


def gated_delta(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, **_):
    decay = -A_log.exp() * F.softplus(g + dt_bias)
    return delta(q, k, v, beta.sigmoid() * (2 if allow_neg_eigval else 1), decay, True)


def linear(q, k, v, decay):
    state, out = torch.zeros(v.shape[2], k.shape[-1], v.shape[-1]), []
    for t in range(q.shape[1]):
        state = state * decay[t].exp()[..., None] + torch.einsum("hk,hv->hkv", k[0, t], v[0, t])
        out.append(torch.einsum("hk,hkv->hv", q[0, t] * q.shape[-1] ** -0.5, state))
    return torch.stack(out)[None], None


def gla(q, k, v, gk=None, g=None, **_):
    return linear(q, k, v, (gk if gk is not None else g)[0])


def retention(q, k, v, **_):
    slopes = torch.log1p(-torch.exp2(-5.0 - torch.arange(q.shape[2], dtype=torch.float64)))
    return linear(q, k, v, slopes[None, :, None].expand(q.shape[1], -1, q.shape[-1]))


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-5, elementwise_affine=True, activation="swish", **_):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size)) if elementwise_affine else None
        self.eps, self.gate = eps, torch.sigmoid if activation == "sigmoid" else F.silu

    def forward(self, x, residual=None, prenorm=False):
        total = x if residual is None else x + residual
        y = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + self.eps)
        y = y if self.weight is None else y * self.weight
        return (y, total) if prenorm else y


class GatedRMSNorm(RMSNorm):
    def forward(self, x, gate):
        return self.gate(gate) * super().forward(x)


class ShortConvolution(nn.Module):
    def __init__(self, hidden_size, kernel_size, bias=False, activation=None, **_):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size, 1, kernel_size))
        self.activation, self.kernel_size, self.backend = activation, kernel_size, "torch"

    def forward(self, x, **_):
        padded = F.pad(x.transpose(1, 2), (self.kernel_size - 1, 0))
        y = F.conv1d(padded, self.weight, groups=self.weight.shape[0]).transpose(1, 2)
        return (F.silu(y) if self.activation else y), None


def causal_conv1d(x, weight, bias=None, activation=None, **_):
    padded = F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    y = F.conv1d(padded, weight[:, None], groups=weight.shape[0]).transpose(1, 2)
    return (F.silu(y) if activation else y), None


class Rotary(nn.Module):
    def __init__(self, dim, base=10000.0, **_):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, q, k, **_):
        turns = self.base ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        angles = torch.outer(torch.arange(q.shape[1], dtype=torch.float64), turns)[:, None]

        def turn(x):
            a, b = x.chunk(2, -1)
            return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

        return turn(q), turn(k)


def rearrange(x, pattern, d=None, **_):
    if pattern.endswith("... (h d)") or pattern.endswith("b t (h d)"):
        return x.reshape(*x.shape[:-2], -1)
    return x.view(*x.shape[:-1], -1, d)


def repeat(x, pattern, g=1, d=None):
    return (x if d is None else x.view(*x.shape[:-1], -1, d)).repeat_interleave(g, -2)


class Anything(types.ModuleType):
    """Whatever else the sources import, and do not use here."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def enter(name: str, **members):
    module = Anything(name)
    module.__dict__.update(members)
    module.__path__ = []
    sys.modules[name] = module


def load(folder: pathlib.Path, name: str):
    spec = importlib.util.spec_from_file_location(name, folder / (name.replace(".", "/") + ".py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def prepare(folder: pathlib.Path):
    for name in ("fla", "fla.layers", "fla.models", "fla.ops", "fla.ops.utils", "fla.ops.utils.index", "fla.ops.attnres",
                 "fla.models.cache_utils", "fla.models.generation_utils", "fla.modules.l2warp", "fla.layers.attn",
                 "flash_attn", "fla.utils", "fla.modules.token_shift"):
        enter(name)
    enter("einops", rearrange=rearrange, repeat=repeat)
    swiglu = lambda x, y: F.silu(x) * y  # noqa: E731
    enter("fla.modules.activations", swiglu=swiglu,
          swiglu_linear=lambda x, y, w, b: F.linear(swiglu(x, y), w, b), elu_p1=lambda x: F.elu(x) + 1,
          ACT2FN={"relu": F.relu, "sigmoid": torch.sigmoid, "silu": F.silu, "swish": F.silu,
                  "sqrelu": lambda x: F.relu(x) ** 2, "gelu": gelu_tanh})
    enter("fla.modules", RMSNorm=RMSNorm, FusedRMSNormGated=GatedRMSNorm, ShortConvolution=ShortConvolution)
    enter("fla.modules.convolution", causal_conv1d=causal_conv1d)
    enter("fla.modules.rotary", RotaryEmbedding=Rotary)
    sys.modules["fla.modules"].__dict__["GatedMLP"] = load(folder, "fla.modules.mlp").GatedMLP
    enter("fla.layers.utils", get_layer_cache=lambda *a, **k: None, update_layer_cache=lambda *a, **k: None,
          repad_hidden_states=lambda hidden_states, *a, **k: hidden_states,
          unpad_hidden_states=lambda hidden_states, cu_seqlens=None, *a, **k: (hidden_states, None, cu_seqlens))
    enter("fla.ops.delta_rule", chunk_delta_rule=delta, fused_recurrent_delta_rule=delta)
    enter("fla.ops.gated_delta_rule", chunk_gated_delta_rule=gated_delta, fused_recurrent_gated_delta_rule=gated_delta)
    enter("fla.ops.gla", chunk_gla=gla, fused_recurrent_gla=gla, fused_chunk_gla=gla)
    enter("fla.ops.retention", fused_recurrent_retention=retention, chunk_retention=retention,
          fused_chunk_retention=retention, parallel_retention=retention)
    load(folder, "fla.models.configuration_utils")
    load(folder, "fla.models.modeling_utils")


def logits_of(folder: pathlib.Path, checkpoint: str, changes: dict, ids: list[int]):
    config = {**json.loads((HERE.parent / checkpoint / "config.json").read_text()), **changes}
    kind = config["model_type"]
    enter(f"fla.models.{kind}")
    name = CLASSES[kind]
    config_class = getattr(load(folder, f"fla.models.{kind}.configuration_{kind}"), f"{name}Config")
    layer = {"gla": "gla", "retnet": "multiscale_retention"}.get(kind, kind)
    load(folder, f"fla.layers.{layer}")
    model_class = getattr(load(folder, f"fla.models.{kind}.modeling_{kind}"), f"{name}ForCausalLM")
    model = model_class(config_class.from_dict({**config, "torch_dtype": "float64"})).double().eval()
    stored = {k: v.double() for k, v in load_file(HERE.parent / checkpoint / "model.safetensors").items()}
    keys = model.load_state_dict(stored, strict=False)
    assert not keys.missing_keys, keys
    assert all("conv1d" in key for key in keys.unexpected_keys) and (
        not keys.unexpected_keys or changes.get("use_short_conv") is False), keys
    backbone = model.model if hasattr(model, "model") else model.backbone
    with torch.no_grad():
        hidden = backbone(torch.tensor([ids]), use_cache=False, return_dict=True).last_hidden_state
        return model.lm_head(hidden)[0, -1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=pathlib.Path, help="the folder that holds fla/")
    folder = parser.parse_args().sources
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = lambda self, *_: self.double()
    prepare(folder)
    out = []
    for checkpoint, changes in [(name, {}) for name in sorted({name for name, _ in CASES})] + CASES:
        golden = load_file(HERE.parent / checkpoint / "golden.safetensors")
        ids = golden["input_ids.17"].tolist()
        got = logits_of(folder, checkpoint, changes, ids)
        if not changes:  # the recurrences above are right where the golden values are
            error = (got - golden["logits.17"][-1].double()).abs().max().item()
            assert error < 1e-5 and not math.isnan(error), (checkpoint, error)
            continue
        out.append({"checkpoint": checkpoint, "changes": changes, "logits": [round(x, 6) for x in got.tolist()]})
    (HERE / "fla.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


main()
