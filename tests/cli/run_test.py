# SPDX-License-Identifier: Apache-2.0
"""`coluber run`: prompts, streaming, JSON, bad input, Ctrl-C."""
import json
import os
import pty
import select
import signal
import subprocess
import time
import unittest

from harness import BUILTIN, DATA, INTERRUPTED, PROGRAM, USAGE, CliTest, coluber, environment

EXPECTED = json.loads((BUILTIN / "expected.json").read_text())["cases"]


class Generation(CliTest):
    def run_json(self, *args, **kwargs):
        return json.loads(self.succeeds("run", *args, "--json", **kwargs).out)

    def greedy(self, *args, n=8, **kwargs):
        return self.run_json(*args, "-n", n, "--temperature", "0", "--ignore-eos", **kwargs)

    def assert_greedy(self, case, got):
        """Equal up to the first place where the two likeliest tokens are nearly tied."""
        for want, have, margin in zip(case["greedy_ids"], got, case["greedy_margins"]):
            if want != have:
                self.assertLess(margin, 1e-4)
                return

    def test_plain_text_goes_on_as_expected(self):
        case = EXPECTED["text"]
        result = self.greedy("--raw", "-p", case["prompt"], n=len(case["greedy_ids"]))
        self.assertEqual(result["prompt_ids"], case["prompt_ids"])
        self.assert_greedy(case, result["output_ids"])
        self.assertEqual(result["finish_reason"], "length")

    def test_chat_template_is_the_default_and_raw_leaves_it_out(self):
        case = EXPECTED["chat"]
        question = 'What does "river" mean?'
        self.assertEqual(self.greedy("-p", question)["prompt_ids"], case["prompt_ids"])
        self.assertEqual(self.greedy("--chat", "-p", question)["prompt_ids"], case["prompt_ids"])
        self.assertNotEqual(self.greedy("--raw", "-p", question)["prompt_ids"], case["prompt_ids"])

    def test_system_message_comes_before_the_prompt(self):
        plain = self.greedy("-p", "hi", n=1)["prompt_ids"]
        system = self.greedy("-p", "hi", "--system", "Be short.", n=1)["prompt_ids"]
        self.assertGreater(len(system), len(plain))
        self.assertEqual(system[-len(plain):], plain)

    def test_prompt_from_option_file_pipe_and_ids_is_the_same(self):
        case = EXPECTED["text"]
        (self.folder / "prompt.txt").write_text(case["prompt"] + "\n")
        (self.folder / "ids.txt").write_text("\n".join(map(str, case["prompt_ids"])))
        ids = ",".join(map(str, case["prompt_ids"]))
        want = self.greedy("--raw", "-p", case["prompt"])["output_ids"]
        self.assertEqual(self.greedy("--raw", "-f", self.folder / "prompt.txt")["output_ids"], want)
        self.assertEqual(self.greedy("--raw", stdin=case["prompt"] + "\n")["output_ids"], want)
        self.assertEqual(self.greedy("--prompt-ids", ids)["output_ids"], want)
        self.assertEqual(self.greedy("--prompt-ids", f"@{self.folder / 'ids.txt'}")["output_ids"], want)

    def test_streamed_text_is_the_text_of_the_json(self):
        args = ["--raw", "-p", "Once upon a time", "-n", "24", "--seed", "5"]
        self.assertEqual(self.succeeds("run", *args).out, self.run_json(*args)["text"] + "\n")

    def test_json_has_usage_timings_and_reason(self):
        result = self.run_json("--prompt-ids", "5,6,7", "-n", "4", "--ignore-eos")
        self.assertEqual(set(result), {"prompt_ids", "output_ids", "text", "finish_reason", "usage", "timings"})
        self.assertEqual(result["prompt_ids"], [5, 6, 7])
        self.assertEqual(result["usage"], {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 0})
        self.assertEqual(set(result["timings"]), {"load_s", "prefill_s", "decode_s", "prompt_tps", "decode_tps"})
        for key, value in result["timings"].items():
            self.assertGreater(value, 0, key)

    def test_logprobs_have_the_shape_of_the_openai_api(self):
        logprobs = self.run_json("--raw", "-p", "Once upon a", "-n", "3", "--temperature", "0", "--logprobs", "4")["logprobs"]
        self.assertEqual(set(logprobs), {"content", "refusal"})
        self.assertIsNone(logprobs["refusal"])
        content = logprobs["content"]
        self.assertEqual(len(content), 3)
        for entry in content:
            self.assertEqual(set(entry), {"token", "logprob", "bytes", "top_logprobs"})
            self.assertEqual(bytes(entry["bytes"]).decode(), entry["token"])
            self.assertEqual(len(entry["top_logprobs"]), 4)
            best = entry["top_logprobs"][0]
            self.assertEqual((best["token"], best["logprob"]), (entry["token"], entry["logprob"]))
            values = [other["logprob"] for other in entry["top_logprobs"]]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertTrue(all(value <= 0 for value in values))

    def test_the_same_seed_gives_the_same_text_and_another_seed_another(self):
        args = ["--raw", "-p", "Once upon a time", "-n", "32", "--temperature", "1"]
        first = self.run_json(*args, "--seed", "3")["output_ids"]
        self.assertEqual(self.run_json(*args, "--seed", "3")["output_ids"], first)
        self.assertNotEqual(self.run_json(*args, "--seed", "4")["output_ids"], first)

    def test_threads_and_chunks_change_no_token(self):
        case = EXPECTED["long"]
        ids = ",".join(map(str, case["prompt_ids"]))
        want = self.greedy("--prompt-ids", ids, n=16)["output_ids"]
        self.assert_greedy(case, want)
        for extra in (["--threads", "1"], ["--max-num-batched-tokens", "7"], ["--max-num-batched-tokens", "64", "--threads", "2"]):
            self.assertEqual(self.greedy("--prompt-ids", ids, *extra, n=16)["output_ids"], want, extra)

    def test_stop_text_ends_and_is_left_out(self):
        case = EXPECTED["text"]
        args = ["--raw", "-p", case["prompt"], "-n", "40", "--temperature", "0"]
        stopped = self.run_json(*args, "--stop", "meadow")
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertNotIn("meadow", stopped["text"])
        self.assertTrue(case["greedy_text"].startswith(stopped["text"]))
        kept = self.run_json(*args, "--stop", "meadow", "--include-stop-str-in-output")
        self.assertTrue(kept["text"].endswith("meadow"))

    def test_stop_token_ids_end(self):
        case = EXPECTED["text"]
        result = self.run_json("--raw", "-p", case["prompt"], "-n", "40", "--temperature", "0", "--stop-token-ids", str(case["greedy_ids"][3]))
        self.assertEqual(result["finish_reason"], "stop")
        self.assertLessEqual(len(result["output_ids"]), 4)

    def test_answer_ends_at_the_models_end_token_unless_ignored(self):
        args = ["-p", 'What does "river" mean?', "--temperature", "0", "-n", "200"]
        ended = self.run_json(*args)
        self.assertEqual(ended["finish_reason"], "stop")
        self.assertNotIn("<|im_end|>", ended["text"])
        self.assertEqual(len(self.run_json(*args, "--ignore-eos")["output_ids"]), 200)

    def test_the_models_limit_of_new_tokens_holds_unless_another_is_given(self):
        model = self.copy_model(BUILTIN)
        self.edit_json(model / "generation_config.json", lambda c: c.update(max_new_tokens=5))
        for args, tokens in [([], 5), (["-n", "7"], 7)]:
            got = self.run_json(model, "--raw", "-p", "Once upon a time", "--ignore-eos", *args)
            self.assertEqual(got["usage"]["completion_tokens"], tokens)

    def test_model_without_tokenizer_runs_on_ids_and_has_null_text(self):
        for family in sorted(path.parent.name for path in DATA.glob("*/model.safetensors")):
            with self.subTest(family=family):
                result = self.run_json(DATA / family, "--prompt-ids", "1,2,3", "-n", "5", "--temperature", "0", "--ignore-eos", "--logprobs", "2")
                self.assertIsNone(result["text"])
                self.assertEqual(len(result["output_ids"]), 5)
                entry = result["logprobs"]["content"][0]
                self.assertEqual(entry["token"], f"token_id:{result['output_ids'][0]}")
                self.assertIsNone(entry["bytes"])
                streamed = self.succeeds("run", DATA / family, "--prompt-ids", "1,2,3", "-n", "5", "--temperature", "0", "--ignore-eos")
                self.assertEqual(streamed.out, ",".join(map(str, result["output_ids"])) + "\n")

    def test_model_may_be_named_by_its_weights_file(self):
        by_file = self.greedy(BUILTIN / "model.safetensors", "--raw", "-p", "Once", n=4)
        self.assertEqual(by_file["output_ids"], self.greedy("--raw", "-p", "Once", n=4)["output_ids"])

    def test_nothing_but_the_result_is_written_in_a_pipe(self):
        self.assertEqual(self.succeeds("run", "-p", "hi", "-n", "3").err, "")
        self.assertIn("a second", self.succeeds("run", "-p", "hi", "-n", "3", "--verbose").err)


