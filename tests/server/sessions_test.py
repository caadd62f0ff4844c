# SPDX-License-Identifier: Apache-2.0
"""Sessions as a resource: gone on with, forked, rolled back, saved, parked, and back after a restart."""
import json
import shutil
import signal
import tempfile
import time
import unittest
from pathlib import Path

from harness import Server, completion_bytes, in_threads, read_all, read_until
from tiny_model import make_tiny_model

TEXT = " ".join(f"The {i}th river runs to the sea." for i in range(12))
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


class Client:
    """What the tests ask of a server."""

    def __init__(self, test, server, headers=None):
        self.test, self.server, self.headers = test, server, headers or {}

    def call(self, method, path, body=None, status=200):
        code, _, data = self.server.request(method, path, body, headers=self.headers)
        self.test.assertEqual(code, status, data)
        return json.loads(data)

    def new(self, status=200, **fields):
        return self.call("POST", "/v1/sessions", fields, status)

    def get(self, session, status=200):
        return self.call("GET", f"/v1/sessions/{session}", None, status)

    def complete(self, status=200, **fields):
        return self.call("POST", "/v1/completions", {**GREEDY, **fields}, status)

    def text(self, **fields):
        return self.complete(**fields)["choices"][0]["text"]

    def wait_for(self, session, state):
        deadline = time.monotonic() + 20
        while (found := self.get(session))["state"] != state and time.monotonic() < deadline:
            time.sleep(0.02)
        self.test.assertEqual(found["state"], state)
        return found


