"""A hive of one real engine, as a user starts it, for the suites of `make test-vllm` and `make
test-llama-server`.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from forked_processes import alive
from skep.host.processes import descendants
from skep.paths import user_paths
from skep.supervisor.control import replica_key

START_S = 1500
MODEL = "smollm2-135m"


class RealHive:
    """`serve` is the body of its `[[serve]]` table."""

    def __init__(self, folder: Path, serve: str) -> None:
        self.folder = folder
        folders = {f"XDG_{name}_HOME": str(folder / name) for name in ("CONFIG", "DATA", "STATE")}
        self.env = {**os.environ, **folders}
        self.env.pop("XDG_RUNTIME_DIR", None)
        (folder / "skep.toml").write_text(
            f'start_deadline = "25m"\n[gateway]\nport = 0\n[[serve]]\n{serve}'
        )
        self.ready = json.loads(self.skep("up", "-d", "--json").stdout)
        self.url = self.ready["url"]

    def skep(
        self, *args: str, check: int | None = 0, timeout: float = START_S
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "skep", *args],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert check is None or done.returncode == check, (
            done.returncode,
            done.stdout,
            done.stderr,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    @property
    def replica(self) -> dict:
        return next(
            row for row in json.loads(self.skep("ps", "--json").stdout) if row["kind"] == "replica"
        )

    def metrics(self) -> str:
        url = self.replica["url"]
        headers = {"authorization": f"Bearer {replica_key(url, user_paths(self.env))}"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/metrics", headers=headers)
        ) as answer:
            return answer.read().decode()

    def until(self, condition, timeout_s: float = START_S) -> dict:
        deadline = time.monotonic() + timeout_s
        while not condition(row := self.replica):
            assert time.monotonic() < deadline, row
            time.sleep(0.5)
        return row

    def down(self) -> None:
        pids = list(descendants(self.ready["pid"]))
        self.skep("down", "--wait", "0s")
        assert [pid for pid in pids if alive(pid)] == []


def sweep(hive: RealHive, *options: str) -> dict:
    sizes = (
        "--concurrency",
        "1,4",
        "--tasks",
        "8",
        "--prompt-tokens",
        "64",
        "--max-tokens",
        "32",
        "--fixed-output",
    )
    return json.loads(
        hive.skep("bench", "sweep", "--json", *sizes, "--budget", "3m", *options).stdout
    )
