#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding speed of tokenizer_bench against PyPI's `tokenizers`, one thread each, in one run.

Both encode the same lines with the same tokenizer.json. Passes alternate between the two, so that a busy machine hurts both alike;
the medians are compared. The first pass of each warms its caches and is not counted. Ids are compared first: a speed that comes with
other ids would mean nothing.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"


def own_pass(binary, folder, text, reps):
    run = subprocess.run([binary, folder, "--time", text, "--reps", str(reps)], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def own_ids(binary, folder, lines):
    requests = "".join(json.dumps({"text": line, "add_special_tokens": False}) + "\n" for line in lines)
    run = subprocess.run([binary, folder], input=requests, capture_output=True, text=True, check=True)
    return [json.loads(line)["ids"] for line in run.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="tokenizer_bench")
    parser.add_argument("text", help="a UTF-8 file; every line is a text")
    parser.add_argument("folders", nargs="+", help="folders that hold a tokenizer.json")
    parser.add_argument("--rounds", type=int, default=5, help="timed passes of each (default 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object a tokenizer instead of a table")
    args = parser.parse_args()
    try:
        import tokenizers
    except ImportError:
        sys.exit("compare.py needs PyPI's tokenizers: pip install tokenizers")
    with open(args.text, encoding="utf-8", newline="\n") as file:
        lines = [line for line in file.read().split("\n") if line]
    size = sum(len(line.encode()) for line in lines)
    if not lines:
        sys.exit(f"{args.text} has no lines")
    for folder in args.folders:
        rival = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        ids = [rival.encode(line, add_special_tokens=False).ids for line in lines]  # warms the rival's cache too
        wrong = sum(a != b for a, b in zip(own_ids(args.binary, folder, lines), ids, strict=True))
        if wrong:
            sys.exit(f"{folder}: {wrong} of {len(lines)} lines have other ids")
        own, other = [], []
        for _ in range(args.rounds):
            own.append(own_pass(args.binary, folder, args.text, 2)["seconds"][1])
            start = time.perf_counter()
            for line in lines:
                rival.encode(line, add_special_tokens=False)
            other.append(time.perf_counter() - start)
        own_rate, other_rate = size / statistics.median(own) / 1e6, size / statistics.median(other) / 1e6
        result = {
            "tokenizer": folder,
            "bytes": size,
            "tokens": sum(map(len, ids)),
            "mb_per_s": round(own_rate, 2),
            "tokenizers_mb_per_s": round(other_rate, 2),
            "ratio": round(own_rate / other_rate, 2),
            "tokenizers_version": tokenizers.__version__,
        }
        if args.json:
            print(json.dumps(result), flush=True)
        else:
            print(f"{folder}: {own_rate:.1f} MB/s, tokenizers {tokenizers.__version__} {other_rate:.1f} MB/s, {result['ratio']}x", flush=True)


if __name__ == "__main__":
    main()
