# SPDX-License-Identifier: Apache-2.0
"""One client of the random traffic, in a process of its own that may be killed at any moment: what it has seen stands in memory that it
shares with who started it. Plain sockets, for the client must be faster than the server.
"""
import json
import os
import random
import socket
import struct
import time
from multiprocessing.sharedctypes import RawArray

from harness import SECONDS, http_bytes

ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate", "/v1/embeddings", "/tokenize",
          "/detokenize", "/v1/sessions", "/v1/sessions/{id}", "/v1/sessions/{id}/fork", "/v1/sessions/{id}/rollback", "/v1/sessions/{id}/save",
          "/v1/responses/{id}")
STATUSES = (200, 400, 404, 409, 429)
OTHERS = ("sent", "left", "surges", "surged", "whole", "streams", "tools", "forms", "sessions", "follow_ups", "mistakes", "piled", "away")
MISTAKES = (("/v1/completions", b"{"), ("/v1/completions", b'{"prompt":"a","n":1000000000}'), ("/v1/responses", b'{"input":1}'), ("/v1/messages", b"{}"),
            ("/api/chat", b'{"messages":[1]}'), ("/v1/sessions", b'{"file":"../x"}'), ("/v1/completions", b"[" * 10000),
            ("/v1/chat/completions", b'{"messages":[{"role":"user","content":"a"}],"guided_regex":"("}'),
            ("/v1/chat/completions", b'{"messages":[{"role":"user","content":"a"}],"tool_choice":"required"}'),
            ("/v1/embeddings", b'{"input":"a","dimensions":-1}'))


class Counts:
    """Of one client; written by it, read by who started it."""

    def __init__(self):
        self.answers = RawArray("q", len(ROUTES) * len(STATUSES))
        self.others = RawArray("q", len(OTHERS))

    def answered(self, path, status):
        self.answers[ROUTES.index(path) * len(STATUSES) + STATUSES.index(status)] += 1

    def add(self, name, number=1):
        self.others[OTHERS.index(name)] += number

    def by_answer(self):
        return {(route, status): self.answers[r * len(STATUSES) + s] for r, route in enumerate(ROUTES) for s, status in enumerate(STATUSES)}

    def by_name(self):
        return dict(zip(OTHERS, self.others))


class Wire:
    """A connection that is kept while it can be."""

    def __init__(self, port):
        self.port, self.peer, self.data = port, None, b""

    def send(self, data):
        if self.peer is None:
            self.peer, self.data = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS), b""
            self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer.sendall(data)

    def close(self):
        if self.peer is not None:
            self.peer.close()
        self.peer = None

    def _until(self, mark, begin=0):
        while (at := self.data.find(mark, begin)) < 0:
            self._more()
        return at

    def _more(self):
        part = self.peer.recv(65536)
        if not part:
            raise ConnectionError(f"the server closed in mid-answer, after {self.data[:200]!r}")
        self.data += part

    def _take(self, number):
        while len(self.data) < number:
            self._more()
        taken, self.data = self.data[:number], self.data[number:]
        return taken

    def receive(self):
        """(status, head, body)"""
        head = self._take(self._until(b"\r\n\r\n") + 4)
        small = head.lower()
        if b"transfer-encoding: chunked" in small:
            body = b""
            while size := int(self._take(self._until(b"\r\n") + 2), 16):
                body += self._take(size + 2)[:-2]
            self._take(2)
        else:
            at = small.index(b"content-length: ") + 16
            body = self._take(int(small[at:small.index(b"\r", at)]))
        if b"connection: close" in small:
            self.close()
        return int(head[9:12]), head, body


