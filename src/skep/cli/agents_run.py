"""`skep bench agents`: sessions of agents as a load, and where their cliff is."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from msgspec import to_builtins
from msgspec.structs import replace

from skep.bench.agent_figures import AgentsSummary
from skep.bench.agent_load import AgentPlan, ScriptsOf, least_seconds, run_agents
from skep.bench.endpoint import Endpoint, context_tokens
from skep.bench.logged_sessions import logged_sessions
from skep.bench.session import OnProgress, SessionProgress
from skep.bench.stored_run import kept_words, load_agents
from skep.bench.tasks import calibrate_on
from skep.bench.trace_files import read_trace, repeated, trace_sessions
from skep.catalog.session_shapes import (
    SessionScript,
    SessionShape,
    check_window,
    draw_sessions,
    find_shape,
)
from skep.cli.bench import AgentsOptions
from skep.cli.options import Interrupted, existing, run_measuring
from skep.cli.sweep import AUTO, fail_for, level_view, levels_of, meter_for, seed_of
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.report.agents import agents_headline, print_agents, trace_words
from skep.report.terminal import note, print_json
from skep.store.database import open_store, read_store
from skep.units import parse_positive_seconds, parse_seconds
from skep.wire.client import Pool
from skep.workload.session_text import SessionTexts

SessionSource = SessionShape | Sequence[SessionScript]


def run_agents_command(options: AgentsOptions) -> None:
    """Measure, and print the summary. Raise EndpointError where turns failed: then the exit code
    is 1.
    """
    plan = plan_of(options)
    summary = measure(plan, options)
    if options.as_json:
        print_json(to_builtins(summary))
    else:
        print_agents(summary)
        run_id = summary.run_id
        note(f"stored as run {run_id}; `skep runs report {run_id}` writes the report")
    fail_for(summary)


def plan_of(options: AgentsOptions) -> AgentPlan:
    finds_cliff = options.concurrency.strip() == AUTO
    if finds_cliff:
        levels: tuple[int, ...] = (1,)
    else:
        levels = levels_of(options.concurrency, "--concurrency")
    return AgentPlan(
        load=load_name(options),
        concurrency=levels,
        finds_cliff=finds_cliff,
        sessions=options.sessions,
        runs=options.runs,
        turns_at_most=options.turns_at_most,
        pause_scale=options.pause_scale,
        window_tokens=options.context,
        seed=seed_of(options.seed),
        timeout_s=parse_positive_seconds(options.timeout, "--timeout", "15m"),
    )


def load_name(options: AgentsOptions) -> str:
    if options.trace is not None:
        return options.trace.name
    if options.from_log is not None:
        return f"log of {options.from_log}"
    return options.shape


def source_of(options: AgentsOptions) -> SessionSource:
    """Return what the sessions come from: a shape, or the sessions of a trace or of the log."""
    if options.trace is not None and options.from_log is not None:
        raise UserError("--trace and --from-log are both given", hint="choose one of them")
    if options.trace is not None:
        return read_trace(options.trace)
    if options.from_log is not None:
        return _recorded_sessions(options.from_log)
    return find_shape(options.shape)


def _recorded_sessions(since: str) -> list[SessionScript]:
    """Return the sessions that the gateway has recorded within this time, such as 7d."""
    begin = time.time() - parse_seconds(since)
    with read_store(user_paths(os.environ).store) as store:
        scripts = logged_sessions(store.gateway_requests(begin))
    if not scripts:
        raise UserError(
            f"the gateway has recorded no session in the last {since}",
            hint="`skep sessions` lists what there is; `skep agent claude` starts one",
        )
    return scripts


def measure(plan: AgentPlan, options: AgentsOptions) -> AgentsSummary:
    """Return the summary of a run. On Ctrl-C, print what was measured, unless as JSON, and raise
    Interrupted.
    """
    source = source_of(options)
    latest_progress = deque([SessionProgress()], maxlen=1)

    async def run() -> AgentsSummary:
        endpoint = await options.find()
        return await _measure_endpoint(plan, source, endpoint, latest_progress.append)

    try:
        return run_measuring(run)
    except Interrupted:
        raise _interrupted(latest_progress[0], as_json=options.as_json) from None


def _interrupted(progress: SessionProgress, *, as_json: bool) -> Interrupted:
    """Print what was measured, and return the error that says so."""
    if not progress.run_id:
        return Interrupted("interrupted before anything was measured", hint=None)
    where = f"with {progress.label}" if progress.level else "while it warmed up"
    with existing() as store:
        _, summary = load_agents(store, progress.run_id)
    if not summary.levels:
        return Interrupted(f"interrupted {where}", hint=kept_words(summary))
    if not as_json:
        print_agents(summary)
    draws = f"`skep runs report {progress.run_id}` draws them"
    return Interrupted(f"interrupted {where}", hint=f"{kept_words(summary)}: {draws}")


async def _measure_endpoint(
    plan: AgentPlan, source: SessionSource, endpoint: Endpoint, watch: OnProgress
) -> AgentsSummary:
    plan = replace(plan, window_tokens=await _window_of(plan, endpoint))
    plan, scripts_of = _sessions_of(source, plan)
    note(agents_headline(plan, endpoint, least_seconds(plan, scripts_of)))
    calibration = await calibrate_on(endpoint, None, plan.seed)
    note(f"{calibration.chars_per_token:.2f} characters per token")
    texts = SessionTexts(plan.seed, calibration)
    with open_store(user_paths(os.environ).store) as store, level_view() as show:

        def report(progress: SessionProgress) -> None:
            watch(progress)
            show(progress)

        return await run_agents(
            plan,
            endpoint,
            store,
            read_host(),
            scripts_of,
            report,
            texts=texts,
            meter=meter_for(endpoint),
        )


async def _window_of(plan: AgentPlan, endpoint: Endpoint) -> int | None:
    """Return the context that sessions have to fit into; None: the endpoint does not tell it."""
    if plan.window_tokens is not None:
        return plan.window_tokens
    pool = Pool(endpoint.origin)
    try:
        return await context_tokens(pool, endpoint)
    finally:
        await pool.close()


def _sessions_of(source: SessionSource, plan: AgentPlan) -> tuple[AgentPlan, ScriptsOf]:
    """Return the plan with the context of its sessions, and the function that makes them.

    Raises UserError for a context in which no session can begin.
    """
    window_tokens = plan.window_tokens
    if not isinstance(source, SessionShape):
        held = trace_sessions(source, plan.load, window_tokens)
        note(trace_words(plan.load, source, held))
        return plan, partial(repeated, held)
    if window_tokens is None:
        window_tokens = source.wanted_window_tokens
        note(
            f"the endpoint does not tell its context: sessions stay below {window_tokens:,} "
            "tokens; --context N says another"
        )
    check_window(source, window_tokens)
    draw = partial(draw_sessions, source, seed=plan.seed, window_tokens=window_tokens)
    return replace(plan, window_tokens=window_tokens), draw
