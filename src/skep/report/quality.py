"""The report of a quality test under load: what could not be shown is never called "no loss"."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
from markupsafe import Markup
from msgspec import to_builtins

from skep.paths import user_paths
from skep.quality.banks import Bank
from skep.quality.kv_type import kv_words
from skep.quality.trial import TrialPlan
from skep.quality.trial_figures import (
    ArmFigures,
    QualitySummary,
    claim_words,
    conclusion,
    notes,
    points,
)
from skep.report import charts
from skep.report.charts import Spec
from skep.report.columns import Column, as_count, as_percent, at, chosen, print_records
from skep.report.page import html_table
from skep.report.sweep import run_report
from skep.report.sweep_text import counted
from skep.report.terminal import note
from skep.report.tool_sizes import bounds_words, print_sizes, signed_points, sizes_table
from skep.stats.noninferiority import Claim, PairedDifference
from skep.store.database import open_store
from skep.store.records import StoredRun
from skep.store.verdicts import VerdictOutcome
from skep.units import known, number, percent, seconds

_MOST_NAMED = 5  # levels whose claims fit beside their points


def difference_chart(summary: QualitySummary) -> Spec | None:
    """Draw the differences in points, by level, with one-sided bounds, the line at -delta, and C =
    1 against itself as a grey band.
    """
    rows: list[Spec] = []
    levels = [level for level in summary.levels if known(level.difference.difference)]
    for level in levels:
        difference = level.difference
        bounds = {
            "d": 100 * difference.difference,
            "low": 100 * difference.low,
            "high": 100 * difference.high,
        }
        words = {"claim": level.claim.value, "label": signed_points(difference.difference)}
        rows.append({"c": str(level.concurrency), **bounds, **words})
    if not rows:
        return None
    delta = -100 * summary.delta
    span = summary.noise
    noise: list[Spec] = [{"d": 100 * span.low, "high": 100 * span.high}] if span else []
    edge = {"d": delta, "label": f"−{100 * summary.delta:g} points: the loss that matters"}
    ends = [
        value for row in (*rows, *noise) for value in (row["d"], row["high"], row.get("low", 0.0))
    ]
    low = min([0.0, delta, *ends])
    high = max([0.0, *ends])
    room = high - low or 1.0
    domain = [low - 0.12 * room, high + 0.2 * room]
    named = rows if len(rows) <= _MOST_NAMED else []
    data = {"levels": rows, "named": named, "noise": noise, "edge": [edge], "zero": [{"d": 0.0}]}
    return {
        **charts.drawing("difference", data, agents=charts.AGENTS, domain=domain),
        "height": 400,
    }


_STYLES = {Claim.HOLDS: "wide up", Claim.LOST: "wide bad", Claim.UNSHOWN: "wide"}


class QualityRow(msgspec.Struct, frozen=True):
    """A level against C = 1, C = 1 against itself, or one arm of a level.

    `words`: what may be said of it.
    """

    name: str
    paired: PairedDifference | None = None
    changed: float | None = None  # share of the texts
    arm: ArmFigures | None = None
    claim: str = ""
    words: str = ""
    style: str = "note"  # of the words


def _exactly(share: float) -> str:
    return percent(100 * share, digits=1)


def _of(
    part: str, key: str, title: str, text: Callable[[Any], str], **options: Any
) -> Column[QualityRow]:
    """Return a figure of the row's difference (`paired`) or of its requests (`arm`)."""
    return Column(key, title, at(f"{part}.{key}"), text, **options)


