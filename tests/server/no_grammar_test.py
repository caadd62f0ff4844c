# SPDX-License-Identifier: Apache-2.0
"""A build without XGrammar: it serves all the same, and whatever would have to be enforced is refused by name.

The program is $COLUBER_NO_GRAMMAR, or $COLUBER where that was built so.
"""
import os
import tempfile
import unittest

import tools_test
from harness import PROMPT, Server, is_refused_for_lack_of_grammars

CHOICE = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
# (route, body, the field that is named)
REFUSED = [
    *(("/v1/completions", {**PROMPT, **form}, name) for form, name in (
        ({"guided_json": SCHEMA}, "guided_json"), ({"guided_regex": "a"}, "guided_regex"), ({"guided_choice": ["a"]}, "guided_choice"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"), ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"guided_regex": "a", "stream": True}, "guided_regex"))),
    *(("/v1/chat/completions", {"messages": tools_test.ASK, **form}, name) for form, name in (
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "response_format.json_schema.schema"),
        ({"tools": [tools_test.WEATHER], "tool_choice": "required"}, "tools"), ({"tools": [tools_test.WEATHER], "tool_choice": CHOICE}, "tools"))),
    ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}, "text"),
    ("/v1/messages", {"messages": tools_test.ASK, "max_tokens": 5, "tools": [{"name": "weather", "input_schema": SCHEMA}],
                      "tool_choice": {"type": "any"}}, "tools"),
    ("/v1/messages", {"messages": tools_test.ASK, "max_tokens": 5, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "output_config"),
    ("/api/chat", {"messages": tools_test.ASK, "format": "json"}, "format"),
    ("/api/generate", {"prompt": "x", "raw": True, "format": SCHEMA}, "format"),
]


class NoGrammar(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        program = {"program": os.environ["COLUBER_NO_GRAMMAR"]} if "COLUBER_NO_GRAMMAR" in os.environ else {}
        cls.server = Server("--reasoning-parser", "none", model=tools_test.model_with(tools_test.TEMPLATE, cls.folder.name), **program)
        if not is_refused_for_lack_of_grammars(cls.server):
            cls.tearDownClass()
            raise unittest.SkipTest("$COLUBER_NO_GRAMMAR names no program without XGrammar, and this one has it")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def test_what_would_be_enforced_is_refused_by_name(self):
        for path, body, name in REFUSED:
            with self.subTest(path=path, name=name):
                status, answer = self.server.post(path, body)
                self.assertEqual(status, 400, answer)
                error = answer["error"]
                message = error if isinstance(error, str) else error["message"]
                self.assertIn("COLUBER_GRAMMAR", message)
                if not isinstance(error, str):
                    self.assertEqual(error["param"], name)
        self.assertEqual(self.server.wait_until_idle()["coluber:leaked_slots"], 0)

    def test_all_else_is_served(self):
        for path, body in (("/v1/completions", PROMPT), ("/v1/completions", {**PROMPT, "response_format": {"type": "text"}}),
                           ("/v1/chat/completions", {"messages": tools_test.ASK, "max_tokens": 5, "tools": [tools_test.WEATHER]}),
                           ("/v1/chat/completions", {"messages": tools_test.ASK, "max_tokens": 5, "tools": [tools_test.WEATHER], "tool_choice": "none"}),
                           ("/v1/responses", {"input": "x", "max_output_tokens": 3}), ("/v1/messages", {"messages": tools_test.ASK, "max_tokens": 3})):
            with self.subTest(path=path):
                status, answer = self.server.post(path, body)
                self.assertEqual(status, 200, answer)


if __name__ == "__main__":
    unittest.main()
