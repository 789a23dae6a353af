"""Changes to a running hive: a reload of its settings, or another number of replicas.

One change at a time. What is impossible is refused before anything changes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice

import msgspec

from skep.catalog.names import model_id
from skep.config.settings import Settings
from skep.engines.base import Launch
from skep.errors import DoesNotFit, EngineError, SkepError, UserError
from skep.supervisor.gateway_child import GatewayChild
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.model_loader import ModelLoader
from skep.supervisor.monitor_child import MonitorChild
from skep.supervisor.replica_protocol import Hive, Rebuild, ReplicaMember
from skep.supervisor.replica_set import ReplicaChanges, ReplicaSet, changes
from skep.wire.json_pipe import Message


def check_removal(replica_set: ReplicaSet, going: Collection[str]) -> None:
    """Raise EngineError where a removal would leave a model with worse replicas only than the best that goes."""
    for model in dict.fromkeys(member.model for member in replica_set.members if member.launch.name in going):
        of_it = [member for member in replica_set.members if member.model == model]
        stay = [member for member in of_it if member.launch.name not in going]
        best = max(_worth(replica_set, member) for member in of_it)
        if stay and all(_worth(replica_set, member) < best for member in stay):
            left = ", ".join(f"{member.launch.name} {_lack(replica_set, member)}" for member in stay)
            hint = f"the last ones go first; {_remedy(replica_set, stay[0])}"
            raise EngineError(f"`{model}` would be left without a replica that serves: {left}", hint=hint)


def _worth(replica_set: ReplicaSet, member: ReplicaMember) -> int:
    """Return 2 if it serves, 1 if it may serve soon, 0 if the user must act first."""
    if replica_set.is_drained(member) or member.life.state is ReplicaState.FAILED:
        return 0
    return 2 if member.life.serving and replica_set.state(member) != "draining" else 1


def _lack(replica_set: ReplicaSet, member: ReplicaMember) -> str:
    if replica_set.is_drained(member):
        return "is drained"
    if member.life.state is ReplicaState.FAILED:
        return "was given up"
    state = replica_set.state(member)
    return "is in backoff" if state == ReplicaState.BACKOFF.value else f"is {state}"


def _remedy(replica_set: ReplicaSet, member: ReplicaMember) -> str:
    name = member.launch.name
    if replica_set.is_drained(member):
        return f"`skep replica undrain {replica_set.drained_node(name) or name}` sends it requests again"
    if member.life.state is ReplicaState.FAILED:
        return f"`skep replica restart {name}` starts it again"
    return "try again when it is ready"


MOST = 1024  # replicas of a model


def replicas_of(settings: Settings, model: str) -> list[int]:
    """Return the replicas of the model's [[serve]] tables: one table, or one for each kind of node."""
    return [serve.replicas for serve in settings.serve if model_id(serve.model) == model]


def models_of(settings: Settings) -> tuple[str, ...]:
    """Return every model that skep starts."""
    return tuple(dict.fromkeys(model_id(serve.model) for serve in settings.serve))


def rescaled(settings: Settings, model: str, replicas: int) -> Iterator[Settings]:
    """Yield settings with that many replicas of the model, the preferred split first: the next may fit."""
    have = replicas_of(settings, model)
    if not have:
        known = ", ".join(models_of(settings))
        hint = f"known: {known}" if known else "its replicas are not started from here"
        raise UserError(f"there is no model `{model}` that skep starts here", hint=hint)
    if not 1 <= replicas <= MOST:
        away = (
            "`skep down` takes" if settings.cluster is not None else f"`skep model unload {model}` and `skep down` take"
        )
        hint = f"from 1 to {MOST}; {away} it away"
        raise UserError(f"`{model}` cannot have {replicas} replicas", hint=hint)
    served = settings.serve
    for split in _splits(have, replicas):
        counts = iter(split)
        tables = (replace(one, replicas=next(counts)) if model_id(one.model) == model else one for one in served)
        yield replace(settings, serve=tuple(tables))


