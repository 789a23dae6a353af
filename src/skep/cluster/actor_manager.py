"""Creates the replica actors on nodes, ends them, and recreates those that Ray has given up.

Ray chooses the node and restarts or moves what died; it is told what a replica needs and which node would be best.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from skep.cluster import nodes as cluster_nodes
from skep.cluster import placement_groups as groups
from skep.cluster.connect import NAMESPACE
from skep.cluster.nodes import NodeChoice, describe_request, has_words, named_apart
from skep.cluster.replica_actor import ReplicaActor
from skep.cluster.replica_registry import end_actor
from skep.engines.base import Launch, PlacementRequest
from skep.errors import EngineError
from skep.supervisor.lifecycle import RestartPolicy
from skep.wire.json_pipe import from_document, to_document

DESCRIBE_S = 10.0
END_S = 10.0
SLOW_PLACEMENT_S = 2.0  # a placement that takes longer than this is reported as waiting
LOOK_EVERY_S = 5.0

Say = Callable[[str, str | None], None]  # a state and its reason


class ActorManager:
    """The actors of one hive. `key`: the API key of its engines. `avoid`: names of nodes that get no new replica."""

    def __init__(self, hive: str, key: str, policy: RestartPolicy) -> None:
        self.avoid: tuple[str, ...] = ()
        self._hive = hive
        self._key = key
        self.policy = policy  # of actors created from now on
        self._aimed: dict[str, str] = {}  # by replica: the node it was aimed at
        self._handles: dict[str, Any] = {}  # they work without a head
        self._stuck: set[str] = set()  # waited for a node at the last check while another one had room
        self._one_at_a_time = asyncio.Lock()  # each placement sees the targets of those before it

    async def ensure(self, launch: Launch, standing: Mapping[str, str], say: Say) -> None:
        """Create the actor unless it runs already. `standing`: nodes of running actors. Ends it if cancelled."""
        actor = await self._find(launch.name)
        if actor is not None:
            if await self._stays(actor, launch):
                self._handles[launch.name] = actor
                return
            await end_actor(self._hive, launch.name)
        say("waiting", None)
        try:
            group = await self._placed(launch, standing, say)
            say("starting", None)
            actor = await _to_its_end(asyncio.to_thread(self._start, launch, group))
            self._handles[launch.name] = actor
            await _until_it_lives(actor, say)
        except asyncio.CancelledError:
            await end_actor(self._hive, launch.name)
            raise

    async def end(self, name: str, *, headless: bool = False) -> None:
        """End a replica. With the head lost (`headless`) only its engine ends; the idle actor and its group stay."""
        self._aimed.pop(name, None)
        actor = self._handles.pop(name, None)
        if not headless:
            await end_actor(self._hive, name)
        elif actor is not None:
            await asyncio.wait_for(actor.stop.remote(END_S), END_S)

    async def ask(self, name: str, method: str, *args: Any) -> Any:
        """Call a method of its actor and return the answer; None if there is no actor."""
        actor = self._handles.get(name) or await self._find(name)
        if actor is None:
            return None
        return await asyncio.wait_for(getattr(actor, method).remote(*args), DESCRIBE_S)

    def all_names(self) -> list[str]:
        """Return the replicas that have an actor or a placement group. Waits for the head."""
        return groups.actor_names(self._hive)

    async def _find(self, name: str) -> Any | None:
        return await asyncio.to_thread(groups.find_actor, groups.actor_name(self._hive, name))

    # Existing actors

    async def _stays(self, actor: Any, launch: Launch) -> bool:
        """Return whether an existing actor can serve this launch. Ray mends a silent one, unless it is stuck."""
        try:
            told = await asyncio.wait_for(actor.describe.remote(), DESCRIBE_S)
        except Exception:
            return not await self._is_stuck(launch)
        self._stuck.discard(launch.name)
        try:
            return not told.get("over") and cluster_nodes.can_keep_actor(from_document(told, Launch), launch)
        except msgspec.ValidationError:  # of another version of skep
            return False

    async def _is_stuck(self, launch: Launch) -> bool:
        """Return whether its group has waited, at two checks in a row, for gone or full nodes while another had room.

        A group names nodes by id: a restarted node has a new id, and one that is no longer avoided has room.
        """
        place = launch.place or PlacementRequest()
        state = (await asyncio.to_thread(groups.groups_by_name)).get(groups.actor_name(self._hive, launch.name))
        if state is not None:
            nodes = await asyncio.to_thread(groups.living_nodes)
            has_room = cluster_nodes.fitting(place, cluster_nodes.choice_of(place, self.avoid, nodes), nodes)
            if state not in groups.WAITS or not has_room:
                self._stuck.discard(launch.name)
                return False
        twice = launch.name in self._stuck
        (self._stuck.discard if twice else self._stuck.add)(launch.name)
        return twice

    # New actors

    async def _placed(self, launch: Launch, standing: Mapping[str, str], say: Say) -> Any:
        """Return a placement group on an allowed node; make a new one when the allowed nodes change."""
        place, full = launch.place or PlacementRequest(), groups.actor_name(self._hive, launch.name)
        while True:
            choice = cluster_nodes.choice_of(place, self.avoid, await asyncio.to_thread(groups.living_nodes))
            if choice.is_empty:
                drained = ", ".join(name for name in place.nodes if name in self.avoid)
                also = f"; drained: {drained}" if drained else ""
                say("waiting", f"waits for one of its nodes: {', '.join(place.nodes)}{also}")
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            async with self._one_at_a_time:
                nodes = await asyncio.to_thread(groups.living_nodes)
                near = cluster_nodes.first_choice(place, self.avoid, nodes)
                # The node with room that has the fewest replicas of this hive, then the most room.
                held: Counter[str] = Counter({**self._aimed, **standing}.values())
                rooms = cluster_nodes.fitting(place, near, nodes)
                room = [(held[one.id], -(one.free_gpus if place.cards else one.free_cpus), one.id) for one in rooms]
                target = min(room)[2] if room else None
                self._aimed[launch.name] = target or ""
                group = await _to_its_end(asyncio.to_thread(groups.make_group, full, place, near, target))
            if await self._is_ready(group, full, place, choice, near, say):
                return group
            await asyncio.to_thread(groups.remove_group, full)

    async def _is_ready(
        self, group: Any, full: str, place: PlacementRequest, choice: NodeChoice, near: NodeChoice, say: Say
    ) -> bool:
        """Wait until Ray has placed the group. Return False if it must be made again for other nodes."""
        ready = asyncio.ensure_future(await asyncio.to_thread(group.ready))
        try:
            await asyncio.wait({ready}, timeout=SLOW_PLACEMENT_S)
            while not ready.done():
                nodes = await asyncio.to_thread(groups.living_nodes)
                if cluster_nodes.choice_of(place, self.avoid, nodes) != choice:
                    return False
                if near != choice and cluster_nodes.first_choice(place, self.avoid, nodes) == choice:
                    state = (await asyncio.to_thread(groups.groups_by_name)).get(full)
                    if state in groups.WAITS:  # one that has a node may itself have taken the last room
                        return False
                there = has_words([node for node in named_apart(nodes) if choice.takes(node)]) or "no node may be used"
                say("waiting", f"waits for room: needs {describe_request(place)} on one node; {there}")
                await asyncio.wait({ready}, timeout=LOOK_EVERY_S)
            ready.result()
            return True
        finally:
            ready.cancel()

    def _start(self, launch: Launch, group: Any) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = launch.place or PlacementRequest()
        made = ray.remote(ReplicaActor).options(
            name=groups.actor_name(self._hive, launch.name), namespace=NAMESPACE, lifetime="detached",
            max_restarts=-1, max_concurrency=8, num_cpus=place.cpus, num_gpus=place.cards,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
        )  # fmt: skip
        return made.remote(self._hive, to_document(launch), to_document(self.policy), self._key)


async def _until_it_lives(actor: Any, say: Say) -> None:
    """Wait for the first answer. Raise EngineError if Ray has given the actor up; if its node dies, Ray restarts it."""
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


async def _to_its_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Delay a cancellation until the thread has created its object, so that the caller can end it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=END_S)
        raise
