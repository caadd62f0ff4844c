# SPDX-License-Identifier: Apache-2.0
"""`coluber batch`: results as of single runs, bad lines, resuming, torn lines, Ctrl-C, what the cache gave."""
import json
import random
import signal
import subprocess
import time
import unittest
from pathlib import Path

from harness import DATA, INTERRUPTED, PROGRAM, SANITIZED, SECONDS, USAGE, CliTest, environment
from mixed_batch import Comparison, mixed_requests

MISS_REASONS = {None, "disabled", "too_short", "no_common_prefix", "different_adapter_or_salt",
                "no_checkpoint_before_divergence", "evicted"}
TINY = DATA / "lfm2"  # a hybrid, so that both kinds of memory are used


class BatchTest(CliTest):
    def setUp(self):
        super().setUp()
        self.input = self.folder / "input.jsonl"
        self.output = self.folder / "output.jsonl"
        self.stats = self.folder / "stats.json"

    def write(self, requests):
        """Lines as they are, objects as JSON."""
        lines = [one if isinstance(one, str) else json.dumps(one) for one in requests]
        self.input.write_text("".join(line + "\n" for line in lines))

    def results(self):
        text = self.output.read_text()
        self.assertTrue(text == "" or text.endswith("\n"), "the output ends in the middle of a line")
        return [json.loads(line) for line in text.splitlines()]

    def command(self, model, *args):
        return ["batch", *([model] if model else []), "--input", self.input, "--output", self.output, "--temperature", "0", *args]

    def batch(self, model, *args, requests=None):
        if requests is not None:
            self.write(requests)
        self.succeeds(*self.command(model, *args))
        results = self.results()
        by_id = {json.dumps(one["id"]): one for one in results if one["id"] is not None}
        self.assertEqual(len(by_id), sum(one["id"] is not None for one in results), "an id has two results")
        return by_id

    def statistics(self):
        return json.loads(self.stats.read_text())


