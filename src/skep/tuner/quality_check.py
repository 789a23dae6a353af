"""The quality guard: a faster configuration that answers worse is not better.

Each configuration is asked the same items once, greedily and at the goal's concurrency; its sheet
of answers is kept: what challengers are held against is not asked again for each of them. Two
sides need not be resident at once. Knows nothing of how configurations are started.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.session import Identity, LoadGenerator, Recording, fingerprint_of
from skep.bench.stored_run import TUNE_QUALITY
from skep.catalog.gpus import HostFacts
from skep.catalog.presets import Preset
from skep.catalog.tool_calling import find_tool_calling
from skep.errors import EndpointError, SkepError, UserError
from skep.quality.asking import Asking, ItemPass, SingleAnswers
from skep.quality.banks import DRILLS, Bank, choose_bank
from skep.quality.judging import Judge
from skep.quality.tool_asking import ToolAsking
from skep.quality.tool_bank import ready_tools
from skep.quality.trial import uncached
from skep.quality.trial_figures import points
from skep.stats.noninferiority import Claim, claim_of, paired_difference
from skep.store.database import Store
from skep.store.records import Request
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.tuner.records import BenchProgress, JudgeResult, KnobConfig, OnProgress
from skep.tuner.trial_server import TrialServer
from skep.workload.tool_tasks import TOOLS

FLOOR = 0.10  # of the items: who answers fewer rightly has nothing to lose that could be seen
UNANSWERED = frozenset({VerdictOutcome.FAILED, VerdictOutcome.TIMED_OUT})


class Sheet(msgspec.Struct, frozen=True):
    """What became of one configuration's answers, by item."""

    outcomes: Mapping[str, VerdictOutcome] = {}
    fault: str = "no answer came"  # why nothing was answered

    @property
    def is_silent(self) -> bool:
        """Whether not one request was answered: that is no matter of quality."""
        return all(outcome in UNANSWERED for outcome in self.outcomes.values())

    @property
    def passed(self) -> int:
        return sum(outcome.passed for outcome in self.outcomes.values())


def compared(before: Sheet, after: Sheet, delta: float) -> JudgeResult:
    """Return whether one sheet is as good as the other, on the items that both were asked.

    The other is the first configuration's: small losses cannot add up.
    """
    if before.is_silent:
        words = f"not judged: the configuration to compare with answered nothing: {before.fault}"
        return JudgeResult(ok=True, words=words, seconds=0.0, skipped=True)
    if after.is_silent:
        return JudgeResult(
            ok=False, words=f"none of its requests was answered: {after.fault}", seconds=0.0
        )
    both = before.outcomes.keys() & after.outcomes.keys()
    right_before = sum(before.outcomes[item].passed for item in both)
    right_after = sum(after.outcomes[item].passed for item in both)
    score = f"{right_after} of {len(both)} right against {right_before}"
    if max(right_before, right_after) < max(FLOOR, delta) * len(both) or not both:
        words = f"not judged: {score}; too few to show anything, another --quality bank may"
        return JudgeResult(ok=True, words=words, seconds=0.0, skipped=True)
    # One without an answer before counts as right there: else it would hide a loss.
    pairs = {
        item: [(outcome.passed or outcome in UNANSWERED, after.outcomes[item].passed)]
        for item, outcome in before.outcomes.items()
        if item in both
    }
    difference = paired_difference(pairs)
    claim = claim_of(difference, delta)
    if claim is Claim.HOLDS:
        words = f"not worse by more than {points(delta)}"
    elif claim is Claim.LOST:
        words = f"worse by at least {points(-difference.high)}"
    else:
        loss = f"a loss of up to {points(-difference.low)}"
        words = f"with {difference.items} items {loss} cannot be excluded"
    ok = claim is Claim.HOLDS or (claim is not Claim.LOST and difference.difference >= -delta)
    return JudgeResult(ok=ok, words=f"{score}: {words}", seconds=0.0)


DELTA = 0.05  # five points
# by equal answers 61 exclude a loss of five points; with 96 one item may be lost and two may
# change
ITEMS = 96
# Tasks with tools have several turns each, so there are fewer: as many as exclude five points by
# equal answers, and some more. Contexts of 128K would take most of a tuning's time.
TOOL_ITEMS = 64
TOOL_SIZES = ("2k", "32k")
ROOM_TOKENS = 2048  # for an answer at least: some models think aloud
TIMEOUT_S = 600.0
MOST_S = 600.0


class GuardPlan(msgspec.Struct, frozen=True):
    concurrency: int
    delta: float = DELTA
    items: int = ITEMS
    seed: int = 0
    tuning: str = ""  # id, noted in the stored runs
    # of a sheet: after that no more is asked, and what was asked is compared
    most_s: float = MOST_S
    with_tools: bool = False  # ask tasks with tools, as long as the model passes some


def calls_tools(preset: Preset) -> bool:
    """Return whether the model of a preset can be relied on to call tools on its engine."""
    if preset.options.tool_parser is not None:
        return preset.options.tool_parser != "none"
    calling = find_tool_calling(preset.engine, preset.model, preset.checkpoint)
    return calling is not None and calling.why_not is None and calling.unreliable is None


def open_guard(plan: GuardPlan, store: Store, host: HostFacts, cache_dir: Path) -> QualityGuard:
    """Return a guard with drills, which need no sandbox, and with tools where the plan says so."""
    bank = choose_bank(DRILLS, seed=plan.seed, count=plan.items, cache_dir=cache_dir)
    items = (replace(item, max_tokens=max(item.max_tokens, ROOM_TOKENS)) for item in bank.items)
    return QualityGuard(replace(bank, items=tuple(items)), plan, Judge(None), store, host)


