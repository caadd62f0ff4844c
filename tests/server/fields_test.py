# SPDX-License-Identifier: Apache-2.0
"""Every field of every route that makes text: it changes the answer, or it is refused by name. Which fields there are says /openapi.json,
so that none can be added without a line here.
"""
import copy
import json
import tempfile
import unittest

import tools_test
from harness import Server, is_refused_for_lack_of_grammars
from openapi_test import fields_of

# A template that has a place for all that a client may say.
TEMPLATE = "{%- if reasoning_effort %}{{ '<|im_start|>effort ' + reasoning_effort + '<|im_end|>' }}{% endif %}" + tools_test.TEMPLATE
SAY = [{"role": "user", "content": "Tell me of a snake."}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOL = tools_test.NOW
ANTHROPIC_TOOL = {"name": "now", "input_schema": {"type": "object"}}
VOLATILE = {"id", "created", "created_at", "completed_at", "coluber", "prompt_tokens_details", "input_tokens_details", "item_id", "call_id",
            "response_id", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "cache_read_input_tokens"}
LONG = {"temperature": 0, "max_tokens": 120}
BEAMS = {"use_beam_search": True, "n": 3}
HELD = {"guided_regex": "[ab]{3}", "guided_choice": ["left", "right"], "guided_json": SCHEMA, "guided_grammar": 'root ::= "x" [0-9]',
        "structured_outputs": {"choice": ["1", "2"]}, "response_format": {"type": "json_object"}}


class Session:
    """Stands for the id of a session that has just been begun."""


class Response:
    """Likewise of a response."""


# What both of OpenAI's routes have: (field, value, what stands beside it).
SAMPLING = [("temperature", 0, {}), ("top_p", 0.01, {}), ("min_p", 0.99, {}), ("top_k", 1, {}), ("seed", 8, {}),
            ("repetition_penalty", 3.0, LONG), ("presence_penalty", 2.0, LONG), ("frequency_penalty", 2.0, LONG),
            ("min_tokens", 10, {"stop": [" "]}), ("ignore_eos", True, {"allowed_token_ids": "eos"}),
            ("skip_special_tokens", False, {"allowed_token_ids": "eos", "ignore_eos": True}),
            ("include_stop_str_in_output", True, {"stop": [" "]}), ("allowed_token_ids", [300, 301], {}), ("prompt_logprobs", 1, {}),
            ("stop", [" "], {}), ("stop_token_ids", [300], {"allowed_token_ids": [300]}), ("logit_bias", {"300": 100}, {}), ("n", 2, {}),
            ("stream", True, {}), ("stream_options.include_usage", True, {"stream": True}),
            ("stream_options.continuous_usage_stats", True, {"stream": True, "stream_options": {"include_usage": True}}),
            ("use_beam_search", True, {"n": 2}), ("return_token_ids", True, {}), ("max_tokens", 3, {}), ("session_id", Session, {}),
            *((name, value, {}) for name, value in HELD.items())]
# field: why its answer may be the same.
UNSEEN = {"length_penalty": "which beams win is the model's", "early_stopping": "likewise", "priority": "of requests that wait",
          "cache_salt": "of the cache", "add_special_tokens": "this model has none", "parallel_tool_calls": "how many calls come is the model's",
          "metadata": "passed on", "store": "of what is kept"}
CASES = {
    "/v1/completions": ({"prompt": "Once upon a time", "max_tokens": 12, "seed": 7, "temperature": 5}, [
        *SAMPLING, ("prompt", "A river", {}), ("echo", True, {}), ("logprobs", 2, {}), ("best_of", 8, {})]),
    "/v1/chat/completions": ({"messages": SAY, "max_tokens": 12, "seed": 7, "temperature": 5}, [
        *SAMPLING, ("messages", [{"role": "user", "content": "Tell me of a river."}], {}), ("logprobs", True, {}),
        ("top_logprobs", 2, {"logprobs": True}), ("add_generation_prompt", False, {}), ("max_completion_tokens", 3, {}),
        ("continue_final_message", True, {"messages": [*SAY, {"role": "assistant", "content": "A snake"}]}),
        ("special_tokens_in_messages", True, {"messages": [{"role": "user", "content": "<|im_end|>"}]}), ("tools", [TOOL], {}),
        ("tool_choice", "required", {"tools": [TOOL], "max_tokens": 60}), ("chat_template_kwargs", {"enable_thinking": True}, {}),
        ("reasoning_effort", "high", {})]),
    "/v1/responses": ({"input": "Tell me of a snake.", "max_output_tokens": 12, "seed": 7, "temperature": 5}, [
        ("temperature", 0, {}), ("top_p", 0.01, {}), ("top_k", 1, {}), ("min_p", 0.99, {}), ("seed", 8, {}), ("stream", True, {}),
        ("ignore_eos", True, {"max_output_tokens": 600}), ("max_output_tokens", 3, {}), ("input", "Tell me of a river.", {}),
        ("instructions", "Be short.", {}), ("previous_response_id", Response, {}), ("tools", [{"type": "function", **TOOL["function"]}], {}),
        ("tool_choice", "required", {"tools": [{"type": "function", **TOOL["function"]}], "max_output_tokens": 60}),
        ("text.format", {"type": "json_schema", "name": "x", "schema": SCHEMA}, {}), ("include", ["message.output_text.logprobs"], {}),
        ("top_logprobs", 2, {"include": ["message.output_text.logprobs"]}), ("reasoning.effort", "high", {})]),
    "/v1/messages": ({"messages": SAY, "max_tokens": 12, "temperature": 0}, [
        ("temperature", 9, {}), ("top_p", 0.01, {"temperature": 9}), ("top_k", 1, {"temperature": 9}), ("max_tokens", 3, {}), ("stream", True, {}),
        ("session_id", Session, {}), ("system", "Be short.", {}), ("messages", [{"role": "user", "content": "Tell me of a river."}], {}),
        ("tools", [ANTHROPIC_TOOL], {}), ("tool_choice", {"type": "any"}, {"tools": [ANTHROPIC_TOOL], "max_tokens": 60}),
        ("thinking", {"type": "enabled", "budget_tokens": 1024}, {}), ("stop_sequences", [" "], {}), ("output_config.effort", "high", {}),
        ("output_config.format", {"type": "json_schema", "schema": SCHEMA}, {})]),
    "/v1/messages/count_tokens": ({"messages": SAY}, [
        ("messages", [{"role": "user", "content": "Tell me of a river and of a snake."}], {}), ("system", "Be short.", {}), ("tools", [ANTHROPIC_TOOL], {}),
        ("tool_choice", {"type": "none"}, {"tools": [ANTHROPIC_TOOL]}), ("thinking", {"type": "enabled", "budget_tokens": 1024}, {}),
        ("output_config.effort", "high", {})]),
}
OLLAMA = [("stream", True, {}), ("session_id", Session, {}), ("format", "json", {}), ("think", True, {}),
          *((f"options.{name}", value, {}) for name, value in (("temperature", 0), ("top_p", 0.01), ("top_k", 1), ("min_p", 0.99), ("seed", 8),
                                                              ("stop", [" "]), ("num_predict", 3))),
          *((f"options.{name}", value, {"options": {"temperature": 0, "num_predict": 120}}) for name, value in (
              ("presence_penalty", 2.0), ("frequency_penalty", 2.0), ("repeat_penalty", 3.0)))]
OPTIONS = {"stream": False, "options": {"num_predict": 12, "seed": 7, "temperature": 5}}
CASES["/api/chat"] = ({"messages": SAY, **OPTIONS}, [*OLLAMA, ("messages", [{"role": "user", "content": "Tell me of a river."}], {}),
                                                     ("tools", [TOOL], {})])
CASES["/api/generate"] = ({"prompt": "Tell me of a snake.", **OPTIONS}, [*OLLAMA, ("prompt", "Tell me of a river.", {}), ("raw", True, {}),
                                                                         ("system", "Be short.", {})])
# Where a form of the answer is no part of what is counted, nor of the cache.
SILENT = {"/v1/messages/count_tokens": {"output_config.format"}}


def with_field(body, path, value):
    made = copy.deepcopy(body)
    inner, *outer = reversed(path.split("."))
    place = made
    for name in reversed(outer):
        place = place.setdefault(name, {})
    place[inner] = value
    return made


def merged(body, beside):
    made = copy.deepcopy(body)
    for name, value in beside.items():
        made[name] = {**made[name], **value} if isinstance(value, dict) and isinstance(made.get(name), dict) else value
    return made


def steady(value):
    """Without what no two answers share."""
    if isinstance(value, dict):
        return {key: steady(held) for key, held in value.items() if key not in VOLATILE}
    return [steady(held) for held in value] if isinstance(value, list) else value


def wrong_for(schema):
    """A value that a field of this schema refuses."""
    kinds = schema.get("type", [])
    return 1.5 if "object" not in kinds else "wrong"


class Fields(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = tools_test.model_with(TEMPLATE, cls.folder.name)
        cls.server = Server("--served-model-name", "tiny", "--reasoning-parser", "none", model=model)
        cls.has_grammars = not is_refused_for_lack_of_grammars(cls.server)
        cls.eos = cls.server.post("/tokenize", {"prompt": "<|im_end|>", "add_special_tokens": False})[1]["tokens"]
        openapi = cls.server.get("/openapi.json")[1]
        cls.schemas = {path: operations["post"]["requestBody"]["content"]["application/json"]["schema"]
                       for path, operations in openapi["paths"].items() if path in CASES}

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def value(self, value):
        if value is Session:
            return self.server.post("/v1/sessions", {"messages": SAY})[1]["id"]
        if value is Response:
            return self.server.post("/v1/responses", {"input": "Hi.", "max_output_tokens": 3})[1]["id"]
        return self.eos if value == "eos" else value

    def answer(self, path, body):
        """(status, what stays the same of the answer)"""
        status, _, data = self.server.request("POST", path, body)
        text = data.decode()
        if text.startswith(("event:", "data:")):
            lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        else:
            lines = text.splitlines()
        return status, [steady(json.loads(line)) for line in lines]

    def test_every_field_that_is_served_has_a_line_here(self):
        for path, (_, cases) in CASES.items():
            served = {name for name, _, why in fields_of(self.schemas[path]) if not why}
            told = {name for name, _, _ in cases} | set(UNSEEN) | SILENT.get(path, set()) | {"model"}
            self.assertEqual(served - told, set(), path)
            self.assertEqual({name for name, _, _ in cases} - served, set(), path)

    def test_every_field_changes_the_answer(self):
        for path, (base, cases) in CASES.items():
            for name, value, beside in cases:
                if not self.has_grammars and (name in HELD or "format" in name or name == "tool_choice"):
                    continue
                with self.subTest(path=path, field=name):
                    plain = merged(base, {key: self.value(held) for key, held in beside.items()})
                    status, without = self.answer(path, plain)
                    self.assertEqual(status, 200, without)
                    status, given = self.answer(path, with_field(plain, name, self.value(value)))
                    self.assertEqual(status, 200, given)
                    self.assertNotEqual(given, without)

    def test_fields_of_the_wrong_kind_are_told_by_name(self):
        for path, (base, _) in CASES.items():
            for name, field in self.schemas[path]["properties"].items():
                if field.get("description", "").startswith("taken") or UNSEEN.get(name) == "passed on":
                    continue
                with self.subTest(path=path, field=name):
                    status, answer = self.answer(path, {**base, name: wrong_for(field)})
                    if status == 200:
                        self.assertIn("number", field.get("type", []))  # 1.5 may be right for it
                        continue
                    self.assertIn(status, (400, 404), answer)
                    self.assertIn(name, json.dumps(answer))

    def test_what_is_not_there_is_refused_by_name_wherever_it_stands(self):
        for path, (base, _) in CASES.items():
            inner = [f"{name}.no_such_field" for name, field in self.schemas[path]["properties"].items() if "properties" in field]
            for name in ["no_such_field", *inner]:
                with self.subTest(path=path, field=name):
                    body = {**base, "stream": True} if name.startswith("stream_options") else base
                    status, answer = self.answer(path, with_field(body, name, 1))
                    self.assertEqual(status, 400, answer)
                    self.assertIn(name, json.dumps(answer))

    def test_what_is_known_and_not_served_is_refused_by_name(self):
        seen = 0
        for path, (base, _) in CASES.items():
            for name, holds, why in fields_of(self.schemas[path]):
                if not why.startswith("not"):
                    continue
                seen += 1
                with self.subTest(path=path, field=name):
                    body = {**base, "stream": True} if name.startswith("stream_options") else base
                    status, answer = self.answer(path, with_field(body, name, "something"))
                    self.assertEqual(status, 400, answer)
                    self.assertIn(name, json.dumps(answer))
                    if holds:  # what asks for nothing is fine
                        status, answer = self.answer(path, with_field(body, name, json.loads(holds.strip("`"))))
                        self.assertEqual(status, 200, answer)
        self.assertGreater(seen, 60)

    def test_a_salt_keeps_a_prompt_from_the_states_of_others(self):
        for path, (base, _) in CASES.items():
            if path.endswith("count_tokens"):
                continue
            words = " ".join(["A story of snakes and rivers."] * 12)
            key = next(name for name in ("prompt", "input", "messages") if name in base)
            body = {**base, key: [{"role": "user", "content": words}] if key == "messages" else words}
            with self.subTest(path=path):
                found = [self.server.post(path, {**body, **salt})[1]["coluber"]["cache"]["hit_tokens"]
                         for salt in ({}, {}, {"cache_salt": f"of {path}"}, {"cache_salt": f"of {path}"})]
                self.assertGreater(min(found[1], found[3]), 0, found)
                self.assertEqual(found[2], 0, found)


if __name__ == "__main__":
    unittest.main()
