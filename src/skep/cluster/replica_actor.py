"""The Ray actor that runs one replica on its node, with the same adapter and guard process as on one machine.

It works in a thread and an event loop of its own; Ray's calls only pass messages. Failures are reported to the registry
as the replica's state and never raised: Ray would give up an actor that fails while it is created.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from skep.cluster.messages import LogPart, ReplicaReport
from skep.cluster.nodes import named_apart, nodes_of
from skep.cluster.placement_groups import find_actor, registry_name
from skep.cluster.ray_processes import engine_ports
from skep.cluster.replica_registry import ANNOUNCE_EVERY_S, Row
from skep.deploy.launches import check_free, room_of
from skep.engines.adapter import VISIBLE
from skep.engines.base import DEFAULT_SHARES, Launch, engine_named
from skep.errors import DoesNotFit, EngineError, SkepError, WeightsError
from skep.host.nvidia import read_gpu_memory
from skep.host.processes import kill_marked
from skep.paths import user_paths
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.replica import Replica, StartOrder
from skep.weights.pull import pull
from skep.wire.json_pipe import from_document, to_document

TELL_TIMEOUT_S = 2.5  # a lost report leaves time for the next before the replica counts as away
TAIL_BYTES = 4 << 20  # at most so much of the end is searched for the last lines
PART_BYTES = 512 << 10  # JSON makes at most six bytes of one, and a message may have 4 MiB
CARDS_AGAIN_S = 1.0
AGAIN_S = 5.0  # after a failed pull or an occupied GPU; doubles each time
AGAIN_MOST_S = 300.0
INSTRUCTED_S = 5.0  # without an answer of the registry for so long, the creation arguments count


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


@dataclass
class HeartbeatSender:
    """Reports a replica to the registry. `find` returns the registry or raises; without a head it takes a minute.

    `me`: the actor's own handle. `heard` receives each answer, in the loop of `run`. Only one lookup runs at a time.
    """

    name: str
    row: Callable[[], Row]
    me: Any
    find: Callable[[], Any]
    heard: Callable[[Row], None] = lambda _answer: None
    every_s: float = ANNOUNCE_EVERY_S
    _registry: Any = None
    _held: bool = False  # the registry has `me`; a report with it costs a fifth more
    _looking: asyncio.Task[None] | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Report a change at once. Call it in the loop of `run`."""
        self._wake.set()

    async def run(self) -> None:
        """Report until the registry says that this actor must end."""
        while not await self._is_over():
            await wait_for_event(self._wake, self.every_s)

    async def _is_over(self) -> bool:
        self._wake.clear()
        try:
            if self._registry is not None:
                me, self._held = None if self._held else self.me, False
                telling = self._registry.announce.remote(self.name, self.row(), me)
                answer = await asyncio.wait_for(telling, TELL_TIMEOUT_S)
                self._held = bool(answer.get("held"))
                self.heard(answer)
                return bool(answer["end"])
        except Exception:  # noqa: S110 - the registry is away: the replica goes on serving
            pass
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_for_registry())
        return False

    async def _look_for_registry(self) -> None:
        with contextlib.suppress(Exception):
            found = await asyncio.to_thread(self.find)
            if found is not None and found != self._registry:
                self._registry = found
                self._wake.set()


def log_part(file: BinaryIO, offset: int | None, lines: int) -> LogPart:
    """Return the last lines, or what came since `offset`, as much as fits: to the end of a line if it holds one."""
    size = file.seek(0, os.SEEK_END)
    begin = offset if offset is not None and offset <= size else 0
    if offset is None:
        file.seek(max(0, size - TAIL_BYTES))
        found = file.read(min(TAIL_BYTES, size)).splitlines(keepends=True)
        begin = size - sum(map(len, found[-lines:] if lines else ()))
    file.seek(begin)
    data = file.read(min(PART_BYTES, size - begin))
    if begin + len(data) < size:
        data = data[: data.rfind(b"\n") + 1] or data
    return LogPart(data.decode(errors="replace"), begin + len(data), size)


