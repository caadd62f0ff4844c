# SPDX-License-Identifier: Apache-2.0
"""What only the whole program can show of bad input: limits of the process, files that change under it, exit codes."""
import os
import resource
import struct
import subprocess
import unittest

from harness import BUILTIN, DATA, PROGRAM, SANITIZED, SECONDS, CliTest, coluber, environment

KIB = 1024


class BadInput(CliTest):
    def test_unknown_architecture_lists_the_known_ones(self):
        model = self.copy_model(DATA / "mamba")
        self.edit_json(model / "config.json", lambda c: c.update(model_type="gpt2", architectures=["GPT2LMHeadModel"]))
        for command in ("run", "inspect", "logits"):
            words = {"run": ["--prompt-ids", "1"], "logits": ["--ids", "1", "--out", self.folder / "o"], "inspect": []}
            self.fails(None, command, model, *words[command], says=["gpt2", "falcon_mamba", "lfm2", "mamba2", "minimax"])

    def test_a_broken_template_stops_the_chat_and_not_the_plain_text(self):
        model = self.copy_model(BUILTIN)
        (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }")
        self.fails(None, "run", model, "-p", "Hi", "-n", "2", says=["chat_template.jinja", "--raw"])
        raw = self.succeeds("run", model, "-p", "Once", "-n", "2", "--raw", "--temperature", "0")
        self.assertEqual(raw.out, self.succeeds("run", "-p", "Once", "-n", "2", "--raw", "--temperature", "0").out)

    def test_a_model_larger_than_memory_names_both_sizes(self):
        model = self.folder / "huge"
        model.mkdir()
        (model / "config.json").write_bytes((DATA / "mamba" / "config.json").read_bytes())
        header = b'{"w":{"dtype":"BF16","shape":[524288,1048576],"data_offsets":[0,1099511627776]}}'
        with open(model / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            try:
                file.truncate(8 + len(header) + 2**40)
            except OSError as error:
                self.skipTest(f"this file system has no file of a terabyte: {error}")
        self.fails(None, "run", model, "--prompt-ids", "1", says=["1.1 TB", "available"])

    def test_numbers_that_do_not_go_together_are_told_with_their_values(self):
        model = self.copy_model(BUILTIN)
        self.edit_json(model / "config.json", lambda config: config.update(hidden_size=300))
        self.fails(5, "run", model, "-p", "x", says=["num_heads * head_dim must be expand * hidden_size; num_heads is 10, head_dim is 64", "hidden_size is 300"])

    def test_too_little_memory_is_told_by_the_kinds_that_the_model_has(self):
        states = self.fails(None, "run", "-p", "x", "--kv-cache-memory-bytes", "1MB", says=["one sequence needs", "states", "--kv-cache-memory-bytes"])
        self.assertNotIn("attention", states.err)
        self.fails(None, "run", DATA / "lfm2", "--prompt-ids", "1", "--kv-cache-memory-bytes", "100", says=["states", "tokens of attention"])

    @unittest.skipIf(SANITIZED, "a sanitizer needs far more address space than the program")
    def test_a_small_address_space_ends_in_a_message(self):
        def limited(kilobytes):
            def limit():
                resource.setrlimit(resource.RLIMIT_AS, (kilobytes * KIB, kilobytes * KIB))
            done = subprocess.run([PROGRAM, "run", "--raw", "-p", "Once", "-n", "2", "--threads", "1"], stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=SECONDS, env=environment(), preexec_fn=limit, check=False)
            return done.returncode, done.stderr.decode()

        for megabytes in (40, 60, 100, 200, 400):
            code, message = limited(megabytes * KIB)
            self.assertGreater(code, 0, message)
            self.assertLess(code, 128, message)
            self.assertTrue(message.startswith("coluber: "), message)

    @unittest.skipIf(os.geteuid() == 0, "root may read every file")
    def test_unreadable_files_are_named(self):
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            model = self.copy_model(BUILTIN, name)
            (model / name).chmod(0)
            self.fails(None, "run", model, "-p", "Hi", says=[name, "ermission"])

    def test_a_file_truncated_during_generation_changes_nothing(self):
        model = self.copy_model(DATA / "minimax")
        words = ["--prompt-ids", "1,2,3", "-n", "3000", "--ignore-eos", "--temperature", "0", "--json"]
        whole = coluber("run", model, *words)
        self.assertEqual(whole.code, 0, whole)
        with subprocess.Popen([PROGRAM, "run", str(model), *words[:-1]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=environment()) as running:
            running.stdout.read(1)  # loaded, and generating
            os.truncate(model / "model.safetensors", 0)
            _, message = running.communicate(timeout=SECONDS)
            self.assertEqual(running.returncode, 0, message)


if __name__ == "__main__":
    unittest.main()
