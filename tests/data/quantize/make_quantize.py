#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What other writers make of one file of values: the measure of our own quantisers.

    pip install gguf==0.19.0 && python3 make_quantize.py LIBGGML_BASE.so

values.f32 holds blocks of 256 float32: normal ones, wide tails, constants, one sign, zeros, tiny ones. TYPE.blocks is what the package
`gguf` makes of them, and errors.json the relative error (rms) that llama.cpp's own search leaves in them by type, from a build of the
library of llama-cpp-python 0.3.36.
"""
import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import quants

HERE = Path(__file__).resolve().parent


def blocks(rng):
    yield from rng.standard_normal((12, 256)) * 0.02
    yield from rng.standard_normal((8, 256)) * np.exp(rng.standard_normal((8, 256)))
    yield from rng.standard_t(3, (6, 256))
    yield from np.abs(rng.standard_normal((2, 256)))
    yield from -np.abs(rng.standard_normal((2, 256)))
    yield np.zeros(256)
    yield np.full(256, 0.3)
    yield np.full(256, -1.7)
    yield np.where(np.arange(256) % 64 == 7, -3.0, 0.0)
    yield rng.standard_normal(256) * 1e-7
    yield rng.standard_normal(256) * 1e-30
    yield np.repeat(rng.standard_normal(8) * 10.0 ** rng.integers(-4, 3, 8), 32) * rng.standard_normal(256)
    yield np.round(rng.standard_normal(256) * 4) / 4


def main():
    values = np.array(list(blocks(np.random.default_rng(11))), dtype=np.float32)
    (HERE / "values.f32").write_bytes(values.tobytes())
    library = ctypes.CDLL(sys.argv[1])
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    errors = {}
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"):
        kind = getattr(gguf.GGMLQuantizationType, name)
        out = np.zeros(gguf.quant_shape_to_byte_shape(values.shape, kind), dtype=np.uint8)
        library.ggml_quantize_chunk(int(kind), values.ctypes.data, out.ctypes.data, 0, len(values), 256, None)
        found = quants.dequantize(out, kind).astype(np.float64)
        errors[name] = float(np.sqrt(((found - values) ** 2).sum() / (values.astype(np.float64) ** 2).sum()))
        if not name.endswith("_K"):
            (HERE / f"{name}.blocks").write_bytes(quants.quantize(values, kind).tobytes())
    (HERE / "errors.json").write_text(json.dumps(errors, indent=1) + "\n")


if __name__ == "__main__":
    main()
