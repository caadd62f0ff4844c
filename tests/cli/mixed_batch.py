# SPDX-License-Identifier: Apache-2.0
"""`coluber batch` over thousands of requests of all lengths in a pool for a tenth of them, beside each request alone.

As a program it does so for one model after the other, in every cache mode, and prints a table; it ends with 1 where an
answer differs. `batch_test.Mixed` is its short form for one model. Only the standard library is used.
"""
import argparse
import bisect
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from harness import BUILTIN, DATA, coluber

FAMILIES = ["mamba", "mamba2", "lfm2", "gated_deltanet", "qwen3_next_bf16", "kimi_linear", "rwkv7_fla", "nemotron_h_bf16",
            "granitemoehybrid_bf16", "minimax", "recurrent_gemma"]
MODES = ["auto", "all", "align"]
CLOSE = 1e-4  # two tokens whose log-probabilities are nearer than this may change places where nothing is deterministic
LONGEST_ANSWER = 24
BLOCK = 16  # tokens of an attention page


def mixed_requests(count, seed, longest, vocab):
    """Lengths 1 to `longest`, a third of them behind shared prefixes, one in twenty cancelled."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(3, vocab) for _ in range(rng.randrange(longest // 8, longest // 2))] for _ in range(5)]
    requests = []
    for i in range(count):
        length = int(longest ** rng.random())
        ids = [rng.randrange(3, vocab) for _ in range(max(1, length))]
        if rng.random() < 0.3:
            ids = (rng.choice(prefixes) + ids)[:longest]
        request = {"id": f"r{i}", "prompt_ids": ids, "max_tokens": rng.randrange(1, LONGEST_ANSWER), "ignore_eos": True, "temperature": 0}
        if rng.random() < 0.05:
            request["cancel_after_tokens"] = rng.randrange(0, 8)
        requests.append(request)
    return requests


def common(a, b):
    """How many tokens both begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def oracle_tokens(requests, answers):
    """Prompt tokens that somebody computes who keeps all that was ever computed, and forgets nothing."""
    computed, known = 0, []
    for request in requests:
        prompt = request["prompt_ids"]
        at = bisect.bisect_left(known, prompt)
        # What begins most alike stands beside it.
        found = max((common(prompt, other) for other in known[max(0, at - 1):at + 1]), default=0)
        computed += len(prompt) - min(found, len(prompt) - 1)
        bisect.insort(known, prompt + answers[request["id"]]["outputs"][0]["ids"])
    return computed


