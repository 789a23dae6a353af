"""The ledger of a hive: which replicas there are, which doors, and who may use which slots. One actor in the cluster.

Nothing in it is precious: posts announce themselves every few seconds and doors say what they hold, so that a ledger
that was started anew knows within seconds what its predecessor knew; until then its table says that it is `settling`.
No clock of a node is compared with another's. Knows Ray only by `end_post` and `holder`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from skep.cluster.shares import LEASE_S, Shares
from skep.cluster.wants import Wants

ANNOUNCE_EVERY_S = 2.0
AWAY_AFTER_S = 3.5 * ANNOUNCE_EVERY_S  # a post that is silent for so long is away
ABANDONED_AFTER_S = 120.0  # without any door
LOOK_EVERY_S = 0.5
PAUSE_S = 2.0  # a look that comes later than this was held up, and so was what the others said
OVER = 1000  # incarnations that are remembered as over: long before so many, they have heard of it

Row = dict[str, Any]


async def _not_known(_name: str) -> None:
    return None


def _incarnation(row: Row) -> str:
    """Raises where a post does not say what is needed of it: then nothing of it is heard."""
    _ = row["state"], row["node"], row["model"], int(row["slots"])
    incarnation: str = row["incarnation"]
    return incarnation


class Ledger:
    """`end_post` ends one by its name and its own handle, and says whether; `end_self` ends this when nobody wants it.

    `holder`: which actor has a post's name by Ray's word; "" for none, None where the head does not say.
    `is_successor`: another ledger of this hive was there before, and doors hold what it gave them.
    """

    def __init__(
        self,
        hive: str,
        *,
        end_post: Callable[[str, Any], Awaitable[bool]],
        end_self: Callable[[], Awaitable[None]],
        holder: Callable[[str], Awaitable[str | None]] = _not_known,
        abandoned_after_s: float = ABANDONED_AFTER_S,
        is_successor: bool = False,
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
        self._shares = Shares(cautious_until=now() + LEASE_S if is_successor else 0.0)
        self._told: dict[str, Row] = {}  # by door, for the other doors
        self._drains: dict[str, frozenset[str]] = {}  # by door: replicas and nodes
        self._drained: frozenset[str] = frozenset()  # by any of them
        self._answered: dict[str, tuple[int, int]] = {}  # by door: the mark of its last answer, and that of the shares
        self._marks = itertools.count(time.time_ns())  # no two ledgers of a hive count alike
        self._owner: str | None = None
        self._owner_seen_at = 0.0
        self._key: str | None = None
        self._policy: Row | None = None  # of the engines' restarts, as the owner has it now; None: not told
        self._began_at = self._door_seen_at = self._looked_at = now()
        self._settling = True
        self._version = next(self._marks)
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
            self._share_out(name)
            self._changed()
        return {"end": False, "policy": self._policy, "held": self._handles[name] is not None}

    async def forget(self, name: str) -> None:
        """The replica was ended."""
        row = self._rows.pop(name, None)
        self._heard_at.pop(name, None)
        self._handles.pop(name, None)
        if row is not None:
            self._end_of(row["incarnation"])
            self._shares.drop(name)
            self._changed()

    # Doors

    async def claim(self, door: str, key: str) -> dict[str, Any]:
        """A door that places replicas. Only one does; the key of those that stand already goes on."""
        now = self._now()
        if self._owner not in (None, door) and now - self._owner_seen_at <= LEASE_S:
            return {"owner": self._owner}
        self._owner, self._owner_seen_at, self._key = door, now, self._key or self._key_of_posts() or key
        self._door_seen_at = now
        return {"owner": door, "key": self._key}

    async def instruct(self, door: str, policy: Row) -> None:
        """By the door that places replicas. Posts hear it with their next word, those that start with their first."""
        if self._owner in (None, door):
            self._policy = policy

    async def renew(
        self, door: str, busy: Row, holds: Row, told: Row, *, owns: bool = False, since: int | None = None
    ) -> dict[str, Any]:
        """The shares of a door that is present, and what the others say: figures, what is drained, what is busy.

        `since`: the mark of the last answer that the door has. What it says and what it is told is then only what is
        new. If that is not the last answer that was given, it is asked to say all `again`.
        """
        now = self._door_seen_at = self._now()
        if owns and self._owner in (None, door):
            self._owner, self._owner_seen_at = door, now
        self._expire(now)
        answered, seen = self._answered.get(door, (None, 0)) if door in self._shares.doors else (None, 0)
        if since is not None and since != answered:
            return {"again": True, "owner": self._owner}
        queued = {model: said.get("queued", 0) for model, said in told.get("models", {}).items()}
        wants = Wants(busy=busy, holds=holds, queued=queued, whole=since is None)
        drains = frozenset(map(str, told.get("drained", ())))
        if drains != self._drains.get(door, frozenset()):
            self._drains[door] = drains
            self._heed_drains()
        answer = self._shares.renew(door, wants, now)
        self._told[door], self._answered[door] = told, (next(self._marks), self._shares.mark)
        return {
            "shares": dict(answer.shares),
            "doors": answer.doors,
            "others": [said for name, said in self._told.items() if name != door],
            "busy": self._shares.busy_besides(door, None if since is None else seen),
            "owner": self._owner,
            "mark": self._answered[door][0],
        }

    async def leave(self, door: str) -> None:
        self._shares.leave(door)
        self._forget_absent()
        if self._owner == door:
            self._owner = None

    async def table(self, since: int, timeout_s: float) -> dict[str, Any]:
        """All replicas, as soon as anything differs from version `since`."""
        deadline = self._now() + timeout_s
        while self._version == since and (left := deadline - self._now()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                break
        told = {"rows": self._rows, "settling": self._settling, "policy": self._policy}
        return {"version": self._version, **told}

    async def state(self) -> dict[str, Any]:
        return {"hive": self.hive, "owner": self._owner, "doors": list(self._shares.doors), "rows": self._rows}

    # Time

    async def watch(self) -> None:
        """For ever: silent posts are away, silent doors have left, and what nobody wants is ended."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()
            if self._abandoned:
                with contextlib.suppress(Exception):  # a head that is away: again with the next look
                    await self._end_all()

    def look(self) -> None:
        now = self._now()
        self._forgive(now)
        self._expire(now)
        if self._settling and now - self._began_at > AWAY_AFTER_S:
            self._settling = False
            self._changed()
        for name, row in self._rows.items():
            if row["state"] != "away" and now - self._heard_at[name] > AWAY_AFTER_S:
                self._rows[name] = {**row, "state": "away", "why": f"no word from node {row['node']}"}
                self._share_out(name)
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
        return self._now() - self._door_seen_at > self._abandoned_after_s

    def _forgive(self, now: float) -> None:
        """After a pause of this process, what was said meanwhile has still to be heard."""
        late, self._looked_at = now - self._looked_at - LOOK_EVERY_S, now
        if late > PAUSE_S:
            self._heard_at = {name: at + late for name, at in self._heard_at.items()}
            self._shares.forgive(late)
            self._door_seen_at += late
            self._owner_seen_at += late

    async def _end_all(self) -> None:
        """One after the other: a door that comes back meanwhile keeps what is left."""
        for name, handle in list(self._handles.items()):
            if not self._abandoned:
                return
            if await self._end_post(name, handle):
                await self.forget(name)
        if self._abandoned and not self._handles:
            await self._end_self()

    def _key_of_posts(self) -> str | None:
        """A ledger that was made anew finds it where the engines have it."""
        found = (row.get("launch") or {} for row in self._rows.values())
        return next((launch["api_key"] for launch in found if launch.get("api_key")), None)

    def _expire(self, now: float) -> None:
        if self._shares.expire(now):
            self._forget_absent()

    def _forget_absent(self) -> None:
        for said in (self._told, self._answered, self._drains):
            for name in said.keys() - set(self._shares.doors):
                del said[name]
        self._heed_drains()

    def _heed_drains(self) -> None:
        drained = frozenset().union(*self._drains.values())
        news, self._drained = drained ^ self._drained, drained
        for name, row in self._rows.items() if news else ():
            if not news.isdisjoint((name, str(row["node"]))):
                self._share_out(name)

    def _share_out(self, name: str) -> None:
        """A replica keeps its place in the shares while it is away or starts anew: its slots come back with it."""
        row = self._rows[name]
        serves = row["state"] == "ready" and self._drained.isdisjoint((name, str(row["node"])))
        self._shares.put(name, str(row["model"]), int(row["slots"]), serves=serves)

    def _changed(self) -> None:
        self._version += 1
        self._moved.set()
        self._moved = asyncio.Event()
