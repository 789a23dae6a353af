"""The replicas of a hive: added, removed, drained, paused and changed. What that means for each
process is decided by `replica_state`; this carries it out.

A *dormant* replica has no process until it is loaded or resumed.
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
from skep.supervisor.replica_state import (
    Observed,
    ReplicaEntry,
    ReplicaOrder,
    Wish,
    reconcile,
)

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


@dataclass(slots=True, eq=False, kw_only=True)
class HostedReplica(ReplicaEntry):
    """An entry with what runs for it."""

    member: ReplicaMember
    task: asyncio.Task[None] | None = None  # runs the member; None: it was never begun
    is_new: bool = True  # its member has not run

    @property
    def model(self) -> str:
        return self.member.model


@dataclass(eq=False, repr=False)
class ReplicaSet:
    """All replicas, which run in `tasks`: carries out what `reconcile` returns.

    `busy` asks the gateway how many slots of a replica are in use, `changed` is called at each
    change of a replica, `elsewhere` makes those that have a place.
    """

    tasks: asyncio.TaskGroup
    log_dir: Path
    policy: RestartPolicy
    changed: Callable[[], None]
    busy: Callable[[str], Awaitable[int]]
    elsewhere: RemoteReplicaFactory | None = None

    def __post_init__(self) -> None:
        self._replicas: dict[str, HostedReplica] = {}
        # Of the reload under way: models without a replica for a moment, whose requests wait.
        self._planned: tuple[Launch, ...] = ()
        self._moved = asyncio.Event()  # some member changed
        self._start_order = StartOrder()

    # State

    @property
    def members(self) -> list[ReplicaMember]:
        return [replica.member for replica in self._replicas.values()]

    @property
    def models(self) -> tuple[str, ...]:
        models = {replica.model for replica in self._replicas.values()}
        models |= {launch.model for launch in self._planned}
        return tuple(sorted(models - {""}))

    @property
    def names(self) -> list[str]:
        return list(self._replicas)

    def find(self, name: str) -> ReplicaMember | None:
        replica = self._replicas.get(name)
        return None if replica is None else replica.member

    def shown_state(self, member: ReplicaMember) -> str:
        """Return the state that `skep ps` shows."""
        replica = self._replicas[member.launch.name]
        life = member.life
        if replica.is_dormant:
            return "paused" if replica.wish is Wish.PAUSED else "unloaded"
        if life.state is ReplicaState.STOPPED and self._start_order.holds(replica.name):
            if self._start_order.may_start(member.launch):
                return "starting"
            return "waiting"
        if life.serving and replica.gets_nothing:
            return "draining"
        return life.state.value

    def is_dormant(self, member: ReplicaMember) -> bool:
        """Return whether it has no process until its model is loaded or a pause ends."""
        replica = self._replicas.get(member.launch.name)
        return replica is not None and replica.is_dormant

    def of_model(self, model: str) -> list[Replica]:
        """Return the replicas of a model that skep starts."""
        members = [replica.member for replica in self._hosted(model)]
        return [member for member in members if isinstance(member, Replica)]

    def serves(self, model: str) -> bool:
        return any(
            replica.model == model and replica.member.life.serving and not replica.gets_nothing
            for replica in self._replicas.values()
        )

    def table(self, unloaded: Mapping[str, UnloadedModel]) -> ReplicaTable:
        """Return the replicas as the gateway needs them."""
        specs = (
            replica_spec(replica.member, draining=replica.gets_nothing)
            for replica in self._replicas.values()
            if replica.member.life.serving
        )
        return ReplicaTable(tuple(specs), self.models, unloaded)

    # Adding and removing

    def set_policy(self, policy: RestartPolicy) -> None:
        self.policy = policy
        for member in self.members:
            if isinstance(member, Replica):
                member.life.policy = policy

    def hide_variables(self, names: Iterable[str]) -> None:
        """Keep these environment variables from engines that start from now on."""
        self._start_order.hide_variables(names)

    def add_replicas(
        self, launches: Iterable[Launch], *, asleep: bool | None = None, drained: bool = False
    ) -> None:
        """Add replicas.

        `asleep` None: those of an on-demand model stay dormant, unless it is loaded already.
        """
        launches = list(launches)
        self._start_order.hide(launches)
        eager = {launch.model for launch in launches if not launch.on_demand} | self._awake_models
        for launch in launches:
            member = self._make(launch)
            replica = HostedReplica(name=launch.name, life=member.life, member=member)
            replica.drain(over=not drained)
            sleeps = launch.model not in eager if asleep is None else asleep
            if sleeps and isinstance(member, Replica):
                replica.unload()
                replica.is_new = False
            self._replicas[launch.name] = replica
        self._reconcile()

    def wake(self, model: str) -> None:
        """Start the processes of a model that do not run, including those given up."""
        for replica in self._hosted(model):
            replica.load()
            if replica.has_process and replica.life.state is ReplicaState.FAILED:
                self.tasks.create_task(replica.member.restart())
        self._reconcile()

    async def unload_model(self, model: str) -> None:
        """End the processes of a model at once, and return when they have ended."""
        replicas = self._hosted(model)
        for replica in replicas:
            replica.unload(self._now())
        await self._end(replicas)
        self._member_changed()

    def hold(self, model: str) -> None:
        """Send its replicas nothing new."""
        for replica in self._hosted(model):
            replica.unload()

    def release(self, model: str) -> None:
        """Let its replicas serve again."""
        for replica in self._hosted(model):
            if replica.has_process and not replica.is_ending:
                replica.load()

    async def pause(self, drain_s: float) -> None:
        """End every process that skep started, once its answers are finished or after
        `drain_s`.
        """
        replicas = [
            replica
            for replica in self._replicas.values()
            if replica.member.launch.url is None and not replica.is_dormant
        ]
        for replica in replicas:
            replica.pause(self._now() + drain_s)
        self.changed()
        await self._end(replicas)
        self._member_changed()

    async def resume(self) -> SkepError | None:
        """Start again what `pause` ended. Return the error of a replica that did not start."""
        paused = [replica for replica in self._replicas.values() if replica.wish is Wish.PAUSED]
        for replica in paused:
            replica.load()
        self._reconcile()
        self.changed()
        failure: SkepError | None = None
        for _ in range(RESUME_TRIES):
            try:
                for replica in paused:
                    hint = f"`skep logs {replica.name}` shows more"
                    await self.until_up(replica.name, hint=hint)
            except EngineError as error:
                failure = error
            else:
                return None
            await asyncio.sleep(RESUME_EVERY_S)
            for replica in paused:
                if replica.life.state is ReplicaState.FAILED:
                    await replica.member.restart()
        return failure

    async def remove_replica(self, name: str, drain_s: float) -> HostedReplica | None:
        """Remove a replica once its answers are finished, or after `drain_s`, and return it; None:
        there is none of that name.
        """
        replica = self._replicas.get(name)
        if replica is None:
            return None
        replica.remove(self._now() + drain_s)
        self.changed()
        await self._end([replica])
        if self._replicas.get(name) is replica:
            del self._replicas[name]
        self.changed()
        return replica

    async def end_all(self) -> None:
        replicas = [replica for replica in self._replicas.values() if replica.has_process]
        for replica in replicas:
            replica.remove(self._now())
        await self._end(replicas)

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
        asleep = self._added_asleep(plan, launches)
        self._planned = tuple(launches.values())
        self._start_order.hide(launches.values())
        try:
            self._adjust([launches[name] for name in plan.adjusted])
            if asleep:
                self.add_replicas([launches[name] for name in asleep], asleep=True)
                listed()
            await asyncio.gather(*(self.remove_replica(name, drain_s) for name in plan.removed))
            for name in plan.changed:
                await self._replace(launches[name], drain_s, patient=patient)
            awake = [launches[name] for name in plan.added if name not in asleep]
            self.add_replicas(awake)
            self.changed()
            if patient:
                await self._until_all_up(awake)
        finally:
            self._planned = ()
            self.changed()

    def _added_asleep(self, plan: ReplicaChanges, launches: Mapping[str, Launch]) -> list[str]:
        """Return the new replicas of models of which none is loaded."""
        eager = {launch.model for launch in launches.values() if not launch.on_demand}
        eager |= self._awake_models
        return [
            name
            for name in plan.added
            if launches[name].url is None and launches[name].model not in eager
        ]

    def _adjust(self, launches: Iterable[Launch]) -> None:
        """Change what the processes of these replicas need not know."""
        for launch in launches:
            member = self.find(launch.name)
            if member is not None:
                member.launch = launch
                self.changed()

    async def _replace(self, launch: Launch, drain_s: float, *, patient: bool) -> None:
        """Replace a replica. The new one is drained as the old one was, and asleep as it was where
        it is of the same model.
        """
        removed = await self.remove_replica(launch.name, drain_s)
        if removed is None:
            self.add_replicas([launch], asleep=False)
        else:
            may_sleep = launch.on_demand or removed.model == launch.model
            asleep = may_sleep and removed.lasting_wish.sleeps
            self.add_replicas([launch], asleep=asleep, drained=removed.drained)
        self.changed()
        if patient:
            await self._until_all_up([launch])

    # Draining

    def drain(self, name: str, *, over: bool = False) -> None:
        """Send a replica nothing new; with `over`, send it requests again."""
        self._replicas[name].drain(over=over)
        self.changed()

    async def until_idle(self, name: str) -> None:
        while await self.busy(name):
            await asyncio.sleep(REST_POLL_S)

    async def restart(self, name: str, drain_s: float) -> None:
        """Restart it once its answers are finished, or after `drain_s`.

        It gets no requests until the restart has begun; it serves on where it cannot be reached.
        """
        replica = self._replicas[name]
        replica.rest()
        self.changed()
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self.until_idle(name)
        member = self.find(name)
        if member is None:
            return
        try:
            await member.restart()
        except SkepError:
            replica.rests_from = None
            self.changed()
            raise

    # Inside

    @property
    def _awake_models(self) -> set[str]:
        return {replica.model for replica in self._replicas.values() if not replica.is_dormant}

    def _hosted(self, model: str) -> list[HostedReplica]:
        """Return the replicas of a model that skep starts on this machine."""
        return [
            replica
            for replica in self._replicas.values()
            if isinstance(replica.member, Replica) and replica.member.launch.model == model
        ]

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _make(self, launch: Launch) -> ReplicaMember:
        if launch.url is not None:
            return UpstreamReplica(launch, self._member_changed)
        if launch.place is not None and self.elsewhere is not None:
            return self.elsewhere(launch, self._member_changed)
        log = self.log_dir / f"{launch.name}.log"
        engine = engine_named(launch.engine, launch.binary)
        return Replica(launch, engine, log, self._member_changed, self.policy, self._start_order)

    def _reconcile(self, busy: Mapping[str, int] | None = None) -> None:
        """Do what the wishes ask for, until there is nothing more to do by now."""
        while True:
            replicas = self._replicas.values()
            ended = frozenset(
                replica.name
                for replica in replicas
                if replica.task is not None and replica.task.done()
            )
            actions = reconcile(replicas, Observed(ended, busy or {}), self._now())
            if not actions:
                return
            for action in actions:
                replica = self._replicas[action.name]
                match action.order:
                    case ReplicaOrder.BEGIN:
                        self._begin(replica)
                    case ReplicaOrder.END:
                        replica.member.stop()

    def _begin(self, replica: HostedReplica) -> None:
        if not replica.is_new:
            before = replica.member
            replica.member = self._make(before.launch)
            replica.life = replica.member.life
            if isinstance(replica.member, Replica) and isinstance(before, Replica):
                replica.member.follow(before)
        replica.is_new = False
        if isinstance(replica.member, Replica):
            self._start_order.may_start(replica.member.launch)  # its place in the queue
        task = self.tasks.create_task(replica.member.run())
        task.add_done_callback(lambda _task: self._on_end(replica))
        replica.task = task

    def _on_end(self, replica: HostedReplica) -> None:
        if replica.is_ending:
            self._start_order.done([replica.name])
            self._reconcile()
            self._moved.set()

    async def _end(self, replicas: Iterable[HostedReplica]) -> None:
        """Return when they have ended, which they do as soon as their wishes let them."""
        self._reconcile()  # before anybody else can change a wish
        tasks = [(replica, replica.task) for replica in replicas]
        await asyncio.gather(*(self._end_task(replica, task) for replica, task in tasks))

    async def _end_task(self, replica: HostedReplica, task: asyncio.Task[None] | None) -> None:
        """Return when that task has ended; the replica may have another one by then."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(replica.end_at):
                while replica.awaits_end and replica.task is task:
                    self._reconcile({replica.name: await self.busy(replica.name)})
                    if replica.awaits_end:
                        await asyncio.sleep(REST_POLL_S)
        if replica.task is not task:
            return
        if replica.awaits_end:
            replica.end_at = self._now()
            self._reconcile()
        if task is not None and replica.is_ending:
            await asyncio.wait({task})

    def _member_changed(self) -> None:
        self._reconcile()
        started = (ReplicaState.READY, ReplicaState.BACKOFF, ReplicaState.FAILED)
        members = [member for member in self.members if member.life.state in started]
        self._start_order.done([member.launch.name for member in members])
        self._moved.set()
        self.changed()

    async def _until_all_up(self, launches: Iterable[Launch]) -> None:
        for launch in launches:
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
