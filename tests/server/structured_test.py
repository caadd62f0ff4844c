# SPDX-License-Identifier: Apache-2.0
"""Answers held to a form. The model is tiny and says what it likes; the form must hold all the same."""
import concurrent.futures
import json
import re
import unittest

from harness import Server, is_refused_for_lack_of_grammars

try:
    import openai
except ImportError:
    openai = None

PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"],
          "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                         "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ASK = [{"role": "user", "content": "Who?"}]


def check_person(text):
    person = json.loads(text)
    assert set(person) == {"name", "age", "tags"} and len(person["name"]) <= 8 and 0 <= person["age"] <= 120, text
    assert isinstance(person["age"], int) and len(person["tags"]) <= 3 and set(person["tags"]) <= {"a", "b"}, text


class Structured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "tiny", "--max-num-seqs", 8)
        if is_refused_for_lack_of_grammars(cls.server):
            cls.server.__exit__()
            raise unittest.SkipTest("this build has no XGrammar, and so no structured output")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def chat(self, **fields):
        return self.server.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 200, **fields})

    def test_every_answer_that_stops_is_valid(self):
        def one(seed):
            status, answer = self.chat(response_format=FORMAT, seed=seed, temperature=1.2, n=2)
            self.assertEqual(status, 200, answer)
            return answer["choices"]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            choices = sum(pool.map(one, range(8)), [])
        stopped = [choice for choice in choices if choice["finish_reason"] == "stop"]
        self.assertGreaterEqual(len(stopped), 8)
        for choice in stopped:
            check_person(choice["message"]["content"])
        self.assertEqual(self.server.wait_until_idle()["coluber:leaked_slots"], 0)

    def test_other_forms(self):
        for fields, pattern in (({"structured_outputs": {"regex": "[ab]{3}-[0-9]"}}, "[ab]{3}-[0-9]"), ({"guided_regex": "(yes|no)"}, "yes|no"),
                                ({"guided_choice": ["left", "right \"now\""]}, "left|right \"now\""),
                                ({"structured_outputs": {"choice": ["1", "2"]}}, "1|2"),
                                ({"guided_grammar": "root ::= \"x\" [0-9] \"y\""}, "x[0-9]y"), ({"guided_json": {"type": "boolean"}}, r"\s*(true|false)\s*")):
            for seed in range(3):
                status, answer = self.chat(**fields, seed=seed)
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
                self.assertRegex(answer["choices"][0]["message"]["content"], re.compile(f"^({pattern})$"))
        status, answer = self.server.post("/v1/completions", {"prompt": "It is", "structured_outputs": {"choice": ["so", "not so"]}})
        self.assertIn(answer["choices"][0]["text"], ("so", "not so"))
        status, answer = self.chat(response_format={"type": "json_object"}, max_tokens=400, seed=1)
        if answer["choices"][0]["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(answer["choices"][0]["message"]["content"]), dict)

    def test_a_stream_says_what_a_whole_answer_says(self):
        ask = {"messages": ASK, "max_tokens": 200, "seed": 3, "response_format": FORMAT}
        whole = self.server.post("/v1/chat/completions", ask)[1]["choices"][0]["message"]["content"]
        _, _, data = self.server.request("POST", "/v1/chat/completions", {**ask, "stream": True})
        events = [json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]
        self.assertEqual("".join(event["choices"][0]["delta"].get("content", "") for event in events), whole)

    def test_what_cannot_be_a_form_is_refused_with_its_place(self):
        deep = {"type": "string"}
        for _ in range(60):
            deep = {"type": "array", "items": deep}
        schema = lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}  # noqa: E731
        place = "response_format.json_schema.schema"
        for fields, param in (({"response_format": schema({"type": "nothing"})}, place), ({"response_format": schema(deep)}, place),
                              ({"response_format": schema({"type": "object", "properties": {"a": {"not": {}}}})}, place),
                              ({"response_format": {"type": "xml"}}, "response_format"), ({"response_format": "json"}, "response_format"),
                              ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
                              ({"guided_regex": "("}, "guided_regex"), ({"guided_regex": 7}, "guided_regex"),
                              ({"guided_choice": []}, "guided_choice"), ({"guided_grammar": "root = 1"}, "guided_grammar"),
                              ({"structured_outputs": {"xml": 1}}, "structured_outputs.xml"),
                              ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
                              ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
                              ({"guided_regex": "a", "use_beam_search": True, "n": 2}, "use_beam_search")):
            status, answer = self.chat(**fields)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
        status, answer = self.chat(response_format=schema({"type": "object", "properties": {"a": {"not": {}}}}))
        self.assertIn("$.properties.a", answer["error"]["message"])

    def test_forms_that_would_take_for_ever_end_and_hurt_nobody(self):
        twice = {"$defs": {f"d{i}": {"anyOf": [{"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}}] * 2} for i in range(40)}, "$ref": "#/$defs/d0"}
        twice["$defs"]["d40"] = {"type": "string"}
        ask = {"seed": 1, "max_tokens": 60, "min_tokens": 59}
        for fields in ({"guided_regex": "(a{1000}){1000}"}, {"guided_regex": "a{0,1000000000}"}, {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
                       {"guided_regex": "|".join(f"a{i}" for i in range(100000))}, {"guided_regex": "((((a*)*)*)*)*b"},
                       {"guided_json": {"$ref": "#"}}, {"guided_json": twice}, {"guided_json": {"type": "string", "pattern": "(a{1000}){1000}"}},
                       {"guided_json": {"type": "array", "items": {"type": "null"}, "minItems": 10**9}}, {"guided_json": {"enum": list(range(100000))}},
                       {"guided_grammar": "root ::= root root | \"a\""}, {"guided_grammar": "root ::= " + "(" * 5000 + "\"a\"" + ")" * 5000},
                       {"guided_choice": ["x" * 100 + str(i) for i in range(20000)]}):
            with self.subTest(fields=str(fields)[:60]):
                status, answer = self.chat(**ask, **fields)
                self.assertIn(status, (200, 400), answer)
        # It compiles at once, and each token takes longer than the one before.
        status, answer = self.chat(guided_regex="((a|aa){1,50}){1,50}c", seed=1, max_tokens=1000, min_tokens=999)
        self.assertEqual(status, 400, answer)
        self.assertIn("the form of the answer has taken", answer["error"]["message"])
        self.assertEqual(self.server.wait_until_idle()["coluber:leaked_slots"], 0)

    @unittest.skipIf(openai is None, "OpenAI's client is not installed")
    def test_the_real_client(self):
        with openai.OpenAI(base_url=self.server.address + "/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model="tiny", messages=ASK, response_format=FORMAT, seed=5, max_tokens=300)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            check_person(answer.choices[0].message.content)
            with self.assertRaises(openai.BadRequestError) as caught:
                client.completions.create(model="tiny", prompt="x", extra_body={"guided_json": {"type": "wrong"}})
            self.assertEqual(caught.exception.param, "guided_json")


if __name__ == "__main__":
    unittest.main()
