# SPDX-License-Identifier: Apache-2.0
"""The ranges that the command line tells of numbers, against what the engine behind it takes."""
import re
import unittest

from batch_test import TINY, BatchTest
from harness import USAGE, coluber

FAR = 10**15  # beyond every limit
# What must be said too, so that the end of a range has a meaning.
BLOCKS = ["--mamba-cache-mode", "align", "--block-size", "4096", "--mamba-block-size", "4096"]
WITH = {"--prefix-match-unit": BLOCKS, "--mamba-retention-interval": ["--mamba-cache-mode", "align"], "--min-tokens": ["--max-tokens", 2**31]}
# Ends that a flag shares with the engine's option of its name; others are counts of tokens that the engine takes in any size.
SHARED = {"--threads": 1024, "--max-model-len": 2**31 - 2, "--max-num-batched-tokens": 2**20, "--block-size": 4096,
          "--max-num-seqs": 65536, "--mamba-block-size": 2**31 - 2, "--num-speculative-tokens": 64, "--logprobs": 1024,
          "--tensor-parallel-size": 1024, "--chunk": 2**20}


class Limits(BatchTest):
    def integers(self, command):
        """Flags of a command that take whole numbers of a range with an end, and the end as the refusal tells it."""
        help_text = self.succeeds(command, "--help").out
        ends = {}
        for flag in sorted(set(re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]+) N\b", help_text))):
            refusal = coluber(command, flag, FAR)
            told = re.search(r"whole number from -?\d+ to (\d+)", refusal.err)
            if refusal.code == USAGE and told:
                ends[flag] = int(told.group(1))
        return ends

    def assert_taken(self, flag, end, result):
        """Too little memory or a model of its own length may be in the way, the engine's range may not."""
        option = {"threads": "num_threads"}.get(flag[2:], flag[2:].replace("-", "_"))
        self.assertNotRegex(result.err, rf"\b{option} must be", f"{flag} is told to go to {end}")

    def test_the_engine_takes_the_end_of_every_range_that_a_flag_tells(self):
        for command, words in {"inspect": [TINY], "batch": None}.items():
            if words is None:
                self.write([])
                words = self.command(TINY)[1:]
            ends = self.integers(command)
            self.assertGreater(len(ends), 5, ends)
            for flag, end in ends.items():
                if flag == "--threads":
                    continue  # starts them; the same constant as convert's
                with self.subTest(command=command, flag=flag, end=end):
                    self.output.unlink(missing_ok=True)
                    self.assert_taken(flag, end, coluber(command, *words, *WITH.get(flag, []), flag, end))

    def test_ends_of_ranges_are_the_engines(self):
        found = set()
        for command in ("inspect", "batch", "run", "logits", "convert"):
            for flag, end in self.integers(command).items():
                if flag in SHARED:
                    found.add(flag)
                    self.assertEqual(end, SHARED[flag], f"{command} {flag}")
        self.assertEqual(found, set(SHARED))

    def test_a_line_tells_the_ends_that_the_engine_has(self):
        prompt = {"prompt_ids": [5, 6, 7], "max_tokens": 1}
        names = ["n", "best_of", "beam_width", "logprobs", "prompt_logprobs", "length_penalty", "priority", "min_tokens", "max_tokens",
                 "top_k", "cancel_after_tokens"]
        refused = self.batch(TINY, requests=[{**prompt, "id": name, name: FAR} for name in names])
        ends = {}
        for name in names:
            told = re.search(rf"'{name}' must be a (?:whole )?number from -?\d+ to (\d+)", refused[f'"{name}"']["error"]["message"])
            self.assertIsNotNone(told, refused[f'"{name}"'])
            ends[name] = int(told.group(1))
        beside = {"length_penalty": {"beam_width": 2}, "min_tokens": {"max_tokens": ends["max_tokens"]}}
        self.output.unlink()
        requests = [{**prompt, "id": name, **beside.get(name, {}), name: end} for name, end in ends.items()
                    if name not in ("min_tokens", "max_tokens")]
        requests += [{**prompt, "id": "min_tokens", "max_tokens": ends["max_tokens"], "min_tokens": ends["min_tokens"],
                      "cancel_after_tokens": 1}]
        for name, result in self.batch(TINY, "--max-num-seqs", "256", requests=requests).items():
            self.assertNotIn("must be", (result.get("error") or {}).get("message", ""), name)
        self.assertEqual([ends[name] for name in names[:5]], [256, 256, 256, 1024, 1024])


if __name__ == "__main__":
    unittest.main()
