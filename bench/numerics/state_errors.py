#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of narrow states and attention pages on long decodes: the table of docs/numerics.md. README.md says how.

Every model first samples a text of its own in float32. Then it reads that text one token at a time (`coluber logits
--chunk 1`: each step rounds its states), once in float32 and once in each mode; logits are compared position by
position, recurrent states at the end.

  bench/numerics/state_errors.py --coluber build/coluber NAME=MODEL ...

MODEL is what `coluber logits` takes, empty for the built-in model. Needs numpy.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy

MODES = [
    ("bf16 states", ["--mamba-ssm-cache-dtype", "bfloat16"]),
    ("fp16 states", ["--mamba-ssm-cache-dtype", "float16"]),
    ("int16 states", ["--mamba-ssm-cache-dtype", "int16"]),
    ("int8 states", ["--mamba-ssm-cache-dtype", "int8"]),
    ("bf16 pages", ["--kv-cache-dtype", "bfloat16"]),
    ("fp16 pages", ["--kv-cache-dtype", "float16"]),
    ("int8 pages", ["--kv-cache-dtype", "int8"]),
    ("fp8 pages", ["--kv-cache-dtype", "fp8"]),
]


def read_tensors(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            tensors[name] = numpy.frombuffer(data[8 + size + begin : 8 + size + end], numpy.float32).reshape(entry["shape"])
    return tensors


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=-1, keepdims=True))


def sampled_text(coluber, model, count):
    command = [coluber, "run", *model, "--prompt-ids", "5", "-n", str(count - 1), "--ignore-eos", "--temperature", "1", "--seed", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [5, *json.loads(done.stdout)["output_ids"]]


def read_text(coluber, model, ids, flags):
    """Logits and states as tensors by name, or None and why not."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.safetensors")
        pathlib.Path(folder, "ids").write_text(",".join(map(str, ids)))
        command = [coluber, "logits", *model, "--ids", f"@{folder}/ids", "--out", str(out), "--chunk", "1", "--states", "--no-use-replayssm"]
        done = subprocess.run(command + flags, capture_output=True, text=True)
        if done.returncode != 0:
            return None, done.stderr.strip().splitlines()[-1]
        return read_tensors(out), ""


def state_error(base, got):
    """Of all recurrent states at the end: the norm of the difference over the norm."""
    names = [name for name in base if name.startswith("state.") and name.split(".")[2].startswith("recurrent")]
    difference = sum(numpy.square(got[name].astype(numpy.float64) - base[name]).sum() for name in names)
    whole = sum(numpy.square(base[name].astype(numpy.float64)).sum() for name in names)
    return (difference / whole) ** 0.5 if names else 0.0


def row(base, got):
    want, found = base["logits"], got["logits"]
    difference = numpy.abs(found.astype(numpy.float64) - want)
    p, q = log_softmax(want), log_softmax(found)
    kl = (numpy.exp(p) * (p - q)).sum(axis=-1)
    same = 100 * (want.argmax(axis=-1) == found.argmax(axis=-1)).mean()
    return f"{state_error(base, got):.1e} | {difference.mean():.1e} | {difference.max():.1e} | {kl.mean():.1e} | {kl.max():.1e} | {same:.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coluber", required=True)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    options = parser.parse_args()
    print("| model | mode | states, relative | logits, mean | largest | mean KL | largest KL | same first token |")
    print("|---|---|---|---|---|---|---|---|")
    for spec in options.models:
        name, _, path = spec.partition("=")
        model = [path] if path else []
        ids = sampled_text(options.coluber, model, options.tokens)
        base, why = read_text(options.coluber, model, ids, [])
        if base is None:
            sys.exit(f"{name}: {why}")
        print(f"{name}: logits spread by {base['logits'].std():.2g}", file=sys.stderr)
        for mode, flags in MODES:
            got, why = read_text(options.coluber, model, ids, flags)
            if got is None:
                print(f"{name}, {mode}: {why}", file=sys.stderr)
            elif not numpy.array_equal(got["logits"], base["logits"]):  # else the model has nothing of the kind
                print(f"| {name} | {mode} | {row(base, got)} |", flush=True)


if __name__ == "__main__":
    main()
