# SPDX-License-Identifier: Apache-2.0
"""`coluber bench serve`: it measures what was there to measure, on the server and on one whose times are known."""
import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from harness import PROGRAM, SECONDS, Server


def bench(url, *flags, env=None):
    words = [PROGRAM, "bench", "serve", "--url", url, *map(str, flags)]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
                          env={**os.environ, **(env or {})})


def results(url, *flags, **kwargs):
    done = bench(url, "--json", *flags, **kwargs)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


class Slow(http.server.BaseHTTPRequestHandler):
    """A server that takes its time: 60 ms to the first token, 30 ms to each further one. Every third stream breaks off."""
    protocol_version = "HTTP/1.1"
    asked = []
    breaks = False

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b'{"data":[{"id":"slow"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((time.monotonic(), self.path, request, self.headers.get("Authorization")))
        whole = not self.breaks or len(self.asked) % 3 != 0
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(5):
            time.sleep(0.06 if i == 0 else 0.03)
            text = {"delta": {"content": f"w{i} "}} if "chat" in self.path else {"text": f"w{i} "}
            self.event({"choices": [{"index": 0, **text}]})
        if whole:
            self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}})
            self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, json_value):
        # In two pieces: events do not come one a packet.
        data = f"data: {json.dumps(json_value)}\n\n".encode()
        self.chunk(data[:9])
        self.chunk(data[9:])

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


class KnownTimes(unittest.TestCase):
    def setUp(self):
        Slow.asked, Slow.breaks = [], False
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/"

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def test_it_measures_the_times_that_a_server_takes(self):
        found = results(self.url, "--requests", 6, "--max-concurrency", 2)
        for name, low in {"median_ttft_ms": 60, "median_itl_ms": 30, "median_tpot_ms": 30, "median_e2el_ms": 180}.items():
            self.assertGreater(found[name], low - 1, name)
            self.assertLess(found[name], low + 60, name)  # this machine may be busy
        self.assertEqual([found[name] for name in ("completed", "failed", "total_input_tokens", "total_cached_tokens", "total_output_tokens",
                                                   "max_concurrent_requests")], [6, 0, 42, 24, 30, 2])
        self.assertAlmostEqual(found["output_throughput"] * found["duration"], 30, places=3)
        self.assertLessEqual(found["median_e2el_ms"], found["p90_e2el_ms"])
        self.assertLessEqual(found["p90_e2el_ms"], found["p99_e2el_ms"])

    def test_streams_that_break_off_are_failed_requests(self):
        Slow.breaks = True
        found = results(self.url, "--requests", 6, "--max-concurrency", 1)
        self.assertEqual((found["completed"], found["failed"]), (4, 2))
        self.assertEqual(found["errors"], [{"message": "the stream ended without [DONE]", "count": 2}])

    def test_turns_follow_each_other_and_say_what_was_said(self):
        results(self.url, "--trace", "multi-turn", "--turns", 3, "--requests", 3, "--endpoint", "chat", "--prefix-len", 5,
                "--input-len", 4, env={"COLUBER_API_KEY": "k"})
        paths, bodies = [asked[1] for asked in Slow.asked], [asked[2] for asked in Slow.asked]
        self.assertEqual(paths, ["/v1/chat/completions"] * 3)
        self.assertEqual([[message["role"] for message in body["messages"]] for body in bodies],
                         [["system", "user"], ["system", "user", "assistant", "user"],
                          ["system", "user", "assistant", "user", "assistant", "user"]])
        self.assertEqual(bodies[1]["messages"][:2], bodies[0]["messages"])
        self.assertEqual(bodies[1]["messages"][2]["content"], "w0 w1 w2 w3 w4 ")
        self.assertEqual({asked[3] for asked in Slow.asked}, {"Bearer k"})

    def test_requests_come_at_the_rate_and_from_the_seed(self):
        flags = ("--requests", 20, "--request-rate", 100, "--output-len", 1, "--input-len", 3)
        results(self.url, *flags, "--burstiness", 1000)  # evenly
        times = [asked[0] for asked in Slow.asked]
        self.assertGreater(max(times) - min(times), 0.15)  # 19 gaps of 10 ms
        first = [asked[2]["prompt"] for asked in Slow.asked]
        Slow.asked = []
        results(self.url, *flags)
        self.assertEqual(sorted(first), sorted(asked[2]["prompt"] for asked in Slow.asked))
        Slow.asked = []
        results(self.url, *flags, "--seed", 1)
        self.assertNotEqual(sorted(first), sorted(asked[2]["prompt"] for asked in Slow.asked))


class Real(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs", 8)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_its_counts_are_those_of_the_server(self):
        before = self.server.wait_until_idle()
        found = results(self.server.address, "--trace", "shared-prefix", "--prefix-len", 80, "--input-len", 8, "--requests", 12,
                        "--output-len", 6, "--ignore-eos", "--max-concurrency", 3)
        after = self.server.wait_until_idle()
        grown = lambda name: after[name] - before.get(name, 0)
        self.assertEqual(found["total_output_tokens"], 72)
        self.assertEqual(found["total_output_tokens"], grown("vllm:generation_tokens_total"))
        self.assertEqual(found["total_input_tokens"], grown("vllm:prompt_tokens_total"))
        self.assertGreater(found["total_cached_tokens"], 0)

    def test_requests_of_a_file_are_sent_as_they_are_and_the_run_is_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            file, picture = Path(folder) / "requests.jsonl", Path(folder) / "run.svg"
            file.write_text('{"prompt": "The river", "max_tokens": 3, "ignore_eos": true}\n\n'
                            '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "ignore_eos": true}\n'
                            '{"prompt": "x", "max_tokens": 2, "top_p": 7}\n')
            done = bench(self.server.address, "--requests-file", file, "--svg", picture)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"^2 requests in .*; 1 failed")
            self.assertIn("; 5 output tokens", done.stdout)
            self.assertIn("'top_p'", done.stdout)
            self.assertEqual(len(re.findall(r'fill="#d0453a"', picture.read_text())), 2)  # the legend and the failed one
            file.write_text('{"messages": []}\n{"text": "x"}\n')
            self.assertIn("line 2", bench(self.server.address, "--requests-file", file).stderr)

    def test_what_cannot_be_is_refused(self):
        for flags, says in {("--turns", "2"): "--turns is for", ("--burstiness", "2"): "needs --request-rate",
                            ("--model", "nope"): "does not exist here"}.items():
            done = bench(self.server.address, "--requests", 1, *flags)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(says, done.stderr)
        done = bench("http://127.0.0.1:9")
        self.assertIn("is the server at --url?", done.stderr)


if __name__ == "__main__":
    unittest.main()
