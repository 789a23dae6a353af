"""The replicas of a hive: those that skep started and those it only fronts. They may come, go and rest meanwhile.

A *dormant* one has no process: its model is loaded when somebody wants it. Two that share a card are started one after
the other: engines measure the free memory of their cards while they start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol

from skep.engines.base import Launch, Spoken, engine_named
from skep.engines.changes import Changes
from skep.engines.lifecycle import RestartPolicy, State
from skep.engines.remote import Upstream
from skep.engines.replica import Replica
from skep.errors import EngineError
from skep.wire.link import Message

REST_POLL_S = 0.1


class Life(Protocol):
    @property
    def state(self) -> State: ...
    @property
    def url(self) -> str | None: ...
    @property
    def why(self) -> str | None: ...
    @property
    def restarts(self) -> int: ...
    @property
    def serving(self) -> bool: ...


class Member(Protocol):
    """What `Replica` and `Upstream` have in common."""

    launch: Launch
    pid: int | None

    @property
    def kind(self) -> str: ...
    @property
    def engine(self) -> Spoken: ...
    @property
    def life(self) -> Life: ...
    @property
    def model(self) -> str: ...
    @property
    def settled(self) -> bool:
        """Nothing is to be waited for at the start: ready, or not skep's to start."""

    async def run(self) -> None: ...
    def stop(self) -> None: ...
    def restart(self) -> None: ...


