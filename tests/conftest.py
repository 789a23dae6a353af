"""What several suites share: folders of their own, a command line run as a child, a gateway as a child."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from skep.gateway.admission import ReplicaSpec
from skep.settings import user_paths


@pytest.fixture
def env(tmp_path):
    """An installation of its own; only the weights' cache is the user's, so that nothing is fetched twice."""
    folders = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "STATE")}
    kept = {key: value for key, value in os.environ.items() if key not in ("XDG_RUNTIME_DIR", "SKEP_API_KEY")}
    return {**kept, **folders, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def skep(env, tmp_path):
    """Runs `skep ARGS...` to its end, in an empty folder. Whatever still runs afterwards is stopped."""

    def run(*args, timeout=60, check=None, **extra_env):
        done = subprocess.run(
            [sys.executable, "-m", "skep", *map(str, args)],
            env={**env, **extra_env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    yield run
    run("down", "--wait", "0s")
    shutil.rmtree(user_paths(env).runtime, ignore_errors=True)  # left by a skep that a test has killed


class GatewayProcess:
    """A real gateway process, told its replicas over its link."""

    def __init__(self, log: Path, **setup):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ours, theirs = socket.socketpair()
        fds = (self.listener.fileno(), theirs.fileno())
        with log.open("wb") as output, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "skep.gateway.process", "--listen-fd", str(fds[0]), "--link-fd", str(fds[1])],
                pass_fds=fds,
                stderr=output,
            )
        self._lines = self._ours.makefile("r")
        self.send(setup)
        assert self.read() == {"event": "listening"}

    def send(self, message):
        self._ours.sendall(json.dumps(message).encode() + b"\n")

    def read(self):
        return json.loads(self._lines.readline())

    def ask(self, **message):
        self.send({"id": 1, **message})
        return self.read()

    def serve(self, *engines, slots=2, model="fake-model", confirms=True, models=()):
        specs = [ReplicaSpec(f"r{i}", model, engine.url, slots, confirms) for i, engine in enumerate(engines)]
        self.send({"op": "replicas", "replicas": [asdict(spec) for spec in specs], "models": list(models)})

    def close(self):
        self._ours.close()
        self._lines.close()
        self.listener.close()
        self.process.wait(10)


@pytest.fixture
def gateway(tmp_path):
    """Makes gateways; they end with the test."""
    made = []

    def make(**setup):
        made.append(GatewayProcess(tmp_path / f"gateway-{len(made)}.log", **setup))
        return made[-1]

    yield make
    for process in made:
        process.close()
    for log in tmp_path.glob("gateway-*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()