@dataclass(repr=False, eq=False)
class QualityGuard:
    """Asks configurations the items of a bank, keeps their sheets and compares them."""

    bank: Bank
    plan: GuardPlan
    judge: Judge
    store: Store
    host: HostFacts
    _sheets: dict[str, Sheet] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._asks_tools = self.plan.with_tools

    def known(self, config: KnobConfig) -> Sheet | None:
        """Return the sheet of a configuration that was asked before: nothing need be started."""
        return self._sheets.get(config.key)

    def compare(self, incumbent: Sheet, challenger: Sheet) -> JudgeResult:
        """Return whether the challenger is as good; its `seconds` are set by who started engines
        for it.
        """
        return compared(incumbent, challenger, self.plan.delta)

    async def answers(
        self, served: TrialServer, config: KnobConfig, on_progress: OnProgress = lambda _: None
    ) -> Sheet:
        """Ask and judge now. One that answered nothing is asked again the next time."""
        try:
            endpoint = await find_endpoint(served.url, served.model)
        except SkepError as error:
            return Sheet(fault=str(error))
        if self._asks_tools:
            sheet = await self._tools_sheet(endpoint, config, on_progress)
            if sheet is not None:
                return self._kept(config, sheet)
        item_pass = ItemPass(self.plan.concurrency, 0)
        salt = secrets.token_hex(8)

        def fields_of(item_pass: ItemPass, index: int) -> Mapping[str, Any]:
            # Prompts are never taken from a cache: that alone can change an answer.
            return uncached(endpoint.engine, item_pass, index, salt)

        asking = SingleAnswers(self.bank.items, self.judge, fields_of)
        sheet = await self._asked(endpoint, config, self.bank, item_pass, asking, on_progress)
        return self._kept(config, sheet)

    def _kept(self, config: KnobConfig, sheet: Sheet) -> Sheet:
        if not sheet.is_silent:
            self._sheets[config.key] = sheet
        return sheet

    async def _tools_sheet(
        self, endpoint: Endpoint, config: KnobConfig, on_progress: OnProgress
    ) -> Sheet | None:
        """Ask tasks with tools; None, and never again, where they can tell nothing of this model:
        nobody reads its calls, no context fits, or it passes next to none.
        """
        is_first = not self._sheets
        try:
            ready = await ready_tools(
                endpoint,
                TOOLS,
                seed=self.plan.seed,
                count=TOOL_ITEMS,
                max_tokens=ROOM_TOKENS,
                sizes=TOOL_SIZES,
            )
            item_pass = ItemPass(self.plan.concurrency, 0)
            salt = secrets.token_hex(8)
            asking = ToolAsking(ready.bank.items, ready.histories, salt=salt)
            sheet = await self._asked(endpoint, config, ready.bank, item_pass, asking, on_progress)
        except SkepError as error:
            if not is_first or not isinstance(error, UserError | EndpointError):
                return Sheet(fault=str(error))
            self._asks_tools = False
            return None
        if is_first and not sheet.is_silent and sheet.passed < FLOOR * len(sheet.outcomes):
            self._asks_tools = False
            return None
        return sheet

    async def _asked(
        self,
        endpoint: Endpoint,
        config: KnobConfig,
        bank: Bank,
        item_pass: ItemPass,
        asking: Asking,
        on_progress: OnProgress,
    ) -> Sheet:
        """Ask a bank and store what came as a run."""
        ended = itertools.count(1)
        count = len(bank.items)

        def on_row(_row: Request) -> None:
            on_progress(BenchProgress(config, "judging", next(ended), count))

        identity = self._identity(config, endpoint, bank)
        async with Recording(self.store, endpoint, self.host, identity) as recording:
            self.store.append_items(recording.run_id, bank.items)
            driver = LoadGenerator(
                endpoint,
                recording,
                timeout_s=TIMEOUT_S,
                keep_text=True,
                most_connections=item_pass.level,
            )
            try:
                until_s = driver.sender.now() + self.plan.most_s
                rows = await asking.ask(driver, item_pass, range(count), on_row, until_s)
            finally:
                await driver.close()
            recording.check()
            first_turns = [row for row in rows if not row.turn]
            verdicts = await asking.judge(first_turns, lambda _done: None)
            self.store.append_verdicts(recording.run_id, verdicts)
        return sheet_of(verdicts)

    def _identity(self, config: KnobConfig, endpoint: Endpoint, bank: Bank) -> Identity:
        """Return what the stored run is.

        The fingerprint is equal for repeats: the tuning it belongs to and the address may differ.
        """
        plan = self.plan
        same: dict[str, Any] = {
            "bank": bank.name,
            "items": len(bank.items),
            "concurrency": [plan.concurrency],
            "temperature": 0.0,
            "configuration": config.as_dict,
        }
        fingerprint = fingerprint_of([same, [item.id for item in bank.items]], endpoint, self.host)
        document = {
            **same,
            "seed": plan.seed,
            "delta": plan.delta,
            "tuning": plan.tuning,
            "config_key": config.key,
        }
        return Identity(TUNE_QUALITY, fingerprint, document)


def sheet_of(verdicts: Sequence[Verdict]) -> Sheet:
    unanswered = (verdict for verdict in verdicts if verdict.outcome in UNANSWERED)
    faults = (verdict.detail for verdict in unanswered if verdict.detail)
    fault = next(faults, "no answer came")
    return Sheet({verdict.item: verdict.outcome for verdict in verdicts}, fault)
