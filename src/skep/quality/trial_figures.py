"""From stored rows, verdicts and facts to what may be claimed. Pure: the same run gives the same
figures at any time.

Only whole blocks count: a block that was broken off has the answers that came quickly, and those
are not like the rest. Items are in an order of chance, so whole blocks are a fair sample of them,
however many there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from skep.bench.metrics import cached_share, ttft_values
from skep.stats.noninferiority import (
    ASSUMED_DISCORDANCE,
    Claim,
    PairedDifference,
    claim_of,
    delta_shown,
    items_needed,
    paired_difference,
)
from skep.stats.percentiles import percentiles
from skep.store.records import LevelFact, Request, RunState, StoredRun
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.workload.items import Item
from skep.workload.tool_tasks import SIZES, size_of

POWER = 0.95  # of a number of items that is called enough: 19 of 20 trials show that it holds
UNANSWERED = frozenset({VerdictOutcome.FAILED, VerdictOutcome.TIMED_OUT})
# points
LEAST_DELTA = 0.1
MOST_DELTA = 50.0
MOST_REPEATS = 10  # that anybody is told to make
MUCH_CACHED = 0.05
BASE = "base"
AGAIN = "again"
LOAD = "load"
ARMS = (BASE, AGAIN, LOAD)
PAIRED_WITH = "paired_with"
WHOLE_BLOCK = "whole_block"
CUT_SHORT = "cut_short"
Key = tuple[int, int]  # level and repeat: a pass
Block = tuple[int, int]  # from one index to before another
Pairing = tuple[Key, Key]  # a base pass and the one that is held against it


class ArmFigures(msgspec.Struct, frozen=True):
    """Figures of one arm: outcomes by name, and latency of the same requests."""

    concurrency: int
    requests: int
    outcomes: tuple[tuple[str, int], ...]
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    total_p50_s: float | None = None
    total_p95_s: float | None = None
    effective_tok_s: float | None = None
    cached_share: float | None = None  # of the prompts, taken from a cache: their TTFT is too good


class SizeQuality(msgspec.Struct, frozen=True):
    """One level against C=1 on the tasks of one size of context, of a bank of tools."""

    size: str  # "32k"
    context_tokens: int  # before the task
    difference: PairedDifference
    base: tuple[tuple[str, int], ...]  # outcomes by name
    load: tuple[tuple[str, int], ...]


class LevelQuality(msgspec.Struct, frozen=True):
    """One level against C=1 on the same items."""

    concurrency: int
    difference: PairedDifference
    claim: Claim
    base: ArmFigures
    load: ArmFigures
    # For delta, by the noise seen here; None where the claim holds.
    needed_items: int | None = None
    texts_changed: float | None = None  # share of pairs whose answers are not the same text
    sizes: tuple[SizeQuality, ...] = ()  # of a bank of tools


class QualitySummary(msgspec.Struct, frozen=True):
    run_id: str
    bank: str
    delta: float  # 0.03: three points
    items: int
    noise: PairedDifference | None  # C=1 against C=1: what changes by itself
    noise_texts_changed: float | None
    levels: tuple[LevelQuality, ...]
    holds_up_to: int | None  # the highest C for which no loss beyond delta is claimed
    skipped: tuple[int, ...] = ()  # levels not walked, as one below them did not hold
    simulated: bool = False
    incomplete: str = ""  # why, if the run was cut short


def quality_summary(
    run_id: str,
    rows: Iterable[Request],
    verdicts: Iterable[Verdict],
    facts: Iterable[LevelFact],
    items: Sequence[Item],
    *,
    bank: str,
    delta: float,
    levels: Sequence[int] = (),
    simulated: bool = False,
    incomplete: str = "",
) -> QualitySummary:
    """Return the figures of a trial.

    `levels`: those that were asked for, so that the levels not walked can be named.
    """
    tables = Tables(rows, verdicts, facts, items)
    measured = sorted({level for level, _ in tables.partners if level > 1})
    qualities = (_level(tables, level, delta) for level in measured)
    walked = tuple(quality for quality in qualities if quality is not None)
    walked_levels = {quality.concurrency for quality in walked}
    held = [quality.concurrency for quality in walked if quality.claim is Claim.HOLDS]
    noise = tables.noise()
    return QualitySummary(
        run_id=run_id,
        bank=bank,
        delta=delta,
        items=len(items),
        noise=_difference(tables, noise),
        noise_texts_changed=_texts_changed(tables, noise),
        levels=walked,
        holds_up_to=max(held, default=None),
        skipped=tuple(level for level in levels if level > 1 and level not in walked_levels),
        simulated=simulated,
        incomplete=incomplete or tables.cut_short,
    )


def summary_of_run(
    run: StoredRun,
    rows: Iterable[Request],
    verdicts: Iterable[Verdict],
    facts: Iterable[LevelFact],
    items: list[Item],
) -> QualitySummary:
    """Sum up a stored run, however it ended."""
    why_incomplete = ""
    if run.state is not RunState.DONE:
        why_incomplete = run.error or f"the run is {run.state.value}"
    return quality_summary(
        run.id,
        rows,
        verdicts,
        facts,
        items,
        bank=str(run.config.get("bank", "")),
        delta=float(run.config.get("delta", 0.03)),
        levels=tuple(run.config.get("concurrency", ())),
        simulated=run.simulated,
        incomplete=why_incomplete,
    )


class Tables:
    """A run's rows by pass and index."""

    def __init__(
        self,
        rows: Iterable[Request],
        verdicts: Iterable[Verdict],
        facts: Iterable[LevelFact],
        items: Sequence[Item],
    ) -> None:
        self.rows: dict[Key, dict[int, Request]] = defaultdict(dict)
        self.verdicts: dict[Key, dict[int, Verdict]] = defaultdict(dict)
        self.partners: dict[Key, Key] = {}
        self.blocks: dict[Key, list[Block]] = defaultdict(list)
        self.items = len(items)
        self.sizes = [size_of(item) for item in items]
        self.cut_short = ""
        later_turns: dict[tuple[int, int, int], list[Request]] = defaultdict(list)
        for row in rows:
            if row.turn and row.session is not None:
                later_turns[row.level, row.repeat, row.session].append(row)
            elif row.level:
                self.rows[row.level, row.repeat][row.index] = row
        for (level, repeat, index), turns in later_turns.items():
            first = self.rows[level, repeat].get(index)
            if first is not None:
                self.rows[level, repeat][index] = whole_task(first, turns)
        for verdict in verdicts:
            self.verdicts[verdict.level, verdict.repeat][verdict.index] = verdict
        for level_fact in facts:
            key = (level_fact.level, level_fact.repeat)
            fact = level_fact.fact
            if level_fact.name == PAIRED_WITH:
                self.partners[key] = (fact["level"], fact["repeat"])
            elif level_fact.name == WHOLE_BLOCK:
                self.blocks[key].append((fact["begin"], fact["end"]))
            elif level_fact.name == CUT_SHORT:
                self.cut_short = str(fact["why"])

    def pairings(self, level: int) -> list[Pairing]:
        """Return the pairings of a level that are whole; if none is, the first that has anything.

        So every item counts as often as the others.
        """
        pairings = [(base, key) for key, base in sorted(self.partners.items()) if key[0] == level]
        whole = [pairing for pairing in pairings if self._is_whole(*pairing)]
        return whole or [pairing for pairing in pairings if self.shared(*pairing)][:1]

    def noise(self) -> list[Pairing]:
        """Return the pairings of C=1 with C=1: the pass that was made for it, and each base pass
        with the base pass before it.
        """
        again = self.pairings(1)
        if not all(self._is_whole(*pairing) for pairing in again):
            return again
        bases = [
            key
            for key in sorted(self.rows)
            if key[0] == 1 and self.arm(key) == BASE and self._is_whole(key)
        ]
        return [*again, *pairwise(bases)]

    def arm(self, key: Key) -> str:
        return next((row.traffic for row in self.rows.get(key, {}).values()), "")

    def shared(self, *keys: Key) -> list[int]:
        """Return the indexes of whole blocks that were asked and judged in all of these passes."""
        judged_indexes = []
        for key in keys:
            whole = {
                index for begin, end in self.blocks.get(key, ()) for index in range(begin, end)
            }
            judged_indexes.append(
                whole & self.rows.get(key, {}).keys() & self.verdicts.get(key, {}).keys()
            )
        return sorted(set[int].intersection(*judged_indexes))

    def walls(self, key: Key, indexes: Iterable[int]) -> float:
        """Return the seconds in which the pass was under way: the sum over its blocks."""
        counted = set(indexes)
        rows = self.rows.get(key, {})
        total = 0.0
        for begin, end in self.blocks.get(key, ()):
            if block_rows := [rows[index] for index in range(begin, end) if index in counted]:
                total += max(row.ended_s for row in block_rows) - min(
                    row.started_s for row in block_rows
                )
        return total

    def _is_whole(self, *keys: Key) -> bool:
        return len(self.shared(*keys)) == self.items > 0


