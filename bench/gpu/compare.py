#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coluber-bench-ops against the kernels of other libraries, case by case in turn, in one run.

Rivals' cases come from scripts that time them (`peers_gpu.py`, `rivals2_gpu.py`: cases with an operation, a model, a shape,
a type of states and closures to call). Each case that coluber-bench-ops has too is timed in rounds: the rival by replays of a
graph over inputs beyond the second-level cache, then coluber-bench-ops by its own, so that a device that slows down slows both.
Medians of the rounds are compared; the spread of each is beside them. A rival that cannot be imported or fails is told and left out.

  compare.py build-cuda/coluber-bench-ops --fla DIR --mamba DIR          fla-core and mamba-ssm, unpacked, beside PyTorch and Triton
  compare.py build-cuda/coluber-bench-ops --site DIR                     FlashInfer, FlashQLA, flashrwkv2, unpacked side by side
"""
import argparse
import collections
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = os.path.join(os.path.dirname(REPOSITORY), "shared", "bench")

# A rival's operation and model -> ours.
OPERATIONS = {
    ("ssu_mamba2", "Nemotron-H-8B"): ("ssd_decode", "nemotron_h"),
    ("ssu_mamba2", "Falcon-H1-7B"): ("ssd_decode", "falcon_h1"),
    ("ssu_mamba1", "mamba-2.8b"): ("mamba1_decode", ""),
    ("gdn_decode", "Qwen3-Next-80B"): ("gdn_decode", ""),
    ("kda_decode", "Kimi-Linear-48B"): ("kda_decode", ""),
    ("lightning_decode", "MiniMax-Text-01"): ("lightning_decode", ""),
    ("rwkv7_decode", "RWKV-7-7.2B"): ("rwkv7_decode", ""),
    ("ssd_prefill", "Nemotron-H-8B"): ("ssd_prefill", ""),
    ("gdn_prefill", "Qwen3-Next-80B"): ("gdn_prefill", ""),
    ("kda_prefill", "Kimi-Linear-48B"): ("kda_prefill", ""),
    ("kda_safegate_prefill", "Kimi-Linear-48B"): ("kda_prefill", ""),
    ("lightning_prefill", "MiniMax-Text-01"): ("lightning_prefill", ""),
    ("rwkv7_prefill", "RWKV-7-7.2B"): ("rwkv7_prefill", ""),
    ("conv_prefill", "Nemotron-H-8B"): ("conv_prefill", ""),
}

Key = collections.namedtuple("Key", "op shape state batch tokens")


def key_of(case):
    """Which of our cases a rival's is; None where we have none."""
    ours = OPERATIONS.get((case.op, case.model))
    size = re.match(r"(?:B(\d+)|(\d+)x(\d+))(?: |$)", case.shape)
    if ours is None or size is None or getattr(case, "whole", False):
        return None
    if re.search(r"philox|x[2-9] |x1[0-9] ", case.dtype + " ") or (case.op.endswith("decode") and size[3] not in (None, "1")):
        return None  # rounding by chance, several tokens a step
    state = re.search(r"state (\w+)", case.dtype)
    batch, tokens = int(size[1] or size[2]), int(size[3] or 1)
    return Key(*ours, state[1] if state else "float32", batch, tokens)


def arguments_of(key):
    arguments = ["--op", key.op, "--state", key.state, "--batch", str(key.batch), "--json"]
    if key.shape:
        arguments += ["--shape", key.shape]
    if key.op.endswith("prefill"):
        arguments += ["--tokens", str(key.tokens)]
    return arguments


