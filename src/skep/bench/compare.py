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
from skep.bench.stored_run import MIXED, OF_A_TUNING, QUALITY, TIMED
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
FEWEST = 3
LENGTHS = ("size", "prompt_tokens", "max_tokens", "fixed_output", "classes", "trace")
# What may differ between repeats of the same work: chance, patience and how the client is built;
# or is of old stores.
_NO_MATTER = frozenset(
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
    name: str
    higher_is_better: bool
    of_rows: Figure
    of_level: Callable[[LevelSummary], float | None]


class ComparedRun(msgspec.Struct, frozen=True):
    summary: SweepSummary
    rows: Sequence[Request]

    def level(self, concurrency: int) -> LevelSummary | None:
        return next(
            (level for level in self.summary.levels if level.concurrency == concurrency), None
        )

    def repeats(self, concurrency: int) -> dict[int, list[Request]]:
        level = self.level(concurrency)
        if level is not None:
            kept = {repeat.repeat for repeat in level.counted}
        else:
            kept = set()
        found = by_repeat(row for row in self.rows if row.level == concurrency)
        return {number: rows for number, rows in found.items() if number in kept}


def _latency(
    name: str, values: Callable[[Sequence[Request]], list[float]], summary: str, percent: int
) -> ComparedMetric:
    """A percentile of times: of a run's requests, and as the summary of a level has it."""

    def of_rows(rows: Sequence[Request], _: int) -> float | None:
        if found := values(rows):
            return percentile(found, percent)
        return None

    return ComparedMetric(
        name, False, of_rows, lambda level: getattr(getattr(level, summary), f"p{percent}", None)
    )


METRICS: tuple[ComparedMetric, ...] = (
    ComparedMetric(
        "effective tok/s",
        True,
        lambda rows, level: repeat_of(0, rows, level).effective_tok_s or None,
        lambda level: level.effective_tok_s,
    ),
    ComparedMetric(
        "answered",
        True,
        lambda rows, _: sum(row.ok for row in rows) / len(rows) if rows else None,
        lambda level: 1 - level.failed / level.requests if level.requests else None,
    ),
    ComparedMetric(
        "task tok/s", True, lambda rows, _: task_tok_s(rows), lambda level: level.task_tok_s
    ),
    _latency("TTFT p50", ttft_values, "ttft_ms", 50),
    _latency("TTFT p95", ttft_values, "ttft_ms", 95),
    _latency("TPOT p50", tpot_values, "tpot_ms", 50),
)


def check_kinds(a: StoredRun, b: StoredRun) -> None:
    """Levels of an open load, a mix or a trace are no concurrencies: they stand for what the run
    says.
    """
    for run in (a, b):
        if run.kind == QUALITY:
            hint = f"`skep runs report {run.id}` shows what was judged"
            raise UserError(f"`{run.id}` ({run.kind}) measures answers, not speed", hint=hint)
    if a.kind != b.kind and {a.kind, b.kind} & {*TIMED, MIXED}:
        raise UserError(
            f"`{a.id}` is a {a.kind} run, `{b.id}` a {b.kind} run", hint="compare runs of one kind"
        )
    if a.kind == "open" and a.config.get("rates") != b.config.get("rates"):
        rates = [", ".join(f"{rate:g}" for rate in run.config.get("rates", ())) for run in (a, b)]
        raise UserError(
            f"the rates differ: {rates[0]} and {rates[1]}",
            hint="measure both with the same --rate",
        )


def compare(
    a: ComparedRun, b: ComparedRun, *, paired: bool = False, confidence: float = 0.95
) -> list[Comparison]:
    """Levels of both, in order of C.

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
    """Worse by more than the threshold (0.05 is 5 %), with 95 % certainty over all figures
    together (Bonferroni).
    """
    figures = len(compare(a, b, paired=paired))
    return worse_beyond(
        threshold, compare(a, b, paired=paired, confidence=strict_confidence(figures))
    )


def strict_confidence(figures: int) -> float:
    """Return the confidence of one of so many figures at which all of them together have 95 %
    (Bonferroni).
    """
    return 1 - 0.05 / max(1, figures)


def worse_beyond(threshold: float, compared: Sequence[Comparison]) -> list[Comparison]:
    return [one for one in compared if one.judgement is Judgement.WORSE and loss(one) > threshold]


def loss(one: Comparison) -> float:
    """Return how much worse B is, as a share of A."""
    if one.ratio is None:
        return 1.0  # not one answer
    if one.higher_is_better:
        return 1 - one.ratio.estimate
    return one.ratio.estimate - 1


def _compared(
    metric: ComparedMetric,
    level: int,
    a: ComparedRun,
    b: ComparedRun,
    *,
    paired: bool,
    confidence: float,
) -> Comparison:
    of_a = _values(metric, level, a)
    of_b = _values(metric, level, b)
    if paired:
        of_a, of_b = (
            {key: of[key] for key in sorted(of_a.keys() & of_b.keys())} for of in (of_a, of_b)
        )
    levels = [side.level(level) for side in (a, b)]
    shown_a, shown_b = (None if level is None else metric.of_level(level) for level in levels)
    limited = [
        name
        for name, one in zip("AB", levels, strict=True)
        if one is not None and one.client_limited
    ]
    if limited:
        why = f"the client was the limit in {' and '.join(limited)}"
        return Comparison(
            level,
            metric.name,
            shown_a,
            shown_b,
            None,
            Judgement.UNKNOWN,
            why,
            metric.higher_is_better,
        )
    empty = _brought_nothing(metric, level, a, b, shown=(shown_a, shown_b))
    if empty is not None:
        return empty
    of_both = (tuple(of_a.values()), tuple(of_b.values()))
    up = metric.higher_is_better
    ratio, judgement = judge(*of_both, higher_is_better=up, paired=paired, confidence=confidence)
    why = "one run of a level shows no spread; measure two or more that count"
    reason = why if judgement is Judgement.UNKNOWN else ""
    return Comparison(
        level, metric.name, shown_a, shown_b, ratio, judgement, reason, metric.higher_is_better
    )


def _brought_nothing(
    metric: ComparedMetric,
    level: int,
    a: ComparedRun,
    b: ComparedRun,
    *,
    shown: tuple[float | None, float | None],
) -> Comparison | None:
    """A run in which not one request was answered has no speed to compare, and must not be
    forgotten for it.
    """
    runs = [
        [any(row.ok for row in rows) for rows in side.repeats(level).values()] for side in (a, b)
    ]
    failed = [run.count(False) for run in runs]
    if not any(failed):
        return None
    told = " and ".join(
        f"{count} of {len(some)} runs of {name}"
        for name, count, some in zip("AB", failed, runs, strict=True)
        if count
    )
    judgement = Judgement.UNKNOWN
    if metric.name == METRICS[0].name and all(runs) and (failed[0] == 0 or failed[1] == 0):
        judgement = Judgement.WORSE if failed[1] else Judgement.BETTER
    reason = f"{told} got no answer at all"
    return Comparison(level, metric.name, *shown, None, judgement, reason, metric.higher_is_better)


def _values(metric: ComparedMetric, level: int, side: ComparedRun) -> Mapping[int, float]:
    found = {number: metric.of_rows(rows, level) for number, rows in side.repeats(level).items()}
    return {number: value for number, value in found.items() if value is not None and value > 0}


class ABResult(msgspec.Struct, frozen=True):
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
    """Two stored runs of the kind `ab`.

    Ends when every level's ratio is known to the plan's precision, or in time.
    """
    plan = replace(plan, kind="ab")
    async with AsyncExitStack() as stack:
        sides: list[Sweep] = []
        for name, endpoint, maker in zip("AB", endpoints, makers, strict=True):
            config = {
                **msgspec.to_builtins(plan),
                "side": name,
                "against": endpoints[name == "A"].url,
            }
            identity = Identity("ab", run_fingerprint(plan, endpoint, host), config)
            recording = await stack.enter_async_context(Recording(store, endpoint, host, identity))
            sweep = Sweep(plan, endpoint, recording, maker, partial(on_progress, name))
            stack.push_async_callback(sweep.session.driver.close)
            sides.append(sweep)
        for sweep in sides:
            await sweep.warm_up()
        await _take_turns(plan, sides[0], sides[1])
    a, b = (ComparedRun(sweep.session.summary(), sweep.recording.rows) for sweep in sides)
    return ABResult(a, b, compare(a, b, paired=True))


async def _take_turns(plan: SweepPlan, a: Sweep, b: Sweep) -> None:
    def is_known(pairs: list[tuple[float, float]]) -> bool:
        if len(pairs) < FEWEST or any(not low for pair in pairs for low in pair):
            return False
        found, _ = judge(*zip(*pairs, strict=True), higher_is_better=True, paired=True)
        return found is not None and found.half_width <= plan.precision

    began = time.monotonic()
    ratios: dict[int, list[tuple[float, float]]] = {level: [] for level in plan.concurrency}
    for number in range(plan.runs or plan.most_runs):
        unsure = [
            level
            for level in plan.concurrency
            if plan.runs is not None or not is_known(ratios[level])
        ]
        for place, level in enumerate(unsure):
            late = plan.budget_s is not None and time.monotonic() - began > plan.budget_s
            if plan.runs is None and number >= FEWEST and late:
                return
            speed: dict[Sweep, float] = {}
            for side in (a, b) if (number + place) % 2 == 0 else (b, a):
                speed[side] = repeat_of(0, await side.run_level(level), None).effective_tok_s
            ratios[level].append((speed[a], speed[b]))


def chosen_runs(store: Store, a: str | None, b: str | None) -> tuple[str, str]:
    """Fill in missing names: the last run of the same kind, or the one before it."""
    if a is not None and b is not None:
        return a, b
    whole = [run for run in store.runs() if run.state is RunState.DONE]
    measured = [run for run in whole if run.kind not in (QUALITY, *OF_A_TUNING)]
    if not measured:
        raise UserError("there are no runs to compare", hint="`skep bench sweep` makes one")
    first = measured[0] if a is None else store.run(a)
    others = [run for run in measured if run.kind == first.kind and run.id != first.id]
    if not others:
        what = f"there is no other {first.kind} run to compare `{first.id}` with"
        raise UserError(what, hint="measure once more, or name both runs: `skep runs` lists them")
    older, newer = sorted((first, others[0]), key=lambda run: run.created_at)
    return older.id, newer.id


def check_lengths(a: StoredRun, b: StoredRun) -> None:
    """Longer prompts or answers are other work: their speeds say nothing about each other."""
    of_a = _settings(a)
    of_b = _settings(b)
    lengths = [key for key in LENGTHS if key in of_a and key in of_b]
    if of_a.get("shape") in OWN_LENGTHS or of_b.get("shape") in OWN_LENGTHS:
        lengths.append("shape")
    differing = {
        key: (of_a.get(key), of_b.get(key)) for key in lengths if of_a.get(key) != of_b.get(key)
    }
    if differing:
        told = ", ".join(
            f"{key} {_value_words(one)} and {_value_words(two)}"
            for key, (one, two) in differing.items()
        )
        hint = "measure both with the same lengths, or add --anyway to go on"
        raise UserError(f"the lengths differ: {told}", hint=hint)


def differing(runs: Sequence[StoredRun]) -> dict[str, list[str]]:
    """Return the settings in words, dotted where they are nested, that are not the same in all
    runs.

    Empty where fingerprints are equal: these mean the same work on the same machine.
    """
    if len({run.fingerprint for run in runs}) < 2:
        return {}
    told = [
        {**run.config, "model": run.model, "engine": run.engine, "host": run.host} for run in runs
    ]
    flat = [_flat(one) for one in told]
    keys = dict.fromkeys(
        key for one in flat for key in one if key.rpartition(".")[2] not in _NO_MATTER
    )
    found = {key: [one.get(key, UNKNOWN) for one in flat] for key in keys}
    return {
        key: [shortened(value, 60) for value in values]
        for key, values in found.items()
        if len(set(values)) > 1
    }


def _flat(facts: Mapping[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            if isinstance(value, list | tuple):
                words = ", ".join(map(str, value))
            else:
                words = str(value)
            found[f"{before}{key}"] = UNKNOWN if value is None else words
    return found


def _settings(run: StoredRun) -> dict[str, Any]:
    """Return the run's configuration with what it says of its workload."""
    inner = run.config.get("workload")
    if isinstance(inner, dict):
        return {**run.config, **inner}
    return {**run.config}


def _value_words(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        if value is None:
            return "not set"
        return "on" if value else "off"
    if isinstance(value, int | float | str):
        return str(value)
    return "its own list"
