"""The ledger of a hive: which replicas there are, and which gateway has the hive. One actor in the cluster.

Nothing in it is precious: posts announce themselves every few seconds and the gateway asks for the table, so that a
ledger that was started anew knows within seconds what its predecessor knew; until then its table says that it is
`settling`. No clock of a node is compared with another's. Knows Ray only by `end_post` and `holder`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

ANNOUNCE_EVERY_S = 2.0
AWAY_AFTER_S = 3.5 * ANNOUNCE_EVERY_S  # a post that is silent for so long is away
ABANDONED_AFTER_S = 120.0  # without a gateway
OWNED_S = 8.0  # a gateway that is silent for so long may lose its hive to another one
LOOK_EVERY_S = 0.5
PAUSE_S = 2.0  # a look that comes later than this was held up, and so was what the others said
OVER = 1000  # incarnations that are remembered as over: long before so many, they have heard of it

Row = dict[str, Any]


async def _not_known(_name: str) -> None:
    return None


def _incarnation(row: Row) -> str:
    """Raises where a post does not say what is needed of it: then nothing of it is heard."""
    _ = row["state"], row["node"]
    incarnation: str = row["incarnation"]
    return incarnation


class ReplicaRegistry:
    """`end_post` ends one by its name and its own handle, and says whether; `end_self` ends this when nobody wants it.

    `holder`: which actor has a post's name by Ray's word; "" for none, None where the head does not say.
    """

    def __init__(
        self,
        hive: str,
        *,
        end_post: Callable[[str, Any], Awaitable[bool]],
        end_self: Callable[[], Awaitable[None]],
        holder: Callable[[str], Awaitable[str | None]] = _not_known,
        abandoned_after_s: float = ABANDONED_AFTER_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hive = hive
        self._end_post = end_post
        self._end_self = end_self
        self._holder = holder
        self._abandoned_after_s = abandoned_after_s
        self._now = now
        self._rows: dict[str, Row] = {}
        self._handles: dict[str, Any] = {}
        self._heard_at: dict[str, float] = {}
        self._over: dict[str, None] = {}  # incarnations that were ended, or that another one has taken the place of
        self._owner: str | None = None
        self._policy: Row | None = None  # of the engines' restarts, as the owner has it now; None: not told
        self._began_at = self._owner_seen_at = self._looked_at = now()
        self._settling = True
        self._version = time.time_ns()  # no two ledgers of a hive count alike
        self._moved = asyncio.Event()

    # Posts

    async def announce(self, name: str, row: Row, handle: Any = None) -> dict[str, Any]:
        """A post tells how it is. The answer says whether it is to end: it was ended, or another one has its place.

        `handle`: its own, which costs; not again once the answer has said that it is `held`.
        """
        known, incarnation = self._rows.get(name), _incarnation(row)
        if known is not None and known["incarnation"] != incarnation and incarnation not in self._over:
            succeeds = await self._succeeds(name, row, known)
            if succeeds is None or self._rows.get(name, row)["incarnation"] != known["incarnation"]:
                return {"end": False, "policy": self._policy, "held": False}  # more is known by its next word
            self._end_of((known if succeeds else row)["incarnation"])
            if succeeds:
                self._handles.pop(name, None)
        if incarnation in self._over:
            return {"end": True}
        self._heard_at[name], self._handles[name] = self._now(), handle or self._handles.get(name)
        if known != row:
            self._rows[name] = row
            self._changed()
        return {"end": False, "policy": self._policy, "held": self._handles[name] is not None}

    async def forget(self, name: str) -> None:
        """The replica was ended."""
        row = self._rows.pop(name, None)
        self._heard_at.pop(name, None)
        self._handles.pop(name, None)
        if row is not None:
            self._end_of(row["incarnation"])
            self._changed()

    # The gateway

    async def claim(self, gateway: str, policy: Row) -> str:
        """The gateway that has the hive: this one, unless another has it and was heard not long ago.

        `policy`: for its posts. Those that stand hear it with their next word, those that start with their first.
        """
        now = self._now()
        if self._owner in (None, gateway) or now - self._owner_seen_at > OWNED_S:
            self._owner, self._owner_seen_at, self._policy = gateway, now, policy
        assert self._owner is not None
        return self._owner

    async def table(self, gateway: str, since: int, timeout_s: float) -> dict[str, Any]:
        """All replicas, as soon as anything differs from version `since`, unless nothing does; and who has the hive."""
        deadline = self._now() + timeout_s
        if gateway == self._owner:
            self._owner_seen_at = self._now()
        while self._version == since and (left := deadline - self._now()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                break
        told = {"version": self._version, "owner": self._owner}
        return told if self._version == since else {**told, "rows": self._rows, "settling": self._settling}

    async def state(self) -> dict[str, Any]:
        return {"hive": self.hive, "owner": self._owner, "rows": self._rows}

    # Time

    async def watch(self) -> None:
        """For ever: silent posts are away, and a hive without a gateway is ended."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()
            if self._abandoned:
                with contextlib.suppress(Exception):  # a head that is away: again with the next look
                    await self._end_all()

    def look(self) -> None:
        now = self._now()
        self._forgive(now)
        if self._settling and now - self._began_at > AWAY_AFTER_S:
            self._settling = False
            self._changed()
        for name, row in self._rows.items():
            if row["state"] != "away" and now - self._heard_at[name] > AWAY_AFTER_S:
                self._rows[name] = {**row, "state": "away", "why": f"no word from node {row['node']}"}
                self._changed()

    # Inside

    async def _succeeds(self, name: str, row: Row, known: Row) -> bool | None:
        """Whether the one that speaks has the place of the known one. None: that cannot be found out now.

        A node that was away comes back with its posts, which do not know yet that Ray has started them elsewhere; and a
        ledger that was started anew meanwhile knows neither. Of one actor, its later life; of two, who has the name.
        """
        if None in (row.get("actor"), known.get("actor")):
            return True  # one of another skep, which does not say: who comes later
        if row["actor"] == known["actor"]:
            return bool(row["life"] >= known["life"])
        holder = await self._holder(name)
        return None if holder is None else holder == row["actor"]

    def _end_of(self, incarnation: str) -> None:
        self._over[incarnation] = None
        while len(self._over) > OVER:
            del self._over[next(iter(self._over))]

    @property
    def _abandoned(self) -> bool:
        return self._now() - self._owner_seen_at > self._abandoned_after_s

    def _forgive(self, now: float) -> None:
        """After a pause of this process, what was said meanwhile has still to be heard."""
        late, self._looked_at = now - self._looked_at - LOOK_EVERY_S, now
        if late > PAUSE_S:
            self._heard_at = {name: at + late for name, at in self._heard_at.items()}
            self._owner_seen_at += late

    async def _end_all(self) -> None:
        """One after the other: a gateway that comes back meanwhile keeps what is left."""
        for name, handle in list(self._handles.items()):
            if not self._abandoned:
                return
            if await self._end_post(name, handle):
                await self.forget(name)
        if self._abandoned and not self._handles:
            await self._end_self()

    def _changed(self) -> None:
        self._version += 1
        self._moved.set()
        self._moved = asyncio.Event()
