# SPDX-License-Identifier: Apache-2.0
"""`coluber cache-sim`: traffic through the real scheduler and prefix cache, with a model that computes nothing."""
import json
import unittest
import xml.etree.ElementTree

from harness import DATA, USAGE, CliTest

SMALL = ["--state-bytes", "1MB", "--kv-bytes-per-token", "1kB"]


class CacheSim(CliTest):
    def simulate(self, *args, lines=None):
        trace = []
        if lines is not None:
            (self.folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            trace = [self.folder / "trace.jsonl"]
        return json.loads(self.succeeds("cache-sim", *trace, *args, "--json").out)

    def test_synthetic_traffic_is_the_same_for_the_same_seed(self):
        for kind in ("chat", "rag", "agents"):
            with self.subTest(kind=kind):
                first, again = (self.simulate("--synthetic", kind, "--requests", "300") for _ in range(2))
                other = self.simulate("--synthetic", kind, "--requests", "300", "--seed", "2")
                for result in (first, again, other):
                    self.assertEqual(result["requests"], 300)
                    self.assertEqual(result["refused"], 0)
                    self.assertGreater(result["hit_rate"], 0.2)
                    self.assertLessEqual(result["hit_rate"], result["reachable_rate"] + 1e-9)
                    result.pop("simulation_took_s")
                self.assertEqual(first, again)
                self.assertNotEqual(first, other)

    def test_without_a_cache_nothing_is_found(self):
        result = self.simulate("--synthetic", "chat", "--requests", "200", "--no-enable-prefix-caching")
        self.assertEqual(result["hit_tokens"], 0)
        self.assertEqual(result["miss_reasons"]["disabled"], 200)
        self.assertEqual(result["computed_tokens"], result["query_tokens"] + result["output_tokens"] - 200)

    def test_less_memory_gives_fewer_hits_and_says_so(self):
        large = self.simulate("--synthetic", "rag", "--requests", "400", "--kv-cache-memory-bytes", "8GB")
        small = self.simulate("--synthetic", "rag", "--requests", "400", "--kv-cache-memory-bytes", "1GB", "--max-num-seqs", "8")
        self.assertLess(small["hit_rate"], large["hit_rate"])
        self.assertGreater(small["miss_reasons"]["evicted"], large["miss_reasons"]["evicted"])
        self.assertLessEqual(small["peak_bytes"]["recurrent"] + small["peak_bytes"]["attention"], 2 * 1_000_000_000)

    def test_time_goes_by_the_cost_model(self):
        lines = [{"arrival_s": 1.0, "tokens": 1000, "output_tokens": 11}]
        cost = ["--step-ms", "10", "--prefill-us", "100", "--decode-us", "1000", "--context-us", "0", "--max-num-batched-tokens", "2000"]
        result = self.simulate(*SMALL, *cost, "--no-enable-prefix-caching", lines=lines)
        self.assertAlmostEqual(result["first_token_s"]["p50"], 0.010 + 0.100, places=6)
        self.assertAlmostEqual(result["simulated_s"], 1.0 + 0.110 + 10 * 0.011, places=6)
        self.assertEqual(result["steps"], 11)

    def test_named_pieces_are_shared_and_others_are_not(self):
        lines = [{"arrival_s": i, "tokens": 1000, "prefix": [["system", 600]], "output_tokens": 1} for i in range(4)]
        lines.append({"arrival_s": 9, "tokens": 1000, "prefix": [["another", 600]], "output_tokens": 1})
        result = self.simulate(*SMALL, lines=lines)
        # Of the first a state was kept along the way, at 256; the second finds where they part, and the others go on from there.
        self.assertEqual(result["hit_tokens"], 256 + 2 * 592)
        self.assertEqual(result["miss_reasons"]["no_common_prefix"], 2)
        self.assertEqual(result["miss_reasons"]["no_checkpoint_before_divergence"], 1)

    def test_turns_of_a_conversation_wait_for_the_answer_and_find_it(self):
        lines = [{"arrival_s": 0, "conversation": "c", "tokens": 500, "output_tokens": 100} for _ in range(3)]
        result = self.simulate(*SMALL, lines=lines)
        self.assertEqual(result["query_tokens"], 500 + 1100 + 1700)
        self.assertGreaterEqual(result["hit_tokens"], 590 + 1190)

    def test_ids_and_hashes_are_read(self):
        ids = list(range(200))
        result = self.simulate(*SMALL, lines=[{"prompt_ids": ids, "output_ids": [1, 2]}, {"prompt_ids": ids + [1, 2, 3] * 9, "arrival_s": 5, "output_tokens": 2}])
        self.assertGreaterEqual(result["hit_tokens"], 200)
        hashed = [{"timestamp": 1000 * i, "input_length": 1100, "output_length": 3, "hash_ids": [1, 2, 10 + i]} for i in range(3)]
        result = self.simulate(*SMALL, lines=hashed)
        self.assertEqual(result["query_tokens"], 3300)
        self.assertGreaterEqual(result["hit_tokens"], 1024)

    def test_sizes_come_from_a_model(self):
        result = self.simulate("--synthetic", "chat", "--requests", "50", "--model", DATA / "lfm2", "--kv-cache-memory-bytes", "50MB")
        self.assertGreater(result["hit_rate"], 0.1)
        self.assertLess(result["peak_bytes"]["recurrent"], 50_000_000)

    def test_pictures_are_drawn(self):
        svg = self.folder / "out.svg"
        out = self.succeeds("cache-sim", "--synthetic", "chat", "--requests", "200", "--svg", svg).out
        for words in ("Prompt tokens from the cache", "Memory", "Requests that wait", "100 %"):
            self.assertIn(words, out)
        self.assertTrue(all(len(line) <= 100 for line in out.splitlines()), "wider than a terminal")
        root = xml.etree.ElementTree.parse(svg).getroot()
        self.assertTrue(root.tag.endswith("svg"))
        self.assertGreater(sum(1 for _ in root.iter()), 60)

    def test_mistakes_are_told(self):
        self.fails(USAGE, "cache-sim", says=["--synthetic"])
        self.fails(USAGE, "cache-sim", "x.jsonl", "--synthetic", "chat", says="both")
        self.fails(USAGE, "cache-sim", "--synthetic", "luck", says=["chat", "luck"])
        self.fails(USAGE, "cache-sim", "x.jsonl", "--rate", "3", says="--rate")
        self.fails(USAGE, "cache-sim", "--synthetic", "chat", "--verify-states", says="--verify-states")
        self.fails(USAGE, "cache-sim", "--synthetic", "chat", "--parking-dir", ".", says="--parking-dir")
        self.fails(USAGE, "cache-sim", "--synthetic", "chat", "--report-other-salts", says="--report-other-salts")
        self.fails(3, "cache-sim", self.folder / "nowhere.jsonl", says="nowhere")
        for line, says in (("nonsense", "line 1"), ("[]", "object"), ('{"tokens": -1}', "tokens"), ('{"arrival_s": 1}', "prompt"),
                           ('{"prompt_ids": [1, "a"]}', "prompt_ids"), ('{"tokens": 5, "prefix": [["a"]]}', "prefix"), ('{"prompt_ids": []}', "no tokens")):
            with self.subTest(line=line):
                (self.folder / "bad.jsonl").write_text(line + "\n")
                self.fails(4, "cache-sim", self.folder / "bad.jsonl", says=["line 1", says])


    def test_modes_stand_beside_an_oracle_that_keeps_everything(self):
        rows = self.simulate("--synthetic", "mixed", "--requests", "300", "--compare")
        by_mode = {row["mode"]: row for row in rows}
        self.assertEqual(list(by_mode), ["auto", "all", "align", "none"])
        for row in rows:
            self.assertEqual(row["requests"], 300)
            self.assertGreaterEqual(row["prompt_tokens_computed"], row["oracle_tokens"])
        self.assertGreaterEqual(by_mode["none"]["prompt_tokens_computed"], by_mode["none"]["query_tokens"])
        self.assertLess(by_mode["auto"]["of_oracle"], 1.15)
        self.assertLess(by_mode["auto"]["prompt_tokens_computed"], by_mode["none"]["prompt_tokens_computed"])
        self.fails(USAGE, "cache-sim", "--synthetic", "mixed", "--compare", "--svg", self.folder / "x.svg", says="--svg")

    def test_the_oracle_computes_what_nobody_said_before(self):
        lines = [{"arrival_s": i * 100, "tokens": 1000, "prefix": [["system", 600]], "output_tokens": 1} for i in range(3)]
        rows = self.simulate(*SMALL, "--compare", lines=lines)
        for row in rows:
            self.assertEqual(row["oracle_tokens"], 1000 + 2 * 400)
        self.assertEqual(rows[-1]["prompt_tokens_computed"], 3000)

    def test_pages_of_one_size_give_the_same_hits(self):
        lines = [{"arrival_s": i * 100, "tokens": 1000, "prefix": [["system", 600]], "output_tokens": 1} for i in range(4)]
        elastic, shared = (self.simulate(*SMALL, "--cache-layout", layout, lines=lines) for layout in ("elastic", "shared"))
        self.assertEqual(elastic["hit_tokens"], shared["hit_tokens"])


if __name__ == "__main__":
    unittest.main()
