"""From the rows and verdicts of a mixed run to its figures. Pure: the same rows give the same figures at any time.

A figure of a turn or a side task is the median over repeats, of requests that succeeded. A failed turn ends its
conversation: the turns after it were not asked, have no rows, and count as failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from skep.quality.mixed_advice import advice_of
from skep.quality.mixed_axes import axes_of
from skep.records import Request
from skep.verdicts import MixedLevel, MixedSummary, Outcome, SideFigures, TurnFigures, Verdict
from skep.workload.coding_tasks import LEVELS, PRIMARY, SIDE, SIDE_TITLES
from skep.workload.extraction import spoken

PRIMARY_TRAFFIC = "primary"
SIDE_TRAFFIC = "side"
NOT_ASKED = "not asked"  # beside the outcomes of verdicts
LEVEL_NAMES: Mapping[int, str] = {1 + beside: name for beside, name in LEVELS}  # by C

Key = tuple[int, int, int]  # level, repeat, index
Span = tuple[float, float]


def mixed_summary(
    run_id: str,
    model: str,
    form: str,
    rows: Sequence[Request],
    verdicts: Sequence[Verdict],
    *,
    simulated: bool,
    incomplete: str = "",
) -> MixedSummary:
    """`incomplete`: why the run was cut short. Without verdicts, nothing is said about what passed."""
    known = {(one.level, one.repeat, one.index): one for one in verdicts}
    by_level: dict[int, list[Request]] = {}
    for row in rows:
        if row.level > 0:
            by_level.setdefault(row.level, []).append(row)
    levels = tuple(_level(level, by_level[level], known) for level in sorted(by_level))
    return MixedSummary(
        run_id=run_id,
        model=model,
        form=form,
        levels=levels,
        axes=axes_of(levels),
        advice=advice_of(levels),
        simulated=simulated,
        incomplete=incomplete,
    )


def _level(concurrency: int, rows: Sequence[Request], known: Mapping[Key, Verdict]) -> MixedLevel:
    repeats = _by_repeat(rows)
    not_asked = _not_asked(repeats.values()) if known else [0] * len(PRIMARY)
    turns = tuple(_turn(place, repeats.values(), known, not_asked[place]) for place in range(len(PRIMARY)))
    side = tuple(_side(item.id, rows, known) for item in SIDE[: concurrency - 1])
    totals = [total for some in repeats.values() if (total := _conversation_s(some)) is not None]
    wall_s = sum(max(row.ended_s for row in some) - min(row.started_s for row in some) for some in repeats.values())
    tokens = sum(row.output_tokens or 0 for row in rows if row.ok)
    found = [verdict for row in rows if (verdict := known.get(_key(row))) is not None]
    passed = sum(verdict.passed for verdict in found)
    return MixedLevel(
        name=LEVEL_NAMES.get(concurrency, f"C={concurrency}"),
        concurrency=concurrency,
        repeats=len(repeats),
        turns=turns,
        side=side,
        primary_s=_median(totals),
        primary_low_s=min(totals, default=None),
        primary_high_s=max(totals, default=None),
        wall_s=wall_s,
        aggregate_tok_s=tokens / wall_s if tokens and wall_s > 0 else None,
        seconds_per_task=wall_s / passed if passed else None,
        held_share=_held_share(concurrency - 1, repeats.values()),
        outcomes=_outcomes(found, sum(not_asked)),
    )


def _turn(
    place: int, repeats: Iterable[Sequence[Request]], known: Mapping[Key, Verdict], not_asked: int
) -> TurnFigures:
    made = [(row, some) for some in repeats for row in some if row.traffic == PRIMARY_TRAFFIC and row.turn == place]
    rows = [row for row, _ in made]
    beside = [_mean_in_flight(row, _sides(some)) for row, some in made if row.ok]
    passed, judged, keywords = _counts(rows, known)
    return TurnFigures(
        item=PRIMARY[place].id,
        runs=len(rows),
        ttft_ms=_median_of(rows, _ttft_ms),
        seconds=_median_of(rows, _seconds),
        output_tokens=_median_of(rows, lambda row: row.output_tokens),
        tok_s=_median_of(rows, _tok_s),
        reasoning_share=_median_of(rows, _reasoning_share),
        overlap=_median([share for share in beside if share is not None]),
        passed=passed,
        judged=judged + not_asked,
        keywords_passed=keywords,
    )


def _side(item: str, level_rows: Sequence[Request], known: Mapping[Key, Verdict]) -> SideFigures:
    rows = [row for row in level_rows if row.traffic == SIDE_TRAFFIC and row.kind == item]
    passed, judged, keywords = _counts(rows, known)
    return SideFigures(
        item=item,
        title=SIDE_TITLES[item],
        runs=len(rows),
        seconds=_median_of(rows, _seconds),
        ttft_ms=_median_of(rows, _ttft_ms),
        output_tokens=_median_of(rows, lambda row: row.output_tokens),
        passed=passed,
        judged=judged,
        keywords_passed=keywords,
    )


def _counts(rows: Iterable[Request], known: Mapping[Key, Verdict]) -> tuple[int, int, int | None]:
    """Passed, judged, and how many a search for keywords would have let pass."""
    found = [verdict for row in rows if (verdict := known.get(_key(row))) is not None]
    by_words = [verdict.keywords for verdict in found if verdict.keywords is not None]
    return sum(verdict.passed for verdict in found), len(found), sum(by_words) if by_words else None


def _not_asked(repeats: Iterable[Sequence[Request]]) -> list[int]:
    """By turn. A conversation that was cut off from outside, without a failed turn, says nothing about later turns."""
    counts = [0] * len(PRIMARY)
    for some in repeats:
        turns = _turns(some)
        if turns and not turns[-1].ok:
            for place in range(len(turns), len(PRIMARY)):
                counts[place] += 1
    return counts


def _conversation_s(rows: Iterable[Request]) -> float | None:
    """From the first turn's beginning to the last one's end; None unless every turn was answered."""
    turns = _turns(rows)
    if len(turns) < len(PRIMARY) or not all(row.ok for row in turns):
        return None
    return turns[-1].ended_s - turns[0].started_s


def _mean_in_flight(row: Request, sides: Sequence[Request]) -> float | None:
    length = row.ended_s - row.started_s
    if length <= 0:
        return None
    return sum(max(0.0, min(row.ended_s, one.ended_s) - max(row.started_s, one.started_s)) for one in sides) / length


def _held_share(wanted: int, repeats: Iterable[Sequence[Request]]) -> float | None:
    """Of the primary's time, how much had all side tasks in flight; None where there are none."""
    if wanted < 1:
        return None
    held = total = 0.0
    for some in repeats:
        sides = [(row.started_s, row.ended_s) for row in _sides(some)]
        for row in _turns(some):
            total += row.ended_s - row.started_s
            held += _time_with(wanted, sides, (row.started_s, row.ended_s))
    return held / total if total > 0 else None


