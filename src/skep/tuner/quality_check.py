"""The quality guard: a faster configuration that answers worse is not better.

Each configuration is asked the same items once, greedily and at the goal's concurrency; its sheet of answers is kept:
what challengers are held against is not asked again for each of them. Two sides need not be resident at once.

Which bank is asked settles with the first sheet: one that this model answers almost nothing of is no measure, and an
easier one takes its place. Knows nothing of how configurations are started.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.session import Identity, LoadGenerator, Recording, fingerprint_of
from skep.bench.stored_run import TUNE_QUALITY
from skep.catalog.gpus import HostFacts
from skep.errors import SkepError
from skep.quality.banks import DRILLS, Bank, choose_bank
from skep.quality.judging import AnsweredItem, Judge, needs_sandbox
from skep.quality.trial import ItemPass, uncached
from skep.quality.trial_figures import points
from skep.sandbox.runner import open_sandbox
from skep.stats.noninferiority import Claim, claim_of, paired_difference
from skep.store.database import Store
from skep.store.records import Request
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.tuner.records import BenchProgress, JudgeResult, KnobConfig, OnProgress
from skep.tuner.trial_server import TrialServer
from skep.workload.items import Item

FLOOR = 0.10  # of the items: who answers fewer rightly has nothing to lose that could be seen
UNANSWERED = frozenset({VerdictOutcome.FAILED, VerdictOutcome.TIMED_OUT})


class Mark(msgspec.Struct, frozen=True):
    """What became of one item. `text`: the whole answer, None where there was none."""

    outcome: VerdictOutcome
    text: str | None = None
    why: str = ""


class Sheet(msgspec.Struct, frozen=True):
    """One configuration's answers to a bank, each asked once, greedily and under the goal's load."""

    bank: str
    marks: Mapping[str, Mark] = {}  # by item
    trouble: str = ""  # why there are no marks at all

    @property
    def asked(self) -> int:
        return len(self.marks)

    @property
    def right(self) -> int:
        return self.count(VerdictOutcome.PASSED)

    @property
    def rate(self) -> float:
        return self.right / self.asked if self.asked else 0.0

    @property
    def cut(self) -> float:
        """Share of the answers that ended at the token limit."""
        return self.count(VerdictOutcome.TRUNCATED) / self.asked if self.asked else 0.0

    @property
    def is_silent(self) -> bool:
        """Not one request was answered: that is no matter of quality."""
        return self.count(*UNANSWERED) == self.asked

    @property
    def fault(self) -> str:
        """Why requests were not answered, by the first of them."""
        told = next((mark.why for mark in self.marks.values() if mark.outcome in UNANSWERED and mark.why), "")
        return self.trouble or told or "no answer came"

    def of_items(self, items: Collection[str]) -> Sheet:
        return replace(self, marks={item: mark for item, mark in self.marks.items() if item in items})

    def count(self, *outcomes: VerdictOutcome) -> int:
        return sum(mark.outcome in outcomes for mark in self.marks.values())


def compared(before: Sheet, after: Sheet, delta: float) -> JudgeResult:
    """Against what the search began with, not the step before, small losses cannot add up from step to step."""
    judged = partial(JudgeResult, seconds=0.0)
    if before.is_silent:
        words = f"not judged: the configuration to compare with answered nothing: {before.fault}"
        return judged(ok=True, skipped=True, words=words)
    if after.is_silent:
        return judged(ok=False, words=f"none of its requests was answered: {after.fault}")
    both = before.marks.keys() & after.marks.keys()
    if before.bank != after.bank or not both:
        return judged(ok=True, skipped=True, words=f"not judged: one was asked {before.bank}, the other {after.bank}")
    before, after = before.of_items(both), after.of_items(both)
    if max(before.rate, after.rate) < max(FLOOR, delta):
        why = "these items are too hard for this model, so they show nothing"
        if before.cut > 0.5:
            why = f"{before.count(VerdictOutcome.TRUNCATED)} of {before.asked} answers were cut at the token limit"
        return judged(ok=True, skipped=True, words=f"not judged: {_score(before, after)}; {why}")
    ok, words = _claimed(before, after, delta)
    said = [(mark.text, after.marks[item].text) for item, mark in before.marks.items()]
    said = [(one, other) for one, other in said if one is not None and other is not None]
    same = sum(one == other for one, other in said)  # for information: other texts are no worse ones
    return judged(ok=ok, words=f"{words}; {same} of {len(said)} texts are the same")


def _claimed(before: Sheet, after: Sheet, delta: float) -> tuple[bool, str]:
    """Of the same items. One without an answer before counts as right there: else it would hide a loss."""
    pairs = {
        item: [(mark.outcome.passed or mark.outcome in UNANSWERED, after.marks[item].outcome.passed)]
        for item, mark in before.marks.items()
    }
    found, score = paired_difference(pairs), _score(before, after)
    claim = claim_of(found, delta)
    if claim is Claim.HOLDS:
        small = f", though at least {points(-found.high)} are lost" if found.high < 0 else ""
        return True, f"{score}: not worse by more than {points(delta)}{small}"
    if claim is Claim.LOST:
        return False, f"{score}: worse by at least {points(-found.high)}"
    unshown = f"with {found.items} items a loss of up to {points(-found.low)} cannot be excluded"
    if found.difference < -delta:
        return False, f"{score}: {points(-found.difference)} fewer, and {unshown}"
    return True, f"{score}: not shown to be no worse by {points(delta)}; {unshown}"


def _score(before: Sheet, after: Sheet) -> str:
    return f"{after.right} of {after.asked} right against {before.right} of {before.asked} ({after.bank})"


DELTA = 0.05  # five points
ITEMS = 96  # by equal answers 61 exclude a loss of five points; with 96 one item may be lost and two may change
AUTO = "auto"
EASIEST = f"{DRILLS}:1"
ROOM_TOKENS = 2048  # for an answer, where most were cut: a model that thinks aloud
TIMEOUT_S, MOST_S = 600.0, 600.0


class GuardPlan(msgspec.Struct, frozen=True):
    concurrency: int
    delta: float = DELTA
    items: int = ITEMS
    seed: int = 0
    tuning: str = ""  # id, noted in the stored runs
    most_s: float = MOST_S  # of a sheet: after that no more is asked, and what was asked is compared


def guard_bank(name: str, plan: GuardPlan, cache_dir: Path) -> Bank:
    """Before the search: a bank that cannot be had is told then. "auto": drills, which need no sandbox."""
    return choose_bank(DRILLS if name == AUTO else name, seed=plan.seed, count=plan.items, cache_dir=cache_dir)


@asynccontextmanager
async def open_guard(bank: Bank, plan: GuardPlan, store: Store, host: HostFacts) -> AsyncIterator[QualityGuard]:
    """With a sandbox for as long as it is open, where the bank's answers are programs."""
    sandbox = open_sandbox() if needs_sandbox(bank.items) else None
    try:
        yield QualityGuard(bank, plan, Judge(sandbox), store, host)
    finally:
        if sandbox is not None:
            await sandbox.close()


