# SPDX-License-Identifier: Apache-2.0
"""A hub on this machine, for the tests of downloads: answers as Hugging Face's does, and misbehaves where it is told to.

    with FakeHub() as hub:
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": b"..."})
        hub.misbehave("model.safetensors", "cut", "cut")   # the next two requests for it

Large files (.safetensors, .gguf, .bin, .pth) lie behind a redirect to a second address, as they do on the real one.
"""
import hashlib
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", ".bin", ".pth")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Request:
    def __init__(self, handler):
        self.method, self.path = handler.command, handler.path
        self.range = handler.headers.get("Range")
        self.token = handler.headers.get("Authorization")


class FakeHub:
    def __init__(self, token=None, says_blobs=True):
        self.repositories, self.faults, self.requests, self.store_requests = {}, {}, [], []
        self.token, self.says_blobs, self.lock = token, says_blobs, threading.Lock()
        self.front, self.store = self.serve(self.answer), self.serve(self.answer_store)
        self.url = f"http://127.0.0.1:{self.front.server_port}"

    @staticmethod
    def serve(answer):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # clients that go away are part of the tests

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in (self.front, self.store):
            server.shutdown()
            server.server_close()

    def add(self, name, files, commit=COMMIT):
        self.repositories[name] = (commit, files)

    def misbehave(self, what, *faults):
        """`what`: a file's name or "list"; each request for it takes one fault."""
        self.faults.setdefault(what, []).extend(faults)

    def fault_of(self, what):
        with self.lock:
            waiting = self.faults.get(what, [])
            return waiting.pop(0) if waiting else None

    def count(self, name, method="GET"):
        return sum(r.method == method and urlsplit(r.path).path.endswith("/" + name)
                   for r in self.requests + self.store_requests)

    @staticmethod
    def send(handler, status, body=b"", headers=(), length=None):
        handler.send_response(status)
        for key, value in headers:
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def answer(self, handler):
        with self.lock:
            self.requests.append(Request(handler))
        if self.token is not None and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return self.send(handler, 401, b"{}", [("X-Error-Code", "RepoNotFound"), ("X-Error-Message", "Repository Not Found")])
        path = urlsplit(handler.path).path
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path)
        if listing:
            return self.answer_list(handler, listing[1], unquote(listing[2]))
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if file:
            return self.answer_file(handler, file[1], file[2], unquote(file[3]))
        return self.send(handler, 404)

    def answer_list(self, handler, name, revision):
        fault = self.fault_of("list")
        if fault == "busy":
            return self.send(handler, 429, b"slow down", [("Retry-After", "1")])
        if fault == "down":
            return self.send(handler, 503)
        if fault == "nonsense":
            return self.send(handler, 200, b"<html>Log in to the network</html>")
        if fault == "gated":
            return self.send(handler, 403, b"{}", [("X-Error-Code", "GatedRepo"), ("X-Error-Message", "Access is restricted")])
        if name not in self.repositories:
            return self.send(handler, 404, b"{}", [("X-Error-Code", "RepoNotFound"), ("X-Error-Message", "Repository not found")])
        commit, files = self.repositories[name]
        if revision not in ("main", "refs/pr/1", commit):
            return self.send(handler, 404, b"{}", [("X-Error-Code", "RevisionNotFound"), ("X-Error-Message", "Invalid rev id")])
        siblings = []
        for file, data in files.items():
            entry = {"rfilename": file}
            if self.says_blobs:
                entry.update(size=len(data), blobId=git_sha1(data))
                if file.endswith(LARGE):
                    entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 135}
            siblings.append(entry)
        return self.send(handler, 200, json.dumps({"sha": commit, "siblings": siblings}).encode())

    def answer_file(self, handler, name, commit, file):
        data = self.repositories.get(name, (None, {}))[1].get(file)
        if data is None:
            return self.send(handler, 404, b"", [("X-Error-Code", "EntryNotFound")])
        if not file.endswith(LARGE):
            return self.send_data(handler, file, data, [("ETag", f'"{git_sha1(data)}"'), ("X-Repo-Commit", commit)])
        target = f"http://localhost:{self.store.server_port}/{name}/{file}"
        if handler.command == "HEAD":
            headers = [("X-Linked-Etag", f'"{sha256(data)}"'), ("X-Linked-Size", str(len(data)))]
        else:
            headers = []
        return self.send(handler, 302, b"see there", [("Location", target), *headers])

    def answer_store(self, handler):
        with self.lock:
            self.store_requests.append(Request(handler))
        owner, name, file = urlsplit(handler.path).path[1:].split("/", 2)
        return self.send_data(handler, file, self.repositories[f"{owner}/{name}"][1][file], [])

    def send_data(self, handler, file, data, headers):
        fault = self.fault_of(file)
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        start = int(wanted[1]) if wanted and fault != "no_ranges" else 0
        status, body = 200, data[start:]
        if start:
            status, headers = 206, [*headers, ("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")]
        if fault == "cut":
            handler.close_connection = True
            return self.send(handler, status, body[:len(body) // 2], headers, len(body))
        if fault == "reset":
            handler.close_connection = True
            return handler.connection.shutdown(socket.SHUT_RDWR)
        if fault == "short":
            return self.send(handler, 200, data[:-3], headers)
        if fault == "long":
            return self.send(handler, 200, data + b"more", headers)
        if fault == "other":
            return self.send(handler, 200, bytes(len(data)), headers)
        if fault == "busy":
            return self.send(handler, 429, b"", [("Retry-After", "1")])
        if fault == "loop":
            return self.send(handler, 302, b"", [("Location", handler.path)])
        if fault == "elsewhere":
            return self.send(handler, 302, b"", [("Location", "file:///etc/passwd")])
        return self.send(handler, status, body, headers)
