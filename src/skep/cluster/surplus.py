"""Replicas that stand and that their door does not want: what to close at all doors, and when one may be ended.

A door that comes back after a crash wants what its settings say; the load may have called more, and other doors go on
sending to them. Knows no ledger: only what each renewal told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from skep.engines.otherdoors import HEED_S


class Surplus:
    """`drain_s`: the longest that answers under way are waited for; None: not told yet, and nothing is ended."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.drain_s: float | None = None
        self._now = now
        self._since: dict[str, float] = {}
        self._doors: int | None = None
        self._busy: dict[str, int] = {}  # slots in use at the other doors

    def __repr__(self) -> str:
        return f"<Surplus {sorted(self._since)}>"

    def hear(self, told: Mapping[str, Any], *, whole: bool) -> None:
        """The answer to a renewal: of what is busy, all or only what has changed."""
        if "shares" in told:
            self._doors = told["doors"]
            self._busy = {**({} if whole else self._busy), **told["busy"]}

    def look(self, names: Iterable[str]) -> list[str]:
        """These are surplus at this moment. Which of them may be ended now."""
        now = self._now()
        self._since = {name: self._since.get(name, now) for name in names}
        return [name for name, since in self._since.items() if self._may_end(name, now - since)]

    def keep(self, name: str) -> None:
        """It is wanted again."""
        self._since.pop(name, None)

    @property
    def closed(self) -> list[str]:
        """For the other doors."""
        return list(self._since)

    def _may_end(self, name: str, closed_s: float) -> bool:
        if self._doors is None or self.drain_s is None:
            return False
        heeded = self._doors == 1 or (closed_s > HEED_S and not self._busy.get(name))
        return heeded or closed_s > self.drain_s
