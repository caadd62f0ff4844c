#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies golden checkpoints into tests/data, trimmed to a few prompts, so that a clone can prove itself alone.

    tools/golden_subset.py ../shared/golden tests/data mamba jamba rwkv7_pth

copies config.json, generation_config.json, the weights and golden.json as they are, except that `prompt_lengths` names only the
prompts that are kept, and of golden.safetensors the tensors of these prompts (of the longer ones only the last logits), the hidden
states and the final states of the first layer of each kind. Source and target may be one folder: what is there is trimmed.
"""
import json
import re
import shutil
import sys
from pathlib import Path

PROMPTS = {1, 17, 64}
KEPT_LOGITS = {17: 5, 64: 1}  # rows, the last ones: what came before has left its mark in them
PER_PROMPT = re.compile(r"(input_ids|logits|greedy|greedy_margin)\.(\d+)")
WHOLE = re.compile(r"(hidden|state)\.")
COPIED = ("config.json", "generation_config.json", "model.safetensors", "pytorch_model.bin")


def read_safetensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_safetensors(path, tensors):
    header, body = {}, b""
    # 8-byte elements first, so that every tensor is aligned.
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: (item[1][0] != "I64", item[0])):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def is_kept(name, prompts):
    per_prompt = PER_PROMPT.fullmatch(name)
    return int(per_prompt[2]) in prompts if per_prompt else WHOLE.match(name) is not None


def last_rows(tensor, count):
    dtype, (rows, *rest), data = tensor
    kept = min(rows, count)
    return dtype, [kept, *rest], data[len(data) - len(data) // rows * kept:]


def layers_kept(names):
    """Numbers of the first layer with each set of states, as text."""
    states = {}
    for name in names:
        if match := re.fullmatch(r"state\.(\d+)\.(.+)", name):
            states.setdefault(int(match[1]), set()).add(match[2])
    kinds = {}
    for layer in sorted(states):
        kinds.setdefault(frozenset(states[layer]), layer)
    return {str(layer) for layer in kinds.values()}


def is_of_left_out_layer(name, layers):
    match = re.fullmatch(r"state\.(\d+)\..+", name)
    return match is not None and match[1] not in layers


def trim(source, target):
    golden = json.loads((source / "golden.json").read_text())
    golden["prompt_lengths"] = [n for n in golden["prompt_lengths"] if n in PROMPTS]
    if not golden["prompt_lengths"]:
        raise SystemExit(f"{source}: none of the prompts {sorted(PROMPTS)} is there")
    prompts = set(golden["prompt_lengths"]) | {golden.get("hidden_and_states_prompt", 17)}
    if "per_prompt" in golden:
        golden["per_prompt"] = {n: facts for n, facts in golden["per_prompt"].items() if int(n) in prompts}
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if (path.name in COPIED or path.suffix == ".pth") and source != target:
            shutil.copyfile(path, target / path.name)
    (target / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    tensors = read_safetensors(source / "golden.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if is_kept(name, prompts)}
    layers = layers_kept(kept)
    kept = {name: tensor for name, tensor in kept.items() if not is_of_left_out_layer(name, layers)}
    for prompt, rows in KEPT_LOGITS.items():
        if (name := f"logits.{prompt}") in kept:
            kept[name] = last_rows(kept[name], rows)
    write_safetensors(target / "golden.safetensors", kept)
    return sum(path.stat().st_size for path in target.iterdir())


def main(arguments):
    if len(arguments) < 3:
        raise SystemExit(__doc__)
    source, target, *names = arguments
    for name in names:
        if not (Path(source) / name / "golden.json").is_file():
            raise SystemExit(f"{source}/{name} is no golden checkpoint: it has no golden.json")
    for name in names:
        print(f"{trim(Path(source) / name, Path(target) / name):9} bytes  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
