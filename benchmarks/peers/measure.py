"""The measurements, one function each.

They know ports and process ids, not which gateway stands behind them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.install import compiled
from peers.process import LOAD_CORE, cpu_between, cpu_ns, memory_mib, on_core
from peers.start import KEY, MODEL, Running, post

HANGUP_LIMIT_S = 2.0
STREAM_CHUNKS = 200
ENV = {**os.environ, "BENCH_KEY": KEY}


@dataclass(frozen=True)
class Backend:
    """The C backend: engines on several ports in one process."""

    ports: list[int]
    pid: int

    def get(self, path: str, port: int | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.ports[0], timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def set(
        self, *, delay_ms: float = 0, interval_ms: float = 10, slots: int = 0, record: int = 0
    ) -> None:
        """And all counters to zero."""
        self.get(
            f"/set?delay_us={delay_ms * 1000:.0f}&interval_us={interval_ms * 1000:.0f}&slots={slots}&record={record}"
        )
        self.get("/reset")

    def stats(self, port: int) -> dict[str, int]:
        counts: dict[str, int] = json.loads(self.get("/stats", port))
        return counts


@contextlib.contextmanager
def open_backend(ports: int, core: int = LOAD_CORE) -> Iterator[Backend]:
    with on_core(core):
        process = subprocess.Popen(
            [compiled("backend"), str(ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the benchmark
        )
    assert process.stdout
    assert process.stdin
    with process:
        try:
            yield Backend([int(word) for word in process.stdout.readline().split()], process.pid)
        finally:
            process.stdin.close()  # its end


def load(*words: object) -> Any:
    with on_core(LOAD_CORE):
        done = subprocess.run(
            [compiled("load"), *map(str, words)], stdout=subprocess.PIPE, check=True, env=ENV
        )
    return json.loads(done.stdout)


def write_bodies(place: Path) -> dict[str, Path]:
    """Chat requests as agents send them: a system prompt, then code and prose up to the size."""
    rng = random.Random(7)
    words = [
        "parser",
        "test",
        "returns",
        "the",
        "value",
        "\n    if x:",
        "list",
        "is",
        '"empty"',
        "when",
        "λ",
        "fix",
    ]
    bodies = {}
    for name, size, more in (
        ("2 KB", 2_000, {"stream": False}),
        ("100 KB", 100_000, {"stream": False}),
        ("stream", 2_000, {"max_tokens": STREAM_CHUNKS, "stream": True}),
    ):
        system = {
            "role": "system",
            "content": "You are a careful programmer. Answer with a patch.",
        }
        text = ""
        while len(text) < size - 200:
            text += rng.choice(words) + " "
        body = {"model": MODEL, "messages": [system, {"role": "user", "content": text}], **more}
        bodies[name] = place / f"body-{name.replace(' ', '')}.json"
        bodies[name].write_text(json.dumps(body))
    return bodies


# Latency


def latency(
    ports: dict[str, int], bodies: Sequence[Path], rounds: int, block: int
) -> dict[str, list[list[list[float]]]]:
    """us of each request: by name, body and round. A request that failed is infinitely slow."""
    names = list(ports)
    raw = load("latency", rounds, block, ",".join(map(str, ports.values())), *bodies)
    taken: dict[str, list[list[list[float]]]] = {name: [[] for _ in bodies] for name in names}
    for part in raw:
        values = [ns / 1000 if ns else float("inf") for ns in part["ns"]]
        taken[names[part["port"]]][part["body"]].append(values)
    return taken


def added(own: list[list[float]], direct: list[list[float]]) -> dict[str, Any]:
    """What the gateway adds to the median and the 99th percentile; `p50_rounds` are the medians
    round by round.

    The 99th percentile is the median of those of four parts of the run: a burst of other work is
    in one of them."""
    by_round = [
        statistics.median(a) - statistics.median(b) for a, b in zip(own, direct, strict=True)
    ]
    p99 = p99_us(own) - p99_us(direct)
    return {"p50_us": statistics.median(by_round), "p99_us": p99, "p50_rounds": by_round}


def p99_us(rounds: list[list[float]]) -> float:
    size = -(-len(rounds) // 4)
    parts = [
        [value for one in rounds[start * size : (start + 1) * size] for value in one]
        for start in range(4)
    ]
    return statistics.median(rank(part, 0.99) for part in parts if part)


def rank(values: list[float], share: float) -> float:
    return sorted(values)[int((len(values) - 1) * share)]


def ratio(own: list[float], other: list[float]) -> dict[str, float]:
    """Of two medians over the same rounds, with a bootstrap interval over the rounds."""
    rng = random.Random(1)
    drawn = []
    for _ in range(2000):
        picks = [rng.randrange(len(own)) for _ in own]
        drawn.append(
            statistics.median(own[i] for i in picks) / statistics.median(other[i] for i in picks)
        )
    drawn.sort()
    return {
        "ratio": statistics.median(own) / statistics.median(other),
        "low": drawn[49],
        "high": drawn[1949],
    }


# CPU, memory, streams


def cpu_per_request(running: Running, body: Path, ms: int) -> dict[str, float]:
    before = cpu_ns(running.pid)
    result = load("closed", running.port, body, "--conns", 8, "--ms", ms)
    used_s = cpu_between(before, cpu_ns(running.pid))
    good = result["statuses"].get("200", 0)
    return {
        "us": used_s / good * 1e6 if good else float("inf"),
        "per_s": good / result["wall_s"],
        "failed": result["failed"],
    }


def cpu_per_chunk(running: Running, backend: Backend, body: Path, streams: int) -> dict[str, Any]:
    backend.set(interval_ms=10)
    before = cpu_ns(running.pid)
    counts = ("--conns", streams, "--requests", streams, "--chunks", STREAM_CHUNKS)
    # So that they do not tick together.
    result = load("closed", running.port, body, *counts, "--ramp-ms", 200)
    used_s = cpu_between(before, cpu_ns(running.pid))
    kept = (
        "chunks",
        "changed",
        "misplaced",
        "foreign",
        "incomplete",
        "failed",
        "wall_s",
        "chunk_delay_us",
    )
    return {"us": used_s / max(1, result["chunks"]) * 1e6, **{key: result[key] for key in kept}}


def many_streams(
    running: Running, backend: Backend, body: Path, streams: int, ramp_ms: int
) -> dict[str, Any]:
    """Streams of 20 chunks a second for 10 s; the CPU shares are of the time when all of them
    run.
    """
    backend.set(interval_ms=50)
    seen: dict[str, Any] = {}
    command = [compiled("load"), "closed", str(running.port), body]
    command += [
        "--conns",
        streams,
        "--requests",
        streams,
        "--chunks",
        STREAM_CHUNKS,
        "--ramp-ms",
        ramp_ms,
    ]
    with on_core(LOAD_CORE):
        process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, env=ENV
        )
    try:
        time.sleep(ramp_ms / 1000 + 0.5)
        pids = {"gateway": running.pid, "backend": backend.pid, "load tool": process.pid}
        before = {who: cpu_ns(pid) for who, pid in pids.items()}
        began = time.monotonic()
        time.sleep(STREAM_CHUNKS * 0.05 - ramp_ms / 1000 - 1.0)
        wall = time.monotonic() - began
        seen["cpu_share"] = {
            who: cpu_between(before[who], cpu_ns(pid)) / wall for who, pid in pids.items()
        }
        seen["memory_mib"] = memory_mib(running.pid)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    result = json.loads(output)
    seen["backend_late_max_ms"] = backend.stats(backend.ports[0])["late_max_us"] / 1000
    seen["expected_chunks"] = streams * STREAM_CHUNKS
    return {**seen, **result}


# Behaviour


def overload(
    running: Running, backend: Backend, ports: Sequence[int], body: Path, slots: int, ms: int
) -> dict[str, Any]:
    """32 clients for `slots` places a backend; a backend works at so many at once and makes the
    others wait.
    """
    backend.set(delay_ms=50, slots=slots)
    result = load("closed", running.port, body, "--conns", 32, "--ms", ms)
    inside = [backend.stats(port)["max_running"] for port in ports]
    good = result["statuses"].pop("200", 0)
    return {
        "max_inside": inside,
        "answered": good,
        "per_s": good / result["wall_s"],
        "refused": result["statuses"],
        "failed": result["failed"] + result["unanswered"],
        "latency_us": result["latency_us"],
    }


def spread(
    running: Running, backend: Backend, ports: Sequence[int], body: Path, ms: int
) -> dict[str, Any]:
    backend.set(delay_ms=20)
    result = load("closed", running.port, body, "--conns", 32, "--ms", ms)
    counts = [backend.stats(port)["requests"] for port in ports]
    mean = max(1, sum(counts)) / len(counts)
    return {
        "shares": [count / mean / len(counts) for count in counts],
        "max_over_mean": max(counts) / mean,
        "answered": result["answered"],
    }


def hang_up(running: Running, backend: Backend, body: bytes, *, streamed: bool) -> float | None:
    """ms from the client's close until the backend sees its own connection closed; None: not
    within the limit.
    """
    backend.set(delay_ms=0 if streamed else 4000, interval_ms=20)
    before = backend.stats(backend.ports[0])["hangups"]
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: "
            "application/json\r\n"
            f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        client.settimeout(10)
        if streamed:
            while b"~" not in (part := client.recv(65536)):
                if not part:
                    raise ConnectionError("closed before the first chunk")
        time.sleep(0.3)
        closed_ns = time.monotonic_ns()
    while time.monotonic_ns() - closed_ns < HANGUP_LIMIT_S * 1e9:
        stats = backend.stats(backend.ports[0])
        if stats["hangups"] > before:
            return (stats["last_hangup_ns"] - closed_ns) / 1e6
        time.sleep(0.01)
    while backend.stats(backend.ports[0])[
        "running"
    ]:  # it works on for nobody; the next measurement waits for it
        time.sleep(0.05)
    return None


ODD = (
    b'{"model": "'
    + MODEL.encode()
    + b'",  "temperature":1.0, "vendor_field": {"b":1, "a":[1.50, 1e2]},\n'
    b' "messages": [{"content": "caf\\u00e9 \xc3\xa9", "role": "user"}], "stream": false}'
)


def bytes_changed(running: Running, backend: Backend, stream: dict[str, Any]) -> dict[str, str]:
    """What arrives on the other side, held against what was sent. `stream`: of `cpu_per_chunk`."""
    backend.set(record=1)
    port = backend.ports[0]
    _, answer = post(port, ODD)
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    connection.request(
        "POST",
        "/v1/chat/completions",
        ODD,
        {
            "Content-Type": "application/json",
            "X-Bench-Ask": "kept",
            "Authorization": f"Bearer {KEY}",
        },
    )
    response = connection.getresponse()
    relayed = response.read()
    connection.close()
    got = backend.get("/last_body", port)
    head = backend.get("/last_head", port).decode().lower()
    asked = {
        "host",
        "content-type",
        "x-bench-ask",
        "content-length",
        "accept-encoding",
        "authorization",
        "connection",
    }
    names = {line.partition(":")[0] for line in head.split("\r\n")[1:] if line}
    told = {"content-type", "x-bench-reply", "content-length", "connection"}
    new = {name.lower() for name, _ in response.getheaders()} - told
    return {
        "request body": "same" if got == ODD else difference(ODD, got),
        "response body": "same" if relayed == answer else difference(answer, relayed),
        "stream": "same"
        if not stream["changed"]
        else f"written anew: {stream['changed']} of {stream['chunks']} events",
        "request header": "kept" if "x-bench-ask: kept" in head else "dropped",
        "response header": "kept" if response.getheader("X-Bench-Reply") == "kept" else "dropped",
        "request headers added": ", ".join(sorted(names - asked)),
        "response headers added": ", ".join(sorted(new)),
    }


def difference(sent: bytes, got: bytes) -> str:
    try:
        document = json.loads(sent)
        other = json.loads(got)
    except ValueError:
        return f"not JSON any more: {got[:60]!r}"
    if document == other:
        return "written anew, same values"
    lost = sorted(document.keys() - other.keys())
    new = sorted(other.keys() - document.keys())
    changed = sorted(key for key in document.keys() & other.keys() if document[key] != other[key])
    parts = [
        f"{word} {', '.join(keys)}"
        for word, keys in (("lost", lost), ("new", new), ("changed", changed))
        if keys
    ]
    return "written anew: " + "; ".join(parts)
