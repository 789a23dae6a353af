"""The replicas of a hive: added, removed, drained, paused and changed.

A *dormant* one has no process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep.config.gateway_messages import ReplicaSpec, ReplicaTable, UnloadedModel
from skep.engines.adapter import modalities_of
from skep.engines.agent_checks import check_documents
from skep.engines.base import Launch, engine_named
from skep.errors import EngineError, SkepError
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.remote_replica import UpstreamReplica
from skep.supervisor.replica import Replica, ReplicaMember, StartOrder

# For launches that have a `place`.
RemoteReplicaFactory = Callable[[Launch, Callable[[], None]], ReplicaMember]


class ReplicaChanges(msgspec.Struct, frozen=True):
    """Names of replicas.

    `changed` ones are restarted; `adjusted` ones go on, and only the gateway is told.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    adjusted: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


def changes(running: Iterable[Launch], planned: Iterable[Launch]) -> ReplicaChanges:
    """Return what has to change so that `planned` runs."""
    old = {launch.name: launch for launch in running}
    new = {launch.name: launch for launch in planned}
    names: dict[str, list[str]] = {kind: [] for kind in ReplicaChanges.__struct_fields__}
    names["removed"] = [name for name in old if name not in new]
    for name, launch in new.items():
        names[_kind_of_change(old.get(name), launch)].append(name)
    return ReplicaChanges(**{kind: tuple(of_kind) for kind, of_kind in names.items()})


def _kind_of_change(before: Launch | None, after: Launch) -> str:
    """Return the field of ReplicaChanges that the replica belongs to."""
    if before is None:
        return "added"
    if before == after:
        return "unchanged"
    if before.place is not None and after.place is not None:
        # Its place only matters at the next start.
        before = replace(before, place=None)
        after = replace(after, place=None)
    return "adjusted" if before.same_process(after) else "changed"


REST_POLL_S = 0.1
# a card is released a moment after its engine has ended
RESUME_TRIES = 20
RESUME_EVERY_S = 3.0
RELOAD_ON = (
    "the reload stopped here: earlier changes are done, later ones are not; correct it and "
    "reload again"
)


