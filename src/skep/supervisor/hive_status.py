"""The status of a hive as its readers show it: one row a replica, from what the supervisor and the
gateway say of it, and rates from one reading to the next. Draws nothing.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

import msgspec

from skep.config.gateway_messages import SessionFigures
from skep.host.processes import process_stat
from skep.paths import Paths
from skep.supervisor.control import ask, socket_of

Status = dict[str, Any]
NO_REPLICAS = ("gateway", "monitor", "cluster")
OUTCOMES = ("answered", "refused", "broken", "hung_up")
NO_ANSWER = "the gateway gets no answer from its engine"


class ReplicaStatus(msgspec.Struct, frozen=True):
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


def replicas_of(status: Status) -> list[ReplicaStatus]:
    """Return the replicas that the supervisor or the gateway knows."""
    gateway = status.get("gateway") or {}
    rows = {}
    for row in status["rows"]:
        if row["kind"] not in NO_REPLICAS:
            rows[row["name"]] = row
    # A name has two entries of the gateway while an older replica of that name drains.
    entries_of: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for entry in gateway.get("replicas", ()):
        entries_of.setdefault(entry["name"], []).append(entry)
    return [
        _replica_status(rows.get(name, {}), entries, gateway_answers=bool(gateway))
        for name, entries in entries_of.items()
    ]


def _replica_status(
    row: dict[str, Any], entries: list[dict[str, Any]], *, gateway_answers: bool
) -> ReplicaStatus:
    """Join the supervisor's row (empty: it has none) and the gateway's entries of one name."""
    sources = [row, *entries] if row else entries
    name = sources[0]["name"]
    slots = sources[0]["slots"]
    state = row.get("state", "ready")
    why = row.get("why") or ""
    if state == "ready" and entries:
        state = _state_at_gateway(entries)
    elif state == "ready" and gateway_answers:
        why = why or "gets no requests"
    active = None
    if entries:
        active = sum(entry["active"] for entry in entries)
    releasing = sum(entry["releasing"] for entry in entries)
    simulated = any(source.get("simulated") for source in sources)
    return ReplicaStatus(
        name=name,
        model=_model_of(sources),
        state=state,
        slots=slots,
        active=active,
        releasing=releasing,
        restarts=row.get("restarts"),
        mark="simulated" if simulated else "",
        why=why,
        node=row.get("node") or "",
    )


def _model_of(sources: list[dict[str, Any]]) -> str:
    for source in sources:
        if source.get("model"):
            return str(source["model"])
    return ""


def _state_at_gateway(entries: list[dict[str, Any]]) -> str:
    """Return `up`, or the first other state of those that do not drain; `draining`: all do."""
    state = "draining"
    for entry in entries:
        if entry["state"] not in ("draining", "up"):
            return str(entry["state"])
        if entry["state"] == "up":
            state = "up"
    return state


def up_s(pid: int) -> float | None:
    """Return how long that process has run; None where there is no /proc."""
    try:
        began_s = int(process_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
    except (OSError, AttributeError):
        return None


# The status over time, for `skep top` and the dashboard

READINGS_KEPT = 120  # readings
WINDOW_S = 10.0  # rates are means over so long


def read_status(paths: Paths, timeout_s: float) -> Status:
    """Return the status of the hive that runs here; blocks until it answers. Raises SkepError."""
    status = ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=timeout_s)
    return {**status, "up_s": up_s(status["pid"])}


def read_sessions(paths: Paths, timeout_s: float) -> list[SessionFigures]:
    """Return the sessions that the gateway of the hive here knows, newest first. Raises
    SkepError.
    """
    answer = ask(socket_of(paths.lock, paths.socket), {"op": "sessions"}, timeout_s=timeout_s)
    return msgspec.convert(answer["sessions"], list[SessionFigures])


class Rate:
    """What a counter gains per second over WINDOW_S.

    A step down (a new gateway counts from zero) is no gain.
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._was_counted = False
        self._points: deque[tuple[float, float]] = deque()  # (time, gained since the first)

    def take(self, value: float | None, now: float) -> None:
        """Take a reading; None: nobody counts."""
        self._was_counted = self._was_counted or value is not None
        count = value or 0.0
        gain = max(0.0, count - self._last)
        self._last = count
        gained = 0.0
        if self._points:
            gained = self._points[-1][1] + gain
        self._points.append((now, gained))
        while len(self._points) > 2 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()

    def per_s(self) -> float | None:
        """Return the rate; None: nobody has counted yet, or only once."""
        if not self._was_counted:
            return None
        began, before = self._points[0]
        ended, after = self._points[-1]
        if ended > began:
            return (after - before) / (ended - began)
        return None


