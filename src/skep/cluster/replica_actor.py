"""The Ray actor that runs one replica on its node, with the same adapter and guard process as on
one machine.

Ray calls it in one event loop, in which it also works. Failures are part of its reports and never
raised: Ray would give up an actor that fails while it is created. The gateway that owns the
replica asks for its reports all the time; when no gateway does so any more, the replica ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.cluster.connect import actor_name, remove_group
from skep.cluster.messages import ReplicaReport
from skep.cluster.nodes import named_apart, nodes_of
from skep.cluster.ray_processes import engine_ports
from skep.deploy.gpu_assignment import check_free, room_of
from skep.engines.adapter import VISIBLE
from skep.engines.base import Launch, engine_named
from skep.errors import DoesNotFit, EngineError, SkepError, WeightsError
from skep.host.facts import read_gpu_memory
from skep.host.processes import kill_marked
from skep.paths import user_paths
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.log_reader import LogPart, log_part
from skep.supervisor.replica import Replica, StartOrder
from skep.weights.pull import pull
from skep.wire.json_pipe import from_document, to_document

# Wait before the next attempt, after a failed pull or an occupied GPU (that of a killed engine is
# freed late); doubles each time.
AGAIN_S = 5.0
AGAIN_MOST_S = 300.0
OWNED_S = 8.0  # a gateway that has not asked for so long can lose the replica to another one
ABANDONED_AFTER_S = 120.0  # where no gateway asks for so long, the replica ends
LOOK_EVERY_S = 0.5
LONGEST_LOOK_S = 2.0  # a later look: the process was held up, and the gateway's questions too

Row = dict[str, Any]


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait for an event, for a time at most; None: for as long as it takes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


class Ownership:
    """The gateway that a replica belongs to: the one that asks for its reports.

    Time passes only by `pass_time`.
    """

    def __init__(self) -> None:
        self.gateway: str | None = None
        self._silent_s = 0.0

    def claim(self, gateway: str) -> str:
        """Return who owns the replica: this gateway, unless another one asked recently."""
        if self.gateway in (None, gateway) or self._silent_s > OWNED_S:
            self.gateway = gateway
            self._silent_s = 0.0
        assert self.gateway is not None
        return self.gateway

    def pass_time(self, seconds: float) -> bool:
        """Return whether nobody has asked for so long that the replica must end."""
        self._silent_s += seconds
        return self._silent_s > ABANDONED_AFTER_S


def with_local_weights(launch: Launch, progress: Callable[[int, int | None], None]) -> Launch:
    """Return the launch with the path of its weights on this node; they are pulled if need be.

    Raise WeightsError where they cannot be had.
    """
    source = launch.place.source if launch.place is not None else None
    is_path = source is None or source.startswith(("/", "~"))
    if launch.weights is not None and launch.weights.is_file() and is_path:
        return launch
    if source is not None:
        path = pull(source, cache_dir=user_paths(os.environ).cache, progress=progress).path
        return replace(launch, weights=path, checkpoint=str(path))
    named = launch.checkpoint or ""  # a folder that engines read themselves, or a hub name
    is_missing = named.startswith(("/", "~")) and not Path(named).expanduser().exists()
    if launch.weights is not None or is_missing:
        raise WeightsError(
            f"`{launch.weights or named}` does not exist on this node",
            hint="put it into a folder that all nodes share under the same path, or name a model "
            "that can be pulled",
        )
    return launch


class ReplicaActor:
    """One replica.

    Its arguments are plain documents, which outlive the process that created it.
    """

    def __init__(self, hive: str, launch: Row, policy: Row, key: str) -> None:
        self._hive = hive
        self._document = launch
        self._policy: RestartPolicy = from_document(policy, RestartPolicy)
        self._key = key
        self._incarnation = secrets.token_hex(8)
        self._owner = Ownership()
        self._state: Row = {"state": "starting", "why": None}
        self._requested: Launch = from_document(launch, Launch)
        self._launch = self._requested  # with the address, GPUs and weights of this node
        self._replica: Replica | None = None
        self._log: Path | None = None
        self._node: Row = {}
        self._over = False
        self._version = 0
        self._changed = asyncio.Event()
        self._again = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._living = asyncio.get_running_loop().create_task(self._live())

    # Called by the driver

    async def ping(self) -> bool:
        return True

    async def describe(self) -> Row:
        """Return the launch that it was created with, whether it is over, its hive and owner, and
        its report.
        """
        return {
            "launch": self._document,
            "over": self._over or self._living.done(),
            "hive": self._hive,
            "owner": self._owner.gateway,
            "row": self._row(),
        }

    async def claim(self, gateway: str) -> str:
        """Return who owns the replica: this gateway, unless another one asked recently."""
        return self._owner.claim(gateway)

    async def report(self, gateway: str, since: int, wait_s: float) -> Row:
        """Return the report of the replica as soon as it is not version `since`, after `wait_s` at
        the latest.
        """
        owner = self._owner.claim(gateway)
        if owner != gateway:
            return {"owner": owner}
        if self._version == since:
            await wait_for_event(self._changed, wait_s)
        return {"owner": owner, "version": self._version, "row": self._row()}

    async def restart(self) -> None:
        """Restart the engine, or retry what failed before there was one."""
        if self._replica is None:
            self._again.set()
        else:
            await self._replica.restart()

    async def stop(self, timeout_s: float) -> bool:
        """End the engine, and return when it has ended."""
        self._stop_now()
        done, _ = await asyncio.wait({self._living}, timeout=timeout_s)
        return bool(done)

    async def log_since(self, offset: int | None, lines: int) -> Row:
        """Return a part of the engine's log, see `log_part`."""
        if self._log is None or not self._log.is_file():
            return to_document(LogPart())
        with self._log.open("rb") as file:
            return to_document(log_part(file, offset, lines))

    # Its life

    async def _live(self) -> None:
        """Serve until stopped, or until no gateway is left.

        After a failure, report it and wait.
        """
        watching = asyncio.ensure_future(self._watch_owner())
        failures = 0
        while not self._over:
            self._again.clear()
            self._working = asyncio.ensure_future(self._serve())
            await asyncio.wait({self._working})
            if self._over or self._working.cancelled():
                break
            failures += 1
            wait_s = self._report_failure(self._working.exception(), failures)
            await wait_for_event(self._again, wait_s)
        while watching.done():
            with contextlib.suppress(Exception):  # the head is lost: tried again
                await asyncio.to_thread(self._end_self)
            await asyncio.sleep(AGAIN_S)
        watching.cancel()

    def _end_self(self) -> None:
        """End this actor and its placement group.

        Ray would restart an actor whose group alone is removed.
        """
        import ray

        actor = ray.get_runtime_context().current_actor
        remove_group(actor_name(self._hive, self._requested.name))
        ray.kill(actor, no_restart=True)

    async def _watch_owner(self) -> None:
        """Stop the replica when no gateway has asked for its reports for too long."""
        passed_s = 0.0
        while not self._owner.pass_time(passed_s):
            looked_at = time.monotonic()
            await asyncio.sleep(LOOK_EVERY_S)
            passed_s = min(time.monotonic() - looked_at, LONGEST_LOOK_S)
        self._stop_now()

    def _report_failure(self, error: BaseException | None, failures: int) -> float | None:
        """Report why nothing is served. Return the seconds until the next attempt; None: there is
        one only on request.
        """
        self._replica = None
        if not isinstance(error, SkepError):
            self._say("failed", f"{type(error).__name__}: {error}")
            return None
        if error.hint:
            why = f"{error.message}; {error.hint}"
        else:
            why = error.message
        is_pulled = self._requested.place is not None and self._requested.place.source is not None
        pull_failed = isinstance(error, WeightsError) and is_pulled  # it may succeed another time
        if not isinstance(error, DoesNotFit) and not pull_failed:
            self._say("failed", why)
            return None
        wait_s: float = min(AGAIN_S * 2 ** (failures - 1), AGAIN_MOST_S)
        if failures >= self._policy.failures_before_ready:
            state = "failed"
        else:
            state = "backoff"
        self._say(state, f"{why}; next attempt in {wait_s:g} s")
        return wait_s

    async def _serve(self) -> None:
        """Run the engine until it is stopped. Kill leftovers of an earlier engine first."""
        self._say("starting", None)
        self._node = await asyncio.to_thread(_own_node)
        self._launch = launch = await asyncio.to_thread(self._prepare_launch)
        engine = engine_named(launch.engine, launch.binary)
        await asyncio.to_thread(engine.check, launch)
        # Runs a program once; the reports use the cached answer.
        await asyncio.to_thread(engine.version)
        folder = user_paths(os.environ).logs / "posts" / f"{self._hive}@{self._node['head']}"
        self._log = folder / f"{launch.name}.log"
        with contextlib.closing(StartOrder(engine_ports(os.environ))) as start_order:
            replica = Replica(launch, engine, self._log, self._tell, self._policy, start_order)
            await asyncio.to_thread(kill_marked, replica.mark)
            await asyncio.to_thread(check_cards, launch)
            self._replica = replica
            await replica.run()

    def _prepare_launch(self) -> Launch:
        """Return the launch with the address, GPUs and weights of this node."""
        launch = replace(
            self._requested,
            host=self._node["address"],
            api_key=self._key,
            gpus=own_cards(self._node["gpus"]),
        )
        if launch.place is not None and not launch.place.cards:
            # Ray assigned no GPU: the engine sees none.
            os.environ.update(dict.fromkeys(VISIBLE.values(), ""))

        def progress(done: int, total: int | None) -> None:
            text = "fetching the weights"
            if total:
                text += f", {done * 100 // total} %"
            self._living.get_loop().call_soon_threadsafe(self._say, "fetching", text)

        return with_local_weights(launch, progress)

    def _stop_now(self) -> None:
        """Stop the engine in good order, or cancel what precedes it, such as a pull."""
        self._over = True
        self._again.set()
        if self._replica is not None:
            self._replica.stop()
        elif self._working is not None:
            self._working.cancel()

    def _say(self, state: str, why: str | None) -> None:
        """Set the state. A new state is reported at once, mere progress with the next report."""
        before = self._state
        self._state = {"state": state, "why": why}
        if state != before["state"]:
            self._tell()

    def _tell(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed.clear()  # whoever waits is awake now

    def _row(self) -> Row:
        replica = self._replica
        node = self._node
        report: Row = {**self._state, "launch": self._launch}
        if replica is not None and replica.life.state is not ReplicaState.STOPPED:
            life = replica.life
            report = {
                "state": life.state.value,
                "why": life.why,
                "url": life.url,
                "restarts": life.restarts,
                "pid": replica.pid,
                "launch": replica.started,
                "engine": replica.engine.version(),
                "checks": replica.checks,
            }
        report |= {"name": self._launch.name, "incarnation": self._incarnation}
        return to_document(ReplicaReport(**report, node=node.get("name"), node_id=node.get("id")))


def own_cards(assigned: Sequence[Any]) -> tuple[int, ...]:
    """Return the assigned GPUs by number; none for GPUs with names, which Ray has put into the
    environment.
    """
    if all(str(card).isdecimal() for card in assigned):
        return tuple(sorted(int(card) for card in assigned))
    return ()


def check_cards(launch: Launch) -> None:
    """Raise DoesNotFit if the GPUs lack free memory: Ray assigns used ones too."""
    if not launch.gpus or kind_of(launch.engine).memory_share is None:
        return
    cards = read_gpu_memory()
    room = room_of(launch, cards, weights=None, cache=None)
    try:
        check_free([replace(launch, room=room)], cards)
    except DoesNotFit as error:
        raise DoesNotFit(
            error.message, hint="`nvidia-smi` on that node shows which process uses it"
        ) from None


def _own_node() -> Row:
    """Return this node and the GPUs that Ray assigned to this actor."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    nodes = named_apart(nodes_of(ray.nodes(), {}))
    own_node = next((node for node in nodes if node.id == node_id), None)
    if own_node is None:
        raise EngineError(
            f"Ray does not list this node ({node_id[:6]})",
            hint="`skep replica restart` tries again",
        )
    head = ray.get_runtime_context().gcs_address  # hives of two clusters may have one name
    return {
        "id": node_id,
        "address": own_node.address,
        "name": own_node.name,
        "gpus": ray.get_gpu_ids(),
        "head": head,
    }
