"""The replicas of a hive: those that skep started and those it only fronts. They may come, go and rest meanwhile."""

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
        if member.life.serving and self._gets_nothing(member):
            return "draining"
        return member.life.state.value

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

    def enlist(self, launches: Iterable[Launch], tasks: asyncio.TaskGroup) -> None:
        for launch in launches:
            member = self._make(launch)
            self.members.append(member)
            self._lives[launch.name] = tasks.create_task(member.run())

    async def dismiss(self, name: str) -> None:
        """End it at once, and return when it has ended."""
        member = self.find(name)
        if member is None:
            return
        member.stop()
        await asyncio.wait({self._lives[name]})
        del self._lives[name]
        self.members.remove(member)
        self._drained.discard(name)
        self._resting.discard(name)
        self._changed()

    async def dismiss_all(self) -> None:
        for member in self.members:
            member.stop()
        if self._lives:
            await asyncio.wait(self._lives.values())

    async def become(self, plan: Changes, wanted: Iterable[Launch], drain_s: float, tasks: asyncio.TaskGroup) -> None:
        """Those that go make room first; those that change do so one after the other, so that a model stays served."""
        launches = {launch.name: launch for launch in wanted}
        self._promised = {launch.model for launch in launches.values() if launch.model}
        try:
            for name in plan.adjusted:
                self._adjust(launches[name])
            await asyncio.gather(*(self._send_off(name, drain_s) for name in plan.removed))
            for name in plan.changed:
                drained = self._drained & {name}
                await self._send_off(name, drain_s)
                self._drained |= drained
                await self._take_on([launches[name]], tasks)
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

    def _gets_nothing(self, member: Member) -> bool:
        return member.launch.name in self._drained or member.launch.name in self._resting

    def _member_changed(self) -> None:
        self._resting &= {member.launch.name for member in self.members if member.life.serving}
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

    async def _take_on(self, launches: list[Launch], tasks: asyncio.TaskGroup) -> None:
        self.enlist(launches, tasks)
        self._changed()
        for launch in launches:
            await self._until_up(launch.name)

    async def _until_up(self, name: str) -> None:
        while (member := self.find(name)) is not None and not member.settled:
            if member.life.state is State.FAILED:
                hint = "what came before it in the reload is done, what came after is not; mend it and reload again"
                raise EngineError(f"replica `{name}` did not start: {member.life.why}", hint=hint)
            self._moved.clear()
            await self._moved.wait()
