"""The Ray driver process of a hive: `python -m skep.cluster.ray_driver --link-fd FD`.

Ray ends a driver that loses its cluster, so neither the supervisor nor the gateway is one. The
driver carries out the supervisor's commands, creates the replica actors, and forwards their
reports. Ray restarts or moves what died; the driver recreates what Ray has given up. It keeps no
state: a new one receives everything again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from skep.cluster import connect, messages
from skep.cluster import nodes as cluster_nodes
from skep.cluster.connect import NAMESPACE, actor_name, find_actor, join, living_nodes
from skep.cluster.messages import ReplicaReport
from skep.cluster.nodes import Node, describe_request, has_words, named_apart
from skep.cluster.ray_processes import connection_to
from skep.cluster.replica_actor import OWNED_S, ReplicaActor
from skep.engines.base import Launch, PlacementRequest
from skep.errors import EngineError, SkepError
from skep.supervisor.lifecycle import RestartPolicy
from skep.supervisor.log_reader import LogPart
from skep.wire.json_pipe import JsonPipe, from_document, to_document

HEAD_EVERY_S = 1.0
HEAD_S = 2.0
MISSES = 2  # in a row: the head is lost, a replica is away
REPORT_S = 2.0  # between two reports of an unchanged replica
ASK_S = 1.8
AWAY_AFTER_S = 7.0  # a replica that is silent for so long is away
DESCRIBE_S = 10.0
END_S = 20.0
CALL_S = 10.0
PLACED_S = 5.0  # for Ray, to place what has room
LOOK_EVERY_S = 2.0
MEND_EVERY_S = 5.0
LATE_S = 1.0

Say = Callable[[str, str | None], None]  # a state and its reason


class ActorManager:
    """The actors of one hive. `key`: the API key of its engines."""

    def __init__(self, hive: str, key: str, policy: RestartPolicy) -> None:
        self._hive = hive
        self._key = key
        self.policy = policy
        self._targets: dict[str, str] = {}  # by replica: the node that it was placed on
        self._handles: dict[str, Any] = {}  # they work without a head
        # Replicas that waited for a node at the last check while another one had room.
        self._stuck: set[str] = set()
        self._one_at_a_time = asyncio.Lock()  # each placement sees the targets of those before it

    async def ensure(self, launch: Launch, standing: Mapping[str, str], say: Say) -> None:
        """Create the actor of a replica unless it runs already. End it if cancelled.

        `standing`: the nodes of running actors.
        """
        actor = await asyncio.to_thread(find_actor, actor_name(self._hive, launch.name))
        if actor is not None:
            if await self._can_stay(actor, launch):
                self._handles[launch.name] = actor
                return
            await self.end(launch.name)
        say("waiting", None)
        try:
            group = await self._make_placement_group(launch, standing, say)
            say("starting", None)
            actor = await _finish_creation(asyncio.to_thread(self._start, launch, group))
            self._handles[launch.name] = actor
            await _wait_until_alive(actor, say)
        except asyncio.CancelledError:
            await self.end(launch.name)
            raise

    async def end(self, name: str, *, headless: bool = False) -> None:
        """Stop the engine of a replica, remove its actor and its placement group.

        With the head lost (`headless`) only the engine ends: the idle actor and its group stay.
        """
        import ray

        self._targets.pop(name, None)
        actor = self._handles.pop(name, None)
        full = actor_name(self._hive, name)
        if not headless:
            # Where the head does not answer, the next look ends what is left.
            with contextlib.suppress(Exception):
                actor = await _with_deadline(find_actor, full)
        if actor is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(actor.stop.remote(END_S), END_S + 2)
        if not headless:
            with contextlib.suppress(Exception):
                if actor is not None:
                    await _with_deadline(ray.kill, actor)
            with contextlib.suppress(Exception):
                await _with_deadline(connect.remove_group, full)

    async def ask(self, name: str, method: str, *args: Any, timeout_s: float = DESCRIBE_S) -> Any:
        """Call a method of a replica's actor and return the answer; None: there is no actor."""
        actor = self._handles.get(name)
        if actor is None:
            actor = await asyncio.to_thread(find_actor, actor_name(self._hive, name))
        if actor is None:
            return None
        return await asyncio.wait_for(getattr(actor, method).remote(*args), timeout_s)

    def all_names(self) -> list[str]:
        """Return the replicas that have an actor or a placement group. Waits for the head."""
        return connect.actor_names(self._hive)

    async def _can_stay(self, actor: Any, launch: Launch) -> bool:
        """Return whether an existing actor can serve this launch.

        A silent one stays, since Ray mends it, unless it is stuck.
        """
        try:
            description = await asyncio.wait_for(actor.describe.remote(), DESCRIBE_S)
        except Exception:
            return not await self._is_stuck(launch)
        self._stuck.discard(launch.name)
        try:
            from_document(description["row"], ReplicaReport)
            created_with = from_document(description["launch"], Launch)
            is_over = description["over"]
            return not is_over and cluster_nodes.can_keep_actor(created_with, launch)
        except (KeyError, msgspec.ValidationError):  # of another version of skep
            return False

    async def _is_stuck(self, launch: Launch) -> bool:
        """Return whether the group of a replica has waited, at two checks in a row, for lost or
        full nodes while another node had room.

        A group names nodes by id, and a restarted node has a new one.
        """
        place = launch.place or PlacementRequest()
        states = await asyncio.to_thread(connect.groups_by_name)
        state = states.get(actor_name(self._hive, launch.name))
        if state is not None:
            nodes = await asyncio.to_thread(living_nodes)
            has_room = cluster_nodes.fitting(place, cluster_nodes.allowed(place, nodes))
            if state not in connect.WAITING_STATES or not has_room:
                self._stuck.discard(launch.name)
                return False
        if launch.name in self._stuck:
            self._stuck.discard(launch.name)
            return True
        self._stuck.add(launch.name)
        return False

    async def _make_placement_group(
        self, launch: Launch, standing: Mapping[str, str], say: Say
    ) -> Any:
        """Return a placement group on an allowed node; wait until one has room."""
        place = launch.place or PlacementRequest()
        full = actor_name(self._hive, launch.name)
        while True:
            async with self._one_at_a_time:
                nodes = await asyncio.to_thread(living_nodes)
                allowed = cluster_nodes.allowed(place, nodes)
                target = self._best_node(place, allowed, standing)
                if target is not None:
                    self._targets[launch.name] = target
                    ids = {node.id for node in allowed} if place.nodes else None
                    group = await _finish_creation(
                        asyncio.to_thread(connect.make_group, full, place, ids, target)
                    )
                    if await asyncio.to_thread(group.wait, PLACED_S):
                        return group
                    await asyncio.to_thread(connect.remove_group, full)  # others were faster
            present = has_words(cluster_nodes.allowed(place, named_apart(nodes)))
            if present:
                need = f"needs {describe_request(place)} on one node"
                say("waiting", f"waits for room: {need}; {present}")
            else:
                say("waiting", f"waits for one of its nodes: {', '.join(place.nodes)}")
            await asyncio.sleep(LOOK_EVERY_S)

    def _best_node(
        self, place: PlacementRequest, nodes: Iterable[Node], standing: Mapping[str, str]
    ) -> str | None:
        """Return the id of the node with room that has the fewest replicas of this hive, then the
        most room; None: there is no room.
        """
        replicas: Counter[str] = Counter({**self._targets, **standing}.values())

        def preference(node: Node) -> tuple[float, float, str]:
            free = node.free_gpus if place.cards else node.free_cpus
            return replicas[node.id], -free, node.id

        best = min(cluster_nodes.fitting(place, nodes), key=preference, default=None)
        return None if best is None else best.id

    def _start(self, launch: Launch, group: Any) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = launch.place or PlacementRequest()
        remote_class = ray.remote(ReplicaActor).options(
            name=actor_name(self._hive, launch.name),
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=8,
            num_cpus=place.cpus,
            num_gpus=place.cards,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
        )
        return remote_class.remote(
            self._hive, to_document(launch), to_document(self.policy), self._key
        )


