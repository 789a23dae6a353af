"""The registry of a hive: its replicas, and the gateway that owns it. One actor in the cluster, found by name.

Its state can be lost: actors report every few seconds and the gateway polls, so a restarted registry soon knows all;
until then its table says `settling`. Clocks of nodes are never compared. When no gateway is left, it ends the hive.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from skep.cluster.connect import NAMESPACE
from skep.cluster.nodes import HEAD
from skep.cluster.placement_groups import actor_name, actor_names, find_actor, registry_name, remove_group

ANNOUNCE_EVERY_S = 2.0
AWAY_AFTER_S = 3.5 * ANNOUNCE_EVERY_S  # a replica that is silent for so long is away
ABANDONED_AFTER_S = 120.0  # without a gateway the hive ends
OWNED_S = 8.0  # a gateway that is silent for so long can lose the hive to another one
LOOK_EVERY_S = 0.5
PAUSE_S = 2.0  # a check later than this was held up, and so were the messages
OVER = 1000  # ended incarnations that are remembered
END_S = 20.0
HEAD_S = 10.0

Row = dict[str, Any]


class ReplicaRegistry:
    def __init__(self, hive: str, now: Callable[[], float] = time.monotonic) -> None:
        self.hive = hive
        self._now = now
        self._rows: dict[str, Row] = {}
        self._handles: dict[str, Any] = {}
        self._heard_at: dict[str, float] = {}
        self._over: dict[str, None] = {}  # incarnations that were ended or replaced
        self._owner: str | None = None
        self._policy: Row | None = None  # the owner's restart policy; None: not received
        self._began_at = self._owner_seen_at = self._looked_at = now()
        self._settling = True
        self._version = time.time_ns()  # no two registries of a hive count alike
        self._moved = asyncio.Event()

    # Called by replica actors

    async def announce(self, name: str, row: Row, handle: Any = None) -> Row:
        """Take a report. The answer says whether the actor must end, because it was ended or replaced.

        `handle`: its own, costly to send, so left out once an answer said that it is `held`.
        """
        _ = row["state"], row["node"]  # a KeyError for a report that lacks one
        known, incarnation = self._rows.get(name), row["incarnation"]
        if known is not None and known["incarnation"] != incarnation and incarnation not in self._over:
            succeeds = await self._succeeds(name, row, known)
            if succeeds is None or self._rows.get(name, row)["incarnation"] != known["incarnation"]:
                return {"end": False, "policy": self._policy, "held": False}  # decided at its next report
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
        row = self._rows.pop(name, None)
        self._heard_at.pop(name, None)
        self._handles.pop(name, None)
        if row is not None:
            self._end_of(row["incarnation"])
            self._changed()

    # Called by the gateway

    async def claim(self, gateway: str, policy: Row) -> str:
        """Return who owns the hive: this gateway, unless another was heard recently. `policy`: told to the actors."""
        now = self._now()
        if self._owner in (None, gateway) or now - self._owner_seen_at > OWNED_S:
            self._owner, self._owner_seen_at, self._policy = gateway, now, policy
        assert self._owner is not None
        return self._owner

    async def table(self, gateway: str, since: int, timeout_s: float) -> Row:
        """Wait for a version other than `since` and return all replicas; always return the owner of the hive."""
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

    async def state(self) -> Row:
        return {"hive": self.hive, "owner": self._owner, "rows": self._rows}

    # Checks

    async def watch(self) -> None:
        """Mark silent replicas as away and end a hive without a gateway; never returns."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()
            if self._abandoned:
                with contextlib.suppress(Exception):  # the head is away: tried again at the next check
                    await self._end_all()

    def look(self) -> None:
        now = self._now()
        late, self._looked_at = now - self._looked_at - LOOK_EVERY_S, now
        if late > PAUSE_S:  # this process was held up: allow for the reports that are still to be read
            self._heard_at = {name: at + late for name, at in self._heard_at.items()}
            self._owner_seen_at += late
        if self._settling and now - self._began_at > AWAY_AFTER_S:
            self._settling = False
            self._changed()
        for name, row in self._rows.items():
            if row["state"] != "away" and now - self._heard_at[name] > AWAY_AFTER_S:
                self._rows[name] = {**row, "state": "away", "why": f"no report from node {row['node']}"}
                self._changed()

    async def _succeeds(self, name: str, row: Row, known: Row) -> bool | None:
        """Return whether the reporting actor replaces the known one; None if that cannot be found out now.

        A node that was away may come back with old actors. Of one actor the later life counts; of two, the named one.
        """
        if None in (row.get("actor"), known.get("actor")):
            return True  # an actor of another version does not say: the later one counts
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
        return self._now() - self._owner_seen_at > ABANDONED_AFTER_S

    async def _end_all(self) -> None:
        """End the replicas one after the other: a gateway that comes back meanwhile keeps the rest."""
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

    # Calls of Ray

    async def _end_post(self, name: str, handle: Any) -> bool:
        """End a replica actor. Return False if something may be left."""
        if handle is not None:  # that needs no head
            with contextlib.suppress(Exception):
                await asyncio.wait_for(handle.stop.remote(END_S), END_S)
        return await end_actor(self.hive, name)

    async def _holder(self, name: str) -> str | None:
        """Return the id of the actor that Ray has under this name; "" if none, None if the head does not answer."""
        try:
            post = await _with_deadline(find_actor, actor_name(self.hive, name))
        except Exception:
            return None
        return "" if post is None else str(post._actor_id.hex())  # noqa: SLF001 - Ray has no public call for it

    async def _end_self(self) -> None:
        """End the registry, and what never reported to it, such as a group that waits for room."""
        import ray

        for name in await _with_deadline(actor_names, self.hive):
            await end_actor(self.hive, name)
        await asyncio.to_thread(ray.kill, ray.get_runtime_context().current_actor, no_restart=True)


