"""Whether a process that should give a sign of life a few times a second still does. Knows no
process and no clock.

Time counts only as long as it says something about the process: not while the watching process
was itself stopped or asleep, and not while the process was ready to run and had no processor."""

from __future__ import annotations

from enum import Enum

import msgspec


class Liveness(Enum):
    ANSWERS = "answers"
    SILENT = "silent"  # it should get nothing new
    HANGS = "hangs"  # it should be ended


class SilenceLimits(msgspec.Struct, frozen=True):
    silent_s: float = 3.0
    hangs_s: float = 10.0
    start_s: float = 120.0  # from its start to its first sign of life
    gap_s: float = 1.0  # after a longer pause between two looks, silence counts from its end on


class SilenceWatch:
    """`heard` is called for each sign of life, `look` a few times a second."""

    def __init__(self, limits: SilenceLimits) -> None:
        self._limits = limits
        self._silence_s = 0.0
        self._looked_at: float | None = None
        self._heard_ever = False
        self._watching = True

    def __repr__(self) -> str:
        return f"<SilenceWatch silent for {self._silence_s:.1f} s>"

    def heard(self) -> None:
        self._silence_s = 0.0
        self._heard_ever = True

    def started(self, *, gives_signs: bool) -> None:
        """Begin to watch a process that has started.

        Without `gives_signs` no sign of life is expected of it, now or later.
        """
        self._watching = gives_signs
        self.heard()

    def look(self, now: float, *, waited_s: float = 0.0) -> Liveness:
        """Return what the silence of the process up to now says of it.

        `waited_s`: for how long since the last look it was ready to run and had no processor.
        """
        pause_s = 0.0
        if self._looked_at is not None:
            pause_s = now - self._looked_at
        self._looked_at = now
        if pause_s > self._limits.gap_s:
            self._silence_s = 0.0
        else:
            self._silence_s += max(0.0, pause_s - waited_s)
        if not self._watching:
            return Liveness.ANSWERS
        return self._liveness_after(self._silence_s)

    def _liveness_after(self, silence_s: float) -> Liveness:
        limits = self._limits
        if not self._heard_ever:
            if silence_s >= limits.start_s:
                return Liveness.HANGS
            return Liveness.ANSWERS
        if silence_s >= limits.hangs_s:
            return Liveness.HANGS
        if silence_s >= limits.silent_s:
            return Liveness.SILENT
        return Liveness.ANSWERS