def with_local_weights(launch: Launch, progress: Callable[[int, int | None], None]) -> Launch:
    """Return the launch with its weights as they lie here. Raises WeightsError where there are none to be had."""
    source = launch.place.source if launch.place is not None else None
    if launch.weights is not None and launch.weights.is_file() and (source is None or source.startswith(("/", "~"))):
        return launch
    if source is not None:
        path = pull(source, cache_dir=user_paths(os.environ).cache, progress=progress).path
        return replace(launch, weights=path, checkpoint=str(path))
    named = launch.checkpoint or ""  # a folder that engines read themselves, or a hub name
    is_there = not named.startswith(("/", "~")) or Path(named).expanduser().exists()
    if launch.weights is not None or not is_there:
        hint = "put it into a folder that all nodes share under the same path, or name a model that can be pulled"
        raise WeightsError(f"`{launch.weights or named}` does not exist on this node", hint=hint)
    return launch


class ReplicaActor:
    """One replica. Its arguments are plain documents, which outlive the process that created it."""

    def __init__(self, hive: str, launch: Row, policy: Row, key: str) -> None:
        import ray

        self._hive = hive
        self._wanted = launch
        self._policy: RestartPolicy = from_document(policy, RestartPolicy)
        self._key = key
        self._incarnation = secrets.token_hex(8)
        self._life = _own_life()
        self._state: Row = {"state": "starting", "why": None}
        self._asked: Launch = from_document(launch, Launch)
        self._launch = self._asked  # with the address, GPUs and weights of this node
        self._replica: Replica | None = None
        self._log: Path | None = None
        self._node: Row = {}
        self._over = False
        self._ended = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._again = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._instructed = asyncio.Event()
        me, find = ray.get_runtime_context().current_actor, lambda: find_actor(registry_name(hive))
        self._announcer = HeartbeatSender(launch["name"], self.row, me, find, heard=self._heed)
        threading.Thread(target=self._run, name="replica", daemon=True).start()

    # Called by the driver and the registry

    def ping(self) -> bool:
        return True

    def describe(self) -> Row:
        """Return the launch that it was created with."""
        return {"over": True} if self._over else self._wanted

    def restart(self) -> None:
        """Restart the engine, or retry what failed before there was one."""
        self._loop.call_soon_threadsafe(self._restart_now)

    def stop(self, timeout_s: float) -> bool:
        """End the engine, and return when it has ended."""
        self._loop.call_soon_threadsafe(self._stop_now)
        return self._ended.wait(timeout_s)

    def log_since(self, offset: int | None, lines: int) -> Row:
        """Return a part of the engine's log, see `log_part`."""
        if self._log is None or not self._log.is_file():
            return to_document(LogPart())
        with self._log.open("rb") as file:
            return to_document(log_part(file, offset, lines))

    # Its thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._over = True  # whatever ended it: another actor replaces this one
            self._ended.set()

    async def _live(self) -> None:
        """Serve until stopped. After a failure, report it and wait for a retry."""
        announcing = asyncio.ensure_future(self._announcer.run())
        announcing.add_done_callback(lambda _over: self._stop_now())
        failures = 0
        while not self._over:
            self._again.clear()
            self._working = asyncio.ensure_future(self._serve())
            await asyncio.wait({self._working})
            if self._over or self._working.cancelled():
                break
            failures += 1
            await wait_for_event(self._again, self._explain(self._working.exception(), failures))
        announcing.cancel()

    def _explain(self, error: BaseException | None, failures: int) -> float | None:
        """Report why nothing is served; return the seconds until the next attempt, None if only on request."""
        self._replica = None
        if not isinstance(error, SkepError):
            self._say("failed", f"{type(error).__name__}: {error}")
            return None
        why = f"{error.message}; {error.hint}" if error.hint else error.message
        pulled = self._asked.place is not None and self._asked.place.source is not None
        if not isinstance(error, DoesNotFit) and not (isinstance(error, WeightsError) and pulled):
            self._say("failed", why)  # what is pulled may be there another time
            return None
        wait_s: float = min(AGAIN_S * 2 ** (failures - 1), AGAIN_MOST_S)
        state = "failed" if failures >= self._policy.failures_before_ready else "backoff"
        self._say(state, f"{why}; next attempt in {wait_s:g} s")
        return wait_s

    async def _serve(self) -> None:
        """Run the engine until it is stopped. Kill leftovers of an earlier engine first."""
        self._say("starting", None)
        self._node = await asyncio.to_thread(_own_node)
        self._launch = launch = await asyncio.to_thread(self._settled)
        engine = engine_named(launch.engine, launch.binary)
        await asyncio.to_thread(engine.check, launch)
        await asyncio.to_thread(engine.version)  # runs a program once; the reports use the cached answer
        await wait_for_event(self._instructed, INSTRUCTED_S)
        folder = user_paths(os.environ).logs / "posts" / f"{self._hive}@{self._node['head']}"
        self._log = folder / f"{launch.name}.log"
        with contextlib.closing(StartOrder(engine_ports(os.environ))) as company:
            replica = Replica(launch, engine, self._log, self._announcer.wake, self._policy, company)
            await asyncio.to_thread(kill_marked, replica.mark)
            await asyncio.to_thread(check_cards, launch)
            self._replica = replica
            await replica.run()

    def _settled(self) -> Launch:
        """Return the launch with the address, GPUs and weights of this node."""
        launch = replace(self._asked, host=self._node["address"], api_key=self._key, gpus=own_cards(self._node["gpus"]))
        if launch.place is not None and not launch.place.cards:
            os.environ.update(dict.fromkeys(VISIBLE.values(), ""))  # Ray assigned no GPU: the engine sees none

        def progress(done: int, total: int | None) -> None:
            self._say("fetching", "fetching the weights" + (f", {done * 100 // total} %" if total else ""))

        return with_local_weights(launch, progress)

    def _heed(self, answer: Row) -> None:
        """Apply the registry's restart policy. A start in progress keeps its deadline."""
        self._instructed.set()
        if answer.get("policy"):
            with contextlib.suppress(ValueError):  # of another version of skep
                self._policy = from_document(answer["policy"], RestartPolicy)
        if self._replica is not None:
            self._replica.life.policy = self._policy

    def _restart_now(self) -> None:
        (self._again.set if self._replica is None else self._replica.restart)()

    def _stop_now(self) -> None:
        """Stop the engine in order, or cancel what comes before it, such as a pull."""
        self._over = True
        self._again.set()
        if self._replica is not None:
            self._replica.stop()
        elif self._working is not None:
            self._working.cancel()

    def _say(self, state: str, why: str | None) -> None:
        """Set the state. A new state is reported at once, mere progress with the next report."""
        before, self._state = self._state, {"state": state, "why": why}
        if state != before["state"]:
            self._loop.call_soon_threadsafe(self._announcer.wake)

    def row(self) -> Row:
        replica, launch, node = self._replica, self._launch, self._node
        told: Row = {**self._state, "slots": launch.slots, "launch": launch}
        if replica is not None and replica.life.state is not ReplicaState.STOPPED:
            life, started = replica.life, replica.started
            told = {"state": life.state.value, "why": life.why, "url": life.url, "restarts": life.restarts}
            told |= {"pid": replica.pid, "slots": started.slots, "launch": started, "engine": replica.engine.version()}
        told |= {"name": launch.name, "model": launch.model, "incarnation": self._incarnation, **self._life}
        return to_document(ReplicaReport(**told, node=node.get("name"), node_id=node.get("id")))