class BadInput(CliTest):
    def test_empty_prompts_are_refused(self):
        (self.folder / "empty.txt").write_text("")
        (self.folder / "newline.txt").write_text("\n")
        for args in (["-p", ""], ["--raw", "-p", ""], ["--prompt-ids", ""], ["--prompt-ids", ","], ["-f", self.folder / "empty.txt"],
                     ["-f", self.folder / "newline.txt"], []):
            with self.subTest(args=args):
                self.fails(USAGE, "run", *args, says="empty")

    def test_ids_outside_the_vocabulary_name_the_id_and_the_size(self):
        self.fails(USAGE, "run", "--prompt-ids", "1,4096", says=["4096", "4095", "position 1"])
        self.fails(USAGE, "run", "--prompt-ids=-1", says=["-1", "4096"])
        self.fails(USAGE, "run", "--prompt-ids", "1,99999999999", says="99999999999")
        self.fails(USAGE, "run", "--prompt-ids", "1,two", says=["--prompt-ids", "'two'"])
        self.fails(USAGE, "run", "-p", "x", "--stop-token-ids", "5000", says="5000")

    def test_invalid_utf8_names_the_offset(self):
        (self.folder / "latin1.txt").write_bytes(b"caf\xe9!")
        self.fails(USAGE, "run", "-f", self.folder / "latin1.txt", says=["UTF-8", "offset 3", "0xE9"])
        self.fails(USAGE, "run", stdin=b"ab\xff", says=["UTF-8", "offset 2"])
        self.fails(USAGE, "run", "-p", b"\xc3", says="UTF-8")
        self.fails(USAGE, "run", stdin=b"\xed\xa0\x80", says="UTF-8")  # a lone surrogate

    def test_contradicting_options_are_refused(self):
        self.fails(USAGE, "run", "-p", "a", "--prompt-ids", "1", says=["--prompt", "--prompt-ids"])
        self.fails(USAGE, "run", "-p", "a", "--chat", "--raw", says=["--chat", "--raw"])
        self.fails(USAGE, "run", "--prompt-ids", "1", "--chat", says="--prompt-ids")
        self.fails(USAGE, "run", "-p", "a", "--raw", "--system", "b", says=["--system", "--raw"])
        self.fails(USAGE, "run", "-p", "a", "--logprobs", "3", says="--json")
        self.fails(USAGE, "run", "-p", "a", "--stop", "", says="--stop")

    def test_text_for_a_model_without_tokenizer_says_what_to_do(self):
        self.fails(USAGE, "run", DATA / "mamba2", "-p", "hi", says=["tokenizer", "--prompt-ids"])
        self.fails(USAGE, "run", DATA / "mamba2", "--prompt-ids", "1", "--stop", "x", says=["--stop", "tokenizer"])

    def test_missing_files_are_named(self):
        self.fails(None, "run", "-f", self.folder / "nowhere.txt", says="nowhere.txt")
        self.fails(None, "run", self.folder / "nomodel", "-p", "hi", says="nomodel")
        self.fails(None, "run", self.folder, "-p", "hi", says="config.json")
        self.fails(None, "run", "--prompt-ids", f"@{self.folder}/ids.txt", says="ids.txt")

    def test_damaged_models_are_refused_by_name(self):
        for what, damage, words in [
            ("truncated", lambda m: (m / "model.safetensors").write_bytes((m / "model.safetensors").read_bytes()[:50000]), "model.safetensors"),
            ("no weights", lambda m: (m / "model.safetensors").unlink(), "safetensors"),
            ("weights are text", lambda m: (m / "model.safetensors").write_text("hello"), "model.safetensors"),
            ("header of 2^63", lambda m: (m / "model.safetensors").write_bytes(b"\0\0\0\0\0\0\0\x80{}"), "model.safetensors"),
            ("config is no JSON", lambda m: (m / "config.json").write_text("{"), "config.json"),
            ("unknown architecture", lambda m: self.edit_json(m / "config.json", lambda c: c.update(model_type="mamba9", architectures=["Mamba9"])), "mamba2"),
            ("missing key", lambda m: self.edit_json(m / "config.json", lambda c: c.pop("vocab_size")), "vocab_size"),
            ("other shape", lambda m: self.edit_json(m / "config.json", lambda c: c.update(vocab_size=321)), "321"),
            ("negative size", lambda m: self.edit_json(m / "config.json", lambda c: c.update(hidden_size=-48)), "hidden_size"),
        ]:
            with self.subTest(what=what):
                model = self.copy_model(DATA / "mamba2", what.replace(" ", "-"))
                damage(model)
                self.fails(None, "run", model, "--prompt-ids", "1,2", says=words)

    def test_damaged_tokenizer_and_template_are_refused_by_name(self):
        broken = self.copy_model(BUILTIN, "tokenizer")
        self.edit_json(broken / "tokenizer.json", lambda t: t["model"].update(type="Quantum"))
        self.fails(None, "run", broken, "-p", "hi", says="Quantum")
        raising = self.copy_model(BUILTIN, "raising")
        self.edit_json(raising / "tokenizer_config.json", lambda t: t.update(chat_template="{{ raise_exception('no such thing') }}"))
        result = coluber("run", raising, "-p", "hi")
        self.assertNotEqual(result.code, 0)
        self.assertIn("no such thing", result.err)
        endless = self.copy_model(BUILTIN, "endless")
        loop = "{% for i in range(100000) %}{% for j in range(100000) %}{% for k in range(100000) %}{% endfor %}{% endfor %}{% endfor %}"
        self.edit_json(endless / "tokenizer_config.json", lambda t: t.update(chat_template=loop))
        self.assertNotIn(coluber("run", endless, "-p", "hi").code, (0, -6, -9, -11))

    def test_prompt_beyond_the_context_limit_names_both_sizes(self):
        ids = ",".join(["5"] * 40)
        self.fails(None, "run", "--max-model-len", "32", "--prompt-ids", ids, says=["40", "32"])


