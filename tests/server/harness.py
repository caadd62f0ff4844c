# SPDX-License-Identifier: Apache-2.0
"""What the tests of the server share: starting it, talking to it over plain sockets, and seeing that it is unhurt.

The program is $COLUBER, or build/coluber below the repository's root. Only the standard library is used.
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("COLUBER", str(ROOT / "build" / "coluber"))
SANITIZED = os.environ.get("COLUBER_SANITIZE", "") != ""
SECONDS = 60
PROMPT = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


class Server:
    """A running `coluber serve`; use as a context."""

    def __init__(self, *flags, model=None, env=None, program=PROGRAM):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("COLUBER_")}
        environment.update(env or {})
        words = [program, "serve", *([str(model)] if model else []), "--threads", "1", "--kv-cache-memory-bytes", "256MiB",
                 "--max-model-len", "2048"]
        if "--unix-socket" not in flags:
            words += ["--port", "0"]
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([*words, *map(str, flags)], stderr=self.errors, env=environment)
        self.address = self._wait()
        match = re.fullmatch(r"(https?)://127\.0\.0\.1:(\d+)", self.address)
        self.port = int(match[2]) if match else None

    def stderr(self):
        # Without moving the place at which the server writes, which this descriptor shares.
        return os.pread(self.errors.fileno(), os.fstat(self.errors.fileno()).st_size, 0).decode("utf-8", "replace")

    def line_of_log(self, mark):
        """The last line with the mark; a line is written after its answer."""
        deadline = time.monotonic() + SECONDS
        while not (found := [line for line in self.stderr().splitlines() if mark in line]) and time.monotonic() < deadline:
            time.sleep(0.01)
        return found[-1]

    def _wait(self):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"serving '.*' at (\S+)", self.stderr())
            if found:
                return found[1]
            time.sleep(0.02)
        text = self.stderr()
        self.__exit__()
        raise RuntimeError(f"the server did not start: {text}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.errors.close()

    # ---- requests

    def request(self, method, path, body=None, headers=None, timeout=SECONDS):
        """(status, headers, bytes)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def post(self, path, body, **kwargs):
        status, _, data = self.request("POST", path, body, **kwargs)
        return status, json.loads(data)

    def get(self, path, **kwargs):
        status, _, data = self.request("GET", path, **kwargs)
        return status, json.loads(data)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def metrics(self):
        """{"name{labels}": value}, without the label of the model."""
        _, _, data = self.request("GET", "/metrics")
        values = {}
        for line in data.decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[re.sub(r'model_name="[^"]*",?|,?model_name="[^"]*"', "", name).replace("{}", "")] = float(value)
        return values

    def metric(self, name):
        return sum(value for key, value in self.metrics().items() if key == name or key.startswith(name + "{"))

    def memory_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def wait_until_idle(self, seconds=SECONDS):
        """Until nothing runs and nothing waits: what clients left behind has been cleaned up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            values = self.metrics()
            busy = [key for key in ("vllm:num_requests_running", "vllm:num_requests_waiting", "coluber:requests_in_flight")
                    if values.get(key, 0) != 0]
            if not busy:
                return values
            time.sleep(0.02)
        raise AssertionError(f"still busy: {busy}")


def is_refused_for_lack_of_grammars(server):
    """Whether the program was built where XGrammar could not be downloaded."""
    status, answer = server.post("/v1/completions", {**PROMPT, "guided_regex": "a"})
    return status == 400 and "COLUBER_GRAMMAR" in answer["error"]["message"]


def http_bytes(method, path, body=b"", *headers):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def completion_bytes(**fields):
    return http_bytes("POST", "/v1/completions", json.dumps({**PROMPT, **fields}).encode())


def read_all(peer, seconds=SECONDS):
    """Until the server closes."""
    peer.settimeout(seconds)
    data = b""
    try:
        while part := peer.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def read_until(peer, mark, seconds=SECONDS):
    peer.settimeout(seconds)
    data = b""
    while mark not in data:
        part = peer.recv(65536)
        if not part:
            break
        data += part
    return data


def in_threads(count, work):
    """Runs work(i) in threads; the first exception comes out."""
    failures = []

    def run(i):
        try:
            work(i)
        except BaseException as failure:  # pylint: disable=broad-except
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
