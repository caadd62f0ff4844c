# SPDX-License-Identifier: Apache-2.0
"""`coluber run --session` and `coluber session`: going on from files, layouts, damaged files, and what a crash leaves.

COLUBER_KILLS says how many writers are killed (50)."""
import errno
import json
import os
import random
import resource
import signal
import subprocess
import time
import unittest

from harness import BUILTIN, DATA, INTERRUPTED, PROGRAM, SANITIZED, USAGE, CliTest, environment, wait_until_caught

IDS = ",".join(str(7 + i % 200) for i in range(40))
GREEDY = ["--temperature", "0", "--ignore-eos"]


class Sessions(CliTest):
    def setUp(self):
        super().setUp()
        self.session = self.folder / "chat.session"

    def run_json(self, *args):
        return json.loads(self.succeeds("run", *args, "--json").out)

    def show(self, path):
        return json.loads(self.succeeds("session", "show", path, "--json").out)

    def saved(self, n=6, model=BUILTIN, path=None):
        self.succeeds("run", model, "--prompt-ids", IDS, "-n", n, *GREEDY, "--session", path or self.session)

    def test_parts_of_an_answer_are_the_answer(self):
        for model in (BUILTIN, DATA / "lfm2", DATA / "jamba_bf16"):
            whole = self.run_json(model, "--prompt-ids", IDS, "-n", 20, *GREEDY)["output_ids"]
            path = self.folder / f"{model.name}.session"
            first = self.run_json(model, "--prompt-ids", IDS, "-n", 8, *GREEDY, "--session", path)
            self.assertEqual(first["usage"], {"prompt_tokens": 40, "completion_tokens": 8, "cached_tokens": 0})
            rest = self.run_json(model, "-n", 12, *GREEDY, "--session", path)
            self.assertEqual(first["output_ids"] + rest["output_ids"], whole, model)
            # Of 40 and 8 tokens the last one was sampled and not read yet.
            self.assertEqual(rest["usage"], {"prompt_tokens": 48, "completion_tokens": 12, "cached_tokens": 47})

    def test_parts_of_a_sampled_answer_are_the_answer(self):
        sampled = ["--temperature", "1", "--presence-penalty", "0.8", "--ignore-eos"]
        whole = self.run_json("--prompt-ids", IDS, "-n", 20, *sampled, "--seed", 3)["output_ids"]
        first = self.run_json("--prompt-ids", IDS, "-n", 8, *sampled, "--seed", 3, "--session", self.session)
        rest = self.run_json("-n", 12, *sampled, "--session", self.session)
        self.assertEqual(first["output_ids"] + rest["output_ids"], whole)

    def test_a_conversation_goes_on_as_the_template_writes_it(self):
        first = self.run_json("-p", "What does river mean?", "-n", 60, "--seed", 1, "--session", self.session)
        second = self.run_json("-p", "Use it in a sentence.", "-n", 8, "--session", self.session)
        held = self.show(self.session)["token_ids"]
        messages = [{"role": "user", "content": "What does river mean?"}, {"role": "assistant", "content": first["text"]},
                    {"role": "user", "content": "Use it in a sentence."}]
        self.assertEqual(first["finish_reason"], "stop")
        rendered = self.succeeds("template", stdin=json.dumps(messages)).out
        expected = self.succeeds("tokenize", "--no-add-special-tokens", stdin=rendered).out
        expected = [int(word) for word in expected.replace(",", " ").split()]
        self.assertEqual(held[:len(expected)], expected)
        self.assertEqual(held[:len(first["prompt_ids"])], first["prompt_ids"])
        self.assertEqual(held[-len(second["output_ids"]):], second["output_ids"])
        self.fails(USAGE, "run", "-p", "x", "--system", "Be short.", "--session", self.session, says="--system")

    def test_text_goes_on_as_it_is_with_raw(self):
        first = self.run_json("--raw", "-p", "Once upon a time", "-n", 5, *GREEDY, "--session", self.session)
        self.run_json("--raw", "-p", " and then", "-n", 5, *GREEDY, "--session", self.session)
        held = self.show(self.session)
        self.assertEqual(held["token_ids"][:len(first["prompt_ids"]) + 5], first["prompt_ids"] + first["output_ids"])
        self.assertEqual(held["pending_tokens"], 1)

    def test_show_tells_tokens_memory_and_layout(self):
        self.saved(model=DATA / "jamba_bf16")
        result = self.succeeds("session", "show", self.session)
        for words in ("45 tokens of 'jamba_bf16'", "1 more to be read", "mamba1", "full_attention", "pages of 16 tokens", "Checksums"):
            self.assertIn(words, result.out)
        facts = self.show(self.session)
        self.assertEqual((facts["tokens"], facts["pending_tokens"], len(facts["token_ids"])), (45, 1, 46))
        self.assertEqual(sum(kind["layers"] for kind in facts["kinds"]), len(facts["layers"]))
        self.assertGreater(facts["bytes"]["states"], 0)
        self.assertGreater(facts["bytes"]["attention"], 0)

    def test_other_layouts_come_back_as_the_same_bytes(self):
        self.saved(model=DATA / "jamba_bf16")
        for layout in ([], ["--conv-layout", "DS"], ["--cache-layout", "shared"], ["--cache-layout", "shared", "--conv-layout", "DS"]):
            for ranks in (1, 2):
                out = self.folder / "out"
                self.succeeds("session", "export", self.session, *layout, "--tensor-parallel-size", ranks, "-o", out)
                parts = [out] if ranks == 1 else [f"{out}.1", f"{out}.0"]  # in any order
                self.succeeds("session", "import", *parts, "-o", self.folder / "back")
                self.assertEqual(self.show(self.folder / "back"), self.show(self.session) | {"layout": self.show(self.folder / "back")["layout"]})
                args = [DATA / "jamba_bf16", "-n", 6, *GREEDY, "--session"]
                copy = self.folder / "copy"
                copy.write_bytes(self.session.read_bytes())
                self.assertEqual(self.run_json(*args, self.folder / "back")["output_ids"], self.run_json(*args, copy)["output_ids"])
        self.fails(None, "run", DATA / "jamba_bf16", "-n", 2, "--session", self.folder / "out.0", says="rank 0 of 2")
        self.fails(None, "session", "import", self.folder / "out.0", "-o", self.folder / "x", says="each once")
        self.fails(USAGE, "session", "export", self.folder / "out.0", "-o", self.folder / "x", says="import")

    def test_states_of_whole_numbers_and_pages_of_bytes_take_their_scales_along(self):
        narrow = ["--mamba-ssm-cache-dtype", "int16", "--kv-cache-dtype", "fp8"]
        args = [DATA / "jamba_bf16", *GREEDY, *narrow]
        whole = self.run_json(*args, "--prompt-ids", IDS, "-n", 20)["output_ids"]
        first = self.run_json(*args, "--prompt-ids", IDS, "-n", 8, "--session", self.session)["output_ids"]
        out, back = self.folder / "out", self.folder / "back"
        self.succeeds("session", "export", self.session, "--cache-layout", "shared", "--tensor-parallel-size", 2, "-o", out)
        self.succeeds("session", "import", f"{out}.0", f"{out}.1", "-o", back)
        states = {state["name"]: state["dtype"] for layer in self.show(back)["layers"] for state in layer["states"]}
        self.assertEqual(states, {"conv": "float32", "recurrent": "int16", "recurrent.scale": "float32"})
        pages = {layer["page_dtype"] for layer in self.show(back)["layers"] if layer["kind"] == "full_attention"}
        self.assertEqual(pages, {"float8_e4m3fn"})
        self.fails(None, "run", DATA / "jamba_bf16", "-n", 2, "--session", back, says="int16 and float32")
        self.assertEqual(first + self.run_json(*args, "-n", 12, "--session", back)["output_ids"], whole)

    def test_what_does_not_fit_is_refused_and_stays_as_it_was(self):
        self.saved()
        good = self.session.read_bytes()
        self.fails(None, "run", DATA / "lfm2", "--prompt-ids", "5", "--session", self.session, says="another model")
        for at in (70, len(good) // 2, len(good) - 1):
            self.session.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
            bad = self.session.read_bytes()
            self.fails(None, "run", "--prompt-ids", "5", "--session", self.session, says="cannot be used")
            self.fails(None, "session", "show", self.session, says="cannot be used")
            self.assertEqual(self.session.read_bytes(), bad)
        self.session.write_bytes(good[:-5])
        self.fails(None, "session", "show", self.session, says="cut off")
        self.session.write_text("a diary")
        self.fails(None, "run", "--prompt-ids", "5", "--session", self.session, says="no session file")
        self.assertEqual(self.session.read_text(), "a diary")
        self.fails(None, "run", "--prompt-ids", "5", "--session", self.folder / "no" / "x", says="--session")
        model = self.copy_model(BUILTIN)
        self.fails(USAGE, "run", model, "--prompt-ids", "5", "--session", model / "config.json", says="a file of the model")

    def test_an_answer_is_told_also_where_its_session_cannot_be_kept(self):
        self.saved()
        old = self.session.read_bytes()

        def set_limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) // 2, len(old) // 2))
        for flags in ([], ["--json"]):
            with self.subTest(flags=flags):
                words = [PROGRAM, "run", "-n", "4", *GREEDY, "--session", str(self.session), *flags]
                result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=environment(), preexec_fn=set_limit, timeout=120)
                self.assertGreater(result.returncode, 0)
                self.assertTrue(result.stdout.endswith(b"\n"), result.stdout)
                if flags:
                    self.assertEqual(len(json.loads(result.stdout)["output_ids"]), 4)
                self.assertRegex(result.stderr.decode(), r"^coluber: cannot write '.*chat.session': .*; free some space or name another place\n$")
                self.assertEqual(self.session.read_bytes(), old)

    def test_shares_that_lack_or_repeat_a_rank_are_refused(self):
        self.saved()
        shares = [f"{self.session}.{rank}" for rank in (0, 1)]
        self.succeeds("session", "export", self.session, "--tensor-parallel-size", "2", "-o", self.session)
        for files in (shares[:1], shares[1:], [shares[0]] * 2, [shares[1]] * 2):
            self.fails(None, "session", "import", *files, "-o", self.folder / "back", says="the shares of all 2 ranks, each once")

    def test_usage(self):
        self.fails(USAGE, "session", says="show, export and import")
        self.fails(USAGE, "session", "burn", says="burn")
        self.fails(USAGE, "session", "show", says="FILE")
        self.fails(USAGE, "session", "export", "x", says="--output")
        self.assertIn("export", self.succeeds("session", "--help").out)

    def test_ctrl_c_saves(self):
        words = [PROGRAM, "run", "--prompt-ids", IDS, "-n", "100000", *GREEDY, "--session", str(self.session)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        wait_until_caught(process.pid, signal.SIGINT)
        process.stdout.read(20)  # it is answering
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED)
        held = self.show(self.session)
        self.assertGreater(held["tokens"], 40)
        again = self.run_json("-n", 4, *GREEDY, "--session", self.session)
        self.assertEqual(again["usage"]["cached_tokens"], held["tokens"])


