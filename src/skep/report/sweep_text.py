"""What `skep bench` says of a run: the table of its levels, and what is to be said below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import msgspec
from msgspec.structs import replace

from skep.bench.against_preset import FigureComparison, PresetComparison
from skep.bench.compare import loss
from skep.bench.endpoint import Endpoint
from skep.bench.metrics import Comparison, LevelSummary, Promise, Speedup, SweepSummary
from skep.bench.session import SessionProgress
from skep.bench.summary import cost_per_million_tokens
from skep.bench.sweep import SweepPlan
from skep.report import levels
from skep.report.columns import Column, print_records, record_lines
from skep.report.liveview import Line, Page, progress_bar
from skep.report.terminal import note
from skep.stats.percentiles import runs_interval
from skep.stats.versus import Judgement
from skep.store.records import Request
from skep.units import format_seconds, number

# The rank behind a key: in a narrow terminal the highest goes first.
LEVEL_KEYS = (
    "effective_tok_s spread~1 plateau_tok_s~7 task_tok_s~1 contention_pct~2 ttft_p50_ms ttft_p95_ms~5 tpot_p50_ms~4 "
    "engine_tok_s~8 cached_prompt_share~9 counted~6 wall_s~6 failed joules_per_token~3"
)
CLASS_KEYS = (
    "traffic requests ttft_p50_ms ttft_p95_ms~2 tpot_p50_ms~1 total_p95_ms~2 task_tok_s~1 queued_p50_ms~3 failed"
)


def print_summary(
    summary: SweepSummary, *, price: float | None = None, title: str = "C", names: Sequence[str] = ()
) -> None:
    """`title` and `names` of the levels, where they are no concurrencies."""

    def name(level: LevelSummary) -> str:
        shown = names[level.concurrency - 1] if names else str(level.concurrency)
        return f"{shown}{'*' if level.client_limited else ''}"

    def cost(level: LevelSummary) -> float | None:
        joules = level.energy.joules_per_token if level.energy else None
        return None if joules is None or price is None else cost_per_million_tokens(joules, price)

    columns = [replace(one, optional=True) for one in levels.level_columns(LEVEL_KEYS)]
    columns.append(Column("cost", "cost per M", cost, partial(number, digits=2), rank=3, optional=True))
    print_records([Column[LevelSummary]("concurrency", title, name), *columns], summary.levels)
    if summary.classes:
        print_records(levels.level_columns(CLASS_KEYS), summary.classes)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    note(*remarks(summary, names))


def remarks(summary: SweepSummary, names: Sequence[str] = ()) -> list[str]:
    """`names` of the levels, where they are no concurrencies."""
    titles = [names[level.concurrency - 1] for level in summary.levels] if names else []
    found = levels.left_out_sentences(summary.levels, titles)
    if summary.speedups is not None:
        found.extend(_speedup(summary.speedups))
    if summary.promise is not None:
        found.append(_promise(summary.promise))
    if summary.turning is not None and len(summary.levels) > 2 and levels.has_curve(summary.levels):
        found.append(levels.turning_sentence(summary.turning))
    if summary.drift is not None and not summary.drift.contains(1.0):
        found.append(f"warning: {levels.drift_sentence(summary)}")
    for level in summary.levels:
        if level.energy is not None and level.energy.throttled:
            found.append(f"C={level.concurrency}: the GPU was slowed down: {', '.join(level.energy.throttled)}")
        for one in level.clocks:
            client, engine = (levels.clock_figure(one.clock, value) for value in (one.client, one.engine))
            told = f"{one.clock.value} is {client} by the client and {engine} by the engine"
            found.append(f"C={level.concurrency}: {told}: {one.cause}")
    if summary.client_limited:
        late_ms = max((level.late_ms for level in summary.levels if level.late_ms is not None), default=None)
        why = "" if late_ms is None else f"; load began up to {late_ms:,.0f} ms late"
        found.append(f"warning: the client was the limit at some level (marked *{why}); its figures are a lower bound")
    return found


def _speedup(found: Speedup) -> list[str]:
    first = (
        f"one at a time {format_seconds(found.serial_wall_s)}, {found.concurrency} at once "
        f"{format_seconds(found.swarm_wall_s)}: {found.by_wall:.2f}x by wall time, "
        f"{number(found.by_tokens, digits=2)}x by tokens ({found.tokens_serial:,} and {found.tokens_swarm:,})"
    )
    if not found.truncated_serial + found.truncated_swarm:
        return [first]
    told = f"{found.truncated_serial} and {found.truncated_swarm} answers reached the token limit"
    if found.by_wall_whole is None:
        return [first, f"{told}: no task is left without them"]
    whole = f"{found.by_wall_whole:.2f}x by wall time, {number(found.by_tokens_whole, digits=2)}x by tokens"
    return [first, f"{told}; without them {whole}"]


def _promise(found: Promise) -> str:
    if found.highest_met is None:
        return f"{found.limits} is not met, not even by one agent alone"
    failed = f"; not at C={found.lowest_failed}" if found.lowest_failed is not None else "; no level failed"
    if found.safe != found.highest_met:
        return f"{found.limits} is met up to C={found.safe or 'none'}, and again at C={found.highest_met}{failed}"
    return f"{found.limits} is met up to C={found.safe}{failed}"


def shortfalls(plan: SweepPlan, summary: SweepSummary) -> list[str]:
    """Describe what the budget left undone."""
    if plan.runs is not None or plan.searches:
        return []
    measured = {level.concurrency: level for level in summary.levels}
    missing = ", ".join(str(level) for level in plan.concurrency if level not in measured)
    found = [f"the budget ended before C={missing} was measured; use a longer --budget"] if missing else []
    for concurrency, level in measured.items():
        if (known := level.effective_interval) is None:
            found.append(f"C={concurrency} has {levels.runs_text(level)} runs that count: an interval needs three")
        elif known.upper_width > plan.precision:
            found.append(f"C={concurrency} is known only to ± {100 * known.upper_width:.1f} %")
    return found


def headline(plan: SweepPlan, endpoint: Endpoint) -> str:
    load = plan.workload
    if plan.to_saturation:
        what = f"to saturation, C up to {plan.max_concurrency}"
    elif plan.slo is not None:
        what = f"the highest C with {plan.slo}, up to {plan.max_concurrency}"
    else:
        what = f"C={','.join(map(str, plan.concurrency))}"
    often = f"each level until ± {100 * plan.precision:g} %"
    if plan.searches:
        often = "levels as the search needs them"
    elif plan.runs:
        often = f"{plan.runs} run{'s' if plan.runs > 1 else ''} per level"
    budget = f", {format_seconds(plan.budget_s)} at most" if plan.budget_s and not plan.runs else ""
    lengths = f"{load.prompt_tokens} tokens in, " if load.prompt_tokens else ""
    simulated = " (simulated)" if endpoint.simulated else ""
    return (
        f"{endpoint.model}{simulated} at {endpoint.url}: {what}; {load.shape}, {lengths}up to {load.max_tokens} out; "
        f"{often}{budget}; seed {load.seed}"
    )


def failure_reasons(rows: Sequence[Request]) -> str:
    """ "3x http_500 (out of memory), 1x timeout": each kind once, with the first message."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row.error_kind or "", []).append(row.error or "")
    return ", ".join(f"{len(texts)}x {kind} ({texts[0]})" for kind, texts in kinds.items())