class Results(BatchTest):
    def single(self, request, *args):
        words = ["--prompt-ids", ",".join(map(str, request["prompt_ids"]))] if "prompt_ids" in request else ["--raw", "-p", request["prompt"]]
        run = self.succeeds("run", *words, "-n", request.get("max_tokens", 16), "--temperature", "0", "--ignore-eos", "--json", *args)
        return json.loads(run.out)

    def test_results_are_those_of_single_runs(self):
        requests = [{"id": "text", "prompt": "Once upon a time there was", "max_tokens": 12},
                    {"id": 7, "prompt_ids": [5, 6, 7], "max_tokens": 9},
                    {"id": "7", "prompt_ids": [5, 6, 7, 8], "max_tokens": 5}]
        got = self.batch(None, "--ignore-eos", requests=requests)
        self.assertEqual(len(got), 3)
        for request in requests:
            want, have = self.single(request), got[json.dumps(request["id"])]
            self.assertEqual(have["outputs"][0]["ids"], want["output_ids"])
            self.assertEqual(have["outputs"][0]["text"], want["text"])
            self.assertEqual(have["outputs"][0]["finish_reason"], "length")
            self.assertEqual(have["usage"]["prompt_tokens"], want["usage"]["prompt_tokens"])
            self.assertEqual(have["usage"]["completion_tokens"], want["usage"]["completion_tokens"])
            self.assertEqual(set(have), {"id", "outputs", "usage", "cache"})
            self.assertIn(have["cache"]["miss_reason"], MISS_REASONS)

    def test_messages_go_through_the_chat_template(self):
        question = 'What does "river" mean?'
        got = self.batch(None, requests=[{"id": "chat", "messages": [{"role": "user", "content": question}], "max_tokens": 8}])
        run = json.loads(self.succeeds("run", "-p", question, "-n", "8", "--temperature", "0", "--json").out)
        self.assertEqual(got['"chat"']["outputs"][0]["ids"], run["output_ids"])
        self.assertEqual(got['"chat"']["usage"]["prompt_tokens"], len(run["prompt_ids"]))

    def test_a_line_overrides_the_flags_and_null_does_not(self):
        base = {"prompt_ids": [5, 6, 7, 8]}
        got = self.batch(None, "--ignore-eos", "-n", "6", "--seed", "3", requests=[
            {"id": "flags", **base}, {"id": "null", **base, "max_tokens": None}, {"id": "own", **base, "max_tokens": 3},
            {"id": "hot", **base, "temperature": 5.0}, {"id": "again", **base, "temperature": 5.0},
            {"id": "seed", **base, "temperature": 5.0, "seed": 4}, {"id": "top", **base, "temperature": 5.0, "top_k": 1}])
        ids = {name: got[json.dumps(name)]["outputs"][0]["ids"] for name in ("flags", "null", "own", "hot", "again", "seed", "top")}
        self.assertEqual(len(ids["flags"]), 6)
        self.assertEqual(ids["null"], ids["flags"])
        self.assertEqual(ids["own"], ids["flags"][:3])
        self.assertEqual(ids["hot"], ids["again"])
        self.assertEqual(ids["top"], ids["flags"])
        self.assertEqual(len({tuple(ids[name]) for name in ("flags", "hot", "seed")}), 3)

    def test_stops_logprobs_and_special_tokens_are_as_in_run(self):
        prompt = "Once upon a time"
        text = self.single({"prompt": prompt, "max_tokens": 30})["text"]
        word = text.split()[5]
        got = self.batch(None, requests=[
            {"id": 1, "prompt": prompt, "max_tokens": 30, "stop": word}, {"id": 2, "prompt": prompt, "max_tokens": 30, "stop": [word]},
            {"id": 3, "prompt": prompt, "max_tokens": 30, "stop": [word], "include_stop_str_in_output": True},
            {"id": 4, "prompt": prompt, "max_tokens": 3, "logprobs": 2}])
        self.assertEqual(got["1"]["outputs"][0]["finish_reason"], "stop")
        self.assertNotIn(word, got["1"]["outputs"][0]["text"])
        self.assertEqual(got["1"]["outputs"], got["2"]["outputs"])
        self.assertTrue(got["3"]["outputs"][0]["text"].endswith(word))
        run = json.loads(self.succeeds("run", "--raw", "-p", prompt, "-n", "3", "--temperature", "0", "--logprobs", "2", "--json").out)
        self.assertEqual([one["token"] for one in got["4"]["outputs"][0]["logprobs"]["content"]], [one["token"] for one in run["logprobs"]["content"]])

    def test_cancelled_requests_end_after_their_tokens(self):
        prompt = {"prompt_ids": [5, 6, 7], "max_tokens": 50}
        got = self.batch(TINY, "--ignore-eos", "--stats", self.stats, requests=[
            {"id": "whole", **prompt}, {"id": "three", **prompt, "cancel_after_tokens": 3}, {"id": "late", **prompt, "cancel_after_tokens": 99}])
        self.assertEqual(got['"three"']["outputs"][0]["finish_reason"], "abort")
        self.assertEqual(got['"three"']["outputs"][0]["ids"], got['"whole"']["outputs"][0]["ids"][:3])
        self.assertEqual(got['"late"']["outputs"], got['"whole"']["outputs"])
        self.assertEqual(self.statistics()["requests"]["cancelled"], 1)
        self.assertEqual(self.statistics()["leaked_slots"], 0)

    def test_several_answers_of_one_prompt(self):
        prompt = {"prompt_ids": [5, 6, 7, 8], "max_tokens": 6, "temperature": 1.0, "ignore_eos": True}
        got = self.batch(TINY, requests=[{"id": "n", **prompt, "seed": 11, "n": 3}] + [{"id": i, **prompt, "seed": 11 + i} for i in range(3)])
        outputs = got['"n"']["outputs"]
        self.assertEqual([one["ids"] for one in outputs], [got[str(i)]["outputs"][0]["ids"] for i in range(3)])
        self.assertEqual(got['"n"']["usage"], {"prompt_tokens": 4, "completion_tokens": 18, "cached_tokens": 0})

    def test_arrivals_delay_and_priorities_order(self):
        prompt = {"prompt_ids": [5, 6, 7], "max_tokens": 2}
        self.write([{"id": "late", **prompt, "arrival_s": 0.7}, {"id": "low", **prompt, "priority": 5},
                    {"id": "middle", **prompt}, {"id": "high", **prompt, "priority": -5}])
        start = time.monotonic()
        self.succeeds(*self.command(TINY, "--ignore-eos", "--scheduling-policy", "priority", "--max-num-seqs", "1"))
        self.assertGreaterEqual(time.monotonic() - start, 0.7)
        self.assertEqual([one["id"] for one in self.results()], ["high", "middle", "low", "late"])
        self.output.unlink()
        told = self.succeeds(*self.command(TINY, "--ignore-eos", "--max-num-seqs", "1"))
        self.assertIn("--scheduling-policy priority", told.err)
        self.assertEqual([one["id"] for one in self.results()], ["low", "middle", "high", "late"])

    def test_pipes_carry_lines(self):
        lines = "".join(json.dumps({"id": i, "prompt_ids": [5, 6, i + 7], "max_tokens": 3}) + "\r\n\n" for i in range(4))
        done = self.succeeds("batch", TINY, "--input", "-", "--output", "-", "--temperature", "0", stdin=lines)
        self.assertEqual(sorted(json.loads(line)["id"] for line in done.out.splitlines()), [0, 1, 2, 3])
        self.assertEqual(done.err, "")