async def _wait_until_alive(actor: Any, say: Say) -> None:
    """Wait for the first answer of an actor.

    Raise EngineError if Ray has given it up; if its node dies, Ray restarts it.
    """
    from ray.exceptions import ActorUnavailableError, RayActorError

    try:
        await actor.ping.remote()
    except ActorUnavailableError:
        return
    except RayActorError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[-1][:200] if lines else type(error).__name__
        if not error.actor_init_failed:
            raise EngineError(f"Ray gave up on the replica: {why}") from None
        say("failed", f"Ray cannot start the replica: {why}")


async def _finish_creation(work: Coroutine[Any, Any, Any]) -> Any:
    """Delay a cancellation until the thread has created its object, so that the caller can end
    it.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=CALL_S)
        raise


async def _with_deadline(call: Callable[..., Any], *args: Any) -> Any:
    """Call in a thread with a deadline: Ray's own calls wait for a lost head without limit."""
    return await asyncio.wait_for(asyncio.to_thread(call, *args), CALL_S)


class NewHead(Exception):
    """Another cluster has the address, or this machine has joined another one.

    Only a new driver can join it.
    """


class TakenOver(EngineError):
    """Another gateway owns the hive: its replicas are left alone."""


class RayDriver:
    """Keeps the replicas of one hive as the supervisor wants them, until the link ends."""

    def __init__(self, link: JsonPipe[messages.ToDriver], setup: messages.DriverSetup) -> None:
        self._link = link
        self._setup = setup
        self._actors = ActorManager(setup.hive, setup.key, setup.policy)
        self._launches: dict[str, Launch] | None = None  # None: not received yet
        self._rows: dict[str, ReplicaReport] = {}
        self._sent_rows: tuple[ReplicaReport, ...] = ()  # what the supervisor knows
        # A replica is never placed while it is being ended.
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._orders: set[asyncio.Task[None]] = set()
        self._head_lost = False
        self._lost_hive: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Join the cluster, claim the running replicas, since only their owner may place and end
        any, and follow the supervisor's commands.
        """
        await asyncio.to_thread(join, self._setup.address)
        import ray

        names = await asyncio.to_thread(self._actors.all_names)
        claims = (
            self._actors.ask(name, "claim", self._setup.gateway, timeout_s=ASK_S) for name in names
        )
        for owner in await asyncio.gather(*claims, return_exceptions=True):
            if isinstance(owner, str):  # else the replica does not answer
                self._check(owner)
        self._link.send(messages.Joined(ray.get_runtime_context().gcs_address))
        works = (self._follow_link(), self._watch_head(), self._end_unwanted())
        tasks: list[asyncio.Future[None]] = [self._lost_hive, *map(asyncio.create_task, works)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._orders, *self._keepers.values()):
                task.cancel()

    def _check(self, owner: str) -> None:
        """Raise TakenOver where another gateway owns a replica of this hive."""
        if owner != self._setup.gateway:
            where = owner.rpartition(":")[0]  # its machine and process
            hint = (
                "`--hive NAME` starts another deployment; if the other skep was killed, try "
                f"again in {OWNED_S:g} s"
            )
            raise TakenOver(
                f"a deployment `{self._setup.hive}` runs in this cluster already (from {where})",
                hint=hint,
            )

    # Commands of the supervisor

    async def _follow_link(self) -> None:
        while (message := await self._link.receive()) is not None:
            if not isinstance(message, messages.DriverSetup):
                order = asyncio.create_task(self._safely(message))
                self._orders.add(order)
                order.add_done_callback(self._orders.discard)

    async def _safely(self, order: messages.Order) -> None:
        """Carry out one command and answer it; its failure does not affect the others."""
        log = None
        failed = None
        try:
            log = await self._carry_out(order)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"[:300]
        if isinstance(order, messages.Question):
            self._link.send(messages.Answer(order.id, failed, log))

    async def _carry_out(self, order: messages.Order) -> LogPart | None:
        match order:
            case messages.WantReplicas(launches):
                self._launches = {launch.name: launch for launch in launches}
                for name in self._launches:
                    keeper = self._keepers.get(name)
                    if keeper is None or keeper.done():
                        self._keepers[name] = asyncio.create_task(self._keep(name))
            case messages.RestartReplica(name):
                await self._actors.ask(name, "restart")
            case messages.EndReplica(name):
                (self._launches or {}).pop(name, None)
                await self._end(name)
            case messages.ReadLog(name, offset, lines):
                document = await self._actors.ask(name, "log_since", offset, lines)
                if document is None:
                    return None
                part: LogPart = from_document(document, LogPart)
                return part
            case messages.Leave():
                self._launches = {}
                names = {*self._rows, *self._keepers}
                if not self._head_lost:
                    names |= set(await asyncio.to_thread(self._actors.all_names))
                await asyncio.gather(*(self._end(name) for name in names), return_exceptions=True)
        return None

    async def _end(self, name: str) -> None:
        """End a replica.

        Without a head only its engine ends; `_end_unwanted` ends the rest when the head is
        back.
        """
        self._ending.add(name)
        try:
            keeper = self._keepers.pop(name, None)
            if keeper is not None:
                self._orders.add(keeper)
                keeper.add_done_callback(self._orders.discard)
                keeper.cancel()
            # Its next keeper, which an order may start meanwhile, waits for this.
            async with self._turns[name]:
                await self._actors.end(name, headless=self._head_lost)
                self._rows.pop(name, None)
        finally:
            self._ending.discard(name)
            self._tell()

    async def _end_unwanted(self) -> None:
        """End, again and again, the replicas of the cluster that are not to run."""
        while True:
            await asyncio.sleep(MEND_EVERY_S)
            if self._launches is None or self._head_lost:
                continue
            try:
                await self._end_all_but_wanted(await asyncio.to_thread(self._actors.all_names))
            except Exception:  # the head or an actor ended meanwhile: the next pass looks again
                traceback.print_exc()

    async def _end_all_but_wanted(self, names: list[str]) -> None:
        for name in {*names, *self._rows}:
            # An end takes seconds: orders may come meanwhile, so each name is looked up anew.
            if name not in (self._launches or ()) and name not in self._ending:
                await self._end(name)

    # One replica

    async def _keep(self, name: str) -> None:
        """Keep one replica while it is to run: create its actor, follow it, and create it again if
        Ray lost it.
        """
        try:
            while (launch := (self._launches or {}).get(name)) is not None:
                try:
                    async with self._turns[name]:
                        standing = {
                            replica: row.node_id
                            for replica, row in self._rows.items()
                            if row.node_id
                        }
                        await self._actors.ensure(
                            launch, standing, lambda *words: self._say(name, *words)
                        )
                    await self._follow(launch)
                except TakenOver:
                    raise
                except Exception as error:  # Ray or a node failed: tried again
                    self._say(name, "waiting", f"cannot be placed: {str(error)[:200]}")
                    await asyncio.sleep(MEND_EVERY_S)
        except TakenOver as error:
            if not self._lost_hive.done():
                self._lost_hive.set_exception(error)

    def _say(self, name: str, state: str, why: str | None) -> None:
        self._rows[name] = ReplicaReport(name, state, why)
        self._tell()

    async def _follow(self, launch: Launch) -> None:
        """Forward the reports of an actor. Return when its launch changes, or when it is away."""
        name = launch.name
        loop = asyncio.get_running_loop()
        version = 0
        misses = 0
        heard_at = loop.time()
        while (self._launches or {}).get(name) == launch:
            try:
                arguments = (self._setup.gateway, version, REPORT_S)
                report = await self._actors.ask(name, "report", *arguments, timeout_s=AWAY_AFTER_S)
            except Exception:
                # Ray restarts or moves it; or this process was held up, and the next answer comes.
                misses += 1
                if misses >= MISSES and loop.time() - heard_at > AWAY_AFTER_S:
                    self._report_away(name)
                    if not self._head_lost:  # without a head nothing can be placed
                        return
                await asyncio.sleep(LATE_S)
                continue
            if report is None:
                return
            self._check(report["owner"])
            version = report["version"]
            misses = 0
            heard_at = loop.time()
            self._rows[name] = from_document(report["row"], ReplicaReport)
            self._tell()

    def _report_away(self, name: str) -> None:
        row = self._rows.get(name)
        if row is not None and row.node is not None:
            self._rows[name] = replace(row, state="away", why=f"no report from node {row.node}")
            self._tell()

    # Reports to the supervisor

    async def _watch_head(self) -> None:
        import ray

        loop = asyncio.get_running_loop()
        asking = ThreadPoolExecutor(1, "head")
        misses = 0
        address = ray.get_runtime_context().gcs_address
        # A private class: no other has a deadline.
        client = import_module("ray._raylet").GcsClient(address=address)
        while True:
            await asyncio.sleep(HEAD_EVERY_S)
            if await loop.run_in_executor(asking, _answers, client):
                misses = 0
            else:
                misses += 1
            if self._head_lost and self._setup.address == "auto":
                connection = await asyncio.to_thread(connection_to, "auto", os.environ)
                if connection.head not in ("auto", address):
                    raise NewHead  # this machine is now a node of another cluster
            if (misses >= MISSES) != self._head_lost:
                self._head_lost = misses >= MISSES
                self._link.send(messages.HeadState(self._head_lost))

    def _tell(self) -> None:
        """Send the reports, if one has changed."""
        rows = tuple(self._rows.values())
        if rows != self._sent_rows:
            self._sent_rows = rows
            self._link.send(messages.ReplicaRows(rows))


def _answers(client: Any) -> bool:
    """Return whether the head answers in time.

    Ray's public calls, and a new client, would wait without limit.
    """
    try:
        client.internal_kv_exists(b"skep", namespace=b"skep", timeout=HEAD_S)
    except (AttributeError, TypeError):
        return True  # this version of Ray has another call: nothing is known about the head
    except Exception as error:
        if "WrongClusterID" in str(error):
            raise NewHead from None
        return False
    return True


async def serve(link_fd: int) -> NoReturn:
    """Run the driver, then exit at once: Ray's own shutdown takes seconds, and threads may wait
    for a lost head.
    """
    code = 0
    link: JsonPipe[messages.ToDriver] = await JsonPipe.over(
        socket.socket(fileno=link_fd), messages.ToDriver
    )
    try:
        setup = await link.receive()
        if isinstance(setup, messages.DriverSetup):
            await RayDriver(link, setup).run()
    except SkepError as error:
        link.send(
            messages.DriverFailed(
                error=error.message,
                hint=error.hint,
                exit_code=error.exit_code,
                taken_over=isinstance(error, TakenOver),
            )
        )
        code = error.exit_code
    except NewHead:
        print("there is a new head; this driver ends", file=sys.stderr)  # noqa: T201 - its log
        code = 1
    except Exception:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        await asyncio.wait_for(link.close(), 1.0)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[2])))
