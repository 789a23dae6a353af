"""Stored runs as pages and pictures: which report draws which kind of run. `skep report` and the dashboard share it.

Gives text; knows nothing of where it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from skep.bench.loaded import JUDGED, MIXED, QUALITY, TIMED, check_drawn_together, load_run, nothing_measured
from skep.errors import UserError
from skep.records import Request, Run, RunState, SweepSummary
from skep.store.database import Store
from skep.verdicts import MixedSummary, QualitySummary, Verdict


def run_page(store: Store, run: Run, *, texts: bool = True) -> str:
    """The report of a run. Without `texts`, nothing that a person or a model wrote is on it, nor a server's words."""
    if not texts:
        run = without_texts(run)
    if run.kind in JUDGED:
        return _judged_page(store, run, texts=texts)
    _, summary, rows = load_run(store, run.id)
    if not summary.levels:
        raise nothing_measured(run)
    return measured_page(run, summary, rows if texts else list(bare_rows(rows)))


def measured_page(run: Run, summary: SweepSummary, rows: Sequence[Request]) -> str:
    from skep.report.sweep import sweep_page
    from skep.report.timed import timed_page

    return timed_page(run, summary, rows) if run.kind in TIMED else sweep_page(run, summary, rows)


def run_picture(store: Store, run: Run) -> str:
    """One SVG document."""
    from skep.report.mixed import mixed_picture
    from skep.report.quality import quality_picture
    from skep.report.sweep import sweep_picture

    if run.kind == QUALITY:
        return quality_picture(run, quality_of(store, run))
    if run.kind == MIXED:
        return mixed_picture(_mixed_entries(store, [run])[0])
    if run.kind in TIMED:
        raise UserError(f"run `{run.id}` ({run.kind}) has no curve over C to draw", hint="write .html instead")
    _, summary, _ = load_run(store, run.id)
    if not summary.levels:
        raise nothing_measured(run)
    return sweep_picture(run, summary)


def runs_page(store: Store, runs: Sequence[Run]) -> str:
    """Several runs of kinds that can stand beside each other."""
    from skep.report.comparison import comparison_page
    from skep.report.mixed import mixed_page

    check_drawn_together(runs)
    if runs[0].kind == MIXED:
        return mixed_page(*_mixed_entries(store, runs))
    return comparison_page([(run, load_run(store, run.id)[1]) for run in runs])


def runs_picture(store: Store, runs: Sequence[Run]) -> str:
    """One SVG document of several runs."""
    from skep.report.comparison import comparison_picture
    from skep.report.mixed import mixed_picture

    check_drawn_together(runs)
    if runs[0].kind == MIXED:
        return mixed_picture(_mixed_entries(store, runs)[0])
    return comparison_picture([(run, load_run(store, run.id)[1]) for run in runs])


def quality_of(store: Store, run: Run) -> QualitySummary:
    from skep.quality.trial_figures import summary_of_run

    rows = store.requests(run.id)
    if not any(row.level for row in rows):
        raise nothing_measured(run)
    return summary_of_run(run, rows, store.verdicts(run.id), store.level_facts(run.id), store.items(run.id))


def mixed_of(store: Store, run: Run) -> MixedSummary:
    return _mixed_entries(store, [run])[0][0][1]


def without_texts(run: Run) -> Run:
    """As anybody may see it: no words of a server, no address, and of a file only its name."""
    error = "it ended with an error" if run.error else None
    model = PurePath(run.model).name if run.model.startswith(("/", "~", ".")) else run.model
    return replace(
        run, model=model, url="", engine=_without_paths(run.engine), config=_without_paths(run.config), error=error
    )


def _without_paths(value: Any) -> Any:
    """A configuration with the bare names of its files."""
    if isinstance(value, Mapping):
        return {key: _without_paths(item) for key, item in value.items()}
    return PurePath(value).name if isinstance(value, str) and value.startswith(("/", "~", "./", "../")) else value


def bare_rows(rows: Iterable[Request]) -> Iterable[Request]:
    """The same figures without prompts, answers and the words of errors."""
    return (replace(row, prompt=None, answer=None, reasoning=None, error=None) for row in rows)


def _judged_page(store: Store, run: Run, *, texts: bool) -> str:
    from skep.report.mixed import mixed_page
    from skep.report.quality import quality_page

    if run.kind == QUALITY:
        return quality_page(run, quality_of(store, run))
    entries, verdicts = _mixed_entries(store, [run])
    return mixed_page(entries, verdicts if texts else None)


def _mixed_entries(
    store: Store, runs: Sequence[Run]
) -> tuple[list[tuple[Run, MixedSummary]], dict[str, list[Verdict]]]:
    from skep.quality.mixed_axes import with_solo_speeds

    verdicts = {run.id: store.verdicts(run.id) for run in runs}
    summaries = with_solo_speeds([_mixed_summary(store, run, verdicts[run.id]) for run in runs])
    entries = list(zip(runs, summaries, strict=True))
    for run, summary in entries:
        if not summary.levels:
            raise nothing_measured(run)
    return entries, verdicts


def _mixed_summary(store: Store, run: Run, verdicts: Sequence[Verdict]) -> MixedSummary:
    from skep.quality.mixed_figures import mixed_summary

    why = "" if run.state is RunState.DONE else run.error or f"the run is {run.state.value}"
    form, rows = str(run.config.get("form", "published")), store.requests(run.id)
    return mixed_summary(run.id, run.model, form, rows, verdicts, simulated=run.simulated, incomplete=why)
