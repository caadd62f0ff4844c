#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a checkpoint takes to load and how much memory that needs, against merely reading its files.

    python3 bench/load/measure.py build/coluber MODEL [--reps 5]

Reading and loading alternate; medians are shown, with the lowest and highest. Both find the files in the page cache
after the first pass, so reading is the copy of the bytes by one thread: the least that any loader does.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

WEIGHTS = (".safetensors", ".bin", ".pth", ".gguf")


def weight_files(model):
    if os.path.isfile(model):
        return [model]
    return [os.path.join(model, name) for name in sorted(os.listdir(model)) if name.endswith(WEIGHTS)]


def read_all(files):
    buffer = bytearray(16 << 20)
    start = time.monotonic()
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.monotonic() - start


def load_once(program, model):
    """Seconds to load and the peak of resident memory in bytes, of a run that generates one token."""
    with subprocess.Popen([program, "run", model, "--prompt-ids", "1", "-n", "1", "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        output = run.stdout.read()
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode != 0:
        raise SystemExit(f"measure.py: `{program} run {model}` ended with {run.returncode}; run it by hand to see why")
    return json.loads(output)["timings"]["load_s"], usage.ru_maxrss * 1024


def shown(values):
    return f"{statistics.median(values):.2f} s [{min(values):.2f} to {max(values):.2f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", help="the coluber binary")
    parser.add_argument("model", help="a model's folder or file")
    parser.add_argument("--reps", type=int, default=5)
    arguments = parser.parse_args()
    files = weight_files(arguments.model)
    if not files:
        parser.error(f"{arguments.model} holds no file that ends in {', '.join(WEIGHTS)}")
    size = sum(os.path.getsize(path) for path in files)
    read_all(files)
    reads, loads, peaks = [], [], []
    for _ in range(max(arguments.reps, 1)):
        reads.append(read_all(files))
        seconds, peak = load_once(arguments.program, arguments.model)
        loads.append(seconds)
        peaks.append(peak)
    print(f"files     {size / 1e6:.0f} MB in {len(files)}")
    print(f"reading   {shown(reads)}, {size / statistics.median(reads) / 1e9:.2f} GB/s")
    print(f"loading   {shown(loads)}, {size / statistics.median(loads) / 1e9:.2f} GB/s")
    print(f"memory    {max(peaks) / 1e6:.0f} MB at most, {max(peaks) / size:.2f} times the files")


if __name__ == "__main__":
    main()
