"""The supervisor: owns the replicas, the gateway process and the monitor. No request passes
through it; it knows the gateway's figures only as the gateway reports them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from skep.config.gateway_messages import GatewaySetup, GatewayStatus, LoadFailed, UnloadedModel
from skep.config.settings import Settings
from skep.engines.agent_checks import check_documents
from skep.engines.base import GATEWAY_KEY, Launch
from skep.errors import EngineError, GatewayError, SkepError, UserError
from skep.host.processes import ENGINE_KEY
from skep.supervisor.eviction import MemoryBudget
from skep.supervisor.gateway_child import GatewayChild
from skep.supervisor.hive_status import NO_ANSWER
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.model_loader import ModelLoader, unknown_model
from skep.supervisor.monitor_child import MonitorChild
from skep.supervisor.replica import ReplicaMember
from skep.supervisor.replica_set import RemoteReplicaFactory, ReplicaChanges, ReplicaSet, changes
from skep.wire.json_pipe import Message

HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
PAUSED_RETRY_S = 5.0  # for clients that wait when a pause begins
NO_FIGURES: Message = {
    "pid": None,
    "url": None,
    "slots": None,
    "busy": None,
    "restarts": None,
    "why": None,
}


class Hive(msgspec.Struct, frozen=True):
    """Replicas behind one gateway."""

    replicas: tuple[Launch, ...]
    gateway_argv: tuple[str, ...]
    gateway_setup: GatewaySetup
    url: str
    log_dir: Path
    policy: RestartPolicy = RestartPolicy()
    drain_s: float = 30.0
    settings: Settings = Settings(serve=())  # that it was built from
    left_out: tuple[str, ...] = ()  # settings that only a restart would apply
    warnings: tuple[str, ...] = ()  # shown to the user who asked for the reload
    room: tuple[tuple[str, int], ...] = ()  # bytes that the machine has of "ram", "gpu0", ...
    monitor_argv: tuple[str, ...] = ()  # the command of the monitor; empty: none
    monitor_due: bool = False  # the store has targets: start the monitor at once
    engine_key: str = ""  # the key of the engines on this machine; empty: none

    def __repr__(self) -> str:
        """Leave out the key of the engines: this text may end in a log."""
        return f"Hive({self.url!r}, {self.replicas!r})"

    @property
    def memory_budget(self) -> MemoryBudget:
        return MemoryBudget(dict(self.room), self.settings.max_loaded)


# From settings, the present hive, and what runs.
Rebuild = Callable[[Settings, Hive, Sequence[Launch]], Hive]


class BackgroundService(Protocol):
    """The link to replicas on other machines. A SkepError that it raises ends the hive."""

    @property
    def member(self) -> RemoteReplicaFactory: ...

    async def run(self) -> None:
        """Run until cancelled."""

    async def stop(self) -> str | None:
        """Stop, after the replicas have ended.

        Return what could not be ended; None: nothing is left.
        """

    @property
    def settled(self) -> bool:
        """Whether the start need not wait for it."""

    def row(self) -> Message:
        """Return its row in `skep ps`: name, kind, state, url, why."""


MOST_REPLICAS = 1024  # of a model


@dataclass(eq=False, repr=False)
class Supervisor:
    """`run` serves until `stop`, by a caller or over the control socket; `notify` is called on
    changes.

    `rebuild` makes a hive from settings of the control socket, the present hive, and what runs.
    `remote` keeps the replicas of launches that have a place.
    """

    hive: Hive
    listener: socket.socket
    notify: Callable[[Supervisor], None]
    rebuild: Rebuild | None = None
    remote: BackgroundService | None = None

    def __post_init__(self) -> None:
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._remote_failed: SkepError | None = None
        self.paused_for: str | None = None  # what uses the machine, in words; None: not paused
        self._monitor_ran = False  # when the pause began
        self._resuming: asyncio.Task[SkepError | None] | None = None
        self._tasks = asyncio.TaskGroup()
        self._change = ""  # under way, in words; empty: none
        self._changing: asyncio.Task[SkepError | None] | None = None
        # By the user, who may change it again where no replica serves any more.
        self._was_changed = False
        self.phase = "starting"
        self.left_behind: tuple[str, ...] = ()  # what could not be ended, in words
        # Of `skep ps`, as of the last change, without the figures of the gateway.
        self.last_rows: list[Message] = []
        hive = self.hive
        self.replica_set = ReplicaSet(
            self._tasks,
            hive.log_dir,
            hive.policy,
            changed=self._changed,
            busy=self.busy,
            elsewhere=None if self.remote is None else self.remote.member,
        )
        self.gateway = GatewayChild(
            list(hive.gateway_argv),
            self.listener,
            hive.gateway_setup,
            log=hive.log_dir / "gateway.log",
            changed=self._changed,
        )
        self.loader = ModelLoader(
            self.replica_set,
            self._tasks,
            status=self.gateway.status,
            say=self.gateway.say,
            changed=self._changed,
        )
        self.gateway.load_requested = self.loader.requested
        self.gateway.environment = self._gateway_environment
        self.replica_set.hide_variables(hive.settings.secret_variables)
        self.monitor = MonitorChild(hive.monitor_argv, hive.log_dir / "monitor.log", begin=False)

    @property
    def _expected(self) -> list[ReplicaMember]:
        """The replicas that should serve: not those on demand or dormant."""
        replicas = self.replica_set
        return [
            member
            for member in replicas.members
            if not member.launch.on_demand and not replicas.is_dormant(member)
        ]

    def stop(self, drain_s: float | None = None) -> None:
        """Drain for `drain_s` (default: as configured), then end everything.

        A second call ends it at once.
        """
        if self._stop_asked.is_set():
            self._hurry.set()
        elif drain_s is not None:
            self.hive = replace(self.hive, drain_s=drain_s)
        self._stop_asked.set()

    async def run(self) -> None:
        """Serve until stopped. Raise if a replica does not start, or if all are given up later."""
        failure: SkepError | None = None
        try:
            async with self._tasks as tasks:
                try:
                    failure = await self._serve(tasks)
                finally:
                    # Also where an error ends the tasks: `notify` sets a deadline for the end.
                    self.phase = "stopping"
                    self._changed()
        finally:
            await self.monitor.stop()
        if self.left_behind:
            self._changed()
        if failure is not None:
            raise failure

    async def _serve(self, tasks: asyncio.TaskGroup) -> SkepError | None:
        """Serve until stopped, then end everything.

        Return why it stopped; None: it was told to.
        """
        gateway = tasks.create_task(self.gateway.run())
        remote = tasks.create_task(self._run_remote())
        self.replica_set.add_replicas(self.hive.replicas)
        self.loader.configure(self.hive.replicas, self.hive.memory_budget, begin=True)
        loader = tasks.create_task(self.loader.run())
        if self.hive.monitor_due:
            self.monitor.wake()
        await self._stop_asked.wait()
        failure = self._failure()
        await self._begin_to_stop()
        loader.cancel()
        await self.replica_set.end_all()
        if self.remote is not None:
            not_ended = await self.remote.stop()
            if not_ended is not None:
                self.left_behind = (not_ended,)
        remote.cancel()
        await self.gateway.stop()
        gateway.cancel()
        return failure

    async def _begin_to_stop(self) -> None:
        """Begin nothing more, and wait until the gateway has drained or `stop` is called again."""
        self.phase = "stopping"
        self._changed()
        if self._changing is not None:
            self._changing.cancel()
        self.paused_for = None
        if self._resuming is not None:
            self._resuming.cancel()
        await self.monitor.stop()  # the drain need not wait for its probes
        draining = asyncio.create_task(self.gateway.drain(self.hive.drain_s))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        hurry.cancel()
        self.loader.pause()

    async def _run_remote(self) -> None:
        try:
            if self.remote is not None:
                await self.remote.run()
        except SkepError as error:
            self._remote_failed = error
            self._stop_asked.set()

    def rows(self, status: GatewayStatus | None) -> list[Message]:
        """Return the rows of `skep ps`: one a replica, and one for the gateway.

        `status` is the gateway's answer.
        """
        gateway = self.gateway.row(stopping=self.phase == "stopping")
        if status is not None and status.silent_workers and gateway["why"] is None:
            gateway["why"] = f"{status.silent_workers} of {status.workers} workers do not answer"
        return self._rows(status or GatewayStatus(), gateway)

    async def busy(self, name: str) -> int:
        """Return the busy slots of a replica.

        A gateway that does not answer may have streams: it counts as one.
        """
        status = await self.gateway.status()
        if status is not None:
            return status.busy.get(name, 0)
        return int(self.gateway.listening)

    # Inside

    def _gateway_environment(self) -> dict[str, str]:
        """Return the environment of the gateway and its workers, without keys: they get those they
        need over the link.
        """
        secret = {GATEWAY_KEY, ENGINE_KEY, *HUB_TOKENS, *self.hive.settings.secret_variables}
        return {name: value for name, value in os.environ.items() if name not in secret}

    def _changed(self) -> None:
        """Handle every change of a replica, a model or the gateway: find the status once, and
        publish it.
        """
        self.loader.look()
        self.gateway.publish(self.replica_set.table(self._unserved_models()))
        gateway = self.gateway.row(stopping=self.phase == "stopping")
        if self.phase == "starting" and gateway["state"] == "ready" and self._all_settled:
            self.phase = "ready"
        # During a pause no replica serves; what ends the pause tries to start them.
        if self.paused_for is None and self._failure() is not None:
            self._stop_asked.set()
        self.last_rows = self._rows(GatewayStatus(), gateway)
        # A closed terminal or pipe is no reason to stop serving.
        with contextlib.suppress(OSError):
            self.notify(self)

    @property
    def _all_settled(self) -> bool:
        """Whether the start need not wait any more for a replica or for other machines."""
        if self.remote is not None and not self.remote.settled:
            return False
        return all(member.settled for member in self._expected)

    def _rows(self, status: GatewayStatus, gateway: Message) -> list[Message]:
        # Replicas whose circuit breaker is open.
        silent = {row.name for row in status.replicas if row.state in ("open", "half-open")}
        rows = [
            self._replica_row(member, status, is_silent=member.launch.name in silent)
            for member in self.replica_set.members
        ]
        figures = {
            "url": self.hive.url,
            "slots": sum(row["slots"] for row in rows if row["state"] == "ready"),
            "busy": status.in_flight,
            "queued": status.queued,
        }
        rows.append({**gateway, **figures})
        if self.remote is not None:
            rows.append({**NO_FIGURES, **self.remote.row()})
        return rows

    def _replica_row(
        self, member: ReplicaMember, status: GatewayStatus, *, is_silent: bool
    ) -> Message:
        name = member.launch.name
        state = self.replica_set.shown_state(member)
        why = member.life.why
        if is_silent and member.node is not None and state == "ready":
            # It is ready on its node, and the gateway does not reach it.
            state = "backoff"
            why = NO_ANSWER
        return {
            "name": name,
            "kind": member.kind,
            "pid": member.pid,
            "url": member.life.url,
            "slots": member.started.slots,
            "busy": status.busy.get(name, 0),
            "model": member.model or None,
            "engine": member.about,
            "simulated": member.engine.simulated,
            "restarts": member.life.restarts,
            "room": dict(member.launch.room) or None,
            "node": member.node,
            "state": state,
            "why": why,
            "checks": check_documents(member.checks) or None,
        }

    def _failure(self) -> SkepError | None:
        """Return why this hive cannot serve.

        One failed replica beside others that serve is shown in `ps` only.
        """
        if self.gateway.broken:
            return GatewayError(
                f"the gateway does not start: {self.gateway.why}",
                hint="the end of its log says why",
            )
        if self._remote_failed is not None:
            return self._remote_failed
        failed = [member for member in self._expected if member.life.state is ReplicaState.FAILED]
        if not failed:
            return None
        starting = self.phase == "starting"
        may_recover = len(failed) < len(self.replica_set.members) or self._was_changed
        if may_recover and not starting:
            return None
        member = failed[0]
        name = member.launch.name
        verb = "did not start" if starting else "was given up"
        if member.node is None:
            hint = f"its log is {self.hive.log_dir / name}.log"
        else:
            hint = f"its log is on node `{member.node}`"
        return EngineError(f"replica `{name}` {verb}: {member.life.why}", hint=hint)

    # Changes, one at a time

    async def reload(self, settings: Message, *, wait: bool = False) -> Message:
        """Apply settings before the answer; change replicas after it, or before it with `wait`."""
        try:
            new_settings = msgspec.convert(settings, Settings)
        except msgspec.ValidationError as error:
            hint = "`skep down && skep up -d` starts the new one"
            raise UserError(
                f"these settings are from another version of skep: {error}", hint=hint
            ) from None
        hive, plan = await self._become(new_settings, all_of_it=True, wait=wait)
        return {
            "ok": True,
            **to_builtins(plan),
            "left_out": list(hive.left_out),
            "warnings": list(hive.warnings),
        }

    async def scale(self, model: str, replicas: int, *, wait: bool = False) -> Message:
        """Change how many replicas a model has; with `wait`, answer when the new ones serve."""
        tables = [serve for serve in self.hive.settings.serve if serve.model_id == model]
        before = sum(serve.replicas for serve in tables)
        _, plan = await self._become(rescaled(self.hive.settings, model, replicas), wait=wait)
        if wait:
            undo = f"`skep replica scale {model}={before}` undoes it"
            for name in plan.added:
                hint = f"`skep logs {name}` shows more; {undo}"
                await self.replica_set.until_up(name, hint=hint)
        return {
            "ok": True,
            "model": model,
            "before": before,
            "replicas": replicas,
            **to_builtins(plan),
        }

    async def _become(
        self, settings: Settings, *, all_of_it: bool = False, wait: bool
    ) -> tuple[Hive, ReplicaChanges]:
        """Apply settings. Without `all_of_it`, only the replicas change."""
        if self.rebuild is None or not self._can_change:
            why = f"{self._change} is in progress" if self._change else f"skep is {self.phase}"
            raise EngineError(
                f"the deployment cannot change now: {why}", hint="try again later; see `skep ps`"
            )
        self._change = "another reload" if all_of_it else "a change of replicas"
        try:
            running = [member.launch for member in self.replica_set.members]
            hive = await asyncio.to_thread(self.rebuild, settings, self.hive, running)
            hive = replace(hive, settings=settings)
            plan = changes(running, hive.replicas)
            if all_of_it:
                await self._set_up(hive)
            else:
                hive = replace(self.hive, replicas=hive.replicas, settings=hive.settings)
            self.hive = hive
            self.replica_set.hide_variables(hive.settings.secret_variables)
            self._changing = self._tasks.create_task(
                self._carry_out(hive, plan, patient=all_of_it)
            )
        except BaseException:
            self._change = ""
            raise
        if wait:
            await _await_success(self._changing)
        return hive, plan

    async def _set_up(self, hive: Hive) -> None:
        """Apply what is not of single replicas: gateway, later starts, monitor."""
        self.gateway.set_up(hive.gateway_setup)
        self.replica_set.set_policy(hive.policy)
        same_command = self.hive.monitor_argv == hive.monitor_argv
        if not same_command or self.hive.settings.monitor != hive.settings.monitor:
            await self.monitor.become(hive.monitor_argv, begin=hive.monitor_due)

    async def _carry_out(
        self, hive: Hive, plan: ReplicaChanges, *, patient: bool
    ) -> SkepError | None:
        def settle() -> None:
            self.loader.configure(
                [member.launch for member in self.replica_set.members], hive.memory_budget
            )

        self._was_changed = True
        try:
            await self.replica_set.become(
                plan, hive.replicas, hive.drain_s, listed=settle, patient=patient
            )
        except SkepError as error:
            return error
        finally:
            settle()
            self._change = ""
        return None

    @property
    def _can_change(self) -> bool:
        return self.rebuild is not None and self.phase == "ready" and not self._change

    # A pause lasts as long as the connection that asked for it

    async def pause(self, pid: int | None = None) -> Message:
        """End all engines once their answers are finished, for the process `pid`.

        Gateway, port and settings stay.
        """
        if not self._can_change or self.loader.is_moving:
            hint = "try again when `skep ps` shows every replica ready or unloaded"
            raise EngineError(
                "skep cannot pause: it is starting, changing or loading a model", hint=hint
            )
        why = f"`skep tune --in-place` (pid {pid}) uses the machine; serving resumes afterwards"
        self.paused_for = why
        self.phase = "paused"
        self.loader.pause()
        try:
            self._monitor_ran = self.monitor.pid is not None
            await self.monitor.become((), begin=False)
            await self.replica_set.pause(self.hive.drain_s)
        except BaseException:
            self.release()
            raise
        for model in self._unserved_models():  # refuse the requests that wait
            self.gateway.say(LoadFailed(model, why, PAUSED_RETRY_S))
        return {"ok": True, "holds": True}

    def release(self) -> None:
        """Start the engines again."""
        if self.paused_for is not None and self._resuming is None:
            self._resuming = self._tasks.create_task(self._start_again())

    async def _start_again(self) -> SkepError | None:
        """Start the engines again. Return the error of one that does not start."""
        failure = await self.replica_set.resume()
        self.paused_for = None
        self._resuming = None
        self.phase = "ready"
        self.loader.pause(over=True)
        await self.monitor.become(self.hive.monitor_argv, begin=self._monitor_ran)
        return failure

    async def resume(self) -> Message:
        self.release()
        await _await_success(self._resuming)
        return {"ok": True}

    def _unserved_models(self) -> dict[str, UnloadedModel]:
        """Return, for the gateway, the models that no replica serves, with the reason."""
        if self.paused_for is None:
            return self.loader.unloaded
        replicas = self.replica_set
        unserved = [model for model in replicas.models if not replicas.serves(model)]
        return {model: UnloadedModel("failed", self.paused_for) for model in unserved}


async def _await_success(task: asyncio.Task[SkepError | None] | None) -> None:
    """Wait for the task and raise the error that it returns."""
    if task is not None:
        await asyncio.wait({task})
        if not task.cancelled() and (failure := task.result()) is not None:
            raise failure


# Replicas in settings


def rescaled(settings: Settings, model: str, replicas: int) -> Settings:
    """Return settings with that many replicas of the model.

    Of several tables, the first grows and the last shrink.
    """
    tables = [serve for serve in settings.serve if serve.model_id == model]
    if not tables:
        raise unknown_model(model, dict.fromkeys(serve.model_id for serve in settings.serve))
    if not 1 <= replicas <= MOST_REPLICAS:
        away = "`skep model unload` and `skep down` stop it"
        raise UserError(
            f"`{model}` cannot have {replicas} replicas", hint=f"from 1 to {MOST_REPLICAS}; {away}"
        )
    change = replicas - sum(table.replicas for table in tables)
    serves = list(settings.serve)
    for place in reversed(range(len(serves))):
        table = serves[place]
        if table.model_id != model:
            continue
        if table is tables[0]:
            share = change
        else:
            share = min(0, max(change, -table.replicas))
        serves[place] = replace(table, replicas=table.replicas + share)
        change -= share
    return replace(settings, serve=tuple(serves))
