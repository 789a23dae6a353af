"""A door's renewals: only what is new is said to the ledger, and only that is heard. Knows no link and no clock.

What is new is so beside the last question that was answered. After any other outcome all is said again, and to a ledger
that does not know that question (`again`), too: it was started anew, or has not heard this door for too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skep.wire.link import Message


class Renewals:
    """`elsewhere`: slots in use at the other doors, by replica, by the newest answer."""

    def __init__(self) -> None:
        self.elsewhere: dict[str, int] = {}
        self._since: int | None = None  # the mark of the newest answer; None: all is to be said
        self._asked: tuple[dict[str, int], dict[str, int]] = {}, {}
        self._said: tuple[dict[str, int], dict[str, int]] = {}, {}

    def question(self, busy: Mapping[str, int], holds: Mapping[str, int]) -> Message:
        """`holds`: of the replicas of which a share was told, 0 included."""
        self._asked = {name: count for name, count in busy.items() if count}, dict(holds)
        if self._since is None:
            return {"busy": self._asked[0], "holds": self._asked[1], "since": None}
        busy_news, holds_news = (_news(*pair) for pair in zip(self._said, self._asked, strict=True))
        return {"busy": busy_news, "holds": holds_news, "since": self._since}

    def heard(self, answer: Message | None) -> bool:
        """Whether shares were told. None: no answer came in time."""
        if answer is None or "shares" not in answer:
            self._since = None
            return False
        told: dict[str, int] = answer["busy"] if self._since is None else {**self.elsewhere, **answer["busy"]}
        self.elsewhere = {name: count for name, count in told.items() if count}
        self._since, self._said = answer["mark"], self._asked
        return True


def _news(before: dict[str, int], now: dict[str, int]) -> dict[str, Any]:
    """What is not as it was; None: no more."""
    if before == now:
        return {}
    changed: dict[str, Any] = {name: count for name, count in now.items() if before.get(name) != count}
    return changed | {name: None for name in before if name not in now}
