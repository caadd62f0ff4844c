# SPDX-License-Identifier: Apache-2.0
"""`coluber inspect` and `coluber bench`: figures that can be worked out from the configs, and their shape."""
import json
import re
import signal
import subprocess
import time
import unittest

from harness import DATA, INTERRUPTED, PROGRAM, USAGE, CliTest, environment, wait_until_caught

LAYER_KEYS = {"name", "kind", "mamba_type", "backend", "state_shapes", "state_dtypes", "page_size_bytes", "prefill_checkpoint_alignment"}
KEYS = {"architecture", "num_layers", "parameters", "weight_bytes", "state_bytes_per_sequence", "kv_bytes_per_token",
        "prefill_checkpoint_alignment", "layers"}
CONTEXT = 7
FAMILIES = sorted(path.parent.name for path in DATA.glob("*/golden.json"))


def read_config(family):
    path = DATA / family / "config.json"
    return json.loads(path.read_text()) if path.exists() else {}


def product(values):
    out = 1
    for value in values:
        out *= value
    return out


class Inspect(CliTest):
    def facts(self, *args):
        return json.loads(self.succeeds("inspect", *args, "--json").out)

    def test_built_in_model_is_what_its_card_says(self):
        facts = self.facts()
        self.assertLessEqual(KEYS, set(facts))
        self.assertEqual(facts["architecture"], "mamba2")
        self.assertEqual(facts["num_layers"], 9)
        self.assertEqual(facts["parameters"], 7655950)
        self.assertEqual(facts["weight_bytes"], 2 * 7655950)
        self.assertEqual(facts["kv_bytes_per_token"], 0)
        self.assertEqual(facts["state_bytes_per_sequence"], 9 * 4 * (10 * 64 * 128 + 896 * 3))
        self.assertEqual(len(facts["layers"]), 9)
        layer = facts["layers"][0]
        self.assertLessEqual(LAYER_KEYS, set(layer))
        self.assertEqual((layer["kind"], layer["mamba_type"], layer["backend"]), ("mamba2", "MAMBA2", "mamba2"))
        self.assertEqual(product(layer["state_shapes"][0]), 896 * 3)
        self.assertEqual(layer["state_shapes"][1], [10, 64, 128])
        self.assertEqual(facts["prefill_checkpoint_alignment"], 1)

    def test_pages_and_sums_agree_in_every_family(self):
        sizes = {"float32": 4, "bfloat16": 2, "float16": 2}
        self.assertGreaterEqual(len(FAMILIES), 5)
        for family in FAMILIES:
            with self.subTest(family=family):
                facts = self.facts(DATA / family)
                config = read_config(family)
                if "model_type" in config:
                    # A text part may be called as its container.
                    self.assertIn(config["model_type"], (facts["architecture"], facts["architecture"] + "_text"))
                if "num_hidden_layers" in config:
                    self.assertEqual(facts["num_layers"], config["num_hidden_layers"])
                indices = {int(re.search(r"\.(\d+)", layer["name"])[1]) for layer in facts["layers"]}
                self.assertLessEqual(indices, set(range(facts["num_layers"])))
                state = 0
                for layer in facts["layers"]:
                    self.assertLessEqual(LAYER_KEYS, set(layer))
                    content = sum(product(shape) * sizes[dtype] for shape, dtype in zip(layer["state_shapes"], layer["state_dtypes"]))
                    self.assertEqual(layer["page_size_bytes"], content, layer["name"])
                    state += content if layer["mamba_type"] else 0
                self.assertEqual(facts["state_bytes_per_sequence"], state)
                attention = any(layer["state_shapes"] and not layer["mamba_type"] for layer in facts["layers"])
                self.assertEqual(facts["kv_bytes_per_token"] > 0, attention)

    def test_settings_change_the_figures(self):
        plain = self.facts()
        split = self.facts("--tensor-parallel-size", "2")
        self.assertLess(split["state_bytes_per_sequence"], plain["state_bytes_per_sequence"])
        self.assertGreaterEqual(2 * split["state_bytes_per_sequence"], plain["state_bytes_per_sequence"])
        self.assertEqual(split["layers"][0]["state_shapes"][1], [5, 64, 128])
        drafts = self.facts("--num-speculative-tokens", "3")
        pages = sum(layer["page_size_bytes"] for layer in drafts["layers"])
        self.assertEqual(drafts["state_bytes_per_sequence"], (1 + 3) * pages)  # one running state and one a drafted token
        align = self.facts("--mamba-cache-mode", "align")
        self.assertGreater(align["state_bytes_per_sequence"], plain["state_bytes_per_sequence"])
        half = self.facts("--mamba-ssm-cache-dtype", "bfloat16")
        self.assertEqual(half["layers"][0]["state_dtypes"][1], "bfloat16")
        self.assertLess(half["state_bytes_per_sequence"], plain["state_bytes_per_sequence"])

    def test_picture_has_strip_legend_memory_and_table(self):
        out = self.succeeds("inspect", DATA / "lfm2").out
        for words in ["lfm2", "Layers", "short_conv", "full_attention", "Weights", "State, a sequence", "Attention, a token",
                      "Prefill checkpoint at every token", "Memory against context", "page bytes", "model.layers.0"]:
            self.assertIn(words, out)

    def test_states_that_grow_with_the_sequence_are_not_said_to_be_of_one_size(self):
        self.assertRegex(self.succeeds("inspect").out, r"State, a sequence .*whatever its length")
        text = self.succeeds("inspect", "--mamba-cache-mode", "all", "--max-model-len", "4096").out
        self.assertRegex(text, r"State, a sequence .* at 4096 tokens")
        self.assertNotIn("whatever its length", text)

    def test_tensors_that_are_left_out_for_one_reason_are_one_note(self):
        model = DATA / "minimax"
        with open(model / "model.safetensors", "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        tables = [name for name in header if re.search("slope_rate|_decay", name)]
        self.assertGreater(len(tables), 3)
        notes = [line for line in self.succeeds("inspect", model).out.splitlines() if line.startswith("note: ")]
        self.assertEqual(len(notes), 1, notes)
        for words in (f" {len(tables)} tensors", "slope_rate", "decay"):
            self.assertIn(words, notes[0])
        self.assertEqual(self.facts(model)["notes"], [notes[0][len("note: "):]])

    def test_impossible_settings_are_refused(self):
        self.fails(USAGE, "inspect", "--tensor-parallel-size", "0", says="--tensor-parallel-size")
        self.fails(USAGE, "inspect", "--mamba-cache-mode", "some", says=["--mamba-cache-mode", "align"])
        self.fails(None, "inspect", self.folder / "nothing", says="nothing")


class Bench(CliTest):
    def test_json_has_every_figure_and_each_is_positive(self):
        for batch in ("1", "3"):
            result = json.loads(self.succeeds("bench", "--prompt", "24", "--gen", "8", "--reps", "2", "--batch", batch, "--json").out)
            for key in ("prompt_tps", "decode_tps", "load_s", "peak_rss_mb", "read_gbps", "fma_gflops", "decode_roofline", "prefill_roofline"):
                self.assertGreater(result[key], 0, key)
            for key in ("prompt_tps", "decode_tps"):
                low, high = result[key + "_range"]
                self.assertLessEqual(low, result[key])
                self.assertLessEqual(result[key], high)
            self.assertLess(result["prefill_roofline"], 1.2)

    def test_report_for_a_person_names_the_figures(self):
        out = self.succeeds("bench", "--prompt", "16", "--gen", "4", "--reps", "1").out
        for words in ("GB/s", "GFLOP/s", "tokens/s", "peak memory"):
            self.assertIn(words, out)

    def test_without_a_device_one_is_refused_and_auto_tells_of_the_processor(self):
        nowhere = environment(COLUBER_CUDA_LIBRARY=str(self.folder / "nothing.so"))
        words = ["bench", "--prompt", "8", "--gen", "2", "--reps", "1", "--json", "--device"]
        self.fails(None, *words, "cuda", env=nowhere, says="nothing.so")
        result = json.loads(self.succeeds(*words, "auto", env=nowhere).out)
        self.assertGreater(result["read_gbps"], 0)
        self.assertNotIn("copy_gbps", result)

    def test_prompts_that_do_not_fit_the_model_are_refused_by_the_flags_that_make_them(self):
        model = self.copy_model(DATA / "lfm2")
        self.edit_json(model / "config.json", lambda config: config.update(max_position_embeddings=64))
        for args in ([model, "--prompt", "60", "--gen", "20"], [model, "--prompt", "60", "--gen", "2", "--batch", "8"],
                     ["--max-model-len", "64", "--prompt", "8", "--gen", "100"], ["--synthetic", "lfm2-350m", "--prompt", "128000"],
                     ["--synthetic", "mamba-130m", "--max-model-len", "64"]):
            with self.subTest(args=args):
                result = self.fails(CONTEXT, "bench", *args, says=["--prompt", "--gen", "128000" if "lfm2-350m" in args else "64"])
                self.assertNotIn("max_model_len", result.err)
        self.succeeds("bench", model, "--prompt", "32", "--gen", "20", "--reps", "1")

    def test_ctrl_c_ends_it_also_while_the_machine_is_measured(self):
        for pause in (0.0, 0.2, 0.5, 1.0):
            with self.subTest(pause=pause):
                child = subprocess.Popen([PROGRAM, "bench", "--prompt", "4000", "--gen", "4000", "--reps", "50"], stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, env=environment())
                wait_until_caught(child.pid, signal.SIGINT)
                time.sleep(pause)
                child.send_signal(signal.SIGINT)
                out, err = child.communicate(timeout=60)  # by itself it would run for much longer
                self.assertEqual((child.returncode, out, err), (INTERRUPTED, b"", b"coluber: stopped by Ctrl-C\n"))

    def test_unknown_shape_lists_the_known_ones(self):
        self.fails(USAGE, "bench", "--synthetic", "mamba9", says=["mamba9", "mamba2-370m", "mamba-130m"])
        self.fails(USAGE, "bench", "some/model", "--synthetic", "mamba-130m", says=["--synthetic", "some/model"])
        self.fails(USAGE, "bench", "--reps", "0", says="--reps")


if __name__ == "__main__":
    unittest.main()
