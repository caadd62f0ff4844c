# SPDX-License-Identifier: Apache-2.0
"""A model of a few hundred thousand weights that reads and writes text: a family's checkpoint from tests/data, which knows no text, with an
embedding and a head of random weights for the built-in model's tokenizer. What it says makes no sense, and takes no time.
"""
import json
import math
import os
import random
import struct
from pathlib import Path

from harness import ROOT

VOCABULARY = ("embed_tokens.weight", "embeddings.weight", "lm_head.weight")
TOKENIZER = ROOT / "models" / "asp-7m"


def _random_rows(kind, rows, columns, dice):
    """Normal numbers of the size that an embedding has, as float32 or bfloat16."""
    scale = 1 / math.sqrt(columns)
    numbers = struct.pack(f"<{rows * columns}f", *(dice.gauss(0, scale) for _ in range(rows * columns)))
    if kind == "F32":
        return numbers
    if kind != "BF16":
        raise ValueError(f"expected an embedding of F32 or BF16, found {kind}")
    high = bytearray(len(numbers) // 2)  # the upper halves
    high[0::2], high[1::2] = numbers[2::4], numbers[3::4]
    return bytes(high)


def _weights(path, vocab_size, dice):
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    made, parts, at = {}, [], 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1].get("data_offsets", [0])[0]):
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        shape, part = tensor["shape"], body[begin:end]
        if name.endswith(VOCABULARY):
            shape = [vocab_size, shape[1]]
            part = _random_rows(tensor["dtype"], *shape, dice)
        made[name] = {"dtype": tensor["dtype"], "shape": shape, "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(made).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def make_tiny_model(family, folder, template):
    """The folder, with the checkpoint of tests/data/FAMILY made to speak through the chat template."""
    source, folder = ROOT / "tests" / "data" / family, Path(folder)
    vocab_size = len(json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"])
    spoken = json.loads((TOKENIZER / "config.json").read_text())
    vocab_size = max(vocab_size, spoken["vocab_size"])
    tokens = {key: spoken[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **tokens, "vocab_size": vocab_size}))
    (folder / "generation_config.json").write_text(json.dumps(tokens))
    (folder / "model.safetensors").write_bytes(_weights(source / "model.safetensors", vocab_size, random.Random(family)))
    os.symlink(TOKENIZER / "tokenizer.json", folder / "tokenizer.json")
    words = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**words, "chat_template": template}))
    return folder
