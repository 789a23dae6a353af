"""The mixed workload: a coding conversation of three turns with 0, 1, 2 or 4 side tasks beside it, then judged.

    warm up -> every level once, up; once more, down; ... -> the answers are executed -> figures

Form *published* sends each side task once, at the moment of the first turn. Form *sustained* sends each of them again
as soon as it has ended, until the conversation is over; what is under way then is waited for.

Prompts are the same at every level, so a prompt cache would flatter the later ones: the first line of every request is
a tag of its own. Inside a conversation the tag stays, and the cache works as it does in life.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from skep.bench.driver import Driver, Meter
from skep.bench.endpoint import Endpoint
from skep.bench.loads import Load, OnRow
from skep.bench.metrics import repeat_of
from skep.bench.pace import Pace
from skep.bench.recording import Identity, Recording
from skep.bench.request import Sender, Task
from skep.bench.sweep import TICK_S, OnProgress, Progress
from skep.bench.tasks import TaskMaker, Workload
from skep.bench.warming import WARM_UP_TOKENS
from skep.errors import EndpointError
from skep.host.facts import lasting_json
from skep.quality.judging import Answered, Judge
from skep.quality.mixed_figures import LEVEL_NAMES, PRIMARY_TRAFFIC, SIDE_TRAFFIC, mixed_summary
from skep.records import HostFacts, Request
from skep.sandbox.runner import Sandbox
from skep.store.database import Store
from skep.verdicts import MixedSummary
from skep.workload.coding_tasks import PRIMARY, SIDE, TEMPERATURE
from skep.workload.extraction import spoken
from skep.workload.items import Item, item_json

Form = Literal["published", "sustained"]
SIDE_STEP = 1000  # indexes of one side task do not meet those of the next
AGAIN_S = 1.0  # after a failed side task, where the load is sustained: a server in trouble is not hammered

OnJudged = Callable[[int, int], None]  # how many, of how many


@dataclass(frozen=True, slots=True)
class MixedPlan:
    form: Form = "published"
    repeats: int = 3
    levels: tuple[int, ...] = tuple(LEVEL_NAMES)  # C: one for the conversation, the rest side tasks
    seed: int = 0  # of the tags; the prompts are always the same
    timeout_s: float = 900.0

    def course(self) -> list[tuple[int, int]]:
        """(level, repeat): up in the first repeat, down in the second, and so on, so that a drift hits all alike."""
        up = sorted(self.levels)
        return [(level, repeat) for repeat in range(self.repeats) for level in (up[::-1] if repeat % 2 else up)]

    def requests(self, level: int) -> int | None:
        """Of one run of a level, if no turn fails; None: as many as the time of the conversation has room for."""
        return len(PRIMARY) + level - 1 if self.form == "published" or level == 1 else None

    def answers(self) -> int | None:
        """To be executed when all has been measured; None: not known before."""
        each = [self.requests(level) for level in self.levels]
        return None if None in each else self.repeats * sum(filter(None, each))


async def run_mixed(
    plan: MixedPlan,
    endpoint: Endpoint,
    store: Store,
    host: HostFacts,
    sandbox: Sandbox,
    on_progress: OnProgress = lambda _: None,
    on_judged: OnJudged = lambda _done, _total: None,
    *,
    meter: Meter | None = None,
) -> MixedSummary:
    """Faults of single requests become rows. The items are stored first, so that also a run that was cut short can be
    judged later; answers are executed when all has been measured.
    """
    items = items_of(plan.levels)
    identity = Identity("mixed", _fingerprint(plan, items, endpoint, host), _config(plan, items, sandbox))
    async with Recording(store, endpoint, host, identity) as recording:
        store.append_items(recording.run_id, items)
        mixed = _Mixed(plan, endpoint, recording, on_progress, meter)
        try:
            await mixed.run()
        finally:
            await mixed.close()
        answered = answers_of(recording.rows, items)
        on_judged(0, len(answered))
        verdicts = await Judge(sandbox).judge(answered, lambda done: on_judged(done, len(answered)))
        store.append_verdicts(recording.run_id, verdicts)
    return mixed_summary(
        recording.run_id, endpoint.model, plan.form, recording.rows, verdicts, simulated=recording.simulated
    )


def items_of(levels: Sequence[int]) -> list[Item]:
    """What is asked at these levels."""
    return [*PRIMARY, *SIDE[: max(levels) - 1]]


def answers_of(rows: Iterable[Request], items: Iterable[Item]) -> list[Answered]:
    """Every stored answer with its item and, in a conversation, the answers to the turns before it."""
    by_id = {item.id: item for item in items}
    kept = [row for row in rows if row.level and row.kind in by_id]
    turns: dict[tuple[int, int, int], dict[int, str]] = {}
    for row in kept:
        if row.session is not None and row.turn is not None:
            turns.setdefault((row.level, row.repeat, row.session), {})[row.turn] = row.answer or ""
    return [Answered(row, by_id[row.kind], _earlier(row, turns)) for row in kept]


def _earlier(row: Request, turns: Mapping[tuple[int, int, int], Mapping[int, str]]) -> tuple[str, ...]:
    if row.session is None or row.turn is None:
        return ()
    said = turns[row.level, row.repeat, row.session]
    return tuple(said.get(turn, "") for turn in range(row.turn))


def mixed_load(plan: MixedPlan, level: int, repeat: int) -> Load:
    """One run of one level."""

    async def load(sender: Sender, on_row: OnRow) -> None:
        one = _Round(plan, level, repeat, sender, on_row)
        async with asyncio.TaskGroup() as group:
            group.create_task(one.converse())
            for place in range(level - 1):
                group.create_task(one.beside(place))

    return load


class _Round:
    """The conversation and its side tasks, once."""

    def __init__(self, plan: MixedPlan, level: int, repeat: int, sender: Sender, on_row: OnRow) -> None:
        self._plan = plan
        self._level = level
        self._repeat = repeat
        self._sender = sender
        self._on_row = on_row
        self._over = asyncio.Event()  # the conversation is

    async def converse(self) -> None:
        """Answers become part of what is asked next, reasoning does not. A failed turn ends it."""
        said: list[dict[str, str]] = []
        try:
            for turn, item in enumerate(PRIMARY):
                said = [*said, *([dict(one) for one in item.messages] if turn else self._tagged(item, "primary"))]
                task = replace(self._task(item, turn, PRIMARY_TRAFFIC), messages=said, session=0, turn=turn)
                row, answer = await self._ask(task)
                if not row.ok:
                    return
                said = [*said, {"role": "assistant", "content": spoken(answer, None).text}]
        finally:
            self._over.set()

    async def beside(self, place: int) -> None:
        """One side task; where the load is sustained, again and again while the conversation goes on."""
        item = SIDE[place]
        for number in range(SIDE_STEP):
            task = self._task(item, (place + 1) * SIDE_STEP + number, SIDE_TRAFFIC)
            row, _ = await self._ask(replace(task, messages=self._tagged(item, f"{item.id}/{number}")))
            if self._plan.form == "published":
                return
            if not row.ok:
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await self._over.wait()
            if self._over.is_set():
                return

    async def _ask(self, task: Task) -> tuple[Request, str]:
        row, answer = await self._sender.ask(self._sender.letter(task))
        self._on_row(row)
        return row, answer

    def _task(self, item: Item, index: int, traffic: str) -> Task:
        return Task(
            level=self._level,
            repeat=self._repeat,
            index=index,
            kind=item.id,
            messages=[],
            max_tokens=item.max_tokens,
            temperature=TEMPERATURE,
            traffic=traffic,
        )

    def _tagged(self, item: Item, what: str) -> list[dict[str, str]]:
        """Behind a first line that no other conversation and no other side task has."""
        place = f"{self._plan.seed}/{self._level}/{self._repeat}/{what}"
        said = [dict(message) for message in item.messages]
        said[0]["content"] = f"Session {hashlib.sha256(place.encode()).hexdigest()[:8]}.\n{said[0]['content']}"
        return said


def _config(plan: MixedPlan, items: Sequence[Item], sandbox: Sandbox) -> dict[str, Any]:
    return {
        "form": plan.form,
        "repeats": plan.repeats,
        "concurrency": sorted(plan.levels),
        "levels": [LEVEL_NAMES[level] for level in sorted(plan.levels)],
        "seed": plan.seed,
        "temperature": TEMPERATURE,
        "max_tokens": {item.id: item.max_tokens for item in items},
        "timeout_s": plan.timeout_s,
        "sandbox": sandbox.name,
        "first_line": "a tag of each conversation and of each side task, so that no prompt is cached from another one",
    }


def _fingerprint(plan: MixedPlan, items: Sequence[Item], endpoint: Endpoint, host: HostFacts) -> str:
    """Equal for repeats: the seed, the address and the number of repeats may differ."""
    asked: Mapping[str, Any] = {
        "form": plan.form,
        "levels": sorted(plan.levels),
        "temperature": TEMPERATURE,
        "items": [item_json(item) for item in items],
    }
    engine = {key: value for key, value in endpoint.engine.items() if key != "model_path"}
    parts = ["mixed", asked, endpoint.model, engine, lasting_json(host)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


class _Mixed:
    """The timed part, and what is told of it meanwhile."""

    def __init__(
        self,
        plan: MixedPlan,
        endpoint: Endpoint,
        recording: Recording,
        on_progress: OnProgress,
        meter: Meter | None,
    ) -> None:
        self._plan = plan
        self._endpoint = endpoint
        self._recording = recording
        self._on_progress = on_progress
        self._widest = max(plan.levels)
        self._driver = Driver(
            endpoint,
            recording,
            timeout_s=plan.timeout_s,
            keep_text=True,
            most_connections=self._widest,
            meter=meter,
        )
        self._pace = Pace()
        self._now = (0, 0, self._widest)  # level, repeat, requests of the run under way
        self._left: list[tuple[int, int]] = []
        self._took_s: dict[int, float] = {}  # by level, the last time
        self._figures: dict[int, list[float]] = {}
        self._done = self._failed = self._runs = 0

    async def run(self) -> None:
        course = self._plan.course()
        ticker = asyncio.create_task(self._tick())
        try:
            await self._warm_up()
            for place, (level, repeat) in enumerate(course):
                self._left = course[place:]
                await self._run_level(level, repeat)
        finally:
            ticker.cancel()

    async def close(self) -> None:
        await self._driver.close()

    async def _run_level(self, level: int, repeat: int) -> None:
        self._begin(level, repeat, self._plan.requests(level) or 0)
        began = time.monotonic()
        load = mixed_load(self._plan, level, repeat)
        rows, _ = await self._driver.run_load(level, repeat, load, level, self._took, is_closed=False)
        self._took_s[level] = time.monotonic() - began
        self._runs += 1
        self._figures.setdefault(level, []).append(repeat_of(repeat, rows, None).effective_tok_s)
        self._tell(ended=True)
        if self._recording.broken is not None:
            raise self._recording.broken

    async def _warm_up(self) -> None:
        """As many at once as the widest level has, with prompts about as long as the first turn's: level 0."""
        self._begin(0, 0, self._widest)
        tasks = TaskMaker(Workload(size="medium", seed=self._plan.seed)).warm_up(self._widest, 0, WARM_UP_TOKENS)
        rows, _ = await self._driver.run_tasks(0, 0, tasks, self._widest, self._took)
        if all(not row.ok for row in rows):
            hint = "look at its log; `skep doctor` checks this machine"
            raise EndpointError(f"{self._endpoint.url} did not answer: {rows[0].error}", hint=hint)

    def _begin(self, level: int, repeat: int, total: int) -> None:
        self._now = (level, repeat, total)
        self._done = 0
        self._pace.reset()
        self._tell()

    def _took(self, row: Request) -> None:
        self._done += 1
        self._failed += not row.ok and row.level > 0
        self._pace.ended(len(row.arrivals_s))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._pace.seen(self._driver.sender.reads(), time.monotonic())
            with suppress(Exception):  # a picture that cannot be drawn is no reason to lose a run
                self._tell()

    def _tell(self, *, ended: bool = False) -> None:
        level, repeat, total = self._now
        progress = Progress(
            level=level,
            repeat=repeat,
            done=self._done,
            total=total,
            failed=self._failed,
            in_flight=len(self._driver.sender.in_flight),
            tok_s=self._pace.per_s,
            runs_done=self._runs,
            runs_left=len(self._left),
            left_s=self._left_s(),
            figures=self._figures,
            ended=ended,
            label=LEVEL_NAMES.get(level, ""),
        )
        self._on_progress(progress)

    def _left_s(self) -> float | None:
        """From what runs of the levels took; a level not run yet is taken for the slowest one that was."""
        if not self._took_s:
            return None
        slowest = max(self._took_s.values())
        return sum(self._took_s.get(level, slowest) for level, _ in self._left)
