# SPDX-License-Identifier: Apache-2.0
"""Clients that mean harm, or are broken: each gets a clear error or a closed connection, and nobody else notices."""
import json
import os
import random
import resource
import socket
import struct
import time
import unittest

from harness import PROMPT, SANITIZED, Server, completion_bytes, http_bytes, in_threads, read_all, read_until

SEED = int(os.environ.get("COLUBER_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
MEMORY_GROWTH = 200 << 20


def reset(peer):
    """Closes with RST instead of FIN."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


class Abuse(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--header-timeout", "1", "--body-timeout", "1", "--stream-write-timeout", "1", "--idle-timeout", "5",
                            "--max-num-seqs", 4)
        cls.expected = cls.server.post("/v1/completions", PROMPT)[1]["choices"][0]["text"]

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def setUp(self):
        self.memory = self.server.memory_bytes()

    def tearDown(self):
        """Unhurt: it answers rightly, nothing is left behind."""
        self.assertIsNone(self.server.process.poll(), self.server.stderr())
        values = self.server.wait_until_idle(20)
        self.assertEqual(values["coluber:leaked_slots"], 0)
        status, answer = self.server.post("/v1/completions", PROMPT)
        self.assertEqual((status, answer["choices"][0]["text"]), (200, self.expected))
        if not SANITIZED:
            self.assertLess(self.server.memory_bytes() - self.memory, MEMORY_GROWTH)

    def answer_to(self, data):
        with self.server.connect() as peer:
            try:
                peer.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass
            return read_all(peer, 20)

    def test_a_head_or_a_body_that_does_not_come_is_given_up(self):
        for begun, status in ((b"GET /health HTT", b"408"), (http_bytes("POST", "/v1/completions")[:-2].replace(b": 0", b": 99") + b"\r\n{", b"408")):
            begin = time.monotonic()
            self.assertIn(status, self.answer_to(begun).split(b"\r\n")[0])
            self.assertLess(time.monotonic() - begin, 10)

    def test_slow_heads_do_not_gain_time_byte_by_byte(self):
        with self.server.connect() as peer:
            begin = time.monotonic()
            try:
                for i in range(200):
                    peer.sendall(b"GET / HTTP/1.1\r\nX: " if i == 0 else b"y")
                    time.sleep(0.05)
            except OSError:
                pass
            self.assertLess(time.monotonic() - begin, 6)

    def test_large_heads_and_bodies_are_refused_by_their_size(self):
        # The peer may be reset while it still sends: then the answer is lost, and the connection closed.
        self.assertNotIn(b" 200 ", self.answer_to(b"GET / HTTP/1.1\r\nX: " + b"y" * (10 << 20)))
        self.assertIn(b" 431 ", self.answer_to(b"GET / HTTP/1.1\r\nX: " + b"y" * (40 << 10)))
        many = b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(20000))
        self.assertIn(b" 431 ", self.answer_to(many))
        declared = http_bytes("POST", "/v1/completions", b"").replace(b"Content-Length: 0", b"Content-Length: 1000000000") + b"0123456789"
        answer = self.answer_to(declared)
        self.assertIn(b" 413 ", answer)
        self.assertIn(b"--max-request-bytes", answer)
        chunked = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        self.assertIn(b" 413 ", self.answer_to(chunked + (b"100000\r\n" + b"x" * 0x100000 + b"\r\n") * 8))

    def test_memory_stays_bounded_whatever_stands_around_chunks(self):
        for start in (b"1d;", b"1\r\na\r\n0\r\nX: ", b"0" * 60):
            head = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + start
            with self.subTest(start=start[:4]):
                self.assertIn(b" 431 ", self.answer_to(head + b"0" * (60 << 10)))
                # The peer may be reset while it still sends; then the answer is lost.
                self.assertNotIn(b" 200 ", self.answer_to(head + b"0" * (100 << 20)))

    def test_one_request_cannot_ask_for_a_hundred_thousand_answers(self):
        for fields in ({"n": 128}, {"best_of": 128}, {"n": 2, "use_beam_search": True}):
            status, answer = self.server.post("/v1/completions", {"prompt": ["a"] * 2000, "max_tokens": 1, **fields})
            self.assertEqual((status, answer["error"]["param"]), (400, "best_of" if "best_of" in fields else "n"), answer)
            self.assertIn("at most 2048", answer["error"]["message"])

    def test_what_is_no_http_is_told_so(self):
        for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(50) + b"\r\n\r\n", b"HELO there\r\n\r\n", b"\0" * 100 + b"\r\n\r\n",
                     b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\nA\0: b\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                     b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
                     b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                     b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"):
            with self.subTest(data=data[:40]):
                self.assertIn(b" 400 ", self.answer_to(data).split(b"\r\n")[0])

    def test_bodies_that_are_not_what_they_should_be_are_told_so(self):
        bodies = [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"prompt":"\xc3\x28"}', b'{"prompt":"a\0"}', b"[" * 100000, b'{"a":' * 100000,
                  b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"prompt":"a","max_tokens":1e999}',
                  b'{"prompt":"a","seed":' + b"9" * 10000 + b"}", b'{"prompt":"a","n":1000000000}', b'{"prompt":"\\ud800","max_tokens":"1"}',
                  b'{"prompt":"a","stop":[' + b'"x",' * 100000 + b'"x"]}', b'{"prompt":[' + b"1," * 3000000 + b"1]}",
                  b'{"prompt":[' + b'"x",' * 100000 + b'"x"]}', b'{"prompt":"a","logit_bias":{' + b",".join(b'"%d":101' % i for i in range(5000)) + b"}}"]
        for body in bodies:
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/responses", "/v1/messages", "/api/chat",
                         "/api/generate", "/v1/embeddings", "/v1/sessions/none/rollback"):
                with self.subTest(body=body[:40], path=path):
                    status, _, data = self.server.request("POST", path, body)
                    self.assertIn(status, (400, 404), data[:200])
                    self.assertLess(len(data), 4000)
                    self.assertIn("error", json.loads(data))

    def test_words_of_a_conversation_cannot_hurt_the_template(self):
        for text in ("{{ 7 * 7 }}", "{% for i in range(10**9) %}", "\0", "<|im_end|>" * 1000, "a" * 100000):
            status, answer = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 1})
            self.assertIn(status, (200, 400), answer)
        endless = "{% for i in range(1000000000) %}{% for j in range(1000000000) %}x{% endfor %}{% endfor %}"
        status, answer = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "chat_template": endless})
        self.assertEqual((status, answer["error"]["param"]), (400, "chat_template"))  # which is the operator's alone
        for kwargs in ({"messages": 1}, {"x": [[[]]] * 1000}, {"loop": "x"}):
            status, answer = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1,
                                                                       "chat_template_kwargs": kwargs})
            self.assertIn(status, (200, 400), answer)

    def test_bodies_of_sessions_are_checked_too(self):
        for body in (b"[]", b'{"prompt":', b'{"messages":[' + b"[" * 5000 + b"]" * 5000 + b"]}", b'{"file":"../../etc/passwd"}', b'{"session":"\xff"}',
                     b'{"session":"' + b"x" * 100000 + b'"}', b'{"prompt":[' + b"1," * 10000 + b"1]}", b'{"file":1e999}'):
            with self.subTest(body=body[:40]):
                status, _, data = self.server.request("POST", "/v1/sessions", body)
                self.assertIn(status, (400, 404), data[:200])
        for path in ("/v1/sessions/", "/v1/sessions/..", "/v1/sessions/%2e%2e/save", "/v1/sessions/a/b/c", "/v1/sessions//fork", "/v1/sessions/" + "x" * 9000):
            with self.subTest(path=path[:40]):
                self.assertIn(self.server.request("POST", path, b"{}")[0], (404, 405))

    def test_readers_of_a_byte_now_and_then_hurt_nobody(self):
        peers = []
        for _ in range(4):
            peer = self.server.connect()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.sendall(completion_bytes(max_tokens=1500, ignore_eos=True, stream=True, logprobs=5))
            peers.append(peer)
        for _ in range(10):
            for peer in peers:
                peer.settimeout(1)
                try:
                    peer.recv(1)
                except OSError:
                    pass
            self.assertEqual(self.server.post("/v1/completions", PROMPT)[1]["choices"][0]["text"], self.expected)
        for peer in peers:
            peer.close()

    def test_a_pile_of_requests_in_one_write_is_answered_in_order(self):
        requests = []
        for i in range(200):
            requests.append(completion_bytes(max_tokens=1) if i % 10 == 0 else http_bytes("GET", "/health", b"", f"X-Request-Id: n{i}"))
        requests.append(http_bytes("GET", "/version", b"", "Connection: close"))
        answer = self.answer_to(b"".join(requests))
        self.assertEqual(answer.count(b"HTTP/1.1 200"), 201)
        places = [answer.index(b"X-Request-Id: n%d\r\n" % i) for i in range(200) if i % 10]
        self.assertEqual(places, sorted(places))

    def test_everybody_at_once_at_the_same_sessions(self):
        dice = random.Random(SEED)
        sessions = [self.server.post("/v1/sessions", {"prompt": "A river"})[1]["id"] for _ in range(3)]
        wrong = []

        def one(_):
            for _ in range(15):
                session, way = dice.choice(sessions), dice.randrange(7)
                path = f"/v1/sessions/{session}"
                if way == 0:
                    status, answer = self.server.post("/v1/completions", {"session_id": session, "prompt": " on", "max_tokens": 3})
                elif way == 1:
                    status, answer = self.server.post(path + "/rollback", {"tokens": 2})
                elif way == 2:
                    status, answer = self.server.post(path + "/fork", {})
                    if status == 200:
                        sessions.append(answer["id"])
                elif way == 3:
                    status, answer = self.server.get(path)
                elif way == 4 and dice.random() < 0.3:
                    status, _, answer = self.server.request("DELETE", path)
                elif way == 5:
                    with self.server.connect() as peer:
                        peer.sendall(completion_bytes(session_id=session, prompt=" on", max_tokens=100, stream=True))
                    continue
                else:
                    status, answer = self.server.get("/v1/sessions")
                if status not in (200, 404, 409):
                    wrong.append((way, status, answer))

        with self.subTest(seed=SEED):
            in_threads(8, one)
            self.assertEqual(wrong, [])
        self.server.wait_until_idle(20)
        for session in set(sessions):
            self.assertIn(self.server.request("DELETE", f"/v1/sessions/{session}")[0], (200, 404))
        self.assertEqual(self.server.get("/v1/sessions")[1]["data"], [])

    def test_readers_that_do_not_read_are_cut(self):
        before = self.server.metric("coluber:http_timeouts_total")
        peer = self.server.connect()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Answers of a few hundred kilobytes each, which no buffer between takes all of.
        big = completion_bytes(max_tokens=400, ignore_eos=True, n=4, logprobs=20)
        try:
            peer.settimeout(20)
            for _ in range(40):
                peer.sendall(big)
        except OSError:
            pass
        deadline = time.monotonic() + 40
        while self.server.metric("coluber:http_timeouts_total") == before and time.monotonic() < deadline:
            time.sleep(0.2)
        self.assertGreater(self.server.metric("coluber:http_timeouts_total"), before)
        peer.close()

    def test_half_closed_and_reset_connections_leave_nothing(self):
        dice = random.Random(SEED)
        request = completion_bytes(max_tokens=600, ignore_eos=True, stream=True)

        def one(_):
            peer = self.server.connect()
            length = dice.choice([0, 1, 10, len(request) // 2, len(request) - 1, len(request)])
            peer.sendall(request[:length])
            if length == len(request) and dice.random() < 0.5:
                read_until(peer, b"data: ")
            else:
                time.sleep(dice.random() * 0.02)
            if dice.random() < 0.4:
                peer.shutdown(socket.SHUT_WR)
                self.assertNotIn(b"[DONE]", read_all(peer))
            (reset if dice.random() < 0.5 else socket.socket.close)(peer)

        with self.subTest(seed=SEED):
            for _ in range(4):
                in_threads(10, one)

    def test_idle_connections_cost_little_and_hurt_nobody(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        count = min(500 if SANITIZED else 5000, hard - 200)
        before = self.server.descriptors()
        peers = [self.server.connect() for _ in range(count)]
        begin = time.monotonic()
        self.assertEqual(self.server.post("/v1/completions", PROMPT)[1]["choices"][0]["text"], self.expected)
        self.assertLess(time.monotonic() - begin, 5)  # how much longer it takes is measured by bench/server/crowd.py
        self.assertGreaterEqual(self.server.metric("coluber:http_connections"), count)
        for peer in peers:
            peer.close()
        deadline = time.monotonic() + 10
        while self.server.descriptors() > before + 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertLessEqual(self.server.descriptors(), before + 5)

    def test_a_bad_request_never_hurts_another(self):
        bad = [b"{", b'{"prompt":"a","n":-1}', b"[" * 1000, b'{"prompt":[999999999]}']
        wrong = []

        def one(i):
            if i % 2:
                for _ in range(5):
                    status, _, _ = self.server.request("POST", "/v1/completions", bad[i % len(bad)])
                    if status != 400:
                        wrong.append(status)
            else:
                for _ in range(3):
                    status, answer = self.server.post("/v1/completions", PROMPT)
                    if status != 200 or answer["choices"][0]["text"] != self.expected:
                        wrong.append(answer)

        in_threads(12, one)
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
