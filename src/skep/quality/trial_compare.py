"""Two trials of the same items beside each other: does B, with another KV type or other weights,
answer as well as A? Item by item, at each concurrency that both have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from skep.bench.stored_run import nothing_measured
from skep.errors import UserError
from skep.quality.kv_type import kv_words
from skep.quality.trial_figures import BASE, LOAD, UNANSWERED, Key, Tables, points
from skep.stats.noninferiority import Claim, PairedDifference, claim_of, paired_difference
from skep.store.database import Store
from skep.store.records import StoredRun
from skep.workload.items import Item, item_json
from skep.workload.tool_tasks import SIZES, size_of


class TrialSide(msgspec.Struct, frozen=True):
    """A stored trial with its rows by pass and index."""

    run: StoredRun
    tables: Tables
    items: Sequence[Item]

    @property
    def kv(self) -> str | None:
        kv = self.run.config.get("kv")
        return kv if isinstance(kv, str) else None

    @property
    def delta(self) -> float:
        return float(self.run.config.get("delta", 0.03))

    def passes(self, level: int) -> Iterator[Key]:
        """Yield the passes of a level, without those that were made to show the noise."""
        arm = LOAD
        if level == 1:
            arm = BASE
        for key in sorted(self.tables.rows):
            key_level, _ = key
            if key_level == level and self.tables.arm(key) == arm:
                yield key


class SizeComparison(msgspec.Struct, frozen=True):
    size: str
    difference: PairedDifference


class TrialLevel(msgspec.Struct, frozen=True):
    """B against A on the same items at one concurrency."""

    concurrency: int
    difference: PairedDifference
    claim: Claim
    sizes: tuple[SizeComparison, ...] = ()  # of a bank of tools


class TrialComparison(msgspec.Struct, frozen=True):
    """What B is against A. `delta`: the loss that matters, as A was asked."""

    a: str
    b: str
    kv_a: str | None
    kv_b: str | None
    delta: float
    levels: tuple[TrialLevel, ...]

    @property
    def holds(self) -> bool:
        return all(level.claim is Claim.HOLDS for level in self.levels)

    @property
    def is_worse(self) -> bool:
        return any(level.claim is Claim.LOST for level in self.levels)


def load_trial(store: Store, run: StoredRun) -> TrialSide:
    rows = store.requests(run.id)
    if not any(row.level for row in rows):
        raise nothing_measured(run)
    items = store.items(run.id)
    tables = Tables(rows, store.verdicts(run.id), store.level_facts(run.id), items)
    return TrialSide(run, tables, items)


def compare_trials(a: TrialSide, b: TrialSide) -> TrialComparison:
    """Compare B with A at every level that both have.

    Raises UserError where the two were not asked the same items.
    """
    shared = shared_items(a.items, b.items)
    if not shared:
        raise UserError(
            f"`{a.run.id}` and `{b.run.id}` were asked other items",
            hint="measure both with the same --bank and --seed",
        )
    levels_a = {level for level, _ in a.tables.rows}
    levels_b = {level for level, _ in b.tables.rows}
    common_levels = sorted(levels_a & levels_b)
    return TrialComparison(
        a=a.run.id,
        b=b.run.id,
        kv_a=a.kv,
        kv_b=b.kv,
        delta=a.delta,
        levels=tuple(_levels(a, b, common_levels, shared)),
    )


def shared_items(a: Sequence[Item], b: Sequence[Item]) -> dict[str, tuple[int, int]]:
    """Return the indexes of each item in both trials, by its id, where both ask the same."""
    places: dict[str, int] = {}
    for index, item in enumerate(b):
        places[item.id] = index
    shared: dict[str, tuple[int, int]] = {}
    for index, item in enumerate(a):
        place = places.get(item.id)
        if place is None:
            continue
        if item_json(item) == item_json(b[place]):
            shared[item.id] = (index, place)
    return shared


def _levels(
    a: TrialSide, b: TrialSide, levels: Sequence[int], shared: Mapping[str, tuple[int, int]]
) -> Iterator[TrialLevel]:
    for level in levels:
        pairs = _pairs(a, b, level, shared)
        if not pairs:
            continue
        difference = paired_difference(pairs)
        claim = claim_of(difference, a.delta)
        if claim is Claim.HOLDS and difference.base_rate <= a.delta:
            claim = Claim.UNSHOWN  # where A passes so little, B cannot lose delta
        sizes = tuple(_sizes(a, pairs))
        yield TrialLevel(level, difference, claim, sizes)


def _pairs(
    a: TrialSide, b: TrialSide, level: int, shared: Mapping[str, tuple[int, int]]
) -> dict[str, list[tuple[bool, bool]]]:
    """Return whether each item passed in A and in B, by its id.

    A request of A without an answer counts as passed: it would hide a loss.
    """
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for key_a, key_b in zip(a.passes(level), b.passes(level), strict=False):
        indexes_a = set(a.tables.shared(key_a))
        indexes_b = set(b.tables.shared(key_b))
        for item, (index_a, index_b) in shared.items():
            if index_a not in indexes_a or index_b not in indexes_b:
                continue
            before = a.tables.verdicts[key_a][index_a]
            after = b.tables.verdicts[key_b][index_b]
            passed_before = before.passed or before.outcome in UNANSWERED
            pair = (passed_before, after.passed)
            pairs.setdefault(item, []).append(pair)
    return pairs


def _sizes(a: TrialSide, pairs: Mapping[str, list[tuple[bool, bool]]]) -> Iterator[SizeComparison]:
    size_by_item = {item.id: size_of(item) for item in a.items}
    for size in SIZES:
        of_size = {
            item: outcomes for item, outcomes in pairs.items() if size_by_item[item] == size
        }
        if of_size:
            difference = paired_difference(of_size)
            yield SizeComparison(size, difference)


def subject_words(comparison: TrialComparison) -> str:
    """Return what is held against what."""
    if comparison.kv_a == comparison.kv_b:
        return "B against A"
    return f"{kv_words(comparison.kv_b)} (B) against {kv_words(comparison.kv_a)} (A)"


def comparison_words(comparison: TrialComparison) -> str:
    """Return one sentence: at which levels B is no worse, and what ended that."""
    held: list[TrialLevel] = []
    failed = None
    for level in comparison.levels:
        if level.claim is not Claim.HOLDS:
            failed = level
            break
        held.append(level)
    parts = []
    if held:
        levels = ", ".join(str(level.concurrency) for level in held)
        largest = max(-level.difference.low for level in held)
        parts.append(
            f"no worse than {points(comparison.delta)} at C={levels}: a loss of more than "
            f"{points(largest)} is excluded (95 %)"
        )
    if failed is not None:
        parts.append(_failure_words(failed, comparison.delta))
    return f"{subject_words(comparison)}: {'; '.join(parts) or 'nothing can be claimed'}"


def _failure_words(level: TrialLevel, delta: float) -> str:
    difference = level.difference
    place = f"at C={level.concurrency}"
    if level.claim is Claim.LOST:
        return f"worse {place}: at least {points(-difference.high)} lost"
    if difference.base_rate <= delta:
        return f"not shown {place}: A passes too few items to lose {points(delta)}"
    return (
        f"not shown {place}: a loss of up to {points(-difference.low)} cannot be excluded; ask "
        "more items"
    )
