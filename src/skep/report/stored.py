"""Stored runs as pages and pictures: which report draws which kind of run. `skep report` and the dashboard share it.

Gives text; knows nothing of where it goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skep.bench.records import SweepSummary
from skep.bench.stored_run import JUDGED, MIXED, QUALITY, TIMED, check_drawn_together, load_run, nothing_measured
from skep.errors import UserError
from skep.quality.records import MixedSummary, QualitySummary
from skep.store.database import Store
from skep.store.records import Request, RunState, StoredRun
from skep.store.verdicts import Verdict
from skep.units import public_name

_HIDDEN = object()
# Names under which skep, an engine or a driver writes words of its own.
_WORDS = frozenset({
    "arrivals", "backend", "bank", "build", "compute_capability", "cpu_features", "cpu_model", "cuda_version",
    "driver_version", "engine", "form", "kind", "kv", "kv_dtype", "layout", "levels", "links", "machine",
    "measured_by", "name", "os", "python", "quant", "sandbox", "server", "shape", "size", "slo", "tool", "version",
})  # fmt: skip
_SECRET = re.compile(r"key|secret|passw|auth|credential|cookie|header", re.IGNORECASE)
# An address of the net, of a mail or of a machine, or a path, anywhere in some words.
_PLACE = re.compile(
    r"://|[\\@~]|(?:^|[^\w])/|\.\.?/|/.*/|\blocalhost\b|::|:\d{2,5}\b|\b\d{1,3}(?:\.\d{1,3}){3}\b"
    r"|\b[\w-]+\.(?:local|lan|internal|intranet|home|corp|private|test|example|localdomain|arpa"
    r"|com|net|org|io|ai|dev|cloud|app|co|de|eu|uk|us|ch|fr)\b",
    re.IGNORECASE,
)
_LONGEST_WORDS, _LONGEST_NAME = 160, 40
_REASONS = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter", "abort"})


def run_page(store: Store, run: StoredRun, *, texts: bool = True) -> str:
    """The report of a run. Without `texts`, nothing that a person or a model wrote is on it, nor a server's words."""
    if not texts:
        run = without_texts(run)
    if run.kind in JUDGED:
        return _judged_page(store, run, texts=texts)
    _, summary, rows = load_run(store, run.id, as_read=None if texts else bare_rows)
    if not summary.levels:
        raise nothing_measured(run)
    return measured_page(run, summary, rows)


def measured_page(run: StoredRun, summary: SweepSummary, rows: Sequence[Request]) -> str:
    from skep.report.sweep import sweep_page
    from skep.report.timed import timed_page

    return timed_page(run, summary, rows) if run.kind in TIMED else sweep_page(run, summary, rows)


def run_picture(store: Store, run: StoredRun) -> str:
    """Return one SVG document."""
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


def runs_page(store: Store, runs: Sequence[StoredRun], *, texts: bool = True) -> str:
    """Several runs of kinds that can stand beside each other; `texts` as in `run_page`."""
    from skep.report.comparison import comparison_page
    from skep.report.mixed import mixed_page

    check_drawn_together(runs)
    if runs[0].kind == MIXED:
        return mixed_page(*_mixed_entries(store, runs))
    return comparison_page(_summaries(store, runs, texts=texts))


def runs_picture(store: Store, runs: Sequence[StoredRun], *, texts: bool = True) -> str:
    """Return one SVG document of several runs."""
    from skep.report.comparison import comparison_picture
    from skep.report.mixed import mixed_picture

    check_drawn_together(runs)
    if runs[0].kind == MIXED:
        return mixed_picture(_mixed_entries(store, runs)[0])
    return comparison_picture(_summaries(store, runs, texts=texts))


def _summaries(store: Store, runs: Sequence[StoredRun], *, texts: bool) -> list[tuple[StoredRun, SweepSummary]]:
    shown = runs if texts else [without_texts(run) for run in runs]
    as_read = None if texts else bare_rows
    return [(run, load_run(store, run.id, as_read=as_read)[1]) for run in shown]