class Sessions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs", 4)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def setUp(self):
        self.client = Client(self, self.server)

    def tearDown(self):
        self.assertEqual(self.server.wait_until_idle()["coluber:leaked_slots"], 0)

    def test_what_a_session_holds_is_not_read_again(self):
        made = self.client.new(prompt=TEXT)
        whole = self.client.complete(prompt=TEXT)
        self.assertEqual(made["tokens"], whole["usage"]["prompt_tokens"])
        self.assertEqual(made["position"], made["tokens"] - 1)
        first = self.client.complete(session_id=made["id"])
        self.assertEqual(first["choices"][0]["text"], whole["choices"][0]["text"])
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], made["tokens"] - 1)
        self.assertEqual(first["coluber"]["session"], {"id": made["id"], "tokens": made["tokens"] + 8})
        said = first["choices"][0]["text"]
        second = self.client.complete(session_id=made["id"], prompt=" And then")
        self.assertEqual(second["choices"][0]["text"], self.client.text(prompt=TEXT + said + " And then"))
        self.assertEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], made["tokens"] + 7)
        self.assertEqual(self.client.get(made["id"])["tokens"], second["usage"]["total_tokens"])

    def test_a_stream_goes_on_with_a_session_too(self):
        session = self.client.new(prompt=TEXT)["id"]
        with self.server.connect() as peer:
            peer.sendall(completion_bytes(**GREEDY, prompt=" So", session_id=session, stream=True))
            data = read_until(peer, b"[DONE]").decode()
        events = [json.loads(line[6:]) for line in data.split("\n") if line.startswith("data: {")]
        text = "".join(event["choices"][0]["text"] for event in events)
        self.assertEqual(text, self.client.text(prompt=TEXT + " So"))
        self.assertEqual(events[-1]["coluber"]["session"]["tokens"], self.client.get(session)["tokens"])

    def test_a_conversation_goes_on_turn_by_turn(self):
        def turn(text, **fields):
            return self.client.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **GREEDY, **fields})

        system = [{"role": "system", "content": "You tell stories."}]
        for opening in ({}, {"messages": system}):
            session = self.client.new(**opening)["id"]
            messages = list(opening.get("messages", []))
            for text in ("Begin.", "And then?"):
                answer = turn(text, session_id=session)
                messages.append({"role": "user", "content": text})
                whole = self.client.call("POST", "/v1/chat/completions", {"messages": messages, **GREEDY})
                self.assertEqual(answer["choices"][0]["message"]["content"], whole["choices"][0]["message"]["content"])
                self.assertEqual(answer["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"])
                messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    def test_forks_and_rollbacks_go_their_own_ways(self):
        session = self.client.new(prompt=TEXT)
        fork = self.client.call("POST", f"/v1/sessions/{session['id']}/fork")
        self.assertEqual(fork["tokens"], session["tokens"])
        one = self.client.text(session_id=session["id"], prompt=" One")
        two = self.client.text(session_id=fork["id"], prompt=" Two")
        third = self.client.new(session=session["id"])
        self.assertEqual(one, self.client.text(prompt=TEXT + " One"))
        self.assertEqual(two, self.client.text(prompt=TEXT + " Two"))
        turn = self.client.get(session["id"])["tokens"]
        self.client.text(session_id=session["id"], prompt=" More")
        for tokens, position in ((turn, turn - 1), (session["tokens"], session["tokens"] - 1), (5, 0)):
            back = self.client.call("POST", f"/v1/sessions/{session['id']}/rollback", {"tokens": tokens})
            self.assertEqual((back["tokens"], back["position"]), (tokens, position))
            if tokens == session["tokens"]:  # what was said there is said again
                self.assertEqual(self.client.text(session_id=session["id"], prompt=" One"), one)
        ids = self.client.call("POST", "/tokenize", {"prompt": TEXT})["tokens"][:5]
        self.assertEqual(self.client.text(session_id=session["id"]), self.client.text(prompt=ids))
        self.assertEqual(self.client.text(session_id=third["id"], prompt=" So"), self.client.text(prompt=TEXT + " One" + one + " So"))
        self.client.call("POST", f"/v1/sessions/{fork['id']}/rollback", {"tokens": 10**6}, 400)

    def test_a_session_is_one_requests_at_a_time(self):
        session = self.client.new(prompt=TEXT)["id"]
        with self.server.connect() as peer:
            peer.sendall(completion_bytes(prompt=" On", max_tokens=1500, ignore_eos=True, stream=True, session_id=session))
            read_until(peer, b"data: ")
            self.assertEqual(self.client.get(session)["state"], "busy")
            for path, body in (("/v1/completions", {"prompt": "x", "session_id": session}), (f"/v1/sessions/{session}/fork", {})):
                self.assertEqual(self.client.call("POST", path, body, 409)["error"]["code"], "session_busy")
            self.client.call("DELETE", f"/v1/sessions/{session}", status=409)
        # Its client has gone: it holds what was said until then, and goes on.
        held = self.client.wait_for(session, "idle")
        self.assertGreater(held["tokens"], len(TEXT.split()))
        self.assertEqual(self.client.complete(session_id=session)["usage"]["prompt_tokens"], held["tokens"])

    def test_many_sessions_at_once_say_what_each_says_alone(self):
        expected = [self.client.text(prompt=f"{TEXT} Number {i}") for i in range(8)]

        def one(i):
            session = self.client.new(prompt=TEXT)["id"]
            self.assertEqual(self.client.text(session_id=session, prompt=f" Number {i}"), expected[i])
            self.client.call("DELETE", f"/v1/sessions/{session}")
            self.client.get(session, 404)

        in_threads(8, one)

    def test_what_cannot_be_is_refused_by_name(self):
        session = self.client.new(prompt=TEXT)["id"]
        for field, value in (("n", 2), ("best_of", 2), ("echo", True), ("prompt", ["a", "b"]), ("prompt_logprobs", 1), ("cache_salt", "x"),
                             ("session_id", 7)):
            with self.subTest(field=field):
                answer = self.client.complete(400, **{"prompt": "a", "session_id": session, field: value})
                self.assertEqual(answer["error"]["param"], field)
        for fields, param in (({"prompt": "a", "file": "b"}, "prompt"), ({"prompt": ["a", "b"]}, "prompt"), ({"path": "/etc"}, "path"),
                              ({"file": "x"}, "file"), ({"messages": []}, "messages")):
            self.assertEqual(self.client.new(400, **fields)["error"]["param"], param)
        self.client.complete(404, session_id="sess_0", prompt="a")
        self.client.complete(400, session_id=session, prompt=TEXT * 100)  # too long: the session is as it was
        self.assertEqual(self.client.text(session_id=session, prompt=" One"), self.client.text(prompt=TEXT + " One"))