class Cache(BatchTest):
    def test_a_shared_prefix_is_computed_once_and_told(self):
        rng = random.Random(1)
        shared = [rng.randrange(3, 60) for _ in range(300)]
        requests = [{"id": i, "prompt_ids": shared + [rng.randrange(3, 60) for _ in range(20)], "max_tokens": 4} for i in range(6)]
        warm = self.batch(TINY, "--ignore-eos", "--max-num-seqs", "1", "--stats", self.stats, requests=requests)
        stats = self.statistics()
        self.assertGreaterEqual(stats["hit_tokens"], 4 * 256)  # the second makes the state that the third and later use
        self.assertEqual(stats["hit_tokens"], sum(one["usage"]["cached_tokens"] for one in warm.values()))
        self.assertEqual(stats["query_tokens"], 6 * 320)
        self.assertGreater(stats["peak_bytes"]["recurrent"], 0)
        self.assertGreater(stats["peak_bytes"]["attention"], 0)
        self.assertGreaterEqual(stats["miss_reasons"]["no_common_prefix"], 1)
        self.assertEqual(stats["leaked_slots"], 0)
        self.output.unlink()
        cold = self.batch(TINY, "--ignore-eos", "--no-enable-prefix-caching", "--stats", self.stats, requests=requests)
        self.assertEqual(self.statistics()["hit_tokens"], 0)
        self.assertEqual(self.statistics()["miss_reasons"]["disabled"], 6)
        for name, one in cold.items():
            self.assertEqual(one["outputs"], warm[name]["outputs"])
            self.assertEqual(one["cache"], {"hit_tokens": 0, "miss_reason": "disabled"})

    def test_statistics_have_the_keys_that_are_promised(self):
        prompt = {"prompt_ids": list(range(3, 59)) * 4, "max_tokens": 8, "ignore_eos": True}
        self.batch(TINY, "--stats", self.stats, "--scheduling-policy", "priority", "--max-num-seqs", "1", "--preemption", "park",
                   requests=[{"id": "late", **prompt, "arrival_s": 0.01, "priority": -1}, {"id": "first", **prompt, "max_tokens": 2000},
                             {"id": "other", **prompt, "prompt_ids": [9, *prompt["prompt_ids"]], "priority": 2}])
        stats = self.statistics()
        for key in ("steps", "hit_tokens", "query_tokens", "preemptions", "parked", "recomputed_tokens", "leaked_slots"):
            self.assertIsInstance(stats[key], int, key)
        self.assertEqual(set(stats["miss_reasons"]), MISS_REASONS - {None})
        self.assertTrue(all(isinstance(count, int) for count in stats["miss_reasons"].values()))
        self.assertEqual(set(stats["peak_bytes"]), {"recurrent", "attention"})
        self.assertEqual(stats["query_tokens"], 3 * len(prompt["prompt_ids"]) + 1)
        self.assertGreater(stats["hit_tokens"], 0, "the late one begins as the first")
        self.assertEqual(stats["miss_reasons"]["no_common_prefix"], 2)
        self.assertEqual((stats["preemptions"], stats["parked"], stats["recomputed_tokens"], stats["leaked_slots"]), (1, 1, 0, 0))

    def test_salts_share_nothing(self):
        prompt = {"prompt_ids": list(range(3, 59)) * 4, "max_tokens": 2}
        requests = [{"id": i, **prompt, "cache_salt": salt} for i, salt in enumerate("aba")]
        for flags, reason in ([], "no_common_prefix"), (["--report-other-salts"], "different_adapter_or_salt"):
            with self.subTest(reason):
                self.output.unlink(missing_ok=True)
                got = self.batch(TINY, "--max-num-seqs", "1", *flags, requests=requests)
                self.assertEqual(got["1"]["cache"], {"hit_tokens": 0, "miss_reason": reason})
                self.assertGreater(got["2"]["cache"]["hit_tokens"], 100)


