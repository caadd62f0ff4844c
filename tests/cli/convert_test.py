# SPDX-License-Identifier: Apache-2.0
"""`coluber convert`: both formats and back, what it refuses, files that are whole or not there."""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

from harness import BUILTIN, DATA, PROGRAM, USAGE, CliTest, environment, read_safetensors

IDS = ",".join(str((7 * i + 3) % 120) for i in range(24))
EXACT = 1e-5  # of the logits' deviation: A_log goes through an exponential and back
# Families of tests/data that GGUF has an architecture for, in a form that it can say.
AS_GGUF = ("falcon_mamba", "falcon_h1_bf16", "granitemoehybrid_bf16", "jamba_bf16", "kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2",
           "nemotron_h_bf16", "qwen3_5", "qwen3_5_moe", "qwen3_5_vl", "rwkv7_fla")


class Convert(CliTest):
    def logits(self, model):
        out = self.folder.parent / f"{self.folder.name}.safetensors"
        self.addCleanup(out.unlink, missing_ok=True)
        self.succeeds("logits", model, "--ids", IDS, "--out", out)
        return read_safetensors(out)[0]["logits"][2]

    def assert_same_logits(self, one, other, most=EXACT):
        ours, theirs = self.logits(one), self.logits(other)
        mean = sum(ours) / len(ours)
        deviation = (sum((x - mean) ** 2 for x in ours) / len(ours)) ** 0.5
        self.assertLessEqual(max(abs(a - b) for a, b in zip(ours, theirs)), most * deviation)

    def convert(self, model, *args):
        return self.succeeds("convert", model, *args)

    def test_every_family_with_an_architecture_goes_there_and_back(self):
        for family in AS_GGUF:
            with self.subTest(family):
                path, back = self.folder / family / "model.gguf", self.folder / f"{family}-hf"
                path.parent.mkdir()
                self.convert(DATA / family, "--to", "gguf", "--type", "f32", "--out", path)
                self.assert_same_logits(DATA / family, path)
                self.convert(path, "--to", "safetensors", "--type", "float32", "--out", back)
                self.assert_same_logits(path, back, 0)

    def test_scaled_positions_come_along_or_are_refused(self):
        for family in ("bamba", "lfm2", "qwen3_5"):
            for number, (kind, written) in enumerate([({"rope_type": "linear", "factor": 4.0}, True),
                                 ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, True),
                                 ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}, False),
                                 ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                   "original_max_position_embeddings": 16}, False),
                                 ({"partial_rotary_factor": 0.5}, True)]):
                with self.subTest(family=family, kind=kind):
                    model, path = self.copy_model(DATA / family, f"{family}-{number}"), self.folder / f"{family}-{number}.gguf"
                    self.edit_json(model / "config.json", lambda c: c["rope_parameters"].update(kind))
                    if written:
                        self.convert(model, "--to", "gguf", "--type", "f32", "--out", path)
                        self.assert_same_logits(model, path)
                    else:
                        self.fails(None, "convert", model, "--to", "gguf", "--type", "f32", "--out", path, says="cannot be written")

    def test_every_family_goes_from_safetensors_to_safetensors(self):
        for golden in sorted(DATA.glob("*/golden.json")):
            with self.subTest(golden.parent.name):
                out = self.folder / golden.parent.name
                self.convert(golden.parent, "--to", "safetensors", "--type", "float32", "--out", out)
                self.assert_same_logits(golden.parent, out, 0)
                shutil.rmtree(out)

    def test_quantised_files_are_the_values_of_their_blocks(self):
        for kind, name in (("q8_0", "Q8_0"), ("q4_0", "Q4_0"), ("q4_k_m", "Q5_0"), ("f16", "float16")):
            with self.subTest(kind):
                path, back = self.folder / kind / "model.gguf", self.folder / f"{kind}-hf"
                path.parent.mkdir()
                result = self.convert(BUILTIN, "--to", "gguf", "--type", kind, "--out", path)
                self.assertRegex(result.out, rf"(?m)^{name} +\d+ +\d+ ")
                self.assertIn(name, self.succeeds("inspect", path).out)
                self.convert(path, "--to", "safetensors", "--type", "float32", "--out", back)
                self.assert_same_logits(path, back, 1e-4)

    def test_quantised_checkpoints_come_out_as_their_values(self):
        sources = sorted(path.parent for path in (DATA / "quantized").glob("*/config.json"))
        if not sources:
            self.skipTest("no quantised checkpoints")
        for source in sources:
            with self.subTest(source.name):
                out = self.folder / source.name
                self.convert(source, "--to", "safetensors", "--type", "float32", "--out", out)
                self.assertNotIn("quantization_config", json.loads((out / "config.json").read_text()))
                self.assert_same_logits(source, out, 1e-4)

    def test_text_comes_along(self):
        path, back = self.folder / "g" / "model.gguf", self.folder / "hf"
        path.parent.mkdir()
        self.convert(BUILTIN, "--to", "gguf", "--type", "q8_0", "--out", path)
        self.convert(path, "--to", "safetensors", "--type", "bfloat16", "--out", back)
        text = "Hello, it's 33 rivers \u00e9!\n  ok"
        chat = json.dumps([{"role": "user", "content": "Hi"}])
        for model in (path, back):
            self.assertEqual(self.succeeds("tokenize", "-p", text, model).out, self.succeeds("tokenize", "-p", text, BUILTIN).out)
            self.assertEqual(self.succeeds("template", model, stdin=chat).out, self.succeeds("template", BUILTIN, stdin=chat).out)

    def test_shards_and_their_index(self):
        out = self.folder / "sharded"
        self.convert(BUILTIN, "--to", "safetensors", "--type", "bfloat16", "--out", out, "--max-shard-size", "4MB")
        index = json.loads((out / "model.safetensors.index.json").read_text())
        names = set(index["weight_map"].values())
        self.assertEqual(names, {path.name for path in out.glob("*.safetensors")})
        self.assertGreater(len(names), 3)
        self.assertTrue(all((out / name).stat().st_size < 4.1e6 for name in names))
        self.assertEqual(json.loads((out / "config.json").read_text())["dtype"], "bfloat16")
        self.assert_same_logits(BUILTIN, out, 0)

    def test_weights_out_of_a_pickle_stay_what_they_are(self):
        out = self.folder / "rwkv"
        self.convert(DATA / "rwkv7_pth", "--to", "safetensors", "--type", "float32", "--out", out)
        self.assert_same_logits(DATA / "rwkv7_pth", out, 0)

    def test_a_gguf_file_of_other_types(self):
        first, second = self.folder / "a" / "a.gguf", self.folder / "b" / "b.gguf"
        first.parent.mkdir()
        second.parent.mkdir()
        self.convert(BUILTIN, "--to", "gguf", "--type", "f32", "--out", first)
        self.convert(first, "--to", "gguf", "--type", "q8_0", "--out", second)
        direct = self.folder / "direct.gguf"
        self.convert(BUILTIN, "--to", "gguf", "--type", "q8_0", "--out", direct)
        self.assertEqual(self.logits(second), self.logits(shutil.move(direct, self.folder / "a" / "direct.gguf")))
        result = self.convert(second, "--to", "gguf", "--type", "q4_0", "--out", self.folder / "c.gguf")
        self.assertIn("quantised again", result.err)

    def test_nothing_is_overwritten_without_force_and_the_model_never(self):
        model = self.copy_model(BUILTIN)
        gguf, out = self.folder / "x.gguf", self.folder / "out"
        self.convert(model, "--to", "gguf", "--type", "q8_0", "--out", gguf)
        before = gguf.read_bytes()
        self.fails(USAGE, "convert", model, "--to", "gguf", "--type", "q4_0", "--out", gguf, says="--force")
        self.assertEqual(gguf.read_bytes(), before)
        self.convert(model, "--to", "gguf", "--type", "q4_0", "--out", gguf, "--force")
        self.assertNotEqual(gguf.read_bytes(), before)
        self.fails(USAGE, "convert", gguf, "--to", "gguf", "--type", "q8_0", "--out", gguf, "--force", says="the model itself")
        parts = [self.folder / f"s-0000{i}-of-00002.gguf" for i in (1, 2)]
        for i, part in enumerate(parts):
            shutil.copy(DATA / "gguf" / f"mamba2.Q4_0-0000{i + 1}-of-00002.gguf", part)
        second = parts[1].read_bytes()
        self.fails(USAGE, "convert", parts[0], "--to", "gguf", "--type", "f32", "--out", parts[1], "--force", says="a file of the model")
        self.assertEqual(parts[1].read_bytes(), second)
        for place in (model, self.folder):
            self.fails(USAGE, "convert", model, "--to", "safetensors", "--type", "float32", "--out", place, "--force", says="the model")
        out.mkdir()
        (out / "letters.txt").write_text("mine")
        self.fails(USAGE, "convert", model, "--to", "safetensors", "--type", "float32", "--out", out, "--force", says="no model")
        self.assertEqual((out / "letters.txt").read_text(), "mine")
        kept = self.folder / "kept"
        self.convert(model, "--to", "safetensors", "--type", "float16", "--out", kept)
        (kept / ".git").mkdir()
        self.fails(USAGE, "convert", model, "--to", "safetensors", "--type", "float32", "--out", kept, "--force", says="'.git'")
        self.assertTrue((kept / ".git").exists())
        pipe = self.folder / "pipe.gguf"
        os.mkfifo(pipe)
        self.fails(USAGE, "convert", model, "--to", "gguf", "--type", "q8_0", "--out", pipe, "--force", says="a pipe")

    def test_mistakes_are_told_with_the_way_out(self):
        out = self.folder / "x.gguf"
        self.fails(USAGE, "convert", BUILTIN, "--type", "q8_0", says="--to")
        self.fails(USAGE, "convert", BUILTIN, "--to", "gguf", "--out", out, says=["--type", "q4_k_m"])
        self.fails(USAGE, "convert", BUILTIN, "--to", "gguf", "--type", "q3_z", "--out", out, says=["q3_z", "q4_k_m"])
        self.fails(USAGE, "convert", BUILTIN, "--to", "gguf", "--type", "q8_0", "--out", self.folder / "x.bin", says=".gguf")
        self.fails(USAGE, "convert", BUILTIN, "--to", "gguf", "--type", "q8_0", "--out", self.folder / "no" / "x.gguf", says="no folder")
        self.fails(USAGE, "convert", BUILTIN, "--to", "safetensors", "--type", "bfloat16", "--out", self.folder / "o",
                   "--max-shard-size", "many", says="--max-shard-size")
        self.fails(None, "convert", DATA / "hgrn2", "--to", "gguf", "--type", "q8_0", "--out", out, says=["hgrn2", "mamba2", "--to safetensors"])
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_full_disk_leaves_nothing_and_says_so(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for to, kind, out in (("gguf", "f16", "x.gguf"), ("safetensors", "float32", "x")):
            result = subprocess.run([PROGRAM, "convert", str(BUILTIN), "--to", to, "--type", kind, "--out", str(self.folder / out)],
                                    capture_output=True, text=True, preexec_fn=limit, env=environment())
            self.assertGreater(result.returncode, 0, result.stderr)
            self.assertIn("cannot write", result.stderr)
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_model_that_shrinks_meanwhile_is_told(self):
        model, out = self.copy_model(BUILTIN), self.folder / "x.gguf"
        command = [PROGRAM, "convert", str(model), "--to", "gguf", "--type", "q6_k", "--out", str(out), "--threads", "1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()) as process:
            while process.poll() is None and not list(self.folder.glob("x.gguf.tmp-*")):
                time.sleep(0.001)
            os.truncate(model / "model.safetensors", 4096)
            message = process.communicate()[1]
        self.assertEqual(process.returncode, 10, message)
        self.assertIn("can no longer be read", message)
        self.assertFalse(out.exists())

    def test_an_end_at_any_moment_leaves_all_or_nothing_under_the_name(self):
        out = self.folder / "x.gguf"
        command = [PROGRAM, "convert", str(BUILTIN), "--to", "gguf", "--type", "q6_k", "--out", str(out), "--threads", "1"]
        begin = time.monotonic()
        subprocess.run(command, capture_output=True, check=True, env=environment())
        lasts, whole = time.monotonic() - begin, out.read_bytes()
        out.unlink()
        dice = random.Random(1)
        for how in [signal.SIGKILL, signal.SIGINT] * 6:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
            time.sleep(dice.uniform(0, lasts))
            process.send_signal(how)
            process.wait()
            left = sorted(path.name for path in self.folder.iterdir())
            if how == signal.SIGINT and process.returncode in (130, -signal.SIGINT):
                self.assertEqual(left if process.returncode == 130 else [], [])
            for name in left:
                if name == out.name:
                    self.assertEqual(out.read_bytes(), whole)
                else:
                    self.assertRegex(name, r"^x\.gguf\.tmp-")
                (self.folder / name).unlink()

    def test_help_teaches(self):
        text = self.succeeds("convert", "--help").out
        for part in ("--to", "--type", "--out", "--force", "q4_k_m", "bfloat16", "coluber convert "):
            self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
