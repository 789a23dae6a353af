"""Versions of what was probed, and what changed since the probe before: upgrades, restarts, down and up."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from skep import __version__
from skep.bench.endpoint import Endpoint
from skep.errors import UserError
from skep.host.nvidia import NvidiaReport
from skep.monitor.records import BUSY, EventKind, MonitorEvent, Probe, ProbeOutcome
from skep.wire.client import Pool
from skep.wire.fetch import fetch_if_there
from skep.wire.heads import parse_url

HERE = "here"
BEGAN_AT, TOKENS_TOTAL = "process_began_at", "tokens_total"  # in a probe's `host`
SAME_BEGIN_S = 2.0
_ASK_S = 5.0
_VERSION_PATHS = {"vllm": "/version", "ollama": "/api/version", "sglang": "/get_server_info"}
_NO_EVENT = ("server",)  # a front may answer for several servers


def machine_of(url: str) -> str:
    """Return which machine a target runs on, so that two probes do not disturb each other there."""
    try:
        host = parse_url(url)[0].host.lower()
    except UserError:
        return url
    if host in ("localhost", "") or host.endswith(".localhost"):
        return HERE
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return HERE if address.is_loopback or address.is_unspecified else host


async def read_versions(endpoint: Endpoint, pool: Pool, nvidia: NvidiaReport | None) -> dict[str, str]:
    """`nvidia`: of this machine, where the target runs here. What is not told is not there."""
    told = endpoint.engine
    found: dict[str, object] = {"skep": __version__, "model": endpoint.model}
    if isinstance(told.get("model_path"), str):
        found["model"] = PurePath(told["model_path"].replace("\\", "/")).name or endpoint.model
    meta = told.get("meta")
    if isinstance(meta, Mapping):
        found["weights_bytes"] = meta.get("size")
    found |= {name: told.get(name) for name in ("engine", "build", "server")}
    engine = "ollama" if endpoint.api == "ollama" else str(told.get("engine", "")).lower()
    if engine in _VERSION_PATHS and "build" not in told:
        headers = dict(endpoint.headers)
        answer = await fetch_if_there(pool, "GET", _VERSION_PATHS[engine], headers=headers, timeout_s=_ASK_S)
        version = answer.document().get("version") if answer else None
        found["build"] = version if isinstance(version, str) else None
    if nvidia is not None:
        found |= {"driver": nvidia.driver_version, "cuda": nvidia.cuda_version}
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


@dataclass(slots=True)
class LastSeen:
    """What the probes of one target have shown until now."""

    outcome: ProbeOutcome | None = None
    ended_at: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    began_at: float | None = None
    tokens_total: float | None = None

    def take(self, probe: Probe) -> None:
        """Missed ones have shown nothing."""
        if probe.outcome is ProbeOutcome.MISSED:
            return
        self.outcome = self.outcome if probe.error_kind == BUSY else probe.outcome  # neither up nor down
        self.ended_at = probe.ended_at
        self.versions |= probe.versions
        self.began_at = number_in(probe.host, BEGAN_AT) or self.began_at
        self.tokens_total = number_in(probe.host, TOKENS_TOTAL) or self.tokens_total


def events_since(seen: LastSeen, probe: Probe) -> list[MonitorEvent]:
    """Events between what was seen and this probe. Nothing is said of what was not known before."""
    at = probe.due_at if probe.started_at is None else probe.started_at
    news: list[MonitorEvent] = []

    def tell(kind: EventKind, text: str, **detail: object) -> None:
        news.append(MonitorEvent(at, kind, text, probe.target, {"since": seen.ended_at, **detail}))

    failed, had_failed = (outcome is ProbeOutcome.FAILED for outcome in (probe.outcome, seen.outcome))
    if probe.error_kind != BUSY and failed and not had_failed:
        tell(EventKind.DOWN, f"down: {probe.error or probe.error_kind}", error_kind=probe.error_kind)
    elif probe.error_kind != BUSY and had_failed and not failed:
        tell(EventKind.UP, "up again")
    if _began_anew(seen, probe):
        tell(EventKind.RESTART, "started anew")
    for name, value in sorted(probe.versions.items()):
        before = seen.versions.get(name)
        if before is not None and before != value and name not in _NO_EVENT:
            text = f"{name.replace('_', ' ')} changed from {before} to {value}"
            tell(EventKind.VERSION, text, **{"what": name, "from": before, "to": value})
    return news


def _began_anew(seen: LastSeen, probe: Probe) -> bool:
    """By the time its process tells; else by its count of tokens, which only a new process lowers."""
    began, tokens = number_in(probe.host, BEGAN_AT), number_in(probe.host, TOKENS_TOTAL)
    if began is not None and seen.began_at is not None:
        return abs(began - seen.began_at) > SAME_BEGIN_S
    return tokens is not None and seen.tokens_total is not None and tokens < seen.tokens_total


def number_in(facts: Mapping[str, Any], name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
