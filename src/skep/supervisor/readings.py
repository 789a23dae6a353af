"""The status of a hive over time: rates, queues and slots from its readings, for `skep top` and the dashboard."""

from __future__ import annotations

from collections import deque
from typing import Any

from skep.paths import Paths
from skep.supervisor.control import OUTCOMES, ReplicaStatus, Status, ask, replicas_of, socket_of, up_s

HISTORY = 120  # readings
WINDOW_S = 10.0  # rates are means over so long


def read_status(paths: Paths, timeout_s: float) -> Status:
    """Return the status of the hive that runs here; blocks until it answers. Raises SkepError."""
    status = ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=timeout_s)
    return {**status, "up_s": up_s(status["pid"])}


class Rate:
    """What a counter gains per second over WINDOW_S. None: not counted yet. A step down (a new gateway) is no gain."""

    def __init__(self) -> None:
        self._last = 0.0
        self._told = False
        self._points: deque[tuple[float, float]] = deque()  # (time, gained since the first)

    def take(self, value: float | None, now: float) -> None:
        self._told = self._told or value is not None
        gain = max(0.0, (value or 0.0) - self._last)
        self._last = value or 0.0
        self._points.append((now, self._points[-1][1] + gain if self._points else 0.0))
        while len(self._points) > 2 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()

    def per_s(self) -> float | None:
        if not self._told:
            return None
        (began, before), (ended, after) = self._points[0], self._points[-1]
        return (after - before) / (ended - began) if ended > began else None


class HiveReadings:
    """All readings of one hive so far; another pid is another hive. `status`: the last one, or empty."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.status: Status = {}
        self.replicas: list[ReplicaStatus] = []
        self._ended = Rate()
        self._tokens: dict[str, Rate] = {}  # by replica; "": of all
        self._busy: dict[str, int] = {}  # slots, likewise
        self.speeds: deque[float | None] = deque(maxlen=HISTORY)
        self.queued: deque[int | None] = deque(maxlen=HISTORY)
        self.queued_of: dict[str, deque[int]] = {}  # by model

    def take(self, status: Status, now: float) -> None:
        """`now` is of a clock that is never set."""
        if self.status.get("pid") not in (None, status["pid"]):
            self.forget()
        self.status, self.replicas = status, replicas_of(status)
        if gateway := self.gateway:
            tokens: dict[str, float] = gateway["tokens"]
            self._busy = {one.name: one.active or 0 for one in self.replicas}
            self._busy[""] = sum(self._busy.values())
            counts = {**tokens, "": sum(tokens.values())} if tokens else {}
            for name in {*tokens, *self._busy}:
                self._tokens.setdefault(name, Rate()).take(counts.get(name), now)
            self._ended.take(sum(gateway["ended"].values()), now)
            for model, waiting in gateway["queues"].items():
                self.queued_of.setdefault(model, deque(maxlen=HISTORY)).append(sum(waiting.values()))
        self.speeds.append(self.tok_s)
        self.queued.append(gateway.get("queued"))

    @property
    def gateway(self) -> dict[str, Any]:
        """Return the figures of the gateway; empty: it gives none."""
        return self.status.get("gateway") or {}

    @property
    def tok_s(self) -> float | None:
        return self.tok_s_of("")

    @property
    def requests_per_s(self) -> float | None:
        return self._ended.per_s() if self.gateway else None

    @property
    def ended(self) -> dict[str, int | None]:
        """Return how many requests ended, by outcome."""
        return {name: self.gateway["ended"].get(name, 0) if self.gateway else None for name in OUTCOMES}

    def tok_s_of(self, replica: str) -> float | None:
        """Return tokens per second of a replica; "": of all.

        None: nobody has counted, or slots are busy and no token has passed: prompts are being read, or answers are not
        streamed. That is not known to be a speed of zero.
        """
        rate = self._tokens[replica].per_s() if self.gateway and replica in self._tokens else None
        return None if not rate and self._busy.get(replica) else rate

    def rates(self) -> dict[str, Any]:
        """Return all rates as JSON has them. None: nobody says."""
        replicas = {name: self.tok_s_of(name) for name in sorted(self._tokens) if name} if self.gateway else {}
        return {"tok_s": self.tok_s, "requests_per_s": self.requests_per_s, "replicas": replicas}

    def slots(self) -> dict[str, int | None]:
        """Return total, active and releasing slots of all replicas that the gateway knows."""
        known = [one for one in self.replicas if one.active is not None]
        if not known:
            return {"total": sum(one.slots for one in self.replicas), "active": None, "releasing": None}
        active, releasing = sum(one.active or 0 for one in known), sum(one.releasing for one in known)
        return {"total": sum(one.slots for one in known), "active": active, "releasing": releasing}