class SessionFiles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def test_a_restart_keeps_sessions_and_a_killed_server_those_that_were_saved(self):
        flags = ("--session-dir", self.folder.name)
        with Server(*flags) as server:
            client = Client(self, server)
            expected = client.text(prompt=TEXT + " One")
            kept, empty = client.new(prompt=TEXT), client.new(prompt=TEXT)
            client.call("POST", f"/v1/sessions/{empty['id']}/rollback", {"tokens": 3})
            refused = client.call("POST", f"/v1/sessions/{empty['id']}/save", {"file": "nothing"}, 400)
            self.assertIn("no token of the session is computed yet", refused["error"]["message"])
            opened = client.new(messages=[{"role": "user", "content": "Begin."}])["id"]
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(30), 0)
        with Server(*flags) as server:
            client = Client(self, server)
            self.assertEqual({session["state"] for session in client.call("GET", "/v1/sessions")["data"]}, {"parked"})
            answer = client.complete(session_id=kept["id"], prompt=" One")
            self.assertEqual(answer["choices"][0]["text"], expected)
            self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], kept["tokens"] - 1)
            self.assertEqual(client.complete(session_id=empty["id"], prompt=" a")["usage"]["prompt_tokens"], 4)
            chat = {"messages": [{"role": "user", "content": "More."}], "session_id": opened, **GREEDY}
            client.call("POST", "/v1/chat/completions", chat)
            client.call("POST", f"/v1/sessions/{kept['id']}/save", {"file": "river"})
            server.process.kill()
            server.process.wait()
        with Server(*flags) as server:
            client = Client(self, server)
            self.assertEqual(client.call("GET", "/v1/sessions")["data"], [])  # all had come back to memory
            loaded = client.new(file="river")
            self.assertEqual(client.text(session_id=loaded["id"]), client.text(prompt=TEXT + " One" + expected))

    def test_sessions_that_cannot_be_parked_at_the_end_are_counted(self):
        with Server("--session-dir", self.folder.name) as server:
            client = Client(self, server)
            for i in range(2):
                client.new(prompt=f"{TEXT} {i}")
            shutil.rmtree(self.path / "parked")
            (self.path / "parked").write_text("no folder")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(30), 0)
            said = server.stderr()
        self.assertEqual(said.count("a session could not be parked: "), 2, said)
        self.assertIn("sessions that could not be parked end with the server: 2\n", said)

    def test_beyond_the_limits_they_are_parked_and_come_back(self):
        with Server("--session-dir", self.folder.name, "--max-session-bytes", 1, "--max-sessions", 3) as server:
            client = Client(self, server)
            sessions = [client.new(prompt=f"{TEXT} {i}")["id"] for i in range(3)]
            self.assertEqual(client.new(429, prompt=TEXT)["error"]["code"], "too_many_sessions")
            said = [""] * 3
            for word in (" One", " Two"):
                for i, session in enumerate(sessions):
                    self.assertEqual(client.wait_for(session, "parked")["bytes"], 0)
                    said[i] += word
                    answer = client.text(session_id=session, prompt=word)
                    self.assertEqual(answer, client.text(prompt=f"{TEXT} {i}{said[i]}"))
                    said[i] += answer
            self.assertEqual(server.metrics()["coluber:sessions_restored_total"], 6)
            client.call("DELETE", f"/v1/sessions/{sessions[0]}")
            client.new(prompt=TEXT)

    def test_more_sessions_than_places_for_states_leave_room_for_requests(self):
        with Server("--session-dir", self.folder.name, "--no-enable-prefix-caching", "--max-session-checkpoints", 1) as server:
            client = Client(self, server)
            expected = client.text(prompt="Once")
            first = client.new(prompt=TEXT)["id"]
            for i in range(220):
                client.new(prompt=f"Number {i}")
            in_threads(4, lambda _: self.assertEqual(client.text(prompt="Once"), expected))
            self.assertEqual(client.get(first)["state"], "parked")
            self.assertEqual(client.text(session_id=first, prompt=" One"), client.text(prompt=TEXT + " One"))

    def test_idle_sessions_give_way_to_requests_that_need_nearly_all_memory(self):
        for files in (True, False):
            model, parked = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
            with self.subTest(files=files), model, parked:
                make_tiny_model("jamba_bf16", model.name, "")
                flags = ("--session-dir", parked.name) if files else ()
                with Server("--kv-cache-memory-bytes", "2MiB", "--max-session-bytes", "1GiB", "--no-enable-prefix-caching", "--deterministic", *flags,
                            model=model.name) as server:
                    self.fill_and_ask(Client(self, server), files)

    def fill_and_ask(self, client, files):
        prompt, large = list(range(10, 610)), {"prompt": list(range(10, 1300)), "max_tokens": 700}
        expected, after = client.text(**large), client.text(prompt=prompt + [9])
        sessions = []
        while (made := client.server.post("/v1/sessions", {"prompt": prompt}))[0] == 200 and len(sessions) < 40:
            sessions.append(made[1]["id"])
        self.assertGreater(client.server.metrics()["coluber:session_bytes"], 0)
        if not files:  # no place but memory: the client that asks is told, and the sessions stay
            self.assertEqual(made[0], 503)
            self.assertIn("sessions hold", client.complete(503, **large)["error"]["message"])
            client.call("DELETE", f"/v1/sessions/{sessions.pop()}")
            self.assertEqual(client.text(session_id=sessions[0], prompt=[9]), after)
            return
        self.assertEqual(len(sessions), 40)
        in_threads(3, lambda _: self.assertEqual(client.text(**large), expected))
        self.assertGreater(client.server.metrics()["coluber:sessions_parked_total"], 0)
        for session in sessions[::13]:
            self.assertEqual(client.text(session_id=session, prompt=[9]), after)

    def test_idle_sessions_are_parked_or_end(self):
        with Server("--session-idle-timeout", "0.2", "--session-dir", self.folder.name) as server:
            client = Client(self, server)
            session = client.new(prompt=TEXT)["id"]
            client.wait_for(session, "parked")
            self.assertEqual(client.text(session_id=session, prompt=" One"), client.text(prompt=TEXT + " One"))
        with Server("--session-idle-timeout", "0.2") as server:
            client = Client(self, server)
            session = client.new(prompt=TEXT)["id"]
            deadline = time.monotonic() + 20
            while server.request("GET", f"/v1/sessions/{session}")[0] != 404 and time.monotonic() < deadline:
                time.sleep(0.02)
            client.get(session, 404)

    def test_names_are_no_paths_and_keys_see_their_own(self):
        with Server("--session-dir", self.folder.name, "--api-key", "a", "--api-key", "b") as server:
            mine, other = (Client(self, server, {"Authorization": f"Bearer {key}"}) for key in "ab")
            session = mine.new(prompt=TEXT)["id"]
            for name in ("../x", "/etc/x", "", ".x", "a/b", "x" * 65, "a\0b", "..", 5):
                with self.subTest(name=name):
                    mine.call("POST", f"/v1/sessions/{session}/save", {"file": name}, 400)
                    mine.new(400, file=name)
            mine.call("POST", f"/v1/sessions/{session}/save", {"file": "river"})
            other.new(404, file="river")
            other.get(session, 404)
            other.complete(404, session_id=session, prompt="a")
            self.assertEqual(other.call("GET", "/v1/sessions")["data"], [])
            self.assertEqual([one["id"] for one in mine.call("GET", "/v1/sessions")["data"]], [session])
            mine.new(file="river")
            saved = next(self.path.glob("of-*/river.session"))
            saved.rename(self.path / "shared.session")  # the operator's: for all
            self.assertEqual(other.new(file="shared")["tokens"], mine.get(session)["tokens"])
            (self.path / "broken.session").write_bytes((self.path / "shared.session").read_bytes()[:-1])
            self.assertNotIn(self.folder.name, mine.new(400, file="broken")["error"]["message"])

    def test_one_server_has_the_folder(self):
        with Server("--session-dir", self.folder.name):
            with self.assertRaisesRegex(RuntimeError, "another server"):
                Server("--session-dir", self.folder.name)


if __name__ == "__main__":
    unittest.main()