class HiveReadings:
    """The readings of one hive so far; another pid is another hive.

    `status` is the last reading, or empty.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.status: Status = {}
        self.replicas: list[ReplicaStatus] = []
        self._ended = Rate()
        self._tokens: dict[str, Rate] = {}  # by replica; "": of all
        self._busy: dict[str, int] = {}  # slots, likewise
        self.speeds: deque[float | None] = deque(maxlen=READINGS_KEPT)
        self.queued: deque[int | None] = deque(maxlen=READINGS_KEPT)

    def take(self, status: Status, now: float) -> None:
        """Take a reading. `now` is of a clock that is never set."""
        if self.status.get("pid") not in (None, status["pid"]):
            self.forget()
        self.status = status
        self.replicas = replicas_of(status)
        if gateway := self.gateway:
            self._take_counters(gateway, now)
        self.speeds.append(self.tok_s)
        self.queued.append(gateway.get("queued"))

    def _take_counters(self, gateway: dict[str, Any], now: float) -> None:
        tokens: dict[str, float] = gateway["tokens"]
        self._busy = {replica.name: replica.active or 0 for replica in self.replicas}
        self._busy[""] = sum(self._busy.values())
        counts = dict(tokens)
        if tokens:
            counts[""] = sum(tokens.values())
        for name in {*tokens, *self._busy}:
            self._tokens.setdefault(name, Rate()).take(counts.get(name), now)
        self._ended.take(sum(gateway["ended"].values()), now)

    @property
    def gateway(self) -> dict[str, Any]:
        """The figures of the gateway; empty: it gives none."""
        return self.status.get("gateway") or {}

    @property
    def tok_s(self) -> float | None:
        return self.tok_s_of("")

    @property
    def requests_per_s(self) -> float | None:
        if self.gateway:
            return self._ended.per_s()
        return None

    @property
    def ended(self) -> dict[str, int | None]:
        """How many requests ended, by outcome; None: the gateway gives no figures."""
        if not self.gateway:
            return dict.fromkeys(OUTCOMES)
        return {name: self.gateway["ended"].get(name, 0) for name in OUTCOMES}

    def tok_s_of(self, replica: str) -> float | None:
        """Return tokens per second of a replica; "": of all.

        None: nobody counts, or slots are busy and no token came.
        """
        rate = None
        if self.gateway and replica in self._tokens:
            rate = self._tokens[replica].per_s()
        if not rate and self._busy.get(replica):
            return None
        return rate

    def rates(self) -> dict[str, Any]:
        """Return all rates as JSON has them. None: nobody counts."""
        replicas = {}
        if self.gateway:
            names = sorted(self._tokens.keys() - {""})
            replicas = {name: self.tok_s_of(name) for name in names}
        return {"tok_s": self.tok_s, "requests_per_s": self.requests_per_s, "replicas": replicas}

    def slots(self) -> dict[str, int | None]:
        """Return total, active and releasing slots of the replicas that the gateway knows.

        Where it knows none, the total is of all replicas, and the rest is unknown.
        """
        replicas = [replica for replica in self.replicas if replica.active is not None]
        if not replicas:
            total = sum(replica.slots for replica in self.replicas)
            return {"total": total, "active": None, "releasing": None}
        total = sum(replica.slots for replica in replicas)
        active = sum(replica.active or 0 for replica in replicas)
        releasing = sum(replica.releasing for replica in replicas)
        return {"total": total, "active": active, "releasing": releasing}
