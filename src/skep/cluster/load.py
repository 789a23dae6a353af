"""Load from many machines: a crowd of Ray actors, spread over the nodes, their clocks held against ours.

A worker takes one CPU of its node for as long as the crowd is open. Its clock is compared before a run, every few
seconds while it lasts, and after it; rows come out on our clock. Who calls has joined the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from skep import __version__
from skep.bench.client_health import ClientHealth
from skep.bench.crowd import NOBODY, Fared, Witness, at_beginning, beginnings, told
from skep.bench.loads import OnRow
from skep.bench.timebase import HeldClock, Ping, moved, reading_of
from skep.bench.worker import Begin, Job, News, encode
from skep.bench.workers import WorkerFact, workers_fact
from skep.cluster.load_hand import LoadHand
from skep.errors import EndpointError, EngineError, SkepError, UserError, first_of
from skep.places import LOOPBACK
from skep.records import Request
from skep.wire.heads import Origin

ROOM_S = 15.0  # Ray says what is free some seconds late
START_S = 60.0
REACH_S = 5.0
PINGS = 12
COMPARE_EVERY_S = 5.0
_KEPT = "what was measured is kept, marked as failed: `skep runs` lists it; try again"


@dataclass(slots=True)
class Worker:
    actor: Any
    node: str
    node_id: str
    pids: tuple[int, ...]  # the actor's, and the load process's
    clock: HeldClock = field(default_factory=HeldClock)

    async def compare(self) -> None:
        try:
            pings = [await self._ping() for _ in range(PINGS)]
        except Exception as error:
            raise _explained(error, self.node) from None
        self.clock.take(reading_of(pings))

    async def compare_often(self) -> None:
        while True:
            await asyncio.sleep(COMPARE_EVERY_S)
            await self.compare()

    async def _ping(self) -> Ping:
        sent_s = time.monotonic()
        theirs_s = await self.actor.now.remote()
        return Ping(sent_s, theirs_s, time.monotonic())

    async def prepare(self, job: Job) -> float:
        """Nothing is left but to begin when it returns. How far its clock was taken to be ahead of ours."""
        ahead_s = self.clock.now.ahead_s
        try:
            await self.actor.prepare.remote(encode(replace(job, origin_s=job.origin_s + ahead_s)))
        except Exception as error:
            raise _explained(error, self.node) from None
        return ahead_s

    async def frames(self, begin: Begin) -> AsyncIterator[bytes]:
        async for frame in self.actor.work.remote(encode(begin)):
            yield await frame


class RayCrowd:
    """`number` None: one worker a node that has room, more where they are not enough."""

    def __init__(self, number: int | None = None) -> None:
        self.workers: list[Worker] = []
        self._groups: list[Any] = []
        self._free = _free_cpus()
        self._number = number
        self._origins: Sequence[Origin] = ()  # that a worker has to reach

    @property
    def few(self) -> int:
        return self._number or max(1, min(len(_nodes()), self._free))

    @property
    def most(self) -> int:
        return self._number or max(1, self._free)

    async def open(self, *origins: Origin) -> None:
        """The first workers, their clocks compared. Each reaches the endpoints, and so do those that come later.

        Again for other endpoints, with the same workers. Closed if it fails.
        """
        try:
            self._origins = origins
            await _check_reach(self.workers, origins)
            await self._grow(self.few)
            await self._compare(self.workers)
        except BaseException as error:
            await self.close()
            raise _explained(error) from None

    async def run(self, jobs: Sequence[Job], on_row: OnRow, witness: Witness = NOBODY) -> Fared:
        try:
            await self._grow(len(jobs))
            at_work = self.workers[: len(jobs)]
            async with asyncio.TaskGroup() as group:
                pairs = zip(at_work, jobs, strict=True)
                prepared = [group.create_task(worker.prepare(job)) for worker, job in pairs]
            await self._compare(at_work)
            began_s = time.monotonic()
            begins = beginnings(jobs, began_s)
            async with asyncio.TaskGroup() as group:
                group.create_task(at_beginning(begins, witness))
                trios = zip(at_work, begins, prepared, strict=True)
                tasks = [group.create_task(_carry_out(one, begin, on_row, was.result())) for one, begin, was in trios]
            witness.ended()
            ended_s = time.monotonic()
            await self._compare(at_work)
        except BaseException as error:
            await self.close()  # they work on for nobody
            raise _explained(error) from None
        health, facts = ClientHealth(), []
        for worker, task in zip(at_work, tasks, strict=True):
            news = task.result()
            health.add_worst(news.lag_p99_ms, news.lag_max_ms, news.cpu_share, news.late_ms)
            facts.append(_fact(worker, news, began_s, ended_s))
        return Fared(health, workers_fact(facts))

    async def close(self) -> None:
        import ray

        workers, self.workers = self.workers, []
        groups, self._groups = self._groups, []
        with suppress(Exception):  # of a cluster that is gone, nothing is left to end
            for worker in workers:
                ray.kill(worker.actor)
            for group in groups:
                ray.util.remove_placement_group(group)

    async def _compare(self, workers: Sequence[Worker]) -> None:
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.compare())

    async def _grow(self, number: int) -> None:
        """Ready for a job when it returns: nothing of their start falls into a measurement."""
        missing = number - len(self.workers)
        if missing <= 0:
            return
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        room = ray.util.placement_group([{"CPU": 1}] * missing, strategy="SPREAD")
        self._groups.append(room)
        await _wait_for(room, missing)
        hand = ray.remote(LoadHand)
        places = [PlacementGroupSchedulingStrategy(room, index) for index in range(missing)]
        actors = [hand.options(num_cpus=1, max_restarts=0, scheduling_strategy=place).remote() for place in places]
        fresh = await _begun(actors)
        self.workers += fresh
        await _check_reach(fresh, self._origins)
        await self._compare(fresh)


async def _wait_for(room: Any, number: int) -> None:
    ends_s = time.monotonic() + ROOM_S
    while not await asyncio.to_thread(room.wait, 1):
        if time.monotonic() > ends_s:
            free = _free_cpus()
            raise EngineError(
                f"the cluster has {free} CPUs free, {number} load workers take one each",
                hint=f"use --processes {free}" if free else "stop something on it, or give Ray more CPUs",
            )


async def _begun(actors: Sequence[Any]) -> list[Worker]:
    try:
        async with asyncio.timeout(START_S):
            begun = [actor.begin.remote() for actor in actors]
            greetings = [await one for one in begun]
    except TimeoutError:
        what = f"load workers did not start within {START_S:g} s"
        raise EngineError(what, hint="`skep cluster status` shows which nodes live") from None
    for told_of in greetings:
        if told_of["skep"] != __version__:
            what = f"{told_of['node']} has skep {told_of['skep']}, here is {__version__}"
            raise UserError(what, hint="install the same version on every node")
    return [
        Worker(actor, told_of["node"], told_of["node_id"], tuple(told_of["pids"]))
        for actor, told_of in zip(actors, greetings, strict=True)
    ]


def check_reachable_from(origin: Origin, nodes: Sequence[str], own: str) -> None:
    """A loopback address means another machine on each of them."""
    others = sorted({node for node in nodes if node not in (own, *LOOPBACK)})
    if origin.host in LOOPBACK and others:
        raise UserError(
            f"{origin} is this machine only, and workers are on {', '.join(others)}",
            hint="give --url with an address that every node reaches",
        )


async def _check_reach(workers: Sequence[Worker], origins: Sequence[Origin]) -> None:
    for origin in origins:
        check_reachable_from(origin, [worker.node for worker in workers], _own_address())
    async with asyncio.TaskGroup() as group:
        for worker, origin in product(workers, origins):
            group.create_task(_check_reaches(worker, origin))


async def _check_reaches(worker: Worker, origin: Origin) -> None:
    why = await worker.actor.why_not.remote(origin.host, origin.port, REACH_S)
    if why is not None:
        hint = "every node that makes load has to reach it: address, firewall"
        raise EndpointError(f"{worker.node} does not reach {origin}: {why}", hint=hint)


async def _carry_out(worker: Worker, begin: Begin, on_row: OnRow, ahead_s: float) -> News:
    """Begun on the worker's clock as it is known now; rows on ours as it is known when they come.

    `ahead_s`: what the worker counts from was brought onto its clock by that.
    """
    if begin.at_s is not None:
        begin = Begin(begin.at_s + worker.clock.now.ahead_s - ahead_s)

    def took(row: Request) -> None:
        on_row(moved(row, ahead_s - worker.clock.now.ahead_s))

    comparing = asyncio.create_task(worker.compare_often())
    try:
        news = await told(worker.frames(begin), took)
    except Exception as error:
        raise _explained(error, worker.node) from None
    finally:
        comparing.cancel()
        await asyncio.gather(comparing, return_exceptions=True)  # what ends the worker ends this too: told once
    if news is None:
        raise EngineError(f"the load worker on {worker.node} ended by itself", hint="its node's log may say why")
    return news


def _fact(worker: Worker, news: News, began_s: float, ended_s: float) -> WorkerFact:
    drift = worker.clock.drift_ppm()
    return WorkerFact(
        node=worker.node,
        node_id=worker.node_id,
        requests=news.made,
        cpu_share=news.cpu_share,
        lag_p99_ms=news.lag_p99_ms,
        lag_max_ms=news.lag_max_ms,
        clock_ahead_s=worker.clock.now.ahead_s,
        clock_error_ms=1000 * worker.clock.error_s(began_s, ended_s),
        drift_ppm=None if drift is None else drift[0],
        drift_within_ppm=None if drift is None else drift[1],
        late_ms=news.late_ms,
    )


def _explained(error: BaseException, node: str | None = None) -> BaseException:
    """Ray's exceptions in a line; everything else as it is. What a worker raises is both Ray's and its own."""
    import ray

    if isinstance(error, BaseExceptionGroup):
        error = first_of(error)
    where = "" if node is None else f" on {node}"
    if isinstance(error, TimeoutError):
        return EngineError(f"the load worker{where} gave no answer in time", hint=_KEPT)
    if not isinstance(error, ray.exceptions.RayError):
        return error
    cause = getattr(error, "cause", None)
    if isinstance(cause, SkepError):
        return EngineError(f"the load worker{where} gave up: {cause.message}", hint=_KEPT)
    text = str(error)
    if "ModuleNotFoundError" in text or "ImportError" in text:
        return EngineError("a node of the cluster has no skep that fits", hint=f"install skep {__version__} on each")
    if isinstance(error, ray.exceptions.RayActorError):
        return EngineError(f"the load worker{where} was lost: it or its node died, or is not reached", hint=_KEPT)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
    return EngineError(f"the load worker{where} was lost: {last[:200]}", hint=_KEPT)


def _nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def _free_cpus() -> int:
    import ray

    return int(ray.available_resources().get("CPU", 0))


def _own_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
