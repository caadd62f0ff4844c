#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What many clients cost the server, on the one thread that has their connections.

    python3 bench/server/crowd.py build/coluber [--model models/asp-7m]

    streams       --streams answers at once; the processor's time of the connections' thread for each token, against the time of the
                  thread that computes. 1 stream too, where a step is shortest for what it gives.
    neighbours    how long a request of --tokens tokens takes beside clients that do harm, and without them, in turn: idle connections,
                  heads and bodies that do not come to their end, readers of one byte a second.

One thread computes. Medians, with the lowest and the highest.
"""
import argparse
import json
import os
import socket
import statistics
import threading
import time
import urllib.request
from pathlib import Path

from measure import Server, receive, spread

ASK = {"temperature": 0, "ignore_eos": True}


def request_bytes(**fields):
    body = json.dumps({**ASK, **fields}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def connect(server, receive_bytes=None):
    peer = socket.socket()
    if receive_bytes:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    peer.connect(("127.0.0.1", server.port))
    return peer


def processor_seconds(server):
    """Of the thread of the connections, which is the first, and of all others."""
    times = {int(task): int(Path(f"/proc/{server.process.pid}/task/{task}/schedstat").read_text().split()[0]) / 1e9
             for task in os.listdir(f"/proc/{server.process.pid}/task")}
    first = times.pop(server.process.pid)
    return first, sum(times.values())


def stream(server, count, tokens):
    """(seconds of the connections' thread for a token, seconds of the computing threads for a token), all answers read to their end."""
    peers = [connect(server) for _ in range(count)]
    before = processor_seconds(server)
    for i, peer in enumerate(peers):
        peer.sendall(request_bytes(prompt=[10 + i % 100, 7], max_tokens=tokens, stream=True))
    got = 0
    for peer in peers:
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data = receive(peer, data)
        peer.close()
        got += tokens
    after = processor_seconds(server)
    return [(b - a) / got for a, b in zip(before, after)]


def measure_streams(args):
    for count in (1, args.streams):
        limits = ["--threads", "1", "--max-num-seqs", str(count), "--max-num-batched-tokens", str(max(512, 2 * count))]
        server = Server(args.program, args.model, limits)
        try:
            stream(server, count, 4)
            found = [stream(server, count, args.stream_tokens if count > 1 else 20 * args.stream_tokens) for _ in range(args.repetitions)]
        finally:
            server.stop()
        ours, steps = ([1e6 * one[i] for one in found] for i in (0, 1))
        print(f"{count} streams, us of the processor for a token: connections {spread(ours)}, the step {spread(steps)}; "
              f"{100 * statistics.median(a / b for a, b in zip(ours, steps)):.1f} % in the median of {len(found)} runs", flush=True)


# ---- neighbours

def idle(server, count):
    return [connect(server) for _ in range(count)]


def unfinished(server, count):
    peers = idle(server, count)
    for i, peer in enumerate(peers):
        peer.sendall(b"GET /health HT" if i % 2 else request_bytes(prompt="a")[:-3])
    return peers


def slow_readers(server, count):
    """Whose answers wait in the buffers between, as far as these take them."""
    peers = [connect(server, 4096) for _ in range(count)]
    for peer in peers:
        peer.sendall(request_bytes(prompt="a", max_tokens=1) * 40)

    def read():
        while all(peer.fileno() >= 0 for peer in peers):
            for peer in peers:
                try:
                    peer.recv(1)
                except OSError:
                    return
            time.sleep(1)

    threading.Thread(target=read, daemon=True).start()
    before, now = -1, answered(server)
    while now != before:  # until what they asked for no longer computes, but waits for them
        time.sleep(1)
        before, now = now, answered(server)
    return peers


def answered(server):
    with urllib.request.urlopen(f"{server.url}/metrics") as metrics:
        return sum(float(line.split()[-1]) for line in metrics.read().decode().splitlines() if line.startswith("vllm:request_success_total"))


def latency(server, args):
    times = []
    for i in range(args.rounds):
        with connect(server) as peer:
            begin = time.perf_counter()
            peer.sendall(request_bytes(prompt=[10 + i, 5, 9], max_tokens=args.tokens))
            data = b""
            while b"\r\n\r\n{" not in data or not data.endswith(b"}"):
                data = receive(peer, data)
            times.append(1e3 * (time.perf_counter() - begin))
    return times


def measure_neighbours(args):
    server = Server(args.program, args.model, ["--threads", "1", "--header-timeout", "600", "--body-timeout", "600", "--idle-timeout", "600",
                                               "--stream-write-timeout", "600"])
    try:
        latency(server, args)
        for name, make, count in (("idle connections", idle, 5000), ("unfinished requests", unfinished, 2000), ("readers of a byte a second", slow_readers, 200)):
            alone, beside = [], []
            for _ in range(args.repetitions):
                alone.append(statistics.median(latency(server, args)))
                peers = make(server, count)
                beside.append(statistics.median(latency(server, args)))
                for peer in peers:
                    peer.close()
                time.sleep(0.3)
            print(f"{count} {name}: a request takes {spread(beside)} ms beside them and {spread(alone)} ms without; "
                  f"{statistics.median(b / a for a, b in zip(alone, beside)):.2f} times in the median of {len(alone)} pairs", flush=True)
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--model", default=str(Path(__file__).resolve().parents[2] / "models" / "asp-7m"))
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--stream-tokens", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8, help="of a request beside others")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    measure_streams(args)
    measure_neighbours(args)


if __name__ == "__main__":
    main()
