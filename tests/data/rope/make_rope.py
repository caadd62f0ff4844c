#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rope.json: configs in published spellings with the frequencies that transformers computes for them (in
float64), and with --logits the logits of tests/data/lfm2 under two of them. Made with transformers 5.17.0."""

import argparse
import json
import pathlib

import torch
from safetensors.torch import load_file
from transformers import Lfm2Config, Lfm2ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = pathlib.Path(__file__).parent
SHORT = [1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.0, 2.5]
LONG = [1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 20.0, 32.0]
PLAIN = {"rope_theta": 10000.0}
CASES = [
    {**PLAIN},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    {**PLAIN, "partial_rotary_factor": 0.5},
    {**PLAIN, "rope_scaling": {"type": "linear", "factor": 4.0}},
    {**PLAIN, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 32.0, "low_freq_factor": 0.5,
                         "high_freq_factor": 8.0, "original_max_position_embeddings": 128}},
    {**PLAIN, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    {**PLAIN, "rope_scaling": {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 32, "beta_fast": 16,
                               "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}},
    {**PLAIN, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                               "mscale": 0.707}},
    {**PLAIN, "rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 64}},
    {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "attention_factor": 0.75}},
    {**PLAIN, "original_max_position_embeddings": 32,
     "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}},
    {**PLAIN, "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 3.0,
                               "original_max_position_embeddings": 128}},
    {**PLAIN, "rope_scaling": {"type": "longrope", "short_factor": SHORT[:4], "long_factor": LONG[:4],
                               "original_max_position_embeddings": 16, "attention_factor": 1.25},
     "partial_rotary_factor": 0.5},
    {"rope_parameters": {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
    {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1000.0, "factor": 8.0}},
    # Both objects: the older one counts, and the other's base is lost; an empty one does not.
    {"rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 5.0}},
    {"rope_theta": 700.0, "rope_scaling": {}, "rope_parameters": {"rope_theta": 50.0}},
    {"rope_theta": 700.0, "rope_scaling": None, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
]
LOGITS_CASES = {
    "longrope": {"max_position_embeddings": 512, "rope_scaling": {
        "type": "longrope", "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0], "long_factor": [1.0, 3.0, 6.0, 9.0, 12.0, 24.0],
        "original_max_position_embeddings": 32}},
    "yarn": {"max_position_embeddings": 512, "rope_scaling": {
        "type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32}},
}


def frequencies(case: dict) -> dict:
    config = Lfm2Config.from_dict({"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 256, **case})
    config.head_dim = 16
    rope = config.rope_parameters
    kind = rope["rope_type"]
    if kind == "default":
        dim = int(16 * rope.get("partial_rotary_factor", 1.0))
        turns = rope["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        return {"frequencies": turns.tolist(), "attention_factor": 1.0}
    turns, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    result = {"frequencies": turns.double().tolist(), "attention_factor": factor}
    if kind == "longrope":
        beyond = rope["original_max_position_embeddings"]
        result["long_beyond"] = beyond
        result["long_frequencies"] = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=beyond + 1)[0].double().tolist()
    return result


def logits(case: dict, ids: list[int]) -> list[float]:
    """Of the last token, over the whole sequence at once."""
    folder = HERE.parent / "lfm2"
    config = Lfm2Config.from_dict({**json.loads((folder / "config.json").read_text()), "rope_parameters": None,
                                   "rope_theta": 10000.0, "torch_dtype": "float64", "dtype": "float64", **case})
    config._attn_implementation = "eager"
    model = Lfm2ForCausalLM(config).double().eval()
    missing = model.load_state_dict({k: v.double() for k, v in load_file(folder / "model.safetensors").items()},
                                    strict=False)
    assert not missing.unexpected_keys and missing.missing_keys in ([], ["lm_head.weight"]), missing
    model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1].tolist()


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    table = []
    for case in CASES:
        full = {"max_position_embeddings": 256, **case}
        text = json.loads(json.dumps(full))
        table.append({"config": text, **frequencies(json.loads(json.dumps(case)))})
    ids = [int(x) for x in load_file(HERE.parent / "lfm2" / "golden.safetensors")["input_ids.64"]]
    models = []
    for name, case in LOGITS_CASES.items():
        rows = {str(n): [round(x, 7) for x in logits(json.loads(json.dumps(case)), ids[:n])] for n in (20, 32, 33, 64)}
        models.append({"name": name, "config": {"rope_parameters": None, "rope_theta": 10000.0, **case}, "logits": rows})
    out = {"head_dim": 16, "table": table, "ids": ids, "models": models}
    (HERE / "rope.json").write_text(json.dumps(out, indent=None, separators=(",", ":")) + "\n")


main()
