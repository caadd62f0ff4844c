# SPDX-License-Identifier: Apache-2.0
"""`coluber batch`: lines that go on with sessions, search by beams, bias what is chosen, ask of their prompt."""
import json
import os
import unittest
from pathlib import Path

from batch_test import TINY, BatchTest

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


class Sessions(BatchTest):
    def setUp(self):
        super().setUp()
        self.session = str(self.folder / "one.session")

    def line(self, name, ids, **fields):
        return {"id": name, "prompt_ids": ids, "max_tokens": 5, "ignore_eos": True, "session": self.session, **fields}

    def test_lines_of_one_session_go_on_from_one_another(self):
        results = self.batch(TINY, requests=[self.line("a", PROMPT), {"id": "other", "prompt_ids": [1, 2], "max_tokens": 3},
                                             self.line("b", [20, 21])])
        first, second = results['"a"'], results['"b"']
        # The last token of the first answer was not read yet when the session was saved.
        held = PROMPT + first["outputs"][0]["ids"]
        self.assertEqual(second["usage"]["cached_tokens"], len(held) - 1)
        self.assertEqual(second["usage"]["prompt_tokens"], len(held) + 2)
        alone = self.succeeds("run", TINY, "--prompt-ids", ",".join(map(str, held + [20, 21])), "-n", 5, "--temperature", "0",
                              "--ignore-eos", "--json")
        self.assertEqual(second["outputs"][0]["ids"], json.loads(alone.out)["output_ids"])
        # `run` goes on from what the batch has saved.
        ran = self.succeeds("run", TINY, "--session", self.session, "--prompt-ids", "30", "-n", 2, "--json")
        self.assertEqual(json.loads(ran.out)["usage"]["cached_tokens"], len(held) + 2 + 4)

    def test_sessions_run_beside_one_another_and_each_in_its_own_order(self):
        files = [str(self.folder / f"{i}.session") for i in range(4)]
        turns = [self.line(f"{turn}.{i}", [*PROMPT, i, turn], session=path, priority=-turn)
                 for turn in range(3) for i, path in enumerate(files)]
        turns[4]["session"] = str(self.folder / "." / "0.session")  # another name for the first
        together = self.batch(TINY, "--scheduling-policy", "priority", "--stats", self.stats, requests=turns)
        steps = self.statistics()["steps"]
        for i in range(4):
            held = []
            for turn in range(3):
                told = together[json.dumps(f"{turn}.{i}")]
                self.assertEqual(told["usage"]["prompt_tokens"], len(held) + len(PROMPT) + 2)
                self.assertEqual(told["usage"]["cached_tokens"], max(len(held) - 1, 0))
                held += [*PROMPT, i, turn] + told["outputs"][0]["ids"]
        for path in files:
            Path(path).unlink()
        self.output.unlink()
        alone = self.batch(TINY, "--max-num-seqs", "1", "--stats", self.stats, requests=turns)
        self.assertEqual({k: v["outputs"] for k, v in alone.items()}, {k: v["outputs"] for k, v in together.items()})
        self.assertLess(steps, self.statistics()["steps"] / 2)
        self.assertEqual(self.statistics()["leaked_slots"], 0)

    def test_sessions_for_which_there_is_no_memory_wait(self):
        lines = [self.line(f"{turn}.{i}", [i + 1, turn + 1] * 40, session=str(self.folder / f"{i}.session"), max_tokens=20)
                 for turn in range(2) for i in range(12)]
        lines += [{"id": i, "prompt_ids": [i + 20, 3] * 40, "max_tokens": 20, "ignore_eos": True} for i in range(12)]
        def answers(*flags):
            for path in self.folder.glob("*.session"):
                path.unlink()
            self.output.unlink(missing_ok=True)
            return {k: v["outputs"] for k, v in self.batch(TINY, "--deterministic", *flags, "--stats", self.stats, requests=lines).items()}
        free = answers()
        self.assertEqual(answers("--kv-cache-memory-bytes", 300000), free)  # for about three of them
        self.assertEqual(self.statistics()["requests"]["failed"], 0)
        self.assertEqual(self.statistics()["leaked_slots"], 0)

    def test_a_line_with_a_session_may_have_a_form_and_a_new_session_a_salt(self):
        results = self.batch(None, requests=[
            {"id": 1, "prompt": "Once upon a time", "session": self.session, "cache_salt": "mine", "structured_outputs": {"choice": ["red", "blue"]}},
            {"id": 2, "prompt": " or ", "session": self.session, "max_tokens": 2},
            {"id": 3, "prompt": " or ", "session": self.session, "cache_salt": "mine"}])
        self.assertIn(results["1"]["outputs"][0]["text"], ["red", "blue"])
        self.assertEqual(len(results["2"]["outputs"][0]["ids"]), 2)
        self.assertIn("cache_salt", results["3"]["error"]["message"])

    def test_a_broken_session_ends_its_line_alone_and_stays(self):
        Path(self.session).write_bytes(b"no session at all")
        results = self.batch(TINY, requests=[self.line("bad", PROMPT), {"id": "good", "prompt_ids": PROMPT, "max_tokens": 3}])
        self.assertIn("message", results['"bad"']["error"])
        self.assertEqual(len(results['"good"']["outputs"][0]["ids"]), 3)
        self.assertEqual(Path(self.session).read_bytes(), b"no session at all")

    def test_a_folder_that_is_not_there_is_told(self):
        results = self.batch(TINY, requests=[self.line("a", PROMPT, session=str(self.folder / "none" / "x.session"))])
        self.assertIn("'session' cannot be saved", results['"a"']["error"]["message"])

    def test_a_cancelled_turn_is_saved_as_far_as_it_came(self):
        results = self.batch(TINY, requests=[self.line("a", PROMPT, cancel_after_tokens=2), self.line("b", [20])])
        self.assertEqual(results['"a"']["outputs"][0]["finish_reason"], "abort")
        self.assertEqual(len(results['"a"']["outputs"][0]["ids"]), 2)
        self.assertEqual(results['"b"']["usage"]["prompt_tokens"], len(PROMPT) + 2 + 1)

    def test_conversations_go_on_by_one_message(self):
        turn = lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "session": self.session}
        results = self.batch(None, requests=[{"id": 1, **turn("What does river mean?")}, {"id": 2, **turn("And lake?")},
                                             {"id": 3, "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
                                              "session": self.session}])
        self.assertGreater(results["2"]["usage"]["cached_tokens"], 4)
        self.assertIn("the next turn alone", results["3"]["error"]["message"])