def level_lines() -> Callable[[SessionProgress], None]:
    said: set[tuple[int, int]] = set()

    def show(progress: SessionProgress) -> None:
        key = (progress.level, progress.repeat)
        if key not in said:
            said.add(key)
            how_many = f"{progress.total} requests" if progress.total else "for a time"
            note(f"{where(progress)}: {how_many}{left(progress)}")
        elif progress.ended and progress.figures.get(progress.level):
            failed = f", {progress.failed} failed so far" if progress.failed else ""
            note(f"{where(progress)}: {number(progress.figures[progress.level][-1], digits=1)} tok/s{failed}")

    return show


_RUNNING: tuple[Column[tuple[int, Sequence[float]]], ...] = (
    Column("concurrency", "C", lambda row: row[0]),
    Column("runs", "runs", lambda row: len(row[1])),
    Column("effective_tok_s", "eff tok/s", lambda row: fmean(row[1]), partial(number, digits=1)),
    Column("spread", "95 %", lambda row: runs_interval(row[1]), lambda it: f"± {100 * it.upper_width:.1f} %"),
)


def level_frame(progress: SessionProgress, _page: Page) -> list[Line]:
    table = record_lines(_RUNNING, sorted(progress.figures.items())) if progress.figures else []
    return [[(line, "")] for line in (*table, now_line(progress))]


def now_line(progress: SessionProgress) -> str:
    total = f"/{progress.total}" if progress.total else ""
    speed = f" · {number(progress.tok_s, digits=1)} tok/s now" if progress.tok_s else ""
    return (
        f"{where(progress)}  {progress_bar(progress.done, progress.total)}  {progress.done}{total} requests{speed}"
        f" · {progress.in_flight} in flight · {progress.failed} failed{left(progress)}"
    )


def where(progress: SessionProgress) -> str:
    if progress.level == 0:
        return "warming up"
    return f"{progress.label or f'C={progress.level}'} run {progress.repeat + 1}"


def left(progress: SessionProgress) -> str:
    if progress.left_s is None or not progress.level:
        return ""
    runs = round(progress.runs_left)
    plural = "s" if runs > 1 else ""
    return f" · about {format_seconds(progress.left_s)} left, {runs} more run{plural} at most" if runs else ""


SHOWN = {"effective tok/s": "tok/s", "TTFT p50": "TTFT p50", "TTFT p95": "TTFT p95", "TPOT p50": "TPOT p50"}
_RANKS = {"TTFT p50": 1, "TPOT p50": 2, "TTFT p95": 3}  # in a narrow terminal the last goes first
MARKS = {Judgement.BETTER: "better", Judgement.WORSE: "worse", Judgement.SAME: "=", Judgement.UNKNOWN: "?"}


