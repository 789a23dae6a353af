"""The supervisor's side of the Ray driver process: keeps one running, sends it commands, updates the remote replicas.

When the driver dies or the head of the cluster is lost, the replicas keep their state and the gateway keeps sending
requests to them. A new driver receives the whole list of wanted replicas. If another gateway owns the hive, this one
ends.
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
from pathlib import Path

from msgspec.structs import replace

from skep.cluster import messages
from skep.cluster.discover import SPARED_S, SURVEY_S, SurveyCache
from skep.cluster.placement import kept_launches, place_launches, shared_paths
from skep.cluster.ray_subprocess import error_of
from skep.cluster.remote_replica import RemoteReplica
from skep.cluster.replica_registry import ABANDONED_AFTER_S
from skep.config.settings import Cluster, Settings
from skep.deploy.launches import PullProgress
from skep.engines.base import Launch, new_key
from skep.errors import EngineError, SkepError
from skep.files import open_log
from skep.paths import Paths
from skep.supervisor.lifecycle import RestartPolicy
from skep.wire.json_pipe import JsonPipe, Message, from_document, to_document


class PendingRestarts:
    """Restarts that no driver has confirmed yet. `send` returns False if there is no driver."""

    def __init__(self, send: Callable[[messages.RestartReplica], bool]) -> None:
        self._send = send
        self._before: dict[str, tuple[int | None, int]] = {}  # by replica: its process and its number of restarts
        self._unanswered: set[str] = set()  # sent to the driver, not answered yet

    def __repr__(self) -> str:
        return f"<PendingRestarts {len(self._before)} requested, {len(self._unanswered)} unanswered>"

    def ask(self, member: RemoteReplica) -> bool:
        name = member.launch.name
        if not self._tell(name):
            return False
        self._before[name] = member.pid, member.life.restarts
        return True

    def hear(self, answer: messages.Restarted) -> None:
        if answer.name in self._unanswered:
            self._unanswered.discard(answer.name)
            if answer.error is None:
                del self._before[answer.name]

    def lose(self) -> None:
        """Forget what was sent: the driver is gone."""
        self._unanswered.clear()

    def again(self, members: Mapping[str, RemoteReplica]) -> None:
        """Send the unanswered restarts again, unless the replica has a new process since."""
        for name, before in list(self._before.items()):
            member = members.get(name)
            if member is None or _is_another(member, *before):
                self._before.pop(name)
                self._unanswered.discard(name)
            elif name not in self._unanswered:
                self._tell(name)

    def _tell(self, name: str) -> bool:
        if not self._send(messages.RestartReplica(name)):
            return False
        self._unanswered.add(name)
        return True


def _is_another(member: RemoteReplica, pid: int | None, restarts: int) -> bool:
    return member.life.restarts != restarts or member.pid not in (pid, None)


REMIND_EVERY_S = 2.0  # commands that the driver may have missed are repeated
END_S = 30.0
HEADLESS_END_S = 12.0
AGAIN_S = (0.5, 2.0, 5.0)  # waits before the next driver is started
LOST = "the head of the cluster is lost; the replica goes on serving"
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "604800"}  # a driver survives a lost head


class ClusterClient:
    """The link to one Ray driver process."""

    def __init__(
        self, cluster: Cluster, policy: RestartPolicy, log: Path, *, abandoned_after_s: float = ABANDONED_AFTER_S
    ) -> None:
        self.address = cluster.address
        self.head_lost = False
        name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._setup = messages.DriverSetup(cluster.address, cluster.hive, policy, abandoned_after_s, name, new_key())
        self._log = log
        self._avoided: Callable[[], frozenset[str]] = frozenset  # names of drained nodes
        self._members: dict[str, RemoteReplica] = {}
        self._rows: dict[str, Message] = {}
        self._link: JsonPipe[messages.FromDriver] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._joined = asyncio.Event()
        self._was_joined = False
        self._trouble: str | None = None  # why there is no driver
        self._taken_over = False  # another gateway owns the hive
        self._misread: dict[str, str] = {}  # by replica, whose newest report cannot be read
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[messages.Answer]] = {}
        self._restarts = PendingRestarts(self.order)
        self._closing = False

    def __repr__(self) -> str:
        state = "joined" if self._joined.is_set() else "away"
        return f"<ClusterClient {self.address} {state} {len(self._members)} replicas>"

    def member(self, launch: Launch, changed: Callable[[], None]) -> RemoteReplica:
        """Return the replica object for the supervisor."""
        return RemoteReplica(launch, self, changed)

    @property
    def settled(self) -> bool:
        """Whether it has joined the cluster."""
        return self._was_joined

    def row(self) -> Message:
        """Return the line of `skep ps` about the cluster."""
        state = "lost" if self.head_lost else "ready" if self._joined.is_set() else "starting"
        if self._was_joined and state == "starting":
            state = "away"
        why = "the head does not answer; running replicas go on serving" if self.head_lost else None
        why = why or self._trouble or next(reversed(self._misread.values()), None)
        told = {"name": "cluster", "kind": "cluster", "state": state, "url": self.address, "why": why}
        return {**told, "hive": self._setup.hive}

    # Called by the supervisor

    async def run(self, avoided: Callable[[], frozenset[str]]) -> None:
        """Keep a driver running. Raise SkepError if the cluster cannot be joined or another gateway owns the hive."""
        self._avoided = avoided
        reminding = asyncio.create_task(self._remind_on())
        try:
            await self._keep_driver()
        finally:
            reminding.cancel()

    def set_policy(self, policy: RestartPolicy) -> None:
        """Change the restart policy of all replicas, running ones included. The next driver receives it too."""
        self._setup = replace(self._setup, policy=policy)
        self.order(messages.SetPolicy(policy))

    async def stop(self) -> str | None:
        """Leave the cluster and end its registry, after the replicas. Return what is left behind, if anything."""
        self._closing = True
        left = answer = None
        if self._joined.is_set():
            answer = await self._ask(messages.Leave(), HEADLESS_END_S if self.head_lost else END_S)
        done = self.head_lost or (answer is not None and answer.error is None)
        if self._was_joined and not done and not self._taken_over:
            after_s = self._setup.abandoned_after_s
            left = f"the cluster cannot be reached; replicas left on its nodes end within {after_s:g} s"
        if self._link is not None:
            self._link.send(messages.DriverExit())
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 3.0)
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
        return left

    # Called by the remote replicas

    def came(self, member: RemoteReplica) -> None:
        self._members[member.launch.name] = member
        self._inform(member)
        if self._joined.is_set():
            self.order(messages.PlaceReplica(member.launch))

    async def went(self, member: RemoteReplica) -> None:
        """End a replica. If no driver can do it now, the next one ends it, because it is no longer wanted."""
        name = member.launch.name
        if self._joined.is_set():
            await self._ask(messages.EndReplica(name), HEADLESS_END_S if self.head_lost else END_S)
        if self._members.get(name) is member:
            del self._members[name]
            self._misread.pop(name, None)
            self._rows.pop(name, None)

    def restart(self, member: RemoteReplica) -> bool:
        return self._restarts.ask(member)

    def order(self, message: messages.Order) -> bool:
        """Send a command. Return False if there is no driver."""
        if self._link is None:
            return False
        self._link.send(message)
        return True

    async def log_since(self, name: str, offset: int | None, lines: int) -> messages.LogPart:
        answer = await self._ask(messages.ReadLog(name, offset, lines), 15.0)
        if answer is None or answer.log is None:
            why = (answer and answer.error) or "its node does not answer"
            raise EngineError(f"the log of `{name}` cannot be read: {why}", hint="`skep ps` shows its node and state")
        return answer.log

    # The driver process

    async def _keep_driver(self) -> None:
        attempt = 0
        while True:
            failed = await self._run_driver()
            if self._closing:
                return
            self._trouble = str(failed) if failed is not None else "the Ray driver process died and is being restarted"
            if failed is not None and (self._taken_over or not self._was_joined):
                raise failed
            await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
            attempt = 0 if failed is None else attempt + 1

    async def _run_driver(self) -> SkepError | None:
        """Run one driver until it ends. Return why it could not join, if so."""
        ours, theirs = socket.socketpair()
        try:
            with open_log(self._log) as output, theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "skep.cluster.ray_driver", "--link-fd", str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**PATIENT, **os.environ},
                )
        except OSError as error:
            ours.close()
            return EngineError(f"the Ray driver process cannot be started: {error.strerror}")
        link = self._link = await JsonPipe.over(ours, messages.FromDriver)
        link.send(self._setup)
        failed: SkepError | None = None
        while (message := await link.receive()) is not None:
            if isinstance(message, messages.DriverFailed):
                failed, self._taken_over = error_of(to_document(message)), message.taken_over
            else:
                self._hear(message)
        self._link = None
        self._joined.clear()
        self._restarts.lose()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(messages.Answer(0, "the Ray driver process is gone"))
        await link.close()
        code = await self._process.wait()
        if failed is None and not self._was_joined:
            failed = EngineError(f"the Ray driver process ended with code {code}", hint=f"see the end of {self._log}")
        return failed

    def _inform(self, member: RemoteReplica) -> None:
        name = member.launch.name
        self._misread.pop(name, None)
        try:
            if name in self._rows:
                member.hear(from_document(self._rows[name], messages.ReplicaReport))
        except ValueError as error:  # its node may run another version of skep
            self._misread[name] = f"a message of the cluster cannot be read ({error})"

    def _hear(self, message: messages.FromDriver) -> None:
        match message:
            case messages.Joined(address):
                self.address, self._trouble = address, None
                self._joined.set()
                self._was_joined = True
                self._set_head(lost=False)
                self._remind()
                self.order(messages.WantReplicas(tuple(member.launch for member in self._members.values())))
            case messages.ReplicaRows(rows, names):
                told = {row.get("name", ""): row for row in rows}
                known = self._rows | told
                self._rows = {name: known[name] for name in names if name in known}
                for name in told.keys() & self._members.keys():
                    self._inform(self._members[name])
            case messages.HeadState(lost):
                self._set_head(lost=lost)
            case messages.Restarted():
                self._restarts.hear(message)
            case messages.Answer(number):
                asked = self._asked.get(number)
                if asked is not None and not asked.done():
                    asked.set_result(message)

    def _set_head(self, *, lost: bool) -> None:
        self.head_lost = lost
        for member in self._members.values():
            member.remark(LOST if lost else None)

    async def _ask(self, question: messages.Question, timeout_s: float) -> messages.Answer | None:
        """Return the driver's answer, or None if it does not come in time."""
        if self._link is None:
            return None
        number = next(self._ids)
        answer: asyncio.Future[messages.Answer] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._link.send(replace(question, id=number))
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            return None
        finally:
            del self._asked[number]

    async def _remind_on(self) -> None:
        while True:
            self._remind()
            await asyncio.sleep(REMIND_EVERY_S)

    def _remind(self) -> None:
        """Repeat what a new driver does not know: drained nodes and unanswered restarts."""
        self.order(messages.AvoidNodes(tuple(sorted(self._avoided()))))
        self._restarts.again(self._members)