class Interrupt(CliTest):
    def start(self, *args):
        return subprocess.Popen([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())

    def test_ctrl_c_ends_cleanly_with_130(self):
        child = self.start("run", "--raw", "-p", "Once", "-n", "100000", "--ignore-eos")
        self.assertTrue(child.stdout.read(8))
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, INTERRUPTED)
        self.assertTrue(out.endswith(b"\n"))
        self.assertIn(b"Ctrl-C", err)

    def test_ctrl_c_still_gives_the_json_of_what_was_generated(self):
        child = self.start("run", "--raw", "-p", "Once", "-n", "1000000", "--ignore-eos", "--json")
        time.sleep(2.0)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
        self.assertEqual(child.returncode, INTERRUPTED)
        result = json.loads(out)
        self.assertEqual(result["finish_reason"], "abort")
        self.assertGreater(len(result["output_ids"]), 0)


class Terminal(CliTest):
    def run_on_terminal(self, *args, seconds=60):
        """stdin and stderr are a terminal; returns the exit code, stdout, and what the terminal showed."""
        master, slave = pty.openpty()
        child = subprocess.Popen([PROGRAM, *args], stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment(TERM="xterm"))
        os.close(slave)
        shown, deadline = b"", time.monotonic() + seconds
        while time.monotonic() < deadline:
            ready, _, _ = select.select([master], [], [], 0.2)
            if ready:
                try:
                    shown += os.read(master, 65536)
                except OSError:
                    break
            elif child.poll() is not None:
                break
        out = child.stdout.read()
        child.stdout.close()
        os.close(master)
        return child.wait(timeout=10), out.decode(), shown.decode("utf-8", "replace")

    def test_terminal_without_a_prompt_gets_the_usage(self):
        code, out, shown = self.run_on_terminal("run")
        self.assertEqual(code, USAGE)
        self.assertEqual(out, "")
        self.assertIn("Usage: coluber run", shown)
        self.assertIn("there is no prompt", shown)

    def test_timings_are_shown_on_a_terminal(self):
        code, out, shown = self.run_on_terminal("run", "-p", "hi", "-n", "4")
        self.assertEqual(code, 0)
        self.assertIn("a second", shown)
        self.assertNotIn("a second", out)


if __name__ == "__main__":
    unittest.main()
