"""Stored runs as pages, for `skep runs report` and the dashboard: which report draws which kind of
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skep.bench.agent_compare import load_side
from skep.bench.compare import ComparedRun, check_kinds, compare
from skep.bench.metrics import Comparison, SweepSummary
from skep.bench.stored_run import (
    AGENTS,
    MIXED,
    QUALITY,
    check_drawn_together,
    load_agents,
    load_run,
    nothing_measured,
)
from skep.errors import UserError
from skep.quality.mixed_figures import MixedSummary
from skep.quality.trial_figures import QualitySummary
from skep.store.database import Store
from skep.store.records import Request, StoredRun

LoadedRun = tuple[StoredRun, SweepSummary, Sequence[Request]]


def drawn(store: Store, runs: Sequence[StoredRun]) -> str:
    """Return the page of a run, or of several of kinds that can stand beside each other."""
    if len(runs) > 1:
        check_drawn_together(runs)
    run = runs[0]
    if run.kind == MIXED and len(runs) > 1:
        from skep.quality.mixed_compare import load_mixed
        from skep.report.mixed_comparison import mixed_comparison_page

        return mixed_comparison_page([load_mixed(store, run) for run in runs])
    if run.kind == MIXED:
        from skep.report.mixed import mixed_page

        return mixed_page(run, mixed_of(store, run), store.verdicts(run.id))
    if run.kind == QUALITY:
        from skep.report.quality import quality_page

        return quality_page(run, quality_of(store, run))
    if run.kind == AGENTS and len(runs) > 1:
        from skep.report.agents_comparison import agents_comparison_page

        return agents_comparison_page([load_side(store, run) for run in runs])
    if run.kind == AGENTS:
        return agents_report(store, run)
    if len(runs) > 1:
        from skep.report.comparison import comparison_page

        loaded = [load_run(store, run.id) for run in runs]
        return comparison_page(
            [(run, summary) for run, summary, _ in loaded], comparisons_of(store, loaded)
        )
    from skep.report.sweep import sweep_page

    _, summary, rows = load_run(store, run.id)
    if not summary.levels:
        raise nothing_measured(run)
    return sweep_page(run, summary, rows)


def agents_report(store: Store, run: StoredRun) -> str:
    from skep.report.agents_page import agents_page

    _, summary = load_agents(store, run.id)
    if not summary.levels:
        raise nothing_measured(run)
    return agents_page(run, summary, store.requests(run.id))


def comparisons_of(store: Store, loaded: Sequence[LoadedRun]) -> list[Comparison]:
    """Return the figures of the second run against the first; none where their levels are not of
    one kind, or there are not two runs.
    """
    if len(loaded) != 2:
        return []
    (a, summary_a, rows_a), (b, summary_b, rows_b) = loaded
    try:
        check_kinds(a, b)
    except UserError:
        return []
    if a.kind == MIXED:
        from skep.quality.mixed_compare import compare_mixed, load_mixed

        return list(compare_mixed(load_mixed(store, a), load_mixed(store, b)).found)
    return compare(ComparedRun(summary_a, rows_a), ComparedRun(summary_b, rows_b))


def comparison_document(store: Store, runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return the figures of the second run against the first, as a program reads them."""
    if runs[0].kind != AGENTS:
        loaded = [load_run(store, run.id) for run in runs]
        return {"comparisons": comparisons_of(store, loaded)}
    from skep.report.agents_comparison import judged_agents

    a, b = (load_side(store, run) for run in runs)
    judged = judged_agents(a, b)
    return {"comparisons": judged.compared.comparisons, "sessions": judged.sessions_document()}


def quality_of(store: Store, run: StoredRun) -> QualitySummary:
    from skep.quality.trial_figures import summary_of_run

    rows = store.requests(run.id)
    if not any(row.level for row in rows):
        raise nothing_measured(run)
    return summary_of_run(
        run, rows, store.verdicts(run.id), store.level_facts(run.id), store.items(run.id)
    )


def mixed_of(store: Store, run: StoredRun) -> MixedSummary:
    from skep.quality.mixed_compare import load_mixed

    return load_mixed(store, run).summary
