"""The replica registry as a Ray actor: found by name, restarted by Ray, ends its hive when no gateway is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from skep.cluster.nodes import HEAD
from skep.cluster.placement_groups import actor_name, actor_names, registry_name, remove_group
from skep.cluster.replica_registry import ABANDONED_AFTER_S, ReplicaRegistry
from skep.cluster.values import NAMESPACE

END_S = 20.0
HEAD_S = 10.0
REGISTRY_BYTES = 1_000_000  # Ray honours a node preference only for actors that ask for a resource


def make_registry(hive: str, *, abandoned_after_s: float = ABANDONED_AFTER_S) -> Any:
    """Return the hive's registry, created if needed; preferably on the head, so that both are lost together."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    head = next((node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]), None)
    where = {} if head is None else {"scheduling_strategy": NodeAffinitySchedulingStrategy(head, soft=True)}
    options = {"name": registry_name(hive), "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return (
        ray.remote(RegistryActor)
        .options(
            **options,
            **where,
            num_cpus=0,
            memory=REGISTRY_BYTES,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=1000,
        )
        .remote(hive, abandoned_after_s)
    )


def find_registry(hive: str) -> Any | None:
    import ray

    try:
        return ray.get_actor(registry_name(hive), NAMESPACE)
    except ValueError:
        return None


class RegistryActor:
    """Forwards calls to a `ReplicaRegistry`, made at the first call: before that there is no event loop."""

    def __init__(self, hive: str, abandoned_after_s: float) -> None:
        self._hive = hive
        self._abandoned_after_s = abandoned_after_s
        self._made: ReplicaRegistry | None = None
        self._watching: asyncio.Task[None] | None = None

    def _registry(self) -> ReplicaRegistry:
        if self._made is None:
            self._made = ReplicaRegistry(
                self._hive,
                end_post=self._end_post,
                end_self=self._end_self,
                holder=self._holder,
                abandoned_after_s=self._abandoned_after_s,
            )
            self._watching = asyncio.get_running_loop().create_task(self._made.watch())
        return self._made

    async def announce(self, name: str, row: dict[str, Any], handle: Any = None) -> dict[str, Any]:
        return await self._registry().announce(name, row, handle)

    async def forget(self, name: str) -> None:
        await self._registry().forget(name)

    async def claim(self, gateway: str, policy: dict[str, Any]) -> str:
        return await self._registry().claim(gateway, policy)

    async def table(self, gateway: str, since: int, timeout_s: float) -> dict[str, Any]:
        return await self._registry().table(gateway, since, timeout_s)

    async def state(self) -> dict[str, Any]:
        return await self._registry().state()

    async def _end_post(self, name: str, handle: Any) -> bool:
        """End an actor, first by its handle: that needs no head."""
        if handle is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(handle.stop.remote(END_S), END_S)
        return await end_actor(self._hive, name)

    async def _holder(self, name: str) -> str | None:
        """Return the id of the actor that Ray has under this name; "" if none, None if the head does not answer."""
        import ray

        try:
            post = await _with_deadline(ray.get_actor, actor_name(self._hive, name), NAMESPACE)
        except ValueError:
            return ""
        except Exception:
            return None
        return str(post._actor_id.hex())  # noqa: SLF001 - Ray has no public call for it

    async def _end_self(self) -> None:
        """End the registry and what never reported to it, such as a group that waits for room."""
        for name in await _with_deadline(actor_names, self._hive):
            await end_actor(self._hive, name)
        await asyncio.to_thread(_leave)


async def end_actor(hive: str, name: str, timeout_s: float = END_S) -> bool:
    """Stop the engine, then remove its actor and its placement group in any case.

    Return False if the head did not answer: something may be left.
    """
    import ray

    full, post = actor_name(hive, name), None
    try:
        with contextlib.suppress(ValueError):  # there is none
            post = await _with_deadline(ray.get_actor, full, NAMESPACE)
        if post is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(post.stop.remote(timeout_s), timeout_s + 2)
            with contextlib.suppress(Exception):
                await _with_deadline(ray.kill, post)
        await _with_deadline(remove_group, full)
    except Exception:
        return False
    return True


async def _with_deadline(call: Callable[..., Any], *args: Any) -> Any:
    """Call in a thread with a deadline: Ray's own calls wait for a lost head without limit."""
    return await asyncio.wait_for(asyncio.to_thread(call, *args), HEAD_S)


def _leave() -> None:
    import ray

    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
