# SPDX-License-Identifier: Apache-2.0
"""/v1/responses with the real client of OpenAI's API: conversations that rest on sessions."""
import tempfile
import unittest

from harness import Server

try:
    import openai
except ImportError:
    openai = None

ASK = {"model": "tiny", "max_output_tokens": 12, "temperature": 0}


@unittest.skipIf(openai is None, "OpenAI's client is not installed; tools/setup.sh test puts it into ~/.cache/coluber/test-venv")
class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "tiny", "--max-sessions", 6)
        cls.client = openai.OpenAI(base_url=cls.server.address + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def ask(self, text, **fields):
        return self.client.responses.create(**{**ASK, "input": text, **fields})

    def chat(self, *turns, system=None):
        messages = [{"role": "system", "content": system}] if system else []
        messages += [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
        answer = self.server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 12})[1]
        return answer["choices"][0]["message"]["content"]

    def test_a_response_says_what_chat_says(self):
        response = self.ask("Begin.", instructions="You tell stories.", metadata={"a": "b"})
        self.assertEqual(response.output_text, self.chat("Begin.", system="You tell stories."))
        self.assertEqual((response.status, response.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual((response.usage.output_tokens, response.metadata, response.instructions), (12, {"a": "b"}, "You tell stories."))
        self.assertEqual(self.client.responses.retrieve(response.id).output_text, response.output_text)
        items = [{"role": "user", "content": [{"type": "input_text", "text": "Begin."}]}, {"role": "assistant", "content": "Once."},
                 {"role": "user", "content": "More."}]
        self.assertEqual(self.ask(items).output_text, self.chat("Begin.", "Once.", "More."))

    def test_one_answer_is_followed_by_several_without_being_read_again(self):
        first = self.ask("Begin.", instructions="You tell stories.")
        for follow in ("And then?", "Something else."):
            second = self.ask(follow, previous_response_id=first.id)
            self.assertEqual(second.output_text, self.chat("Begin.", first.output_text, follow, system="You tell stories."))
            self.assertEqual(second.usage.input_tokens_details.cached_tokens, first.usage.total_tokens - 1)
            self.assertEqual(second.previous_response_id, first.id)
            third = self.ask("More.", previous_response_id=second.id, instructions="You tell stories.")
            self.assertEqual(third.usage.input_tokens_details.cached_tokens, second.usage.total_tokens - 1)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask("x", previous_response_id=first.id, instructions="You sing.")
        self.assertEqual(caught.exception.param, "instructions")

    def test_streams_have_the_clients_events(self):
        whole = self.ask("Begin.")
        with self.client.responses.stream(**ASK, input="Begin.") as stream:
            events = list(stream)
        kinds, final = [event.type for event in events], events[-1].response
        self.assertEqual(kinds[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual(kinds[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"])
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"), whole.output_text)
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual(final.output_text, whole.output_text)
        follow = self.ask("More.", previous_response_id=final.id)
        self.assertEqual(follow.output_text, self.chat("Begin.", whole.output_text, "More."))

    def test_what_is_not_stored_leaves_nothing(self):
        response = self.ask("Begin.", store=False)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(response.id)
        first = self.ask("Begin.")
        second = self.ask("More.", previous_response_id=first.id, store=False)
        with self.assertRaises(openai.NotFoundError):
            self.ask("More.", previous_response_id=second.id)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.ask("More.", previous_response_id=first.id)
        self.assertEqual(self.server.wait_until_idle()["coluber:leaked_slots"], 0)

    def test_the_oldest_give_way_and_sessions_do_not(self):
        session = self.server.post("/v1/sessions", {"prompt": "A river"})[1]["id"]
        first = self.ask("Begin.")
        for i in range(6):
            self.ask(f"Number {i}")
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        self.assertEqual(self.server.get(f"/v1/sessions/{session}")[0], 200)
        self.server.request("DELETE", f"/v1/sessions/{session}")

    def test_mistakes_are_told_by_name_and_leave_nothing(self):
        before = self.server.metrics()
        for field, value in (("temperature", -1), ("max_output_tokens", 0), ("background", True), ("truncation", "auto"), ("input", []),
                             ("tools", [{"type": "web_search"}]), ("include", ["reasoning.encrypted_content"]), ("text", 1),
                             ("conversation", "c"), ("instructions", 5)):
            with self.subTest(field=field), self.assertRaises(openai.BadRequestError) as caught:
                self.ask("Begin.", extra_body={field: value})
            self.assertEqual(caught.exception.param, field)
        after = self.server.wait_until_idle()
        self.assertEqual(after['coluber:sessions{where="memory"}'], before['coluber:sessions{where="memory"}'])

    def test_conversations_outlive_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            ids = None
            for _ in range(2):
                with Server("--served-model-name", "tiny", "--session-dir", folder) as server:
                    with openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0) as client:
                        if ids is None:
                            first = client.responses.create(**ASK, input="Begin.", instructions="You tell stories.")
                            ids = first.id
                        else:
                            second = client.responses.create(**ASK, input="More.", previous_response_id=ids)
        self.assertEqual(second.output_text, self.chat("Begin.", first.output_text, "More.", system="You tell stories."))
        self.assertEqual(second.usage.input_tokens_details.cached_tokens, first.usage.total_tokens - 1)
        self.assertEqual(second.instructions, "You tell stories.")


if __name__ == "__main__":
    unittest.main()
