"""When a run worked: its sessions as far as they did, the pauses between them, downtime, how many at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from skep.report.swarm_story import Down, Limit, Span
from skep.tasks import Attempt

Fact = tuple[int, str, float, dict[str, Any]]  # session, name, at, what

READING_S = 0.1  # at most, when many end at the same moment


class SessionLike(Protocol):
    """What is read of a stored session."""

    @property
    def number(self) -> int: ...
    @property
    def started_at(self) -> float: ...
    @property
    def ended_at(self) -> float | None: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def alive(self) -> bool: ...


def spans_of(
    sessions: Sequence[SessionLike],
    attempts: Sequence[Attempt],
    facts: Sequence[Fact],
    *,
    now: float,
    finished: bool,
) -> list[Span]:
    """`finished`: every task has its result, so what a session did after the last attempt is not counted.

    A session whose process vanished has no end; it worked at least until the last thing that it wrote.
    """
    last_of: dict[int, float] = {}
    for attempt in attempts:
        last_of[attempt.session] = max(last_of.get(attempt.session, 0.0), attempt.ended_at)
    told_of: dict[int, float] = {}
    for session, _, at, _ in facts:
        told_of[session] = max(told_of.get(session, 0.0), at)
    last = max(last_of.values(), default=None)
    spans: list[Span] = []
    for one in sessions:
        end = one.ended_at
        if end is None and one.alive:
            end = now
        if end is None:
            end = max(last_of.get(one.number, 0.0), told_of.get(one.number, 0.0), one.started_at)
        if finished and last is not None:
            end = min(end, max(last, one.started_at))
        end = max(end, one.started_at)
        before = max(0.0, one.started_at - spans[-1].ended_at) if spans else None
        spans.append(Span(one.number, one.started_at, end, before, one.outcome, one.alive, one.error))
    return spans


def downs_of(facts: Sequence[Fact], spans: Sequence[Span]) -> list[Down]:
    """From each word that the endpoint is down to the word that it is back, or to the end of the session."""
    found: list[Down] = []
    for span in spans:
        began: tuple[float, str | None] | None = None
        for _, _, at, fact in sorted(_named(facts, "endpoint", span.session), key=lambda one: one[2]):
            if not fact.get("up", True):
                began = began or (at, _words(fact))
            elif began is not None:
                found.append(Down(began[0], max(min(at, span.ended_at), began[0]), began[1]))
                began = None
        if began is not None and span.ended_at > began[0]:
            found.append(Down(began[0], span.ended_at, began[1]))
    return found


def limits_of(facts: Sequence[Fact], spans: Sequence[Span]) -> list[Limit]:
    known = {span.session for span in spans}
    found = [
        Limit(session, at, int(fact["limit"]), _words(fact) or "")
        for session, name, at, fact in facts
        if name == "limit" and session in known and isinstance(fact.get("limit"), int | float)
    ]
    return sorted(found, key=lambda one: (one.session, one.at))


def at_once(attempts: Sequence[Attempt]) -> int:
    """The largest number of attempts that were under way at the same moment.

    The next one is sent while an answer that is all here is still being read: those do not count as two.
    """
    edges = [(one.started_at, 1) for one in attempts]
    edges += [(max(one.started_at, one.ended_at - READING_S), -1) for one in attempts]
    most = now = 0
    for _, step in sorted(edges):  # one that ends at the moment when another begins makes room for it
        now += step
        most = max(most, now)
    return most


def busy_s(attempts: Sequence[Attempt]) -> float:
    return sum(max(0.0, one.ended_at - one.started_at) for one in attempts)


def _named(facts: Sequence[Fact], name: str, session: int) -> list[Fact]:
    return [one for one in facts if one[1] == name and one[0] == session]


def _words(fact: Mapping[str, Any]) -> str | None:
    why = fact.get("why")
    return str(why) if why else None
