"""A sweep: the same number of fresh tasks at each concurrency, in turns, every request stored as it ends."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from skep import __version__
from skep.bench.client_health import watch_client
from skep.bench.endpoint import Endpoint
from skep.bench.metrics import summarise
from skep.bench.request import Task, measure
from skep.errors import EndpointError
from skep.host.facts import host_json, lasting_json
from skep.records import HostFacts, Request, SweepSummary
from skep.store.database import Store
from skep.store.rows import ClientSample
from skep.wire.client import Pool
from skep.workload.fingerprint import workload_fingerprint
from skep.workload.prompts import Prompt, Size, coding_prompts, messages

FLUSH_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class SweepPlan:
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    tasks: int = 16  # per level and run: the same at every level
    runs: int = 2  # of each level
    max_tokens: int = 128
    fixed_output: bool = False
    size: Size = "short"  # of the prompts
    seed: int = 0
    timeout_s: float = 900.0
    keep_text: bool = True
    temperature: float = 0.0

    @property
    def requests(self) -> int:
        return self.tasks * self.runs * len(self.concurrency)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a sweep stands; level 0 is the warm-up."""

    level: int
    repeat: int
    done: int  # requests of the whole sweep
    total: int
    failed: int
    tok_s: float | None  # of the level so far


async def run_sweep(
    plan: SweepPlan,
    endpoint: Endpoint,
    store: Store,
    host: HostFacts,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> SweepSummary:
    """Runs of one level are spread over the sweep, so that drift does not pass for an effect of concurrency."""
    prompts = coding_prompts(random.Random(plan.seed), size=plan.size)
    config = asdict(plan)
    run_id = store.begin_run(
        kind="sweep",
        created_at=time.time(),
        model=endpoint.model,
        url=endpoint.url,
        fingerprint=run_fingerprint(plan, endpoint, host),
        config=config,
        host=host_json(host),
        engine=endpoint.engine,
        simulated=endpoint.simulated,
        skep_version=__version__,
    )
    sweep = _Sweep(plan, endpoint, store, run_id, on_progress)
    try:
        await sweep.run(prompts)
    except (Exception, asyncio.CancelledError) as error:
        why = "interrupted" if isinstance(error, asyncio.CancelledError) else str(error)
        store.end_run(run_id, time.time(), "failed", why)
        raise
    store.end_run(run_id, time.time(), "done")
    return summarise(run_id, sweep.rows, sweep.limited)


def run_fingerprint(plan: SweepPlan, endpoint: Endpoint, host: HostFacts) -> str:
    """Equal for repeats: the seed and the endpoint's address may differ, workload, engine and machine may not."""
    options: dict[str, str | int | float | bool | None] = {
        "concurrency": ",".join(map(str, plan.concurrency)),
        "tasks": plan.tasks,
        "runs": plan.runs,
        "max_tokens": plan.max_tokens,
        "fixed_output": plan.fixed_output,
        "size": plan.size,
        "temperature": plan.temperature,
    }
    engine = {key: value for key, value in endpoint.engine.items() if key != "model_path"}
    parts = [workload_fingerprint(options), endpoint.model, engine, lasting_json(host)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class _Sweep:
    def __init__(
        self,
        plan: SweepPlan,
        endpoint: Endpoint,
        store: Store,
        run_id: str,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._plan = plan
        self._endpoint = endpoint
        self._store = store
        self._run_id = run_id
        self._on_progress = on_progress
        self._origin_s = time.monotonic()
        self._pool = Pool(endpoint.origin, max_idle=max(plan.concurrency))
        self._unsaved: list[Request] = []
        self._done = self._failed = self._level_tokens = 0
        self._level_began = self._origin_s
        self.rows: list[Request] = []
        self.limited: dict[int, bool] = {}

    async def run(self, prompts: Iterator[Prompt]) -> None:
        saver = asyncio.create_task(self._save_often())
        try:
            await self._warm_up(prompts)
            for repeat in range(self._plan.runs):
                for level in self._plan.concurrency:
                    await self._level(level, repeat, prompts)
        finally:
            saver.cancel()
            self._save()
            await self._pool.close()

    async def _warm_up(self, prompts: Iterator[Prompt]) -> None:
        """One batch at the largest C with prompts of its own; a server that refuses all of it ends the sweep here."""
        self._tell(0, 0)
        width = min(max(self._plan.concurrency), self._plan.tasks)
        tasks = [self._task(0, 0, i, next(prompts), tokens=min(16, self._plan.max_tokens)) for i in range(width)]
        rows = await self._at_once(tasks, width)
        if all(not row.ok for row in rows):
            first = rows[0]
            raise EndpointError(
                f"{self._endpoint.url} answered none of {width} warm-up requests: {first.error}",
                hint="look at its log; `skep doctor` checks this machine",
            )

    async def _level(self, level: int, repeat: int, prompts: Iterator[Prompt]) -> None:
        tasks = [self._task(level, repeat, i, next(prompts)) for i in range(self._plan.tasks)]
        self._level_tokens, self._level_began = 0, time.monotonic()
        self._tell(level, repeat)
        async with watch_client() as health:
            await self._at_once(tasks, level)
        self.limited[level] = self.limited.get(level, False) or health.limited
        sample = ClientSample(
            level=level,
            repeat=repeat,
            loop_lag_p99_ms=health.lag_p99_ms,
            loop_lag_max_ms=health.lag_max_ms,
            cpu_share=health.cpu_share,
            client_limited=health.limited,
        )
        self._save()
        self._store.append_client_sample(self._run_id, sample)

    async def _at_once(self, tasks: list[Task], width: int) -> list[Request]:
        """Keep `width` requests in flight until all tasks are done."""
        waiting = iter(tasks)
        rows: list[Request] = []

        async def work() -> None:
            for task in waiting:
                row = await measure(
                    task,
                    self._endpoint,
                    self._pool,
                    self._origin_s,
                    timeout_s=self._plan.timeout_s,
                    keep_text=self._plan.keep_text,
                )
                rows.append(row)
                self._took(row)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(width, len(tasks))):
                workers.create_task(work())
        return rows

    def _took(self, row: Request) -> None:
        self.rows.append(row)
        self._unsaved.append(row)
        if row.level > 0:
            self._done += 1
            self._failed += not row.ok
            self._level_tokens += (row.output_tokens or 0) if row.ok else 0
        self._tell(row.level, row.repeat)

    def _task(self, level: int, repeat: int, index: int, prompt: Prompt, *, tokens: int | None = None) -> Task:
        return Task(
            level=level,
            repeat=repeat,
            index=index,
            kind=prompt.kind,
            messages=messages(prompt),
            max_tokens=tokens or self._plan.max_tokens,
            fixed_output=self._plan.fixed_output,
            temperature=self._plan.temperature,
        )

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            rows, self._unsaved = self._unsaved, []
            await asyncio.shield(asyncio.to_thread(self._store.append_requests, self._run_id, rows))

    def _save(self) -> None:
        rows, self._unsaved = self._unsaved, []
        self._store.append_requests(self._run_id, rows)

    def _tell(self, level: int, repeat: int) -> None:
        span = time.monotonic() - self._level_began
        progress = Progress(
            level=level,
            repeat=repeat,
            done=self._done,
            total=self._plan.requests,
            failed=self._failed,
            tok_s=self._level_tokens / span if self._level_tokens and span > 0 else None,
        )
        self._on_progress(progress)