class Crew:
    """`busy` asks the gateway how many slots of a replica are taken; `changed` is called after every change."""

    def __init__(
        self,
        log_dir: Path,
        policy: RestartPolicy,
        changed: Callable[[], None],
        busy: Callable[[str], Awaitable[int]],
    ) -> None:
        self.members: list[Member] = []
        self._policy = policy
        self._log_dir = log_dir
        self._changed = changed
        self._busy = busy
        self._moved = asyncio.Event()  # some member changed
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._drained: set[str] = set()  # by the user, until the user says otherwise
        self._resting: set[str] = set()  # on their way to a restart or an end
        self._promised: set[str] = set()  # models that have no replica for a moment: their requests wait
        self._dormant: set[str] = set()  # without a process until they are woken
        self._coming: list[str] = []  # being started, or waiting for it, in order; until ready or given up
        self._started: set[str] = set()  # of these, those that need not wait any more

    def __repr__(self) -> str:
        return f"<Crew {self.members!r}>"

    # What stands

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted({member.model for member in self.members if member.model} | self._promised))

    @property
    def names(self) -> list[str]:
        return [member.launch.name for member in self.members]

    def find(self, name: str) -> Member | None:
        return next((member for member in self.members if member.launch.name == name), None)

    def state(self, member: Member) -> str:
        name = member.launch.name
        if name in self._dormant:
            return "unloaded"
        if name in self._coming and name not in self._started:
            return "waiting"  # for another one that starts on its cards
        if member.life.serving and self._gets_nothing(member):
            return "draining"
        return member.life.state.value

    def is_dormant(self, member: Member) -> bool:
        return member.launch.name in self._dormant

    def of_model(self, model: str) -> list[Replica]:
        """Those that skep starts."""
        return [member for member in self.members if isinstance(member, Replica) and member.model == model]

    def serves(self, model: str) -> bool:
        """Somebody takes requests for it."""
        return any(
            member.model == model and member.life.serving and not self._gets_nothing(member) for member in self.members
        )

    def table(self) -> Message:
        """For the gateway."""
        specs = [
            {
                "name": member.launch.name,
                "model": member.model,
                "url": member.life.url,
                "slots": member.launch.slots,
                "confirms": member.engine.confirms,
                "engine": member.launch.about or member.engine.version() or member.launch.engine,
                "simulated": member.engine.simulated,
                "release_bound_s": member.engine.release_bound_s,
                "health_path": member.launch.health_path or member.engine.health_path,
                "draining": self._gets_nothing(member),
                "reserve": member.launch.reserve,
                "soft_slots": member.launch.soft_slots,
                "authorization": member.launch.authorization,
            }
            for member in self.members
            if member.life.serving
        ]
        return {"replicas": specs, "models": list(self.models)}

    # Coming and going

    def set_policy(self, policy: RestartPolicy) -> None:
        self._policy = policy
        for member in self.members:
            if isinstance(member, Replica):
                member.life.policy = policy

    def enlist(self, launches: Iterable[Launch], tasks: asyncio.TaskGroup, *, asleep: bool | None = None) -> None:
        """`asleep` None: those of a model that is on demand stay dormant, unless it is loaded already."""
        launches = list(launches)
        loaded = {member.model for member in self.members if not self.is_dormant(member)}
        eager = {launch.model for launch in launches if not launch.on_demand} | loaded
        for launch in launches:
            member = self._make(launch)
            self.members.append(member)
            if isinstance(member, Replica) and (launch.model not in eager if asleep is None else asleep):
                self._dormant.add(launch.name)
            else:
                self._begin(member, tasks)

    def wake(self, model: str, tasks: asyncio.TaskGroup) -> None:
        """Start the processes of a model; what runs already is left alone, what was given up is started anew."""
        for member in self.of_model(model):
            if self.is_dormant(member):
                self._dormant.discard(member.launch.name)
                fresh = self._make(member.launch)
                self.members[self.members.index(member)] = fresh
                self._begin(fresh, tasks)
            elif member.life.state is State.FAILED:
                member.restart()

    async def put_to_sleep(self, model: str) -> None:
        """End the processes of a model at once, and return when they have ended."""
        names = [member.launch.name for member in self.of_model(model)]
        await asyncio.gather(*(self._end(name) for name in names))
        here = set(self.names)
        self._dormant |= {name for name in names if name in here}
        self._member_changed()

    def hold(self, model: str, *, back: bool = False) -> None:
        """Send its replicas nothing new; with `back`, let them serve again."""
        names = {member.launch.name for member in self.of_model(model)}
        self._resting = self._resting - names if back else self._resting | names

    async def dismiss(self, name: str) -> None:
        """End it at once, and return when it has ended."""
        member = self.find(name)
        if member is None:
            return
        await self._end(name)
        self.members = [other for other in self.members if other.launch.name != name]
        self._drained.discard(name)
        self._resting.discard(name)
        self._dormant.discard(name)
        self._changed()

    async def dismiss_all(self) -> None:
        await asyncio.gather(*(self._end(name) for name in self.names))

    async def become(self, plan: Changes, wanted: Iterable[Launch], drain_s: float, tasks: asyncio.TaskGroup) -> None:
        """Those that go make room first; those that change do so one after the other, so that a model stays served."""
        launches = {launch.name: launch for launch in wanted}
        self._promised = {launch.model for launch in launches.values() if launch.model}
        try:
            for name in plan.adjusted:
                self._adjust(launches[name])
            await asyncio.gather(*(self._send_off(name, drain_s) for name in plan.removed))
            for name in plan.changed:
                drained, dormant = self._drained & {name}, name in self._dormant
                await self._send_off(name, drain_s)
                self._drained |= drained
                await self._take_on([launches[name]], tasks, asleep=dormant and launches[name].on_demand)
            await self._take_on([launches[name] for name in plan.added], tasks)
        finally:
            self._promised = set()
            self._changed()

    # Rest

    def drain(self, name: str) -> None:
        self._drained.add(name)
        self._changed()

    def undrain(self, name: str) -> None:
        self._drained.discard(name)
        self._changed()

    async def until_idle(self, name: str) -> bool:
        """False: it gets requests again, so that it may never be."""
        while await self._busy(name):
            if name not in self._drained:
                return False
            await asyncio.sleep(REST_POLL_S)
        return True

    async def rest(self, name: str, timeout_s: float) -> None:
        """Send it nothing new and wait for its answers under way."""
        self._resting.add(name)
        self._changed()
        try:
            async with asyncio.timeout(timeout_s):
                while await self._busy(name):
                    await asyncio.sleep(REST_POLL_S)
        except TimeoutError:
            pass

    # Inside

    def _make(self, launch: Launch) -> Member:
        if launch.url is not None:
            return Upstream(launch, self._member_changed)
        log = self._log_dir / f"{launch.name}.log"
        return Replica(launch, engine_named(launch.engine), log, self._member_changed, self._policy)

    def _begin(self, member: Member, tasks: asyncio.TaskGroup) -> None:
        name = member.launch.name
        if isinstance(member, Replica):
            self._coming.append(name)
            if not self._must_wait(member):
                self._started.add(name)
        self._lives[name] = tasks.create_task(self._live(member))

    async def _live(self, member: Member) -> None:
        name = member.launch.name
        while name in self._coming and self._must_wait(member):
            self._moved.clear()
            await self._moved.wait()
        self._started.add(name)
        await member.run()

    def _must_wait(self, member: Member) -> bool:
        """Somebody before it starts on a card of its own."""
        before = self._coming[: self._coming.index(member.launch.name)]
        cards = set(member.launch.gpus)
        others = (self.find(name) for name in before)
        return any(other is not None and not cards.isdisjoint(other.launch.gpus) for other in others)

    def _forget_coming(self, *names: str) -> None:
        self._coming = [name for name in self._coming if name not in names]
        self._started.difference_update(names)

    async def _end(self, name: str) -> None:
        """End its process, if it has one; also if it is still waiting to be started."""
        life, member = self._lives.pop(name, None), self.find(name)
        if life is None or member is None:
            return
        if name in self._coming and name not in self._started:
            life.cancel()
        member.stop()
        await asyncio.wait({life})
        self._forget_coming(name)
        self._moved.set()

    def _gets_nothing(self, member: Member) -> bool:
        return member.launch.name in self._drained or member.launch.name in self._resting

    def _member_changed(self) -> None:
        self._resting &= {member.launch.name for member in self.members if member.life.serving}
        there = (State.READY, State.FAILED)
        self._forget_coming(*(member.launch.name for member in self.members if member.life.state in there))
        self._moved.set()
        self._changed()

    def _adjust(self, launch: Launch) -> None:
        member = self.find(launch.name)
        if member is not None:
            member.launch = launch
            self._changed()

    async def _send_off(self, name: str, drain_s: float) -> None:
        await self.rest(name, drain_s)
        await self.dismiss(name)

    async def _take_on(self, launches: list[Launch], tasks: asyncio.TaskGroup, *, asleep: bool | None = None) -> None:
        self.enlist(launches, tasks, asleep=asleep)
        self._changed()
        for launch in launches:
            await self._until_up(launch.name)

    async def _until_up(self, name: str) -> None:
        while (member := self.find(name)) is not None and not member.settled and not self.is_dormant(member):
            if member.life.state is State.FAILED:
                hint = "what came before it in the reload is done, what came after is not; mend it and reload again"
                raise EngineError(f"replica `{name}` did not start: {member.life.why}", hint=hint)
            self._moved.clear()
            await self._moved.wait()