class Client:
    def __init__(self, port, cases, key, counts, tell, room):
        """`tell` is called with what is wrong; the server has places for `room` requests."""
        self.port, self.cases, self.key, self.counts, self.tell, self.room = port, cases, key, counts, tell, room
        self.dice, self.wire = random.Random(), Wire(port)

    # ---- asking

    def checked(self, path, wanted, status, head, body):
        """Whether it was answered: not where the server has too much to do."""
        self.counts.answered(path, status)
        if status == 429:
            if b"Retry-After" not in head:
                self.tell(f"{path}: 429 without Retry-After")
            return False
        if status != wanted:
            self.tell(f"{path}: {status} instead of {wanted}: {body[:300]}")
            return False
        return True

    def say(self, data):
        self.counts.add("sent")
        self.wire.send(data)

    def check(self, case, status, head, body):
        if not self.checked(case.path, 200, status, head, body):
            return False
        found = case.read(body)
        if found != case.expected:
            self.tell(f"{case.path} {case.body[:300]}: {found!r} instead of {case.expected!r}")
        self.counts.add("streams" if case.streams else "whole")
        if b'"tools"' in case.body:
            self.counts.add("tools")
        elif b'"guided_' in case.body or b'"structured_outputs"' in case.body or b'"response_format"' in case.body:
            self.counts.add("forms")
        return True

    def ask(self):
        case = self.dice.choice(self.cases.all)
        self.say(case.bytes_of(self.key))
        if not self.check(case, *self.wire.receive()):
            time.sleep(0.005 * self.dice.random())
        if self.dice.random() < 0.02:
            self.wire.close()

    def pile(self):
        """Several in one write."""
        cases = self.dice.choices(self.cases.all, k=self.dice.randrange(2, 6))
        for case in cases[1:]:
            self.counts.add("sent")
        self.say(b"".join(case.bytes_of(self.key) for case in cases))
        for case in cases:
            self.check(case, *self.wire.receive())
        self.counts.add("piled", len(cases))

    def surge(self):
        """Ten times as many at once as the server has room for."""
        cases = self.dice.choices(self.cases.all, k=10 * self.room)
        wires = [Wire(self.port) for _ in cases]
        self.counts.add("surges")
        for case, wire in zip(cases, wires):
            self.counts.add("sent")
            wire.send(case.bytes_of(self.key))
        for case, wire in zip(cases, wires):
            self.check(case, *wire.receive())
            wire.close()
        self.counts.add("surged", len(cases))

    def until_taken(self, method, path, route, body=None):
        while True:
            self.say(http_bytes(method, path, b"" if body is None else json.dumps(body).encode(), f"X-Api-Key: {self.key}"))
            status, head, data = self.wire.receive()
            if self.checked(route, 200, status, head, data):
                return json.loads(data)
            if status != 429:
                raise RuntimeError("a session cannot go on")
            time.sleep(0.01 + 0.02 * self.dice.random())

    # ---- sessions

    def go_on(self, session, ids, wanted):
        answer = self.until_taken("POST", "/v1/completions", "/v1/completions", {
            "session_id": session, "prompt": ids, "max_tokens": 4, "temperature": 0, "ignore_eos": True})
        if answer["choices"][0]["text"] != wanted:
            self.tell(f"a session that goes on with {ids}: {answer} instead of {wanted!r}")
        return answer["coluber"]["session"]["tokens"]

    def end(self, session):
        self.until_taken("DELETE", f"/v1/sessions/{session}", "/v1/sessions/{id}")

    def session(self):
        begin, turn, second, expected, then = self.dice.choice(self.cases.sessions)
        session = self.until_taken("POST", "/v1/sessions", "/v1/sessions", {"prompt": begin})["id"]
        path, route = f"/v1/sessions/{session}", "/v1/sessions/{id}"
        tokens = self.go_on(session, turn, expected)
        way = self.dice.random()
        if way < 0.4:
            fork = self.until_taken("POST", path + "/fork", route + "/fork", {})["id"]
            self.go_on(fork, second, then)
            self.end(fork)
        elif way < 0.6:
            self.until_taken("POST", path + "/save", route + "/save", {"file": "kept"})
            loaded = self.until_taken("POST", "/v1/sessions", "/v1/sessions", {"file": "kept"})["id"]
            self.go_on(loaded, second, then)
            self.end(loaded)
        self.go_on(session, second, then)
        if self.dice.random() < 0.5:
            self.until_taken("POST", path + "/rollback", route + "/rollback", {"tokens": tokens})
            self.go_on(session, second, then)
        self.end(session)
        self.counts.add("sessions")

    def follow_up(self):
        """An answer of /v1/responses, and another that goes on from it."""
        first, answer, second, then = self.dice.choice(self.cases.follow_ups)
        ask = {"temperature": 0, "max_output_tokens": 4}
        made = []
        for text, previous, wanted in ((first, None, answer), (second, True, then)):
            body = {**ask, "input": text, **({"previous_response_id": made[-1]} if previous else {})}
            said = self.until_taken("POST", "/v1/responses", "/v1/responses", body)
            made.append(said["id"])
            if said["output"][0]["content"][0]["text"] != wanted:
                self.tell(f"{body}: {said} instead of {wanted!r}")
        for response in made:
            self.until_taken("DELETE", f"/v1/responses/{response}", "/v1/responses/{id}")
        self.counts.add("follow_ups")

    # ---- harm

    def mistake(self):
        path, body = self.dice.choice(MISTAKES)
        self.say(http_bytes("POST", path, body, f"X-Api-Key: {self.key}"))
        self.checked(path, 400, *self.wire.receive())
        self.counts.add("mistakes")

    def go_away(self):
        """At any moment of a request or its answer."""
        case = self.dice.choice(self.cases.all)
        data = case.bytes_of(self.key)
        if self.dice.random() < 0.6:
            body = {"prompt": "On and on", "max_tokens": 300, "ignore_eos": True, "stream": self.dice.random() < 0.7, "n": self.dice.choice((1, 1, 3))}
            data = http_bytes("POST", "/v1/completions", json.dumps(body).encode(), f"X-Api-Key: {self.key}")
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as peer:
            self.counts.add("sent")
            self.counts.add("left")
            peer.sendall(data[:self.dice.choice((len(data), len(data), self.dice.randrange(len(data))))])
            if self.dice.random() < 0.3:
                peer.shutdown(socket.SHUT_WR)
            time.sleep(self.dice.random() * 0.01)
            if self.dice.random() < 0.5:
                peer.settimeout(0.05)
                try:
                    peer.recv(self.dice.choice((1, 500)))
                except OSError:
                    pass
            if self.dice.random() < 0.5:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        self.counts.add("away")

    def run(self, goes_on):
        """Until `goes_on` says no."""
        self.dice.seed(os.urandom(8))
        ways = ((self.ask, 800), (self.pile, 40), (self.session, 30), (self.follow_up, 20), (self.mistake, 40), (self.go_away, 60), (self.surge, 3))
        while goes_on():
            way = self.dice.choices([way for way, _ in ways], [weight for _, weight in ways])[0]
            try:
                way()
            except Exception as failure:  # pylint: disable=broad-except
                self.wire.close()
                self.tell(f"{way.__name__}: {failure!r}")
                return
        self.wire.close()
