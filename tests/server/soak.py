# SPDX-License-Identifier: Apache-2.0
"""Random traffic over the server, on models of a few hundred thousand weights: whole answers, streams, tools, forms, sessions and conversations
through every API, mistakes, clients that go away at any moment or are killed (SIGKILL) as the processes that they are, and, now and then, ten
times as many requests at once as there is room for. Every answer is what the engine says alone, and at the end nothing is left behind.

    python3 tests/server/soak.py     # ends after COLUBER_SOAK_SECONDS (60) or COLUBER_SOAK_REQUESTS (1,000,000), whichever comes first;
                                     # COLUBER_SOAK_CLIENTS (6), COLUBER_TEST_SEED

Only the standard library is used.
"""
import collections
import json
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing.sharedctypes import RawValue

from harness import SANITIZED, SECONDS, Server
from soak_cases import SERVING, Cases
from soak_client import OTHERS, ROUTES, STATUSES, Client, Counts
from tiny_model import make_tiny_model
from tools_test import TEMPLATE

SEED = int(os.environ.get("COLUBER_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
DURATION = float(os.environ.get("COLUBER_SOAK_SECONDS", 60))
REQUESTS = int(os.environ.get("COLUBER_SOAK_REQUESTS", 1000000))
CLIENTS = int(os.environ.get("COLUBER_SOAK_CLIENTS", 6))
VICTIMS = 2  # clients that are killed again and again
FAMILIES = ("jamba_bf16", "mamba2", "qwen3_next_bf16", "lfm2")
ROOM = 16  # requests that run or wait; each surge brings ten times as many
LIFE_S = 0.4  # of a victim, at most
MEMORY_GROWTH = 64 << 20
ANSWERS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate")


class Traffic:
    def __init__(self, server, cases, folder):
        self.server, self.cases = server, cases
        self.wrong_path = f"{folder}/wrong"
        self.wrong = os.open(self.wrong_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.stop = RawValue("b", 0)
        self.counts = [Counts() for _ in range(CLIENTS + VICTIMS)]
        self.own = Counts()  # of this process
        self.killed, self.sessions_left = 0, 0

    def tell(self, text):
        os.write(self.wrong, (text.replace("\n", "\\n") + "\n").encode())
        self.stop.value = 1

    def problems(self):
        with open(self.wrong_path, encoding="utf-8") as file:
            return file.read().splitlines()

    def start(self, number):
        process = os.fork()
        if process:
            return process
        try:
            client = Client(self.server.port, self.cases, f"key{number}", self.counts[number], self.tell, ROOM)
            client.run(lambda: not self.stop.value)
        finally:
            os._exit(0)  # pylint: disable=protected-access

    def total(self):
        """({(route, status): answers}, {name: number})"""
        answers, others = collections.Counter(), collections.Counter()
        for counts in (*self.counts, self.own):
            answers.update(counts.by_answer())
            others.update(counts.by_name())
        return answers, others

    def ask(self, method, path, route, key):
        while True:
            self.own.add("sent")
            status, _, data = self.server.request(method, path, headers={"X-Api-Key": key})
            self.own.answered(route, status)
            if status != 429:
                return status, json.loads(data)
            time.sleep(0.005)

    def bury(self, number):
        """Ends what a killed client has left: each of its sessions is soon nobody's."""
        key, deadline = f"key{number}", time.monotonic() + SECONDS
        while left := self.ask("GET", "/v1/sessions", "/v1/sessions", key)[1]["data"]:
            for session in left:
                status, _ = self.ask("DELETE", f"/v1/sessions/{session['id']}", "/v1/sessions/{id}", key)
                self.sessions_left += status == 200
            if time.monotonic() > deadline:
                self.tell(f"sessions of a killed client stay: {left}")
                return
            # Requests of the client that were on their way may make one more.
            time.sleep(0.005)

    def run(self, seconds, requests):
        dice, deadline = random.Random(SEED), time.monotonic() + seconds
        clients = [self.start(number) for number in range(CLIENTS)]
        victims = {number: self.start(number) for number in range(CLIENTS, CLIENTS + VICTIMS)}
        while not self.stop.value:
            number = dice.choice(list(victims))
            time.sleep(dice.random() * LIFE_S / VICTIMS)
            os.kill(victims[number], signal.SIGKILL)
            os.waitpid(victims[number], 0)
            self.killed += 1
            self.bury(number)
            victims[number] = self.start(number)
            if time.monotonic() > deadline or sum(self.total()[0].values()) >= requests:
                self.stop.value = 1
        for process in (*clients, *victims.values()):
            os.waitpid(process, 0)
        for number in victims:
            self.bury(number)


def settled(server, descriptors):
    """The metrics when nothing is going on any more, and what is wrong with them."""
    values, problems = server.wait_until_idle(), []
    deadline = time.monotonic() + 30
    while server.descriptors() > descriptors + 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    if server.descriptors() > descriptors + 4:
        problems.append(f"{server.descriptors()} descriptors after, {descriptors} before")
    for name in ("coluber:leaked_slots", "coluber:broken_states_total", "coluber:non_finite_requests_total", "coluber:http_timeouts_total"):
        if values[name] != 0:
            problems.append(f"{name} is {values[name]}")
    return values, problems


def uneven(values, answers, others, killed, before):
    """What does not add up between what the server counted and what its clients did."""
    problems, unseen = [], 0
    may_be_unseen = others["left"] + killed * 10 * ROOM  # who was killed in the middle of a surge
    for route in ROUTES:
        for status in STATUSES:
            name = f'coluber:http_requests_total{{route="{route}",status="{status}"}}'
            counted = values.get(name, 0) - before.get(name, 0)
            if counted < answers[route, status]:
                problems.append(f"{name} is {counted}, and clients were given {answers[route, status]}")
            unseen += counted - answers[route, status]
    if unseen > may_be_unseen:
        problems.append(f"{unseen} answers that nobody asked for")
    made = sum(values.get(f'coluber:http_requests_total{{route="{route}",status="200"}}', 0) for route in ANSWERS)
    ended = sum(values[f'vllm:request_success_total{{finished_reason="{reason}"}}'] for reason in ("stop", "length"))
    if made != ended:
        problems.append(f"{made} answers were given and {ended} ended")
    return problems


def traffic(family, seconds, requests):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("model", "sessions"):
            os.mkdir(f"{folder}/{name}")
        model = make_tiny_model(family, f"{folder}/model", TEMPLATE)
        cases = Cases(model, random.Random(SEED))
        keys = [word for number in range(CLIENTS + VICTIMS) for word in ("--api-key", f"key{number}")]
        # Memory for a few sessions only: the others are parked and come back.
        with Server("--max-num-seqs", ROOM // 2, "--max-queue", ROOM // 2, "--session-dir", f"{folder}/sessions", "--max-session-bytes", "64KiB", "--kv-cache-memory-bytes", "4MiB",
                    "--max-sessions", 64, *SERVING, *keys, model=model) as server:
            running = Traffic(server, cases, folder)
            for case in cases.all[:100]:
                server.request("POST", case.path, case.body, headers={"X-Api-Key": "key0"})
            before, descriptors = server.metrics(), server.descriptors()
            begin = time.monotonic()
            running.run(min(seconds, 5), requests)  # until memory is what it is under load
            memory = server.memory_bytes()
            running.stop.value = 0
            if not running.problems():
                running.run(seconds - (time.monotonic() - begin), requests)
            took = time.monotonic() - begin
            values, problems = settled(server, descriptors)
            answers, others = running.total()
            problems = running.problems() + problems + uneven(values, answers, others, running.killed, before)
            for number in range(CLIENTS + VICTIMS):
                if left := running.ask("GET", "/v1/sessions", "/v1/sessions", f"key{number}")[1]["data"]:
                    problems.append(f"sessions are left: {left[:3]}")
            grown = server.memory_bytes() - memory
            if grown > MEMORY_GROWTH and not SANITIZED:
                problems.append(f"memory grew by {grown >> 20} MiB")
            report(family, took, answers, others, running, values, grown)
    for problem in problems[:10]:
        print(f"soak: {problem}", file=sys.stderr)
    return sum(answers.values()), not problems


def report(family, took, answers, others, running, values, grown):
    by_status = collections.Counter()
    for (_, status), number in answers.items():
        by_status[status] += number
    said = ", ".join(f"{number} {name}" for name, number in others.items())
    print(f"{family}: {sum(answers.values())} answers in {took:.0f} s, {dict(by_status)}; {said}; {running.killed} clients killed, "
          f"{running.sessions_left} sessions of theirs ended; {values['coluber:sessions_parked_total']:.0f} sessions parked, "
          f"{values['coluber:sessions_restored_total']:.0f} back; memory grew by {grown / 2**20:.1f} MiB", flush=True)


def main():
    print(f"seed {SEED}", flush=True)
    done, well = 0, True
    for i, family in enumerate(FAMILIES):
        answered, fine = traffic(family, DURATION / len(FAMILIES), (REQUESTS - done) // (len(FAMILIES) - i))
        done, well = done + answered, well and fine
    print(f"{done} answers", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
