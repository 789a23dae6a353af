"""Attrition: a swarm and a batch on a slow engine, while runner, gateway, relay workers and
engines are killed.

    .venv/bin/python benchmarks/attrition.py [--tasks 10000] [--batch 5000] [--kills 50] [--seed N]
    [--no-keep]

A real deployment (`skep up -d`) of SIMULATED engines, a real `skep swarm run` and a real batch
over HTTP. SIGKILLs are spread evenly over the work; a killed runner is followed by `skep swarm
resume`. Every task asks for a number of tokens of its own, so a result of another task is seen.
Exit code 1: something was lost, came twice, or did not end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from skep.host.processes import descendants, living

RESULTS = Path(__file__).parent / "results" / "attrition.json"
KINDS = {
    "gateway": "skep.gateway.main",
    "worker": "skep.gateway.worker",
    "engine": "skep.testing.fake_engine",
}
ENDED = ("completed", "failed", "expired", "cancelled")  # states of a batch
LOOK_S = 0.2
ASK_AGAIN_S = 0.5
RESTART_S = 120.0  # a gateway that takes longer to come back is gone
MODEL = "fake-model"


@dataclass(frozen=True)
class AttritionPlan:
    tasks: int = 10_000
    batch: int = 5_000
    kills: int = 50
    replicas: int = 4
    slots: int = 8
    workers: int = 2
    first_token_ms: int = 200
    token_ms: int = 40
    limit_s: float = 3600.0
    seed: int = 0


@dataclass
class AttritionReport:
    plan: AttritionPlan
    wall_s: float = 0.0
    killed: dict[str, int] = field(default_factory=dict)
    runners: int = 0  # processes of the swarm, one after the other
    tries: int = 0  # of all tasks, as their results tell
    failures: list[str] = field(default_factory=list)


def tokens_of(index: int) -> int:
    return 3 + index % 13


class AttritionRig:
    """A deployment in a folder of its own, and the command line that belongs to it."""

    def __init__(self, folder: Path, plan: AttritionPlan) -> None:
        self.folder = folder
        homes = {
            f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CONFIG", "DATA", "STATE")
        }
        self.env = {**os.environ, **homes, "COLUMNS": "120"}
        for name in ("XDG_RUNTIME_DIR", "SKEP_API_KEY", "SKEP_URL"):
            self.env.pop(name, None)
        extra = [f"--ttft-ms={plan.first_token_ms}", f"--token-ms={plan.token_ms}"]
        served = {
            "model": MODEL,
            "engine": "fake",
            "replicas": plan.replicas,
            "slots": plan.slots,
            "extra": extra,
        }
        lines = ['drain = "5s"', "[gateway]", "port = 0", f"workers = {plan.workers}", "[[serve]]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in served.items()]
        (folder / "skep.toml").write_text("\n".join(lines) + "\n")
        deployment = json.loads(self.skep("up", "-d", "--json"))
        self.url: str = deployment["url"]
        self.pid: int = deployment["pid"]

    def skep(self, *words: object) -> str:
        argv = [sys.executable, "-m", "skep", *map(str, words)]
        run = subprocess.run(
            argv, env=self.env, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if run.returncode:
            raise RuntimeError(f"{' '.join(argv)} failed:\n{run.stderr}")
        return run.stdout

    def begin(self, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / "runner.log").open("ab") as log:
            argv = [sys.executable, "-m", "skep", *map(str, words)]
            return subprocess.Popen(argv, env=self.env, cwd=self.folder, stdout=log, stderr=log)

    def processes(self, kind: str) -> list[int]:
        """Return the processes of a kind, the oldest first: those that were not killed for the
        longest time.
        """
        pids_by_age = []
        for pid, begun in descendants(self.pid).items():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if words[1:3] == ["-m", KINDS[kind]]:
                pids_by_age.append((int(begun), pid))
        return [pid for _, pid in sorted(pids_by_age)]

    def ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> Any:
        """Return an answer of the gateway, asked again while it is being restarted.

        Raises RuntimeError where it stays away.
        """
        headers = {"content-type": kind} if body is not None else {}
        deadline = time.monotonic() + RESTART_S
        while time.monotonic() < deadline:
            request = urllib.request.Request(f"{self.url}{path}", body, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.read()
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise RuntimeError(
                        f"{method} {path}: {error.code} {error.read()[:500]!r}"
                    ) from None
            except OSError:
                pass
            time.sleep(ASK_AGAIN_S)
        raise RuntimeError(f"{method} {path}: the gateway has not answered for {RESTART_S:g} s")

    def upload(self, lines: list[dict[str, Any]]) -> str:
        mark = secrets.token_hex(16)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        parts = (
            f'--{mark}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{mark}\r\ncontent-disposition: form-data; name="file"; '
            f'filename="b.jsonl"\r\n\r\n{text}\r\n'
            f"--{mark}--\r\n"
        )
        answer = self.ask(
            "POST", "/v1/files", parts.encode(), f"multipart/form-data; boundary={mark}"
        )
        return json.loads(answer)["id"]

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        return [
            json.loads(line)
            for line in self.ask("GET", f"/v1/files/{file_id}/content").splitlines()
        ]


class AttritionRun:
    """The work under way: one swarm, one batch, and who is killed when how much of it is done."""

    def __init__(self, rig: AttritionRig, plan: AttritionPlan, say: Callable[[str], None]) -> None:
        self.rig = rig
        self.plan = plan
        self.say = say
        self.report = AttritionReport(plan)
        self.results = rig.folder / "results.jsonl"
        kinds = ["runner", *KINDS]
        self.due = [kinds[number % len(kinds)] for number in range(plan.kills)]
        Random(plan.seed).shuffle(self.due)
        self.runner_ended = False

    def carry_out(self) -> AttritionReport:
        began = time.monotonic()
        self._begin()
        try:
            self._watch(until=began + self.plan.limit_s)
        finally:
            self.runner.kill()  # where it was broken off
            self.runner.wait()
        self.report.wall_s = round(time.monotonic() - began, 1)
        self.report.failures += [*self._wrong_in_swarm(), *self._wrong_in_batch()]
        return self.report

    def _watch(self, *, until: float) -> None:
        while not (self.runner_ended and self.batch["status"] in ENDED):
            if time.monotonic() > until:
                limit = f"{self.plan.limit_s:g} s"
                self.report.failures.append(f"not ended after {limit}: {self.progress()}")
                return
            time.sleep(LOOK_S)
            self._look()
            self._kill_who_is_due()

    def progress(self) -> str:
        tasks = f"{self._swarm_done()} of {self.plan.tasks} tasks"
        requests = f"{self._batch_done()} of {self.plan.batch} in the batch"
        return f"{tasks}, {requests}; {self.plan.kills - len(self.due)} kills"

    def _begin(self) -> None:
        tasks = self.rig.folder / "tasks.jsonl"
        lines = (
            {"id": f"t{i}", "prompt": f"task {i}", "max_tokens": tokens_of(i)}
            for i in range(self.plan.tasks)
        )
        tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
        common = {"method": "POST", "url": "/v1/chat/completions"}
        requests = []
        for i in range(self.plan.batch):
            messages = [{"role": "user", "content": f"request {i}"}]
            body = {"model": MODEL, "messages": messages, "max_tokens": tokens_of(i)}
            requests.append({"custom_id": f"b{i}", **common, "body": body})
        order = {
            "input_file_id": self.rig.upload(requests),
            "endpoint": common["url"],
            "completion_window": "24h",
        }
        self.batch = json.loads(self.rig.ask("POST", "/v1/batches", json.dumps(order).encode()))
        self._start_runner("run", tasks, "-o", self.results)

    def _start_runner(self, *words: object) -> None:
        self.runner = self.rig.begin("swarm", *words)
        self.report.runners += 1

    def _look(self) -> None:
        self.batch = json.loads(self.rig.ask("GET", f"/v1/batches/{self.batch['id']}"))
        code = self.runner.poll()
        if code == -signal.SIGKILL:
            self._start_runner("resume", "--last")
        elif code is not None and not self.runner_ended:
            self.runner_ended = True
            if code:
                last_words = (self.rig.folder / "runner.log").read_text()[-500:]
                self.report.failures.append(f"the runner ended with code {code}: {last_words}")
        self.say(self.progress())

    def _swarm_done(self) -> int:
        if self.results.exists():
            return self.results.read_bytes().count(b"\n")
        return 0

    def _batch_done(self) -> int:
        return self.batch["request_counts"]["completed"]

    def _kill_who_is_due(self) -> None:
        """Kill the next one when its part of the work is done; whoever is not there at the moment
        is waited for.
        """
        done = self._swarm_done() + self._batch_done()
        number = self.plan.kills - len(self.due) + 1
        if not self.due or done < number * (self.plan.tasks + self.plan.batch) / (
            self.plan.kills + 1
        ):
            return
        if self.due[0] == "runner" and self.runner_ended:
            self.due[0] = "engine"  # the swarm was quicker than the batch
        kind = self.due[0]
        if kind != "runner":
            pids = self.rig.processes(kind)
        else:
            has_begun = self._swarm_done() and self.runner.poll() is None
            pids = [self.runner.pid] if has_begun else []
        if pids:
            os.kill(pids[0], signal.SIGKILL)
            self.report.killed[kind] = self.report.killed.get(kind, 0) + 1
            del self.due[0]

    def _wrong_in_swarm(self) -> list[str]:
        if self.results.exists():
            text = self.results.read_text()
        else:
            text = ""
        rows = [json.loads(line) for line in text.splitlines()]
        self.report.tries = sum(row["tries"] for row in rows)
        wanted = {f"t{i}": tokens_of(i) for i in range(self.plan.tasks)}
        served = [(row["id"], row["output_tokens"] if row["ok"] else None) for row in rows]
        return differences("swarm", wanted, served)

    def _wrong_in_batch(self) -> list[str]:
        self.batch = json.loads(self.rig.ask("GET", f"/v1/batches/{self.batch['id']}"))
        rows = self.rig.lines(self.batch["output_file_id"]) + self.rig.lines(
            self.batch["error_file_id"]
        )
        served: list[tuple[str, int | None]] = []
        for row in rows:
            usage = ((row["response"] or {}).get("body") or {}).get("usage") or {}
            served.append((row["custom_id"], usage.get("completion_tokens")))
        wanted = {f"b{i}": tokens_of(i) for i in range(self.plan.batch)}
        wrong = differences("batch", wanted, served)
        if self.batch["status"] != "completed":
            wrong.append(f"batch: it is {self.batch['status']}")
        return wrong


def differences(
    what: str, wanted: dict[str, int], served: list[tuple[str, int | None]]
) -> list[str]:
    """Return what is lost, came twice or is another answer than the one that was asked for."""
    times = Counter(name for name, _ in served)
    faults = {
        "lost": [name for name in wanted if not times[name]],
        "unknown": [name for name in times if name not in wanted],
        "twice": [name for name, count in times.items() if count > 1],
        "wrong": [name for name, tokens in served if wanted.get(name) != tokens],
    }
    return [
        f"{what}: {len(names)} {how}, such as {names[:3]}"
        for how, names in faults.items()
        if names
    ]


def run_attrition(
    plan: AttritionPlan, folder: Path, say: Callable[[str], None]
) -> AttritionReport:
    rig = AttritionRig(folder, plan)
    family = [rig.pid, *descendants(rig.pid)]
    try:
        report = AttritionRun(rig, plan, say).carry_out()
        family = [rig.pid, *descendants(rig.pid)]
    finally:
        rig.skep("down", "--wait", "0s")
    left = [pid for pid in family if pid in living()]
    if left:
        report.failures.append(f"still running after `skep down`: {left}")
    return report


def as_json(report: AttritionReport, command: str) -> dict[str, Any]:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    about = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": command,
        "machine": machine,
        "simulated": True,
    }
    return {**about, **asdict(report), "ok": not report.failures}


def say_line(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{words[:100]:100}", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="kills while a swarm and a batch run, and an account of every task"
    )
    parser.add_argument("--tasks", type=int, default=AttritionPlan.tasks)
    parser.add_argument("--batch", type=int, default=AttritionPlan.batch)
    parser.add_argument("--kills", type=int, default=AttritionPlan.kills)
    parser.add_argument(
        "--seed", type=int, help="of the order of the kills; drawn and printed without it"
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=AttritionPlan.limit_s,
        help="the run has failed after that",
    )
    parser.add_argument(
        "--no-keep", action="store_true", help="the result is printed and not stored"
    )
    args = parser.parse_args()
    if args.seed is None:
        seed = secrets.randbelow(1_000_000)
    else:
        seed = args.seed
    plan = AttritionPlan(
        tasks=args.tasks, batch=args.batch, kills=args.kills, seed=seed, limit_s=args.limit_s
    )
    # What was started is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="attrition-") as folder:
        report = run_attrition(plan, Path(folder), say_line)
    result = as_json(report, f"benchmarks/attrition.py {' '.join(sys.argv[1:])}".strip())
    print(json.dumps(result, indent=1))
    if not args.no_keep:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(report.failures))


if __name__ == "__main__":
    sys.exit(main())
