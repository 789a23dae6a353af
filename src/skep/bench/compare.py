"""Two runs side by side, level by level: better, worse or not distinguishable.

The sample is the runs of a level.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.metrics import (
    Comparison,
    LevelSummary,
    SweepSummary,
    by_repeat,
    repeat_of,
    task_tok_s,
    tpot_values,
    ttft_values,
)
from skep.bench.session import Identity, Recording, SessionProgress
from skep.bench.stored_run import AGENTS, MIXED, OF_A_TUNING, QUALITY, TIMED_KINDS
from skep.bench.sweep import Sweep, SweepPlan, run_fingerprint
from skep.bench.tasks import TaskMaker
from skep.catalog.gpus import HostFacts
from skep.errors import UserError
from skep.stats.percentiles import percentile
from skep.stats.versus import Judgement, judge
from skep.store.database import Store
from skep.store.records import Request, RunState, StoredRun
from skep.units import UNKNOWN, shortened

Figure = Callable[[Sequence[Request], int], float | None]
FEWEST_PAIRS = 3
ONE_RUN = "one run of a level shows no spread; measure two or more that count"
LENGTHS = ("size", "prompt_tokens", "max_tokens", "fixed_output", "classes", "trace")
# Settings that may differ between repeats of the same work: chance, timeouts, how the client is
# built, and settings of old stores.
_IRRELEVANT = frozenset(
    {
        "seed",
        "chars_per_token",
        "overhead_tokens",
        "budget_s",
        "timeout_s",
        "keep_text",
        "processes",
        "max_concurrency",
        "to_saturation",
        "memory_available_bytes",
        "open_files_soft",
        "open_files_hard",
    }
)
OWN_LENGTHS = ("prefill", "shared-prefix")  # shapes whose prompts are longer than others'


class ComparedMetric(msgspec.Struct, frozen=True):
    """A figure that is compared: of one run's rows, and as the summary of a level has it."""

    name: str
    higher_is_better: bool
    of_rows: Figure
    of_level: Callable[[LevelSummary], float | None]


class ComparedRun(msgspec.Struct, frozen=True):
    """A run with its rows."""

    summary: SweepSummary
    rows: Sequence[Request]

    def level(self, concurrency: int) -> LevelSummary | None:
        return next(
            (level for level in self.summary.levels if level.concurrency == concurrency), None
        )

    def repeats(self, concurrency: int) -> dict[int, list[Request]]:
        """Return the rows of each run of a level that counts, by its number."""
        level = self.level(concurrency)
        if level is None:
            return {}
        counted_runs = {repeat.repeat for repeat in level.counted}
        rows_by_run = by_repeat(row for row in self.rows if row.level == concurrency)
        return {number: rows for number, rows in rows_by_run.items() if number in counted_runs}


def _latency(
    name: str, values: Callable[[Sequence[Request]], list[float]], summary: str, percent: int
) -> ComparedMetric:
    """Return a metric that is a percentile of times. `summary`: the field of a level with it."""

    def of_rows(rows: Sequence[Request], _: int) -> float | None:
        if times := values(rows):
            return percentile(times, percent)
        return None

    def of_level(level: LevelSummary) -> float | None:
        return getattr(getattr(level, summary), f"p{percent}", None)

    return ComparedMetric(name, False, of_rows, of_level)


def _effective_tok_s(rows: Sequence[Request], concurrency: int) -> float | None:
    return repeat_of(0, rows, concurrency).effective_tok_s or None


def _answered_share(rows: Sequence[Request], _: int) -> float | None:
    if not rows:
        return None
    return sum(row.ok for row in rows) / len(rows)


def _answered_share_of_level(level: LevelSummary) -> float | None:
    if not level.requests:
        return None
    return 1 - level.failed / level.requests


METRICS: tuple[ComparedMetric, ...] = (
    ComparedMetric("effective tok/s", True, _effective_tok_s, lambda level: level.effective_tok_s),
    ComparedMetric("answered", True, _answered_share, _answered_share_of_level),
    ComparedMetric(
        "task tok/s", True, lambda rows, _: task_tok_s(rows), lambda level: level.task_tok_s
    ),
    _latency("TTFT p50", ttft_values, "ttft_ms", 50),
    _latency("TTFT p95", ttft_values, "ttft_ms", 95),
    _latency("TPOT p50", tpot_values, "tpot_ms", 50),
)


