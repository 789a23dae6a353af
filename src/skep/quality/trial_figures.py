"""From stored rows, verdicts and facts to what may be claimed. Pure: the same run gives the same figures at any time.

Only whole blocks count: a block that was broken off has the answers that came quickly, and those are not like the rest.
Items are in an order of chance, so whole blocks are a fair sample of them, however many there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from skep.bench.metrics import cached_share, ttft_values
from skep.quality.records import ArmFigures, LevelQuality, QualitySummary
from skep.stats.noninferiority import (
    ASSUMED_DISCORDANCE,
    Claim,
    PairedDifference,
    claim_of,
    items_needed,
    paired_difference,
)
from skep.stats.percentiles import percentiles
from skep.store.records import LevelFact, Request, RunState, StoredRun
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.workload.items import Item

POWER = 0.95  # of a number of items that is called enough: 19 of 20 trials show what holds
UNANSWERED = frozenset({VerdictOutcome.FAILED, VerdictOutcome.TIMED_OUT})
BASE, AGAIN, LOAD = "base", "again", "load"
PAIRED_WITH, WHOLE_BLOCK, CUT_SHORT = "paired_with", "whole_block", "cut_short"
Key = tuple[int, int]  # level and repeat: a pass
Block = tuple[int, int]  # from one index to before another
Pairing = tuple[Key, Key]  # a base pass and the one that is held against it


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
    """`levels`: those that were asked for, so that the ones not walked can be named."""
    tables = Tables(rows, verdicts, facts, items)
    measured = sorted({level for level, _ in tables.partners if level > 1})
    walked = tuple(found for level in measured if (found := _level(tables, level, delta)) is not None)
    held = [found.concurrency for found in walked if found.claim is Claim.HOLDS]
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
        skipped=tuple(level for level in levels if level > 1 and level not in {one.concurrency for one in walked}),
        by_family=_by_family(tables, items),
        simulated=simulated,
        incomplete=incomplete or tables.cut_short,
    )


def summary_of_run(
    run: StoredRun, rows: Iterable[Request], verdicts: Iterable[Verdict], facts: Iterable[LevelFact], items: list[Item]
) -> QualitySummary:
    """Sum up a stored run, however it ended."""
    asked: dict[str, Any] = {
        "bank": str(run.config.get("bank", "")),
        "delta": float(run.config.get("delta", 0.03)),
        "levels": tuple(run.config.get("concurrency", ())),
    }
    why = "" if run.state is RunState.DONE else run.error or f"the run is {run.state.value}"
    return quality_summary(run.id, rows, verdicts, facts, items, **asked, simulated=run.simulated, incomplete=why)


class Tables:
    """A run's rows by pass and index."""

    def __init__(
        self, rows: Iterable[Request], verdicts: Iterable[Verdict], facts: Iterable[LevelFact], items: Sequence[Item]
    ) -> None:
        self.rows: dict[Key, dict[int, Request]] = defaultdict(dict)
        self.verdicts: dict[Key, dict[int, Verdict]] = defaultdict(dict)
        self.partners: dict[Key, Key] = {}
        self.blocks: dict[Key, list[Block]] = defaultdict(list)
        self.items = len(items)
        self.cut_short = ""
        for row in rows:
            if row.level:
                self.rows[row.level, row.repeat][row.index] = row
        for verdict in verdicts:
            self.verdicts[verdict.level, verdict.repeat][verdict.index] = verdict
        for one in facts:
            key, fact = (one.level, one.repeat), one.fact
            if one.name == PAIRED_WITH:
                self.partners[key] = (fact["level"], fact["repeat"])
            elif one.name == WHOLE_BLOCK:
                self.blocks[key].append((fact["begin"], fact["end"]))
            elif one.name == CUT_SHORT:
                self.cut_short = str(fact["why"])

    def pairings(self, level: int) -> list[Pairing]:
        """Those that are whole; else what there is of the first, so that every item counts as often as the others."""
        found = [(base, key) for key, base in sorted(self.partners.items()) if key[0] == level]
        whole = [pairing for pairing in found if self._is_whole(*pairing)]
        return whole or [pairing for pairing in found if self.shared(*pairing)][:1]

    def noise(self) -> list[Pairing]:
        """C=1 against C=1: the pass that was made for it, and each base pass against the one before it."""
        again = self.pairings(1)
        if not all(self._is_whole(*pairing) for pairing in again):
            return again
        bases = [key for key in sorted(self.rows) if key[0] == 1 and self.arm(key) == BASE and self._is_whole(key)]
        return [*again, *pairwise(bases)]

    def arm(self, key: Key) -> str:
        return next((row.traffic for row in self.rows.get(key, {}).values()), "")

    def shared(self, *keys: Key) -> list[int]:
        """Indexes that were asked and judged in all of these passes, in whole blocks."""
        found = []
        for key in keys:
            whole = {index for begin, end in self.blocks.get(key, ()) for index in range(begin, end)}
            found.append(whole & self.rows.get(key, {}).keys() & self.verdicts.get(key, {}).keys())
        return sorted(set[int].intersection(*found))

    def walls(self, key: Key, indexes: Iterable[int]) -> float:
        """Return seconds in which the pass was under way: the sum over its blocks."""
        wanted, rows, total = set(indexes), self.rows.get(key, {}), 0.0
        for begin, end in self.blocks.get(key, ()):
            if some := [rows[index] for index in range(begin, end) if index in wanted]:
                total += max(row.ended_s for row in some) - min(row.started_s for row in some)
        return total

    def _is_whole(self, *keys: Key) -> bool:
        return len(self.shared(*keys)) == self.items > 0


