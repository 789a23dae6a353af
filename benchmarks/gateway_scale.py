"""skep's gateway on 1 to 8 cores beside other gateways on as many: streamed chunks a second,
delay, CPU, memory.

    .venv/bin/python benchmarks/gateway_scale.py [--cores 1,2,4,8] [--only skep,haproxy] [--out
    FILE] .venv/bin/python benchmarks/gateway_scale.py --cores 1,4 --only skep,haproxy --before
    ../old/.venv/bin/python

A gateway with N cores is skep with N workers, HAProxy with N threads, nginx with N processes, a
router on N cores. Its capacity is the highest rate of chunks that all arrive with a 99th
percentile of delay of at most 5 ms while all streams run; a stream sends 50 chunks a second. They
begin within 0.8 s; the delays of all chunks, those of that time included, are told beside. A level
that does not hold is tried once more. Engines and clients are C programs (peers/) on cores of
their own, up to five of each; where engines were late themselves, a level says nothing of the
gateway and counts neither way. `direct` is the same without a gateway. Wants 16 cores for 8."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peers import measure
from peers.install import DidNotStart, compiled
from peers.process import cores, cpu_between, cpu_ns, memory_mib, on_core
from peers.start import (
    MODEL,
    Running,
    start_haproxy,
    start_nginx,
    start_router,
    start_skep,
    wait_ready,
)

INTERVAL_MS = 20
LATE_MS = 5.0
SECONDS = 2.4
TRIES = 2  # of a level
MOST_TOOLS = 5  # engines, and load tools
RAMP_MS = 800
SLOTS = 16384
BEFORE = "before"  # skep's gateway of another checkout
ALL_COUNTS = ("skep", BEFORE, "haproxy")  # the others on the most cores
WRONG = ("failed", "unanswered", "changed", "misplaced", "foreign", "incomplete")
PER_CORE = (40, 48, 54, 60, 66, 72, 78)  # thousand chunks a second
START: dict[str, Callable[..., Running]] = {
    "skep": start_skep,
    "haproxy": start_haproxy,
    "nginx": start_nginx,
    "vllm-router": functools.partial(start_router, "vllm-router"),
    "sglang-router": functools.partial(start_router, "sglang-router"),
}


class Rig:
    """Engines and as many load tools, each on a core of its own behind those of the gateway."""

    def __init__(
        self, place: Path, gateway_cores: int, backends: Sequence[measure.Backend]
    ) -> None:
        self.place = place
        self.backends = backends
        self.tools = len(backends)
        self._first_load = 1 + gateway_cores + self.tools

    @property
    def ports(self) -> list[int]:
        return [backend.ports[0] for backend in self.backends]

    def body(self, tokens: int, size: int = 2000) -> Path:
        path = self.place / f"body-{tokens}-{size}.json"
        system = {
            "role": "system",
            "content": "You are a careful programmer. Answer with a patch.",
        }
        asked = [system, {"role": "user", "content": "task @@@@@@@@: " + "words " * (size // 6)}]
        body = {
            "model": MODEL,
            "messages": asked,
            "max_tokens": max(1, tokens),
            "stream": tokens > 0,
        }
        if not path.exists():  # load tools may be reading it
            path.write_text(json.dumps(body))
        return path

    def level(
        self, ports: Sequence[int], pid: int | None, streams: int, interval_ms: float = INTERVAL_MS
    ) -> dict[str, Any]:
        """`ports`: where the load tools go, in turns.

        CPU is that of the time when all streams run.
        """
        for backend in self.backends:
            backend.set(interval_ms=interval_ms)
        chunks = round((SECONDS + RAMP_MS / 1000) * 1000 / interval_ms)
        counts = [
            "--conns",
            streams // self.tools,
            "--requests",
            streams // self.tools,
            "--chunks",
            chunks,
        ]
        running = []
        for number in range(self.tools):
            words = [
                compiled("load"),
                "closed",
                ports[number % len(ports)],
                self.body(chunks),
                *counts,
            ]
            with on_core(self._first_load + number):
                argv = [str(word) for word in (*words, "--ramp-ms", RAMP_MS)]
                running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, env=measure.ENV))
        time.sleep(RAMP_MS / 1000 + 0.3)
        before = cpu_ns(pid) if pid else {}
        began = time.monotonic()
        time.sleep(SECONDS - RAMP_MS / 1000 - 0.6)
        used_s = cpu_between(before, cpu_ns(pid)) if pid else 0.0
        wall_s = time.monotonic() - began
        memory = memory_mib(pid) if pid else 0.0
        told = [json.loads(one.communicate(timeout=120)[0]) for one in running]
        per_s = sum(one["chunks_per_s"] for one in told)
        return {
            "streams": streams,
            "offered_per_s": streams * 1000 / interval_ms,
            "chunks_per_s": per_s,
            "p50_us": statistics.mean(one["full_delay_us"]["p50"] for one in told),
            "p99_us": max(one["full_delay_us"]["p99"] for one in told),
            "p99_us with the start": max(one["chunk_delay_us"]["p99"] for one in told),
            "all_open_after_s": max(one["all_open_after_s"] for one in told),
            "engines_late_ms": max(
                backend.stats(backend.ports[0])["late_max_us"] for backend in self.backends
            )
            / 1000,
            "cpu_us_a_chunk": used_s / (per_s * wall_s) * 1e6 if per_s else None,
            "cores_used": used_s / wall_s,
            "memory_mib": memory,
            "wrong": sum(one[key] for one in told for key in WRONG),
        }


def verdict(level: dict[str, Any]) -> str:
    if level["wrong"] or level["p99_us"] > LATE_MS * 1000:
        return "late"
    if level["chunks_per_s"] >= 0.97 * level["offered_per_s"]:
        return "holds"
    if level["engines_late_ms"] > INTERVAL_MS:
        return "engines late"
    return "late"


def ladder(rig: Rig, ports: Sequence[int], pid: int | None, count: int) -> dict[str, Any]:
    """Rates from low to high until two in a row are late."""
    levels: list[dict[str, Any]] = []
    late = 0
    for thousand in PER_CORE:
        for _ in range(TRIES):
            levels.append(rig.level(ports, pid, thousand * 1000 * count * INTERVAL_MS // 1000))
            told = levels[-1]
            how = verdict(levels[-1])
            say(
                f"  {told['offered_per_s']:,.0f}/s: {told['chunks_per_s']:,.0f}, p99 "
                f"{told['p99_us']:,.0f} us, {how}"
            )
            if how == "holds":
                break
        late = late + 1 if verdict(levels[-1]) == "late" else 0
        if late == 2:
            break
    best = max(
        (level for level in levels if verdict(level) == "holds"),
        key=lambda one: one["chunks_per_s"],
        default=None,
    )
    found = {"levels": levels, "capacity_per_s": best["chunks_per_s"] if best else 0.0}
    if best:
        found["cpu_us_a_chunk"] = best["cpu_us_a_chunk"]
        found["at_80_percent"] = rig.level(ports, pid, int(best["streams"] * 0.8))
    return found


def idle_clients(running: Running, count: int) -> float:
    """MiB that so many connections without a request take."""
    before = memory_mib(running.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
        time.sleep(1.0)
        return memory_mib(running.pid) - before


def large_bodies(rig: Rig, running: Sequence[Running]) -> dict[str, Any]:
    """What each adds to the median of a request of 100 KB and of 1 MB, in turns; and memory with
    64 of 1 MB at once.
    """
    rig.backends[0].set()
    sizes = (100_000, 1_000_000)
    ports = {"direct": rig.ports[0], **{one.name: one.port for one in running}}
    taken = measure.latency(ports, [rig.body(0, size) for size in sizes], 16, 20)
    found: dict[str, Any] = {}
    for one in running:
        for number, size in enumerate(sizes):
            found.setdefault(one.name, {})[f"added_us {size}"] = measure.added(
                taken[one.name][number], taken["direct"][number]
            )
        rig.backends[0].set(delay_ms=1500)
        before = memory_mib(one.pid)
        argv = [
            compiled("load"),
            "closed",
            one.port,
            rig.body(0, sizes[1]),
            "--conns",
            64,
            "--requests",
            64,
        ]
        with subprocess.Popen(
            [str(word) for word in argv], stdout=subprocess.PIPE, env=measure.ENV
        ):
            time.sleep(1.2)
            found[one.name]["memory_mib 64 of 1 MB"] = memory_mib(one.pid) - before
    rig.backends[0].set()
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def started(name: str, rig: Rig, count: int) -> Iterator[Running]:
    folder = rig.place / f"{name}-{count}-{time.monotonic_ns()}"
    folder.mkdir()
    running = START[name](folder, rig.ports, SLOTS, cores=count)
    try:
        wait_ready(running, folder, rig.body(0).read_bytes())
        yield running
    finally:
        running.close()


def measure_gateway(name: str, rig: Rig, count: int, *, extras: bool) -> dict[str, Any]:
    """By the number of its cores; `extras`: memory too."""
    found: dict[str, Any] = {}
    try:
        with started(name, rig, count) as running:
            found[str(count)] = ladder(rig, [running.port], running.pid, count)
            if extras:
                found["idle_mib 10000"] = idle_clients(running, 10_000)
                found["streaming 4000"] = rig.level([running.port], running.pid, 4000, 200)
    except (DidNotStart, OSError, subprocess.SubprocessError) as error:
        found[str(count)] = {"failed": repr(error)}
    return found


@contextlib.contextmanager
def rig_for(count: int) -> Iterator[Rig]:
    """For a gateway with so many cores."""
    tools = max(1, min(MOST_TOOLS, (cores() - 1 - count) // 2))
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backends = [
            stack.enter_context(measure.open_backend(1, core=1 + count + number))
            for number in range(tools)
        ]
        yield Rig(place, count, backends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", default="1,2,4,8")
    parser.add_argument("--only", default=",".join(START))
    parser.add_argument(
        "--out", type=Path, help="write what is found to this file, after every step"
    )
    parser.add_argument(
        "--before",
        help="the Python of another checkout of skep, whose gateway runs beside this one",
    )
    args = parser.parse_args()
    names = args.only.split(",")
    if args.before:
        START[BEFORE] = functools.partial(start_skep, name=BEFORE, python=args.before)
        names.insert(1, BEFORE)
    counts = [int(word) for word in args.cores.split(",")]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
    )
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "cores": cores(),
        "python": platform.python_version(),
    }
    for count in counts:
        with rig_for(count) as rig:
            say(f"direct, {rig.tools} engines and load tools")
            found[f"direct {count}"] = rig.level(
                rig.ports, None, PER_CORE[-1] * count * INTERVAL_MS
            )
            for name in names:
                if name in ALL_COUNTS or count == max(counts):
                    say(f"{name} on {count}")
                    measured = measure_gateway(name, rig, count, extras=count == max(counts))
                    found.setdefault(name, {}).update(measured)
                if args.out:
                    args.out.write_text(json.dumps(found, indent=1))
    say("large bodies")
    with rig_for(1) as rig, contextlib.ExitStack() as stack:
        running = []
        for name in names:
            with contextlib.suppress(DidNotStart, OSError):
                running.append(stack.enter_context(started(name, rig, 1)))
        found["large_bodies"] = large_bodies(rig, running)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    print(table(found, counts))


def table(found: dict[str, Any], counts: Sequence[int]) -> str:
    lines = [f"{'':14}" + "".join(f"{count:>4} cores{'':18}" for count in counts)]
    for name, told in found.items():
        if name in START:
            cells = (told.get(str(count), {}) for count in counts)
            lines.append(
                f"{name:14}"
                + "".join(
                    (
                        f"{cell.get('capacity_per_s', 0):>9,.0f}/s "
                        f"{cell.get('cpu_us_a_chunk') or 0:>5.1f} us/chunk  "
                    )
                    for cell in cells
                )
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
