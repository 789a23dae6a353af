"""Holds three accounts against each other: the clients' notes, the gateway's rows and counters,
the engines' own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from havoc.asks import Manners
from havoc.clients import Note
from havoc.verdicts import End

from skep.store.records import GatewayRequest

SHOWN = 5
UNREAD_S = 0.5  # a gateway on a busy machine may not get to read for so long
STRANGER = "invalid_api_key"
_SERIES = re.compile(r"^(skep_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
OUTCOMES = {
    End.ANSWERED: ("answered",),
    End.HANDED_ON: ("answered",),
    End.REFUSED: ("refused",),
    End.CUT: ("broken",),
    End.LEFT: (
        "hung_up",
        "answered",
        "refused",
        "broken",
    ),  # it may not have seen what was already on its way
}


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str


def check(name: str, wrong: Iterable[str], fine: str = "") -> Check:
    found = list(wrong)
    if len(found) > SHOWN:
        more = f" (and {len(found) - SHOWN} more)"
    else:
        more = ""
    return Check(name, not found, "; ".join(found[:SHOWN]) + more if found else fine)


def of_clients(notes: Sequence[Note], silence_s: float) -> list[Check]:
    ids = Counter(note.id for note in notes if note.id is not None)
    wrong = [
        f"#{note.ask.number} {note.verdict.what}"
        for note in notes
        if note.verdict.end is End.WRONG
    ]
    longest = max((note.silence_s for note in notes), default=0.0)
    waited = [
        f"#{note.ask.number} {note.silence_s:.1f} s"
        for note in notes
        if note.silence_s >= silence_s
    ]
    return [
        check("every request has one honest end", wrong, f"{len(notes)} requests"),
        check(
            "no answer's id twice",
            (f"{name} {count}x" for name, count in ids.items() if count > 1),
            f"{len(ids)} ids",
        ),
        check(f"no client waits {silence_s:g} s for a byte", waited, f"longest {longest:.1f} s"),
    ]


def of_rows(notes: Sequence[Note], rows: Sequence[GatewayRequest]) -> list[Check]:
    """A row is found by the length of its request's body, which is no other request's."""
    by_bytes: dict[int, list[GatewayRequest]] = {}
    for row in rows:
        by_bytes.setdefault(row.request_bytes, []).append(row)
    known = {len(note.ask.body): note for note in notes}
    strange = [
        f"{row.id} of {row.request_bytes} bytes" for row in rows if row.request_bytes not in known
    ]
    double = [
        f"#{known[size].ask.number} {len(own)}x"
        for size, own in by_bytes.items()
        if len(own) > 1 and size in known
    ]
    missing = []
    differ = []
    for size, note in known.items():
        own = by_bytes.get(size)
        if own is None:
            if not _may_be_unknown(note) and not _is_stranger(note):
                missing.append(_visit(note))
        elif (difference := _difference(note, own[0])) is not None:
            differ.append(f"#{note.ask.number} {difference}")
    ids = Counter(row.id for row in rows)
    double += [f"id {name} {count}x" for name, count in ids.items() if count > 1]
    unseen = sum(_may_be_unknown(note) and len(note.ask.body) not in by_bytes for note in notes)
    return [
        check(
            "a row for each request",
            missing,
            f"{len(rows)} rows, {unseen} requests that never arrived whole",
        ),
        check("no row twice, none of nobody", double + strange, f"{len(ids)} ids"),
        check("rows say what clients saw", differ, "outcome, status, code, id, replica, bytes"),
    ]


def _visit(note: Note) -> str:
    """Return which request it was and how its client went."""
    ask = note.ask
    way = "reset" if ask.reset else "closed"
    return (
        f"#{ask.number} {ask.path} of {ask.key}, {note.verdict.end.value} after "
        f"{note.ended_s:.2f} s, {way}"
    )


def _is_stranger(note: Note) -> bool:
    """Requests without a valid key are counted and not kept.

    `cub` is a key that comes and goes.
    """
    if note.verdict.end is End.LEFT:
        return note.ask.key == "cub"
    return note.verdict.end is End.REFUSED and note.verdict.what == STRANGER


def _may_be_unknown(note: Note) -> bool:
    """Half a request is none; what was sent before a reset may never be read."""
    if note.ask.manners is Manners.HALF or note.verdict.end is End.UNTAKEN:
        return True
    return note.verdict.end is End.LEFT and note.ask.reset and note.ended_s < UNREAD_S


def _difference(note: Note, row: GatewayRequest) -> str | None:
    end = note.verdict.end
    head = note.head
    if end is End.WRONG:
        return None
    if note.ask.manners is Manners.HALF or end is End.UNTAKEN:
        return f"{end.value} {note.verdict.what}, and has a row: {row}"
    if row.outcome not in OUTCOMES[end]:
        return f"client: {end.value} {note.verdict.what}; row: {row.outcome} {row.code}"
    if head is None:
        return None
    facts = [
        ("id", note.id, row.id),
        ("status", head.status, row.status),
        ("path", note.ask.path, row.path),
    ]
    # A stream that waited had its head before a replica.
    if not (note.ask.streamed and "replica" not in head.told):
        facts.append(
            (
                "replica",
                head.told.get("replica"),
                row.replica if row.outcome != "refused" else None,
            )
        )
    if end is End.REFUSED:
        facts.append(("code", note.verdict.what, row.code))
    if end in (End.ANSWERED, End.HANDED_ON):
        facts += [
            ("bytes", note.body_bytes - note.comment_bytes, row.response_bytes),
            ("code", None, row.code),
        ]
        facts.append(("streamed", head.chunked, row.streamed))
    if end is End.CUT:
        facts.append(("code", "stream_cut", row.code))
    for name, seen, kept in facts:
        if seen != kept:
            return f"{name}: client {seen!r}, row {kept!r}"
    return None


def series(metrics: str) -> list[tuple[str, dict[str, str], float]]:
    return [
        (name, dict(_LABEL.findall(labels)), float(value))
        for name, labels, value in _SERIES.findall(metrics)
    ]


def of_counters(
    metrics: str, rows: Sequence[GatewayRequest], ended: dict[str, float]
) -> tuple[list[Check], int]:
    """The checks, and the number of retries."""
    counted: Counter[str] = Counter()
    retries = lost = 0.0
    strangers = 0
    gauges = Counter[str]()
    for name, labels, value in series(metrics):
        if name == "skep_requests_total":
            counted[labels["outcome"]] += int(value)
            strangers += int(value) if labels["code"] == STRANGER else 0
        elif name == "skep_retries_total":
            retries += value
        elif name == "skep_rows_lost":
            lost += value
        elif name in ("skep_slots_busy", "skep_queue_length"):
            gauges[name] += int(value)
    counter = Counter(row.outcome for row in rows)
    counter["refused"] += strangers
    wrong = [
        f"{name}: counter {counted[name]}, rows {counter[name]}"
        for name in counted | counter
        if counted[name] != counter[name]
    ]
    wrong += [
        f"{name}: status {ended.get(name)}, counter {counted[name]}"
        for name in counted
        if ended.get(name) != counted[name]
    ]
    if lost:
        wrong.append(f"{lost:g} rows lost")
    least = sum(max(0, row.attempts - 1) for row in rows)
    if retries < least:
        wrong.append(f"{retries:g} retries counted, rows tell of {least}")
    left = [f"{name} {value}" for name, value in gauges.items() if value]
    return [
        check(
            "counters agree with rows",
            wrong,
            ", ".join(f"{name} {count}" for name, count in sorted(counter.items())),
        ),
        check("gauges at zero at the end", left, "skep_slots_busy, skep_queue_length"),
    ], int(retries)
