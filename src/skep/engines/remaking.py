"""A hive becomes another one while it runs: by a reload, by another number of replicas.

One change at a time. Whatever cannot be is found out before anything is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from skep.engines.base import Launch
from skep.engines.changes import Changes, changes
from skep.engines.crew import Crew
from skep.engines.front import Front
from skep.engines.hive import Hive, Rebuild
from skep.engines.housing import Housing
from skep.engines.leaving import check_leave
from skep.engines.lifecycle import RestartPolicy, State
from skep.engines.scaling import Document, models_of, rescaled, tables_of
from skep.engines.sidecar import Sidecar
from skep.errors import DoesNotFit, EngineError, SkepError
from skep.wire.link import Message

MOST_WAYS = 100  # of dividing replicas among the kinds of nodes: more are not tried


class Remaking:
    """`hive` is as it is now. `phase` tells whether it may change; `tasks` outlive who asked for a change."""

    def __init__(
        self,
        hive: Hive,
        rebuild: Rebuild | None,
        tasks: asyncio.TaskGroup,
        crew: Crew,
        *,
        front: Front,
        housing: Housing,
        monitor: Sidecar,
        phase: Callable[[], str],
        set_policy: Callable[[RestartPolicy], None],
    ) -> None:
        self.hive = hive
        self.stay = False  # a change brought none up, or left none: wait for the next one instead of giving up
        self._rebuild = rebuild
        self._tasks = tasks
        self._crew = crew
        self._front = front
        self._housing = housing
        self._monitor = monitor
        self._phase = phase
        self._set_policy = set_policy
        self._begun = ""  # what is under way
        self._carrying: asyncio.Task[SkepError | None] | None = None

    def __repr__(self) -> str:
        return f"<Remaking {self._begun or 'nothing'}>"

    @property
    def possible(self) -> bool:
        return self._rebuild is not None and self._phase() == "ready" and not self._begun

    def cancel(self) -> None:
        if self._carrying is not None:
            self._carrying.cancel()

    @property
    def models(self) -> tuple[str, ...]:
        """Those that skep starts."""
        return models_of(self.hive.settings)

    # What is asked for

    async def reload(self, message: Message) -> Message:
        """Settings take effect before the answer; replicas come and go after it, or before it with `wait`."""
        hive, plan = await self._become(lambda: [message["settings"]], all_of_it=True)
        await self._outcome(wait=bool(message.get("wait")))
        return {"ok": True, **plan.document(), "left_out": list(hive.left_out), "warnings": list(hive.warnings)}

    async def scale(self, model: str, replicas: int, *, wait: bool) -> Message:
        """As many replicas of the model as the user says."""
        now = self.hive.settings
        before = sum(now["serve"][place]["replicas"] for place in tables_of(now, model))
        _, plan = await self._become(lambda: rescaled(self.hive.settings, model, replicas))
        await self._outcome(wait=wait)
        for name in plan.added if wait else ():
            hint = f"`skep logs {name}` shows more; `skep scale {model}={before}` takes it back"
            await self._crew.until_up(name, hint=hint)
        return {"ok": True, "model": model, "before": before, "replicas": replicas, **plan.document()}

    # Inside

    async def _become(self, ways: Callable[[], Iterable[Document]], *, all_of_it: bool = False) -> tuple[Hive, Changes]:
        """The first of these settings that can be. Without `all_of_it`, nothing but the replicas changes."""
        if not self.possible:
            why = f"{self._begun} is under way" if self._begun else f"skep is {self._phase()}"
            raise EngineError(f"nothing is changed now: {why}", hint="try again later; `skep ps` shows the state")
        self._begun = "another reload" if all_of_it else "a change of replicas"
        try:
            running = [member.launch for member in self._crew.members]
            now = replace(self.hive, avoid=self._crew.avoided)
            hive = await asyncio.to_thread(self._built, ways, now, running)
            if all_of_it:
                hive = self._as_far_as_can_be(hive, running)
                await self._set_up(hive)
            else:
                hive = replace(self.hive, replicas=hive.replicas, settings=hive.settings)
                check_leave(self._crew, changes(running, hive.replicas).removed)
            self.hive = hive
            self._carrying = self._tasks.create_task(self._carry_out(hive, running, patient=all_of_it))
        except BaseException:
            self._begun = ""
            raise
        return hive, changes(running, hive.replicas)

    def _built(self, ways: Callable[[], Iterable[Document]], now: Hive, running: Sequence[Launch]) -> Hive:
        assert self._rebuild is not None
        refused: DoesNotFit | None = None
        for document in islice(ways(), MOST_WAYS):
            try:
                return replace(self._rebuild(dict(document), now, running), settings=document)
            except DoesNotFit as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def _as_far_as_can_be(self, hive: Hive, running: Sequence[Launch]) -> Hive:
        """Memory that a replica elsewhere has been given stays as much as it is while its engine does."""
        held = {launch.name: launch.place.memory_bytes for launch in running if launch.place is not None}
        stay = {*changes(running, hive.replicas).adjusted} & held.keys()
        asked = {one.name: one.place.memory_bytes for one in hive.replicas if one.place is not None}
        differ = any(asked.get(name) != held[name] for name in stay)
        return replace(hive, left_out=(*hive.left_out, "room")) if differ else hive

    async def _set_up(self, hive: Hive) -> None:
        await self._front.set_up(hive.gateway_setup)
        self._set_policy(hive.policy)
        before = self.hive
        if (before.monitor_argv, before.monitor_setup) != (hive.monitor_argv, hive.monitor_setup):
            await self._monitor.become(hive.monitor_argv, begin=hive.monitor_due)

    def _given_up(self) -> bool:
        return all(member.life.state is State.FAILED for member in self._crew.members)

    async def _outcome(self, *, wait: bool) -> None:
        carrying = self._carrying
        if not wait or carrying is None:
            return
        await asyncio.wait({carrying})
        failure = None if carrying.cancelled() else carrying.result()
        if failure is not None:
            raise failure

    async def _carry_out(self, hive: Hive, running: Sequence[Launch], *, patient: bool) -> SkepError | None:
        def settle() -> None:
            self._housing.settle_in([member.launch for member in self._crew.members], hive.house)

        plan = changes(running, hive.replicas)
        before, self.stay = self.stay, self.stay or patient or bool(plan.removed)
        try:
            await self._crew.become(plan, hive.replicas, hive.drain_s, self._tasks, known=settle, patient=patient)
            self.stay = (before and not patient) or (bool(plan.removed) and self._given_up())
        except SkepError as error:
            return error
        finally:
            settle()
            self._begun = ""
        return None