# The actor

REGISTRY_BYTES = 1_000_000  # Ray honours a node preference only for actors that ask for a resource


def make_registry(hive: str) -> Any:
    """Return the hive's registry, created if needed; preferably on the head, so that both are lost together."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    head = next((node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]), None)
    options = {"name": registry_name(hive), "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    options |= {"num_cpus": 0, "memory": REGISTRY_BYTES}
    options |= {"max_restarts": -1, "max_task_retries": 0, "max_concurrency": 1000}
    if head is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(head, soft=True)
    return ray.remote(RegistryActor).options(**options).remote(hive)


class RegistryActor(ReplicaRegistry):
    """It watches from the first report or claim on: before that there is no event loop."""

    _watching: asyncio.Task[None] | None = None

    def _watch_on(self) -> None:
        self._watching = self._watching or asyncio.get_running_loop().create_task(self.watch())

    async def announce(self, name: str, row: Row, handle: Any = None) -> Row:
        self._watch_on()
        return await super().announce(name, row, handle)

    async def claim(self, gateway: str, policy: Row) -> str:
        self._watch_on()
        return await super().claim(gateway, policy)


async def end_actor(hive: str, name: str) -> bool:
    """Stop the engine, remove its actor and placement group in any case. Return False if the head did not answer."""
    import ray

    full = actor_name(hive, name)
    try:
        post = await _with_deadline(find_actor, full)
        if post is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(post.stop.remote(END_S), END_S + 2)
            with contextlib.suppress(Exception):
                await _with_deadline(ray.kill, post)
        await _with_deadline(remove_group, full)
    except Exception:
        return False
    return True


async def _with_deadline(call: Callable[..., Any], *args: Any) -> Any:
    """Call in a thread with a deadline: Ray's own calls wait for a lost head without limit."""
    return await asyncio.wait_for(asyncio.to_thread(call, *args), HEAD_S)
