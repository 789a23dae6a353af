"""What the tasks are sent to: embedded engines, a rig as published, a rig as planned; all behind
skep's gateway.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fanout.batches import Load

from skep.testing.process import FakeEngine, GatewayProcess

# A news item on Qwen 27B on an Intel B70: 50 tasks, 51,200 tokens in and 25,600 out. Alone: the
# prompt at 85.4 tok/s, 13.4 tok/s after it, 42 minutes for all. Fifty at once: first token after
# 11 s, 70 s for all, so 512 tokens in 59 s.
PUBLISHED = {"serial_s": 42 * 60, "swarm_s": 70, "speedup": 36}
_ALONE_MS = 1000 / 13.4
_CROWD_MS = 1000 * (70 - 11) / 512
_PREFILL_TOK_S = 1024 / (
    (1024 / 85.4 + 11) / 2
)  # between both published: the fake engine reads alone as in a crowd


@dataclass(frozen=True)
class Rig:
    """`scale`: of time; figures are given in the rig's own seconds."""

    name: str
    url: str
    model: str
    slots: int
    load: Load
    rounds: int
    simulated: bool = False
    scale: float = 1.0
    serial_tasks: int = 5
    pids: tuple[int, ...] = ()
    note: str = ""


@contextlib.contextmanager
def embedded(place: Path, replicas: int, slots: int, tasks: int) -> Iterator[Rig]:
    threads = max(1, (os.cpu_count() or 1) // replicas)
    size = ["--replicas", replicas, "--slots", slots, "--context", 512, "--threads", threads]
    with up(place, "--embedded", *size) as told:
        yield Rig(
            f"embedded SmolLM2-135M, {replicas} x {slots} slots",
            told["url"],
            told["models"][0],
            replicas * slots,
            Load(tasks, 24, 24),
            3,
            pids=tuple(one["pid"] for one in told["replicas"]),
        )


@contextlib.contextmanager
def published(place: Path, tasks: int, scale: float) -> Iterator[Rig]:
    """The write-up's own figures, served: a fake engine with those speeds, 50 slots, behind a real
    gateway.
    """
    options = {
        "slots": 50,
        "ctx": 4096,
        "prefill_tok_s": round(_PREFILL_TOK_S, 2),
        "time_scale": scale,
    }
    with (
        FakeEngine(token_ms_curve=f"1:{_ALONE_MS:.2f},50:{_CROWD_MS:.2f}", **options) as engine,
        GatewayProcess(place / "published.log") as door,
    ):
        replica = {
            "name": "b70",
            "model": "fake-model",
            "url": engine.url,
            "slots": 50,
            "confirms": "slots",
        }
        door.serve([{**replica, "simulated": True}])
        yield Rig(
            "SIMULATED B70 with the speeds of the write-up, 50 slots",
            door.url,
            "fake-model",
            50,
            Load(tasks, 1023, 512),
            2,
            simulated=True,
            scale=scale,
            serial_tasks=3,
            note="published: 42 min one by one, 70 s with 49 agents, 36x",
        )


@contextlib.contextmanager
def planned(place: Path, tasks: int) -> Iterator[Rig]:
    """What skep's own planner expects of the card, in real time."""
    asked = [
        "qwen3.6-27b",
        "--gpu",
        "b70",
        "--simulate",
        "--spec",
        "none",
        "--kv",
        "fp8",
        "--agents",
        tasks,
    ]
    with up(place, *asked) as told:
        slots = sum(one["slots"] for one in told["replicas"])
        yield Rig(
            f"SIMULATED B70 as skep plans it (Qwen3.6-27B AWQ, FP8 KV), {slots} slots",
            told["url"],
            told["models"][0],
            slots,
            Load(tasks, 1000, 512),
            1,
            simulated=True,
            serial_tasks=2,
            note=(
                "the planner knows no way to 42 min alone: it expects the card to be quicker "
                "than published"
            ),
        )


@contextlib.contextmanager
def up(place: Path, *args: object) -> Iterator[dict]:
    """`skep up -d` in folders of its own; weights come from the usual cache."""
    env = {
        **os.environ,
        **{f"XDG_{name}_HOME": str(place / name.lower()) for name in ("CONFIG", "DATA", "STATE")},
    }
    env.pop("XDG_RUNTIME_DIR", None)
    document = json.loads(skep(env, place, "up", *args, "--port", 0, "-d", "--json"))
    try:
        yield document
    finally:
        skep(env, place, "down", "--wait", "0s")


def skep(env: dict[str, str], place: Path, *args: object) -> str:
    argv = [sys.executable, "-m", "skep", *map(str, args)]
    done = subprocess.run(argv, env=env, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stderr}")
    return done.stdout