class Mixed(BatchTest):
    """The same requests one at a time without a cache are the truth; mixed_batch.py is the long form."""

    def test_many_in_a_small_pool_give_the_tokens_of_each_alone(self):
        requests = mixed_requests(200 if SANITIZED else 1000, seed=5, longest=400, vocab=60)
        comparison = Comparison(TINY, requests, self.folder)
        comparison.pool = 400000  # for about a tenth of what runs at once
        self.assertEqual(comparison.sample_of_run(5), [])
        for deterministic in (True, False):
            row, wrong = comparison.run("auto", deterministic)
            self.assertEqual(wrong, [])
            self.assertEqual(row["leaked"], 0)
            self.assertGreater(row["hit_rate"], 0)
            self.assertGreater(row["preemptions"], 0, "the pool was meant to be too small for all")

    def test_auto_computes_little_more_than_one_who_forgets_nothing(self):
        comparison = Comparison(TINY, mixed_requests(500, seed=6, longest=1000, vocab=60), self.folder)
        row, wrong = comparison.run("auto", True)
        self.assertEqual(wrong, [])
        self.assertLess(row["of_oracle"], 1.15)
        self.assertGreater(row["evicted"], 0, "the pool was meant for a part of them")

    def test_a_wrong_answer_is_told(self):
        requests = mixed_requests(20, seed=7, longest=40, vocab=60)
        comparison = Comparison(TINY, requests, self.folder)
        output = comparison.alone["r3"]["outputs"][0]
        output["ids"][0] += 1
        self.assertEqual([one[:2] for one in comparison.run("auto", False)[1]], [("r3", 0)])
        self.assertIn("r3", [one[0] for one in comparison.sample_of_run(20)])


