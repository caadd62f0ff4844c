# SPDX-License-Identifier: Apache-2.0
"""/openapi.json: what docs/api.md says of fields comes from it, and schemathesis finds nothing that contradicts it.

COLUBER_WRITE_DOCS=1 writes the docs anew instead of comparing them.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import ROOT, SANITIZED, Server

DOCS = ROOT / "docs" / "api.md"
BEGIN, END = "<!-- fields: from /openapi.json -->\n", "<!-- end of fields -->\n"
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")


def shown(schema):
    """What a field may hold, in a word or two."""
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"] if value is not None)
    kinds = schema.get("type", [])
    kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    words = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "array": "list", "object": "object"}
    text = " or ".join(words[kind] for kind in kinds)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and -10**6 < low and high < 10**6:
        text = f"{low:g} to {high:g}"
    elif low is not None and low >= 0:
        text += f" from {low:g}"
    return text


def fields_of(schema, prefix=""):
    """(name, what it holds, why it is refused or nothing) of every field."""
    for name, field in schema["properties"].items():
        if "properties" in field:
            yield from fields_of(field, f"{prefix}{name}.")
        else:
            yield prefix + name, shown(field), field.get("description", "")


def table(openapi):
    lines = ["| route | fields | change nothing | known and refused |", "| --- | --- | --- | --- |"]
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            if "requestBody" not in operation:
                continue
            fields = list(fields_of(operation["requestBody"]["content"]["application/json"]["schema"]))
            served = ", ".join(f"`{name}`" + (f" ({holds})" if holds else "") for name, holds, why in fields if not why)
            told = ", ".join(f"`{name}`" for name, _, why in fields if why.startswith("taken"))
            refused = ", ".join(f"`{name}`" + (f" but {holds}" if holds else "") for name, holds, why in fields if why.startswith("not"))
            lines.append(f"| `{method.upper()} {path}` | {served or 'none'} | {told} | {refused} |")
    return "\n".join(lines) + "\n"


class OpenApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Short answers: what is asked for is made up.
        cls.server = Server("--max-model-len", "128", "--session-idle-timeout", "1", "--max-sessions", "64")
        cls.openapi = cls.server.get("/openapi.json")[1]

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_the_docs_say_what_the_readers_of_bodies_take(self):
        text = DOCS.read_text()
        begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        if os.environ.get("COLUBER_WRITE_DOCS"):
            DOCS.write_text(text[:begin] + table(self.openapi) + text[end:])
        else:
            self.assertEqual(text[begin:end], table(self.openapi), "COLUBER_WRITE_DOCS=1 writes it anew")

    def test_every_field_that_is_told_is_read_and_no_other(self):
        for path, operations in self.openapi["paths"].items():
            for method, operation in operations.items():
                if "requestBody" not in operation:
                    continue
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                where = path.replace("{id}", "sess_none")
                status, answer = self.server.post(where, {"no_such_field": 1})
                self.assertIn(status, (400, 404), answer)
                for name, field in schema["properties"].items():
                    with self.subTest(path=path, field=name):
                        # Some belong to one of two ways to ask.
                        answers = []
                        for beside in ({}, {"messages": [{"role": "user", "content": "a"}]}, {"prompt": "a"}):
                            status, _, answer = self.server.request("POST", where, {**beside, name: {"no": ["such", "thing"]}})
                            self.assertIn(status, (200, 400, 404), answer)
                            answers.append(answer.decode())
                        self.assertTrue(any(f"there is no field '{name}'" not in answer for answer in answers), answers)

    @unittest.skipIf(SANITIZED or not SCHEMATHESIS.exists(),
                     "schemathesis is not installed; tools/setup.sh test puts it into ~/.cache/coluber/test-venv")
    def test_schemathesis_finds_no_contradiction(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [SCHEMATHESIS, "run", self.server.address + "/openapi.json", "--phases", "examples,coverage,fuzzing", "--max-examples", "5",
                 "--checks", "not_a_server_error,status_code_conformance,content_type_conformance", "--generation-deterministic",
                 "--no-color", "--max-time", "12", "--request-timeout", "30",
                 "--suppress-health-check", "all", "--warnings", "off"],
                cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False)
        self.assertEqual(done.returncode, 0, done.stdout.decode()[-6000:])
        self.assertEqual(self.server.wait_until_idle()["coluber:leaked_slots"], 0)


if __name__ == "__main__":
    unittest.main()
