# SPDX-License-Identifier: Apache-2.0
"""A thousand streams at once, all of them on the one thread that has the connections."""
import json
import selectors
import socket
import tempfile
import time
import unittest

from harness import SANITIZED, SECONDS, Server, completion_bytes
from tiny_model import make_tiny_model

STREAMS = 100 if SANITIZED else 1000
TOKENS = 12


class Stream:
    """One of many that are read as their bytes come."""

    def __init__(self, server, number):
        self.number, self.data = number, b""
        self.peer = socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)
        self.peer.setblocking(False)

    def take(self):
        """Whether it goes on."""
        part = self.peer.recv(65536)
        self.data += part
        return part != b"" and self.data.startswith(b"HTTP/1.1 200") and not self.data.endswith(b"0\r\n\r\n")

    def events(self):
        """Chunks of HTTP hold one event each."""
        parts = self.data.split(b"\r\n\r\n", 1)[1].split(b"data: ")[1:]
        return [part.split(b"\n\n")[0] for part in parts]

    def text(self):
        return "".join(json.loads(event)["choices"][0]["text"] for event in self.events() if event != b"[DONE]")


def body_of(number):
    return {"prompt": [10 + number % 40, 7, 300 + number % 40], "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}


class Streams(unittest.TestCase):
    def test_a_thousand_at_once_say_what_each_says_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            model = make_tiny_model("mamba2", folder, "")
            with Server("--max-num-seqs", STREAMS, "--max-num-batched-tokens", 2 * STREAMS, "--max-queue", 16, "--deterministic", model=model) as server:
                expected = [server.post("/v1/completions", body_of(number))[1]["choices"][0]["text"] for number in range(40)]
                streams = [Stream(server, number) for number in range(STREAMS)]
                ready = selectors.DefaultSelector()
                for stream in streams:
                    ready.register(stream.peer, selectors.EVENT_READ, stream)
                    stream.peer.send(completion_bytes(**body_of(stream.number), stream=True))
                deadline = time.monotonic() + SECONDS
                while ready.get_map() and time.monotonic() < deadline:
                    for key, _ in ready.select(1):
                        if not key.data.take():
                            ready.unregister(key.fileobj)
                self.assertFalse(ready.get_map(), "streams that did not end in time")
                for stream in streams:
                    stream.peer.close()
                    self.assertEqual(stream.events()[-1], b"[DONE]", stream.data[:300])
                    self.assertEqual(stream.text(), expected[stream.number % 40])
                values = server.wait_until_idle()
                self.assertEqual(values["coluber:leaked_slots"], 0)
                self.assertEqual(values['vllm:request_success_total{finished_reason="length"}'], STREAMS + 40)


if __name__ == "__main__":
    unittest.main()