def _time_with(wanted: int, spans: Iterable[Span], within: Span) -> float:
    """How long at least `wanted` spans lie over each other inside another one."""
    low, high = within
    cut = [(max(low, begin), min(high, end)) for begin, end in spans]
    edges = sorted(edge for begin, end in cut if begin < end for edge in ((begin, 1), (end, -1)))
    held, open_now, since = 0.0, 0, low
    for at, step in edges:
        if open_now >= wanted:
            held += at - since
        open_now += step
        since = at
    return held


def _outcomes(found: Iterable[Verdict], not_asked: int) -> tuple[tuple[str, int], ...]:
    counts = Counter(verdict.outcome for verdict in found)
    named = [(outcome.value, counts[outcome]) for outcome in Outcome if counts[outcome]]
    return (*named, (NOT_ASKED, not_asked)) if not_asked else tuple(named)


def _by_repeat(rows: Iterable[Request]) -> dict[int, list[Request]]:
    found: dict[int, list[Request]] = {}
    for row in rows:
        found.setdefault(row.repeat, []).append(row)
    return found


def _turns(rows: Iterable[Request]) -> list[Request]:
    return sorted((row for row in rows if row.traffic == PRIMARY_TRAFFIC), key=lambda row: row.turn or 0)


def _sides(rows: Iterable[Request]) -> list[Request]:
    return [row for row in rows if row.traffic == SIDE_TRAFFIC]


def _key(row: Request) -> Key:
    return row.level, row.repeat, row.index


def _ttft_ms(row: Request) -> float | None:
    return None if row.first_token_s is None else (row.first_token_s - row.due_s) * 1000


def _seconds(row: Request) -> float:
    return row.ended_s - row.started_s


def _tok_s(row: Request) -> float | None:
    if not row.output_tokens or row.first_token_s is None or row.last_token_s is None:
        return None
    took = row.last_token_s - row.first_token_s
    return row.output_tokens / took if took > 0 else None


def _reasoning_share(row: Request) -> float | None:
    """None where the text was not stored."""
    return None if row.answer is None else spoken(row.answer, row.reasoning).reasoning_share


def _median_of(rows: Iterable[Request], figure: Callable[[Request], float | None]) -> float | None:
    return _median([value for row in rows if row.ok and (value := figure(row)) is not None])


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
