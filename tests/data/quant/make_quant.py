#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks of every quantised type that the package `gguf` dequantises, with the values that it gives them.

    pip install gguf==0.19.0 && python3 make_quant.py [--grids ../../../src/kernels/quant/iq_grids.inl]

TYPE.blocks holds random blocks (any bytes are valid codes; the scales are finite), TYPE.f32 their values. --grids writes the
constants of the IQ types, which are part of those formats.
"""
import argparse
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf import quants

HALVES = {  # bytes at which a block has float16 values
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0],
    "IQ1_M": [], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": [],
    "Q1_0": [0],
}


def random_blocks(name, qtype, rng):
    elements, size = GGML_QUANT_SIZES[qtype]
    count = max(4, 1024 // elements)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[name]:
        blocks[:, at:at + 2] = rng.normal(0, 0.05, (count, 1)).astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(0, 255, count)
    if name == "IQ1_M":  # its float16 is spread over the top nibbles of four words
        words = blocks[:, 48:56].copy().view(np.uint16)
        half = rng.normal(0, 0.05, count).astype(np.float16).view(np.uint16)
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | (((half >> (4 * i)) & 0xF) << 12)
        blocks[:, 48:56] = words.view(np.uint8)
    return blocks


def write_grids(path):
    lines = ["// SPDX-License-Identifier: Apache-2.0",
             "// Points of the lattices that the IQ types' codes name: constants of the formats, one word a point, its",
             "// coordinates from the low bits up, 2 bits each in IQ1 and IQ2 and 4 bits each in IQ3. Written by",
             "// tests/data/quant/make_quant.py."]
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
        words = np.frombuffer(bytes.fromhex(getattr(quants, name).grid_hex.decode()), dtype="<u2")
        title = "".join(part.title() for part in name.split("_"))
        lines.append(f"constexpr uint16_t k{title}Grid[{len(words)}] = {{")
        for i in range(0, len(words), 14):
            lines.append("    " + " ".join(f"0x{w:04x}," for w in words[i:i + 14]))
        lines.append("};")
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--grids", type=Path)
    args = parser.parse_args()
    here = Path(__file__).resolve().parent
    rng = np.random.default_rng(4)
    for qtype in gguf.GGMLQuantizationType:
        name = qtype.name
        if name in ("F32", "F16", "BF16") or qtype not in quants._type_traits:
            continue
        blocks = random_blocks(name, qtype, rng)
        values = quants.dequantize(blocks, qtype).astype(np.float32)
        assert np.isfinite(values).all(), name
        (here / f"{name}.blocks").write_bytes(blocks.tobytes())
        (here / f"{name}.f32").write_bytes(values.tobytes())
        print(name, len(blocks))
    if args.grids:
        write_grids(args.grids)


if __name__ == "__main__":
    main()