def _splits(have: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """Split `total` over the tables: remove from the last ones, add to the first ones."""
    if total <= sum(have):
        before = itertools.accumulate(have, initial=0)
        yield tuple(max(0, min(count, total - sooner)) for count, sooner in zip(have, before, strict=False))
        return
    for extra in _handed_out(total - sum(have), len(have)):
        yield tuple(count + n for count, n in zip(have, extra, strict=True))


def _handed_out(total: int, tables: int) -> Iterator[tuple[int, ...]]:
    """Yield all splits, as much as possible to the first."""
    if tables == 1:
        yield (total,)
        return
    for first in range(total, -1, -1):
        for rest in _handed_out(total - first, tables - 1):
            yield (first, *rest)


MOST_WAYS = 100  # splits of replicas over kinds of nodes that are tried


class Reloader:
    """The running hive and its changes. `phase` tells whether it may change; `tasks` outlive the caller."""

    def __init__(
        self,
        hive: Hive,
        rebuild: Rebuild | None,
        tasks: asyncio.TaskGroup,
        replica_set: ReplicaSet,
        *,
        gateway: GatewayChild,
        loader: ModelLoader,
        monitor: MonitorChild,
        phase: Callable[[], str],
        set_policy: Callable[[RestartPolicy], None],
    ) -> None:
        self.hive = hive
        self.waits_for_change = False  # a change left no replica serving: wait for the next change instead of giving up
        self._rebuild = rebuild
        self._tasks = tasks
        self._replica_set = replica_set
        self._gateway_child = gateway
        self._loader = loader
        self._monitor = monitor
        self._phase = phase
        self._set_policy = set_policy
        self._begun = ""  # what is under way
        self._carrying: asyncio.Task[SkepError | None] | None = None

    def __repr__(self) -> str:
        return f"<Reloader {self._begun or 'nothing'}>"

    @property
    def possible(self) -> bool:
        return self._rebuild is not None and self._phase() == "ready" and not self._begun

    def cancel(self) -> None:
        if self._carrying is not None:
            self._carrying.cancel()

    @property
    def models(self) -> tuple[str, ...]:
        """The models that skep starts."""
        return models_of(self.hive.settings)

    # Commands

    async def reload(self, document: Message, *, wait: bool) -> Message:
        """Apply settings before the answer; change replicas after it, or before it with `wait`."""
        try:
            settings = msgspec.convert(document, Settings)
        except msgspec.ValidationError as error:
            hint = "`skep down && skep up -d` starts the new one"
            raise UserError(f"these settings are from another version of skep: {error}", hint=hint) from None
        hive, plan = await self._become(lambda: [settings], all_of_it=True)
        await self._outcome(wait=wait)
        return {"ok": True, **asdict(plan), "left_out": list(hive.left_out), "warnings": list(hive.warnings)}

    async def scale(self, model: str, replicas: int, *, wait: bool) -> Message:
        """Change the number of replicas of a model."""
        before = sum(replicas_of(self.hive.settings, model))
        _, plan = await self._become(lambda: rescaled(self.hive.settings, model, replicas))
        await self._outcome(wait=wait)
        for name in plan.added if wait else ():
            hint = f"`skep logs {name}` shows more; `skep replica scale {model}={before}` takes it back"
            await self._replica_set.until_up(name, hint=hint)
        return {"ok": True, "model": model, "before": before, "replicas": replicas, **asdict(plan)}

    # Inside

    async def _become(
        self, ways: Callable[[], Iterable[Settings]], *, all_of_it: bool = False
    ) -> tuple[Hive, ReplicaChanges]:
        """Apply the first of these settings that fits. Without `all_of_it`, only the replicas change."""
        if not self.possible:
            why = f"{self._begun} is under way" if self._begun else f"skep is {self._phase()}"
            raise EngineError(f"the hive cannot change now: {why}", hint="try again later; `skep ps` shows the state")
        self._begun = "another reload" if all_of_it else "a change of replicas"
        try:
            running = [member.launch for member in self._replica_set.members]
            now = replace(self.hive, avoid=self._replica_set.avoided)
            hive = await asyncio.to_thread(self._built, ways, now, running)
            if all_of_it:
                hive = self._as_far_as_can_be(hive, running)
                await self._set_up(hive)
            else:
                hive = replace(self.hive, replicas=hive.replicas, settings=hive.settings)
                check_removal(self._replica_set, changes(running, hive.replicas).removed)
            self.hive = hive
            self._carrying = self._tasks.create_task(self._carry_out(hive, running, patient=all_of_it))
        except BaseException:
            self._begun = ""
            raise
        return hive, changes(running, hive.replicas)

    def _built(self, ways: Callable[[], Iterable[Settings]], now: Hive, running: Sequence[Launch]) -> Hive:
        assert self._rebuild is not None
        refused: DoesNotFit | None = None
        for settings in islice(ways(), MOST_WAYS):
            try:
                return replace(self._rebuild(settings, now, running), settings=settings)
            except DoesNotFit as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def _as_far_as_can_be(self, hive: Hive, running: Sequence[Launch]) -> Hive:
        """Note `room` as left out where a replica on a node keeps the memory it was given until its engine restarts."""
        held = {launch.name: launch.place.memory_bytes for launch in running if launch.place is not None}
        stay = {*changes(running, hive.replicas).adjusted} & held.keys()
        asked = {one.name: one.place.memory_bytes for one in hive.replicas if one.place is not None}
        differ = any(asked.get(name) != held[name] for name in stay)
        return replace(hive, left_out=(*hive.left_out, "room")) if differ else hive

    async def _set_up(self, hive: Hive) -> None:
        await self._gateway_child.set_up(hive.gateway_setup)
        self._set_policy(hive.policy)
        before = self.hive
        if (before.monitor_argv, before.settings.monitor) != (hive.monitor_argv, hive.settings.monitor):
            await self._monitor.become(hive.monitor_argv, begin=hive.monitor_due)

    def _given_up(self) -> bool:
        return all(member.life.state is ReplicaState.FAILED for member in self._replica_set.members)

    async def _outcome(self, *, wait: bool) -> None:
        if not wait or (carrying := self._carrying) is None:
            return
        await asyncio.wait({carrying})
        if not carrying.cancelled() and (failure := carrying.result()) is not None:
            raise failure

    async def _carry_out(self, hive: Hive, running: Sequence[Launch], *, patient: bool) -> SkepError | None:
        def settle() -> None:
            self._loader.configure([member.launch for member in self._replica_set.members], hive.memory_budget)

        plan = changes(running, hive.replicas)
        before, self.waits_for_change = self.waits_for_change, self.waits_for_change or patient or bool(plan.removed)
        try:
            await self._replica_set.become(
                plan, hive.replicas, hive.drain_s, self._tasks, known=settle, patient=patient
            )
            self.waits_for_change = (before and not patient) or (bool(plan.removed) and self._given_up())
        except SkepError as error:
            return error
        finally:
            settle()
            self._begun = ""
        return None
