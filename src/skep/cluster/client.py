"""The supervisor's side of the Ray driver process: keeps one running, sends it the replicas that
are to run, and takes over its reports.

When the driver dies or the head of the cluster is lost, the replicas keep their state and the
gateway keeps sending requests to them. A new driver receives everything again. If another gateway
owns the hive, this one ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skep.cluster import messages
from skep.cluster.connect import error_of
from skep.cluster.discover import survey
from skep.cluster.nodes import ClusterSurvey
from skep.cluster.placement import place_launches
from skep.cluster.ray_processes import PATIENT
from skep.cluster.replica_actor import ABANDONED_AFTER_S
from skep.config.settings import Cluster, Settings
from skep.engines.base import Launch, engine_named, new_key
from skep.errors import EngineError, SkepError
from skep.files import open_log
from skep.paths import Paths
from skep.supervisor.lifecycle import Life, ReplicaState, RestartPolicy
from skep.supervisor.log_reader import LogPart
from skep.supervisor.replica import ReplicaMember, UpstreamInfo
from skep.wire.json_pipe import JsonPipe, Message, start_linked, to_document

REMIND_EVERY_S = 2.0  # between two looks whether the driver has to be sent the replicas again
END_S = 30.0
HEADLESS_END_S = 12.0
ANSWER_S = 15.0
AGAIN_S = (0.5, 2.0, 5.0)  # waits before the next driver is started
# A silent node ("away") gets no requests: Ray moves its replicas. Other states of an actor, such
# as "fetching", mean that the replica is not ready yet.
_STATES = {"away": ReplicaState.BACKOFF, **{state.value: state for state in ReplicaState}}


class RemoteReplica(ReplicaMember):
    """A replica on some node of the cluster, as the supervisor sees it."""

    def __init__(self, launch: Launch, client: ClusterClient, changed: Callable[[], None]) -> None:
        self.launch = launch
        self.life = Life(None, ReplicaState.STARTING)
        adapter = engine_named(launch.engine, launch.binary)
        facts = ("confirms", "release_bound_s", "health_path", "simulated")
        self.engine: UpstreamInfo = UpstreamInfo(
            name="", **{field: getattr(adapter, field) for field in facts}
        )
        self._client = client
        self.changed = changed
        self._as_started = launch
        self._incarnation: str | None = None
        self._moves = 0  # starts of a new actor by Ray, on the same or another node
        self._stopping = asyncio.Event()

    @property
    def started(self) -> Launch:
        """Return the launch that its actor reports, with the settings that need no restart."""
        return replace(
            self._as_started, reserve=self.launch.reserve, soft_slots=self.launch.soft_slots
        )

    def stop(self) -> None:
        self._stopping.set()

    async def restart(self) -> None:
        """Restart it. Raise EngineError if its node cannot be reached."""
        await self._client.restart(self.launch.name)

    async def run(self) -> None:
        """Wait until stopped, then end it on its node."""
        self.become(ReplicaState.STARTING, None)
        self._client.add(self)
        await self._stopping.wait()
        self.become(ReplicaState.STOPPING, self.life.why)
        await self._client.end(self)
        self.life.url = self.pid = None
        self.become(ReplicaState.STOPPED, self.life.why)

    async def log_since(self, offset: int | None, lines: int) -> LogPart:
        return await self._client.log_since(self.launch.name, offset, lines)

    def hear(self, report: messages.ReplicaReport) -> None:
        """Take over the report of its actor, or of the driver while there is no actor."""
        if self._stopping.is_set():
            return
        if report.incarnation is not None and report.incarnation != self._incarnation:
            self._moves += self._incarnation is not None
            self._incarnation = report.incarnation
        self.life.state = _STATES.get(report.state, ReplicaState.STARTING)
        self.life.why = report.why
        self.life.url = report.url
        self.pid = report.pid
        self.node = report.node
        self.life.restarts = report.restarts + self._moves
        self.engine = replace(self.engine, name=report.engine or "")  # the version on its node
        self._as_started = report.launch or self._as_started
        self.checks = report.checks
        self.changed()


class ClusterClient:
    """The link to one Ray driver process."""

    def __init__(self, cluster: Cluster, policy: RestartPolicy, log: Path) -> None:
        self.address = cluster.address
        self.head_lost = False
        name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._setup = messages.DriverSetup(cluster.address, cluster.hive, policy, name, new_key())
        self._log = log
        self._members: dict[str, RemoteReplica] = {}
        self._reports: dict[str, messages.ReplicaReport] = {}
        self._link: JsonPipe[messages.FromDriver] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._joined = False
        self._was_joined = False
        self._sent: messages.WantReplicas | None = None  # what this driver knows
        self._trouble: str | None = None  # why there is no driver
        self._taken_over = False  # another gateway owns the hive
        self._closing = False

    def member(self, launch: Launch, changed: Callable[[], None]) -> RemoteReplica:
        return RemoteReplica(launch, self, changed)

    @property
    def settled(self) -> bool:
        return self._was_joined

    def row(self) -> Message:
        why = self._trouble
        if self.head_lost:
            state = "lost"
            why = "the head does not answer; running replicas go on serving"
        elif self._joined:
            state = "ready"
        elif self._was_joined:
            state = "away"
        else:
            state = "starting"
        return {
            "name": "cluster",
            "kind": "cluster",
            "state": state,
            "url": self.address,
            "why": why,
            "hive": self._setup.hive,
        }

    # Called by the supervisor

    async def run(self) -> None:
        """Keep a driver running.

        Raise SkepError if the cluster cannot be joined or another gateway owns the hive.
        """
        attempt = 0
        reminding = asyncio.create_task(self._remind_on())
        try:
            while True:
                failed = await self._run_driver()
                if self._closing:
                    return
                self._trouble = str(failed or "the Ray driver process died and is being restarted")
                if failed is not None and (self._taken_over or not self._was_joined):
                    raise failed
                await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
                if failed is None:
                    attempt = 0
                else:
                    attempt += 1
        finally:
            reminding.cancel()

    async def stop(self) -> str | None:
        """Leave the cluster, after the replicas. Return what is left behind, if anything."""
        self._closing = True
        answer = await self._ask(messages.Leave(), self._end_s)
        has_left = self.head_lost or (answer is not None and answer.error is None)
        if self._link is not None:
            await self._link.close()  # the driver ends with it
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 3.0)
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
        if not self._was_joined or has_left or self._taken_over:
            return None
        return (
            "the cluster cannot be reached; replicas left on its nodes end within "
            f"{ABANDONED_AFTER_S:g} s"
        )

    @property
    def _end_s(self) -> float:
        """Return how long to wait for an end; without a head, only the engines can end."""
        return HEADLESS_END_S if self.head_lost else END_S

    # Called by the remote replicas

    def add(self, member: RemoteReplica) -> None:
        """Have the driver start a replica, unless that runs already."""
        self._members[member.launch.name] = member
        report = self._reports.get(member.launch.name)
        if report is not None:
            member.hear(report)
        asyncio.get_running_loop().call_soon(self._remind)  # once for all that are added together

    async def end(self, member: RemoteReplica) -> None:
        """End a replica.

        If no driver can do it now, the next one ends it: it is not among the replicas to run.
        """
        name = member.launch.name
        if self._members.get(name) is member:
            del self._members[name]
        await self._ask(messages.EndReplica(name), self._end_s)

    async def restart(self, name: str) -> None:
        answer = await self._ask(messages.RestartReplica(name), ANSWER_S)
        if answer is None or answer.error is not None:
            why = (answer and answer.error) or "the cluster does not answer"
            hint = "`skep ps` shows the state of the cluster; try again when it is ready"
            raise EngineError(f"`{name}` cannot be restarted: {why}", hint=hint)

    async def log_since(self, name: str, offset: int | None, lines: int) -> LogPart:
        answer = await self._ask(messages.ReadLog(name, offset, lines), ANSWER_S)
        if answer is None or answer.log is None:
            why = (answer and answer.error) or "its node does not answer"
            raise EngineError(
                f"the log of `{name}` cannot be read: {why}",
                hint="`skep ps` shows its node and state",
            )
        return answer.log

    # The driver process

    async def _run_driver(self) -> SkepError | None:
        """Run one driver until it ends. Return the error if it could not join."""
        program = [sys.executable, "-m", "skep.cluster.ray_driver"]
        env = {**PATIENT, **os.environ}
        try:
            with open_log(self._log) as output:
                started = await start_linked(program, messages.FromDriver, output=output, env=env)
        except OSError as error:
            return EngineError(f"the Ray driver process cannot be started: {error.strerror}")
        self._process, link = started
        self._link = link
        link.send(self._setup)
        failed: SkepError | None = None
        while (message := await link.receive()) is not None:
            if isinstance(message, messages.DriverFailed):
                failed = error_of(to_document(message))
                self._taken_over = message.taken_over
            else:
                self._hear(message)
        self._link = None
        self._joined = False
        self._sent = None
        await link.close()
        code = await self._process.wait()
        if failed is None and not self._was_joined:
            failed = EngineError(
                f"the Ray driver process ended with code {code}",
                hint=f"see the end of {self._log}",
            )
        return failed

    def _hear(self, message: messages.FromDriver) -> None:
        match message:
            case messages.Joined(address):
                self.address = address
                self._trouble = None
                self._sent = None
                self._joined = self._was_joined = True
                self.head_lost = False
                self._remind()
            case messages.ReplicaRows(rows):
                before = self._reports
                self._reports = {row.name: row for row in rows}
                for row in rows:
                    if row.name in self._members and row != before.get(row.name):
                        self._members[row.name].hear(row)
            case messages.HeadState(lost):
                self.head_lost = lost
                for member in itertools.islice(self._members.values(), 1):
                    # One is enough: the supervisor then looks at the row of the cluster too.
                    member.changed()

    async def _ask(self, question: messages.Question, timeout_s: float) -> messages.Answer | None:
        """Return the driver's answer, or None if it does not come in time."""
        if self._link is None or not self._joined:
            return None
        answer = await self._link.ask(question, timeout_s)
        if isinstance(answer, messages.Answer):
            return answer
        return None

    async def _remind_on(self) -> None:
        while True:
            self._remind()
            await asyncio.sleep(REMIND_EVERY_S)

    def _remind(self) -> None:
        """Send the driver all replicas that are to run, unless it has them already."""
        if self._link is None or not self._joined:
            return
        want_replicas = messages.WantReplicas(
            tuple(member.launch for member in self._members.values())
        )
        if want_replicas != self._sent:
            self._sent = want_replicas
            self._link.send(want_replicas)


class RayNodes:
    """The placement of one hive's replicas on the nodes of its cluster."""

    def __init__(self, where: Cluster, survey: Callable[..., ClusterSurvey] = survey) -> None:
        self._where = where
        self._survey = survey

    def launches(self, settings: Settings, paths: Paths, **how: Any) -> tuple[Launch, ...]:
        """Return the replicas, placed on the nodes as they are now, or where they run.

        `how`: for `place_launches`.
        """
        where = self._where
        look = cache(lambda: self._survey(where.address, hive=where.hive))
        return place_launches(settings, paths, look, **how)

    def connect(self, paths: Paths, policy: RestartPolicy) -> ClusterClient:
        return ClusterClient(self._where, policy, paths.logs / "ray-driver.log")
