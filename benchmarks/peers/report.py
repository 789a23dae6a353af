"""The results as aligned text. Knows the keys of `gateway.py`; measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

Row = tuple[str, Callable[[dict[str, Any]], str]]


def print_report(results: dict[str, Any]) -> None:
    machine = results["machine"]
    found = dict(results["results"])
    direct = found.pop("direct", {})
    print(f"{machine['cores']} cores ({machine['arch']}, Linux {machine['kernel']})")
    print(f"pinned, in all measurements: {machine['pinning']}; {machine['scheduling']}")
    print(
        "direct p50 us: "
        + ", ".join(f"{key.removeprefix('p50_us ')} {value:.0f}" for key, value in direct.items())
    )
    print()
    table(found, SPEED)
    print(
        "\nadded = through the gateway minus direct, one request at a time, in turns; "
        "(min..max of the rounds' medians)"
    )
    print(
        "CPU = user+system of the process tree, 8 clients; chunks: a few streams, 100 "
        "events/s each, out of step\n"
    )
    table(found, BEHAVIOUR)
    print(
        "\noverload: 32 clients, 2 backends x 4 slots, 50 ms each; `most inside` as each "
        "backend saw it"
    )
    print(
        "its own bound: nginx max_conns, routers --max-concurrent-requests (all workers), "
        "LiteLLM max_parallel_requests"
    )
    print(
        "spread: 32 agents, one prompt, 4 backends, 16 slots each; hang-up: ms until the "
        "backend sees it (median, max)"
    )
    many = {name: value["streams"] for name, value in found.items() if "streams" in value}
    if many:
        print(f"\n{results['effort']['streams']} streams, 20 chunks/s, 10 s, every byte checked\n")
        table(many, STREAMS)
    for name, value in found.items():
        print()
        notes = {
            key: text
            for key, text in value.get("bytes", {}).items()
            if text not in ("", "same", "kept")
        }
        for key, text in {**notes, **value.get("failures", {})}.items():
            print(f"{name}: {key}: {text}")
    for name, why in results["did_not_start"].items():
        print(f"\n{name}: did not start: {why}")


def table(found: dict[str, dict[str, Any]], rows: list[Row]) -> None:
    """Gateways side by side, one line per quantity."""
    lines = [["", *found]]
    for title, cell in rows:
        cells = []
        for value in found.values():
            try:
                cells.append(cell(value))
            except KeyError:
                cells.append("–")
        lines.append([title, *cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print(
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True)),
                ]
            ).rstrip()
        )


def with_spread(size: str) -> Callable[[dict[str, Any]], str]:
    def cell(value: dict[str, Any]) -> str:
        own = value[f"added {size}"]
        return f"{own['p50_us']:.0f} ({min(own['p50_rounds']):.0f}..{max(own['p50_rounds']):.0f})"

    return cell


def with_interval(size: str) -> Callable[[dict[str, Any]], str]:
    def cell(value: dict[str, Any]) -> str:
        own = value[f"ratio {size}"]
        return f"{own['ratio']:.2f} ({own['low']:.2f}..{own['high']:.2f})"

    return cell


def hang_up(kind: str) -> Callable[[dict[str, Any]], str]:
    def cell(value: dict[str, Any]) -> str:
        times = value[f"hangup {kind} ms"]
        seen = [time for time in times if time is not None]
        if not seen:
            return "not within 2 s"
        if len(seen) < len(times):
            lost = f", {len(times) - len(seen)} not in 2 s"
        else:
            lost = ""
        return f"{statistics.median(seen):.1f}, {max(seen):.1f}{lost}"

    return cell


def refused(own: dict[str, Any]) -> str:
    words = [f"{count} x {status}" for status, count in own["refused"].items()]
    words += [f"{own['failed']} failed"] if own["failed"] else []
    return ", ".join(words) or "none"


def shares(value: dict[str, Any]) -> str:
    return " ".join(f"{share * 100:.0f}" for share in value["spread"]["shares"])


def damage(value: dict[str, Any]) -> str:
    return "/".join(
        str(value[key]) for key in ("changed", "misplaced", "foreign", "incomplete", "failed")
    )


SPEED: list[Row] = [
    *((f"added p50 us, {size}", with_spread(size)) for size in ("2 KB", "100 KB")),
    *(
        (f"added p99 us, {size}", lambda v, size=size: f"{v[f'added {size}']['p99_us']:.0f}")
        for size in ("2 KB", "100 KB")
    ),
    *((f"p50 to HAProxy's, {size} (95 %)", with_interval(size)) for size in ("2 KB", "100 KB")),
    *(
        (f"CPU us/request, {size}", lambda v, size=size: f"{v[f'cpu {size}']['us']:.1f}")
        for size in ("2 KB", "100 KB")
    ),
    *(
        (f"requests/s, {size}", lambda v, size=size: f"{v[f'cpu {size}']['per_s']:.0f}")
        for size in ("2 KB", "100 KB")
    ),
    ("CPU us/chunk, few streams", lambda v: f"{v['chunk']['us']:.1f}"),
    ("chunk's way, p50 ms", lambda v: f"{v['chunk']['chunk_delay_us']['p50'] / 1000:.2f}"),
    ("PSS MiB at rest", lambda v: f"{v['memory_rest_mib']:.1f}"),
    ("PSS MiB after load", lambda v: f"{v['memory_loaded_mib']:.1f}"),
]
BEHAVIOUR: list[Row] = [
    ("overload: most inside (4 slots)", lambda v: " ".join(map(str, v["overload"]["max_inside"]))),
    ("overload: answered", lambda v: str(v["overload"]["answered"])),
    ("overload: refused, failed", lambda v: refused(v["overload"])),
    ("overload: p50 ms", lambda v: f"{v['overload']['latency_us']['p50'] / 1000:.0f}"),
    ("overload: p99 ms", lambda v: f"{v['overload']['latency_us']['p99'] / 1000:.0f}"),
    (
        "with its own bound: most inside",
        lambda v: " ".join(map(str, v["overload bounded"]["max_inside"])),
    ),
    ("with its own bound: answered", lambda v: str(v["overload bounded"]["answered"])),
    ("with its own bound: refused, failed", lambda v: refused(v["overload bounded"])),
    ("one prompt: share of each, %", shares),
    ("one prompt: max/mean", lambda v: f"{v['spread']['max_over_mean']:.2f}"),
    ("hang-up in a stream, ms", hang_up("streamed")),
    ("hang-up while waiting, ms", hang_up("waiting")),
    *(
        (key, lambda v, key=key: v["bytes"][key].partition(":")[0])
        for key in ("request body", "response body", "stream")
    ),
    *(
        (f"unknown {key}", lambda v, key=key: v["bytes"][key])
        for key in ("request header", "response header")
    ),
]
STREAMS: list[Row] = [
    ("open at once", lambda v: str(v["most_open"])),
    (
        "chunks/s with all open (40,000)",
        lambda v: f"{v['chunks_per_s']:.0f}" if v["chunks_per_s"] else "never all open",
    ),
    ("chunks of 400,000", lambda v: str(v["chunks"])),
    ("changed/misplaced/foreign/incomplete/failed", damage),
    ("chunk delay p50 ms", lambda v: f"{v['chunk_delay_us']['p50'] / 1000:.1f}"),
    ("chunk delay p99 ms", lambda v: f"{v['chunk_delay_us']['p99'] / 1000:.1f}"),
    ("chunks later than 50 ms", lambda v: str(v["chunk_delay_us"]["late"])),
    *(
        (f"CPU of {who}, %", lambda v, who=who: f"{v['cpu_share'][who] * 100:.0f}")
        for who in ("gateway", "backend", "load tool")
    ),
    (
        "CPU us/chunk",
        lambda v: (
            f"{v['cpu_share']['gateway'] / v['chunks_per_s'] * 1e6:.1f}"
            if v["chunks_per_s"]
            else "–"
        ),
    ),
    ("backend's own lateness, max ms", lambda v: f"{v['backend_late_max_ms']:.1f}"),
    ("PSS MiB with all open", lambda v: f"{v['memory_mib']:.1f}"),
]