def quality_of(store: Store, run: StoredRun) -> QualitySummary:
    from skep.quality.trial_figures import summary_of_run

    rows = store.requests(run.id)
    if not any(row.level for row in rows):
        raise nothing_measured(run)
    return summary_of_run(run, rows, store.verdicts(run.id), store.level_facts(run.id), store.items(run.id))


def mixed_of(store: Store, run: StoredRun) -> MixedSummary:
    return _mixed_entries(store, [run])[0][0][1]


def without_texts(run: StoredRun) -> StoredRun:
    """As anybody may see it: no words of a server or a person, no address, and of a file only its name.

    Of what was configured and told there are numbers, and words only under names that hold no others.
    """
    error = "it ended with an error" if run.error else None
    engine, config, host = (public_facts(facts) for facts in (run.engine, run.config, run.host))
    return replace(run, model=public_name(run.model), url="", engine=engine, config=config, host=host, error=error)


def public_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not for everybody; unknown names keep numbers only, as their words may be anything."""
    found = ((name, _public(name, value)) for name, value in facts.items() if _plain(name) and not _SECRET.search(name))
    return {name: value for name, value in found if value is not _HIDDEN}


def _public(name: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            return public_facts(value)
        case list() | tuple():
            kept = [_public(name, item) for item in value]
            return [item for item in kept if item is not _HIDDEN]
        case str():
            return value if value and name in _WORDS and _plain(value) else _HIDDEN
        case _:
            return _HIDDEN


def _plain(said: str) -> bool:
    """Whether it is neither an address nor a path, nor long enough to be somebody's text."""
    return len(said) <= _LONGEST_WORDS and not _PLACE.search(said)


def bare_rows(rows: Iterable[Request]) -> Iterable[Request]:
    """Yield the same figures without prompts, answers and the words of errors, servers and people."""
    for row in rows:
        reason = row.finish_reason if row.finish_reason in _REASONS else None
        kind, traffic = (
            said if len(said) <= _LONGEST_NAME and _plain(said) else "task" for said in (row.kind, row.traffic)
        )
        yield replace(row, prompt=None, answer=None, reasoning=None, error=None, replica=None,
                      finish_reason=reason, kind=kind, traffic=traffic)  # fmt: skip


def _judged_page(store: Store, run: StoredRun, *, texts: bool) -> str:
    from skep.report.mixed import mixed_page
    from skep.report.quality import quality_page

    if run.kind == QUALITY:
        found = quality_of(store, run)
        return quality_page(run, found if texts else _without_families(found))
    entries, verdicts = _mixed_entries(store, [run])
    return mixed_page(entries, verdicts if texts else None)


def _without_families(found: QualitySummary) -> QualitySummary:
    """Items are grouped by words of whoever wrote them: those that could be an address or a path are not told."""
    return replace(found, by_family=tuple(one for one in found.by_family if _plain(one[0])))


def _mixed_entries(
    store: Store, runs: Sequence[StoredRun]
) -> tuple[list[tuple[StoredRun, MixedSummary]], dict[str, list[Verdict]]]:
    from skep.quality.mixed_figures import side_by_side

    verdicts = {run.id: store.verdicts(run.id) for run in runs}
    summaries = side_by_side([_mixed_summary(store, run, verdicts[run.id]) for run in runs])
    entries = list(zip(runs, summaries, strict=True))
    for run, summary in entries:
        if not summary.levels:
            raise nothing_measured(run)
    return entries, verdicts


def _mixed_summary(store: Store, run: StoredRun, verdicts: Sequence[Verdict]) -> MixedSummary:
    from skep.quality.mixed_figures import mixed_summary

    why = "" if run.state is RunState.DONE else run.error or f"the run is {run.state.value}"
    form, rows = str(run.config.get("form", "published")), store.requests(run.id)
    return mixed_summary(run.id, run.model, form, rows, verdicts, simulated=run.simulated, incomplete=why)