@dataclass(eq=False, repr=False)
class ReplicaSet:
    """All replicas, which run in `tasks`.

    `busy` asks the gateway how many slots of a replica are in use.
    """

    tasks: asyncio.TaskGroup
    log_dir: Path
    policy: RestartPolicy
    changed: Callable[[], None]
    busy: Callable[[str], Awaitable[int]]
    elsewhere: RemoteReplicaFactory | None = None

    def __post_init__(self) -> None:
        self.members: list[ReplicaMember] = []
        self._moved = asyncio.Event()  # some member changed
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._drained: set[str] = set()  # by the user, until `undrain`
        self._resting: set[str] = set()  # they get nothing new before a restart or an end
        self._restarting: dict[str, int] = {}  # its count of restarts when it was told to restart
        # Models without a replica for a moment: their requests wait.
        self._promised: set[str] = set()
        self.dormant: set[str] = set()  # without a process until `wake`
        self._held: set[str] = set()  # models that are being unloaded
        self._paused: set[str] = set()  # dormant ones that `resume` starts again
        self._start_order = StartOrder()

    # State

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(
            sorted({member.model for member in self.members if member.model} | self._promised)
        )

    @property
    def names(self) -> list[str]:
        return [member.launch.name for member in self.members]

    def find(self, name: str) -> ReplicaMember | None:
        return next((member for member in self.members if member.launch.name == name), None)

    def shown_state(self, member: ReplicaMember) -> str:
        """Return the state that `skep ps` shows."""
        name = member.launch.name
        life = member.life
        if self.is_dormant(member):
            if name in self._paused:
                return "paused"
            return "unloaded"
        if life.state is ReplicaState.STOPPED and self._start_order.holds(name):
            if self._start_order.may_start(member.launch):
                return "starting"
            return "waiting"
        if life.serving and self._gets_nothing(member):
            return "draining"
        return life.state.value

    def is_dormant(self, member: ReplicaMember) -> bool:
        return member.launch.name in self.dormant

    def of_model(self, model: str) -> list[Replica]:
        """Return the replicas of a model that skep starts."""
        return [
            member
            for member in self.members
            if isinstance(member, Replica) and member.launch.model == model
        ]

    def serves(self, model: str) -> bool:
        return any(
            member.model == model and member.life.serving and not self._gets_nothing(member)
            for member in self.members
        )

    def table(self, unloaded: Mapping[str, UnloadedModel]) -> ReplicaTable:
        """Return what the gateway is told of the replicas."""
        serving = (
            replica_spec(member, draining=self._gets_nothing(member))
            for member in self.members
            if member.life.serving
        )
        return ReplicaTable(tuple(serving), self.models, unloaded)

    # Adding and removing

    def set_policy(self, policy: RestartPolicy) -> None:
        self.policy = policy
        for member in self.members:
            if isinstance(member, Replica):
                member.life.policy = policy

    def hide_variables(self, names: Iterable[str]) -> None:
        """Keep these environment variables from engines that start from now on."""
        self._start_order.hide_variables(names)

    def add_replicas(self, launches: Iterable[Launch], *, asleep: bool | None = None) -> None:
        """Add replicas.

        `asleep` None: those of an on-demand model stay dormant, unless it is loaded
        already.
        """
        launches = list(launches)
        self._start_order.hide(launches)
        loaded = {member.model for member in self.members if not self.is_dormant(member)}
        eager = {launch.model for launch in launches if not launch.on_demand} | loaded
        for launch in launches:
            member = self._make(launch)
            self.members.append(member)
            if isinstance(member, Replica) and (
                launch.model not in eager if asleep is None else asleep
            ):
                self.dormant.add(launch.name)
            else:
                self._begin(member)

    def wake(self, model: str) -> None:
        """Start the processes of a model that do not run, including those given up."""
        self._held.discard(model)
        for member in self.of_model(model):
            if self.is_dormant(member):
                self._begin_again(member)
            elif member.life.state is ReplicaState.FAILED:
                self.tasks.create_task(member.restart())

    async def unload_model(self, model: str) -> None:
        """End the processes of a model at once, and return when they have ended."""
        self._held.add(model)  # a reload meanwhile starts none of them
        members = self.of_model(model)
        await asyncio.gather(*(self._end(member.launch.name) for member in members))
        self._held.discard(model)
        self.dormant |= {member.launch.name for member in members if member in self.members}
        self._member_changed()

    def hold(self, model: str) -> None:
        """Send its replicas nothing new."""
        self._resting |= {member.launch.name for member in self.of_model(model)}
        self._held.add(model)

    def release(self, model: str) -> None:
        """Let its replicas serve again."""
        self._resting -= {member.launch.name for member in self.of_model(model)}
        self._held.discard(model)

    async def pause(self, drain_s: float) -> None:
        """End every process that skep started, once its answers are finished or after
        `drain_s`.
        """
        kept = [
            member
            for member in self.members
            if member.launch.url is None and not self.is_dormant(member)
        ]
        names = [member.launch.name for member in kept]
        await asyncio.gather(*(self.rest(name, drain_s) for name in names))
        await asyncio.gather(*(self._end(name) for name in names))
        self._paused = set(names)
        self.dormant |= self._paused
        self._member_changed()

    async def resume(self) -> SkepError | None:
        """Start again what `pause` ended. Return the error of a replica that did not start."""
        names = self._paused
        self._paused = set()
        for member in [member for member in self.members if member.launch.name in names]:
            self._begin_again(member)
        self.changed()
        failure: SkepError | None = None
        for _ in range(RESUME_TRIES):
            try:
                for name in names:
                    await self.until_up(name, hint=f"`skep logs {name}` shows more")
            except EngineError as error:
                failure = error
            else:
                return None
            await asyncio.sleep(RESUME_EVERY_S)
            for member in self.members:
                if member.launch.name in names and member.life.state is ReplicaState.FAILED:
                    await member.restart()
        return failure

    async def remove_replica(self, name: str, drain_s: float) -> bool:
        """Remove it once its answers are finished, or after `drain_s`.

        Return whether it was dormant or about to be.
        """
        await self.rest(name, drain_s)
        member = self.find(name)
        if member is None:
            return False
        await self._end(name)
        asleep = self.is_dormant(member) or member.model in self._held
        self.members = [other for other in self.members if other is not member]
        for names in (self._drained, self._resting, self.dormant):
            names.discard(name)
        self.changed()
        return asleep

    async def end_all(self) -> None:
        await asyncio.gather(*(self._end(name) for name in self.names))

    async def become(
        self,
        plan: ReplicaChanges,
        new: Iterable[Launch],
        drain_s: float,
        listed: Callable[[], None],
        *,
        patient: bool,
    ) -> None:
        """Remove, then change one after the other (so that a model stays served), then add.

        `listed` is called once new on-demand replicas are listed. `patient`: wait for those that
        start, or raise."""
        launches = {launch.name: launch for launch in new}
        awake = {launch.model for launch in launches.values() if not launch.on_demand}
        awake |= {member.model for member in self.members if not self.is_dormant(member)}
        dormant = [
            name
            for name in plan.added
            if launches[name].url is None and launches[name].model not in awake
        ]
        self._promised = {launch.model for launch in launches.values() if launch.model}
        self._start_order.hide(launches.values())
        try:
            for member in self.members:
                if member.launch.name in plan.adjusted:
                    member.launch = launches[member.launch.name]
                    self.changed()
            if dormant:
                self.add_replicas([launches[name] for name in dormant], asleep=True)
                listed()
            await asyncio.gather(*(self.remove_replica(name, drain_s) for name in plan.removed))
            for name in plan.changed:
                drained = self._drained & {name}
                before = self.find(name)
                launch = launches[name]
                asleep = await self.remove_replica(name, drain_s)
                self._drained |= drained
                same = launch.on_demand or (before is not None and before.model == launch.model)
                await self._add_and_await([launch], asleep=asleep and same, patient=patient)
            added = [launches[name] for name in plan.added if name not in dormant]
            await self._add_and_await(added, patient=patient)
        finally:
            self._promised = set()
            self.changed()

    # Draining

    def drain(self, name: str, *, over: bool = False) -> None:
        """Send a replica nothing new; with `over`, send it requests again."""
        if over:
            self._drained = self._drained - {name}
        else:
            self._drained = self._drained | {name}
        self.changed()

    async def until_idle(self, name: str) -> None:
        while await self.busy(name):
            await asyncio.sleep(REST_POLL_S)

    async def rest(self, name: str, timeout_s: float) -> None:
        """Send it nothing new, and wait for its answers."""
        self._resting.add(name)
        self.changed()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.until_idle(name)

    async def restart(self, name: str) -> None:
        """Restart it.

        It gets no requests until the restart has begun; it serves on where it cannot be
        reached.
        """
        member = self.find(name)
        if member is None:
            return
        self._restarting[name] = member.life.restarts
        try:
            await member.restart()
        except SkepError:
            self._restarting.pop(name, None)
            self._resting.discard(name)
            self.changed()
            raise

    # Inside

    def _make(self, launch: Launch) -> ReplicaMember:
        if launch.url is not None:
            return UpstreamReplica(launch, self._member_changed)
        if launch.place is not None and self.elsewhere is not None:
            return self.elsewhere(launch, self._member_changed)
        log = self.log_dir / f"{launch.name}.log"
        engine = engine_named(launch.engine, launch.binary)
        return Replica(launch, engine, log, self._member_changed, self.policy, self._start_order)

    def _begin(self, member: ReplicaMember) -> None:
        if isinstance(member, Replica):
            self._start_order.may_start(member.launch)  # its place in the queue
        self._lives[member.launch.name] = self.tasks.create_task(member.run())

    def _begin_again(self, member: ReplicaMember) -> None:
        """Replace a dormant replica by one that runs."""
        fresh = self._make(member.launch)
        if isinstance(fresh, Replica) and isinstance(member, Replica):
            fresh.follow(member)
        self.members[self.members.index(member)] = fresh
        self.dormant.discard(member.launch.name)
        self._begin(fresh)

    async def _end(self, name: str) -> None:
        """End its process, if it has one; a second caller waits for the same end."""
        life = self._lives.get(name)
        member = self.find(name)
        if life is None or member is None:
            return
        member.stop()
        await asyncio.wait({life})
        if self._lives.get(name) is life:
            del self._lives[name]
            self._start_order.done([name])
            self._moved.set()

    def _gets_nothing(self, member: ReplicaMember) -> bool:
        return member.launch.name in self._resting | self._drained

    def _member_changed(self) -> None:
        ready = {
            member.launch.name: member.life.restarts
            for member in self.members
            if member.life.state is ReplicaState.READY
        }
        anew = {name for name, before in self._restarting.items() if ready.get(name) != before}
        self._resting = (
            self._resting & ready.keys()
        ) - anew  # it may have restarted without a report of it
        self._restarting = {
            name: before for name, before in self._restarting.items() if name not in anew
        }
        still = (ReplicaState.READY, ReplicaState.BACKOFF, ReplicaState.FAILED)
        self._start_order.done(
            [member.launch.name for member in self.members if member.life.state in still]
        )
        self._moved.set()
        self.changed()

    async def _add_and_await(
        self, launches: list[Launch], *, asleep: bool | None = None, patient: bool
    ) -> None:
        self.add_replicas(launches, asleep=asleep)
        self.changed()
        for launch in launches if patient else ():
            await self.until_up(launch.name)

    async def until_up(self, name: str, *, hint: str = RELOAD_ON) -> None:
        """Wait until the replica is up or gone. Raise EngineError if it is given up."""
        while (
            (member := self.find(name)) is not None
            and not member.settled
            and not self.is_dormant(member)
        ):
            if member.life.state is ReplicaState.FAILED:
                raise EngineError(f"replica `{name}` did not start: {member.life.why}", hint=hint)
            self._moved.clear()
            await self._moved.wait()


