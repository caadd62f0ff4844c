#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What HTTP costs: the server against the library on the same requests, in one run, in turn.

    python3 bench/server/measure.py build/coluber build/bench/server/library_first_token [--model models/asp-7m]

    first token   one request at a time; the library's from text to the first text, the server's from sending the request on
                  an open connection to the first event with text. Prompts are new each time, and the same for both.
    throughput    --streams requests at once, streamed (`coluber bench serve`), against `coluber batch` over the same file with
                  as many sequences; output tokens a second. The client runs beside the server: give the machine a core for it.

One thread computes in each. Medians, with the lowest and the highest.
"""
import argparse
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = "time year people way day man thing woman life child world school state family group country hand part place case".split()
LIMITS = ["--threads", "1", "--max-num-seqs", "64", "--max-model-len", "2048"]


def spread(values):
    return f"{statistics.median(values):.3f} [{min(values):.3f} to {max(values):.3f}]"


class Server:
    def __init__(self, program, model, limits=LIMITS):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", *limits], stderr=self.errors)
        while True:
            self.errors.seek(0)
            found = re.search(r"at (http://127\.0\.0\.1:(\d+))", self.errors.read().decode())
            if found:
                self.url, self.port = found[1], int(found[2])
                return
            if self.process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def receive(peer, data):
    """`data` of an answer with what comes next of it; nothing is measured where a server refuses or goes away."""
    piece = peer.recv(1 << 16)
    data += piece
    if not piece or not data.startswith(b"HTTP/1.1 200"):
        sys.exit(f"expected an answer with 200, found: {data.decode(errors='replace')[:500]}")
    return data


def http_first_token(peer, prompt, tokens):
    """Milliseconds to the first event with text, and to the end of the answer."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    start = time.perf_counter()
    peer.sendall(request)
    data, first = b"", None
    while b"0\r\n\r\n" not in data[-8:]:
        data = receive(peer, data)
        if first is None and re.search(rb'"text": ?"[^"]', data):
            first = time.perf_counter()
    return 1000 * (first - start), 1000 * (time.perf_counter() - start)


def first_tokens(server, library, args, rng):
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours, theirs = [], []
        for i in range(args.rounds + 5):
            prompt = " ".join(rng.choices(WORDS, k=args.words))
            library.stdin.write(prompt + "\n")
            library.stdin.flush()
            alone = float(library.stdout.readline().split()[0])
            over_http = http_first_token(peer, prompt, args.tokens)[0]
            if i >= 5:  # caches and pages are warm
                ours.append(alone)
                theirs.append(over_http)
    return ours, theirs


def batch_rate(args, requests, folder):
    stats = Path(folder) / "stats.json"
    output = Path(folder) / "answers.jsonl"
    output.unlink(missing_ok=True)
    subprocess.run([args.program, "batch", args.model, "--input", requests, "--output", output, "--stats", stats, *LIMITS],
                   check=True, stderr=subprocess.DEVNULL)
    return json.loads(stats.read_text())["completion_tokens_per_second"]


def server_rate(args, server, requests):
    done = subprocess.run([args.program, "bench", "serve", "--url", server.url, "--requests-file", requests, "--max-concurrency",
                           str(args.streams), "--json"], check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    if found["failed"]:
        sys.exit(f"requests failed: {found['errors']}")
    return found["output_throughput"]


def throughput(server, args, rng):
    batch, served = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.repetitions):
            requests = Path(folder) / f"requests{i}.jsonl"
            lines = [{"id": n, "prompt": " ".join(rng.choices(WORDS, k=args.words)), "max_tokens": args.stream_tokens, "temperature": 0,
                      "ignore_eos": True} for n in range(args.requests)]
            requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
            bodies = Path(folder) / f"bodies{i}.jsonl"
            bodies.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "id"}) + "\n" for line in lines))
            steps = [(batch, lambda: batch_rate(args, requests, folder)), (served, lambda: server_rate(args, server, bodies))]
            for rates, step in steps if i % 2 == 0 else reversed(steps):
                rates.append(step())
    return batch, served


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("--model", default=str(Path(__file__).resolve().parents[2] / "models" / "asp-7m"))
    parser.add_argument("--words", type=int, default=64, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=8, help="of an answer, first tokens")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--stream-tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    rng = random.Random(1)
    server = Server(args.program, args.model)
    library = subprocess.Popen([args.library, args.model, str(args.tokens)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        ours, theirs = first_tokens(server, library, args, rng)
        library.stdin.close()
        library.wait()
        print(f"first token, ms: library {spread(ours)}, HTTP {spread(theirs)}; "
              f"HTTP adds {statistics.median(b - a for a, b in zip(ours, theirs)):.3f} in the median of {len(ours)} pairs")
        batch, served = throughput(server, args, rng)
        print(f"{args.streams} streams, output tokens/s: batch {spread(batch)}, HTTP {spread(served)}; "
              f"HTTP gives {100 * statistics.median(b / a for a, b in zip(batch, served)):.1f} % in the median of {len(batch)} pairs")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