def whole_task(first: Request, later: Iterable[Request]) -> Request:
    """Return the turns of a task as one row: from the beginning of its first to the end of its
    last.
    """
    turns = [first, *sorted(later, key=lambda row: row.turn or 0)]
    last = turns[-1]
    texts = [row.answer for row in turns if row.answer is not None]
    return replace(
        first,
        ended_s=last.ended_s,
        last_token_s=last.last_token_s,
        output_tokens=sum(row.output_tokens or 0 for row in turns),
        error_kind=last.error_kind,
        error=last.error,
        answer="\n".join(texts) if texts else None,
    )


def _level(tables: Tables, level: int, delta: float) -> LevelQuality | None:
    """Return the figures of a level; None if nothing of it was measured and judged."""
    pairings = tables.pairings(level)
    if (difference := _difference(tables, pairings)) is None:
        return None
    claim = claim_of(difference, delta)
    needed = None
    if claim is Claim.HOLDS and difference.base_rate <= delta:
        claim = Claim.UNSHOWN  # a base of so little cannot lose delta: that says nothing
    if claim is Claim.UNSHOWN and difference.base_rate > delta:  # else more items would not help
        needed = needed_items(delta, discordance_of(difference), len(pairings))
    return LevelQuality(
        concurrency=level,
        difference=difference,
        claim=claim,
        base=_arm(tables, 1, [(base, tables.shared(base, load)) for base, load in pairings]),
        load=_arm(tables, level, [(load, tables.shared(base, load)) for base, load in pairings]),
        needed_items=needed,
        texts_changed=_texts_changed(tables, pairings),
        sizes=tuple(_sizes(tables, pairings)),
    )