def pool_bytes(facts, requests, part=0.1):
    """Memory for so many of the requests at once, and always for one of the longest."""
    def need(request):
        tokens = len(request["prompt_ids"]) + request["max_tokens"]
        return facts["state_bytes_per_sequence"] + -(-tokens // BLOCK) * BLOCK * facts["kv_bytes_per_token"]
    needs = [need(request) for request in requests]
    return int(max(part * sum(needs), 4 * max(needs)))


def prompt_work(stats):
    """Tokens computed but for those of answers: prompts, and what was computed again."""
    # The last token of an answer is not computed; an answer of one that was cancelled ends with such a token too.
    return stats["computed_tokens"] - (stats["completion_tokens"] - stats["requests"]["done"])


def first_difference(want, have):
    """Where the answers part, and how sure the first was of its token there; None where they are the same."""
    if want["ids"] == have["ids"] and want["finish_reason"] == have["finish_reason"]:
        return None
    at = common(want["ids"], have["ids"])
    if at == min(len(want["ids"]), len(have["ids"])):
        return at, float("inf")  # of another length: no matter of rounding
    top = sorted((one["logprob"] for one in want["logprobs"]["content"][at]["top_logprobs"]), reverse=True)
    return at, top[0] - top[1]


class Comparison:
    """Runs of one model over the same requests."""

    def __init__(self, model, requests, folder):
        self.model, self.requests, self.folder = model, requests, Path(folder)
        self.input = self.folder / "input.jsonl"
        self.input.write_text("".join(json.dumps(one) + "\n" for one in requests))
        self.facts = json.loads(self.succeeds("inspect", model, "--json").out)
        self.pool = pool_bytes(self.facts, requests)
        self.alone, _ = self.batch("--deterministic", "--no-enable-prefix-caching", "--max-num-seqs", 1, "--logprobs", 2)
        self.oracle = oracle_tokens(requests, self.alone)

    @staticmethod
    def succeeds(*args):
        result = coluber(*args, seconds=3600)
        if result.code != 0:
            raise RuntimeError(f"coluber {args[0]} failed\n{result}")
        return result

    def batch(self, *args):
        output, stats = self.folder / "output.jsonl", self.folder / "stats.json"
        output.unlink(missing_ok=True)
        self.succeeds("batch", self.model, "--threads", 1, "--input", self.input, "--output", output, "--stats", stats,
                      "--block-size", BLOCK, *args)
        return ({one["id"]: one for one in map(json.loads, output.read_text().splitlines())}, json.loads(stats.read_text()))

    def run(self, mode, deterministic):
        """One row of the table, and the requests that are wrong."""
        begin = time.monotonic()
        got, stats = self.batch("--mamba-cache-mode", mode, "--max-num-seqs", 256, "--kv-cache-memory-bytes", self.pool,
                                *(["--deterministic"] if deterministic else []))
        wrong, close = [], 0
        for request in self.requests:
            name = request["id"]
            difference = first_difference(self.alone[name]["outputs"][0], got[name]["outputs"][0]) if "outputs" in got[name] else (0, float("inf"))
            if difference is None:
                continue
            if deterministic or difference[1] >= CLOSE:
                wrong.append((name, *difference))
            else:
                close += 1
        if stats["leaked_slots"] != 0 or stats["requests"]["failed"] != 0 or stats["broken_states"] != 0:
            wrong.append(("stats", 0, stats))
        row = {"mode": mode, "deterministic": deterministic, "equal": len(self.requests) - len(wrong) - close, "close": close,
               "of_oracle": prompt_work(stats) / self.oracle, "hit_rate": stats["hit_rate"], "preemptions": stats["preemptions"],
               "evicted": stats["checkpoints"]["evicted"], "leaked": stats["leaked_slots"], "seconds": time.monotonic() - begin}
        return row, wrong

    def sample_of_run(self, count):
        """How many of some requests the command `run` answers otherwise; each in a process of its own."""
        wrong = []
        for request in self.requests[::max(1, len(self.requests) // count)][:count]:
            told = self.succeeds("run", self.model, "--threads", 1, "--prompt-ids", ",".join(map(str, request["prompt_ids"])),
                                 "-n", request["max_tokens"], "--temperature", 0, "--ignore-eos", "--deterministic", "--json")
            have = self.alone[request["id"]]["outputs"][0]["ids"]
            ids = json.loads(told.out)["output_ids"]
            if (ids[:len(have)] if "cancel_after_tokens" in request else ids) != have:
                wrong.append((request["id"], 0, "run"))
        return wrong


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("models", nargs="*", help="folders of tests/data, or 'built-in'; some of each kind without it")
    arguments.add_argument("--requests", type=int, default=2000)
    arguments.add_argument("--longest", type=int, default=4000)
    arguments.add_argument("--seed", type=int, default=5)
    arguments.add_argument("--sample", type=int, default=25, help="requests that are compared with `coluber run` too")
    options = arguments.parse_args()
    failed = False
    print("| model | mode | equal | of the oracle's tokens | hit rate | preemptions | evicted | slots left | seconds |\n" + "|---" * 9 + "|")
    for name in options.models or FAMILIES:
        model = BUILTIN if name == "built-in" else DATA / name
        limit = json.loads(Comparison.succeeds("inspect", model, "--json").out)["max_model_len"]
        with tempfile.TemporaryDirectory(prefix="coluber-mixed-") as folder:
            longest = min(options.longest, limit - LONGEST_ANSWER)
            comparison = Comparison(model, mixed_requests(options.requests, options.seed, longest, 60), folder)
            wrong = comparison.sample_of_run(options.sample)
            for mode, deterministic in [(mode, True) for mode in MODES] + [("auto", False)]:
                row, more = comparison.run(mode, deterministic)
                wrong += more
                print(f"| {name} | {mode}{'' if deterministic else ', not deterministic'} | {row['equal']} of {options.requests}"
                      f"{', %d close' % row['close'] if row['close'] else ''} | {row['of_oracle']:.3f} | {100 * row['hit_rate']:.1f} % | "
                      f"{row['preemptions']} | {row['evicted']} | {row['leaked']} | {row['seconds']:.0f} |", flush=True)
        for one in wrong:
            print("wrong:", name, *one, file=sys.stderr)
        failed = failed or bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
