# SPDX-License-Identifier: Apache-2.0
"""The real client of OpenAI's API; its own types check the answers."""
import asyncio
import unittest

from harness import Server

try:
    import openai
except ImportError:
    openai = None

MESSAGES = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": [{"type": "text", "text": "Begin."}]}]


@unittest.skipIf(openai is None, "OpenAI's client is not installed; tools/setup.sh test puts it into ~/.cache/coluber/test-venv")
class OpenAi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k", "--served-model-name", "tiny", "--max-num-seqs", 8)
        cls.base = {"base_url": cls.server.address + "/v1", "api_key": "k", "max_retries": 0}
        cls.client = openai.OpenAI(**cls.base)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_completions_whole_and_streamed(self):
        ask = {"model": "tiny", "prompt": "The river", "max_tokens": 12, "temperature": 0}
        whole = self.client.completions.create(**ask, logprobs=1)
        self.assertEqual(len(whole.choices[0].logprobs.tokens), whole.usage.completion_tokens)
        text = "".join(chunk.choices[0].text for chunk in self.client.completions.create(**ask, stream=True))
        self.assertEqual(text, whole.choices[0].text)
        two = self.client.completions.create(**{**ask, "prompt": ["The river", "The sea"]}, n=2, extra_body={"top_k": 1})
        self.assertEqual([choice.index for choice in two.choices], [0, 1, 2, 3])
        self.assertEqual(two.choices[0].text, whole.choices[0].text)

    def test_conversations_whole_and_streamed(self):
        ask = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 12, "seed": 3, "temperature": 0.8, "top_p": 0.9,
               "presence_penalty": 0.1, "frequency_penalty": 0.1, "stop": ["\n\n\n"], "user": "u"}
        whole = self.client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        self.assertGreaterEqual(whole.usage.prompt_tokens_details.cached_tokens, 0)
        chunks = list(self.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")

    def test_embeddings(self):
        ask = {"model": "tiny", "input": ["The river", "The sea", "The river"]}
        answer = self.client.embeddings.create(**ask)  # in base64
        plain = self.client.embeddings.create(**ask, encoding_format="float")
        for one, other in zip(answer.data, plain.data):
            self.assertAlmostEqual(sum(value * value for value in one.embedding), 1, places=4)
            for a, b in zip(one.embedding, other.embedding):
                self.assertAlmostEqual(a, b, places=6)
        first, second, third = (data.embedding for data in plain.data)
        for a, b in zip(first, third):
            self.assertAlmostEqual(a, b, places=5)
        self.assertLess(sum(a * b for a, b in zip(first, second)), 0.9999)
        short = self.client.embeddings.create(**ask, dimensions=8, extra_body={"pooling": "mean"}).data[0].embedding
        self.assertEqual(len(short), 8)
        self.assertAlmostEqual(sum(value * value for value in short), 1, places=4)
        for wrong in ({"dimensions": 10**6}, {"encoding_format": "int8"}, {"input": []}, {"input": ""}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.embeddings.create(**{**ask, "encoding_format": "float", **wrong})
            self.assertEqual(caught.exception.param, list(wrong)[0])

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="gpt", prompt="x")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(**{**self.base, "api_key": "wrong"}).models.list()

    def test_many_at_once_say_what_each_says_alone(self):
        prompts = [f"Story number {i}:" for i in range(12)]
        ask = {"model": "tiny", "max_tokens": 10, "temperature": 0}
        alone = [self.client.completions.create(prompt=prompt, **ask).choices[0].text for prompt in prompts]

        async def together():
            async with openai.AsyncOpenAI(**self.base) as client:
                async def one(prompt):
                    stream = await client.completions.create(prompt=prompt, stream=True, **ask)
                    return "".join([chunk.choices[0].text async for chunk in stream])
                return await asyncio.gather(*map(one, prompts))

        self.assertEqual(asyncio.run(together()), alone)

    def test_a_stream_that_is_closed_frees_its_place(self):
        stream = self.client.completions.create(model="tiny", prompt="On and on", max_tokens=1500, stream=True,
                                                extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(self.server.wait_until_idle(10)["coluber:leaked_slots"], 0)


if __name__ == "__main__":
    unittest.main()