class Resuming(BatchTest):
    def prompts(self, count):
        return [{"id": i, "prompt_ids": [5, 6, 7 + i % 50], "max_tokens": 3} for i in range(count)]

    def test_an_output_is_continued_and_a_torn_line_dropped(self):
        whole = self.batch(TINY, requests=self.prompts(8))
        lines = self.output.read_text().splitlines(keepends=True)
        for torn in ("", "{", '{"id":', lines[5][:40], lines[5][:-3]):
            with self.subTest(torn=torn):
                self.output.write_text("".join(lines[:5]) + torn)
                told = self.succeeds(*self.command(TINY))
                self.assertEqual("torn" in told.err, torn != "", told)
                results = self.results()
                self.assertEqual(self.output.read_text().splitlines(keepends=True)[:5], lines[:5])
                self.assertEqual({json.dumps(one["id"]): one["outputs"] for one in results}, {name: one["outputs"] for name, one in whole.items()})
                self.assertEqual(len(results), 8)
        before = self.output.read_text()
        self.succeeds(*self.command(TINY))
        self.assertEqual(self.output.read_text(), before)

    def test_a_last_line_without_its_end_is_kept(self):
        self.batch(TINY, requests=self.prompts(3))
        self.output.write_text("".join(self.output.read_text().splitlines(keepends=True)[:2])[:-1])
        self.assertEqual(len(self.batch(TINY)), 3)

    def test_files_that_are_no_results_are_refused_and_left_alone(self):
        self.write(self.prompts(1))
        for text in ("notes of mine", "notes of mine\n", '{"id":1}\nnonsense\n{"id":2}\n', '{"name":1}\n'):
            self.output.write_text(text)
            self.fails(None, *self.command(TINY), says=[str(self.output), "line", "another file"])
            self.assertEqual(self.output.read_text(), text)

    def test_the_files_must_differ(self):
        self.write(self.prompts(1))
        before = self.input.read_text()
        self.fails(USAGE, "batch", TINY, "--input", self.input, "--output", self.input, says=["--output", "another"])
        self.fails(USAGE, "batch", TINY, "--input", self.input, "--output", self.output, "--stats", self.input, says=["--stats"])
        self.fails(USAGE, "batch", TINY, "--input", self.input, "--output", self.output, "--stats", self.output, says=["--stats"])
        model = self.copy_model(TINY)
        self.fails(USAGE, "batch", model, "--input", self.input, "--output", model / "config.json", says=["--output", "model"])
        self.assertEqual(self.input.read_text(), before)

    def test_two_processes_do_not_write_one_file(self):
        self.write([{"id": 1, "prompt_ids": [5], "max_tokens": 1, "arrival_s": 60}])
        words = [str(word) for word in [PROGRAM, *self.command(TINY)]]
        with subprocess.Popen(words, stderr=subprocess.PIPE, env=environment()) as first:
            self.wait_for_lock(first)
            self.fails(None, *self.command(TINY), says=["another process", str(self.output)])
            first.send_signal(signal.SIGINT)
            first.wait(SECONDS)
            first.stderr.read()
        self.assertEqual(first.returncode, INTERRUPTED)

    def wait_for_lock(self, process):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if self.output.exists() and f":{self.output.stat().st_ino} " in Path("/proc/locks").read_text(encoding="ascii"):
                return
            time.sleep(0.02)
        self.fail("the output was never locked")

    def test_ctrl_c_leaves_a_file_that_is_continued(self):
        requests = [{"id": i, "prompt_ids": [5, 6, 7 + i % 50], "max_tokens": 40, "ignore_eos": True} for i in range(40)]
        requests.append({"id": "never", "prompt_ids": [5], "arrival_s": 3000})
        self.write(requests)
        words = [str(word) for word in [PROGRAM, *self.command(TINY, "--stats", self.stats)]]
        with subprocess.Popen(words, stderr=subprocess.PIPE, env=environment()) as process:
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline and (not self.output.exists() or self.output.read_text().count("\n") < 5):
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            err = process.stderr.read().decode()
            process.wait(SECONDS)
        self.assertEqual(process.returncode, INTERRUPTED, err)
        self.assertIn("stopped by Ctrl-C", err)
        self.assertIn("the same command goes on", err)
        done = self.results()
        self.assertGreaterEqual(len(done), 5)
        self.assertTrue(all(one["outputs"][0]["finish_reason"] == "length" for one in done))
        self.assertEqual(self.statistics()["requests"]["done"], len(done))
        self.assertEqual(self.statistics()["leaked_slots"], 0)
        self.write(requests[:-1])
        self.assertEqual(len(self.batch(TINY)), 40)

    def test_a_killed_process_leaves_a_file_that_is_continued(self):
        requests = [{"id": i, "prompt_ids": [5, 6, 7 + i % 50], "max_tokens": 40, "ignore_eos": True} for i in range(60)]
        self.write(requests)
        words = [str(word) for word in [PROGRAM, *self.command(TINY)]]
        for lines in (3, 10, 25):
            with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=environment()) as process:
                deadline = time.monotonic() + SECONDS
                while time.monotonic() < deadline and process.poll() is None and (not self.output.exists() or self.output.read_text().count("\n") < lines):
                    time.sleep(0.005)
                process.kill()
                process.wait(SECONDS)
        self.assertEqual(len(self.batch(TINY)), 60)


