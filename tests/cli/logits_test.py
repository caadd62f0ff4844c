# SPDX-License-Identifier: Apache-2.0
"""`coluber logits`: what the file holds, engine steps, files that are whole or not there."""
import json
import math
import os
import shutil
import unittest

from harness import BUILTIN, DATA, USAGE, CliTest, read_safetensors

FAMILIES = sorted(path.parent.name for path in DATA.glob("*/golden.json"))
EXPECTED = json.loads((BUILTIN / "expected.json").read_text())["cases"]


class Logits(CliTest):
    def logits(self, *args, name="out.safetensors"):
        out = self.folder / name
        result = self.succeeds("logits", *args, "--out", out)
        self.assertEqual(result.out, "")
        return read_safetensors(out)

    def test_top_logits_of_the_built_in_model_are_as_expected(self):
        case = EXPECTED["text"]
        tensors, _ = self.logits("--ids", ",".join(map(str, case["prompt_ids"])), "--greedy", len(case["greedy_ids"]))
        dtype, shape, values = tensors["logits"]
        self.assertEqual((dtype, shape), ("F32", [len(case["prompt_ids"]), 4096]))
        last = values[-4096:]
        order = sorted(range(4096), key=lambda i: -last[i])[:5]
        self.assertEqual(order, case["top5"]["ids"])
        for i, want in zip(order, case["top5"]["logits"]):
            self.assertAlmostEqual(last[i], want, delta=1e-3)
        self.assertEqual(tensors["greedy"][:2], ("I64", [len(case["greedy_ids"])]))
        for have, want, margin in zip(tensors["greedy"][2], case["greedy_ids"], case["greedy_margins"]):
            if have != want:
                self.assertLess(margin, 1e-4)
                break

    def test_each_chunk_is_one_engine_step(self):
        ids = ",".join(str(5 + i % 7) for i in range(17))
        for chunk, steps in [(1, 17), (3, 6), (7, 3), (17, 1), (64, 1), (0, 1)]:
            with self.subTest(chunk=chunk):
                _, metadata = self.logits("--ids", ids, "--chunk", chunk)
                self.assertEqual(metadata["steps"], str(steps))
        _, metadata = self.logits("--ids", ids, "--max-num-batched-tokens", "5")
        self.assertEqual(metadata["steps"], "4")

    def test_greedy_tokens_are_one_step_each(self):
        _, metadata = self.logits("--ids", "5,6,7", "--greedy", "4")
        self.assertEqual(metadata["steps"], str(1 + 3))  # the prompt's step gives the first token

    def test_chunks_change_no_logit_beyond_rounding(self):
        for family in FAMILIES:
            ids = ",".join(str((7 * i) % 100) for i in range(23))
            whole = self.logits(DATA / family, "--ids", ids)[0]["logits"][2]
            for chunk in (1, 3, 7):
                with self.subTest(family=family, chunk=chunk):
                    parts = self.logits(DATA / family, "--ids", ids, "--chunk", chunk)[0]["logits"][2]
                    self.assertEqual(len(parts), len(whole))
                    self.assertLess(max(abs(a - b) for a, b in zip(whole, parts)), 1e-3)

    def test_chunks_of_a_prompt_turn_as_the_whole_of_it(self):
        model = self.folder / "long"
        shutil.copytree(DATA / "lfm2", model)
        config = json.loads((model / "config.json").read_text())
        pairs = config["hidden_size"] // config["num_attention_heads"] // 2
        config["rope_parameters"] = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 8,
                                     "short_factor": [1.0] * pairs, "long_factor": [4.0] * pairs}
        (model / "config.json").write_text(json.dumps(config))
        ids = ",".join(str((7 * i) % 100) for i in range(23))
        whole = self.logits(model, "--ids", ids)[0]["logits"][2]
        for chunk in (3, 7):
            parts = self.logits(model, "--ids", ids, "--chunk", chunk)[0]["logits"][2]
            self.assertLess(max(abs(a - b) for a, b in zip(whole, parts)), 1e-3)
        grown = self.logits(model, "--ids", ids, "--chunk", 1)[0]["logits"][2]  # a text that grows was short at first
        vocab = config["vocab_size"]
        self.assertLess(max(abs(a - b) for a, b in zip(whole[8 * vocab:], grown[8 * vocab:])), 1e-3)
        self.assertGreater(max(abs(a - b) for a, b in zip(whole[:8 * vocab], grown[:8 * vocab])), 1e-2)

    def test_hidden_and_states_are_named_and_shaped_as_documented(self):
        self.assertGreaterEqual(len(FAMILIES), 5)
        for family in FAMILIES:
            with self.subTest(family=family):
                golden, _ = self.golden_header(family)
                tensors, _ = self.logits(DATA / family, "--ids", ",".join(map(str, golden["input_ids.17"][2])), "--hidden", "--states")
                for name, entry in golden.items():
                    if name.startswith("hidden."):
                        rows, *rest = entry[1]  # where a model keeps several streams, they lie side by side
                        self.assertEqual(tensors[name][1], [rows, math.prod(rest)], name)
                        self.assert_near(tensors[name][2], entry[2], 1e-3, name)
                states = [name for name in tensors if name.startswith("state.")]
                self.assertTrue(states)
                for name in states:
                    if ".conv" in name and name in golden and len(golden[name][1]) == 3:
                        self.assert_conv(tensors[name], golden[name], name)
                    elif name in golden:
                        self.assertEqual(tensors[name][1], golden[name][1], name)
                        self.assert_near(tensors[name][2], golden[name][2], 1e-3, name)

    def golden_header(self, family):
        return read_safetensors(DATA / family / "golden.safetensors")

    def assert_near(self, have, want, tolerance, name):
        scale = max(map(abs, want)) or 1.0
        self.assertLess(max(abs(a - b) for a, b in zip(have, want)), tolerance * scale, name)

    def assert_conv(self, have, want, name):
        """The columns that are kept are the last of those that are expected."""
        (_, channels, kept), (_, same, width) = have[1], want[1]
        self.assertEqual(channels, same, name)
        self.assertIn(width - kept, (0, 1), name)
        for c in range(channels):
            self.assert_near(have[2][c * kept:(c + 1) * kept], want[2][(c + 1) * width - kept:(c + 1) * width], 1e-2, name)

    def test_ids_may_come_from_a_file(self):
        (self.folder / "ids.txt").write_text("5 6\n7,8\n")
        from_file = self.logits("--ids", f"@{self.folder / 'ids.txt'}")[0]["logits"]
        self.assertEqual(from_file, self.logits("--ids", "5,6,7,8", name="other.safetensors")[0]["logits"])