class Beams(BatchTest):
    def test_answers_come_best_first(self):
        one = {"prompt_ids": PROMPT, "max_tokens": 6, "ignore_eos": True}
        results = self.batch(TINY, requests=[{"id": 1, "beam_width": 4, "n": 3, **one}, {"id": 2, **one}])
        outputs = results["1"]["outputs"]
        self.assertEqual(len(outputs), 3)
        sums = [output["cumulative_logprob"] for output in outputs]
        self.assertEqual(sums, sorted(sums, reverse=True))
        self.assertEqual(len({tuple(output["ids"]) for output in outputs}), 3)
        self.assertEqual(results["1"]["usage"]["completion_tokens"], 18)
        self.assertEqual(results["2"]["outputs"][0]["finish_reason"], "length")

    def test_what_has_no_meaning_is_refused_by_name(self):
        lines = [{"id": name, "prompt_ids": PROMPT, "beam_width": 2, name: value}
                 for name, value in {"temperature": 1.0, "top_p": 0.5, "stop": "x", "seed": 1, "best_of": 2, "cancel_after_tokens": 2}.items()]
        lines.append({"id": "length_penalty", "prompt_ids": PROMPT, "length_penalty": 2.0})
        lines.append({"id": "session", "prompt_ids": PROMPT, "beam_width": 2, "session": "x"})
        for name, result in self.batch(TINY, requests=lines).items():
            self.assertIn("'" + json.loads(name) + "'", result["error"]["message"])


class Choices(BatchTest):
    def test_biases_and_allowed_tokens_hold(self):
        one = {"prompt_ids": PROMPT, "max_tokens": 4, "ignore_eos": True}
        results = self.batch(TINY, requests=[{"id": 1, "logit_bias": {"77": 100}, **one}, {"id": 2, "allowed_token_ids": [3, 5], **one},
                                             {"id": 3, "logit_bias": {"x": 1}, **one}, {"id": 4, "logit_bias": {"1": 101}, **one}])
        self.assertEqual(results["1"]["outputs"][0]["ids"], [77] * 4)
        self.assertLessEqual(set(results["2"]["outputs"][0]["ids"]), {3, 5})
        self.assertIn("found 1 for 'x'", results["3"]["error"]["message"])
        self.assertIn("found 101 for '1'", results["4"]["error"]["message"])

    def test_a_prompt_is_scored_without_an_answer(self):
        results = self.batch(TINY, requests=[{"id": 1, "prompt_ids": PROMPT, "max_tokens": 0, "prompt_logprobs": 2},
                                             {"id": 2, "prompt_ids": PROMPT, "max_tokens": 0}])
        scored = results["1"]["prompt_logprobs"]["content"]
        self.assertEqual(len(scored), len(PROMPT))
        self.assertIsNone(scored[0]["logprob"])
        self.assertTrue(all(one["logprob"] < 0 for one in scored[1:]))
        self.assertTrue(all(len(one["top_logprobs"]) == 2 for one in scored[1:]))
        self.assertEqual(results["1"]["outputs"][0]["ids"], [])
        self.assertIn("max_tokens", results["2"]["error"]["message"])


class Parking(BatchTest):
    def test_a_folder_for_parked_requests_must_be_there(self):
        self.write([{"id": 1, "prompt_ids": PROMPT}])
        self.fails(2, *self.command(TINY, "--parking-dir", str(self.folder / "none")), says=["parking_dir must be a folder"])

    def test_it_gives_the_same_and_is_counted(self):
        requests = [{"id": i, "prompt_ids": [i + 1, *PROMPT], "max_tokens": 12, "ignore_eos": True, "priority": -i, "arrival_s": i / 1000}
                    for i in range(12)]
        plain = self.batch(TINY, requests=requests)
        self.output.unlink()
        parked = self.batch(TINY, "--parking-dir", str(self.folder), "--parking-memory-bytes", "1", "--preemption", "park",
                            "--scheduling-policy", "priority", "--max-num-seqs", "1", "--stats", self.stats)
        self.assertEqual({k: v["outputs"] for k, v in parked.items()}, {k: v["outputs"] for k, v in plain.items()})
        self.assertEqual(self.statistics()["parked_to_files"], self.statistics()["parked"])
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(p.name for p in (self.input, self.output, self.stats)))


if __name__ == "__main__":
    unittest.main()
