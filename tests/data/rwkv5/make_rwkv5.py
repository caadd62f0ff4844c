#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rwkv5.json: logits that the package `rwkv` (0.8.32, CPU, fp32, token by token) gives for RWKV-5.0 and 5.1, whose
checkpoints are that of tests/data/rwkv5_2 as one of four heads, each with the decay and the bonus of its first channel, and
without a gate in 5.0."""

import json
import os
import pathlib
import tempfile

os.environ["RWKV_JIT_ON"] = "0"
os.environ["RWKV_CUDA_ON"] = "0"
import torch  # noqa: E402
from rwkv.model import RWKV  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parent / "rwkv5_2"


def older(weights: dict, gate: bool, log_bonus: bool) -> dict:
    out = {}
    for name, value in weights.items():
        if ".att.gate" in name or name.endswith("att.time_mix_g"):
            if gate:
                out[name] = value
        elif name.endswith("time_decay"):
            out[name] = value.flatten()[::16].clone()
        elif name.endswith("time_faaaa"):
            bonus = value.flatten()[::16].clone()
            out[name.replace("time_faaaa", "time_first") if log_bonus else name] = bonus
        else:
            out[name] = value
    return out


def main():
    stored = torch.load(next(SOURCE.glob("*.pth")), map_location="cpu", weights_only=True)
    weights = {name: value.float() for name, value in stored.items()}  # or it norms the embedding in bfloat16
    ids = load_file(SOURCE / "golden.safetensors")["input_ids.17"].tolist()
    result = {"ids": ids, "models": []}
    for gate in (False, True):
        for log_bonus in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                torch.save(older(weights, gate, log_bonus), folder + "/model.pth")
                model = RWKV(model=folder + "/model", strategy="cpu fp32")
                state, logits = None, None
                for token in ids:
                    logits, state = model.forward([token], state)
            result["models"].append({"gate": gate, "log_bonus": log_bonus, "version": model.version,
                                     "logits": [round(x, 6) for x in logits.tolist()]})
    (HERE / "rwkv5.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


main()