def check_kinds(a: StoredRun, b: StoredRun) -> None:
    """Raise UserError where two runs cannot be compared level by level.

    Levels of an open load, a mix or a trace are no concurrencies: each kind has its own meaning.
    """
    for run in (a, b):
        if run.kind == QUALITY:
            hint = f"`skep runs report {run.id}` shows what was judged"
            raise UserError(f"`{run.id}` ({run.kind}) measures answers, not speed", hint=hint)
    if a.kind != b.kind and {a.kind, b.kind} & {*TIMED_KINDS, MIXED, AGENTS}:
        raise UserError(
            f"`{a.id}` is a {a.kind} run, `{b.id}` a {b.kind} run", hint="compare runs of one kind"
        )
    if a.kind == "open" and a.config.get("rates") != b.config.get("rates"):
        rates_a, rates_b = (
            ", ".join(f"{rate:g}" for rate in run.config.get("rates", ())) for run in (a, b)
        )
        raise UserError(
            f"the rates differ: {rates_a} and {rates_b}",
            hint="measure both with the same --rate",
        )


def compare(
    a: ComparedRun, b: ComparedRun, *, paired: bool = False, confidence: float = 0.95
) -> list[Comparison]:
    """Compare all figures of the levels that both have, in order of C.

    `paired`: their runs were made in turns, so that each has its partner.
    """
    levels = [
        level.concurrency for level in a.summary.levels if b.level(level.concurrency) is not None
    ]
    return [
        _compared(metric, level, a, b, paired=paired, confidence=confidence)
        for level in levels
        for metric in METRICS
    ]


def regressions(
    a: ComparedRun, b: ComparedRun, threshold: float, *, paired: bool = False
) -> list[Comparison]:
    """Return the figures that are worse by more than the threshold (0.05 is 5 %), with 95 %
    certainty over all figures together (Bonferroni).
    """
    figures = len(compare(a, b, paired=paired))
    return worse_beyond(
        threshold, compare(a, b, paired=paired, confidence=strict_confidence(figures))
    )


def strict_confidence(figures: int) -> float:
    """Return the confidence that each of so many figures needs for all together to have 95 %
    (Bonferroni).
    """
    return 1 - 0.05 / max(1, figures)


def worse_beyond(threshold: float, compared: Sequence[Comparison]) -> list[Comparison]:
    return [
        comparison
        for comparison in compared
        if comparison.judgement is Judgement.WORSE and loss(comparison) > threshold
    ]


def loss(comparison: Comparison) -> float:
    """Return how much worse B is, as a share of A."""
    if comparison.ratio is None:
        return 1.0  # not one answer
    if comparison.higher_is_better:
        return 1 - comparison.ratio.estimate
    return comparison.ratio.estimate - 1


def _compared(
    metric: ComparedMetric,
    level: int,
    a: ComparedRun,
    b: ComparedRun,
    *,
    paired: bool,
    confidence: float,
) -> Comparison:
    level_a = a.level(level)
    level_b = b.level(level)
    unjudged = Comparison(
        concurrency=level,
        metric=metric.name,
        a=None if level_a is None else metric.of_level(level_a),
        b=None if level_b is None else metric.of_level(level_b),
        ratio=None,
        judgement=Judgement.UNKNOWN,
        higher_is_better=metric.higher_is_better,
    )
    limited = [
        name
        for name, summary in (("A", level_a), ("B", level_b))
        if summary is not None and summary.client_limited
    ]
    if limited:
        return replace(unjudged, why=f"the client was the limit in {' and '.join(limited)}")
    unanswered = _without_answers(unjudged, a, b)
    if unanswered is not None:
        return unanswered
    values_a = _values(metric, level, a)
    values_b = _values(metric, level, b)
    if paired:
        shared = sorted(values_a.keys() & values_b.keys())
        values_a = {run: values_a[run] for run in shared}
        values_b = {run: values_b[run] for run in shared}
    ratio, judgement = judge(
        tuple(values_a.values()),
        tuple(values_b.values()),
        higher_is_better=metric.higher_is_better,
        paired=paired,
        confidence=confidence,
    )
    if judgement is Judgement.UNKNOWN:
        return replace(unjudged, ratio=ratio, why=ONE_RUN)
    return replace(unjudged, ratio=ratio, judgement=judgement)


