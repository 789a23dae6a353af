"""A hub on the loopback, as its own client talks to it: repositories, gated ones, files with
checksums, resuming.
"""

import hashlib
import json
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


class FakeHub:
    """`files` of the repositories by name.

    A file in `stops_at` is sent so far, and then waits for `go_on`.
    A file in `changes_at` is sent so far; then the connection ends, and the file is another one.
    """

    def __init__(self, **repos):
        self.repos = {name.replace("__", "/"): files for name, files in repos.items()}
        self.gated = set()
        self.wrong = {}  # what is sent instead of the file
        self.etags = {}  # by file, where it is not the checksum
        self.commit = COMMIT
        self.stops_at = {}
        self.changes_at = {}  # by file: bytes that are sent, and what the file is from then on
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.asked = []  # (file, first byte) of every download
        self.url = ""

    @contextmanager
    def serving(self):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Answer, self))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            self.go_on.set()
            server.shutdown()
            thread.join()
            server.server_close()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub, *args):
        self.hub = hub
        super().__init__(*args)

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.about("/".join(parts[2:4]), tree="tree" in parts[4:])
        else:
            self.file("/".join(parts[:2]), "/".join(parts[4:]))

    def refused(self, repo):
        if repo not in self.hub.repos:
            self.reply(
                404,
                b"{}",
                **{"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"},
            )
        elif repo in self.hub.gated and self.headers["authorization"] != "Bearer hf_good":
            self.reply(
                403,
                b"{}",
                **{"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"},
            )
        else:
            return False
        return True

    def about(self, repo, *, tree):
        if self.refused(repo):
            return
        siblings = []
        for name, data in self.hub.repos[repo].items():
            sha = hashlib.sha256(data).hexdigest()
            if is_large(name):
                lfs = {"lfs": {"sha256": sha, "size": len(data), "pointerSize": 130}}
            else:
                lfs = {}
            if tree:
                about = {"type": "file", "path": name, "oid": sha[:40]}
            else:
                about = {"rfilename": name, "blobId": sha[:40]}
            siblings.append({**about, "size": len(data), **lfs})
            if tree and lfs:
                lfs["lfs"]["oid"] = sha
        document = {
            "id": repo,
            "modelId": repo,
            "sha": self.hub.commit,
            "siblings": siblings,
            "private": False,
            "tags": [],
        }
        self.reply(
            200,
            json.dumps(siblings if tree else document).encode(),
            **{"Content-Type": "application/json"},
        )

    def file(self, repo, name):
        if self.refused(repo):
            return
        data = self.hub.repos[repo].get(name)
        if data is None:
            self.reply(404, b"{}", **{"X-Error-Code": "EntryNotFound"})
            return
        sha = hashlib.sha256(data).hexdigest()
        data = self.hub.wrong.get(name, data)
        etag = self.hub.etags.get(name, sha if is_large(name) else sha[:40])
        heads = {"ETag": f'"{etag}"', "X-Repo-Commit": self.hub.commit, "Accept-Ranges": "bytes"}
        heads |= (
            {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
            if is_large(name)
            else {}
        )
        first = self.first_byte(etag)
        if first:
            heads["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if self.command == "GET":
            self.hub.asked.append((name, first))
        if self.command == "GET":
            stop = self.hub.stops_at.pop(name, None)
        else:
            stop = None
        if self.command == "GET":
            change = self.hub.changes_at.pop(name, None)
        else:
            change = None
        if change is not None:
            cut, self.hub.repos[repo][name] = change
            self.reply(200, data, cut=cut, **heads)
            return
        self.reply(206 if first else 200, data[first:], stop=stop, **heads)

    def first_byte(self, etag):
        """Return where the answer begins: at 0 where the client has a part of another file."""
        if self.headers["if-range"] not in (None, f'"{etag}"'):
            return 0
        return int((self.headers["range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])

    def reply(self, status, body, stop=None, cut=None, **heads):
        self.send_response(status)
        for name, value in heads.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is not None:
            self.wfile.write(body[:cut])
            self.close_connection = True
            return
        if stop is not None:
            self.wfile.write(body[:stop])
            self.wfile.flush()
            self.hub.reached.set()
            self.hub.go_on.wait(60)
            body = body[stop:]
        try:
            self.wfile.write(body)
        except OSError:  # the client was ended
            self.close_connection = True


def is_large(name):
    return name.endswith((".safetensors", ".gguf"))
