"""The same tasks through different hands: one by one, all at once, eight at a time, skep's swarm,
its load generator.

Each gives a `Batch`: how long it took, when each answer came, what failed.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx

from skep.bench.endpoint import find_endpoint
from skep.bench.tasks import BenchTask, Sender
from skep.paths import Paths
from skep.store.database import open_store
from skep.swarm.records import SwarmRunOptions, Task, TaskEnding
from skep.swarm.runner import carry_out
from skep.swarm.store import SwarmStore, create_run
from skep.wire.client import Pool

FIXED_AGENTS = 8
FIXED_TRIES = 3
FIXED_PAUSE_S = 1.0
TIMEOUT_S = 600.0
_WORDS = (
    "parser",
    "value",
    "list",
    "test",
    "empty",
    "index",
    "branch",
    "cache",
    "token",
    "field",
    "graph",
    "queue",
)


@dataclass(frozen=True)
class Batch:
    """`ends`: seconds from the beginning of the batch to each answer that came.

    Work thrown away is in the wall.
    """

    tasks: int
    wall_s: float
    ends: tuple[float, ...]
    tokens: int
    errors: dict[str, int] = field(default_factory=dict)
    attempts: int | None = None  # None: not counted

    @property
    def failed(self) -> int:
        return self.tasks - len(self.ends)

    @property
    def tok_s(self) -> float:
        if self.wall_s:
            return self.tokens / self.wall_s
        return 0.0

    @property
    def p95_s(self) -> float | None:
        if self.ends:
            return sorted(self.ends)[max(0, round(0.95 * len(self.ends)) - 1)]
        return None

    @property
    def median_s(self) -> float | None:
        if self.ends:
            return statistics.median(self.ends)
        return None


@dataclass(frozen=True)
class Load:
    """So many tasks of such a size.

    No two prompts of a benchmark are alike, so that no cache knows them.
    """

    tasks: int
    prompt_words: int
    output_tokens: int

    def make(self, seed: str) -> list[Task]:
        rng = Random(seed)
        return [self._one(number, rng) for number in range(self.tasks)]

    def _one(self, number: int, rng: Random) -> Task:
        words = " ".join(rng.choice(_WORDS) for _ in range(self.prompt_words))
        message = {"role": "user", "content": f"{rng.getrandbits(40):x} {words}"}
        more = {"ignore_eos": True}  # the same length every time; llama.cpp and vLLM know it
        return Task(
            f"t{number:03}", (message,), max_tokens=self.output_tokens, temperature=0.0, extra=more
        )


class Refused(Exception):
    """What a plain client would raise."""


async def _post(client: httpx.AsyncClient, model: str, task: Task) -> int:
    """The output tokens of one whole answer."""
    body = {
        "model": model,
        "messages": list(task.messages),
        "max_tokens": task.max_tokens,
        "temperature": 0.0,
    }
    answer = await client.post("/v1/chat/completions", json={**body, **task.extra})
    if answer.status_code != 200:
        raise Refused(f"HTTP {answer.status_code}")
    document = answer.json()
    if not document["choices"][0]["message"]["content"]:
        raise Refused("empty answer")
    return int(document["usage"]["completion_tokens"])


async def _batch(
    url: str, tasks: Sequence[Task], do: Callable[[httpx.AsyncClient, Task], Awaitable[int]]
) -> Batch:
    ends: list[float] = []
    errors: Counter[str] = Counter()
    tokens = 0
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        began = time.monotonic()

        async def one(task: Task) -> None:
            nonlocal tokens
            try:
                came = await do(client, task)
            except (httpx.HTTPError, Refused, ValueError, KeyError) as error:
                errors[str(error) if isinstance(error, Refused) else type(error).__name__] += 1
            else:
                tokens += came
                ends.append(time.monotonic() - began)

        await asyncio.gather(*(one(task) for task in tasks))
        return Batch(len(tasks), time.monotonic() - began, tuple(ends), tokens, dict(errors))


async def naive(url: str, model: str, tasks: Sequence[Task]) -> Batch:
    """`asyncio.gather` over all of them: no limit, no second try."""
    return await _batch(url, tasks, lambda client, task: _post(client, model, task))


async def fixed(url: str, model: str, tasks: Sequence[Task]) -> Batch:
    """A semaphore of eight, three tries with a second between them: what people write on the
    second day.
    """
    gate = asyncio.Semaphore(FIXED_AGENTS)

    async def do(client: httpx.AsyncClient, task: Task) -> int:
        async with gate:
            for _ in range(FIXED_TRIES - 1):
                try:
                    return await _post(client, model, task)
                except (httpx.HTTPError, Refused, ValueError, KeyError):
                    await asyncio.sleep(FIXED_PAUSE_S)
            return await _post(client, model, task)

    return await _batch(url, tasks, do)


async def one_by_one(url: str, model: str, tasks: Sequence[Task]) -> Batch:
    gate = asyncio.Semaphore(1)

    async def do(client: httpx.AsyncClient, task: Task) -> int:
        async with gate:
            return await _post(client, model, task)

    return await _batch(url, tasks, do)


async def swarm(
    url: str,
    model: str,
    tasks: Sequence[Task],
    *,
    place: Path,
    agents: int | None = None,
    deadline_s: float = 120.0,
) -> Batch:
    """As `skep swarm run` does it: journal on disk, results file, checks, retries; all of it in
    the wall time.
    """
    paths = paths_in(place)
    output = place / f"results-{time.monotonic_ns()}.jsonl"
    order = SwarmRunOptions(
        agents=agents, timeout_s=TIMEOUT_S, deadline_s=deadline_s, output=str(output)
    )
    began = time.monotonic()
    began_at = time.time()
    with open_store(paths.store) as store:
        run = create_run(store, tasks, order, url=url, model=model, name="benchmark")
    await carry_out(paths, run)
    wall_s = time.monotonic() - began
    with open_store(paths.store) as store:
        journal = SwarmStore(store)
        results = journal.results(run)
        attempts = journal.attempts(run)
    done = [result for result in results if result.ending is TaskEnding.DONE]
    lost = Counter(
        result.error_kind or "unknown" for result in results if result.ending is TaskEnding.FAILED
    )
    lines = output.read_text().splitlines()
    assert len(lines) == len(results), f"{len(lines)} lines for {len(results)} results"
    ends = tuple(one.ended_at - began_at for one in done)
    return Batch(
        len(tasks),
        wall_s,
        ends,
        sum(one.output_tokens or 0 for one in done),
        dict(lost),
        len(attempts),
    )


async def closed_loop(url: str, model: str, tasks: Sequence[Task], *, level: int) -> Batch:
    """What the endpoint sustains: `level` streams of the load generator that share the tasks and
    do nothing else.
    """
    endpoint = await find_endpoint(url, model)
    left = list(reversed(tasks))
    began = time.monotonic()
    pool = Pool(endpoint.origin)
    sender = Sender(endpoint, pool, began, timeout_s=TIMEOUT_S)

    async def agent(number: int) -> list:
        rows = []
        while left:
            task = left.pop()
            words = [dict(message) for message in task.messages]
            bench_task = BenchTask(
                level, 0, number, "implement", words, task.max_tokens or 64, True
            )
            rows.append((await sender.ask(bench_task))[0])
        return rows

    try:
        rows = [
            row
            for own in await asyncio.gather(*(agent(number) for number in range(level)))
            for row in own
        ]
    finally:
        await pool.close()
    wall_s = time.monotonic() - began
    done = [row for row in rows if row.ok]
    errors = Counter(row.error_kind or "unknown" for row in rows if not row.ok)
    ends = tuple(row.ended_s for row in done)
    return Batch(
        len(tasks),
        wall_s,
        ends,
        sum(row.output_tokens or 0 for row in done),
        dict(errors),
        len(rows),
    )


def paths_in(place: Path) -> Paths:
    folders = {name: place / name for name in ("config", "data", "cache", "state", "runtime")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return Paths(**folders)