@dataclass(repr=False, eq=False)
class QualityGuard:
    """All sheets that are kept are of one bank."""

    bank: Bank
    plan: GuardPlan
    judge: Judge
    store: Store
    host: HostFacts
    _sheets: dict[str, Sheet] = field(default_factory=dict)
    _settled: bool = False  # the bank: somebody answered enough of it

    def known(self, config: KnobConfig) -> Sheet | None:
        """Return its sheet, where it was asked before: nothing need be started."""
        return self._sheets.get(config.key)

    async def answers(self, served: TrialServer, config: KnobConfig, on_progress: OnProgress = lambda _: None) -> Sheet:
        """Ask and judge now. The first to be asked is the incumbent, never a challenger."""
        sheet = await self._asked(served, config, on_progress)
        while not self._settled and not sheet.is_silent and (easier := self._easier(sheet)) is not None:
            self.bank = easier
            sheet = await self._asked(served, config, on_progress)
        if not sheet.is_silent:
            if not self._settled:  # what a slow engine had no time for is not asked of others either
                self.bank = replace(self.bank, items=tuple(one for one in self.bank.items if one.id in sheet.marks))
            self._settled = True
            self._sheets[config.key] = sheet
        return sheet

    def compare(self, incumbent: Sheet, challenger: Sheet) -> JudgeResult:
        """`seconds` are put by who started engines for it."""
        return compared(incumbent, challenger, self.plan.delta)

    def _easier(self, sheet: Sheet) -> Bank | None:
        """None: these items will do, or there are no easier ones."""
        if sheet.rate >= max(FLOOR, self.plan.delta):
            return None
        items = self.bank.items
        if sheet.cut > 0.5 and any(item.max_tokens < ROOM_TOKENS for item in items):
            return replace(self.bank, items=tuple(_roomier(item) for item in items))
        if self.bank.name == EASIEST:
            return None
        following = EASIEST if self.bank.name.partition(":")[0] == DRILLS else DRILLS
        easier = choose_bank(following, seed=self.plan.seed, count=self.plan.items, cache_dir=Path())
        room = max(item.max_tokens for item in items) >= ROOM_TOKENS
        return replace(easier, items=tuple(_roomier(item) for item in easier.items)) if room else easier

    async def _asked(self, served: TrialServer, config: KnobConfig, on_progress: OnProgress) -> Sheet:
        try:
            endpoint = await find_endpoint(served.url, served.model)
        except SkepError as error:
            return Sheet(self.bank.name, trouble=str(error))
        items, width, identity = self.bank.items, self.plan.concurrency, self._identity(config, endpoint)
        # Prompts are never taken from a cache: that alone can change an answer.
        one, engine, salt = ItemPass(width, 0), endpoint.engine, secrets.token_hex(8)
        tasks = [one.task(item, index, 0.0, uncached(engine, one, index, salt)) for index, item in enumerate(items)]
        ended = itertools.count(1)

        def took(_row: Request) -> None:
            on_progress(BenchProgress(config, "judging", next(ended), len(items)))

        async with Recording(self.store, endpoint, self.host, identity) as recording:
            self.store.append_items(recording.run_id, items)
            driver = LoadGenerator(endpoint, recording, timeout_s=TIMEOUT_S, keep_text=True, most_connections=width)
            try:
                until_s = driver.sender.now() + self.plan.most_s
                rows, _ = await driver.run_tasks(width, 0, tasks, width, took, until_s=until_s)
            finally:
                await driver.close()
            recording.check()
            verdicts = await self.judge.judge([AnsweredItem(row, items[row.index]) for row in rows])
            self.store.append_verdicts(recording.run_id, verdicts)
        marks = {verdict.item: _mark(row, verdict) for row, verdict in zip(rows, verdicts, strict=True)}
        return Sheet(self.bank.name, marks)

    def _identity(self, config: KnobConfig, endpoint: Endpoint) -> Identity:
        """The fingerprint is equal for repeats: the tuning it belongs to and the address may differ."""
        bank, plan = self.bank, self.plan
        same: dict[str, Any] = {
            "bank": bank.name,
            "items": len(bank.items),
            "concurrency": [plan.concurrency],
            "temperature": 0.0,
            "configuration": config.as_dict,
        }
        fingerprint = fingerprint_of([same, [item.id for item in bank.items]], endpoint, self.host)
        document = {**same, "seed": plan.seed, "delta": plan.delta, "tuning": plan.tuning, "config_key": config.key}
        return Identity(TUNE_QUALITY, fingerprint, document)


def _roomier(item: Item) -> Item:
    return replace(item, max_tokens=max(item.max_tokens, ROOM_TOKENS))


def _mark(row: Request, verdict: Verdict) -> Mark:
    text = None if not row.ok or row.answer is None else f"{row.reasoning or ''}\0{row.answer}"
    return Mark(verdict.outcome, text, verdict.detail if verdict.outcome is not VerdictOutcome.PASSED else "")
