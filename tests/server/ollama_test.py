# SPDX-License-Identifier: Apache-2.0
"""The real client of Ollama's API; its own types check the answers."""
import unittest

from harness import Server

try:
    import ollama
except ImportError:
    ollama = None

MESSAGES = [{"role": "user", "content": "Begin."}]
OPTIONS = {"temperature": 0, "num_predict": 12, "num_ctx": 4096}


@unittest.skipIf(ollama is None, "Ollama's client is not installed; tools/setup.sh test puts it into ~/.cache/coluber/test-venv")
class Ollama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "tiny")
        cls.client = ollama.Client(host=cls.server.address)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def chat(self, **fields):
        answer = self.server.post("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0, "max_tokens": 12, **fields})[1]
        return answer["choices"][0]["message"]["content"]

    def test_chat_whole_and_streamed_says_what_openais_route_says(self):
        whole = self.client.chat(model="tiny:latest", messages=MESSAGES, options=OPTIONS)
        self.assertEqual(whole.message.content, self.chat())
        self.assertEqual((whole.done, whole.done_reason, whole.eval_count), (True, "length", 12))
        parts = list(self.client.chat(model="tiny", messages=MESSAGES, options=OPTIONS, stream=True))
        self.assertEqual("".join(part.message.content for part in parts), whole.message.content)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual((parts[-1].eval_count, parts[-1].prompt_eval_count), (12, whole.prompt_eval_count))
        self.assertGreaterEqual(parts[-1].total_duration, parts[-1].eval_duration)

    def test_generate_with_and_without_the_template(self):
        through = self.client.generate(model="tiny", prompt="Begin.", system="You tell stories.", options=OPTIONS)
        conversation = [{"role": "system", "content": "You tell stories."}, *MESSAGES]
        self.assertEqual(through.response, self.chat(messages=conversation))
        raw = self.client.generate(model="tiny", prompt="Once upon a time", raw=True, options=OPTIONS)
        plain = self.server.post("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12})[1]
        self.assertEqual(raw.response, plain["choices"][0]["text"])
        parts = self.client.generate(model="tiny", prompt="Once upon a time", raw=True, options=OPTIONS, stream=True)
        self.assertEqual("".join(part.response for part in parts), raw.response)

    def test_models_are_listed(self):
        models = self.client.list().models
        self.assertEqual([model.model for model in models], ["tiny"])
        self.assertGreater(models[0].size, 10**6)

    def test_errors_are_the_clients_own(self):
        for change, named in (({"options": {"temperature": -1}}, "temperature"), ({"options": {"mirostat": 2}}, "mirostat"),
                              ({"options": {"nothing": 2}}, "nothing"), ({"options": {"num_predict": -7}}, "num_predict"), ({"messages": []}, "messages"),
                              ({"messages": [{"role": "user", "content": "a", "images": [b"x"]}]}, "images")):
            with self.subTest(named=named), self.assertRaises(ollama.ResponseError) as caught:
                self.client.chat(**{"model": "tiny", "messages": MESSAGES, **change})
            self.assertEqual(caught.exception.status_code, 400)
            self.assertIn(named, caught.exception.error)
        # Also before a body is read.
        self.assertEqual(self.server.get("/api/chat"), (405, {"error": "this route takes POST"}))
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat(model="other", messages=MESSAGES)
        self.assertEqual(caught.exception.status_code, 404)


if __name__ == "__main__":
    unittest.main()
