#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of narrow states and attention pages on long decodes, as the table of docs/numerics.md.

Every model reads the same tokens one at a time (`coluber logits --chunk 1`: each step rounds its states), once in
float32 and once in each mode; the logits are compared position by position.

  bench/numerics/state_errors.py --coluber build/release/coluber --tokens 512 NAME=MODEL[,IDS] ...

MODEL is what `coluber logits` takes, empty for the built-in model; IDS a file of token ids ("1,2,3"), else ids below
250 from a fixed generator. Needs numpy.
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
    ("int8 pages", ["--kv-cache-dtype", "int8"]),
    ("fp8 pages", ["--kv-cache-dtype", "fp8"]),
]


def made_up_ids(count):
    ids, state = [], 1 * 2654435761 + 12345
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        ids.append((state >> 8) % 250)
    return ids


def read_logits(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + size])["logits"]
    begin, end = entry["data_offsets"]
    assert entry["dtype"] == "F32", entry
    return numpy.frombuffer(data[8 + size + begin : 8 + size + end], numpy.float32).reshape(entry["shape"])


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=-1, keepdims=True))


def run(coluber, model, ids, flags):
    with tempfile.TemporaryDirectory() as folder:
        ids_path, out = pathlib.Path(folder, "ids"), pathlib.Path(folder, "out.safetensors")
        ids_path.write_text(",".join(map(str, ids)))
        command = [coluber, "logits", *([model] if model else []), "--ids", f"@{ids_path}", "--out", str(out), "--chunk", "1", "--no-use-replayssm"]
        done = subprocess.run(command + flags, capture_output=True, text=True)
        if done.returncode != 0:
            return None, done.stderr.strip().splitlines()[-1]
        return read_logits(out), ""


def compare(base, got):
    difference = numpy.abs(got.astype(numpy.float64) - base)
    p, q = log_softmax(base), log_softmax(got)
    kl = (numpy.exp(p) * (p - q)).sum(axis=-1)
    same = (base.argmax(axis=-1) == got.argmax(axis=-1)).mean()
    return difference.max(), difference.mean(), kl.mean(), kl.max(), same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coluber", required=True)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL[,IDS]")
    options = parser.parse_args()
    print("| model | mode | largest difference | mean difference | mean KL | largest KL | same first token |")
    print("|---|---|---|---|---|---|---|")
    for spec in options.models:
        name, _, rest = spec.partition("=")
        model, _, ids_file = rest.partition(",")
        ids = made_up_ids(options.tokens)
        if ids_file:
            ids = [int(i) for i in pathlib.Path(ids_file).read_text().split(",")][: options.tokens]
        base, why = run(options.coluber, model, ids, [])
        if base is None:
            sys.exit(f"{name}: {why}")
        print(f"| {name} | float32: spread of logits {base.std():.3g} | | | | | |")
        for mode, flags in MODES:
            got, why = run(options.coluber, model, ids, flags)
            if got is None:
                print(f"{name}, {mode}: {why}", file=sys.stderr)
                continue
            if numpy.array_equal(got, base):
                continue  # the model has nothing of the kind
            largest, mean, kl, worst_kl, same = compare(base, got)
            print(f"| {name} | {mode} | {largest:.2e} | {mean:.2e} | {kl:.1e} | {worst_kl:.1e} | {100 * same:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
