"""A stored run with its figures, derived anew from its rows. Every reader of runs begins here."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from skep.bench.agent_figures import AgentsSummary, agents_summary
from skep.bench.metrics import SweepSummary
from skep.bench.summary import summarise
from skep.errors import UserError
from skep.stats.slo import SloLimits
from skep.store.database import Store
from skep.store.records import ClientSample, Request, RunState, StoredRun

IMPORTED = "imported"  # in old stores: what another tool measured
# Their levels are no concurrencies; the last two are in old stores only.
TIMED_KINDS = ("open", "classes", "replay")
MIXED = "mixed"
QUALITY = "quality"
AGENTS = "agents"  # their levels are sessions held at once
JUDGED_KINDS = (MIXED, QUALITY)  # their answers have verdicts
TUNE = "tune"  # one start of one configuration at one concurrency
# The answers of one configuration, judged for a tuning: no measure of speed.
TUNE_QUALITY = "tune-quality"
OF_A_TUNING = (TUNE, TUNE_QUALITY)


def load_run(store: Store, name: str) -> tuple[StoredRun, SweepSummary, list[Request]]:
    """Load a run by its id, the beginning of its id, or "last"."""
    run = store.run(name)
    rows = store.requests(run.id)
    facts = store.level_facts(run.id)
    if run.kind == IMPORTED:
        rows = []  # shown as a run without figures, not as one that skep measured
    samples = store.client_samples(run.id)
    rows, unfinished_level = _ended_levels(run, rows, samples)
    slo_text = run.config.get("slo")
    summary = summarise(
        run.id,
        rows,
        samples,
        facts,
        closed=run.kind not in TIMED_KINDS,
        slo=SloLimits.parse(slo_text) if isinstance(slo_text, str) else None,
        simulated=run.simulated,
        burst=run.config.get("shape") == "burst",
    )
    return run, replace(summary, unfinished_level=unfinished_level), rows


def _ended_levels(
    run: StoredRun, rows: list[Request], samples: Sequence[ClientSample]
) -> tuple[list[Request], int | None]:
    """Return the rows that count of a run, and the level in which it was broken off where no level
    had ended: then all of them count.
    """
    if run.state is RunState.DONE:
        return rows, None
    # Runs of a level without a sample were broken off.
    ended = {(sample.level, sample.repeat) for sample in samples}
    rows_of_ended = [row for row in rows if not row.level or (row.level, row.repeat) in ended]
    if any(row.level for row in rows_of_ended):
        return rows_of_ended, None
    return rows, max((row.level for row in rows), default=0) or None


def load_agents(store: Store, name: str) -> tuple[StoredRun, AgentsSummary]:
    """Load a run of `skep bench agents` by its id, the beginning of its id, or "last"."""
    run = store.run(name)
    samples = store.client_samples(run.id)
    rows, unfinished_level = _ended_levels(run, store.requests(run.id), samples)
    summary = agents_summary(
        run.id, rows, samples, store.level_facts(run.id), simulated=run.simulated
    )
    return run, replace(summary, unfinished_level=unfinished_level)


def kept_words(summary: SweepSummary | AgentsSummary) -> str:
    """Say what there is of a run that was broken off, alike on the command line and the pages."""
    if not summary.levels:
        return "nothing was measured: it was still warming up"
    if summary.unfinished_level is None:
        return "the finished levels are kept"
    ended = sum(level.requests for level in summary.levels)
    answers = "the one request" if ended == 1 else f"the {ended} requests"
    return f"no level was finished: the figures are of {answers} that had ended"


def nothing_measured(run: StoredRun) -> UserError:
    return UserError(
        f"run `{run.id}` has no measured requests", hint="`skep runs` lists the others"
    )


def check_drawn_together(runs: Sequence[StoredRun]) -> None:
    """Raise UserError for runs that cannot be drawn together: runs of mixed work stand only beside
    their like, and a trial of quality has its own page.
    """
    is_one_kind = len({run.kind for run in runs}) == 1
    for run in runs:
        if run.kind == QUALITY:
            message = f"`{run.id}` is a {run.kind} run, which skep cannot draw beside another"
            raise UserError(message, hint=f"`skep runs report {run.id}` draws it")
        if run.kind == AGENTS and not is_one_kind:
            message = f"`{run.id}` held sessions of agents, which are only drawn beside their like"
            raise UserError(message, hint="name runs of `skep bench agents` only")
        if run.kind == MIXED and not is_one_kind:
            message = f"`{run.id}` is a {run.kind} run, which skep can only draw beside its like"
            raise UserError(message, hint="name runs of `skep bench mixed` only")