_COLUMNS: tuple[Column[QualityRow], ...] = (
    Column("concurrency", "C", lambda row: row.name),
    _of("paired", "items", "items", as_count),
    _of("paired", "pairs", "pairs", as_count),
    _of("paired", "base_rate", "at C=1", _exactly, group=("Passed", "at C = 1")),
    _of("paired", "rate", "at C", _exactly, group=("Passed", "at C")),
    _of("paired", "difference", "points", signed_points),
    Column(
        "bounds",
        "95 % bounds",
        lambda row: row.paired,
        bounds_words,
    ),
    _of("paired", "lost", "lost", as_count),
    _of("paired", "gained", "gained", as_count),
    Column("texts_changed", "texts changed", lambda row: row.changed, as_percent),
    _of("arm", "ttft_p50_ms", "TTFT p50", number, unit=" ms"),
    _of("arm", "ttft_p95_ms", "TTFT p95", number, unit=" ms"),
    _of("arm", "total_p50_s", "total p50", seconds),
    _of("arm", "total_p95_s", "total p95", seconds),
    _of("arm", "effective_tok_s", "eff tok/s", number),
    _of("arm", "cached_share", "cached", as_percent),
    _of("arm", "requests", "requests", as_count),
    _of("arm", "outcomes", "outcomes", counted, right=False, style="note"),
    Column("claim", "claim", lambda row: row.claim, right=False),
    Column("words", "conclusion", lambda row: row.words, right=False, style=lambda row: row.style),
)


def _level_rows(summary: QualitySummary) -> list[QualityRow]:
    """Return one row a level; the first is C = 1 against itself."""
    alone = summary.levels[0].base if summary.levels else None
    noise = "the noise floor: what changes without load"
    rows = [QualityRow("1 and 1", summary.noise, summary.noise_texts_changed, alone, "", noise)]
    for level in summary.levels:
        words = claim_words(level, summary.delta)
        style = _STYLES[level.claim]
        name = str(level.concurrency)
        claim = level.claim.value
        rows.append(
            QualityRow(
                name, level.difference, level.texts_changed, level.load, claim, words, style
            )
        )
    return rows


def _arm_rows(summary: QualitySummary) -> list[QualityRow]:
    return [
        QualityRow(name, arm=arm)
        for level in summary.levels
        for name, arm in (
            (f"1 beside {level.concurrency}", level.base),
            (str(level.concurrency), level.load),
        )
    ]


def print_quality_tables(summary: QualitySummary) -> None:
    """Print the levels, and each kind of failure apart; the claims are said in full below and in
    the report.
    """
    levels = (
        "concurrency items~3 base_rate~1 rate difference bounds lost~4 gained~4 "
        "texts_changed~5 ttft_p50_ms~1 "
        "ttft_p95_ms~3 effective_tok_s~2 claim"
    )
    print_records(chosen(_COLUMNS, levels), _level_rows(summary))
    print()  # noqa: T201
    rows = _arm_rows(summary)
    occurring = {name for row in rows if row.arm for name, _ in row.arm.outcomes} | {
        VerdictOutcome.PASSED.value
    }

    def outcome(name: str) -> Column[QualityRow]:
        return Column(
            name, name, lambda row: dict(row.arm.outcomes).get(name, 0) if row.arm else None
        )

    outcomes = [
        outcome(outcome_kind.value)
        for outcome_kind in VerdictOutcome
        if outcome_kind.value in occurring
    ]
    print_records([*chosen(_COLUMNS, "concurrency requests~1"), *outcomes], rows)


def level_table(summary: QualitySummary) -> Markup:
    """Return one row a level, those that were not walked among them."""
    keys = (
        "concurrency items pairs base_rate rate difference bounds lost gained texts_changed words"
    )
    stopped = any(level.claim is not Claim.HOLDS for level in summary.levels)
    if stopped:
        why = "not measured: a lower level already fails"
    else:
        why = "not measured: the run ended first"
    skipped = [QualityRow(str(skipped), words=why) for skipped in summary.skipped]
    measured = _level_rows(summary)[0 if summary.noise else 1 :]
    return html_table("Difference from C = 1", chosen(_COLUMNS, keys), [*measured, *skipped])


