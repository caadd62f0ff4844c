# SPDX-License-Identifier: Apache-2.0
"""Random traffic over the server: whole answers, streams, sessions, other APIs, mistakes, clients that go away and more requests than
fit. Every answer is what the engine says alone (`coluber batch`, one at a time), and at the end nothing is left behind.

    python3 tests/server/soak.py        # COLUBER_SOAK_SECONDS (60), COLUBER_SOAK_CLIENTS (12), COLUBER_TEST_SEED

Only the standard library is used.
"""
import collections
import http.client
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from harness import PROGRAM, SANITIZED, SECONDS, Server, http_bytes

SEED = int(os.environ.get("COLUBER_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
DURATION = float(os.environ.get("COLUBER_SOAK_SECONDS", 60))
CLIENTS = int(os.environ.get("COLUBER_SOAK_CLIENTS", 12))
MEMORY_GROWTH = 300 << 20
WORDS = "the river runs to a sea where small boats wait for wind and an old man counts stones by night".split()


def alone(lines):
    """What one engine, which runs one sequence at a time, says to each line: (text, ids)."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/in.jsonl", "w", encoding="utf-8") as file:
            for i, line in enumerate(lines):
                file.write(json.dumps({"id": str(i), "ignore_eos": True, **line}) + "\n")
        subprocess.run([PROGRAM, "batch", "--input", f"{folder}/in.jsonl", "--output", f"{folder}/out.jsonl", "--threads", "1",
                        "--max-num-seqs", "1", "--max-model-len", "2048"], check=True, stderr=subprocess.DEVNULL, timeout=600)
        with open(f"{folder}/out.jsonl", encoding="utf-8") as file:
            results = {result["id"]: result["outputs"][0] for result in map(json.loads, file)}
    return [(results[str(i)]["text"], results[str(i)]["ids"]) for i in range(len(lines))]


class Truth:
    """Requests and what is to come of them."""

    def __init__(self, dice):
        def text(words):
            return " ".join(dice.choice(WORDS) for _ in range(words))

        self.plain = [{"prompt": text(dice.randrange(1, 40)), "max_tokens": dice.randrange(1, 16), **how}
                      for how in ({"temperature": 0}, {"temperature": 1, "seed": 7}) for _ in range(10)]
        self.chats = [{"messages": [{"role": "user", "content": text(4)}], "max_tokens": 10, "temperature": 0} for _ in range(4)]
        said = alone(self.plain + self.chats)
        self.plain = list(zip(self.plain, [text for text, _ in said]))
        self.chats = list(zip(self.chats, [text for text, _ in said[len(self.plain):]]))
        # Sessions: a beginning, two ways to go on, and what is said in each.
        with Server() as server:
            def ids(text):
                return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
            begins = [ids(text(30)) for _ in range(3)]
            turns = [ids(" " + text(3)) for _ in range(2)]
        firsts = [(begin, turn) for begin in begins for turn in turns]
        answers = alone([{"prompt_ids": begin + turn, "max_tokens": 6, "temperature": 0} for begin, turn in firsts])
        seconds = alone([{"prompt_ids": begin + turn + said + turns[0], "max_tokens": 6, "temperature": 0}
                         for (begin, turn), (_, said) in zip(firsts, answers)])
        self.sessions = [(begin, turn, turns[0], first[0], second[0]) for (begin, turn), first, second in zip(firsts, answers, seconds)]


class Client:
    def __init__(self, server, truth, seed):
        self.server, self.truth, self.dice = server, truth, random.Random(seed)
        self.counts = collections.Counter()
        self.wrong = []

    def ask(self, method, path, body=None):
        """The answer, or None where the server has too much to do."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        self.counts[answer.status] += 1
        if answer.status == 429:
            return None
        if answer.status != 200:
            raise AssertionError(f"{method} {path}: {answer.status} {data[:300]}")
        return data

    def same(self, found, expected, what):
        if found != expected:
            self.wrong.append(f"{what}: {found!r} instead of {expected!r}")

    def whole(self):
        body, expected = self.dice.choice(self.truth.plain)
        if data := self.ask("POST", "/v1/completions", {"ignore_eos": True, **body}):
            self.same(json.loads(data)["choices"][0]["text"], expected, body)

    def stream(self):
        body, expected = self.dice.choice(self.truth.plain)
        if data := self.ask("POST", "/v1/completions", {"ignore_eos": True, **body, "stream": True}):
            lines = data.decode().split("\n\n")
            self.same(lines[-2], "data: [DONE]", body)
            self.same("".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-2]), expected, body)

    def chat(self):
        body, expected = self.dice.choice(self.truth.chats)
        way = self.dice.randrange(3)
        if way == 0:
            data = self.ask("POST", "/v1/chat/completions", {**body, "ignore_eos": True})
            found = data and json.loads(data)["choices"][0]["message"]["content"]
        elif way == 1:
            data = self.ask("POST", "/v1/responses", {"input": body["messages"][0]["content"], "max_output_tokens": 10, "temperature": 0,
                                                      "ignore_eos": True, "store": self.dice.random() < 0.5})
            found = data and json.loads(data)["output"][0]["content"][0]["text"]
        else:
            data = self.ask("POST", "/v1/chat/completions", {**body, "ignore_eos": True, "stream": True})
            events = [json.loads(line[6:]) for line in data.decode().split("\n\n")[:-2]] if data else []
            found = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        if data:
            self.same(found, expected, body)

    def until_taken(self, method, path, body=None):
        while (data := self.ask(method, path, body)) is None:
            time.sleep(0.01 + 0.02 * self.dice.random())
        return json.loads(data)

    def session(self):
        begin, turn, second, expected, then = self.dice.choice(self.truth.sessions)

        def go_on(session, ids, wanted):
            answer = self.until_taken("POST", "/v1/completions", {"session_id": session, "prompt": ids, "max_tokens": 6, "temperature": 0,
                                                                  "ignore_eos": True})
            self.same(answer["choices"][0]["text"], wanted, f"session of {len(begin)} and {len(ids)}")
            return answer["coluber"]["session"]["tokens"]

        session = self.until_taken("POST", "/v1/sessions", {"prompt": begin})["id"]
        tokens = go_on(session, turn, expected)
        if self.dice.random() < 0.5:
            fork = self.until_taken("POST", f"/v1/sessions/{session}/fork", {})["id"]
            go_on(fork, second, then)
            self.until_taken("DELETE", f"/v1/sessions/{fork}")
        go_on(session, second, then)
        if self.dice.random() < 0.5:
            self.until_taken("POST", f"/v1/sessions/{session}/rollback", {"tokens": tokens})
            go_on(session, second, then)
        self.until_taken("DELETE", f"/v1/sessions/{session}")

    def mistake(self):
        path, body = self.dice.choice((("/v1/completions", b"{"), ("/v1/completions", b'{"prompt":"a","n":1000000000}'),
                                       ("/v1/responses", b'{"input":1}'), ("/v1/messages", b"{}"), ("/api/chat", b'{"messages":[1]}'),
                                       ("/v1/sessions", b'{"file":"../x"}'), ("/v1/completions", b"[" * 100000)))
        status, _, _ = self.server.request("POST", path, body)
        self.counts[status] += 1
        if status not in (400, 429):
            self.wrong.append(f"{path} {body[:40]!r}: {status}")

    def go_away(self):
        """At any moment of a request or its answer."""
        body = {"prompt": "On and on", "max_tokens": 200, "ignore_eos": True, "stream": self.dice.random() < 0.7, "n": self.dice.choice((1, 1, 3))}
        if self.dice.random() < 0.3:
            path, body = "/v1/responses", {"input": "On and on", "ignore_eos": True, "max_output_tokens": 200, "stream": True}
        else:
            path = "/v1/completions"
        data = http_bytes("POST", path, json.dumps(body).encode())
        with self.server.connect() as peer:
            peer.sendall(data[:self.dice.choice((len(data), len(data), self.dice.randrange(len(data))))])
            time.sleep(self.dice.random() * 0.05)
            if self.dice.random() < 0.5:
                peer.settimeout(0.2)
                try:
                    peer.recv(self.dice.choice((1, 500)))
                except OSError:
                    pass
            if self.dice.random() < 0.5:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        self.counts["gone"] += 1

    def run(self, deadline):
        ways = [self.whole] * 4 + [self.stream] * 4 + [self.chat] * 3 + [self.session] * 2 + [self.mistake] + [self.go_away] * 2
        while time.monotonic() < deadline and not self.wrong:
            way = self.dice.choice(ways)
            try:
                way()
            except Exception as failure:  # pylint: disable=broad-except
                self.wrong.append(f"{way.__name__}: {failure!r}")
            self.counts[way.__name__] += 1