def _sizes(tables: Tables, pairings: Sequence[Pairing]) -> Iterator[SizeQuality]:
    """Yield the figures of each size of context that was measured, the smallest first."""
    for size, context_tokens in SIZES.items():
        difference = _difference(tables, pairings, size)
        if difference is None:
            continue
        bases = [(base, _of_size(tables, pair, size)) for pair in pairings for base in pair[:1]]
        loads = [(load, _of_size(tables, pair, size)) for pair in pairings for load in pair[1:]]
        yield SizeQuality(
            size=size,
            context_tokens=context_tokens,
            difference=difference,
            base=_outcomes(tables, bases),
            load=_outcomes(tables, loads),
        )


def _of_size(tables: Tables, pairing: Pairing, size: str | None) -> list[int]:
    """Return the indexes of a pairing, of items of one size only; None: of all."""
    shared = tables.shared(*pairing)
    if size is None:
        return shared
    return [index for index in shared if tables.sizes[index] == size]


def _outcomes(
    tables: Tables, parts: Iterable[tuple[Key, Sequence[int]]]
) -> tuple[tuple[str, int], ...]:
    """Return how often each outcome occurs in passes, by its name."""
    counts: Counter[VerdictOutcome] = Counter()
    for key, indexes in parts:
        counts.update(tables.verdicts[key][index].outcome for index in indexes)
    return tuple((outcome.value, counts[outcome]) for outcome in VerdictOutcome if counts[outcome])


def needed_items(delta: float, share: float, repeats: int) -> int:
    """Return how many items would be needed if that share of pairs differs."""
    return items_needed(delta, discordance=share, repeats=repeats, power=POWER)


def discordance_of(difference: PairedDifference) -> float:
    """Return the share of pairs that differ.

    If no pair does, count as if the next one would, unless that is more than is assumed.
    """
    changed = difference.lost + difference.gained
    if changed:
        return changed / difference.pairs
    return min(ASSUMED_DISCORDANCE, 1 / difference.pairs)


