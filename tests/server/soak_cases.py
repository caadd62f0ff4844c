# SPDX-License-Identifier: Apache-2.0
"""What the random traffic asks, through every API, and what is to come of it: what one engine that runs one sequence at a time says
(`coluber batch`), and, where only the server has words for a request (tools, vectors), what a server says that does one at a time.
"""
import json
import subprocess
import tempfile

from harness import PROGRAM, Server, http_bytes, is_refused_for_lack_of_grammars

WORDS = "the river runs to a sea where small boats wait for wind and an old man counts stones by night".split()
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["n", "t"],
          "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "t": {"enum": ["ebb", "flow"]}}}
FORMS = ({"guided_regex": "[ab]{2}-[0-9]"}, {"guided_choice": ["left", "right"]}, {"structured_outputs": {"json": SCHEMA}},
         {"guided_grammar": "root ::= \"x\" [0-9] \"y\""},
         {"response_format": {"type": "json_schema", "json_schema": {"name": "tide", "schema": SCHEMA, "strict": True}}})
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "required": ["city"], "additionalProperties": False, "properties": {"city": {"enum": cities}}}}}
    for name, cities in (("weather", ["Oslo", "Rome"]), ("time", ["Bonn", "Lima", "Cairo"]))]
END_OF_TURN = 3
DETERMINED = ("--deterministic", "--threads", "1", "--max-model-len", "2048")
SERVING = ("--deterministic", "--reasoning-parser", "none")  # thinking would be free to go on for ever