class RayNodes:
    """The placement of one hive's replicas on the nodes of its cluster."""

    def __init__(self, where: Cluster, surveys: SurveyCache | None = None) -> None:
        self._where = where
        self._surveys = surveys or SurveyCache()

    def __repr__(self) -> str:
        return f"<RayNodes {self._where.address} {self._where.hive}>"

    def launches(
        self,
        settings: Settings,
        paths: Paths,
        progress: PullProgress = lambda _done, _total: None,
        *,
        running: Sequence[Launch] = (),
        starting: bool = True,
        avoid: Collection[str] = (),
        tell: Callable[[str], None] = lambda _line: None,
    ) -> tuple[Launch, ...]:
        """Return the replicas of these settings, placed on the nodes as they are now.

        A lost node is no reason to refuse settings under which every replica stays where it is.
        """
        kept = None if starting else kept_launches(settings, paths, running)
        wait_s = SURVEY_S if kept is None else SPARED_S
        try:
            asked = shared_paths(settings)
            found = self._surveys.look(self._where.address, paths=asked, hive=self._where.hive, wait_s=wait_s)
            placed = place_launches(settings, paths, found, progress, running=running, avoid=avoid, tell=tell)
        except SkepError:
            if kept is None:
                raise
            placed = kept
        self._surveys.forget()
        return placed

    def connect(self, paths: Paths, policy: RestartPolicy) -> ClusterClient:
        """Return the link to the actors that run the replicas."""
        return ClusterClient(self._where, policy, paths.logs / "ray-driver.log")
