"""Power limits of cards while a tuning changes them, and how they are put back.

What a limit was is in a file before it is changed, so that a process that is killed leaves what it
takes to put it back. Which limit is worth trying is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skep.errors import EngineError, SkepError
from skep.files import write_whole
from skep.host.power_limit import read_power_limits, set_power_limit
from skep.paths import Paths


def record_of(paths: Paths) -> Path:
    """Return the file that holds what limits were before they were changed."""
    return paths.state / "power-limits.json"


class PowerLimits:
    """The limits of some cards while they are changed. `record`: the file that holds the old
    ones.
    """

    def __init__(self, cards: Sequence[int], record: Path) -> None:
        self._cards = tuple(cards)
        self._record = record
        self._now_w: int | None = None

    def set(self, watts: int) -> None:
        """Set the limit of all cards; what it was is written down first."""
        if watts == self._now_w:
            return
        if not self._record.exists():
            limits = {str(limit.card): limit.limit_w for limit in read_power_limits(self._cards)}
            self._record.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._record, json.dumps(limits))
        for card in self._cards:
            set_power_limit(card, watts)
        self._now_w = watts


def restore_power_limits(record: Path) -> str | None:
    """Put back what the file says, and remove it. Return what was done; None: nothing was to do.

    Raise EngineError where it cannot be put back; the file stays.
    """
    try:
        limits: dict[str, int] = msgspec.json.decode(record.read_bytes(), type=dict[str, int])
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    try:
        now = {str(limit.card): limit.limit_w for limit in read_power_limits([*map(int, limits)])}
        changed = {card: watts for card, watts in limits.items() if now[card] != watts}
        for card, watts in changed.items():
            set_power_limit(int(card), watts)
    except SkepError as error:
        commands = "; ".join(f"nvidia-smi -i {card} -pl {watts}" for card, watts in limits.items())
        raise EngineError(
            f"a power limit was not put back: {error.message}", hint=f"run `{commands}`"
        ) from None
    record.unlink()
    if not changed:
        return None
    cards = ", ".join(f"{watts} W on card {card}" for card, watts in changed.items())
    return f"the power limit is what it was again: {cards}"
