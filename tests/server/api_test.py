# SPDX-License-Identifier: Apache-2.0
"""The routes and their fields, over plain HTTP."""
import http.client
import json
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from harness import PROMPT, ROOT, SECONDS, Server, completion_bytes, http_bytes, in_threads, read_all, read_until


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs", 8, "--served-model-name", "tiny", "--served-model-name", "other")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def complete(self, **fields):
        status, answer = self.server.post("/v1/completions", {**PROMPT, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, path, body, param, status=400):
        code, answer = self.server.post(path, body)
        self.assertEqual(code, status, answer)
        self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
        self.assertEqual(answer["error"]["param"], param, answer)
        return answer["error"]

    def test_the_small_routes_answer(self):
        self.assertEqual(self.server.get("/health"), (200, {"status": "ok"}))
        self.assertEqual(self.server.get("/ready"), (200, {"status": "ready"}))
        self.assertRegex(self.server.get("/version")[1]["version"], r"^\d+\.\d+\.\d+$")
        names = [model["id"] for model in self.server.get("/v1/models")[1]["data"]]
        self.assertEqual(names, ["tiny", "other"])
        self.assertEqual(self.server.get("/v1/models/other")[1]["id"], "other")
        self.assertEqual(self.server.get("/v1/models/none")[0], 404)
        self.assertEqual(self.server.get("/nowhere")[0], 404)
        self.assertEqual(self.server.get("/v1/completions")[0], 405)

    def test_a_completion_is_what_the_command_line_gives(self):
        answer = self.complete(max_tokens=12)
        alone = subprocess.run([str(self.server.process.args[0]), "run", "--raw", "-p", PROMPT["prompt"], "-n", "12", "--temperature", "0",
                                "--json"], stdout=subprocess.PIPE, check=True, timeout=SECONDS)
        self.assertEqual(answer["choices"][0]["text"], json.loads(alone.stdout)["text"])
        self.assertEqual(answer["usage"]["completion_tokens"], 12)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["model"], "tiny")

    def test_a_second_prompt_like_the_first_comes_from_the_cache(self):
        text = " ".join(f"The {i}th river runs to the sea." for i in range(40))
        cold = self.complete(prompt=text)
        warm = self.complete(prompt=text)
        self.assertEqual(cold["choices"][0]["text"], warm["choices"][0]["text"])
        cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 0)
        self.assertEqual(warm["coluber"]["cache"]["hit_tokens"], cached)
        self.assertIsNotNone(cold["coluber"]["cache"]["miss_reason"])
        salted = self.complete(prompt=text, cache_salt="mine")
        self.assertEqual(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(salted["choices"][0]["text"], cold["choices"][0]["text"])

    def events(self, path, body):
        _, headers, data = self.server.request("POST", path, {**body, "stream": True})
        self.assertIn("text/event-stream", headers["Content-Type"])
        lines = [line[6:] for line in data.decode().split("\n\n") if line]
        self.assertEqual(lines[-1], "[DONE]")
        return [json.loads(line) for line in lines[:-1]]

    def test_a_stream_says_what_the_whole_answer_says(self):
        for path, body in (("/v1/completions", {**PROMPT, "n": 3, "temperature": 1, "seed": 5, "max_tokens": 20}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell a story."}], "seed": 7,
                                                     "max_tokens": 20, "n": 2})):
            with self.subTest(path=path):
                _, whole = self.server.post(path, body)
                texts, reasons = {}, {}
                for event in self.events(path, {**body, "stream_options": {"include_usage": True}}):
                    for choice in event["choices"]:
                        piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                        texts[choice["index"]] = texts.get(choice["index"], "") + piece
                        reasons[choice["index"]] = choice["finish_reason"] or reasons.get(choice["index"])
                    usage = event.get("usage")
                for choice in whole["choices"]:
                    said = choice["message"]["content"] if "message" in choice else choice["text"]
                    self.assertEqual(texts[choice["index"]], said)
                    self.assertEqual(reasons[choice["index"]], choice["finish_reason"])
                self.assertEqual(usage["completion_tokens"], whole["usage"]["completion_tokens"])

    def test_prompts_as_text_and_ids_and_lists_of_them_agree(self):
        ids = self.server.post("/tokenize", {"prompt": PROMPT["prompt"]})[1]["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": ids})[1]["prompt"], PROMPT["prompt"])
        text = self.complete()["choices"][0]["text"]
        self.assertEqual(self.complete(prompt=ids)["choices"][0]["text"], text)
        for many in ([PROMPT["prompt"]] * 2, [ids, ids]):
            answer = self.complete(prompt=many)
            self.assertEqual([c["text"] for c in answer["choices"]], [text, text])
            self.assertEqual([c["index"] for c in answer["choices"]], [0, 1])
            self.assertEqual(answer["usage"]["prompt_tokens"], 2 * len(ids))

    def test_stop_echo_and_logprobs(self):
        text = self.complete(max_tokens=30)["choices"][0]["text"]
        word = text.split()[3]
        stopped = self.complete(max_tokens=30, stop=[word])["choices"][0]
        self.assertEqual(stopped["text"], text[:text.index(word)])
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertTrue(self.complete(echo=True)["choices"][0]["text"].startswith(PROMPT["prompt"]))
        echoed = self.complete(echo=True, logprobs=1, n=2, max_tokens=2)
        for choice in echoed["choices"]:
            self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])
            self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
            self.assertNotIn(None, choice["logprobs"]["token_logprobs"][1:])
        self.assertEqual(self.complete(echo=True, logprobs=0, max_tokens=0)["choices"][0]["text"], PROMPT["prompt"])
        self.assertEqual(self.complete(logit_bias={"5": 100}, max_tokens=2, return_token_ids=True)["choices"][0]["token_ids"], [5, 5])
        logprobs = self.complete(logprobs=2, max_tokens=5)["choices"][0]["logprobs"]
        self.assertEqual([len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")], [5] * 4)
        for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
            self.assertAlmostEqual(top[token], logprob)  # greedy: the chosen one is the likeliest
            self.assertEqual(logprob, max(top.values()))
        chat = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "logprobs": True,
                                                         "top_logprobs": 2, "max_tokens": 3, "temperature": 0})[1]
        self.assertEqual([len(t["top_logprobs"]) for t in chat["choices"][0]["logprobs"]["content"]], [2, 2, 2])

    def test_what_is_not_served_is_refused_by_name(self):
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        cases = [("/v1/completions", {**PROMPT, name: value}, name) for name, value in (
            ("temprature", 1), ("temperature", -1), ("temperature", "hot"), ("n", 0), ("n", 10**9), ("n", 1.5), ("max_tokens", 0),
            ("top_p", 2), ("stop", [""]), ("stop", ["x"] * 100), ("suffix", "s"), ("guided_json", 5), ("logprobs", 10**6),
            ("logit_bias", {"x": 1}), ("logit_bias", {"1": 1000}), ("stop_token_ids", [-1]), ("prompt", []), ("prompt", ""),
            ("prompt", [10**7]), ("prompt", {"a": 1}), ("seed", 10**30), ("tools", []), ("response_format", {"type": "xml"}),
            ("stream_options", {"include_usage": True}), ("max_completion_tokens", 5))]
        cases += [("/v1/chat/completions", {**chat, name: value}, name) for name, value in (
            ("tools", [{"type": "function", "function": {"name": "f"}}]), ("functions", []), ("chat_template", "{{ x }}"),
            ("top_logprobs", 3), ("audio", {}), ("store", True), ("best_of", 2), ("messages", []), ("messages", "hi"))]
        cases += [("/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                   "messages[0]")]
        cases += [("/v1/chat/completions", {**chat, "messages": [chat["messages"][0], {"role": role, **content}]}, "messages[1]")
                  for role in ("user", "system", "tool") for content in ({}, {"content": None})]
        for path, body, param in cases:
            with self.subTest(path=path, param=param, value=body[param.split("[")[0]]):
                error = self.refused(path, body, param)
                self.assertIn(param.split("[")[0], error["message"])
        self.refused("/v1/completions", {**PROMPT, "model": "gpt-4"}, "model", 404)
        error = self.refused("/v1/completions", {**PROMPT, "prompt": [1] * 100000}, "prompt")
        self.assertEqual(error["code"], "context_length_exceeded")
        self.refused("/v1/completions", b'{"prompt":"a","prompt":"b"}', None)

    def test_numbers_of_the_metrics_add_up(self):
        before = self.server.wait_until_idle()
        in_threads(6, lambda i: self.complete(prompt=f"Number {i}", max_tokens=4))
        after = self.server.wait_until_idle()
        grown = {name: after[name] - before.get(name, 0) for name in after}
        self.assertEqual(grown["vllm:generation_tokens_total"], 24)
        self.assertEqual(grown['vllm:request_success_total{finished_reason="length"}'], 6)
        self.assertEqual(grown["vllm:time_to_first_token_seconds_count"], 6)
        self.assertEqual(grown["vllm:e2e_request_latency_seconds_count"], 6)
        self.assertEqual(after["coluber:leaked_slots"], 0)

    def test_pipelined_requests_are_answered_in_order(self):
        with self.server.connect() as peer:
            peer.sendall(completion_bytes(max_tokens=6) + http_bytes("GET", "/version") +
                         http_bytes("GET", "/health", b"", "Connection: close"))
            data = read_all(peer)
        self.assertLess(data.index(b"text_completion"), data.index(b'"version"'))
        self.assertLess(data.index(b'"version"'), data.index(b'"status":"ok"'))

    def test_a_client_that_goes_away_frees_its_place_at_once(self):
        before = self.server.metric('vllm:request_success_total{finished_reason="abort"}')
        for stream in (True, False):
            with self.server.connect() as peer:
                peer.sendall(completion_bytes(max_tokens=1500, ignore_eos=True, stream=stream))
                if stream:
                    read_until(peer, b"data: ")
                else:
                    time.sleep(0.1)
        values = self.server.wait_until_idle(10)
        self.assertEqual(values['vllm:request_success_total{finished_reason="abort"}'] - before, 2)
        self.assertEqual(values["coluber:leaked_slots"], 0)


class Doors(unittest.TestCase):
    def test_keys_origins_and_logs(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("first-key\nsecond-key\n")
            keys.flush()
            with Server("--api-key-file", keys.name, "--allowed-origin", "https://a.example", "--access-log", "json",
                        env={"COLUBER_API_KEY": "third-key"}) as server:
                for given, status in (("first-key", 200), ("second-key", 200), ("third-key", 200), ("first-ke", 401), ("", 401),
                                      ("first-keyx", 401), ("x" * 5000, 401)):
                    with self.subTest(key=given[:20]):
                        self.assertEqual(server.get("/v1/models", headers={"Authorization": f"Bearer {given}"})[0], status)
                self.assertEqual(server.get("/health")[0], 200)
                _, headers, _ = server.request("GET", "/health", headers={"Origin": "https://a.example", "X-Request-Id": "r-1"})
                self.assertEqual(headers["Access-Control-Allow-Origin"], "https://a.example")
                self.assertEqual(headers["X-Request-Id"], "r-1")
                _, headers, _ = server.request("GET", "/health", headers={"Origin": "https://b.example", "X-Request-Id": "a b"})
                self.assertNotIn("Access-Control-Allow-Origin", headers)
                self.assertNotEqual(headers["X-Request-Id"], "a b")
                server.post("/v1/completions", {**PROMPT, "prompt": "a secret river"}, headers={"x-api-key": "first-key", "traceparent": "00-1"})
                line = json.loads(server.line_of_log("/v1/completions"))
                self.assertNotIn("secret river", server.stderr())
                self.assertEqual((line["status"], line["traceparent"]), (200, "00-1"))

    def test_a_name_that_was_rebound_to_this_machine_is_refused(self):
        own = ("127.0.0.1", "localhost", "LOCALHOST:1", "a.localhost", "[::1]:80", "127.9.9.9", None)
        foreign = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "10.0.0.1", "", "a b", "\xff")
        named = ("box.example", "Box.Example.:80", "[fd00::2]")
        flags = ("--allowed-host", "box.example", "--allowed-host", "[fd00::2]")
        for given, answered, refused in (((), own, (*foreign, *named)), (flags, (*own, *named), foreign),
                                         (("--api-key", "k"), (*own, *foreign, *named), ()),
                                         (("--api-key", "k", *flags), (*own, *named), foreign),
                                         (("--host", "0.0.0.0"), (*own, *foreign, *named), ()),
                                         (("--host", "0.0.0.0", *flags), (*own, *named), foreign)):
            with Server(*given) as server:
                port = int(server.address.rsplit(":", 1)[1])
                for host, status in [(host, 200) for host in answered] + [(host, 403) for host in refused]:
                    for path in ("/", "/health", "/metrics", "/v1/models", "/api/tags"):
                        with self.subTest(flags=given, host=host, path=path):
                            found, body = self.ask_as(port, path, host)
                            self.assertEqual(found, status)
                            if status == 403 and host == "evil.example":
                                self.assertIn("--allowed-host evil.example", body)
                                error = json.loads(body)["error"]
                                self.assertIsInstance(error, str if path == "/api/tags" else dict)

    @staticmethod
    def ask_as(port, path, host):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        try:
            connection.putrequest("GET", path, skip_host=True)
            if host is not None:
                connection.putheader("Host", host.encode("latin-1"))
            connection.putheader("Authorization", "Bearer k")
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def test_allowed_hosts_are_checked_where_they_enter(self):
        for name in ("", "http://box.example", "*", "a b", "[box]", "box:x"):
            with self.subTest(name=name):
                with self.assertRaisesRegex(RuntimeError, "--allowed-host expects"):
                    Server("--allowed-host", name)

    def test_a_full_queue_answers_at_once(self):
        with Server("--max-num-seqs", 1, "--max-queue", 1) as server:
            statuses = []

            def ask(_):
                statuses.append(server.request("POST", "/v1/completions", {**PROMPT, "max_tokens": 300, "ignore_eos": True})[:2])

            in_threads(8, ask)
            refused = [headers for status, headers in statuses if status == 429]
            self.assertEqual(len(refused) + sum(status == 200 for status, _ in statuses), 8)
            self.assertGreaterEqual(len(refused), 1)
            self.assertIn("Retry-After", refused[0])
            self.assertEqual(server.post("/v1/completions", PROMPT)[0], 200)

    def test_a_request_that_takes_too_long_is_ended(self):
        with Server("--request-timeout", "0.2") as server:
            status, answer = server.post("/v1/completions", {**PROMPT, "max_tokens": 1500, "ignore_eos": True, "n": 8})
            self.assertEqual((status, answer["error"]["code"]), (504, "timeout"))
            server.wait_until_idle(10)

    def test_a_unix_socket_and_tls_serve_too(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/coluber.sock"
            for _ in range(2):  # the second one finds what a killed server left
                with Server("--unix-socket", path) as server:
                    with socket.socket(socket.AF_UNIX) as peer:
                        peer.connect(path)
                        peer.sendall(http_bytes("GET", "/health", b"", "Connection: close"))
                        self.assertIn(b"200 OK", read_all(peer))
                    server.process.kill()
                    server.process.wait()
            made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                                   "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key", "-out",
                                   f"{folder}/cert"], stderr=subprocess.DEVNULL, check=False)
            if made.returncode != 0:
                self.skipTest("openssl could not make a certificate")
            with Server("--ssl-certfile", f"{folder}/cert", "--ssl-keyfile", f"{folder}/key") as server:
                context = ssl.create_default_context(cafile=f"{folder}/cert")
                with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as peer:
                    peer.sendall(completion_bytes(stream=True))
                    self.assertIn(b"[DONE]", read_until(peer, b"[DONE]"))
                with server.connect() as peer:  # plain HTTP to a TLS port
                    peer.sendall(http_bytes("GET", "/health"))
                    self.assertNotIn(b"200 OK", read_all(peer))

    def test_sigterm_lets_running_requests_end(self):
        with Server() as server, server.connect() as peer:
            peer.sendall(completion_bytes(max_tokens=400, ignore_eos=True, stream=True))
            head = read_until(peer, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            data = head + read_all(peer)
            self.assertIn(b"[DONE]", data)
            self.assertIn(b'"length"', data)
            self.assertEqual(server.process.wait(SECONDS), 0)

    def test_a_file_that_can_no_longer_be_read_is_told(self):
        with Server() as server:
            server.process.send_signal(signal.SIGBUS)
            self.assertGreater(server.process.wait(20), 0)
            self.assertIn("can no longer be read", server.stderr())

    def test_a_second_signal_stops_at_once(self):
        with Server("--shutdown-timeout", 600) as server, server.connect() as peer:
            peer.sendall(completion_bytes(max_tokens=1900, ignore_eos=True, stream=True, n=8))
            read_until(peer, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(20), 130)

    def test_mistakes_of_the_operator_are_told(self):
        with Server() as server, tempfile.NamedTemporaryFile() as empty:
            for flags, says in ((["--port", str(server.port)], "cannot listen"), (["--host", "no.such.host.invalid"], "no such address"),
                                (["--ssl-certfile", empty.name], "belong together"), (["--api-key-file", empty.name], "holds no key"),
                                (["--ssl-certfile", empty.name, "--ssl-keyfile", empty.name], "certificate"),
                                (["--port", "70000"], "--port")):
                with self.subTest(flags=flags):
                    done = subprocess.run([server.process.args[0], "serve", *flags], stderr=subprocess.PIPE, timeout=SECONDS)
                    self.assertGreater(done.returncode, 0)
                    self.assertIn(says, done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
