"""skep's gateway beside other gateways, side by side in one run: what each adds, costs and does
under pressure.

    .venv/bin/python benchmarks/gateway.py [--quick] [--only skep,haproxy] [--json]
    .venv/bin/python benchmarks/gateway.py --soak 1000000
    .venv/bin/python benchmarks/gateway.py --only skep,haproxy --before ../old/.venv/bin/python
    [--workers 4]

Everything on loopback, before the same C backend (peers/backend.c), with the same C load tool
(peers/load.c). Each peer is installed into a venv of its own on the first run and set up as its
documentation says (peers/start.py)."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import measure
from peers.install import PACKAGES, DidNotStart, compiled, installed
from peers.process import PINNED, go_ahead, memory_mib, open_files
from peers.report import print_report
from peers.start import BOUNDED, STARTERS, Running, Starter, start_skep, wait_ready

MANY = 4096  # slots where admission is not the question
BEFORE = "before"  # skep's gateway of another checkout
MANY_STREAMS_FOR = ("skep", BEFORE, "haproxy", "nginx")


@dataclass(frozen=True)
class Effort:
    rounds: int
    block: int
    cpu_rounds: int
    cpu_ms: int
    overload_ms: int
    hangups: int
    chunk_streams: int
    streams: int
    bounded: bool


FULL = Effort(
    rounds=24,
    block=50,
    cpu_rounds=3,
    cpu_ms=1000,
    overload_ms=4000,
    hangups=5,
    chunk_streams=32,
    streams=2000,
    bounded=True,
)
QUICK = Effort(
    rounds=6,
    block=15,
    cpu_rounds=1,
    cpu_ms=500,
    overload_ms=1500,
    hangups=1,
    chunk_streams=8,
    streams=0,
    bounded=False,
)


@dataclass
class Bench:
    """The names under test, those that failed and why, and what was found of each."""

    names: list[str]
    place: Path
    effort: Effort
    bodies: dict[str, Path]
    did_not_start: dict[str, str] = field(default_factory=dict)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextlib.contextmanager
    def running(
        self, phase: str, ports: Sequence[int], slots: int, starters: dict[str, Starter] = STARTERS
    ) -> Iterator[list[Running]]:
        """All that start, at the same time; the others are noted with their reason."""
        with contextlib.ExitStack() as stack:
            started = []
            for name in [
                name for name in self.names if name in starters and name not in self.did_not_start
            ]:
                say(f"{phase}: starting {name}")
                folder = self.place / phase.replace(" ", "-") / name
                folder.mkdir(parents=True)
                try:
                    running = starters[name](folder, ports, slots)
                    stack.callback(running.close)
                    started.append((running, folder))
                except Exception as error:
                    self.did_not_start[name] = f"{phase}: {error!r}"
            ready = []
            for running, folder in started:
                say(f"{phase}: waiting for {running.name}")
                try:
                    wait_ready(running, folder, self.bodies["2 KB"].read_bytes())
                    ready.append(running)
                except DidNotStart as error:
                    self.did_not_start[running.name] = f"{phase}: {error}"
            yield ready

    def note(self, running: Running, key: str, value: Any) -> None:
        self.found.setdefault(running.name, {})[key] = value

    def attempt(self, running: Running, key: str, measurement: Callable[[], Any]) -> None:
        """A measurement that fails leaves its reason instead of a value, and the others go on."""
        say(f"{key}: {running.name}")
        try:
            self.note(running, key, measurement())
        except Exception as error:
            self.found.setdefault(running.name, {}).setdefault("failures", {})[key] = repr(error)


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:78}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def speed(bench: Bench, backend: measure.Backend) -> None:
    """Latency, CPU, memory, streams, hang-ups and bytes: one backend, admission out of the way."""
    effort = bench.effort
    sizes = ("2 KB", "100 KB")
    with bench.running("speed", backend.ports[:1], MANY) as gateways:
        for gateway in gateways:
            bench.note(gateway, "memory_rest_mib", memory_mib(gateway.pid))
        say("latency, in turns")
        backend.set()
        ports = {
            "direct": backend.ports[0],
            **{gateway.name: gateway.port for gateway in gateways},
        }
        taken = measure.latency(
            ports, [bench.bodies[size] for size in sizes], effort.rounds, effort.block
        )
        for size, direct in zip(sizes, taken["direct"], strict=True):
            bench.found.setdefault("direct", {})[f"p50_us {size}"] = statistics.median(
                map(statistics.median, direct)
            )
        for gateway in gateways:
            for number, size in enumerate(sizes):
                value = measure.added(taken[gateway.name][number], taken["direct"][number])
                bench.note(gateway, f"added {size}", value)
        for gateway in gateways:
            for size in sizes if "haproxy" in bench.found else ():
                rounds = [
                    bench.found[name][f"added {size}"]["p50_rounds"]
                    for name in (gateway.name, "haproxy")
                ]
                bench.note(gateway, f"ratio {size}", measure.ratio(*rounds))
        costs(bench, backend, gateways, sizes)
        for gateway in gateways:
            bench.note(gateway, "memory_loaded_mib", memory_mib(gateway.pid))
            for key, body in (("hangup streamed ms", "stream"), ("hangup waiting ms", "2 KB")):
                text = bench.bodies[body].read_bytes()
                streamed = body == "stream"
                once = functools.partial(
                    measure.hang_up, gateway, backend, text, streamed=streamed
                )
                bench.attempt(
                    gateway, key, lambda once=once: [once() for _ in range(effort.hangups)]
                )
            stream = bench.found[gateway.name].get("chunk")
            bench.attempt(
                gateway,
                "bytes",
                functools.partial(measure.bytes_changed, gateway, backend, stream),
            )


def costs(
    bench: Bench, backend: measure.Backend, gateways: list[Running], sizes: Sequence[str]
) -> None:
    """CPU in rounds, the gateways in turns within each."""
    backend.set()
    for gateway in gateways:
        measure.cpu_per_request(gateway, bench.bodies["2 KB"], 200)  # warm
    for size in sizes:
        rounds: dict[str, list[dict[str, float]]] = {gateway.name: [] for gateway in gateways}
        for number in range(bench.effort.cpu_rounds):
            for gateway in turned(gateways, number):
                say(f"CPU per request, {size}: {gateway.name}")
                rounds[gateway.name].append(
                    measure.cpu_per_request(gateway, bench.bodies[size], bench.effort.cpu_ms)
                )
        for gateway in gateways:
            own = rounds[gateway.name]
            middle = {key: statistics.median(one[key] for one in own) for key in own[0]}
            bench.note(gateway, f"cpu {size}", {**middle, "rounds_us": [one["us"] for one in own]})
    chunks: dict[str, list[dict[str, Any]]] = {gateway.name: [] for gateway in gateways}
    for number in range(bench.effort.cpu_rounds):
        for gateway in turned(gateways, number):
            chunk = functools.partial(
                measure.cpu_per_chunk,
                gateway,
                backend,
                bench.bodies["stream"],
                bench.effort.chunk_streams,
            )
            bench.attempt(gateway, "chunk", chunk)
            if "chunk" in bench.found[gateway.name]:
                chunks[gateway.name].append(bench.found[gateway.name]["chunk"])
    for gateway in gateways:
        if own := sorted(chunks[gateway.name], key=lambda one: one["us"]):
            bench.note(
                gateway, "chunk", {**own[len(own) // 2], "rounds_us": [one["us"] for one in own]}
            )


def turned(gateways: list[Running], by: int) -> list[Running]:
    by %= max(1, len(gateways))
    return gateways[by:] + gateways[:by]


def pressure(bench: Bench, backend: measure.Backend) -> None:
    body = bench.bodies["2 KB"]
    ms = bench.effort.overload_ms
    for phase, starters in (
        ("overload", STARTERS),
        ("overload bounded", BOUNDED if bench.effort.bounded else {}),
    ):
        with bench.running(phase, backend.ports[:2], 4, starters) as gateways:
            for gateway in gateways:
                flood = functools.partial(
                    measure.overload, gateway, backend, backend.ports[:2], body, 4, ms
                )
                bench.attempt(gateway, phase, flood)
    with bench.running("spread", backend.ports[:4], 16) as gateways:
        for gateway in gateways:
            agents = functools.partial(
                measure.spread, gateway, backend, backend.ports[:4], body, ms // 2
            )
            bench.attempt(gateway, "spread", agents)


def streams(bench: Bench, backend: measure.Backend) -> None:
    """One gateway after the other, each alone on its core."""
    names = bench.names
    bench.names = []
    for name in names:
        if name not in MANY_STREAMS_FOR or not bench.effort.streams:
            continue
        bench.names = [name]
        with bench.running(f"streams-{name}", backend.ports[:1], MANY) as gateways:
            for gateway in gateways:
                body = bench.bodies["stream"]
                count = bench.effort.streams
                many = functools.partial(measure.many_streams, gateway, backend, body, count, 2000)
                bench.attempt(gateway, "streams", many)
    bench.names = names


def soak(bench: Bench, backend: measure.Backend, requests: int) -> None:
    step = 50_000
    bench.names = ["skep"]
    with bench.running("soak", backend.ports[:1], MANY) as gateways:
        backend.set()
        gateway = gateways[0]
        print(
            f"{'requests':>10} {'PSS MiB':>9} {'open files':>11} {'req/s':>8} {'failed':>7}",
            flush=True,
        )
        print(f"{0:>10} {memory_mib(gateway.pid):>9.2f} {open_files(gateway.pid):>11}", flush=True)
        for done in range(step, requests + step, step):
            part = min(step, requests - done + step)
            result = measure.load(
                "closed", gateway.port, bench.bodies["2 KB"], "--conns", 8, "--requests", part
            )
            per_s = result["answered"] / result["wall_s"]
            failed = part - result["statuses"].get("200", 0)
            facts = (
                f"{memory_mib(gateway.pid):>9.2f} {open_files(gateway.pid):>11} {per_s:>8.0f} "
                f"{failed:>7}"
            )
            print(f"{min(done, requests):>10} {facts}", flush=True)


def machine() -> dict[str, Any]:
    from skep import __version__

    return {
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {
            "skep": __version__,
            **{peer: version for peer, (_, version) in PACKAGES.items()},
        },
        "pinning": "gateways on core 1; load tool and backend on core 0"
        if PINNED
        else "none: one core",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="skep's gateway beside other gateways")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 2,000 streams")
    parser.add_argument("--only", default=",".join(STARTERS), help="comma-separated names")
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON instead of the table"
    )
    parser.add_argument(
        "--soak", type=int, nargs="?", const=1_000_000, help="so many requests through skep only"
    )
    parser.add_argument(
        "--before",
        help="the Python of another checkout of skep, whose gateway runs beside this one",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="processes of skep's gateway (default: 1)"
    )
    args = parser.parse_args()
    names = args.only.split(",")
    STARTERS["skep"] = functools.partial(start_skep, cores=args.workers)
    if args.before:
        STARTERS[BEFORE] = functools.partial(
            start_skep, name=BEFORE, python=args.before, cores=args.workers
        )
        names.insert(1, BEFORE)
    if unknown := set(names) - set(STARTERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(STARTERS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    compiled("load")
    scheduling = go_ahead()
    with (
        tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder,
        measure.open_backend(4) as backend,
    ):
        place = Path(folder)
        bench = Bench(names, place, QUICK if args.quick else FULL, measure.write_bodies(place))
        if args.soak:
            soak(bench, backend, args.soak)
            return 0
        for name in [name for name in names if name in PACKAGES]:
            try:
                installed(name)
            except DidNotStart as error:
                bench.did_not_start[name] = str(error)
        speed(bench, backend)
        pressure(bench, backend)
        streams(bench, backend)
    say("")
    results = {
        "machine": {**machine(), "scheduling": scheduling},
        "effort": vars(bench.effort),
        "workers": args.workers,
        "did_not_start": bench.did_not_start,
        "results": bench.found,
    }
    if args.json:
        print(json.dumps(results, indent=1))
    else:
        print_report(results)
    is_whole = not args.quick and names == list(STARTERS) and args.workers == 1
    if is_whole and "skep" not in bench.did_not_start:
        target = Path(__file__).parent / "results" / "gateway.json"
        target.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