def read_names(path):
    data = path.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    return [name for name in header if name != "__metadata__"]


class BadInput(CliTest):
    def test_missing_or_wrong_arguments_are_named(self):
        out = self.folder / "x.safetensors"
        self.fails(USAGE, "logits", "--out", out, says="--ids")
        self.fails(USAGE, "logits", "--ids", "1", says="--out")
        self.fails(USAGE, "logits", "--ids", ",", "--out", out, says="--ids")
        self.fails(USAGE, "logits", "--ids", "1,4096", "--out", out, says=["4096", "4095"])
        self.fails(USAGE, "logits", "--ids", "1,x", "--out", out, says="'x'")
        self.fails(USAGE, "logits", "--ids", "1", "--out", out, "--chunk", "-1", says="--chunk")
        self.assertFalse(out.exists())

    def test_a_file_of_the_model_is_never_written_over(self):
        model = self.copy_model(DATA / "lfm2")
        stored = {path: path.read_bytes() for path in model.iterdir() if path.is_file()}
        link, hard = self.folder / "link.safetensors", self.folder / "hard.safetensors"
        link.symlink_to(model / "model.safetensors")
        hard.hardlink_to(model / "model.safetensors")
        around = self.folder / "around"
        around.symlink_to(model)
        for out in (model / "model.safetensors", model / "config.json", link, hard, around / "model.safetensors",
                    f"{model}/../model/config.json"):
            for name in (model, model / "model.safetensors"):
                with self.subTest(out=out, model=name):
                    self.fails(USAGE, "logits", name, "--ids", "1", "--out", out, says=["--out", str(out), "another file"])
        for path, data in stored.items():
            self.assertEqual(path.read_bytes(), data)
        (model / "model.safetensors").rename(model / "weights.safetensors")
        self.fails(USAGE, "logits", model / "weights.safetensors", "--ids", "1", "--out", model / "weights.safetensors", says="--out")
        self.fails(USAGE, "logits", model / "weights.safetensors", "--ids", "1", "--out", model / "model.safetensors", says="--out")
        self.assertFalse((model / "model.safetensors").exists())

    def test_shards_of_the_model_are_never_written_over(self):
        model = self.copy_model(DATA / "lfm2")
        (model / "model.safetensors").rename(model / "shard.safetensors")
        names = [name for name in read_names(model / "shard.safetensors")]
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: "shard.safetensors" for name in names}}))
        self.fails(USAGE, "logits", model, "--ids", "1", "--out", model / "shard.safetensors", says="--out")
        for _ in range(2):  # another result beside the model may be written, and written again
            self.succeeds("logits", model, "--ids", "1", "--out", model / "logits.safetensors")

    def test_folder_that_is_not_there_is_named(self):
        self.fails(None, "logits", "--ids", "1", "--out", self.folder / "no" / "x.safetensors", says="x.safetensors")

    def test_full_disk_leaves_no_half_file(self):
        import resource
        import subprocess
        from harness import PROGRAM, environment
        out = self.folder / "x.safetensors"
        out.write_text("old")

        def small_files():  # the signal that comes with it must not end the program
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        done = subprocess.run([PROGRAM, "logits", "--ids", ",".join(["5"] * 20), "--out", out], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=environment(), preexec_fn=small_files, timeout=60)
        self.assertGreater(done.returncode, 0, done.stderr)
        self.assertIn(b"x.safetensors", done.stderr)
        self.assertEqual(out.read_text(), "old")
        self.assertEqual(os.listdir(self.folder), ["x.safetensors"])

    def test_output_to_a_full_device_fails(self):
        if os.path.exists("/dev/full"):
            result = self.fails(None, "logits", "--ids", "1", "--out", "/dev/full/x", says="/dev/full")
            self.assertNotIn("internal", result.err)


if __name__ == "__main__":
    unittest.main()
