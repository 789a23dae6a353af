"""The stored runs and what is worked out of them, once where they have ended: key figures, levels,
reports.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec
from markupsafe import Markup

from skep.bench.agent_figures import AgentLevel, SessionsAtBest, sessions_at_best
from skep.bench.metrics import LevelSummary
from skep.bench.stored_run import (
    AGENTS,
    JUDGED_KINDS,
    QUALITY,
    TIMED_KINDS,
    TUNE_QUALITY,
    check_drawn_together,
    load_agents,
    load_run,
)
from skep.errors import SkepError, UserError
from skep.quality.trial_figures import conclusion
from skep.report.stored import drawn, mixed_of, quality_of
from skep.report.svg import alive
from skep.store.database import Store
from skep.store.records import StoredRun
from skep.web.context import is_near

RunLevels = tuple[LevelSummary, ...] | tuple[AgentLevel, ...]
_MAKERS = re.compile(r"^(NVIDIA |AMD |Intel\(R\) )(GeForce |Radeon )?")


def machine_of(run: StoredRun) -> str:
    """Return the cards, or the CPU where there is none.

    Of a far endpoint only its address is known.
    """
    if run.simulated:
        return "no machine"
    if is_near(run.url):
        return host_words(run.host)
    try:
        return urlsplit(run.url).hostname or run.url
    except ValueError:
        return "unknown machine"


def host_words(host: Mapping[str, Any]) -> str:
    cards = host.get("gpus")
    if isinstance(cards, list) and cards:
        names = Counter(str(card.get("name", "?")) for card in cards if isinstance(card, dict))
        return " + ".join(f"{many}x {_MAKERS.sub('', name)}" for name, many in names.items())
    cpu = host.get("cpu_model") or host.get("machine")
    cores = host.get("cpu_cores")
    if cpu and cores:
        return f"{cpu}, {cores} cores"
    return str(cpu or "unknown machine")


def engine_of(run: StoredRun) -> str:
    """Return its name and version, as the endpoint told; a simulated one tells its model, layout
    and cards.
    """
    names = (run.engine.get(key) for key in ("engine", "server", "measured_by"))
    name = str(next(filter(None, names), "unknown engine"))
    version = run.engine.get("version") or run.engine.get("build")
    if not version or str(version) in name or "unknown" in str(version):
        return name
    return f"{name} {version}"


def layout_of(run: StoredRun) -> str:
    """Return replicas and slots, where the endpoint told."""
    replicas = run.engine.get("replicas")
    slots = run.engine.get("slots")
    if not isinstance(slots, int):
        return ""
    if isinstance(replicas, int) and replicas > 1:
        return f"{replicas} replicas, {slots} slots"
    return f"{slots} slots"


def where_of(run: StoredRun) -> str:
    return " · ".join(filter(None, (machine_of(run), engine_of(run), layout_of(run))))


class RunFigures(msgspec.Struct, frozen=True):
    """What a list tells of a run. None: not measured, or not of that kind."""

    best_tok_s: float | None = None  # effective
    best_at: int | None = None  # the C it was reached at; None: its levels are no concurrencies
    ttft_ms: float | None = None  # p50 at C=1
    failed: int = 0
    client_limited: bool = False  # at the best level: a lower bound
    conclusion: str = ""  # of judged runs
    sessions: SessionsAtBest | None = None  # of runs that held sessions


class RunCache:
    """One for a dashboard, asked by several threads.

    Keeps what is worked out of ended runs, by their ids.
    """

    def __init__(self) -> None:
        self._figures: dict[str, RunFigures] = {}
        self._levels: dict[str, RunLevels] = {}
        self._making = threading.Lock()  # two that ask at once share what is worked out

    def figures(self, store: Store, run: StoredRun) -> RunFigures:
        with self._making:
            figures = self._figures.get(run.id) or figures_of(store, run)
            if run.state.is_final:
                self._figures[run.id] = figures
        return figures

    def levels(self, store: Store, run: StoredRun) -> RunLevels:
        """Return the levels of one run, as measured; none where nothing was, or where its levels
        are no loads.
        """
        levels: RunLevels = self._levels.get(run.id, ())
        if not levels and run.kind not in JUDGED_KINDS:
            with suppress(SkepError):
                levels = levels_of(store, run)
            if run.state.is_final:
                self._levels[run.id] = levels
        return levels


def levels_of(store: Store, run: StoredRun) -> RunLevels:
    if run.kind == AGENTS:
        return load_agents(store, run.id)[1].levels
    return tuple(load_run(store, run.id)[1].levels)


def figures_of(store: Store, run: StoredRun) -> RunFigures:
    if run.kind == AGENTS:
        return _figures_of_sessions(store, run)
    try:
        if run.kind in JUDGED_KINDS:
            return _figures_of_judged(store, run)
        _, summary, rows = load_run(store, run.id)
    except SkepError:
        return RunFigures()  # nothing was measured
    failed = sum(not row.ok for row in rows)
    if run.kind == TUNE_QUALITY:
        return RunFigures(failed=failed, conclusion="answers judged for a tuning")
    measured = [level for level in summary.levels if level.effective_tok_s is not None]
    if not measured:
        return RunFigures(failed=failed)
    best = max(measured, key=lambda level: level.effective_tok_s or 0.0)
    closed = run.kind not in TIMED_KINDS
    alone = next((level for level in summary.levels if closed and level.concurrency == 1), None)
    at = best.concurrency if closed else None
    ttft_ms = alone.ttft_ms.p50 if alone and alone.ttft_ms else None
    return RunFigures(best.effective_tok_s, at, ttft_ms, failed, best.client_limited)


def _figures_of_judged(store: Store, run: StoredRun) -> RunFigures:
    failures = store.read(
        "SELECT count(*) FROM requests WHERE run_id = ? AND error_kind IS NOT NULL", run.id
    )
    if run.kind == QUALITY:
        words = conclusion(quality_of(store, run))
    else:
        spot = mixed_of(store, run).advice.concurrency
        if spot is None:
            words = "no sweet spot"
        else:
            words = f"sweet spot at C = {spot}"
    return RunFigures(failed=int(failures[0][0]), conclusion=words)


def _figures_of_sessions(store: Store, run: StoredRun) -> RunFigures:
    """Return what a list tells of a run that held sessions: turns and hits, no tok/s."""
    _, summary = load_agents(store, run.id)
    failed = sum(not row.ok for row in store.requests(run.id))
    return RunFigures(failed=failed, sessions=sessions_at_best(summary))


_STACKED = ' style="display:grid;gap:16px"'
_STYLED = re.compile(r' style="[^"]*"')  # headings that begin a little lower
_LEAD = re.compile(r'<p class="lead">.*?</p>', re.DOTALL)


def report_body(store: Store, runs: Sequence[StoredRun]) -> Markup:
    """Return the sentence above the first figure of a report, and its main part."""
    with alive():
        report = drawn(store, runs)
    lead = _LEAD.search(report.partition("<main>")[0])
    main = report.partition("<main>")[2].rpartition("</main>")[0]
    # The headers forbid inline styles.
    plain = _STYLED.sub("", main.replace(_STACKED, ' class="stack"'))
    return Markup(f'{lead[0] if lead else ""}<div class="report">{plain}</div>')  # noqa: S704


MOST_COMPARED = 8


def runs_named(names: str) -> list[str]:
    """Return the ids of `runs=A,B`.

    Raise UserError where there are too few or too many to stand beside each other.
    """
    ids = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not 2 <= len(ids) <= MOST_COMPARED:
        raise UserError(
            f"`runs={names}` names {len(ids)} runs",
            hint=f"name two to {MOST_COMPARED}, as in runs=A,B",
        )
    return ids


def found_runs(store: Store, ids: Sequence[str]) -> list[StoredRun]:
    runs = [store.run(name) for name in ids]
    check_drawn_together(runs)
    return runs
