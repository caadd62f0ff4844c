# SPDX-License-Identifier: Apache-2.0
"""GGUF files of `coluber convert` in llama.cpp, and in PyPI's reader: a development check.

    COLUBER=build/coluber python3 -m unittest discover -s tests/interop -p "*_test.py"

Needs llama-cpp-python and gguf; without one of them its tests are skipped. A family that llama.cpp's own converter cannot say, or
whose graph differs from the reference's, is named in OTHERWISE with the reason.
"""
import ctypes
import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
GOLDEN = ROOT.parent / "shared" / "golden"
COLUBER = os.environ.get("COLUBER", str(ROOT / "build" / "coluber"))
TOKENS = 16
CLOSE = 1e-3  # logits nearer than this may change places: other orders of sums

OTHERWISE = {
    "bamba": "llama.cpp turns other pairs of a head that turns in part",
    "falcon_h1_b": "llama.cpp has no biases in its projections",
    "granitemoehybrid": "llama.cpp norms each of several groups by itself, the reference all together",
    "granitemoehybrid_b": "the same, and llama.cpp's layers have biases in all of their projections or in none",
    "kimi_linear_b": "llama.cpp knows one width of heads for attention and delta rule",
    "mamba2": "the same",
    "mamba_b": "llama.cpp's Mamba has no biases in its projections",
    "nemotron_h": "llama.cpp has no plain layers among those with experts",
    "nemotron_h_b": "the same, and no biases in its projections",
    "qwen3_5": "llama.cpp's keys and values have one width",
    "qwen3_5_moe": "the same",
    "qwen3_5_vl": "the same",
}

try:
    import llama_cpp
except ImportError:
    llama_cpp = None
try:
    import gguf
except ImportError:
    gguf = None


def coluber(*args):
    return subprocess.run([COLUBER, *map(str, args)], capture_output=True, text=True, timeout=300)


def models():
    """Every tiny checkpoint that is at hand and the built-in model, by name."""
    found = {path.parent.name: path.parent for path in DATA.glob("*/golden.json")}
    found.update({path.parent.name: path.parent for path in GOLDEN.glob("*/golden.json")})
    found["asp-7m"] = ROOT / "models" / "asp-7m"
    return dict(sorted(found.items()))


class Llama:
    """The plain C interface: token ids in, logits out, so that a file without a tokenizer runs too."""

    def __init__(self, path):
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}: {''.join(self.log)[-600:]}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_threads, context.n_threads_batch = 256, 256, 1, 1
        context.type_k = context.type_v = 0  # float32
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.context:
            llama_cpp.llama_model_free(self.model)
            raise RuntimeError(f"llama.cpp makes no context for {path}: {''.join(self.log)[-600:]}")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    log = []

    @staticmethod
    @(llama_cpp.llama_log_callback if llama_cpp else lambda f: f)
    def _quiet(level, text, data):
        Llama.log.append(text.decode(errors="replace"))
        del Llama.log[:-50]

    def feed(self, ids):
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        batch = llama_cpp.llama_batch_get_one(tokens, len(ids))
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return array("f", ctypes.string_at(logits, 4 * self.vocab))

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def read_logits(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    begin, end = header["greedy"]["data_offsets"]
    greedy = array("q", data[8 + length + begin:8 + length + end])
    begin, end = header["logits"]["data_offsets"]
    vocab = header["logits"]["shape"][1]
    return array("f", data[8 + length + begin:8 + length + end])[-vocab:], greedy.tolist()


class Interop(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="coluber-interop-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def convert(self, name, source, kind="f32"):
        """The file, or None where the format has no place for the model."""
        path = self.folder / f"{name}-{kind}.gguf"
        result = coluber("convert", source, "--to", "gguf", "--type", kind, "--out", path)
        if result.returncode == 0:
            return path
        self.assertIn(result.returncode, (5, 6), (name, result.stderr))
        return None


@unittest.skipUnless(llama_cpp, "llama-cpp-python is not installed")
class LlamaCpp(Interop):
    def test_greedy_tokens_are_ours(self):
        ids = [(7 * i + 3) % 200 for i in range(24)]
        compared = 0
        for name, source in models().items():
            with self.subTest(name):
                path = self.convert(name, source)
                if path is None:
                    continue
                if name.removesuffix("_bf16") in OTHERWISE:
                    with self.assertRaises((RuntimeError, AssertionError), msg="it agrees now: take it off the list"):
                        self.compare(path, ids)
                    continue
                self.compare(path, ids)
                compared += 1
        self.assertGreaterEqual(compared, 10)

    def compare(self, path, ids):
        out = self.folder / "logits.safetensors"
        folder = self.folder / "of-model"
        folder.mkdir(exist_ok=True)
        moved = path.rename(folder / path.name)
        result = coluber("logits", moved, "--ids", ",".join(map(str, ids)), "--out", out, "--greedy", TOKENS, "--threads", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        ours, greedy = read_logits(out)
        llama = Llama(moved)
        try:
            theirs = llama.feed(ids)
            deviation = (sum(x * x for x in ours) / len(ours) - (sum(ours) / len(ours)) ** 2) ** 0.5
            worst = max(abs(a - b) for a, b in zip(ours, theirs)) / deviation
            self.assertLess(worst, 5e-3, "logits in deviations")
            others = 0
            for token in greedy:
                best = max(range(len(theirs)), key=theirs.__getitem__)
                others += theirs[best] - theirs[token] > CLOSE * deviation
                theirs = llama.feed([token])
            # A router may choose another expert where two tie: that is one token, and the state goes on as before.
            self.assertLessEqual(others, 1)
        finally:
            llama.close()
            moved.unlink()

    def test_quantised_files_of_the_built_in_model_load_and_agree(self):
        for kind in ("f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"):
            with self.subTest(kind):
                path = self.convert("asp-7m", ROOT / "models" / "asp-7m", kind)
                llama = Llama(path)
                logits = llama.feed([5, 6, 7])
                llama.close()
                out = self.folder / "logits.safetensors"
                folder = self.folder / kind
                folder.mkdir()
                result = coluber("logits", path.rename(folder / path.name), "--ids", "5,6,7", "--out", out, "--greedy", "1")
                self.assertEqual(result.returncode, 0, result.stderr)
                ours, _ = read_logits(out)
                deviation = (sum(x * x for x in ours) / len(ours)) ** 0.5
                # It rounds activations to eight bits or sixteen, we do not.
                difference = (sum((a - b) ** 2 for a, b in zip(ours, logits)) / len(ours)) ** 0.5
                self.assertLess(difference, 0.05 * deviation)


@unittest.skipUnless(gguf, "gguf is not installed")
class Reader(Interop):
    def test_reads_what_we_write(self):
        for kind in ("f32", "q8_0", "q4_k_m"):
            path = self.convert("asp-7m", ROOT / "models" / "asp-7m", kind)
            reader = gguf.GGUFReader(path)
            fields = {name: field.contents() for name, field in reader.fields.items()}
            self.assertEqual(fields["general.architecture"], "mamba2")
            self.assertEqual(fields["mamba2.embedding_length"], 320)
            self.assertEqual(len(fields["tokenizer.ggml.tokens"]), 4096)
            self.assertEqual(fields["tokenizer.ggml.eos_token_id"], 3)
            names = {tensor.name for tensor in reader.tensors}
            self.assertTrue({"token_embd.weight", "blk.0.ssm_in.weight", "output_norm.weight"} <= names)


if __name__ == "__main__":
    unittest.main()
