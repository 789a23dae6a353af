"""Measured presets beside each other: the table, the document and the page of `skep bench
presets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import to_builtins

from skep.bench.metrics import LevelSummary
from skep.bench.published import PublishedShare
from skep.report.columns import Column, plural, print_records
from skep.report.terminal import note
from skep.store.database import Store
from skep.tuner.preset_sweep import MeasuredPreset
from skep.units import UNKNOWN, known, number


def print_presets(results: Sequence[MeasuredPreset], levels: Sequence[int]) -> None:
    """Print one row a preset with its effective tok/s, and below it why the broken ones are.

    `levels`: those that were asked for; what was measured beyond them has a column too.
    """
    measured_levels = (
        level.concurrency
        for result in measured(results)
        if result.summary
        for level in result.summary.levels
    )
    levels = sorted({*levels, *measured_levels})
    columns: list[Column[MeasuredPreset]] = [
        Column("preset", "PRESET", lambda result: result.preset.name, right=False),
        *(Column(f"c{level}", f"C={level}", partial(_cell, level)) for level in levels),
        Column("contention", "CONTENTION", _contention, optional=True),
        Column("result", "RESULT", _result_words, right=False),
    ]
    print_records(columns, results)
    shares = [share for result in results for share in result.shares()]
    if shares:
        note("tok/s of all agents; in brackets what its author published, not measured here")
    if not all(share.same_lengths for share in shares):
        note("*: its author's prompts and answers have other lengths, or none are published")
    if any(result.simulated for result in results):
        rig = next((result.rig for result in results if result.rig is not None), None)
        words = "SIMULATED: no model ran, these figures are a prediction"
        note(words if rig is None else f"{words} for {rig}")
    for result in results:
        if result.failure is not None:
            note(f"{result.preset.name} {result.failure.title}: {result.failure}")


def presets_words(count: int) -> str:
    return plural(count, "preset")


def presets_document(
    results: Sequence[MeasuredPreset], *, simulated: bool, report: str | None
) -> dict[str, Any]:
    return {
        "simulated": simulated,
        "presets": [_document(result) for result in results],
        "report": report,
    }


def broken_words(results: Sequence[MeasuredPreset]) -> str:
    """Return what the page says of the presets that have no curve on it."""
    broken = [
        f"{result.preset.name} {result.failure.title}"
        for result in results
        if result.failure is not None
    ]
    if broken:
        return f"Broken: {'; '.join(broken)}"
    return ""


def presets_page(store: Store, results: Sequence[MeasuredPreset]) -> str:
    """Return the page of the measured presets: of one preset its report, of several their
    comparison.
    """
    from skep.bench.stored_run import load_run
    from skep.report.comparison import comparison_page
    from skep.report.stored import drawn

    runs = [
        store.run(result.summary.run_id)
        for result in measured(results)
        if result.summary is not None
    ]
    if len(results) == 1:
        return drawn(store, runs)
    loaded = [load_run(store, run.id) for run in runs]
    return comparison_page(
        [(run, summary) for run, summary, _ in loaded], verdict=broken_words(results)
    )


def measured(results: Sequence[MeasuredPreset]) -> list[MeasuredPreset]:
    """Return those that have a figure."""
    return [result for result in results if result.has_figures]


def _level(result: MeasuredPreset, concurrency: int) -> LevelSummary | None:
    levels = _levels(result)
    return next((level for level in levels if level.concurrency == concurrency), None)


def _levels(result: MeasuredPreset) -> Sequence[LevelSummary]:
    if result.summary is None:
        return ()
    return result.summary.levels


def _cell(concurrency: int, result: MeasuredPreset) -> str:
    """Return the measured tok/s, with the published figure in brackets where there is one."""
    level = _level(result, concurrency)
    text = UNKNOWN
    if level is not None and level.effective_tok_s is not None and known(level.effective_tok_s):
        text = number(level.effective_tok_s, digits=1)
    published = _share(result, concurrency)
    if published is None:
        return text
    mark = "" if published.same_lengths else "*"
    return f"{text} [{published.figure.tok_s:g}{mark}]"


def _share(result: MeasuredPreset, concurrency: int) -> PublishedShare | None:
    return next(
        (share for share in result.shares() if share.figure.concurrency == concurrency), None
    )


def _published(share: PublishedShare | None) -> dict[str, Any]:
    """Return the published figure beside a level.

    `same_lengths`: its author's prompts and answers are as long as these, so that the figures may
    be compared.
    """
    if share is None:
        return {"published_tok_s": None, "same_lengths": None}
    return {"published_tok_s": share.figure.tok_s, "same_lengths": share.same_lengths}


def _contention(result: MeasuredPreset) -> str | None:
    """Return that of the level with the most agents."""
    levels = _levels(result)
    if not levels or levels[-1].contention_pct is None:
        return None
    return f"{levels[-1].contention_pct:.0f} %"


def _result_words(result: MeasuredPreset) -> str:
    if result.failure is not None:
        return f"BROKEN: {result.failure.title}"
    if result.summary is None:
        return "nothing was measured"
    if result.interrupted:
        return f"stopped, run {result.summary.run_id}"
    return f"run {result.summary.run_id}"


def _document(result: MeasuredPreset) -> dict[str, Any]:
    return {
        "preset": result.preset.name,
        "hardware": result.preset.hardware,
        "rig": result.rig,
        "run": result.summary.run_id if result.summary is not None else None,
        "start_s": None if result.start_s is None else round(result.start_s, 2),
        "levels": [
            {
                "concurrency": level.concurrency,
                "effective_tok_s": level.effective_tok_s,
                "task_tok_s": level.task_tok_s,
                "contention_pct": level.contention_pct,
                **_published(_share(result, level.concurrency)),
            }
            for level in _levels(result)
        ],
        "interrupted": result.interrupted,
        "failure": None if result.failure is None else to_builtins(result.failure),
    }
