"""What the loop has to write, in order, and what waits while nothing can be written: a full disk loses nothing.

Knows neither targets nor times. A probe comes with the events that it shows; those are written before it, and found
again if the process was killed in between, so that neither is lost nor told twice.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skep.errors import StoreError
from skep.series import Event, Probe, ProbeOutcome, Sample
from skep.store.faults import is_about_a_row
from skep.store.series import SeriesStore

MOST = 1000  # entries that wait
_FAULTS_OF_VALUES = (StoreError, OverflowError, ValueError, TypeError)


@dataclass(frozen=True, slots=True)
class Entry:
    probe: Probe | None = None
    samples: Sequence[Sample] = ()
    events: Sequence[Event] = ()


class Backlog:
    """`put` from the event loop; `write` from any thread, as often as wanted."""

    def __init__(self, series: SeriesStore, say: Callable[[str], None], most: int = MOST) -> None:
        self._series = series
        self._most = most
        self._say = say
        self._entries: deque[Entry] = deque()
        self._writing = threading.Lock()  # entries are written in the order in which they were put, each once
        self._trouble: str | None = None

    def __repr__(self) -> str:
        return f"<Backlog of {len(self._entries)}{', ' + self._trouble if self._trouble else ''}>"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """More would not be safe in memory: no probe is begun until there is room."""
        return len(self._entries) >= self._most

    def put(self, entry: Entry) -> None:
        self._entries.append(entry)

    def write(self) -> bool:
        """Everything that waits, or as much as can be written now. Whether nothing waits any more."""
        with self._writing:
            while self._entries:
                try:
                    self._write_one(self._entries[0])
                except StoreError as error:
                    self._wait(error)
                    return False
                self._entries.popleft()
            if self._trouble is not None:
                self._trouble = None
                self._say("monitor.writes again=true")
            return True

    def _write_one(self, entry: Entry) -> None:
        try:
            for event in entry.events:
                if not self._is_known(event):
                    self._series.append_event(event)
            if entry.probe is not None:
                self._series.append_probe(entry.probe, entry.samples)
        except _FAULTS_OF_VALUES as error:
            if isinstance(error, StoreError) and not is_about_a_row(error):
                raise
            self._write_bare(entry, error)

    def _write_bare(self, entry: Entry, error: Exception) -> None:
        """A value has no place in the store: the occasion is kept as one that failed, and does not hold up others."""
        self._say(f"monitor.dropped why={str(error)!r}")
        if entry.probe is None:
            return
        whole = entry.probe
        bare = Probe(
            target=whole.target,
            era=whole.era,
            slot=whole.slot,
            slots=whole.slots,
            due_at=whole.due_at,
            started_at=whole.started_at,
            ended_at=whole.ended_at,
            outcome=ProbeOutcome.FAILED if whole.outcome is ProbeOutcome.DONE else whole.outcome,
            error_kind="store",
            error="what it brought could not be stored",
        )
        try:
            self._series.append_probe(bare)
        except _FAULTS_OF_VALUES as again:
            if isinstance(again, StoreError) and not is_about_a_row(again):
                raise
            self._say(f"monitor.lost why={str(again)!r}")

    def _is_known(self, event: Event) -> bool:
        """Written before the process was killed: the same news since the same probe."""
        since = event.detail.get("since")
        if since is None:
            return False
        told = self._series.events(min(since, event.at), math.inf, event.target)
        return any((one.kind, one.detail) == (event.kind, dict(event.detail)) for one in told)

    def _wait(self, error: StoreError) -> None:
        if self._trouble is None:
            self._say(f"monitor.waits why={error.message!r} hint={error.hint!r}")
        self._trouble = error.message
