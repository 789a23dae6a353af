"""The Ray driver process of a hive: `python -m skep.cluster.ray_driver FD`.

Ray ends a driver that loses its cluster, so neither the supervisor nor the gateway is one. It carries out the
supervisor's commands and forwards what the registry reports. It keeps no state: a new one receives everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from skep.cluster import messages
from skep.cluster.actor_manager import ActorManager, Say
from skep.cluster.connect import gcs_client, join
from skep.cluster.node_file import connection_to
from skep.cluster.placement_groups import find_actor, registry_name
from skep.cluster.replica_registry import OWNED_S, make_registry
from skep.engines.base import Launch
from skep.errors import EngineError, SkepError
from skep.wire.json_pipe import JsonPipe, Message, from_document, to_document

HEAD_EVERY_S = 1.0
HEAD_S = 2.0
MISSES = 2  # in a row: the head is lost
TABLE_S = 2.0
ASK_S = 1.8
CLAIM_S = 60.0
MEND_EVERY_S = 5.0
LATE_S = 1.0


class NewHead(Exception):
    """Another cluster has the address, or this machine has joined another one. Only a new driver can join it."""


class TakenOver(EngineError):
    """Another gateway owns the hive: its replicas are left alone."""


class RayDriver:
    def __init__(self, link: JsonPipe[messages.ToDriver], setup: messages.DriverSetup) -> None:
        self._link = link
        self._setup = setup
        self._registry: Any = None
        self._actors = ActorManager(setup.hive, setup.key, setup.policy)
        self._wanted: dict[str, Launch] | None = None  # None: not received yet
        self._rows: dict[str, Message] = {}  # documents of a `ReplicaReport`
        self._said: dict[str, Message] = {}  # of replicas that have no actor yet
        self._told: dict[str, Message] = {}  # what the supervisor knows of each
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)  # a replica is never placed while it is being ended
        self._placing: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._orders: set[asyncio.Task[None]] = set()
        self._head_lost = False
        self._lookup = ThreadPoolExecutor(1, "lookup")  # without a head a lookup takes a minute: never two at once

    async def run(self) -> None:
        """Join, find or create the registry, and claim the hive: only its owner places replicas."""
        await asyncio.to_thread(join, self._setup.address)
        import ray

        self._registry = await asyncio.to_thread(make_registry, self._setup.hive)
        await self._claim(CLAIM_S)
        self._link.send(messages.Joined(ray.get_runtime_context().gcs_address))
        works = (self._follow_link(), self._follow_table(), self._watch_head(), self._repair_loop())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._orders):
                task.cancel()

    async def _claim(self, timeout_s: float = ASK_S) -> None:
        """Claim the hive and publish the restart policy. Raise TakenOver if another gateway owns it."""
        claim = self._registry.claim.remote(self._setup.gateway, to_document(self._actors.policy))
        self._check(await asyncio.wait_for(claim, timeout_s))

    def _check(self, owner: str) -> None:
        if owner != self._setup.gateway:
            where = owner.rpartition(":")[0]  # its machine and process
            hint = f"`--hive NAME` starts another deployment; if the other skep was killed, try again in {OWNED_S:g} s"
            raise TakenOver(f"a deployment `{self._setup.hive}` runs in this cluster already (from {where})", hint=hint)

    # Commands of the supervisor

    async def _follow_link(self) -> None:
        while (message := await self._link.receive()) is not None:
            if not isinstance(message, messages.DriverSetup):
                order = asyncio.create_task(self._safely(message))
                self._orders.add(order)
                order.add_done_callback(self._orders.discard)

    async def _safely(self, order: messages.Order) -> None:
        """Carry out one command and answer it; its failure does not affect the others."""
        log, failed = None, None
        try:
            log = await self._carry_out(order)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"[:300]
        if isinstance(order, messages.Question):
            self._link.send(messages.Answer(order.id, failed, log))
        elif isinstance(order, messages.RestartReplica):
            self._link.send(messages.Restarted(order.name, failed))

    async def _carry_out(self, order: messages.Order) -> messages.LogPart | None:
        match order:
            case messages.WantReplicas(launches, avoid, policy):
                before, self._wanted = self._wanted or {}, {launch.name: launch for launch in launches}
                self._actors.avoid = avoid
                for launch in launches:
                    if before.get(launch.name) != launch:
                        self._place(launch)
                        self._told.pop(launch.name, None)  # the supervisor may know nothing of it yet
                self._tell()
                if policy != self._actors.policy:
                    self._actors.policy = policy
                    await self._claim()
            case messages.EndReplica(name):
                (self._wanted or {}).pop(name, None)
                if await self._is_ours():
                    await self._end(name)
            case messages.RestartReplica(name):
                await self._actors.ask(name, "restart")
            case messages.ReadLog(name, offset, lines):
                told = await self._actors.ask(name, "log_since", offset, lines)
                return None if told is None else from_document(told, messages.LogPart)
            case messages.Leave():
                await self._leave()
        return None

    async def _is_ours(self) -> bool:
        """Return whether this gateway still owns the hive: a registry that does not answer gave it to nobody else."""
        try:
            if not self._head_lost:
                await self._claim()
        except TakenOver:
            return False
        except Exception:  # noqa: S110
            pass
        return True

    def _place(self, launch: Launch) -> None:
        if launch.name in self._placing:
            return

        def say(state: str, why: str | None) -> None:
            self._said[launch.name] = to_document(messages.ReplicaReport(launch.name, state, why))
            self._tell()

        standing = {name: row["node_id"] for name, row in self._rows.items() if row.get("node_id")}
        task = asyncio.create_task(self._ensure(launch, standing, say))
        self._placing[launch.name] = task

        def done(finished: asyncio.Task[None]) -> None:
            self._placing.pop(launch.name, None)
            if not finished.cancelled() and (error := finished.exception()) is not None:
                say("waiting", f"cannot be placed: {str(error)[:200]}")

        task.add_done_callback(done)

    async def _ensure(self, launch: Launch, standing: dict[str, str], say: Say) -> None:
        async with self._turns[launch.name]:
            if await self._is_ours():
                await self._actors.ensure(launch, standing, say)

    async def _end(self, name: str) -> None:
        """End a replica. Without a head only its engine ends; `_repair` ends the rest when the head is back."""
        self._ending.add(name)
        try:
            if (placing := self._placing.get(name)) is not None:
                placing.cancel()
                await asyncio.wait({placing})
            async with self._turns[name]:
                await self._actors.end(name, headless=self._head_lost)
                with contextlib.suppress(Exception):  # the registry is away: `_repair` tells it again
                    await asyncio.wait_for(self._registry.forget.remote(name), ASK_S)
                self._rows.pop(name, None)
                self._said.pop(name, None)
        finally:
            self._ending.discard(name)

    async def _leave(self) -> None:
        """End all replicas and the registry, if this gateway owns the hive; nobody else can claim it before."""
        self._wanted = {}
        if not await self._is_ours():
            return
        names = {*self._rows, *self._placing}
        if not self._head_lost:
            names |= set(await asyncio.to_thread(self._actors.all_names))
        await asyncio.gather(*(self._end(name) for name in names), return_exceptions=True)
        if not self._head_lost:
            import ray

            await asyncio.to_thread(ray.kill, self._registry, no_restart=True)

    # Reports of the cluster

    async def _watch_head(self) -> None:
        import ray

        loop, asking, misses = asyncio.get_running_loop(), ThreadPoolExecutor(1, "head"), 0
        address = ray.get_runtime_context().gcs_address
        client = gcs_client(address)
        while True:
            await asyncio.sleep(HEAD_EVERY_S)
            misses = 0 if await loop.run_in_executor(asking, _answers, client) else misses + 1
            if self._head_lost and self._setup.address == "auto":
                now = await asyncio.to_thread(connection_to, "auto", os.environ)
                if now.head not in ("auto", address):  # this machine is now a node of another cluster
                    raise NewHead
            if (misses >= MISSES) != self._head_lost:
                self._head_lost = misses >= MISSES
                self._link.send(messages.HeadState(self._head_lost))

    async def _follow_table(self) -> None:
        version = 0
        while True:
            try:
                asked = self._registry.table.remote(self._setup.gateway, version, TABLE_S)
                told = await asyncio.wait_for(asked, TABLE_S + ASK_S)
                if told["owner"] is None:  # a restarted registry
                    await self._claim()
                else:
                    self._check(told["owner"])
            except TakenOver:
                raise
            except Exception:  # it is restarting, or its node is gone: the last table is kept
                await asyncio.sleep(LATE_S)
                with contextlib.suppress(Exception):  # there is no head
                    loop, hive = asyncio.get_running_loop(), self._setup.hive
                    found: Any = await loop.run_in_executor(self._lookup, find_actor, registry_name(hive))
                    self._registry = found or await loop.run_in_executor(self._lookup, make_registry, hive)
                continue
            if told["version"] != version:
                version = told["version"]
                known = self._rows if told["settling"] else {}  # some have not reported to the new registry yet
                self._rows = {**known, **told["rows"]}
                self._said = {name: said for name, said in self._said.items() if name not in told["rows"]}
                self._tell()

    def _tell(self) -> None:
        """Send the rows that changed and the names of all replicas."""
        rows = {**self._said, **self._rows}
        news = [row for name, row in rows.items() if self._told.get(name) != row]
        if not news and rows.keys() == self._told.keys():
            return
        self._told = rows
        self._link.send(messages.ReplicaRows(tuple(news), tuple(rows)))

    async def _repair_loop(self) -> None:
        """Recreate actors that Ray gave up and end unwanted ones. Ray itself moves those whose node is away."""
        while True:
            await asyncio.sleep(MEND_EVERY_S)
            if self._wanted is None or self._head_lost or not await self._is_ours():
                continue
            try:
                await self._repair(self._wanted)
            except Exception:  # the head or an actor went meanwhile: the next pass looks again
                traceback.print_exc()

    async def _repair(self, wanted: dict[str, Launch]) -> None:
        for name, launch in list(wanted.items()):
            row = self._rows.get(name)
            if (row is None or row["state"] == "away") and name not in self._placing:
                self._place(launch)
        stands = await asyncio.to_thread(self._actors.all_names)
        for name in {*stands, *self._rows} - (self._wanted or {}).keys() - self._ending:
            if not await self._is_ours():
                return
            if name not in (self._wanted or ()) and name not in self._ending:  # checked again: ends take seconds
                await self._end(name)


def _answers(client: Any) -> bool:
    """Return whether the head answers in time. Ray's public calls, and a new client, would wait without limit."""
    try:
        client.internal_kv_exists(b"skep", namespace=b"skep", timeout=HEAD_S)
    except (AttributeError, TypeError):
        return True  # this version of Ray has another call: nothing is known about the head
    except Exception as error:
        if "WrongClusterID" in str(error):
            raise NewHead from None
        return False
    return True


async def serve(link_fd: int) -> NoReturn:
    """Run the driver, then exit at once: Ray's own shutdown takes seconds, and threads may wait for a lost head."""
    code = 0
    link: JsonPipe[messages.ToDriver] = await JsonPipe.over(socket.socket(fileno=link_fd), messages.ToDriver)
    try:
        setup = await link.receive()
        if isinstance(setup, messages.DriverSetup):
            await RayDriver(link, setup).run()
    except SkepError as error:
        link.send(messages.DriverFailed(error.message, error.hint, error.exit_code, isinstance(error, TakenOver)))
        code = error.exit_code
    except NewHead:
        print("there is a new head; this driver ends", file=sys.stderr)  # noqa: T201 - its log
        code = 1
    except Exception:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        await asyncio.wait_for(link.close(), 1.0)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
