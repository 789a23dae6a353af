"""The mixed workload: a coding conversation of three turns with 0, 1, 2 or 4 side tasks beside it.
The answers are then judged.

    warm up -> every level once, up; once more, down; ... -> the answers are executed -> figures

Each side task is sent once, at the moment of the first turn.

Prompts are the same at every level, so a prompt cache would flatter the later ones: the first line
of every request is a tag of its own. Inside a conversation the tag stays, and the cache works as
it does in practice."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import OnRow
from skep.bench.session import Identity, OnProgress, Recording, RunSession, fingerprint_of
from skep.bench.tasks import BenchTask, Sender, TaskMaker, Workload
from skep.catalog.gpus import HostFacts
from skep.host.power import PowerMeter
from skep.quality.judging import AnsweredItem, Judge
from skep.quality.mixed_figures import (
    LEVEL_NAMES,
    MEMORY,
    PRIMARY,
    PRIMARY_TRAFFIC,
    SIDE,
    SIDE_TRAFFIC,
    TEMPERATURE,
    MixedSummary,
    mixed_summary,
)
from skep.sandbox.runner import Sandbox
from skep.store.database import Store
from skep.store.records import LevelFact, Request
from skep.workload.extraction import split_answer
from skep.workload.items import Item, item_json

ReadMemory = Callable[[], Mapping[str, Any] | None]  # as `MemoryUse` has it
SIDE_STEP = 1000  # between the indexes of two side tasks


class MixedPlan(msgspec.Struct, frozen=True):
    repeats: int = 3
    # C: one for the conversation, the rest side tasks.
    levels: tuple[int, ...] = tuple(LEVEL_NAMES)
    seed: int = 0  # of the tags; the prompts are always the same
    timeout_s: float = 900.0

    def course(self) -> list[tuple[int, int]]:
        """Return (level, repeat) in order: up in the first repeat, down in the second, and so on,
        so that a drift hits all levels alike.
        """
        course = []
        for repeat in range(self.repeats):
            levels = sorted(self.levels, reverse=repeat % 2 == 1)
            course += [(level, repeat) for level in levels]
        return course


async def run_mixed(
    plan: MixedPlan,
    endpoint: Endpoint,
    store: Store,
    host: HostFacts,
    sandbox: Sandbox,
    on_progress: OnProgress = lambda _: None,
    *,
    meter: PowerMeter | None = None,
    memory: ReadMemory = lambda: None,
) -> MixedSummary:
    """Ask all levels, judge the answers and return the figures.

    Faults of single requests become rows. Items are stored first: a run cut short can be judged
    later. `memory` reads what the GPUs hold once all levels were asked: an engine keeps what it
    took.
    """
    items = items_of(plan.levels)
    identity = _identity(plan, items, sandbox, endpoint, host)
    async with Recording(store, endpoint, host, identity) as recording:
        store.append_items(recording.run_id, items)
        widest = max(plan.levels)
        session = RunSession(
            endpoint, recording, on_progress, timeout_s=plan.timeout_s, widest=widest, meter=meter
        )
        async with session.open():
            await session.warm_up(TaskMaker(Workload(seed=plan.seed)), widest)
            course = plan.course()
            for number, (level, repeat) in enumerate(course, start=1):
                name = f"{LEVEL_NAMES[level]}, run {number} of {len(course)}"
                session.begin(
                    stage="asking", level=level, label=name, done=0, total=len(PRIMARY) + level - 1
                )
                await session.driver.run_load(
                    level=level,
                    repeat=repeat,
                    load=MixedRound(plan, level, repeat).load,
                    width=level,
                    on_row=session.count_row,
                    is_closed=False,
                )
                recording.check()
            if in_use := await asyncio.to_thread(memory):
                recording.add_fact(LevelFact(widest, 0, MEMORY, in_use))
            by_id = {item.id: item for item in items}
            answered = [
                AnsweredItem(row, by_id[row.kind])
                for row in recording.rows
                if row.level and row.kind in by_id
            ]
            session.begin(stage="judging", level=0, done=0, total=len(answered))
            verdicts = await Judge(sandbox).judge(answered, session.count_judged)
        store.append_verdicts(recording.run_id, verdicts)
    return mixed_summary(
        recording.run_id,
        endpoint.model,
        recording.rows,
        verdicts,
        simulated=recording.simulated,
        facts=recording.facts,
    )


def items_of(levels: Sequence[int]) -> list[Item]:
    """Return the items that these levels ask."""
    return [*PRIMARY, *SIDE[: max(levels) - 1]]


class MixedRound:
    """One run of one level: the conversation and its side tasks, once."""

    def __init__(self, plan: MixedPlan, level: int, repeat: int) -> None:
        self._plan = plan
        self._level = level
        self._repeat = repeat

    async def load(self, sender: Sender, on_row: OnRow) -> None:
        self._sender = sender
        self._on_row = on_row
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_conversation())
            for place in range(self._level - 1):
                group.create_task(self._run_side_task(place))

    async def _run_conversation(self) -> None:
        """Ask turn after turn. Answers become part of the next request, reasoning does not.

        A failed turn ends the conversation.
        """
        messages: list[dict[str, str]] = []
        for turn, item in enumerate(PRIMARY):
            if turn == 0:
                question = self._tagged(item, "primary")
            else:
                question = [dict(message) for message in item.messages]
            messages = [*messages, *question]
            row, answer = await self._ask(
                item, turn, PRIMARY_TRAFFIC, messages, session=0, turn=turn
            )
            if not row.ok:
                return
            text = split_answer(answer, None).text
            messages = [*messages, {"role": "assistant", "content": text}]

    async def _run_side_task(self, place: int) -> None:
        item = SIDE[place]
        await self._ask(item, (place + 1) * SIDE_STEP, SIDE_TRAFFIC, self._tagged(item, item.id))

    async def _ask(
        self, item: Item, index: int, traffic: str, messages: list[dict[str, str]], **turn: Any
    ) -> tuple[Request, str]:
        task = BenchTask(
            level=self._level,
            repeat=self._repeat,
            index=index,
            kind=item.id,
            messages=messages,
            max_tokens=item.max_tokens,
            temperature=TEMPERATURE,
            traffic=traffic,
            **turn,
        )
        row, answer = await self._sender.ask(task)
        self._on_row(row)
        return row, answer

    def _tagged(self, item: Item, name: str) -> list[dict[str, str]]:
        """Return the item's messages behind a first line that no other conversation and no other
        side task has.
        """
        place = f"{self._plan.seed}/{self._level}/{self._repeat}/{name}"
        messages = [dict(message) for message in item.messages]
        tag = hashlib.sha256(place.encode()).hexdigest()[:8]
        messages[0]["content"] = f"Session {tag}.\n{messages[0]['content']}"
        return messages


def _identity(
    plan: MixedPlan, items: Sequence[Item], sandbox: Sandbox, endpoint: Endpoint, host: HostFacts
) -> Identity:
    """Return the run's identity. Its fingerprint is equal for repeats: the seed, the address and
    the number of repeats may differ.
    """
    levels = sorted(plan.levels)
    work = {"levels": levels, "temperature": TEMPERATURE, "items": [*map(item_json, items)]}
    config = {
        **msgspec.to_builtins(plan),
        "concurrency": levels,
        "levels": [LEVEL_NAMES[level] for level in levels],
        "temperature": TEMPERATURE,
        "max_tokens": {item.id: item.max_tokens for item in items},
        "sandbox": sandbox.name,
        "first_line": (
            "a tag of each conversation and of each side task, "
            "so that no prompt is cached from another one"
        ),
    }
    return Identity("mixed", fingerprint_of(["mixed", work], endpoint, host), config)