def own_cards(lent: Sequence[Any]) -> tuple[int, ...]:
    """Return the GPUs by number; none for GPUs with names, which Ray has put into the environment."""
    return tuple(sorted(int(card) for card in lent)) if all(str(card).isdecimal() for card in lent) else ()


def check_cards(launch: Launch, again_s: float = CARDS_AGAIN_S) -> None:
    """Raise DoesNotFit if the GPUs lack memory (Ray assigns used ones too), twice: a killed engine's is freed late."""
    if not launch.gpus or launch.engine not in DEFAULT_SHARES:
        return
    for is_last in (False, True):
        cards = read_gpu_memory()
        try:
            check_free([replace(launch, room=room_of(launch, cards, weights=None, cache=None))], cards)
            return
        except DoesNotFit as error:
            if is_last:
                raise DoesNotFit(error.message, hint="`nvidia-smi` on that node shows which process uses it") from None
        time.sleep(again_s)


def _own_life() -> Row:
    """Return this actor's id and how often Ray restarted it; empty if Ray does not say. Read while it is created."""
    with contextlib.suppress(Exception):
        import ray
        from ray._private import state

        actor = ray.get_runtime_context().get_actor_id()
        return {"actor": actor, "life": int(state.actors(actor)["NumRestarts"])}
    return {}


def _own_node() -> Row:
    """Return this node and the GPUs that Ray assigned to this actor."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    found = next((node for node in named_apart(nodes_of(ray.nodes(), {})) if node.id == node_id), None)
    if found is None:
        raise EngineError(f"Ray does not list this node ({node_id[:6]})", hint="`skep replica restart` tries again")
    head = ray.get_runtime_context().gcs_address  # hives of two clusters may have one name
    return {"id": node_id, "address": found.address, "name": found.name, "gpus": ray.get_gpu_ids(), "head": head}
