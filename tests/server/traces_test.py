# SPDX-License-Identifier: Apache-2.0
"""Traces as a collector gets them: what they say, whose they are, and that a collector that misbehaves hurts nobody."""
import http.server
import json
import socket
import subprocess
import threading
import time
import unittest

from harness import PROGRAM, PROMPT, SECONDS, Server, completion_bytes, in_threads, read_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes OTLP over HTTP. `answers`: what it does with a request, in order, the last one for all that follow: a status, or
    "hang"; (status, headers, body) says more."""

    def __init__(self, *answers, port=0):
        self.bodies, self.requests = [], []
        self.answers = list(answers) or [200]
        self.done = threading.Event()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append((self.path, dict(self.headers)))
                answer = collector.answers.pop(0) if len(collector.answers) > 1 else collector.answers[0]
                if answer == "hang":
                    collector.done.wait()
                    return
                status, headers, text = answer if isinstance(answer, tuple) else (answer, {}, b"{}")
                if status == 200:
                    collector.bodies.append(json.loads(body))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.done.set()
        self.server.shutdown()
        self.server.server_close()

    def spans(self):
        return [span for body in list(self.bodies) for resource in body["resourceSpans"] for scope in resource["scopeSpans"]
                for span in scope["spans"]]

    def wait_for(self, count):
        """Spans, once there are so many."""
        deadline = time.monotonic() + SECONDS
        while len(self.spans()) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.spans()


def plain(value):
    kind, held = next(iter(value.items()))
    if kind == "arrayValue":
        return [plain(one) for one in held["values"]]
    return int(held) if kind == "intValue" else held


def attributes(thing):
    return {pair["key"]: plain(pair["value"]) for pair in thing["attributes"]}


def counts(server):
    return {result: server.metric(f'coluber:trace_spans_total{{result="{result}"}}') for result in ("exported", "dropped", "rejected")}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Spans(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.collector = Collector()
        cls.server = Server("--otlp-traces-endpoint", cls.collector.url, "--access-log", "json", "--api-key", "k",
                            env={"OTEL_SERVICE_NAME": "shop", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test%20bed",
                                 "OTEL_EXPORTER_OTLP_HEADERS": "x-collector-key=secret"})

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.collector.__exit__()

    def ask(self, path, body, **headers):
        """The spans of one request by name."""
        before = len(self.collector.spans())
        status, _, data = self.server.request("POST", path, body, {"authorization": "Bearer k", **headers})
        self.collector.wait_for(before + 1)
        return status, data, {span["name"]: span for span in self.collector.spans()[before:]}

    def test_a_request_is_followed_from_its_head_to_its_last_token(self):
        begun = time.time_ns()
        status, data, spans = self.ask("/v1/completions", {**PROMPT, "top_k": 5, "seed": 3}, **{
            "traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "x-request-id": "req-7"})
        ended = time.time_ns()
        self.assertEqual(status, 200)
        self.assertEqual(list(spans), ["POST /v1/completions", "prepare", "queue", "prefill", "decode"])
        whole = spans["POST /v1/completions"]
        self.assertEqual((whole["parentSpanId"], whole["kind"], whole["flags"], whole["traceState"]), (PARENT, 2, 0x301, "vendor=1"))
        at = begun
        for span in spans.values():
            self.assertEqual(span["traceId"], TRACE)
            self.assertLessEqual(int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
            self.assertLessEqual(int(span["endTimeUnixNano"]), ended)
            self.assertGreaterEqual(int(span["startTimeUnixNano"]), begun)
            if span is not whole:  # one after another, within the whole
                self.assertEqual((span["parentSpanId"], span["kind"]), (whole["spanId"], 1))
                self.assertGreaterEqual(int(span["startTimeUnixNano"]), at)
                self.assertLessEqual(int(span["endTimeUnixNano"]), int(whole["endTimeUnixNano"]))
                at = int(span["endTimeUnixNano"])
        self.assertEqual(len({span["spanId"] for span in spans.values()}), 5)
        said, answer = attributes(whole), json.loads(data)
        for key, value in {"http.request.method": "POST", "http.route": "/v1/completions", "http.response.status_code": 200,
                           "gen_ai.operation.name": "text_completion", "gen_ai.request.id": "req-7", "gen_ai.request.max_tokens": 8,
                           "gen_ai.request.top_k": 5, "gen_ai.request.seed": 3, "gen_ai.response.id": answer["id"],
                           "gen_ai.response.finish_reasons": [answer["choices"][0]["finish_reason"]],
                           "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
                           "gen_ai.usage.output_tokens": answer["usage"]["completion_tokens"]}.items():
            self.assertEqual(said[key], value, key)
        self.assertLessEqual(said["gen_ai.latency.time_in_queue"], said["gen_ai.latency.time_to_first_token"])
        self.assertNotIn("Once upon", json.dumps(self.collector.bodies))  # what was asked
        self.assertEqual(json.loads(self.server.line_of_log("req-7"))["trace_id"], TRACE)

    def test_the_collector_hears_whose_traces_they_are(self):
        self.ask("/v1/completions", PROMPT)
        said = attributes(self.collector.bodies[-1]["resourceSpans"][0]["resource"])
        self.assertEqual((said["service.name"], said["deployment.environment.name"]), ("shop", "test bed"))
        path, headers = self.collector.requests[-1]
        self.assertEqual((path, headers["Content-Type"], headers["x-collector-key"]), ("/v1/traces", "application/json", "secret"))

    def test_who_asks_for_no_trace_gets_none_and_who_says_nothing_gets_one(self):
        before = len(self.collector.spans())
        headers = {"authorization": "Bearer k"}
        for flags in ("00", "fe"):
            self.server.request("POST", "/v1/completions", PROMPT, {**headers, "traceparent": f"00-{'9' * 32}-{PARENT}-{flags}"})
        for path in ("/health", "/metrics", "/"):  # nobody wants to know
            self.server.request("GET", path)
        self.server.request("POST", "/v1/completions", PROMPT)  # without a key
        for wrong in (None, "", "00-xyz", f"00-{'0' * 32}-{PARENT}-01", "x" * 4000):
            self.server.request("POST", "/v1/completions", PROMPT, {**headers, **({} if wrong is None else {"traceparent": wrong})})
        spans = self.collector.wait_for(before + 25)[before:]
        self.assertEqual(len(spans), 25)
        self.assertEqual(len({span["traceId"] for span in spans}), 5)
        self.assertNotIn("9" * 32, {span["traceId"] for span in spans})
        self.assertEqual([span["name"] for span in spans if "parentSpanId" not in span], ["POST /v1/completions"] * 5)

    def test_every_api_is_traced(self):
        message = {"messages": [{"role": "user", "content": "Hi"}]}
        for path, body, name in (("/v1/chat/completions", {**message, "max_tokens": 2, "stream": True}, "chat"),
                                 ("/v1/embeddings", {"input": "x"}, "embeddings"),
                                 ("/v1/messages", {**message, "max_tokens": 2}, "chat"),
                                 ("/v1/responses", {"input": "x", "max_output_tokens": 2, "store": False}, "chat"),
                                 ("/api/generate", {"prompt": "x", "options": {"num_predict": 2}, "raw": True}, "text_completion")):
            status, data, spans = self.ask(path, body)
            self.assertEqual(status, 200, data)
            self.assertEqual(attributes(spans[f"POST {path}"])["gen_ai.operation.name"], name)
            self.assertIn("prefill", spans)

    def test_what_fails_says_so(self):
        status, _, spans = self.ask("/v1/completions", {**PROMPT, "strange": 1})
        self.assertEqual((status, list(spans)), (400, ["POST /v1/completions"]))
        span = spans["POST /v1/completions"]
        self.assertEqual((attributes(span)["error.type"], attributes(span)["http.response.status_code"]), ("invalid_argument", 400))
        self.assertNotIn("status", span)  # not the server's fault
        before = len(self.collector.spans())
        with self.server.connect() as peer:
            peer.sendall(completion_bytes(max_tokens=1500, stream=True, ignore_eos=True).replace(b"Host: localhost", b"Host: localhost\r\nx-api-key: k"))
            peer.recv(100)
        self.collector.wait_for(before + 1)
        gone = [span for span in self.collector.spans()[before:] if span["name"] == "POST /v1/completions"]
        self.assertEqual(attributes(gone[0])["http.response.status_code"], 499)


class Queue(unittest.TestCase):
    def test_what_a_request_waits_for_others_is_its_queue(self):
        with Collector() as collector, Server("--otlp-traces-endpoint", collector.url, "--max-num-seqs", 1) as server:
            with server.connect() as peer:
                peer.sendall(completion_bytes(max_tokens=2000, stream=True, ignore_eos=True))
                read_until(peer, b"data: ")  # it runs: what comes now waits for its end
                server.post("/v1/completions", PROMPT)
            spans = {}
            for span in collector.wait_for(10):
                begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                spans.setdefault(span["name"], []).append((begin, end))
            first_queue, second_queue = sorted(spans["queue"])
            begin, end = min(spans["decode"])
            # When an answer's end is told and when the next begins may be apart by what the machine does in between.
            slack = (end - begin) / 4
            self.assertLessEqual(first_queue[1], begin)
            self.assertLess(second_queue[0], end - slack)
            self.assertGreater(second_queue[1], end - slack)
            values = server.wait_until_idle()
            self.assertEqual(values["vllm:request_queue_time_seconds_count"], 2)
            self.assertAlmostEqual(values["vllm:request_queue_time_seconds_sum"] * 1e9,
                                   sum(ended - began for began, ended in spans["queue"]), delta=1e6)


class Misbehaviour(unittest.TestCase):
    def serve(self, url):
        return Server("--otlp-traces-endpoint", url)

    def wait_for_count(self, server, result, least):
        deadline = time.monotonic() + SECONDS
        while (found := counts(server))[result] < least and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def test_a_collector_that_is_busy_is_asked_again_and_one_that_refuses_is_not(self):
        later = (503, {"Retry-After": "1"}, b"")
        with Collector(later, 429, 200) as collector, self.serve(collector.url) as server:
            server.post("/v1/completions", PROMPT)
            self.assertEqual(self.wait_for_count(server, "exported", 5), {"exported": 5, "dropped": 0, "rejected": 0})
            self.assertEqual(len(collector.requests), 3)
            self.assertIn("status 503", server.stderr())
        refusals = [(status, {"Location": "http://127.0.0.1:9/"}, b"no") for status in (400, 404, 500, 301)]
        with Collector(*refusals, 200) as collector, self.serve(collector.url) as server:
            for asked in range(1, 5):
                server.post("/v1/completions", PROMPT)
                self.assertEqual(self.wait_for_count(server, "rejected", 5 * asked), {"exported": 0, "dropped": 0, "rejected": 5 * asked})
                self.assertEqual(len(collector.requests), asked)

    def test_what_it_says_is_read_with_care(self):
        partly = (200, {}, b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}')
        odd = [(200, {}, body) for body in (b"\xff not json" * 20000, b"[" * 100000, b'{"partialSuccess": {"rejectedSpans": -7}}',
                                            b'{"partialSuccess": {"rejectedSpans": 1e300}}', b'{"partialSuccess": 7}')]
        with Collector(partly, *odd, 200) as collector, self.serve(collector.url) as server:
            for asked in range(6):
                server.post("/v1/completions", PROMPT)
                taken = 3 + 5 * asked
                self.assertEqual(self.wait_for_count(server, "exported", taken), {"exported": taken, "dropped": 0, "rejected": 2})

    def test_a_collector_that_is_gone_comes_back(self):
        port = free_port()
        with self.serve(f"http://127.0.0.1:{port}/v1/traces") as server:
            for _ in range(3):
                self.assertEqual(server.post("/v1/completions", PROMPT)[0], 200)
            deadline = time.monotonic() + SECONDS
            while "traces do not get to" not in server.stderr() and time.monotonic() < deadline:
                time.sleep(0.02)
            with Collector(port=port) as collector:
                self.assertEqual(len(collector.wait_for(15)), 15)
                self.assertEqual(self.wait_for_count(server, "exported", 15)["dropped"], 0)
            self.assertEqual(server.stderr().count("traces do not get to"), 1)

    def test_one_that_hangs_holds_nobody_up_and_memory_stays_bounded(self):
        with Collector("hang") as collector, self.serve(collector.url) as server:
            small = {"prompt": [1], "max_tokens": 1}
            server.post("/v1/completions", small)
            deadline = time.monotonic() + SECONDS
            while not collector.requests and time.monotonic() < deadline:
                time.sleep(0.02)
            # Refused at once: what fills the queue of traces is their number.
            def refused(_):
                with server.connect() as peer:
                    for _ in range(60):
                        request = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}' * 20
                        peer.sendall(request)
                        data = b""
                        while data.count(b"HTTP/1.1 400") < 20:
                            data += peer.recv(65536)
            in_threads(4, refused)
            self.assertEqual(counts(server)["exported"], 0)
            self.assertGreater(counts(server)["dropped"], 0)
            self.assertEqual(server.post("/v1/completions", small)[0], 200)
            begun = time.monotonic()
            server.process.terminate()
            self.assertEqual(server.process.wait(SECONDS), 0)
            self.assertLess(time.monotonic() - begun, 8)

    def test_what_is_left_at_the_end_is_sent(self):
        with Collector() as collector:
            with self.serve(collector.url) as server:
                server.post("/v1/completions", PROMPT)
                server.process.terminate()
                self.assertEqual(server.process.wait(SECONDS), 0)
            self.assertEqual(len(collector.spans()), 5)

    def test_an_address_that_is_none_is_told_of_at_the_start(self):
        for wrong, env in (("localhost:4317", {}), ("grpc://localhost:4317", {}), ("http://", {}), ("https:///v1/traces", {}),
                           ("http://localhost:4318", {"OTEL_EXPORTER_OTLP_HEADERS": "nonsense"})):
            done = subprocess.run([PROGRAM, "serve", "--otlp-traces-endpoint", wrong, "--port", "0"], capture_output=True, text=True,
                                  timeout=SECONDS, check=False, env=env)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("OTEL_EXPORTER_OTLP_HEADERS" if env else wrong, done.stderr)
        with Collector() as collector, self.serve(collector.url.removesuffix("/v1/traces")) as server:
            server.post("/v1/completions", PROMPT)
            collector.wait_for(5)
            self.assertEqual(collector.requests[0][0], "/v1/traces")


if __name__ == "__main__":
    unittest.main()