class BadLines(BatchTest):
    def test_bad_lines_are_told_and_stop_no_other(self):
        good = {"prompt_ids": [5, 6], "max_tokens": 2}
        bad = {
            "not json": "column",
            '["a list"]': "expected an object, found array",
            '{"prompt_ids": [5]}': "'id' is missing",
            '{"id": "no prompt"}': "no prompts",
            '{"id": "two", "prompt": "a", "prompt_ids": [5]}': "several prompts",
            '{"id": "empty", "prompt": ""}': "'prompt' must be",
            '{"id": "no ids", "prompt_ids": []}': "'prompt_ids' must be",
            '{"id": "vocabulary", "prompt_ids": [999999999]}': "'prompt_ids' must be",
            '{"id": "typo", "prompt_ids": [5], "max_token": 3}': "no field 'max_token'",
            '{"id": "type", "prompt_ids": [5], "max_tokens": "3"}': "'max_tokens' must be a whole number",
            '{"id": "range", "prompt_ids": [5], "temperature": -1}': "'temperature' must be a number from 0",
            '{"id": "top_p", "prompt_ids": [5], "top_p": 0}': "top_p must be above 0",
            '{"id": "n", "prompt_ids": [5], "n": 3, "best_of": 2}': "'best_of' must be at least 'n'",
            '{"id": "roles", "messages": [{"content": "x"}]}': "'messages' must be",
            '{"id": "twice", "prompt_ids": [5], "id": "twice"}': "twice",
            '{"id": "text", "prompt": "words"}': "no tokenizer",
            '{"id": "nul", "prompt_ids": [5], "session": "a\\u0000b"}': "NUL byte behind 'a'",
            '{"id": "long", "prompt_ids": [' + "5," * 40000 + "5]}": "context limit",
        }
        self.write([*bad, {"id": "good", **good}, {"id": "good", **good}])
        told = self.succeeds(*self.command(TINY, "--max-model-len", "512"))
        self.assertIn(f"{len(bad) + 1} of {len(bad) + 2} requests failed", told.err)
        results = self.results()
        self.assertEqual(len(results), len(bad) + 2)
        by_line = {one["line"]: one for one in results if "line" in one}
        for number, (line, message) in enumerate(bad.items(), 1):
            with self.subTest(line=line[:60]):
                self.assertIn(message, by_line[number]["error"]["message"])
                self.assertNotIn("outputs", by_line[number])
                name = line.split('"')[3] if line.startswith('{"id"') else None
                self.assertEqual(by_line[number]["id"], None if name == "twice" else name)
        again = by_line[len(bad) + 2]
        self.assertIsNone(again["id"])
        self.assertIn(f"line {len(bad) + 1}", again["error"]["message"])
        self.assertEqual([one for one in results if one["id"] == "good"][0]["outputs"][0]["finish_reason"], "length")
        before = self.output.read_text()
        self.succeeds(*self.command(TINY, "--max-model-len", "512"))
        self.assertEqual(self.output.read_text(), before)

    def test_invalid_utf8_is_told(self):
        self.input.write_bytes(b'{"id":1,"prompt":"caf\xe9"}\n')
        self.succeeds(*self.command(None))
        self.assertIn("UTF-8", self.results()[0]["error"]["message"])

    def test_flags_are_checked(self):
        self.write([])
        for args, says in ((["--max-num-seqs", "0"], "--max-num-seqs"), (["--kv-cache-memory-bytes", "lots"], "--kv-cache-memory-bytes"),
                           (["--kv-cache-memory-bytes", "120%"], "--kv-cache-memory-bytes"), (["--kv-cache-memory-bytes", "-1"], "--kv-cache-memory-bytes"),
                           (["--mamba-cache-mode", "some"], "none"), (["--preemption", "kill"], "recompute"),
                           (["--enable-prefix-caching", "--no-enable-prefix-caching"], "exclude"), (["--scheduling-policy", "luck"], "fcfs")):
            with self.subTest(args=args):
                self.fails(USAGE, *self.command(TINY, *args), says=says)
        self.fails(USAGE, "batch", TINY, "--output", self.output, says="--input")
        self.fails(USAGE, "batch", TINY, "--input", self.input, says="--output")
        self.fails(3, "batch", TINY, "--input", self.folder / "nowhere", "--output", self.output, says="nowhere")
        self.fails(None, "batch", TINY, "--input", self.input, "--output", self.folder / "no" / "where", says="--output")

    def test_an_empty_input_gives_an_empty_output(self):
        self.assertEqual(self.batch(TINY, "--stats", self.stats, requests=[]), {})
        self.assertEqual(self.statistics()["requests"]["lines"], 0)

    def test_a_full_disk_is_told(self):
        self.write([{"id": 1, "prompt_ids": [5], "max_tokens": 1}])
        self.fails(None, "batch", TINY, "--input", self.input, "--output", "/dev/full", says=["/dev/full", "No space"])


if __name__ == "__main__":
    unittest.main()
