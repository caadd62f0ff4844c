# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: starting the program, checking how it ended, reading what it wrote.

The program is $COLUBER, or build/coluber below the repository's root. Only the standard library is used.
"""
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("COLUBER", str(ROOT / "build" / "coluber"))
BUILTIN = ROOT / "models" / "asp-7m"
DATA = ROOT / "tests" / "data"  # tiny checkpoints without a tokenizer
SANITIZED = os.environ.get("COLUBER_SANITIZE", "") != ""  # which sanitizers the program was built with
OK, USAGE, INTERRUPTED = 0, 2, 130
SECONDS = 120


def environment(**changes):
    env = {key: value for key, value in os.environ.items() if not key.startswith("COLUBER_")}
    env.update(changes)
    return env


def wait_until_caught(pid, number):
    """Until the process has a handler for the signal: one sent earlier would end it in the default way."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("SigCgt:") and int(line.split()[1], 16) >> (number - 1) & 1:
                return
        time.sleep(0.01)
    raise TimeoutError(f"process {pid} does not catch signal {number}")


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out_bytes = done.stdout or b""
        self.out = self.out_bytes.decode("utf-8", "replace")
        self.err = (done.stderr or b"").decode("utf-8", "replace")

    def __str__(self):
        return f"exit {self.code}\n--- stdout\n{self.out[-2000:]}\n--- stderr\n{self.err[-2000:]}"


def coluber(*args, stdin=b"", env=None, stdout=subprocess.PIPE, seconds=SECONDS):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    words = [PROGRAM] + [a if isinstance(a, bytes) else str(a) for a in args]
    return Result(subprocess.run(words, input=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=seconds,
                                 env=env or environment()))


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="coluber-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def succeeds(self, *args, **kwargs):
        result = coluber(*args, **kwargs)
        self.assertEqual(result.code, OK, result)
        return result

    def fails(self, code, *args, says=(), **kwargs):
        """Ends with `code` (None: any but 0, 2 and death by a signal) and a message with all of `says`, and writes nothing."""
        result = coluber(*args, **kwargs)
        if code is None:
            self.assertGreater(result.code, 0, result)
            self.assertNotIn(result.code, (USAGE, INTERRUPTED), result)
        else:
            self.assertEqual(result.code, code, result)
        self.assertLess(result.code, 129 if code != INTERRUPTED else 131, result)
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, result.err, result)
        self.assertTrue(result.err.startswith("coluber: "), result)
        self.assertEqual(result.out, "", result)
        return result

    def copy_model(self, source, name="model"):
        target = self.folder / name
        shutil.copytree(source, target)
        for path in [target, *target.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        return target

    def edit_json(self, path, change):
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))


def read_safetensors(path):
    """({name: (dtype, shape, flat list of values)}, metadata)."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    codes = {"F32": "f", "I64": "q", "F64": "d", "I32": "i"}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        code = codes[entry["dtype"]]
        count = (end - begin) // struct.calcsize(code)
        tensors[name] = (entry["dtype"], entry["shape"], struct.unpack_from(f"<{count}{code}", data, 8 + length + begin))
    return tensors, metadata