def replica_spec(member: ReplicaMember, *, draining: bool = False) -> ReplicaSpec:
    """Return the row of the gateway's replica table.

    A fallback to fewer slots lowers reserve and soft slots.
    """
    launch = member.launch
    engine = member.engine
    started = member.started
    soft_slots = started.soft_slots
    if soft_slots is not None:
        soft_slots = min(soft_slots, started.slots)
    return ReplicaSpec(
        name=launch.name,
        model=member.model,
        url=member.life.url or "",
        slots=started.slots,
        reserve=min(started.reserve, started.slots - 1),
        soft_slots=soft_slots,
        confirms=engine.confirms,
        engine=member.about,
        simulated=engine.simulated,
        own_engine=launch.engine != "remote",
        release_bound_s=engine.release_bound_s,
        health_path=launch.health_path or engine.health_path,
        draining=draining,
        context=started.context_tokens or None,
        authorization=started.authorization,
        setup=_speed_setup(member),
        checks=check_documents(member.checks),
        modalities=modalities_of(started),
        preset=started.preset,
    )


def _speed_setup(member: ReplicaMember) -> dict[str, str]:
    """Return what decides about its speed, for benchmarks; empty: not all of it is known, as with
    arguments in `extra`.
    """
    started = member.started
    if started.engine == "remote" or member.engine.simulated or started.extra:
        return {}
    checkpoint = started.checkpoint or started.model
    return {"checkpoint": checkpoint, **started.options.speed_words()}
