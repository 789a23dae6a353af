"""The status of a running hive: one row a replica, and how long a process has run."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Status = dict[str, Any]
NO_REPLICAS = ("gateway", "monitor", "cluster")
OUTCOMES = ("answered", "refused", "broken", "hung_up")
NO_ANSWER = "the gateway gets no answer from its engine"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, from the rows of the supervisor and of the gateway."""

    name: str
    model: str
    state: str
    slots: int
    active: int | None  # None: the gateway does not know it
    releasing: int
    restarts: int | None
    mark: str
    why: str
    node: str = ""  # empty: here


def unanswered(gateway: Status) -> frozenset[str]:
    """Return the replicas whose circuit breaker in the gateway is open."""
    return frozenset(row["name"] for row in gateway.get("replicas", ()) if row["state"] in ("open", "half-open"))


def replicas_of(status: Status) -> list[ReplicaStatus]:
    gateway = status.get("gateway") or {}
    rows = {row["name"]: row for row in status["rows"] if row["kind"] not in NO_REPLICAS}
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for entry in gateway.get("replicas", ()):  # a name comes twice while an older replica of that name drains
        seen.setdefault(entry["name"], []).append(entry)
    return [_shown(rows.get(name, {}), entries, told=bool(gateway)) for name, entries in seen.items()]


def _shown(row: dict[str, Any], entries: list[dict[str, Any]], *, told: bool) -> ReplicaStatus:
    state, why, told_by = row.get("state", "ready"), row.get("why") or "", row or entries[0]
    if state == "ready" and entries:
        serving = [entry["state"] for entry in entries if entry["state"] != "draining"]
        state = next((found for found in serving if found != "up"), "up") if serving else "draining"
    elif state == "ready" and told:
        why = why or "gets no requests"
    active, releasing = (sum(entry[kind] for entry in entries) for kind in ("active", "releasing"))
    mark = "simulated" if any(source.get("simulated") for source in (row, *entries)) else ""
    model = next((source["model"] for source in (row, *entries) if source.get("model")), "")
    name, slots = told_by["name"], told_by["slots"]
    node, restarts = row.get("node") or "", row.get("restarts")
    return ReplicaStatus(name, model, state, slots, active if entries else None, releasing, restarts, mark, why, node)


def up_s(pid: int) -> float | None:
    """Return how long that process has run."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None  # there is no /proc