class Crashes(CliTest):
    """Whatever happens to a writer, the file is the old or the new one, whole."""

    def setUp(self):
        super().setUp()
        self.versions = []
        for i, n in enumerate((4, 40)):
            path = self.folder / f"version{i}"
            self.succeeds("run", "--prompt-ids", IDS, "-n", n, *GREEDY, "--session", path)
            self.versions.append(path)
        self.target = self.folder / "session"
        self.contents = []
        for path in self.versions:
            self.succeeds(*self.write(path))
            self.contents.append(self.target.read_bytes())
        self.assertNotEqual(*self.contents)

    def write(self, version):
        return ["session", "export", version, "-o", self.target]

    def start(self, version, **kwargs):
        return subprocess.Popen([PROGRAM, *map(str, self.write(version))], env=environment(), stderr=subprocess.DEVNULL, **kwargs)

    def test_killed_at_any_moment(self):
        begin = time.monotonic()
        self.start(self.versions[0]).wait()
        whole = time.monotonic() - begin
        chance, seen = random.Random(1), set()
        for i in range(int(os.environ.get("COLUBER_KILLS", "50"))):
            process = self.start(self.versions[i % 2])
            time.sleep(chance.uniform(0, 1.2 * whole))
            process.kill()
            process.wait()
            found = self.target.read_bytes()
            self.assertIn(found, self.contents, f"after kill {i}")
            seen.add((i % 2, self.contents.index(found)))
        self.assertGreater(len(seen), 1, "no kill came before the end, or none after it")
        self.succeeds("session", "show", self.target)

    def test_a_full_disk_leaves_the_old_file(self):
        old = self.target.read_bytes()
        size = len(self.contents[0])
        for limit in (0, 100, size // 2, size - 1):
            def set_limit(limit=limit):
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            self.assertNotEqual(self.start(self.versions[0], preexec_fn=set_limit).wait(), 0)
            self.assertEqual(self.target.read_bytes(), old)
            self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["session", "version0", "version1"], "a temporary is left")

    @unittest.skipIf(SANITIZED or not os.environ.get("FAILING_CALLS"), "needs the library that makes calls fail")
    def test_each_call_of_writing_may_fail(self):
        old, others = self.target.read_bytes(), sorted(p.name for p in self.folder.iterdir())
        for function, error in (("write", errno.ENOSPC), ("write", errno.EIO), ("fsync", errno.EIO), ("close", errno.EDQUOT),
                                ("rename", errno.ENOSPC)):
            for number in range(1, 100):
                env = environment(LD_PRELOAD=os.environ["FAILING_CALLS"], FAILING_CALL=f"{function}:{number}:{error}")
                result = subprocess.run([PROGRAM, *map(str, self.write(self.versions[0]))], env=env, stderr=subprocess.PIPE)
                if result.returncode == 0:  # it needs fewer calls than that
                    break
                self.assertEqual(self.target.read_bytes(), old, f"{function} {number}")
                self.assertEqual(sorted(p.name for p in self.folder.iterdir()), others, "a temporary is left")
                self.assertIn(os.strerror(error), result.stderr.decode())
            self.assertGreater(number, 1, f"{function} was never made to fail")
            self.assertEqual(self.target.read_bytes(), self.contents[0])
            self.succeeds(*self.write(self.versions[1]))
        env = environment(LD_PRELOAD=os.environ["FAILING_CALLS"], FAILING_CALL="short:0:0")
        subprocess.run([PROGRAM, *map(str, self.write(self.versions[0]))], env=env, check=True)
        self.assertEqual(self.target.read_bytes(), self.contents[0], "writes that take half of what they are given")

    def test_killed_while_the_disk_fills(self):
        chance = random.Random(2)
        begin = time.monotonic()
        self.start(self.versions[0]).wait()
        whole = time.monotonic() - begin
        old = self.target.read_bytes()
        for i in range(10):
            def set_limit(limit=chance.randrange(len(self.contents[0]))):
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            process = self.start(self.versions[1], preexec_fn=set_limit)
            time.sleep(chance.uniform(0, whole))
            process.kill()
            process.wait()
            self.assertEqual(self.target.read_bytes(), old, f"after kill {i}")
        self.succeeds("session", "show", self.target)


if __name__ == "__main__":
    unittest.main()