def own_row(binary, key):
    run = subprocess.run([binary, *arguments_of(key)], capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(run.stderr.strip() or f"{binary} ended with {run.returncode}")
    result = json.loads(run.stdout)
    (row,) = result["rows"]
    return row, result


def own_operations(binary):
    """What this build of coluber-bench-ops times, from its help."""
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
    return {op for op, _ in OPERATIONS.values() if re.search(rf"\b{op}\b", text)}


class Rival:
    """One case of a rival: `time` gives microseconds of one call."""

    def __init__(self, script, case):
        self.script, self.case, self.calls, self.guess = script, case, None, 0.0
        self.label = f"{case.lib} {case.op}, {case.shape}, {case.dtype}"

    def prepare(self):
        torch, peers = self.script.torch, self.script.peers
        self.calls = self.case.make(peers.sets_for(self.case.nbytes, 96))
        for _ in range(2):  # the first call compiles and tunes
            self.calls[0]()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for call in self.calls[:4]:
            call()
        end.record()
        end.synchronize()
        self.guess = begin.elapsed_time(end) / len(self.calls[:4])

    def time(self):
        return 1000 * self.script.peers.time_graph(self.calls, self.guess)

    def drop(self):
        self.calls = None
        self.script.torch.cuda.empty_cache()


class Script:
    """A script of rivals' cases as a module."""

    def __init__(self, name, folder):
        sys.path.insert(0, folder)
        self.module = importlib.import_module(name)
        self.torch = importlib.import_module("torch")
        self.peers = importlib.import_module("peers_gpu")
        self.peers.set_up_peers()
        self.peers.quick_autotune(None)

    def rivals(self):
        return [Rival(self, case) for case in self.module.all_cases()]


def spread(values):
    return f"{min(values):.1f} to {max(values):.1f}" if len(values) > 1 else ""


class LeftOut:
    """Tells why rivals are left out, each reason of a library once."""

    def __init__(self):
        self.told = set()

    def __call__(self, rival, error):
        reason = f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[0][:200]
        if (rival.case.lib, reason) not in self.told:
            self.told.add((rival.case.lib, reason))
            print(f"left out: {rival.label}: {reason}", flush=True)


def compare(key, rivals, binary, rounds, leave_out):
    """A row of the table; None where no rival ran."""
    ready = []
    for rival in rivals:
        try:
            rival.prepare()
            ready.append(rival)
        except Exception as error:  # whatever a rival raises
            leave_out(rival, error)
            rival.drop()
    times = {rival: [] for rival in ready}
    ours, device = [], {}
    for _ in range(rounds if ready else 0):
        for rival in list(ready):
            try:
                times[rival].append(rival.time())
            except Exception as error:
                leave_out(rival, error)
                ready.remove(rival)
        row, device = own_row(binary, key)
        ours.append(row["us"])
    for rival in rivals:
        rival.drop()
    if not ready:
        return None
    own = statistics.median(ours)
    return {
        **key._asdict(), "us": own, "us_rounds": ours, "copy_gbps": device["copy_gbps"],
        "rivals": sorted(({"name": rival.label, "us": statistics.median(times[rival]), "us_rounds": times[rival],
                           "ratio": statistics.median(times[rival]) / own} for rival in ready), key=lambda r: r["us"]),
    }


def print_row(row):
    first = True
    for rival in row["rivals"]:
        own = f"{row['us']:.1f} ({spread(row['us_rounds'])})" if first else ""
        name = f"{row['op']} {row['shape']} {row['state']} {row['batch']}x{row['tokens']}" if first else ""
        print(f"{name:<44} {own:<28} {rival['us']:>8.1f} ({spread(rival['us_rounds'])})".ljust(110) +
              f" {rival['ratio']:.2f}x  {rival['name']}", flush=True)
        first = False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="coluber-bench-ops")
    parser.add_argument("--scripts", default=SCRIPTS, help=f"folder of peers_gpu.py and rivals2_gpu.py (default: {SCRIPTS})")
    parser.add_argument("--fla", help="folder that holds fla-core's package `fla`")
    parser.add_argument("--mamba", help="folder that holds mamba-ssm's package `mamba_ssm`")
    parser.add_argument("--site", help="folder that holds the packages of rivals2_gpu.py")
    parser.add_argument("--only", default="", help="our operations whose name begins with one of these, separated by commas")
    parser.add_argument("--sizes", default="", help="such sizes alone, as 256x1,1x8192: sequences x tokens")
    parser.add_argument("--rounds", type=int, default=3, help="timings of each side of a case (default 3)")
    parser.add_argument("--budget", type=float, default=1e9, help="begin no case after so many seconds")
    parser.add_argument("--json", help="write all figures to this file, too")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, found {args.rounds}")
    if not (args.fla or args.mamba or args.site):
        parser.error("name at least one of --fla, --mamba and --site: without them there is no rival")
    names = (["peers_gpu"] if args.fla or args.mamba else []) + (["rivals2_gpu"] if args.site else [])
    for name in ["peers_gpu", *names]:
        if not os.path.exists(os.path.join(args.scripts, name + ".py")):
            parser.error(f"--scripts must hold {name}.py, found none in {args.scripts}")
    for variable, value in (("PEERS_FLA", args.fla), ("PEERS_MAMBA", args.mamba), ("R2", args.site)):
        if value:
            os.environ[variable] = os.path.abspath(value)
    begin = time.monotonic()
    has = own_operations(args.binary)
    cases = collections.OrderedDict()
    scripts = [Script(name, args.scripts) for name in names]
    for script in scripts:
        for rival in script.rivals():
            if (rival.case.lib == "fla" and not args.fla) or (rival.case.lib == "mamba_ssm" and not args.mamba):
                continue
            key = key_of(rival.case)
            wanted = key and key.op in has and any(key.op.startswith(part) for part in args.only.split(","))
            if wanted and (not args.sizes or f"{key.batch}x{key.tokens}" in args.sizes.split(",")):
                cases.setdefault(key, []).append(rival)
    if not cases:
        sys.exit("compare.py: no case of the rivals is one of coluber-bench-ops; look at --only and --sizes")
    torch = scripts[0].torch
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; microseconds (least to most of {args.rounds} rounds); the ratio is the rival's time "
          f"over ours\n\n{'case':<44} {'ours':<28} {'rival':<34} ratio")
    rows, skipped, leave_out = [], 0, LeftOut()
    with torch.no_grad():
        for key, rivals in cases.items():
            if time.monotonic() - begin > args.budget:
                skipped += 1
                continue
            row = compare(key, rivals, args.binary, args.rounds, leave_out)
            if row:
                rows.append(row)
                print_row(row)
    slower = [row for row in rows if row["rivals"][0]["ratio"] < 1]
    print(f"\n{len(rows)} cases compared, the best rival is faster in {len(slower)}" + (f"; {skipped} not begun for --budget" if skipped else ""))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