def _difference(
    tables: Tables, pairings: Sequence[Pairing], size: str | None = None
) -> PairedDifference | None:
    """Return the difference over all pairs of the pairings; None: there are none.

    `size`: of the items of that size only.

    A request without an answer at C=1 counts as passed there: taken for a wrong answer, it would
    hide a loss.
    """
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for base, partner in pairings:
        before = tables.verdicts.get(base, {})
        after = tables.verdicts.get(partner, {})
        for index in _of_size(tables, (base, partner), size):
            pair = (
                before[index].passed or before[index].outcome in UNANSWERED,
                after[index].passed,
            )
            pairs.setdefault(after[index].item, []).append(pair)
    return paired_difference(pairs) if pairs else None


def _texts_changed(tables: Tables, pairings: Sequence[Pairing]) -> float | None:
    """Return the share of answered pairs whose texts differ."""
    answered = 0
    changed = 0
    for base, partner in pairings:
        for index in tables.shared(base, partner):
            before = tables.rows[base][index]
            after = tables.rows[partner][index]
            if before.ok and after.ok and before.answer is not None and after.answer is not None:
                answered += 1
                changed += (before.answer, before.reasoning) != (after.answer, after.reasoning)
    if not answered:
        return None
    return changed / answered


def _arm(tables: Tables, level: int, parts: Sequence[tuple[Key, Sequence[int]]]) -> ArmFigures:
    """Return the figures of an arm. `parts`: its passes, each with the indexes that count."""
    rows: list[Request] = []
    wall_s = 0.0
    for key, indexes in parts:
        rows += [tables.rows[key][index] for index in indexes]
        wall_s += tables.walls(key, indexes)
    answered = [row for row in rows if row.ok]
    tokens = sum(row.output_tokens or 0 for row in answered)
    ttft_ms = percentiles(ttft_values(rows))
    total_s = percentiles([row.ended_s - row.due_s for row in answered])
    return ArmFigures(
        concurrency=level,
        requests=len(rows),
        outcomes=_outcomes(tables, parts),
        ttft_p50_ms=ttft_ms.p50 if ttft_ms else None,
        ttft_p95_ms=ttft_ms.p95 if ttft_ms else None,
        total_p50_s=total_s.p50 if total_s else None,
        total_p95_s=total_s.p95 if total_s else None,
        effective_tok_s=tokens / wall_s if tokens and wall_s > 0 else None,
        cached_share=cached_share(rows),
    )


def points(share: float, digits: int = 1) -> str:
    """Return a share in points: 0.031 is "3.1 points"; -0.0 has no minus."""
    value = f"{100 * share + 0.0:.{digits}f}".removesuffix("." + "0" * digits)
    if float(value) == 0:
        value = value.removeprefix("-")
    if value == "1":
        return f"{value} point"
    return f"{value} points"


def claim_words(level: LevelQuality, delta: float) -> str:
    difference = level.difference
    if level.claim is Claim.HOLDS:
        claim = f"no worse than {points(delta)}"
        if difference.high < 0:
            return f"{claim}, though at least {points(-difference.high)} are lost"
        return claim
    if level.claim is Claim.LOST:
        return f"worse: at least {points(-difference.high)} lost"
    cut = dict(level.base.outcomes).get(VerdictOutcome.TRUNCATED.value, 0)
    if 2 * cut > level.base.requests:
        return (
            f"not shown: {cut:,} of {level.base.requests:,} answers at C=1 were cut at the token "
            "limit; --output-tokens gives them more room"
        )
    if difference.base_rate <= delta:
        return (
            f"not shown: C=1 passes {100 * difference.base_rate:.1f} % of the items, "
            f"so a loss of {points(delta)} could not be seen; use an easier bank"
        )
    needed = level.needed_items
    remedy = "ask more items"
    if needed is not None and needed > difference.items:
        remedy = f"about {needed:,} items would be needed"
    return f"not shown: a loss of up to {points(-difference.low)} cannot be excluded; {remedy}"


def conclusion(summary: QualitySummary) -> str:
    """Return one sentence: how far quality holds, and what ended it."""
    failed = next((level for level in summary.levels if level.claim is not Claim.HOLDS), None)
    if summary.holds_up_to is None and (failed is None or failed.claim is Claim.UNSHOWN):
        if failed is None:
            return "nothing can be claimed: no level was measured"
        return (
            f"nothing can be claimed: C={failed.concurrency} is "
            f"{claim_words(failed, summary.delta)}"
        )
    parts = []
    if summary.holds_up_to is not None:
        excluded = f"a loss of {points(summary.delta)} or more is excluded (95 %)"
        parts.append(f"quality holds up to C={summary.holds_up_to}: {excluded}")
    if failed is not None:
        parts.append(f"C={failed.concurrency} is {claim_words(failed, summary.delta)}")
    return "; ".join(parts)


