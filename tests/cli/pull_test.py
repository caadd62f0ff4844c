# SPDX-License-Identifier: Apache-2.0
"""Models from a hub: what is fetched, where it is kept, and what a hub that misbehaves does to it."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from fake_hub import COMMIT, FakeHub, git_sha1, sha256
from harness import BUILTIN, INTERRUPTED, OK, PROGRAM, USAGE, coluber, environment

# Wherever the tests run, nothing of it may turn into a proxy's, a token's or a cache's.
OWN = [name for name in os.environ if name.startswith(("HF_", "HUGGINGFACE_")) or name.lower().endswith("_proxy")]


class Pull(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        self.hub = self.enter(FakeHub())
        self.files = {"config.json": b'{"model_type": "mamba2"}', "tokenizer.json": b"{}", "README.md": b"words",
                      "model.safetensors": os.urandom(300_000), "pytorch_model.bin": b"the same again"}
        self.hub.add("org/name", self.files)

    def enter(self, hub):
        hub.__enter__()
        self.addCleanup(hub.__exit__)
        return hub

    def env(self, hub=None, **changes):
        env = environment(HF_ENDPOINT=(hub or self.hub).url, HF_HOME=str(self.home), **changes)
        for name in OWN:
            if name not in ("HF_ENDPOINT", "HF_HOME") and name not in changes:
                env.pop(name, None)
        return env

    def pull(self, *args, hub=None, **changes):
        return coluber("pull", *args, env=self.env(hub, **changes))

    def repository(self, name="org/name"):
        return self.home / "hub" / ("models--" + name.replace("/", "--"))

    def check_snapshot(self, files, name="org/name"):
        snapshot = self.repository(name) / "snapshots" / COMMIT
        found = {str(p.relative_to(snapshot)): p.read_bytes() for p in snapshot.rglob("*") if p.is_file()}
        self.assertEqual(found, files)
        self.assertEqual(list(self.repository(name).glob("blobs/*.incomplete")), [])
        return snapshot

    def needed(self):
        return {name: self.files[name] for name in ("config.json", "tokenizer.json", "model.safetensors")}

    def test_what_a_model_needs_is_fetched_into_the_layout_of_the_hub_s_own_tools(self):
        done = self.pull("org/name")
        self.assertEqual(done.code, OK, done)
        snapshot = self.check_snapshot(self.needed())
        self.assertEqual(done.out.strip(), str(snapshot))
        self.assertEqual((self.repository() / "refs" / "main").read_text(encoding="ascii"), COMMIT)
        self.assertEqual(os.readlink(snapshot / "model.safetensors"), f"../../blobs/{sha256(self.files['model.safetensors'])}")
        self.assertEqual(os.readlink(snapshot / "config.json"), f"../../blobs/{git_sha1(self.files['config.json'])}")
        again = self.pull("org/name", "--json")
        self.assertEqual(json.loads(again.out)["fetched_bytes"], 0, again)
        self.assertEqual(self.hub.count("model.safetensors"), 2, "a redirect and its target, once")

    def test_hub_tools_find_what_was_fetched_and_the_reverse(self):
        try:
            from huggingface_hub import snapshot_download
        except ImportError:
            self.skipTest("huggingface_hub is not installed")
        self.assertEqual(self.pull("org/name").code, OK)
        self.assertEqual(snapshot_download("org/name", cache_dir=self.home / "hub", local_files_only=True),
                         str(self.repository() / "snapshots" / COMMIT))

    def test_shards_are_those_of_the_index(self):
        self.hub.add("org/shards", {"config.json": b"{}", "model-00001-of-00002.safetensors": b"one", "model-00002-of-00002.safetensors": b"two",
                                    "consolidated.safetensors": b"both",
                                    "model.safetensors.index.json": json.dumps({"weight_map": {
                                        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}).encode()})
        done = self.pull("org/shards")
        self.assertEqual(done.code, OK, done)
        self.assertFalse((Path(done.out.strip()) / "consolidated.safetensors").exists())
        self.assertTrue((Path(done.out.strip()) / "model-00002-of-00002.safetensors").exists())

    def test_an_index_that_names_what_is_not_there_is_refused(self):
        for name in ("gone.safetensors", "../../../etc/passwd"):
            self.hub.add("org/bad", {"config.json": b"{}", "model.safetensors.index.json": json.dumps({"weight_map": {"a": name}}).encode()})
            self.hub.repositories["org/bad"] = (COMMIT[::-1], self.hub.repositories["org/bad"][1])
            done = self.pull("org/bad")
            self.assertNotEqual(done.code, OK)
            self.assertIn("which the repository does not have", done.err)

    def test_one_file_of_many_is_named_by_a_part_of_its_name(self):
        self.hub.add("org/quants", {"config.json": b"{}", "m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight", "m-mmproj-F16.gguf": b"eyes",
                                    "big/m-BF16-00001-of-00002.gguf": b"1", "big/m-BF16-00002-of-00002.gguf": b"2"})
        done = self.pull("org/quants")
        self.assertNotEqual(done.code, OK)
        self.assertIn("m-Q4_K_M.gguf, m-Q8_0.gguf", done.err)
        done = self.pull("org/quants:q4_k_m")
        self.assertEqual(Path(done.out.strip()).read_bytes(), b"four", done)
        done = self.pull("org/quants:bf16")
        self.assertEqual(Path(done.out.strip()).name, "m-BF16-00001-of-00002.gguf", done)
        self.assertEqual((Path(done.out.strip()).parent / "m-BF16-00002-of-00002.gguf").read_bytes(), b"2")
        self.assertIn("there is no such file", self.pull("org/quants:q2_k").err)

    def test_cut_downloads_go_on_where_they_ended(self):
        for fault in ("cut", "reset", "busy"):
            with self.subTest(fault):
                self.hub.misbehave("model.safetensors", fault, fault)
                self.files["model.safetensors"] = os.urandom(200_001)
                done = self.pull("org/name")
                self.assertEqual(done.code, OK, done)
                self.assertIn("trying again", done.err)
                self.check_snapshot(self.needed())
        ranges = [r.range for r in self.hub.store_requests]
        self.assertIn("bytes=100000-", ranges)

    def test_a_later_process_goes_on_where_an_earlier_one_was_stopped(self):
        self.hub.misbehave("model.safetensors", "cut", "down", "reset")
        done = self.pull("org/name", "--retries", "0")
        self.assertNotEqual(done.code, OK)
        self.assertIn("could not be fetched", done.err)
        self.hub.faults.clear()
        self.assertEqual(self.pull("org/name").code, OK)
        self.assertIn("bytes=150000-", [r.range for r in self.hub.store_requests])
        self.check_snapshot(self.needed())

    def test_a_server_without_ranges_is_asked_for_everything_again(self):
        self.hub.misbehave("model.safetensors", "cut", "no_ranges")
        self.assertEqual(self.pull("org/name").code, OK)
        self.check_snapshot(self.needed())

    def test_wrong_contents_never_get_a_name(self):
        for fault, message in (("other", "its checksum is"), ("short", "bytes came"), ("long", "more bytes come")):
            with self.subTest(fault):
                self.hub.misbehave("model.safetensors", *[fault] * 3)
                done = self.pull("org/name")
                self.assertNotEqual(done.code, OK)
                self.assertIn(message, done.err)
                self.assertFalse((self.repository() / "snapshots" / COMMIT / "model.safetensors").exists())
                self.assertFalse((self.repository() / "refs" / "main").exists(), "a reference to what is not whole")
                self.hub.faults.clear()
        self.assertEqual(self.pull("org/name").code, OK)
        self.check_snapshot(self.needed())

    def test_contents_that_came_wrong_once_are_fetched_again(self):
        self.hub.misbehave("model.safetensors", "other")
        done = self.pull("org/name")
        self.assertEqual(done.code, OK, done)
        self.assertIn("fetching it again", done.err)
        self.check_snapshot(self.needed())

    def test_what_is_damaged_in_the_cache_is_found_when_asked(self):
        self.assertEqual(self.pull("org/name").code, OK)
        blob = self.repository() / "blobs" / sha256(self.files["model.safetensors"])
        blob.write_bytes(bytes(len(self.files["model.safetensors"])))
        done = self.pull("org/name", "--verify")
        self.assertEqual(done.code, OK, done)
        self.assertIn("damaged in the cache", done.err)
        self.check_snapshot(self.needed())

    def test_redirects_are_followed_with_care(self):
        self.hub.misbehave("config.json", "loop", "loop", "loop", "loop", "loop", "loop", "loop", "loop", "loop", "loop", "loop")
        self.assertIn("at most 10 redirects", self.pull("org/name").err)
        self.hub.faults.clear()
        self.hub.misbehave("config.json", "elsewhere")
        self.assertIn("which is not followed", self.pull("org/name").err)

    def test_the_token_goes_to_the_hub_alone(self):
        hub = self.enter(FakeHub(token="hf_secret"))
        hub.add("org/name", self.files)
        done = self.pull("org/name", hub=hub)
        self.assertIn("set HF_TOKEN", done.err)
        self.assertIn("the token of HF_TOKEN", self.pull("org/name", hub=hub, HF_TOKEN="hf_wrong").err)
        done = self.pull("org/name", hub=hub, HF_TOKEN=" hf_secret\n")
        self.assertEqual(done.code, OK, done)
        self.assertEqual({r.token for r in hub.store_requests}, {None})
        self.assertNotIn("hf_secret", done.err + done.out)
        (self.home / "token").write_text("hf_secret\n", encoding="ascii")
        self.assertEqual(self.pull("org/name", "--verify", hub=hub).code, OK)
        self.assertEqual(self.pull("org/name", hub=hub, HF_TOKEN="two words").code, USAGE)

    def test_a_hub_without_checksums_in_its_list_is_asked_for_each_file(self):
        hub = self.enter(FakeHub(says_blobs=False))
        hub.add("org/name", self.files)
        done = self.pull("org/name", hub=hub)
        self.assertEqual(done.code, OK, done)
        self.check_snapshot(self.needed())

    def test_errors_say_what_is_wrong(self):
        for words, message in ((["org/none"], "is not there"), (["org/name@v9"], "has no revision 'v9'"),
                               (["name"], "expected org/name"), (["org/na me"], "cannot be part of a repository's name"),
                               (["org/name@../x"], "is no revision"), (["org/name:../x"], "names no file"),
                               (["a/b/c"], "expected org/name"), ([], "MODEL")):
            with self.subTest(words):
                done = self.pull(*words)
                self.assertNotEqual(done.code, OK)
                self.assertIn(message, done.err)
        self.hub.misbehave("list", "nonsense")
        self.assertIn("does not answer as a hub does", self.pull("org/name").err)
        self.hub.misbehave("list", "gated")
        self.assertIn("ask at", self.pull("org/name").err)
        self.assertIn("cannot reach", coluber("pull", "org/name", env=self.env() | {"HF_ENDPOINT": "http://127.0.0.1:1"}).err)
        self.assertIn("HF_ENDPOINT is 'ftp://x'", coluber("pull", "org/name", env=self.env() | {"HF_ENDPOINT": "ftp://x"}).err)

    def test_a_busy_hub_is_asked_again_when_it_says(self):
        self.hub.misbehave("list", "busy", "down")
        done = self.pull("org/name")
        self.assertEqual(done.code, OK, done)
        self.assertIn("status 429", done.err)

    def test_revisions_with_a_slash_and_commits(self):
        self.assertEqual(self.pull("org/name@refs/pr/1").code, OK)
        self.assertEqual((self.repository() / "refs" / "refs" / "pr" / "1").read_text(encoding="ascii"), COMMIT)
        self.assertEqual(self.pull(f"org/name@{COMMIT}").code, OK)
        self.assertEqual(self.pull(f"org/name@{COMMIT}", "--offline").code, OK)

    def test_offline_takes_what_is_there_and_says_what_is_not(self):
        done = self.pull("org/name", HF_HUB_OFFLINE="1")
        self.assertNotEqual(done.code, OK)
        self.assertIn("forbids to fetch it", done.err)
        self.assertEqual(self.hub.requests, [])
        self.assertEqual(self.pull("org/name").code, OK)
        asked = len(self.hub.requests)
        self.assertEqual(self.pull("org/name", "--offline").code, OK)
        self.assertEqual(len(self.hub.requests), asked)

    def test_a_dry_run_fetches_no_weights(self):
        done = self.pull("org/name", "--dry-run")
        self.assertEqual(done.code, OK, done)
        self.assertRegex(done.out, r"0\.30 MB +to fetch +model\.safetensors")
        self.assertEqual(self.hub.count("model.safetensors"), 0)

    def test_commands_run_a_model_by_its_name(self):
        files = {p.name: p.read_bytes() for p in BUILTIN.iterdir() if p.is_file()}
        self.hub.add("org/asp", files)
        done = coluber("run", "org/asp", "--raw", "-p", "Once", "-n", "4", "--temperature", "0", env=self.env())
        self.assertEqual(done.code, OK, done)
        self.assertIn("looking for it at", done.err)
        self.hub.requests.clear()
        again = coluber("run", "org/asp", "--raw", "-p", "Once", "-n", "4", "--temperature", "0", env=self.env())
        self.assertEqual((again.code, again.out), (OK, done.out), again)
        self.assertEqual(self.hub.requests, [], "what is there is not asked for again")
        self.assertNotIn("looking", again.err)

    def test_ctrl_c_keeps_what_has_come(self):
        self.files["model.safetensors"] = os.urandom(100_000)
        self.hub.misbehave("model.safetensors", "cut", *["busy"] * 60)
        with subprocess.Popen([PROGRAM, "pull", "org/name"], env=self.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 20
            while self.hub.count("model.safetensors") < 4 and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        self.assertEqual(process.returncode, INTERRUPTED, err)
        self.assertEqual([p.stat().st_size for p in self.repository().glob("blobs/*.incomplete")], [50_000])
        self.hub.faults.clear()
        self.assertEqual(self.pull("org/name").code, OK)
        self.check_snapshot(self.needed())

    def test_two_processes_fetch_a_file_once(self):
        self.hub.misbehave("model.safetensors", "busy")
        words = [PROGRAM, "pull", "org/name"]
        pulls = [subprocess.Popen(words, env=self.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
        self.assertEqual([p.wait(timeout=60) for p in pulls], [OK, OK])
        self.assertEqual(sum(urlpath.path.endswith("model.safetensors") for urlpath in self.hub.store_requests), 2, "one of them turned away")
        self.check_snapshot(self.needed())


if __name__ == "__main__":
    unittest.main()