def _level(tables: Tables, level: int, delta: float) -> LevelQuality | None:
    """Return the figures of a level; None if nothing of it was measured and judged."""
    pairings = tables.pairings(level)
    if (difference := _difference(tables, pairings)) is None:
        return None
    claim, needed = claim_of(difference, delta), None
    if claim is Claim.HOLDS and difference.base_rate <= delta:
        claim = Claim.UNSHOWN  # so little could not be lost: that it was not says nothing
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
    )


def needed_items(delta: float, share: float, repeats: int) -> int:
    """Return how many items would be needed if that share of pairs differs."""
    return items_needed(delta, discordance=share, repeats=repeats, power=POWER)


def discordance_of(found: PairedDifference) -> float:
    """The share of pairs that differ. None did: as if the next one would, unless that says more than is assumed."""
    changed = found.lost + found.gained
    return changed / found.pairs if changed else min(ASSUMED_DISCORDANCE, 1 / found.pairs)


def _difference(tables: Tables, pairings: Sequence[Pairing]) -> PairedDifference | None:
    """A request without an answer at C=1 counts as passed there: taken for a wrong answer, it would hide a loss."""
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for base, other in pairings:
        before, after = tables.verdicts.get(base, {}), tables.verdicts.get(other, {})
        for index in tables.shared(base, other):
            pair = (before[index].passed or before[index].outcome in UNANSWERED, after[index].passed)
            pairs.setdefault(after[index].item, []).append(pair)
    return paired_difference(pairs) if pairs else None


def _texts_changed(tables: Tables, pairings: Sequence[Pairing]) -> float | None:
    """Return the share of answered pairs whose texts differ."""
    same = changed = 0
    for base, other in pairings:
        for index in tables.shared(base, other):
            one, two = tables.rows[base][index], tables.rows[other][index]
            if one.ok and two.ok and one.answer is not None and two.answer is not None:
                alike = (one.answer, one.reasoning) == (two.answer, two.reasoning)
                same, changed = same + alike, changed + (not alike)
    return changed / (same + changed) if same + changed else None


def _arm(tables: Tables, level: int, parts: Sequence[tuple[Key, Sequence[int]]]) -> ArmFigures:
    rows = [tables.rows[key][index] for key, indexes in parts for index in indexes]
    verdicts = [tables.verdicts[key][index] for key, indexes in parts for index in indexes]
    counts = Counter(verdict.outcome for verdict in verdicts)
    ttft = percentiles(ttft_values(rows))
    total = percentiles([row.ended_s - row.due_s for row in rows if row.ok])
    wall_s = sum(tables.walls(key, indexes) for key, indexes in parts)
    tokens = sum(row.output_tokens or 0 for row in rows if row.ok)
    found = [verdict.keywords for verdict in verdicts if verdict.keywords is not None]
    return ArmFigures(
        concurrency=level,
        requests=len(rows),
        outcomes=tuple((outcome.value, counts[outcome]) for outcome in VerdictOutcome if counts[outcome]),
        keyword_rate=sum(found) / len(found) if found else None,
        ttft_p50_ms=ttft.p50 if ttft else None,
        ttft_p95_ms=ttft.p95 if ttft else None,
        total_p50_s=total.p50 if total else None,
        total_p95_s=total.p95 if total else None,
        effective_tok_s=tokens / wall_s if tokens and wall_s > 0 else None,
        cached_share=cached_share(rows),
    )


def _by_family(tables: Tables, items: Sequence[Item]) -> tuple[tuple[str, int, float], ...]:
    """Return (family, items, pass rate at C=1) for each family."""
    families = {item.id: item.family for item in items if item.family}
    found: dict[str, list[Verdict]] = {}
    for key in [key for key in tables.verdicts if key[0] == 1 and tables.arm(key) in (BASE, AGAIN)]:
        for verdict in (tables.verdicts[key][index] for index in tables.shared(key)):
            if verdict.item in families:
                found.setdefault(families[verdict.item], []).append(verdict)
    return tuple(
        (family, len({one.item for one in own}), sum(one.passed for one in own) / len(own))
        for family, own in sorted(found.items())
    )