def signed(share: float) -> str:
    """Return a share in points with its sign: "-1.2", "+0.4", "0.0"."""
    value = f"{100 * share:+.1f}"
    return "0.0" if float(value) == 0 else value


def outlook(items: int, delta: float, repeats: int, *, available: int | None = None) -> list[str]:
    """Say what so many items can show. `available`: how many the bank has."""
    share = ASSUMED_DISCORDANCE
    needed = needed_items(delta, share, repeats)
    best = delta_shown(items, discordance=share, repeats=repeats, power=POWER)
    often = f", {repeats} times each," if repeats > 1 else ""
    first = (
        f"to exclude a loss of {points(delta)}, about {needed:,} items{often} are needed "
        f"if {100 * share:.1f} % of the verdicts change, for better or worse; "
        f"{items:,} are asked, which can exclude {points(best)}"
    )
    if items >= needed:
        return [first]
    remedy = _remedy(items, delta, share, available)
    warning = "UNDERPOWERED: expect `not shown`, which says nothing about quality."
    return [first, f"{warning} What helps: {remedy}"]


def _remedy(items: int, delta: float, share: float, available: int | None) -> str:
    ways = []
    needed = needed_items(delta, share, 1)
    if available is None or needed <= available:
        ways.append(f"--items {needed}")
    times = next(
        (
            repeats
            for repeats in range(2, MOST_REPEATS + 1)
            if needed_items(delta, share, repeats) <= items
        ),
        None,
    )
    if times is not None:
        ways.append(f"--repeats {times}")
    largest = int(100 * delta_shown(items, discordance=share, power=POWER)) + 1
    if largest <= MOST_DELTA:
        ways.append(f"--delta {largest}, if a loss of less does not matter")
    if available is not None and needed > available:
        ways.append("a larger bank (--bank drills is unlimited)")
    return ", or ".join(ways)


def noise_words(summary: QualitySummary) -> str | None:
    """Describe what changes without load; None if it was not measured."""
    noise = summary.noise
    if noise is None:
        return None
    changed = noise.lost + noise.gained
    texts_changed = ""
    if summary.noise_texts_changed is not None:
        texts_changed = f", {100 * summary.noise_texts_changed:.0f} % of the texts"
    return (
        f"C=1 against itself: {changed} of {noise.pairs} verdicts changed "
        f"({100 * changed / noise.pairs:.1f} %){texts_changed}; "
        f"difference {signed(noise.difference)} points "
        f"({signed(noise.low)} .. {signed(noise.high)})"
    )


def remarks(summary: QualitySummary) -> list[str]:
    """Return warnings and gaps that a reader of the table must know."""
    lines = []
    if summary.incomplete:
        lines.append(f"incomplete: {summary.incomplete}")
    stopped = next(
        (level.concurrency for level in summary.levels if level.claim is not Claim.HOLDS), None
    )
    if summary.skipped:
        skipped = ", ".join(f"C={level}" for level in summary.skipped)
        why = "" if stopped is None else f", as C={stopped} does not hold"
        lines.append(f"not measured: {skipped}{why}")
    for level in summary.levels:
        if unanswered := sum(
            count for name, count in level.base.outcomes if VerdictOutcome(name) in UNANSWERED
        ):
            lines.append(
                f"warning: {unanswered} of {level.base.requests} requests at C=1 "
                f"beside C={level.concurrency} got no answer; "
                "they are counted as passed there, so that they cannot hide a loss"
            )
        cached = max(level.base.cached_share or 0.0, level.load.cached_share or 0.0)
        if cached > MUCH_CACHED and not level.sizes:  # agents' turns are meant to be cached
            lines.append(
                f"warning: {100 * cached:.0f} % of the prompts came from a cache "
                f"beside C={level.concurrency}: TTFT is better than with fresh prompts"
            )
    return lines


def notes(summary: QualitySummary) -> list[str]:
    """Return what stands below the table: the noise, then warnings and gaps."""
    return [*filter(None, [noise_words(summary)]), *remarks(summary)]
