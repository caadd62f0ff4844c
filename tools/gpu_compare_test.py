#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of bench/gpu/compare.py without a GPU: a script of rivals and a coluber-bench-ops that answer what they are told to."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

COMPARE = Path(__file__).resolve().parent.parent / "bench" / "gpu" / "compare.py"

TORCH = """
    import contextlib
    __version__ = "0"
    no_grad = contextlib.nullcontext
    class Event:
        def __init__(self, enable_timing): pass
        def record(self): pass
        def synchronize(self): pass
        def elapsed_time(self, other): return 1.0
    class cuda:
        Event = Event
        get_device_name = staticmethod(lambda: "a device")
        synchronize = empty_cache = staticmethod(lambda: None)
"""
PEERS = """
    import json, os
    TIMES = {}
    class Case:
        def __init__(self, op, lib, model, shape, dtype, us, error=None):
            self.op, self.lib, self.model, self.shape, self.dtype, self.us, self.error = op, lib, model, shape, dtype, us, error
            self.nbytes = 1
        def make(self, sets):
            if self.error:
                raise ImportError(self.error)
            return [lambda: TIMES.update(us=self.us)]
    def all_cases():
        return [Case(*case) for case in json.loads(os.environ["RIVALS"])]
    def set_up_peers(): pass
    def quick_autotune(precompile): pass
    def sets_for(nbytes, most): return 1
    def time_graph(calls, guess):
        calls[0]()
        return TIMES["us"] / 1000
"""
BENCH = """
    import json, sys
    if "--help" in sys.argv:
        print("ssd_decode, ssd_prefill, mamba1_decode")
    else:
        print(json.dumps({"copy_gbps": 4000, "rows": [{"us": 100.0, "arguments": sys.argv[1:]}]}))
"""


class Compare(unittest.TestCase):
    def run_with(self, rivals, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "torch.py").write_text(textwrap.dedent(TORCH))
            (folder / "peers_gpu.py").write_text(textwrap.dedent(PEERS))
            bench = folder / "bench"
            bench.write_text(f"#!{sys.executable}\n" + textwrap.dedent(BENCH))
            bench.chmod(bench.stat().st_mode | stat.S_IXUSR)
            out = folder / "out.json"
            run = subprocess.run(
                [sys.executable, "-B", COMPARE, bench, "--scripts", folder, "--fla", folder, "--mamba", folder, "--json", out, *arguments],
                capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(folder), "RIVALS": json.dumps(rivals)})
            return run, json.loads(out.read_text())["rows"] if out.exists() else []

    def test_a_case_has_every_rival_and_the_best_is_first(self):
        run, rows = self.run_with([["ssu_mamba2", "mamba_ssm", "Nemotron-H-8B", "B256 H128 P64 N128 G8", "state bfloat16", 150.0],
                                   ["ssu_mamba2", "fla", "Nemotron-H-8B", "B256 H128 P64 N128 G8", "state bfloat16", 90.0],
                                   ["ssd_prefill", "mamba_ssm", "Nemotron-H-8B", "1x8192 chunk256", "bf16", 300.0]])
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual([(row["op"], row["state"], row["batch"], row["tokens"]) for row in rows],
                         [("ssd_decode", "bfloat16", 256, 1), ("ssd_prefill", "float32", 1, 8192)])
        self.assertEqual([round(rival["ratio"], 3) for rival in rows[0]["rivals"]], [0.9, 1.5])
        self.assertEqual(rows[1]["rivals"][0]["us_rounds"], [300.0] * 3)
        self.assertIn("2 cases compared, the best rival is faster in 1", run.stdout)

    def test_cases_that_ours_are_not_are_not_compared(self):
        others = [["gdn_decode", "fla", "Qwen3-Next-80B", "1x1 H16/32 K128 V128", "bf16, state float32", 9.0],  # this build has none
                  ["ssu_mamba2", "mamba_ssm", "Another", "B1 H1 P64 N128 G8", "state float32", 9.0],
                  ["ssu_mamba2", "mamba_ssm", "Nemotron-H-8B", "B8 H128 P64 N128 G8", "state float16 philox", 9.0]]
        run, _ = self.run_with(others)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("no case of the rivals", run.stderr)

    def test_a_rival_that_fails_is_told_and_left_out(self):
        case = ["ssu_mamba1", "mamba_ssm", "mamba-2.8b", "B8 D5120 N16", "state float32", 120.0]
        run, rows = self.run_with([case + ["no module named so"], case], "--rounds", "2")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("no module named so", run.stdout)
        self.assertEqual([len(row["rivals"]) for row in rows], [1])
        self.assertEqual(rows[0]["rivals"][0]["us_rounds"], [120.0] * 2)

    def test_arguments_are_checked(self):
        run, _ = self.run_with([], "--rounds", "0")
        self.assertIn("--rounds must be at least 1, found 0", run.stderr)


if __name__ == "__main__":
    unittest.main()