def quality_page(run: StoredRun, summary: QualitySummary) -> str:
    keys = "ttft_p50_ms ttft_p95_ms total_p50_s total_p95_s effective_tok_s cached_share outcomes"
    return run_report(
        "quality_page.html",
        run,
        "quality under load",
        "quality",
        about=f" · bank {summary.bank}{kv_about(run)}",
        terms_kind="quality",
        summary=summary,
        conclusion=conclusion(summary),
        excluded=points(summary.delta),
        difference=difference_chart(summary),
        bounds=_bounds(summary),
        levels=level_table(summary),
        sizes=sizes_table(summary),
        arms=html_table(
            "Latency and outcomes of the same requests",
            chosen(_COLUMNS, f"concurrency {keys}"),
            _arm_rows(summary),
        ),
    )


def kv_about(run: StoredRun) -> str:
    """Return what a page says of the KV type; empty where it is not known."""
    kv = run.config.get("kv")
    return f" · {kv_words(str(kv))}" if kv else ""


def _bounds(summary: QualitySummary) -> str:
    if summary.noise is None:
        noise = "C = 1 against itself was not measured"
    else:
        noise = "grey: C = 1 against itself"
    return f"Vertical lines: one-sided 95 % bounds; {noise}"


def headline(plan: TrialPlan, bank: Bank) -> str:
    requests = len(bank.items) * plan.repeats * (2 * len(plan.levels) + 1)
    if plan.repeats > 1:
        repeats = f", {plan.repeats} times each"
    else:
        repeats = ""
    return (
        f"{bank.name}, {len(bank.items):,} items{repeats}; "
        f"C={','.join(map(str, plan.levels))} against C=1; "
        f"temperature {plan.temperature:g}; {requests:,} requests if every level passes; "
        f"seed {plan.seed}"
    )


def note_level(summary: QualitySummary) -> None:
    """Say after each level what was found."""
    if summary.levels:
        level = summary.levels[-1]
        note(f"C={level.concurrency}: {claim_words(level, summary.delta)}")


def quality_json(summary: QualitySummary) -> dict[str, Any]:
    """Return all figures, with what was asked of whom; the answers and their verdicts are those of
    the run.
    """
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        run = store.run(summary.run_id)
    settings = {name: run.config.get(name) for name in ("seed", "temperature", "repeats", "kv")}
    document: dict[str, Any] = {"model": run.model, "url": run.url, **settings}
    document |= to_builtins(summary) | {"conclusion": conclusion(summary)}
    for level, level_document in zip(summary.levels, document["levels"], strict=True):
        level_document["claim_in_words"] = claim_words(level, summary.delta)
        for arm in ("base", "load"):
            level_document[arm]["outcomes"] = dict(getattr(level, arm).outcomes)
        for size, size_document in zip(level.sizes, level_document["sizes"], strict=True):
            size_document["base"] = dict(size.base)
            size_document["load"] = dict(size.load)
    return document


def print_quality(summary: QualitySummary) -> None:
    if summary.levels:
        print_quality_tables(summary)
        print_sizes(summary)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    note(*notes(summary))
    print(conclusion(summary))  # noqa: T201


EXIT_OK = 0
EXIT_UNSHOWN = 1
EXIT_LOST = 4


def late_levels(run_id: str) -> list[str]:
    """Return a warning for each level at which this client, and not the server, was mostly the
    limit.
    """
    late: dict[int, list[bool]] = {}
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        for sample in store.client_samples(run_id):
            late.setdefault(sample.level, []).append(sample.client_limited)
    return [
        (
            f"warning: the client was the limit at C={level}: fewer were in flight, and latency "
            "is better than it looks"
        )
        for level, limited in sorted(late.items())
        if 2 * sum(limited) > len(limited)
    ]


def exit_code(summary: QualitySummary) -> int:
    if any(level.claim is Claim.LOST for level in summary.levels):
        return EXIT_LOST
    held = summary.levels and all(level.claim is Claim.HOLDS for level in summary.levels)
    if held and not summary.skipped:
        return EXIT_OK
    return EXIT_UNSHOWN