def _without_answers(unjudged: Comparison, a: ComparedRun, b: ComparedRun) -> Comparison | None:
    """Judge a level of which a run got no answer at all; None: every run got some.

    Such a run has no speed to compare, and must not be left out for it.
    """
    answered_a = _runs_with_answers(a, unjudged.concurrency)
    answered_b = _runs_with_answers(b, unjudged.concurrency)
    failed_a = answered_a.count(False)
    failed_b = answered_b.count(False)
    if not failed_a and not failed_b:
        return None
    failures = " and ".join(
        f"{failed} of {len(answered)} runs of {name}"
        for name, failed, answered in (("A", failed_a, answered_a), ("B", failed_b, answered_b))
        if failed
    )
    judgement = Judgement.UNKNOWN
    both_ran = answered_a and answered_b
    only_one_failed = not failed_a or not failed_b
    if unjudged.metric == METRICS[0].name and both_ran and only_one_failed:
        judgement = Judgement.WORSE if failed_b else Judgement.BETTER
    return replace(unjudged, judgement=judgement, why=f"{failures} got no answer at all")


def _runs_with_answers(side: ComparedRun, level: int) -> list[bool]:
    """Return for each run of a level whether a request of it was answered."""
    return [any(row.ok for row in rows) for rows in side.repeats(level).values()]


def _values(metric: ComparedMetric, level: int, side: ComparedRun) -> Mapping[int, float]:
    figures = {number: metric.of_rows(rows, level) for number, rows in side.repeats(level).items()}
    return {number: value for number, value in figures.items() if value is not None and value > 0}


class ABResult(msgspec.Struct, frozen=True):
    """Two endpoints that were measured in turns, and how they compare."""

    a: ComparedRun
    b: ComparedRun
    comparisons: list[Comparison]


async def run_ab(
    plan: SweepPlan,
    endpoints: tuple[Endpoint, Endpoint],
    store: Store,
    host: HostFacts,
    makers: tuple[TaskMaker, TaskMaker],
    on_progress: Callable[[str, SessionProgress], None] = lambda _, __: None,
) -> ABResult:
    """Measure two endpoints in turns, as two stored runs of the kind `ab`.

    Ends when every level's ratio is known to the plan's precision, or when the budget is spent.
    """
    plan = replace(plan, kind="ab")
    endpoint_a, endpoint_b = endpoints
    maker_a, maker_b = makers
    async with AsyncExitStack() as stack:

        async def open_side(
            name: str, endpoint: Endpoint, against: Endpoint, maker: TaskMaker
        ) -> Sweep:
            config = {**msgspec.to_builtins(plan), "side": name, "against": against.url}
            identity = Identity("ab", run_fingerprint(plan, endpoint, host), config)
            recording = await stack.enter_async_context(Recording(store, endpoint, host, identity))
            sweep = Sweep(plan, endpoint, recording, maker, partial(on_progress, name))
            stack.push_async_callback(sweep.session.driver.close)
            return sweep

        a = await open_side("A", endpoint_a, endpoint_b, maker_a)
        b = await open_side("B", endpoint_b, endpoint_a, maker_b)
        await a.warm_up()
        await b.warm_up()
        await _take_turns(plan, a, b)
    run_a = ComparedRun(a.session.summary(), a.recording.rows)
    run_b = ComparedRun(b.session.summary(), b.recording.rows)
    return ABResult(run_a, run_b, compare(run_a, run_b, paired=True))


SpeedPair = tuple[float, float]  # of A and of B, one measured right after the other


async def _take_turns(plan: SweepPlan, a: Sweep, b: Sweep) -> None:
    """Run the levels round by round, each on both sides; which side begins changes every time."""
    began = time.monotonic()
    pairs: dict[int, list[SpeedPair]] = {level: [] for level in plan.concurrency}
    for round_ in range(plan.runs or plan.most_runs):
        for place, level in enumerate(_levels_to_run(plan, pairs)):
            late = plan.budget_s is not None and time.monotonic() - began > plan.budget_s
            if plan.runs is None and round_ >= FEWEST_PAIRS and late:
                return
            if (round_ + place) % 2 == 0:
                speed_a = await _speed_of_run(a, level)
                speed_b = await _speed_of_run(b, level)
            else:
                speed_b = await _speed_of_run(b, level)
                speed_a = await _speed_of_run(a, level)
            pairs[level].append((speed_a, speed_b))


