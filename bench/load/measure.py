#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a checkpoint takes to load and how much memory that needs, against merely reading its files.

    python3 bench/load/measure.py build/coluber MODEL [--reps 5]

Three things alternate; medians are shown, with the lowest and highest. All find the files in the page cache after the
first pass.

    reading   the copy of the bytes by one thread to a buffer that the caches hold
    holding   the same to memory that the system has to give first, in huge pages where it has them: the least that any
              loader does that ends with the weights in memory of its own; where the machine is a guest whose host takes
              free memory back, most of it is the host's work
    loading   what the program says of itself: weights, tokenizer, packing
    work      processor time of all threads of that run, one token among it: the program's own, and the system's for
              pages and files; neighbours hardly change it
"""
import argparse
import json
import mmap
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


def hold_all(files, size):
    start = time.monotonic()
    with mmap.mmap(-1, size) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        at = 0
        with memoryview(memory) as view:
            for path in files:
                with open(path, "rb", buffering=0) as file:
                    while at < size and (count := file.readinto(view[at:at + (16 << 20)])):
                        at += count
        return time.monotonic() - start


def load_once(program, model):
    """Seconds to load and what the system counted, of a run that generates one token."""
    with subprocess.Popen([program, "run", model, "--prompt-ids", "1", "-n", "1", "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        output = run.stdout.read()
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode != 0:
        raise SystemExit(f"measure.py: `{program} run {model}` ended with {run.returncode}; run it by hand to see why")
    return json.loads(output)["timings"]["load_s"], usage


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
    reads, holds, loads, own, of_system, peaks = [], [], [], [], [], []
    for _ in range(max(arguments.reps, 1)):
        reads.append(read_all(files))
        holds.append(hold_all(files, size))
        seconds, usage = load_once(arguments.program, arguments.model)
        loads.append(seconds)
        own.append(usage.ru_utime)
        of_system.append(usage.ru_stime)
        peaks.append(usage.ru_maxrss * 1024)
    print(f"files     {size / 1e6:.0f} MB in {len(files)}")
    print(f"reading   {shown(reads)}, {size / statistics.median(reads) / 1e9:.2f} GB/s")
    print(f"holding   {shown(holds)}, {size / statistics.median(holds) / 1e9:.2f} GB/s")
    print(f"loading   {shown(loads)}, {size / statistics.median(loads) / 1e9:.2f} GB/s")
    print(f"work      {shown(own)}, the system's {shown(of_system)}")
    print(f"memory    {max(peaks) / 1e6:.0f} MB at most, {max(peaks) / size:.2f} times the files")


if __name__ == "__main__":
    main()