def settled(server, descriptors):
    values = server.wait_until_idle(60)
    deadline = time.monotonic() + 30
    while server.descriptors() > descriptors + 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    problems = []
    if server.descriptors() > descriptors + 4:
        problems.append(f"{server.descriptors()} descriptors after, {descriptors} before")
    if values["coluber:leaked_slots"] != 0:
        problems.append(f"{values['coluber:leaked_slots']} slots leaked")
    if server.post("/v1/sessions", {})[0] != 200 or len(server.get("/v1/sessions")[1]["data"]) != 1:
        problems.append(f"sessions are left: {server.get('/v1/sessions')[1]['data'][:3]}")
    if values["coluber:broken_states_total"] != 0:
        problems.append("states were broken")
    return values, problems


def main():
    print(f"seed {SEED}", flush=True)
    truth = Truth(random.Random(SEED))
    with tempfile.TemporaryDirectory() as folder, Server("--max-num-seqs", 4, "--max-queue", 4, "--session-dir", folder, "--max-session-bytes",
                                                         "1MiB", "--max-sessions", 64) as server:
        server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})
        descriptors, memory = server.descriptors(), server.memory_bytes()
        clients = [Client(server, truth, SEED + i) for i in range(CLIENTS)]
        deadline = time.monotonic() + DURATION
        threads = [threading.Thread(target=client.run, args=(deadline,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values, problems = settled(server, descriptors)
        counts = sum((client.counts for client in clients), collections.Counter())
        problems += [wrong for client in clients for wrong in client.wrong]
        grown = server.memory_bytes() - memory
        if grown > MEMORY_GROWTH and not SANITIZED:
            problems.append(f"memory grew by {grown >> 20} MiB")
        ended = sum(value for name, value in values.items() if name.startswith("vllm:request_success_total"))
        asked = counts["whole"] + counts["stream"] + counts["chat"]
        if ended < asked - counts[429]:
            problems.append(f"{ended} requests ended by the metrics, {asked - counts[429]} or more by their clients")
        answered = sum(number for status, number in counts.items() if isinstance(status, int))
        print(f"{answered} answers in {DURATION:.0f} s, {counts['gone']} clients went away, {counts[429]} were told to come later; "
              f"{values['coluber:sessions_parked_total']:.0f} sessions parked, {values['coluber:sessions_restored_total']:.0f} came back; "
              f"memory grew by {grown >> 20} MiB", flush=True)
    for problem in problems[:10]:
        print(f"soak: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
