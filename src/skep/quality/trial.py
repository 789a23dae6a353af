"""Are answers as good at C=N as at C=1? The same items are asked in both, in turns, and judged
between the timed parts.

    warm up -> for each level upward: blocks of base and load in turns -> judge -> claim
            -> the next level only while the claim holds

Levels are a fixed sequence: one that does not hold ends the walk, so that what is claimed stays
true 19 times in 20 however many levels were asked for. A round has every item once in each arm.
Arms are interleaved in blocks, so that what the machine does meanwhile befalls both, and which of
them goes first changes from block to block."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.session import Identity, OnProgress, Recording, RunSession, fingerprint_of
from skep.bench.tasks import TaskMaker, Workload
from skep.catalog.engines import engine_named_in, kind_of
from skep.catalog.gpus import HostFacts
from skep.errors import EndpointError, UserError
from skep.host.power import PowerMeter
from skep.quality.asking import Asking, ItemPass, SingleAnswers
from skep.quality.banks import Bank
from skep.quality.judging import Judge
from skep.quality.tool_asking import ToolAsking
from skep.quality.trial_figures import (
    AGAIN,
    BASE,
    LOAD,
    PAIRED_WITH,
    WHOLE_BLOCK,
    QualitySummary,
    quality_summary,
)
from skep.stats.noninferiority import Claim
from skep.store.database import Store
from skep.store.records import LevelFact
from skep.store.verdicts import Verdict
from skep.workload.items import Item, item_json
from skep.workload.tool_history import Message
from skep.workload.tool_tasks import SIZES, size_of

BLOCK = 64  # items, at least
# Items, at least: a block begins and ends with fewer than C in flight, a small part of it.
BLOCK_PER_AGENT = 8


class TrialPlan(msgspec.Struct, frozen=True):
    """`delta` is a share: 0.03 are three points.

    C=1 is the base of every level, whether it is named or not.
    """

    concurrency: tuple[int, ...] = (1, 4, 8)
    delta: float = 0.03
    repeats: int = 1  # of every item in every arm
    temperature: float = 0.0
    timeout_s: float = 900.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.levels:
            levels = ",".join(map(str, self.concurrency))
            hint = "write it as --concurrency 1,4,8"
            raise UserError(f"concurrency `{levels}` has no level to compare with C=1", hint=hint)

    @property
    def levels(self) -> tuple[int, ...]:
        """Return the levels in the order in which they are walked: upward."""
        return tuple(sorted({level for level in self.concurrency if level > 1}))


def passes_of_round(begun: Counter[int], level: int, *, again: bool) -> dict[str, ItemPass]:
    """Return the passes of a round by arm, numbered after those that are `begun` at each level.

    `again`: C=1 twice, which shows what changes by itself.
    """
    arms = {BASE: 1, AGAIN: 1, LOAD: level}
    if not again:
        del arms[AGAIN]
    passes: dict[str, ItemPass] = {}
    for arm, width in arms.items():
        passes[arm] = ItemPass(width, begun[width], arm)
        begun[width] += 1
    return passes


def blocks_of(count: int, level: int) -> list[tuple[int, int]]:
    """Return begin and end of each block of `count` items. Only a single block may be small."""
    size = max(BLOCK, BLOCK_PER_AGENT * level)
    number = max(1, count // size)
    edges = [*(place * size for place in range(number)), count]
    return list(pairwise(edges))


def order_of(
    arms: Mapping[str, ItemPass], seed: int, level: int, round_: int, block: int
) -> list[ItemPass]:
    """Return the passes in the order of this block: one way in it, the other way in the next.

    The seed decides which way comes first.
    """
    first = Random(f"{seed}/{level}").randrange(2)
    forth = [arms[arm] for arm in (BASE, LOAD, AGAIN) if arm in arms]
    if (first + round_ + block) % 2 == 0:
        return forth
    return forth[::-1]


def uncached(
    engine_facts: Mapping[str, Any], pass_: ItemPass, index: int, salt: str
) -> dict[str, Any]:
    """Return the fields of a request that keep an engine from using its prompt cache, which would
    flatter the second arm.

    llama.cpp takes `cache_prompt`: false, and gives other greedy answers with a cache than
    without; vLLM takes a `cache_salt`, here one of its own for each request. Of other engines the
    cached share is reported. `engine_facts`: what an endpoint tells of itself, such as
    "vllm 0.19.1", or several engines where a gateway stands before them.
    """
    names = str(engine_facts.get("engine", "")).split(",")
    kinds = [kind_of(engine_named_in(name) or "") for name in names]
    fields: dict[str, Any] = {}
    if any(kind.weights == "gguf" for kind in kinds) or "build" in engine_facts:
        fields["cache_prompt"] = False
    if any(kind.salts_cache for kind in kinds):
        fields["cache_salt"] = f"{salt}-{pass_.level}-{pass_.repeat}-{index}"
    return fields


WARM_UP_WIDTH = 16  # requests at once, at most
OnLevel = Callable[[QualitySummary], None]


def _identity(
    plan: TrialPlan,
    bank: Bank,
    items: Sequence[Item],
    endpoint: Endpoint,
    host: HostFacts,
    kv: str | None,
) -> Identity:
    """Return the run's identity. Its fingerprint is equal for repeats: the seed of the order and
    the endpoint's address may differ.

    `kv`: the KV type that the endpoint serves with; None: not known.
    """
    documents = sorted(json.dumps(item_json(item)) for item in items)
    digest = hashlib.sha256(json.dumps(documents).encode()).hexdigest()
    config: dict[str, Any] = {
        **to_builtins(plan),
        "bank": bank.name,
        "items": len(items),
        "items_digest": digest[:16],
    }
    if kv is not None:
        config["kv"] = kv
    config["concurrency"] = [1, *plan.levels]
    same = {name: value for name, value in config.items() if name not in ("seed", "timeout_s")}
    return Identity("quality", fingerprint_of([same], endpoint, host), config)


@dataclass(eq=False)
class QualityTrial:
    """Runs a trial. Faults of single requests become rows and verdicts; an error that ends the run
    is raised, and the rows so far are kept.
    """

    _plan: TrialPlan
    _bank: Bank
    _endpoint: Endpoint
    _store: Store
    _host: HostFacts
    _judge: Judge
    on_progress: OnProgress = lambda _: None
    on_level: OnLevel = lambda _: None
    meter: PowerMeter | None = None
    # The messages before the tasks of a bank of tools, by size; empty for other banks.
    histories: Mapping[str, Sequence[Message]] = field(default_factory=dict)
    kv: str | None = None  # the KV type that is served with, where it is known

    def __post_init__(self) -> None:
        self._items = [*self._bank.items]
        Random(f"{self._plan.seed}/items").shuffle(self._items)
        # Tasks of a size stand together: an engine that caches one prefix a slot would otherwise
        # read 128K of context for every one of them.
        self._items.sort(key=lambda item: SIZES.get(size_of(item), 0))
        self._begun: Counter[int] = Counter()  # passes, by level
        self._salt = secrets.token_hex(8)
        self._verdicts: list[Verdict] = []
        self._block_began = 0.0  # when the block under way began
        self._spent_s = 0.0  # time in whole blocks of this level
        self._asking = self._chosen_asking()

    def _chosen_asking(self) -> Asking:
        if self.histories:
            return ToolAsking(
                self._items,
                self.histories,
                salt=self._salt,
                temperature=self._plan.temperature,
            )

        def fields_of(item_pass: ItemPass, index: int) -> dict[str, Any]:
            return uncached(self._endpoint.engine, item_pass, index, self._salt)

        return SingleAnswers(
            self._items, self._judge, fields_of, temperature=self._plan.temperature
        )

    async def run(self) -> QualitySummary:
        plan = self._plan
        endpoint = self._endpoint
        widest = max(self._plan.levels)
        identity = _identity(plan, self._bank, self._items, endpoint, self._host, self.kv)
        async with Recording(self._store, endpoint, self._host, identity) as self._recording:
            self._store.append_items(self._recording.run_id, self._items)
            self._session = RunSession(
                endpoint,
                self._recording,
                self.on_progress,
                widest=widest,
                extra_fields=self._outlook,
                timeout_s=plan.timeout_s,
                meter=self.meter,
            )
            async with self._session.open():
                # Other prompts than the items', so that none of those is known beforehand.
                await self._session.warm_up(
                    TaskMaker(Workload(seed=plan.seed)), min(WARM_UP_WIDTH, widest)
                )
                for level in plan.levels:
                    await self._walk(level)
                    if await self._judge_level() is not Claim.HOLDS:
                        break
        return self.summary()

    def summary(self) -> QualitySummary:
        recording = self._recording
        return quality_summary(
            recording.run_id,
            recording.rows,
            self._verdicts,
            recording.facts,
            self._items,
            bank=self._bank.name,
            delta=self._plan.delta,
            levels=self._plan.levels,
            simulated=recording.simulated,
        )

    async def _walk(self, level: int) -> None:
        """Ask all rounds of a level."""
        is_first = level == self._plan.levels[0]
        arms = 3 if is_first else 2
        self._spent_s = 0.0
        total = arms * self._plan.repeats * len(self._items)
        self._session.now = replace(
            self._session.now, stage="asking", level=level, done=0, total=total
        )
        blocks = blocks_of(len(self._items), level)
        for round_ in range(self._plan.repeats):
            passes = passes_of_round(self._begun, level, again=is_first)
            base = {"level": 1, "repeat": passes[BASE].repeat}
            for pass_ in passes.values():
                if pass_.arm != BASE:
                    self._add_fact(pass_, PAIRED_WITH, base)
            for number, (begin, end) in enumerate(blocks):
                for pass_ in order_of(passes, self._plan.seed, level, round_, number):
                    await self._ask(pass_, begin, end)
                for pass_ in passes.values():
                    self._add_fact(pass_, WHOLE_BLOCK, {"begin": begin, "end": end})

    def _add_fact(self, pass_: ItemPass, name: str, fact: Mapping[str, Any]) -> None:
        self._recording.add_fact(LevelFact(pass_.level, pass_.repeat, name, fact))

    async def _ask(self, pass_: ItemPass, begin: int, end: int) -> None:
        self._session.begin(label=pass_.arm)
        self._block_began = time.monotonic()
        rows = await self._asking.ask(
            self._session.driver, pass_, range(begin, end), self._session.count_row
        )
        self._spent_s += time.monotonic() - self._block_began
        self._recording.check()
        if pass_.arm != LOAD and not any(row.ok for row in rows):
            hint = "skep has nothing to compare a level with; check the server's log"
            raise EndpointError(
                f"{self._endpoint.url} answers nothing at C=1: {rows[0].error}", hint=hint
            )

    async def _judge_level(self) -> Claim | None:
        """Judge the answers that are not judged yet, and return the claim about the level.

        None: no block of it is whole.
        """
        judged = {(verdict.level, verdict.repeat, verdict.index) for verdict in self._verdicts}
        rows = [
            row
            for row in self._recording.rows
            if row.level
            and not row.turn  # the verdict of a task belongs to its first turn
            and (row.level, row.repeat, row.index) not in judged
        ]
        self._session.begin(stage="judging", done=0, total=len(rows))
        verdicts = await self._asking.judge(rows, self._session.count_judged)
        self._store.append_verdicts(self._recording.run_id, verdicts)
        self._verdicts.extend(verdicts)
        summary = self.summary()
        self.on_level(summary)
        if summary.levels:
            return summary.levels[-1].claim
        return None

    def _outlook(self) -> dict[str, float | None]:
        """Return the time left of this level, by how long its requests took so far.

        That is rough until every width was tried.
        """
        now = self._session.now
        if now.stage != "asking" or not now.done:
            return {}
        spent_s = self._spent_s + time.monotonic() - self._block_began
        return {"left_s": spent_s / now.done * (now.total - now.done)}
