"""The figures of `skep bench agents`, each described once for terminals, pages and files, and the
sentences around their table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from skep.bench.agent_figures import (
    CLIFF_HIT_LOSS,
    AgentLevel,
    AgentsSummary,
    SessionCliff,
    SessionsAtBest,
    SessionSearchEnd,
)
from skep.bench.agent_load import AgentPlan, session_count
from skep.bench.endpoint import Endpoint
from skep.catalog.session_shapes import SessionScript
from skep.report.columns import (
    Column,
    as_count,
    as_percent,
    at,
    chosen,
    plural,
    print_records,
)
from skep.report.sweep_text import range_text
from skep.report.terminal import note
from skep.store.records import StoredRun
from skep.units import format_seconds, milliseconds, number, percent, seconds

Level = Column[AgentLevel]
# Hits above the possible by more than this share: the engine had cached the sessions in an
# earlier run.
KNOWN_BEFORE = 0.02
TOLD_HINT = (
    "the engine does not tell which tokens of a prompt it had cached; vLLM does with "
    "--enable-prompt-tokens-details"
)


def spread_text(level: AgentLevel) -> str:
    return range_text(level.turns_interval, level.turns_of_runs)


def best_words(best: SessionsAtBest) -> str:
    """Return "31 turns/min with 8 sessions", and what a turn and a session take there."""
    words = [f"{number(best.turns_per_min)} turns/min with {session_count(best.sessions)}"]
    if best.session_p50_s is not None:
        words.append(f"session {seconds(best.session_p50_s)}")
    if best.ttft_p50_ms is not None:
        words.append(f"TTFT {first_token_words(best)}")
    if best.hit_rate is not None:
        words.append(f"hits {hit_words(best.hit_rate, best.possible_hit_rate)}")
    if best.cliff is not None:
        words.append(f"cliff beyond {best.cliff}")
    return ", ".join(words)


def first_token_words(best: SessionsAtBest) -> str:
    """Return "400 ms (p95 2.1 s)", of later turns."""
    return f"{milliseconds(best.ttft_p50_ms)} (p95 {milliseconds(best.ttft_p95_ms)})"


def hit_words(hit_rate: float, possible: float | None) -> str:
    """Return the hits beside the possible ones, where these are known."""
    if possible is None:
        return as_percent(hit_rate)
    return f"{as_percent(hit_rate)} of {as_percent(possible)}"


def warm_text(level: AgentLevel) -> str | None:
    """Return "7 of 8": the sessions whose cache was held, of those with a later turn."""
    if level.warm_sessions is None:
        return None
    return f"{level.warm_sessions} of {level.told_sessions}"


def _figure(
    name: str, title: str, key: str = "", text: Callable[[Any], str] = number, **options: Any
) -> Level:
    return Column(key or name, title, at(name), text, **options)


AGENT_COLUMNS: tuple[Level, ...] = (
    _figure("sessions", "sessions", text=str),
    _figure("sessions_ended", "ended", text=as_count),
    _figure("sessions_failed", "failed", text=as_count, style="bad"),
    _figure("turns", "turns", text=as_count),
    _figure("failed", "failed turns", text=as_count, style="bad"),
    _figure("turns_per_min", "turns/min", style="strong"),
    _figure("turns_low", "slowest run", "turns_per_min_low"),
    _figure("turns_high", "fastest run", "turns_per_min_high"),
    _figure("session_s.p50", "session p50", "session_p50_s", seconds),
    _figure("session_s.p95", "session p95", "session_p95_s", seconds),
    _figure("ttft_ms.p50", "TTFT p50", "ttft_p50_ms", milliseconds),
    _figure("ttft_ms.p95", "TTFT p95", "ttft_p95_ms", milliseconds),
    _figure("first_ttft_ms.p50", "first TTFT p50", "first_ttft_p50_ms", milliseconds),
    _figure("hit_rate", "hits", text=as_percent, optional=True),
    _figure("possible_hit_rate", "possible", text=as_percent, optional=True),
    _figure("warm_sessions", "warm", text=as_count, optional=True),
    _figure("told_sessions", "of", text=as_count, optional=True),
    _figure("preemptions", "preempted", text=as_count, optional=True),
    _figure("output_tok_s", "out tok/s"),
    _figure("prompt_tok_s", "in tok/s", text=as_count),
    _figure("wall_s", "wall", text=seconds),
    Column("runs", "runs", lambda level: len(level.runs)),
    Column("limited", "client-limited", at("limited"), str),
)
# Several figures in one cell: for people, never in files.
_IN_WORDS: tuple[Level, ...] = (
    Column("spread", "95 %", spread_text, style="soft", optional=True),
    Column("held_warm", "warm", warm_text, optional=True),
)
SHOWN_KEYS = (
    "turns_per_min spread~3 session_p50_s~2 session_p95_s~4 ttft_p50_ms ttft_p95_ms~1 hit_rate "
    "possible_hit_rate held_warm~1 preemptions~2 output_tok_s~3 prompt_tok_s~3 "
    "sessions_ended~5 sessions_failed runs~6 wall_s~5"
)


def agent_columns(keys: str) -> list[Level]:
    return chosen((*AGENT_COLUMNS, *_IN_WORDS), keys)


def print_agents(summary: AgentsSummary) -> None:
    """Print a row for each level, and the remarks below the table."""

    def name(level: AgentLevel) -> str:
        return f"{level.sessions}{'*' if level.limited else ''}"

    columns = [Column[AgentLevel]("sessions", "sessions", name), *agent_columns(SHOWN_KEYS)]
    print_records(columns, summary.levels)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    note(*agent_remarks(summary))


def agent_remarks(summary: AgentsSummary) -> list[str]:
    """Return the sentences below the table: the cliff, the end of the search, warnings."""
    remarks = [*cliff_sentences(summary)]
    if summary.search is not None:
        remarks.append(search_sentence(summary.search))
    if not summary.hits_told:
        remarks.append(TOLD_HINT)
    remarks += _known_before(summary.levels)
    for level in summary.levels:
        for run in level.runs:
            if run.limited:
                where = f"{session_count(level.sessions)}, run {run.repeat + 1}"
                remarks.append(f"warning: {where}: the client was the limit ({run.limited})")
    return remarks


def cliff_sentence(cliff: SessionCliff) -> str:
    """Return where the cliff is, and what shows it."""
    beyond = f"the session cliff lies beyond {session_count(cliff.sessions)}"
    if cliff.why == "turns":
        loss = f"turns/min fall by {percent(cliff.loss_pct)}"
    else:
        loss = f"hits lie {number(cliff.loss_pct, digits=0)} points below the possible"
    return f"{beyond}: with {cliff.beyond} {loss}"


def cliff_sentences(summary: AgentsSummary) -> Iterator[str]:
    levels = summary.levels
    if summary.cliff is not None:
        yield cliff_sentence(summary.cliff)
        return
    first = levels[0] if levels else None
    if first is None:
        return
    if first.lost_hits is not None and first.lost_hits.low > CLIFF_HIT_LOSS:
        points = number(100 * first.lost_hits.estimate, digits=0)
        yield (
            f"with {session_count(first.sessions)} hits lie {points} points below the possible "
            "already: the cliff lies below, or this engine does not cache such prompts"
        )
    if len(levels) == 1:
        return
    yield f"no session cliff is shown up to {session_count(levels[-1].sessions)}"
    if summary.unclear is None:
        yield "turns/min are not judged by one run a level: --runs 3 tells whether they fall"
    elif summary.unclear:
        named = ", ".join(map(str, summary.unclear))
        yield f"runs with {named} sessions differ too much to be told apart: use more --runs"


def _known_before(levels: Sequence[AgentLevel]) -> Iterator[str]:
    """Yield a warning where an engine had sessions in its cache before they began."""
    for level in levels:
        if level.hit_rate is None or level.possible_hit_rate is None:
            continue
        if level.hit_rate > level.possible_hit_rate + KNOWN_BEFORE:
            yield (
                f"warning: {session_count(level.sessions)}: hits are beyond the possible, the "
                "engine had these sessions from an earlier run: use another --seed"
            )


_SEARCH_ENDS = {
    "past the cliff": "nothing was gained above {beyond}",
    "client": "the client was the limit there",
    "most": "one client holds no more",
}


def search_sentence(end: SessionSearchEnd) -> str:
    """Return where the search for the cliff stopped, and why."""
    why = _SEARCH_ENDS[end.reason].format(beyond=session_count(end.beyond or 0))
    return f"the search stopped at {session_count(end.at)}: {why}"


def agents_headline(plan: AgentPlan, endpoint: Endpoint, pauses_s: float) -> str:
    """Return a line with the endpoint, its load and how long the pauses alone take."""
    if plan.finds_cliff:
        levels = "1,2,4 and on"
    else:
        levels = ",".join(map(str, plan.concurrency))
    model = f"{endpoint.model} (simulated)" if endpoint.simulated else endpoint.model
    words = [f"{levels} sessions at once", plan.load]
    if plan.window_tokens is not None:
        words.append(f"a context of {plan.window_tokens:,} tokens")
    if plan.turns_at_most is not None:
        words.append(f"cut at {plan.turns_at_most} turns")
    if plan.pause_scale != 1:
        words.append(f"pauses x {plan.pause_scale:g}")
    pauses = f"pauses alone take about {format_seconds(pauses_s)}"
    if plan.finds_cliff:
        pauses = f"{pauses} with 1 session"
    return f"{model} at {endpoint.url}: {'; '.join(words)}; {pauses}; seed {plan.seed}"


def trace_words(name: str, scripts: Sequence[SessionScript], held: Sequence[SessionScript]) -> str:
    """Return how many sessions and turns a trace has, and how many of them fit into the context.

    `held`: the sessions that fit.
    """
    turns = sum(len(script.turns) for script in scripts)
    held_turns = sum(len(script.turns) for script in held)
    words = f"{name}: {plural(len(scripts), 'session')}, {plural(turns, 'turn')}"
    if held_turns == turns:
        return words
    return f"{words}; the context holds {held_turns:,} turns of {len(held):,} sessions"


def agents_text(run: StoredRun, summary: AgentsSummary, form: str) -> str:
    """Return a run as Markdown, CSV or JSON."""
    from skep.report.tables import Table, json_text

    if form == "json":
        return json_text({"run": run.id, "model": run.model, **to_builtins(summary)})
    if form == "csv":
        return Table(f"levels of {run.id}", AGENT_COLUMNS, summary.levels).csv()
    columns = agent_columns(f"sessions {SHOWN_KEYS}")
    simulated = "SIMULATED. " if run.simulated else ""
    origin = f"{simulated}{run.model}, run {run.id}, skep {run.skep_version}.\n"
    table = Table("Sessions", columns, summary.levels, tuple(agent_remarks(summary)))
    return f"{origin}\n{table.markdown()}"
