"""The supervisor's side of the envoy: keeps one running, hands orders over, and gives what it hears to the members.

When the envoy dies, or the head of the cluster is lost, the members stay as they are and the gateway goes on sending to
them. A new envoy is told everything that is wanted. Only a door among several lets go of its shares when the ledger
does not hear it: others are given them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from skep.cluster.errands import error_of
from skep.cluster.hearsay import Misread, standing, told_by
from skep.cluster.hosted import Hosted
from skep.cluster.renewals import Renewals
from skep.cluster.restarts import Restarts
from skep.cluster.shares import LEASE_S
from skep.cluster.values import in_parts, launch_document
from skep.engines.base import Launch
from skep.engines.enginekey import new_key
from skep.engines.lifecycle import RestartPolicy
from skep.engines.logfile import open_log
from skep.errors import EngineError, SkepError
from skep.wire.link import Link, Message

ALONE_EVERY_S = 2.0  # renewals of the only door
SHARED_EVERY_S = 0.4
RENEW_S = 2.0
KEPT_S = LEASE_S - RENEW_S - 1.0  # without an answer for so long a share is let go, before the ledger gives it away
END_S = 30.0
HEADLESS_END_S = 12.0
AGAIN_S = (0.5, 2.0, 5.0)  # until the next envoy
LOST = "the head of the cluster is lost; it goes on serving"
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "604800"}  # a driver without a head lives on


class Hive(Protocol):
    """What the embassy needs of the supervisor."""

    @property
    def drained(self) -> frozenset[str]: ...
    @property
    def drain_s(self) -> float: ...
    async def gateway_status(self) -> Message: ...
    async def adopt(self, launches: Sequence[Launch]) -> None: ...
    def hear(
        self, figures: Mapping[str, Message], drained: Collection[str] = (), busy: Mapping[str, int] | None = None
    ) -> None: ...


class Embassy:
    """`setup`: address, hive, guest, policy, abandoned_after_s. A guest's replicas are another door's."""

    def __init__(self, setup: Message, log: Path) -> None:
        self.guest = bool(setup.get("guest"))
        self.door = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.address: str = setup["address"]
        self.head_lost = False
        self.doors = 1
        self._setup = {**setup, "door": self.door, "key": new_key()}
        self._log = log
        self._members: dict[str, Hosted] = {}
        self._rows: dict[str, Message] = {}
        self._ceiling: dict[str, int] = {}  # the most that the gateway may be using, whatever it holds by now
        self._link: Link | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._joined = asyncio.Event()
        self._was_joined = False
        self._trouble: str | None = None  # why there is no envoy, or what it is refused
        self._taken_over: str | None = None  # by whom, in words: the hive is not ours any more
        self._misread = Misread()
        self._drained_elsewhere: frozenset[str] = frozenset()
        self._renew_now = asyncio.Event()
        self._renewals = Renewals()
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._answered_at: float | None = None  # when the newest question that was answered had been sent
        self._restarts = Restarts(self.order)
        self._closing = False
        self._adopted: tuple[Launch, ...] | None = None

    def __repr__(self) -> str:
        return f"<Embassy {self.address} {'joined' if self._joined.is_set() else 'away'} {len(self._members)} members>"

    def member(self, launch: Launch, changed: Callable[[], None]) -> Hosted:
        """For the crew."""
        return Hosted(launch, self, changed)

    @property
    def settled(self) -> bool:
        """It is in the cluster; as a guest, it knows which replicas there are."""
        return self._was_joined and (not self.guest or self._adopted is not None)

    def row(self) -> Message:
        """The line of `skep ps` about the cluster."""
        state = "lost" if self.head_lost else "ready" if self._joined.is_set() else "starting"
        if self._was_joined and state == "starting":
            state = "away"
        why = "no answer from its head; what serves goes on serving" if self.head_lost else None
        why = why or self._taken_over or self._trouble or self._misread.newest
        doors = f"one of {self.doors} gateways" if self.doors > 1 else None
        told = {"name": "cluster", "kind": "cluster", "state": state, "url": self.address, "why": why or doors}
        return {**told, "hive": self._setup["hive"], "guest": self.guest, "doors": self.doors}

    # An aide of the supervisor

    async def run(self, hive: Hive) -> None:
        """Raises SkepError if the cluster cannot be joined at all."""
        renewing = asyncio.create_task(self._renew_on(hive))
        keeping = asyncio.create_task(self._keep_envoy())
        try:
            await asyncio.wait({renewing, keeping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (renewing, keeping):
                if task.done():
                    task.result()
        finally:
            renewing.cancel()
            keeping.cancel()

    def set_policy(self, policy: RestartPolicy) -> None:
        """Of all posts, those that stand included. An envoy that is not there is told when it comes."""
        self._setup = {**self._setup, "policy": asdict(policy)}
        if not self.guest:
            self.order({"op": "policy", "policy": self._setup["policy"]})

    async def stop(self) -> str | None:
        """The replicas were ended before: leave, with the ledger if it was ours. What is left behind, if anything."""
        self._closing = True
        left = answer = None
        if self._joined.is_set():
            answer = await self._ask({"op": "leave"}, HEADLESS_END_S if self.head_lost else END_S)
        done = self.head_lost or (answer is not None and "error" not in answer)
        if self._taken_over is not None:
            left = f"{self._taken_over}: what it serves goes on"
        elif self._was_joined and not self.guest and not done:
            after_s = self._setup["abandoned_after_s"]
            left = f"the cluster cannot be reached; what stands on its nodes ends within {after_s:g} s"
        if self._link is not None:
            self._link.send({"op": "exit"})
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 3.0)
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
        return left

    # A host of its members

    def came(self, member: Hosted) -> None:
        self._members[member.launch.name] = member
        self._inform(member)
        if not self.guest and self._joined.is_set():
            self.order({"op": "place", "launch": launch_document(member.launch)})
        self._renew_now.set()

    def adjusted(self, member: Hosted) -> None:
        """An envoy that comes later is told by `wanted`."""
        if not self.guest and self._members.get(member.launch.name) is member:
            self.order({"op": "adjust", "launch": launch_document(member.launch)})

    async def went(self, member: Hosted) -> None:
        """What cannot be ended now is not among the wanted, and ends when the envoy can."""
        name = member.launch.name
        if not self.guest and self._joined.is_set():
            await self._ask({"op": "end", "name": name}, HEADLESS_END_S if self.head_lost else END_S)
        if self._members.get(name) is member:
            del self._members[name]
            self._ceiling.pop(name, None)
            self._misread.note(name, None)
            if not self.guest:
                self._rows.pop(name, None)

    def restart(self, member: Hosted) -> bool:
        return self._restarts.ask(member)

    def order(self, message: Message) -> bool:
        """Whether there is somebody to hear it."""
        if self._link is None:
            return False
        self._link.send(message)
        return True

    async def log_since(self, name: str, offset: int | None, lines: int) -> Message:
        answer = await self._ask({"op": "log", "name": name, "offset": offset, "lines": lines}, 15.0)
        if answer is None or "error" in answer or "text" not in answer:
            why = (answer or {}).get("error") or "its node does not answer"
            raise EngineError(f"the log of `{name}` cannot be had: {why}", hint="`skep ps` shows its node and state")
        return answer

    # The envoy

    async def _keep_envoy(self) -> None:
        attempt = 0
        while True:
            failed = await self._one_envoy()
            if self._closing:
                return
            if failed is not None and not self._was_joined:
                raise failed
            self._trouble = str(failed) if failed is not None else "its envoy has died and is started anew"
            self._renew_now.set()
            await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
            attempt = 0 if failed is None else attempt + 1

    async def _one_envoy(self) -> SkepError | None:
        """Until it ends; why it could not join."""
        ours, theirs = socket.socketpair()
        try:
            with open_log(self._log) as output, theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "skep.cluster.envoy", "--link-fd", str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**PATIENT, **os.environ},
                )
        except OSError as error:
            ours.close()
            return EngineError(f"the envoy cannot be started: {error.strerror}")
        link = self._link = await Link.over(ours)
        link.send(self._setup)
        failed: SkepError | None = None
        while (message := await link.receive()) is not None:
            if message.get("event") == "failed":
                failed = error_of(message)
            else:
                self._hear(message)
        self._link = None
        self._joined.clear()
        self._restarts.lose()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result({"error": "the envoy is gone"})
        await link.close()
        code = await self._process.wait()
        if failed is None and not self._was_joined:
            failed = EngineError(f"the envoy ended with code {code}", hint=f"the end of {self._log} says why")
        return failed

    def _hear(self, message: Message) -> None:
        with self._misread.reading(f"event {message.get('event')}"):
            self._heed(message)

    def _inform(self, member: Hosted) -> None:
        name = member.launch.name
        with self._misread.reading(name):
            if name in self._rows:
                member.hear(self._rows[name])

    def _heed(self, message: Message) -> None:
        match message.get("event"):
            case "joined":
                self.address, self._trouble, self._taken_over = message["address"], None, None
                self._joined.set()
                self._was_joined = True
                self._set_head(lost=False)
                if not self.guest:
                    launches = [launch_document(member.launch) for member in self._members.values()]
                    for part in in_parts(launches):
                        self.order({"op": "wanted", "launches": part.rows, "first": part.first, "last": part.last})
                self._renew_now.set()
            case "replicas":
                told = {row["name"]: row for row in message["rows"]}
                self._rows |= told
                if "names" in message:  # all there are
                    self._rows = {name: self._rows[name] for name in message["names"] if name in self._rows}
                for name in told.keys() & self._members.keys():
                    self._inform(self._members[name])
                self._renew_now.set()
            case "head":
                self._set_head(lost=message["lost"])
            case "taken":
                self._lose(message["by"])
            case _ if not self._restarts.hear(message):
                asked = self._asked.get(message.get("id", 0))
                if asked is not None and not asked.done():
                    asked.set_result(message)

    def _lose(self, where: str) -> None:
        """What we hold is let go, as by a door that is not heard."""
        self._taken_over = f"another door (on {where}) has taken over the hive `{self._setup['hive']}`"
        self.doors = max(2, self.doors)

    def _set_head(self, *, lost: bool) -> None:
        self.head_lost = lost
        for member in self._members.values():
            member.remark(LOST if lost else None)

    async def _ask(self, message: Message, timeout_s: float) -> Message | None:
        """The envoy's answer; None where there is none in time. A late one is not heard."""
        if self._link is None:
            return None
        number = next(self._ids)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._link.send({**message, "id": number})
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            return None
        finally:
            del self._asked[number]

    # Shares

    async def _renew_on(self, hive: Hive) -> None:
        while True:
            self._renew_now.clear()
            if self.guest and self._joined.is_set():
                with self._misread.reading("adopting"):
                    await self._adopt(hive)
            if self._was_joined:
                with self._misread.reading("renewing"):
                    self._restarts.again(self._members)
                    await self._renew(hive, await hive.gateway_status())
                self._let_go_in_time(hive)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHARED_EVERY_S if self.doors > 1 or self.guest else ALONE_EVERY_S):
                    await self._renew_now.wait()

    async def _renew(self, hive: Hive, status: Message) -> None:
        """What is held and in use is told, what may be used is heard. A gateway that is silent may use all it had."""
        sent_at = asyncio.get_running_loop().time()
        holds = {name: member.share for name, member in self._members.items() if member.share is not None}
        if status.get("complete"):
            self._ceiling = dict(holds)
        busy = {name: self._busy(name, status) for name in self._members}
        drained = hive.drained
        told = {"models": status.get("models", {}), "drained": sorted(drained)}
        question = {**self._renewals.question(busy, holds), "told": told, "drain_s": hive.drain_s}
        avoid = sorted(drained | self._drained_elsewhere)
        answer = await self._ask({"op": "renew", **question, "avoid": avoid}, RENEW_S)
        if self._renewals.heard(answer) and answer is not None:
            self._answered_at, self.doors, self._taken_over = sent_at, answer["doors"], None
            self._take(hive, answer)
        elif answer is not None and "again" in answer:
            self._renew_now.set()
        elif answer is not None and "taken_over" in answer:
            self._lose(answer["taken_over"])

    def _busy(self, name: str, status: Message) -> int:
        if status.get("complete"):
            return int(status["busy"].get(name, 0))
        return max(self._ceiling.get(name, 0), int(status.get("busy", {}).get(name, 0)))

    def _take(self, hive: Hive, answer: Message) -> None:
        """The shares first: others wait for what is to be let go, whatever else is said."""
        for name, member in self._members.items():
            if name in answer["shares"]:
                self._lease(member, answer["shares"][name])
        told = told_by(answer["others"])
        self._misread.note("doors", told.trouble)
        self._drained_elsewhere = told.drained
        hive.hear(told.figures, told.drained, self._renewals.elsewhere)

    def _lease(self, member: Hosted, share: int) -> None:
        name = member.launch.name
        self._ceiling[name] = max(self._ceiling.get(name, 0), share)
        member.lease(share)

    def _let_go_in_time(self, hive: Hive) -> None:
        """Whatever became of the renewal. For so long unheard, others get our share; without a head, nobody does."""
        now = asyncio.get_running_loop().time()
        late = self._answered_at is not None and now - self._answered_at > KEPT_S
        if late and self.doors > 1 and not self.head_lost:
            hive.hear({}, (), {})
            for member in self._members.values():
                self._lease(member, 0)

    async def _adopt(self, hive: Hive) -> None:
        """A guest's replicas are those of the table."""
        found = standing(self._rows.values())
        self._misread.note("table", found.trouble)
        if found.launches != self._adopted or {launch.name for launch in found.launches} != set(self._members):
            self._adopted = found.launches
            await hive.adopt(found.launches)
