# SPDX-License-Identifier: Apache-2.0
"""The real client of Anthropic's API; its own types check the answers."""
import unittest

from harness import Server

try:
    import anthropic
except ImportError:
    anthropic = None

GREEDY = {"extra_body": {"temperature": 0}}  # which this version of the client has no argument for
ASK = {"model": "tiny", "max_tokens": 12, "messages": [{"role": "user", "content": "Begin."}], **GREEDY}


@unittest.skipIf(anthropic is None, "Anthropic's client is not installed; tools/setup.sh test puts it into ~/.cache/coluber/test-venv")
class Anthropic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k", "--served-model-name", "tiny")
        cls.client = anthropic.Anthropic(base_url=cls.server.address, api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def chat(self, **fields):
        body = {"max_tokens": 12, "temperature": 0, "messages": ASK["messages"], **fields}
        return self.server.post("/v1/chat/completions", body, headers={"x-api-key": "k"})[1]

    def test_a_message_says_what_chat_says(self):
        message = self.client.messages.create(**ASK)
        whole = self.chat()
        self.assertEqual(message.content[0].text, whole["choices"][0]["message"]["content"])
        self.assertEqual((message.role, message.stop_reason, message.model), ("assistant", "max_tokens", "tiny"))
        usage = message.usage
        self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, whole["usage"]["prompt_tokens"])
        self.assertEqual(usage.output_tokens, 12)

    def test_a_stream_says_what_the_whole_says(self):
        whole = self.client.messages.create(**ASK)
        with self.client.messages.stream(**ASK) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual([block.text for block in final.content], [block.text for block in whole.content])
        self.assertEqual((final.stop_reason, final.usage.output_tokens), (whole.stop_reason, whole.usage.output_tokens))
        kinds = [event.type for event in self.client.messages.create(**ASK, stream=True)]
        self.assertEqual((kinds[0], kinds[1], kinds[-3:]),
                         ("message_start", "content_block_start", ["content_block_stop", "message_delta", "message_stop"]))

    def test_systems_blocks_and_results_of_tools_become_a_conversation(self):
        blocks = [{"role": "user", "content": [{"type": "text", "text": "Begin.", "cache_control": {"type": "ephemeral"}}]},
                  {"role": "assistant", "content": [{"type": "text", "text": "Once."}]}, {"role": "user", "content": "More."}]
        message = self.client.messages.create(**{**ASK, "messages": blocks}, system=[{"type": "text", "text": "You tell stories."}])
        plain = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Begin."},
                 {"role": "assistant", "content": "Once."}, {"role": "user", "content": "More."}]
        self.assertEqual(message.content[0].text, self.chat(messages=plain)["choices"][0]["message"]["content"])

    def test_the_text_that_an_answer_stopped_at_is_told(self):
        text = self.client.messages.create(**{**ASK, "max_tokens": 40}).content[0].text
        word = text.split()[4]
        ask = {**ASK, "max_tokens": 40, "stop_sequences": ["\0never", word]}
        message = self.client.messages.create(**ask)
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", word))
        self.assertEqual(message.content[0].text, text[:text.index(word)])
        with self.client.messages.stream(**ask) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.content[0].text, final.stop_reason, final.stop_sequence), (message.content[0].text, "stop_sequence", word))

    def test_tokens_are_counted_as_a_message_would_have_them(self):
        messages = [{"role": "user", "content": "Begin."}, {"role": "assistant", "content": "Once."}, {"role": "user", "content": "More."}]
        ask = {"model": "tiny", "messages": messages, "system": [{"type": "text", "text": "You tell stories."}]}
        message = self.client.messages.create(**ask, max_tokens=1, **GREEDY)
        self.assertEqual(self.client.messages.count_tokens(**ask).input_tokens,
                         message.usage.input_tokens + message.usage.cache_read_input_tokens)
        long = [{"role": "user", "content": "word " * 5000}]  # more than there is room for
        self.assertGreater(self.client.messages.count_tokens(model="tiny", messages=long).input_tokens, 5000)
        for change, named in (({"messages": []}, "messages"), ({"extra_body": {"max_tokens": 3}}, "max_tokens"),
                              ({"extra_body": {"stream": True}}, "stream"), ({"tools": [{"name": "x"}]}, "tools")):
            with self.subTest(named=named), self.assertRaises(anthropic.BadRequestError) as caught:
                self.client.messages.count_tokens(**{**ask, **change})
            self.assertIn(named, caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.count_tokens(**{**ask, "model": "other"})

    def test_errors_before_the_body_is_read_are_the_clients_own_too(self):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            status, answer = self.server.post(path, ASK)
            self.assertEqual((status, answer["type"], answer["error"]["type"]), (401, "error", "authentication_error"))
            status, answer = self.server.get(path)
            self.assertEqual((status, answer["type"]), (405, "error"))

    def test_errors_are_the_clients_own(self):
        for change, named in (({"extra_body": {"temperature": -1}}, "temperature"), ({"stop_sequences": [""]}, "stop_sequences"),
                              ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0]"),
                              ({"messages": []}, "messages"), ({"extra_body": {"container": "c"}}, "container"),
                              ({"extra_body": {"nothing_like_it": 1}}, "nothing_like_it")):
            with self.subTest(named=named), self.assertRaises(anthropic.BadRequestError) as caught:
                self.client.messages.create(**{**ASK, **change})
            self.assertEqual(caught.exception.body["type"], "error")
            self.assertIn(named, caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(**{**ASK, "model": "other"})
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.server.address, api_key="x", max_retries=0).messages.create(**ASK)


if __name__ == "__main__":
    unittest.main()
