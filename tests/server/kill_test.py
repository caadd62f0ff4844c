# SPDX-License-Identifier: Apache-2.0
"""A server that is killed (SIGKILL) at any moment: what was saved loads, what was parked comes back, each at a place where it has been, whole or
not at all. COLUBER_SERVER_KILLS (6) says how often.
"""
import json
import os
import random
import tempfile
import threading
import time
import unittest
from pathlib import Path

from harness import Server
from tiny_model import make_tiny_model
from tools_test import TEMPLATE

SEED = int(os.environ.get("COLUBER_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
KILLS = int(os.environ.get("COLUBER_SERVER_KILLS", 6))
CLIENTS = 3
HOW = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
TURN = 3  # tokens of an answer


class Client:
    """Works on sessions until the server is gone, and remembers what each of them may hold: what was answered last, and what was asked since."""

    def __init__(self, server, number, dice, files):
        self.server, self.number, self.dice = server, number, dice
        self.sessions = {}  # id: [places]; a place: (tokens, tokens that are asked for and may follow)
        self.files = files  # name: [places], or with None where it may not be there yet
        self.ending = {}    # a session that is being ended
        self.failure = None

    def post(self, path, body):
        status, answer = self.server.post(path, body, timeout=20)
        if status != 200:
            raise AssertionError(f"{path}: {status} {answer}")
        return answer

    def ids(self):
        return [self.dice.randrange(10, 4000) for _ in range(self.dice.randrange(2, 30))]

    def new(self):
        ids = self.ids()
        self.sessions[self.post("/v1/sessions", {"prompt": ids})["id"]] = [(ids, 0)]

    def go_on(self, session):
        held, = self.sessions[session]
        ids = self.ids()
        self.sessions[session].append((held[0] + ids, TURN))
        answer = self.post("/v1/completions", {"session_id": session, "prompt": ids, "max_tokens": TURN, **HOW})
        self.sessions[session] = [(held[0] + ids + answer["choices"][0]["token_ids"], 0)]

    def save(self, session):
        name = f"file{self.number}{self.dice.randrange(3)}"
        self.files[name] = [*self.files.get(name, [None]), *self.sessions[session]]
        self.post(f"/v1/sessions/{session}/save", {"file": name})
        self.files[name] = list(self.sessions[session])

    def fork(self, session):
        fork = self.post(f"/v1/sessions/{session}/fork", {})["id"]
        self.sessions[fork] = list(self.sessions[session])

    def end(self, session):
        held = self.sessions.pop(session)
        self.ending = {session: held}
        self.server.request("DELETE", f"/v1/sessions/{session}", timeout=20)
        self.ending = {}

    def run(self):
        try:
            while True:
                if len(self.sessions) < 2:
                    self.new()
                session = self.dice.choice(list(self.sessions))
                self.dice.choices((self.go_on, self.save, self.fork, self.end), (5, 2, 1, 1))[0](session)
        except (OSError, json.JSONDecodeError):  # the server is gone
            pass
        except Exception as failure:  # pylint: disable=broad-except
            if self.server.process.poll() is None:
                self.failure = failure


class Kills(unittest.TestCase):
    def setUp(self):
        # Torn down in the opposite order.
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        path = Path(self.folder.name)
        (path / "model").mkdir()
        self.sessions = path / "sessions"
        self.flags = ("--session-dir", self.sessions, "--max-session-bytes", 1, "--deterministic", "--max-num-seqs", 4)
        self.model = make_tiny_model("jamba_bf16", path / "model", TEMPLATE)

    def says(self, server, ids, number):
        answer = server.post("/v1/completions", {"prompt": ids, "max_tokens": number, **HOW})[1]
        return answer["choices"][0]["token_ids"]

    def check_place(self, server, session, places):
        """It goes on as from one of the places, which its number of tokens tells apart."""
        tokens = server.get(f"/v1/sessions/{session}")[1]["tokens"]
        for ids, answered in places:
            # An answer that nobody was told of may have been cut short at any token.
            if 0 <= tokens - len(ids) <= answered:
                wanted = ids + (self.says(server, ids, tokens - len(ids)) if tokens > len(ids) else [])
                status, found = server.post("/v1/completions", {"session_id": session, "prompt": [7, 8], "max_tokens": TURN, **HOW})
                self.assertEqual(status, 200, found)
                self.assertEqual(found["choices"][0]["token_ids"], self.says(server, wanted + [7, 8], TURN))
                return wanted
        return self.fail(f"a session of {tokens} tokens, which was {[(len(ids), answered) for ids, answered in places]}")

    def check_files(self, server, files):
        """Notes which of the places they hold that they may."""
        for name, places in list(files.items()):
            status, answer = server.post("/v1/sessions", {"file": name})
            if status == 404:
                self.assertIn(None, places, f"{name} was saved and is gone")
                del files[name]
                continue
            self.assertEqual(status, 200, answer)
            files[name] = [(self.check_place(server, answer["id"], [place for place in places if place is not None]), 0)]
            self.found["files"] += 1

    def check(self, server, clients):
        """What the server before, which was killed, has left behind."""
        sessions = {}
        for client in clients:
            sessions.update({**client.sessions, **client.ending})
        listed = {session["id"]: session for session in server.get("/v1/sessions")[1]["data"]}
        for session, facts in listed.items():
            self.assertEqual(facts["state"], "parked")
            self.found["parked"] += 1
            if session in sessions:
                self.check_place(server, session, sessions[session])
            else:  # no client was told of it
                self.check_whole(server, session)
        for client in clients:
            self.check_files(server, client.files)
        for session in server.get("/v1/sessions")[1]["data"]:
            server.request("DELETE", f"/v1/sessions/{session['id']}")
        self.assertEqual(server.wait_until_idle()["coluber:leaked_slots"], 0)
        self.assertEqual(list((self.sessions / "parked").iterdir()), [])
        self.assertEqual({path.suffix for path in self.sessions.iterdir() if path.is_file()} - {".session"}, {""})  # the lock

    def check_whole(self, server, session):
        status, answer = server.post("/v1/completions", {"session_id": session, "prompt": [7], "max_tokens": 1, **HOW})
        self.assertEqual(status, 200, answer)

    def test_what_a_killed_server_has_saved_and_parked_is_there_whole(self):
        self.found = {"parked": 0, "files": 0}
        dice, clients = random.Random(SEED), []
        with self.subTest(seed=SEED):
            for number in range(KILLS + 1):
                with Server(*self.flags, model=self.model) as server:
                    self.check(server, clients)
                    if number == KILLS:
                        break
                    files = [client.files for client in clients] or [{} for _ in range(CLIENTS)]
                    clients = [Client(server, i, random.Random(dice.random()), files[i]) for i in range(CLIENTS)]
                    threads = [threading.Thread(target=client.run) for client in clients]
                    for thread in threads:
                        thread.start()
                    time.sleep(dice.random() * 0.5)
                    server.process.kill()
                    server.process.wait()
                    for thread in threads:
                        thread.join()
                    for client in clients:
                        if client.failure:
                            raise client.failure
                names = [path.name for path in self.sessions.rglob("*.session")]
                if os.environ.get("COLUBER_SERVER_KILLS"):
                    print(f"kill {number}: {len(names)} files of sessions, {self.found}", flush=True)
        self.assertGreater(self.found["parked"], 0)
        self.assertGreater(self.found["files"], 0)


if __name__ == "__main__":
    unittest.main()