class CompareResult(msgspec.Struct, frozen=True):
    """A comparison with its verdict. `worse`: the regressions, beyond `allowed`."""

    found: Sequence[Comparison]
    worse: Sequence[Comparison]
    allowed: float

    @property
    def verdict(self) -> str:
        if self.worse:
            return "regression"
        judged = any(one.judgement is not Judgement.UNKNOWN for one in self.found)
        return "no regression" if judged else "not comparable"

    @property
    def words(self) -> str:
        beyond = f"{100 * self.allowed:g} %"
        match self.verdict:
            case "regression":
                told = [f"{_name(one)} ({100 * loss(one):.1f} % worse)" for one in self.worse[:3]]
                more = [f"and {len(self.worse) - 3} more"] if len(self.worse) > 3 else []
                return f"REGRESSION: B is worse than A by more than {beyond}: {', '.join([*told, *more])}"
            case "no regression":
                return f"no regression beyond {beyond} is shown"
            case _:
                return "no verdict: no figure of the two runs can be compared"

    def remarks(self) -> list[str]:
        """Return why a single `worse` is no regression, what the table has no room for, and what was not compared."""
        counted = {(one.concurrency, one.metric) for one in self.worse}
        found = []
        for one in self.found:
            if one.judgement in (Judgement.BETTER, Judgement.WORSE) and one.metric not in SHOWN:
                found.append(f"{_name(one)}, B / A: {_ratio_cell(one)}")
            if one.judgement is Judgement.WORSE and (one.concurrency, one.metric) not in counted:
                found.append(self._no_regression(one))
        for why in dict.fromkeys(one.why for one in self.found if one.judgement is Judgement.UNKNOWN and one.why):
            levels = dict.fromkeys(f"C={one.concurrency}" for one in self.found if one.why == why)
            found.append(f"{' and '.join(levels)} not compared: {why}")
        return found

    def _no_regression(self, one: Comparison) -> str:
        size, beyond = f"{100 * loss(one):.1f} %", f"{100 * self.allowed:g} %"
        if loss(one) <= self.allowed:
            return f"{_name(one)} is {size} worse, within the threshold of {beyond}"
        return (
            f"{_name(one)} alone is {size} worse, which is no regression: of unchanged figures, one in "
            f"twenty looks better or worse by chance, so it must hold at 95 % over all {len(self.found)} figures; "
            "more runs decide"
        )


def group_by_level(found: Sequence[Comparison]) -> list[dict[str, Comparison]]:
    levels: dict[int, dict[str, Comparison]] = {}
    for one in found:
        levels.setdefault(one.concurrency, {})[one.metric] = one
    return list(levels.values())


def comparison_columns() -> list[Column[dict[str, Comparison]]]:
    def ratio(metric: str, title: str) -> Column[dict[str, Comparison]]:
        rank = _RANKS.get(metric, 0)
        return Column(metric, f"{title} B/A", lambda of: _ratio_cell(of[metric]), rank=rank, right=False)

    speed = "effective tok/s"
    return [
        Column("concurrency", "C", lambda of: of[speed].concurrency),
        Column("a", "A tok/s", lambda of: of[speed].a),
        Column("b", "B tok/s", lambda of: of[speed].b),
        *(ratio(metric, title) for metric, title in SHOWN.items()),
    ]


def _ratio_cell(one: Comparison) -> str:
    if one.ratio is None:
        return MARKS[one.judgement]
    return f"{one.ratio.estimate:.2f} ({one.ratio.low:.2f}..{one.ratio.high:.2f}) {MARKS[one.judgement]}"


def _name(one: Comparison) -> str:
    return f"{one.metric} at C={one.concurrency}"


def _share(row: FigureComparison) -> str | None:
    share = None if row.ratio is None else f"{100 * row.ratio:.0f} %"
    return share if share is None or row.fair else f"({share})"


PRESET_COLUMNS: tuple[Column[FigureComparison], ...] = (
    Column("figure", "figure", lambda row: row.row),
    Column("concurrency", "C", lambda row: row.published.concurrency),
    Column("published", "published", lambda row: row.published.tok_s, partial(number, digits=1)),
    Column("metric", "metric", lambda row: row.published.metric, right=False, rank=1),
    Column("clock", "clock", lambda row: row.published.clock or "not said", right=False, rank=2),
    Column("measured", "measured", lambda row: row.measured, partial(number, digits=1)),
    Column("interval", "95 %", lambda row: levels.range_text(row.interval, row.runs), right=False, rank=1),
    Column("ratio", "of it", _share),
)


def print_against(verdict: PresetComparison) -> None:
    print_records(PRESET_COLUMNS, verdict.rows)
    for row in verdict.rows:
        if row.why is not None:
            what = "not compared" if row.ratio is None else "not quite the same"
            note(f"figure {row.row} ({row.figure}): {what}: {row.why}")
    note(str(verdict))
