# SPDX-License-Identifier: Apache-2.0
"""Answers in a form: `run` and `batch` with a schema, an expression, a grammar."""
import json
import re

from batch_test import BatchTest
from harness import BUILTIN, coluber

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5}}, "required": ["n"],
          "additionalProperties": False}


class Forms(BatchTest):
    def setUp(self):
        super().setUp()
        if "COLUBER_GRAMMAR" in coluber("run", "-p", "x", "-n", 1, "--regex", "a").err:
            self.skipTest("this build has no XGrammar")

    def test_run_answers_in_the_form(self):
        file = self.folder / "schema.json"
        file.write_text(json.dumps(SCHEMA))
        for schema in (json.dumps(SCHEMA), str(file)):
            answer = json.loads(self.succeeds("run", "-p", "How many?", "--json-schema", schema, "-n", 60, "--json", "--seed", 1).out)
            self.assertEqual(answer["finish_reason"], "stop")
            self.assertIn(json.loads(answer["text"])["n"], range(1, 6))
        self.assertRegex(self.succeeds("run", "-p", "Say", "--regex", "[ab]{4}", "--seed", 2).out, r"^[ab]{4}\n$")
        self.assertRegex(self.succeeds("run", "-p", "Say", "--grammar", "root ::= \"x\" [0-9]").out, r"^x[0-9]\n$")

    def test_what_is_no_form_is_told(self):
        for flags, told in ((("--regex", "("), "--regex"), (("--json-schema", "{}", "--regex", "a"), "exclude"),
                            (("--json-schema", "nowhere.json"), "nowhere.json"), (("--json-schema", '{"not": {}}'), "'not'"),
                            (("--regex", "a", "--session", str(self.folder / "s")), "--session")):
            ran = coluber("run", "-p", "x", "-n", 2, *flags)
            self.assertNotEqual(ran.code, 0)
            self.assertIn(told, ran.err)

    def test_lines_of_a_batch_have_their_own(self):
        results = self.batch(BUILTIN, "--regex", "[xy]{3}", requests=[
            {"id": 1, "prompt": "It is", "structured_outputs": {"choice": ["so", "not so"]}},
            {"id": 2, "prompt": "It is", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
             "max_tokens": 60},
            {"id": 3, "prompt": "It is"}, {"id": 4, "prompt": "x", "guided_regex": "("}, {"id": 5, "prompt": "x", "response_format": 1},
            {"id": 6, "prompt": "x", "guided_regex": "a", "beam_width": 3}])
        text = lambda name: results[name]["outputs"][0]["text"]  # noqa: E731
        self.assertIn(text("1"), ("so", "not so"))
        self.assertIn(json.loads(text("2"))["n"], range(1, 6))
        self.assertTrue(re.fullmatch("[xy]{3}", text("3")))
        for name, told in (("4", "guided_regex"), ("5", "response_format"), ("6", "beam_width")):
            self.assertIn(told, results[name]["error"]["message"])
