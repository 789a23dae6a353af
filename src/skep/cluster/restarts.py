"""Restarts that were asked for: told again until somebody has heard them, or until they are needless.

A replica that is to be restarted gets nothing new until it has been. An order that is lost with the envoy that had it
would leave it so. Knows no envoy: only where to send, and what is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skep.cluster.hosted import Hosted
from skep.wire.link import Message


class Restarts:
    """`send` says whether there is anybody to hear it."""

    def __init__(self, send: Callable[[Message], bool]) -> None:
        self._send = send
        self._before: dict[str, tuple[int | None, int]] = {}  # by replica: its process, and how often it was restarted
        self._unanswered: set[str] = set()  # of these, those that somebody was told and has not answered

    def __repr__(self) -> str:
        return f"<Restarts {len(self._before)} asked for, {len(self._unanswered)} unanswered>"

    def ask(self, member: Hosted) -> bool:
        name = member.launch.name
        if not self._tell(name):
            return False
        self._before[name] = member.pid, member.life.restarts
        return True

    def hear(self, answer: Message) -> bool:
        """Whether it answers one of these."""
        name = str(answer.get("id", "")).removeprefix("restart ")
        if name not in self._unanswered or answer.get("id") != _id(name):
            return False
        self._unanswered.discard(name)
        if "error" not in answer:
            del self._before[name]
        return True

    def lose(self) -> None:
        """Who was told them is gone."""
        self._unanswered.clear()

    def again(self, members: Mapping[str, Hosted]) -> None:
        """Those that nobody has heard. One that is another process since was started anew; one that is away may not."""
        for name, before in list(self._before.items()):
            member = members.get(name)
            if member is None or _is_another(member, *before):
                self._before.pop(name)
                self._unanswered.discard(name)
            elif name not in self._unanswered:
                self._tell(name)

    def _tell(self, name: str) -> bool:
        if not self._send({"op": "restart", "name": name, "id": _id(name)}):
            return False
        self._unanswered.add(name)
        return True


def _id(name: str) -> str:
    return f"restart {name}"


def _is_another(member: Hosted, pid: int | None, restarts: int) -> bool:
    return member.life.restarts != restarts or member.pid not in (pid, None)
