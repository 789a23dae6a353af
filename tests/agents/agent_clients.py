"""How each coding agent is started without a terminal, and a box that it works against."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from embedded_process import MODEL, serving, weights
from skep.config.keys import digest_of
from skep.engines.base import Launch
from skep.testing.process import FakeEngine, GatewayProcess

ROOT = Path(__file__).parents[2]
PROGRAMS = (ROOT / ".agents" / "node_modules" / ".bin", ROOT / ".agents" / "venv" / "bin")
KEY = "k-of-the-box"
CONTEXT = 200_000
EMBEDDED_CONTEXT = 8_192  # what its small model was trained for
PATIENCE_S = 90.0
OUTCOME = 'replica="r0",outcome="'

# The arguments behind which the prompt stands.
HEADLESS: dict[str, list[str]] = {
    "claude": ["--dangerously-skip-permissions", "-p"],
    "codex": ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
    "opencode": ["run"],
    "qwen": ["--yolo", "-p"],
    "crush": ["run", "--quiet"],
    "pi": ["-p"],
    "cline": ["--yolo"],
    "aider": ["--yes-always", "--no-git", "--no-stream", "--message"],
}


class Ended(NamedTuple):
    """How an agent has ended."""

    code: int
    text: str  # what it has printed, to both files
    took_s: float


def is_installed(client: str) -> bool:
    return any((folder / client).exists() for folder in PROGRAMS)


class AgentRun:
    """An agent at work, in a process group of its own, which ends with it."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self._began_s = time.monotonic()

    def wait(self, timeout_s: float = PATIENCE_S) -> Ended:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"no end after {timeout_s} s: {self.text()[-3000:]}") from None
        finally:
            self.end()
        return Ended(code, self.text(), time.monotonic() - self._began_s)

    def text(self) -> str:
        """Return what the agent has printed, without the line of skep that speaks of a context."""
        lines = self._log.read_text("utf-8", "replace").splitlines(keepends=True)
        return "".join(line for line in lines if " uses fake-model at " not in line)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


class Box:
    """A gateway in front of one engine, and a home for the agents."""

    def __init__(self, folder: Path, replica: dict[str, object]) -> None:
        self._folder = folder
        self.work = folder / "work"
        self.work.mkdir()
        keys = [{"name": "box", "sha256": digest_of(KEY)}]
        self.gateway = GatewayProcess(folder / "gateway.log", keys=keys)
        self._runs: list[AgentRun] = []
        self.gateway.serve([{"name": "r0", "confirms": "slots", **replica}])

    @property
    def url(self) -> str:
        return self.gateway.url

    def start(self, client: str, prompt: str) -> AgentRun:
        """Start a client by `skep agent`, in a home of its own."""
        return self._run([*self._command(client), "--", *HEADLESS[client], prompt], client, KEY)

    def start_in_shell(self, client: str, prompt: str, *, key: str) -> AgentRun:
        """Start a client by the lines of `skep agent --print`, with a key that skep does not
        check.
        """
        command = [*self._command(client), "--print", "--", *HEADLESS[client], prompt]
        printed = subprocess.run(
            command,
            env=self._environment(KEY),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert printed.returncode == 0, printed.stderr
        return self._run(["sh", "-c", printed.stdout], client, key)

    def run(self, client: str, prompt: str) -> Ended:
        return self.start(client, prompt).wait()

    def _command(self, client: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "skep",
            "agent",
            client,
            "--url",
            self.url,
            "--key-env",
            "BOX_KEY",
        ]

    def _run(self, argv: list[str], client: str, key: str) -> AgentRun:
        log = self._folder / f"{client}-{len(self._runs)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                env=self._environment(key),
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        self._runs.append(AgentRun(process, log))
        return self._runs[-1]

    def close(self) -> None:
        for run in self._runs:
            run.end()
        self.gateway.close()

    def _environment(self, key: str) -> dict[str, str]:
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        node = shutil.which("node") or "/usr/bin/node"
        path = [*map(str, PROGRAMS), str(Path(node).parent), "/usr/local/bin", "/usr/bin", "/bin"]
        inherited = {
            name: value for name, value in os.environ.items() if name in ("LANG", "TERM", "TMPDIR")
        }
        settings = {
            "HOME": str(home),
            "PATH": ":".join(path),
            "BOX_KEY": key,
            "IS_SANDBOX": "1",
            "CI": "1",
            "NO_COLOR": "1",
        }
        return {**inherited, **settings}


class ScriptedBox(Box):
    """Its engine follows a script."""

    def __init__(self, folder: Path, **options: object) -> None:
        self._options = {
            "script": "agents",
            "speaks": "llama-server",
            "slots": 4,
            "ctx": CONTEXT,
            "token_ms": 1,
        }
        self._options |= options
        self.engine = FakeEngine(**self._options).start()
        size = {"slots": self._options["slots"], "context": self._options["ctx"]}
        super().__init__(folder, {"model": "fake-model", "url": self.engine.url, **size})

    def restart_engine(self) -> None:
        """Kill the engine and start it again at the same port."""
        port = self.engine.port
        self.engine.kill()
        self.engine.close()
        self.engine = FakeEngine(port=port, **self._options).start()

    def rules(self) -> dict[str, int]:
        """How often each rule of the script has decided."""
        return dict(self.engine.state()["rules"])

    def hold_slot(self) -> threading.Thread:
        """Keep one slot busy for as long as the script holds one, 30 s;
        returns when it is taken.
        """
        before = self.engine.state()["running"]
        thread = threading.Thread(target=self._hold, daemon=True)
        thread.start()
        self.engine.wait_for(running=before + 1)
        return thread

    def _hold(self) -> None:
        body = {"model": "fake-model", "messages": [{"role": "user", "content": "HOLD"}]}
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        request = Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=60) as answer:
            answer.read()

    def close(self) -> None:
        super().close()
        self.engine.close()


class EmbeddedBox(Box):
    """Its engine is the embedded llama.cpp, with a model so small that it only talks."""

    def __init__(self, folder: Path) -> None:
        launch = Launch(
            "r0", "embedded", MODEL, weights(), slots=1, context_tokens=EMBEDDED_CONTEXT, threads=2
        )
        self._running = contextlib.ExitStack()
        url = self._running.enter_context(serving(launch))
        super().__init__(
            folder, {"model": MODEL, "url": url, "slots": 1, "context": EMBEDDED_CONTEXT}
        )

    def outcomes(self) -> set[str]:
        """Return how the requests that have reached the engine have ended."""
        request = Request(f"{self.url}/metrics", headers={"authorization": f"Bearer {KEY}"})
        with urlopen(request, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {line.partition(OUTCOME)[2].partition('"')[0] for line in lines if OUTCOME in line}

    def close(self) -> None:
        super().close()
        self._running.close()