def _levels_to_run(plan: SweepPlan, pairs: Mapping[int, Sequence[SpeedPair]]) -> list[int]:
    """Return the levels whose ratio is not known well enough; all, if the runs are given."""
    if plan.runs is not None:
        return list(plan.concurrency)
    return [level for level in plan.concurrency if not _is_known(pairs[level], plan.precision)]


def _is_known(pairs: Sequence[SpeedPair], precision: float) -> bool:
    if len(pairs) < FEWEST_PAIRS or not all(speed for pair in pairs for speed in pair):
        return False
    speeds_a, speeds_b = zip(*pairs, strict=True)
    ratio, _ = judge(speeds_a, speeds_b, higher_is_better=True, paired=True)
    return ratio is not None and ratio.half_width <= precision


async def _speed_of_run(side: Sweep, level: int) -> float:
    return repeat_of(0, await side.run_level(level), None).effective_tok_s


def chosen_runs(store: Store, a: str | None, b: str | None) -> tuple[str, str]:
    """Fill in missing names: the last run of the same kind, or the one before it."""
    if a is not None and b is not None:
        return a, b
    done = [run for run in store.runs() if run.state is RunState.DONE]
    left_out: tuple[str, ...] = (QUALITY, *OF_A_TUNING)
    if a is not None and store.run(a).kind == QUALITY:
        left_out = OF_A_TUNING
    measured = [run for run in done if run.kind not in left_out]
    if not measured:
        raise UserError("there are no runs to compare", hint="`skep bench sweep` makes one")
    first = measured[0] if a is None else store.run(a)
    others = [run for run in measured if run.kind == first.kind and run.id != first.id]
    if not others:
        message = f"there is no other {first.kind} run to compare `{first.id}` with"
        raise UserError(
            message, hint="measure once more, or name both runs: `skep runs` lists them"
        )
    older, newer = sorted((first, others[0]), key=lambda run: run.created_at)
    return older.id, newer.id


def check_lengths(a: StoredRun, b: StoredRun) -> None:
    """Raise UserError where prompts or answers differ in length: that is other work, and the
    speeds say nothing about each other.
    """
    settings_a = _settings(a)
    settings_b = _settings(b)
    lengths = [key for key in LENGTHS if key in settings_a and key in settings_b]
    if settings_a.get("shape") in OWN_LENGTHS or settings_b.get("shape") in OWN_LENGTHS:
        lengths.append("shape")
    differing = [key for key in lengths if settings_a.get(key) != settings_b.get(key)]
    if differing:
        differences = ", ".join(
            f"{key} {_value_words(settings_a.get(key))} and {_value_words(settings_b.get(key))}"
            for key in differing
        )
        hint = "measure both with the same lengths, or add --anyway to go on"
        raise UserError(f"the lengths differ: {differences}", hint=hint)


def differing(runs: Sequence[StoredRun]) -> dict[str, list[str]]:
    """Return the values, in words and by run, of the settings that are not the same in all runs.

    A nested setting has a dotted name. Empty where fingerprints are equal: these mean the same
    work on the same machine.
    """
    if len({run.fingerprint for run in runs}) < 2:
        return {}
    facts = [
        {**run.config, "model": run.model, "engine": run.engine, "host": run.host} for run in runs
    ]
    flat = [_flat(run_facts) for run_facts in facts]
    keys = dict.fromkeys(
        key for settings in flat for key in settings if key.rpartition(".")[2] not in _IRRELEVANT
    )
    values_by_key = {key: [settings.get(key, UNKNOWN) for settings in flat] for key in keys}
    return {
        key: [shortened(value, 60) for value in values]
        for key, values in values_by_key.items()
        if len(set(values)) > 1
    }


def _flat(facts: Mapping[str, Any], before: str = "") -> dict[str, str]:
    settings: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            settings |= _flat(value, f"{before}{key}.")
        else:
            settings[f"{before}{key}"] = _setting_words(value)
    return settings


def _setting_words(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def _settings(run: StoredRun) -> dict[str, Any]:
    """Return the run's configuration with what it says of its workload."""
    inner = run.config.get("workload")
    if isinstance(inner, dict):
        return {**run.config, **inner}
    return {**run.config}


def _value_words(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float | str):
        return str(value)
    return "its own list"