def alone(model, lines):
    """What one engine says to each line: its output."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/in.jsonl", "w", encoding="utf-8") as file:
            for i, line in enumerate(lines):
                file.write(json.dumps({"id": i, **line}) + "\n")
        subprocess.run([PROGRAM, "batch", str(model), "--input", f"{folder}/in.jsonl", "--output", f"{folder}/out.jsonl", "--max-num-seqs", "1",
                        "--no-enable-prefix-caching", *DETERMINED], check=True, stderr=subprocess.DEVNULL, timeout=600)
        with open(f"{folder}/out.jsonl", encoding="utf-8") as file:
            results = {result["id"]: result for result in map(json.loads, file)}
    for result in results.values():
        if "error" in result:
            raise RuntimeError(f"the engine alone refused a request of the traffic: {result}")
    return [results[i]["outputs"] for i in range(len(lines))]


# ---- what answers say, as lists that can be compared

def events_of(body):
    """Of a stream that has ended as it should."""
    lines = body.decode().split("\n\n")
    if lines[-2:] != ["data: [DONE]", ""]:
        raise ValueError(f"a stream's end: {lines[-2:]}")
    return [json.loads(line[6:]) for line in lines[:-2]]


def completion(body):
    return [[choice["text"], choice["finish_reason"]] for choice in json.loads(body)["choices"]]


def completion_stream(body):
    made = {}
    for event in events_of(body):
        for choice in event["choices"]:
            one = made.setdefault(choice["index"], ["", None])
            one[0] += choice["text"]
            one[1] = choice["finish_reason"] or one[1]
    return [made[i] for i in sorted(made)]


def chat(body):
    choice = json.loads(body)["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    return [choice["message"]["content"] or "", [[call["function"]["name"], call["function"]["arguments"]] for call in calls]]


def chat_stream(body):
    text, calls = "", []
    for event in events_of(body):
        delta = event["choices"][0]["delta"]
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    return [text, calls]


def response(body):
    return json.loads(body)["output"][0]["content"][0]["text"]


def response_stream(body):
    events = [json.loads(part.split("data: ", 1)[1]) for part in body.decode().split("\n\n") if part]
    if events[-1]["type"] not in ("response.completed", "response.incomplete"):
        raise ValueError(f"a stream's end: {events[-1]}")
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def message(body):
    return json.loads(body)["content"][0]["text"]


def message_stream(body):
    events = [json.loads(part.split("data: ", 1)[1]) for part in body.decode().split("\n\n") if part]
    if events[-1]["type"] != "message_stop":
        raise ValueError(f"a stream's end: {events[-1]}")
    return "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")


def ollama_chat(body):
    parts = [json.loads(line) for line in body.decode().splitlines()]
    if [part["done"] for part in parts] != [False] * (len(parts) - 1) + [True]:
        raise ValueError(f"a stream's end: {parts[-1]}")
    return "".join(part["message"]["content"] for part in parts)


def ollama_text(body):
    return "".join(json.loads(line)["response"] for line in body.decode().splitlines())


def vector(body):
    return [one["embedding"] for one in json.loads(body)["data"]]


def tokens(body):
    return json.loads(body)["tokens"]


def prompt(body):
    return json.loads(body)["prompt"]


class Case:
    """A request, and what its answer must say. `streams`: whether it comes in parts."""

    def __init__(self, path, body, read, expected):
        self.path, self.read, self.expected = path, read, expected
        self.body, self.streams = json.dumps(body).encode(), bool(body.get("stream"))

    def bytes_of(self, key):
        return http_bytes("POST", self.path, self.body, f"X-Api-Key: {key}")


class Cases:
    def __init__(self, model, dice):
        self.model, self.dice = model, dice
        self.all = []
        with Server("--max-num-seqs", 1, "--no-enable-prefix-caching", *SERVING, model=model) as server:
            self._say_texts()
            self._say_chats()
            if is_refused_for_lack_of_grammars(server):
                print("this build has no XGrammar, and so the traffic no forms and no tools", flush=True)
            else:
                self._say_forms()
                self._say_tools(server)
            self._say_numbers(server)
            self._say_sessions(server)
            self._say_follow_ups(server)
        answers = [json.dumps(case.expected) for case in self.all]
        if len(set(answers)) < len(answers) // 4:
            raise RuntimeError("the answers are so alike that one could stand for another")

    def _text(self, words):
        return " ".join(self.dice.choice(WORDS) for _ in range(words))

    def _add(self, path, body, read, expected):
        self.all.append(Case(path, body, read, expected))

    def _say_texts(self):
        hows = ({"temperature": 0}, {"temperature": 1, "seed": 7}, {"temperature": 0.8, "top_p": 0.9, "seed": 2, "n": 3},
                {"temperature": 1, "seed": 5, "repetition_penalty": 1.2, "top_k": 40}, {"temperature": 0, "logit_bias": {"300": 5}})
        asked = [{"prompt": self._text(self.dice.choice((1, 3, 8, 20, 60))), "max_tokens": self.dice.randrange(1, 12), "ignore_eos": True, **how}
                 for how in hows for _ in range(8)]
        for body, outputs in zip(asked, alone(self.model, asked)):
            expected = [[output["text"], output["finish_reason"]] for output in outputs]
            self._add("/v1/completions", body, completion, expected)
            self._add("/v1/completions", {**body, "stream": True}, completion_stream, expected)
            if body["temperature"] == 0 and "logit_bias" not in body:
                ask = {"prompt": body["prompt"], "raw": True, "options": {"temperature": 0, "num_predict": body["max_tokens"]}}
                if END_OF_TURN not in outputs[0]["ids"]:  # which Ollama's API has no word for going on after
                    self._add("/api/generate", {**ask, "stream": bool(len(self.all) % 2)}, ollama_text, outputs[0]["text"])

    def _say_chats(self):
        asked = [{"messages": [{"role": "user", "content": self._text(self.dice.randrange(2, 12))}], "max_tokens": self.dice.randrange(2, 8),
                  "temperature": 0} for _ in range(12)]
        for body, outputs in zip(asked, alone(self.model, asked)):
            if END_OF_TURN in outputs[0]["ids"]:
                continue  # whether its text stands in the answer is a matter of the API
            text, limit = outputs[0]["text"], body["max_tokens"]
            said = {"input": body["messages"][0]["content"], "temperature": 0, "max_output_tokens": limit, "store": False}
            for stream in (False, True):
                self._add("/v1/chat/completions", {**body, "stream": stream}, chat_stream if stream else chat, [text, []])
                self._add("/v1/responses", {**said, "stream": stream}, response_stream if stream else response, text)
                self._add("/v1/messages", {**body, "stream": stream}, message_stream if stream else message, text)
                self._add("/api/chat", {"messages": body["messages"], "stream": stream, "options": {
                    "temperature": 0, "num_predict": limit}}, ollama_chat, text)

    def _say_forms(self):
        asked = [{"messages": [{"role": "user", "content": self._text(3)}], "max_tokens": 120, "temperature": 1, "seed": seed, **form}
                 for form in FORMS for seed in range(3)]
        for body, outputs in zip(asked, alone(self.model, asked)):
            if outputs[0]["finish_reason"] != "stop":
                continue
            expected = [outputs[0]["text"], []]
            self._add("/v1/chat/completions", body, chat, expected)
            self._add("/v1/chat/completions", {**body, "stream": True}, chat_stream, expected)

    def _say_tools(self, server):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}, "none"):
            for seed in range(3):
                body = {"messages": [{"role": "user", "content": self._text(4)}], "tools": TOOLS, "tool_choice": choice, "seed": seed,
                        "max_tokens": 8 if choice == "none" else 120, "parallel_tool_calls": False, "temperature": 1, "ignore_eos": choice == "none"}
                status, _, data = server.request("POST", "/v1/chat/completions", body)
                if status != 200:
                    raise RuntimeError(f"a request with tools: {status} {data}")
                expected = chat(data)
                if choice != "none" and len(expected[1]) != 1:
                    raise RuntimeError(f"a call that was required was not made: {data}")
                self._add("/v1/chat/completions", body, chat, expected)
                self._add("/v1/chat/completions", {**body, "stream": True}, chat_stream, expected)

    def _say_numbers(self, server):
        for _ in range(4):
            text = self._text(9)
            ids = server.post("/tokenize", {"prompt": text})[1]["tokens"]
            self._add("/tokenize", {"prompt": text}, tokens, ids)
            self._add("/detokenize", {"tokens": ids}, prompt, text)
            self._add("/v1/embeddings", {"input": [text, text[:9]]}, vector, vector(server.request("POST", "/v1/embeddings", {"input": [text, text[:9]]})[2]))

    def _say_sessions(self, server):
        """(beginning, turn, next turn, what is said to the turn, what is said to the next)"""
        def ids(text):
            return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]

        how = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
        begins = [ids(self._text(words)) for words in (5, 20, 60)]
        turns = [ids(" " + self._text(3)) for _ in range(2)]
        firsts = [(begin, turn) for begin in begins for turn in turns]
        said = [outputs[0] for outputs in alone(self.model, [{"prompt_ids": begin + turn, **how} for begin, turn in firsts])]
        then = alone(self.model, [{"prompt_ids": begin + turn + one["ids"] + turns[0], **how} for (begin, turn), one in zip(firsts, said)])
        self.sessions = [(begin, turn, turns[0], one["text"], two[0]["text"]) for (begin, turn), one, two in zip(firsts, said, then)]

    def _say_follow_ups(self, server):
        """(input, what is said to it, the next input, what is said to that): by ids, for what random weights say is read otherwise than said."""
        how = {"max_tokens": 4, "temperature": 0}
        pairs = [(self._text(4), self._text(3)) for _ in range(6)]

        def ids(*texts):
            turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
            return server.post("/tokenize", {"messages": turns})[1]["tokens"]

        begins = [ids(first) for first, _ in pairs]
        said = [outputs[0] for outputs in alone(self.model, [{"prompt_ids": begin, **how} for begin in begins])]
        asked = []
        for (first, second), begin, one in zip(pairs, begins, said):
            whole = ids(first, "So", second)
            asked.append({"prompt_ids": begin + one["ids"] + whole[whole.index(END_OF_TURN, len(begin)):], **how})
        then = [outputs[0] for outputs in alone(self.model, asked)]
        self.follow_ups = [(first, one["text"], second, two["text"]) for (first, second), one, two in zip(pairs, said, then)
                           if END_OF_TURN not in one["ids"] + two["ids"]]
        if not self.follow_ups:
            raise RuntimeError("no conversation of the traffic has two turns; take another seed")
