"""`skep bench sweep --against-preset`: the published shape run again, and how much of the figures is had here."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

import typer

from skep.bench.against_preset import (
    FigureComparison,
    ObservedServer,
    PresetComparison,
    Rerun,
    check_model,
    differences,
    judge,
    rerun_of,
)
from skep.bench.compare import ComparedRun
from skep.bench.stored_run import load_run
from skep.catalog.needs import RunEnvironment, missing_needs
from skep.catalog.presets import Preset
from skep.cli.bench import SweepOptions
from skep.cli.bench_common import run_measuring, workload_of
from skep.cli.options import EndpointOptions, existing
from skep.cli.output import note, number, print_table
from skep.cli.sweep import measure, plan_of, shortfalls, show
from skep.config.presets import preset, presets_folder
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import LOOPBACK, user_paths
from skep.report.levels import range_text
from skep.store.records import StoredRun
from skep.wire.heads import parse_url


def sweep(context: typer.Context, options: SweepOptions) -> None:
    """Carry out `skep bench sweep --against-preset`."""
    if options.against_preset is None:
        raise UserError("--shape-of goes with --against-preset", hint="name the preset whose figure it is")
    sources = {name: context.get_parameter_source(name) for name in context.params}
    own = frozenset(name for name, source in sources.items() if source and source.name == "COMMANDLINE")
    run_against_command(options, options.against_preset, own)


def run_against_command(options: SweepOptions, name: str, own: Collection[str]) -> None:
    """`own`: options that the user gave, which stay as they are."""
    found = preset(name, presets_folder(user_paths(os.environ)))
    rerun = rerun_of(found, options.shape_of)
    plan = plan_of(rerun_options(options, rerun, own))
    note(*(f"warning: {line}" for line in beforehand(found, options)))
    note(f"{found.name}: {rerun.shape}, C={','.join(map(str, rerun.levels))} as published ({found.source})")
    summary = measure(plan, options)
    note(*shortfalls(plan, summary))
    with existing() as store:
        run, _, rows = load_run(store, summary.run_id)
    verdict = judge(found, ComparedRun(summary, rows), seen_of(run), missing_needs(found, here_of(run)))
    more = {"against_preset": verdict_json(verdict)}
    show(summary, price=options.price, as_json=options.as_json, more=more, then=lambda: print_verdict(verdict))


def beforehand(found: Preset, target: EndpointOptions) -> list[str]:
    """Return what stands against a comparison, before minutes are spent on it. Another model is refused."""
    endpoint = run_measuring(target.find)
    check_model(found, endpoint.model, endpoint.url)
    cards = tuple(gpu.name for gpu in read_host().gpus) if _is_here(endpoint.url) else None
    return differences(found, _seen(endpoint.model, endpoint.engine, endpoint.simulated, cards))


def rerun_options(options: SweepOptions, rerun: Rerun, own: Collection[str]) -> SweepOptions:
    """As published, but for what the user said otherwise. Every answer goes on to its length, as a benchmark's do."""
    workload_of(options)
    if options.to_saturation or options.slo:
        option = "--to-saturation" if options.to_saturation else "--slo"
        raise UserError(f"--against-preset and {option} contradict each other", hint="leave one of them out")
    if options.shape not in ("steady", "burst"):
        hint = "leave --shape out"
        raise UserError(f"--against-preset runs plain prompts, not the shape {options.shape}", hint=hint)
    as_published = {
        "prompt_tokens": rerun.shape.input_tokens,
        "max_tokens": rerun.shape.output_tokens,
        "concurrency": ",".join(map(str, rerun.levels)),
    }
    kept = {*own, "prompt_tokens"} if "size" in own else own
    changed: dict[str, Any] = {name: value for name, value in as_published.items() if name not in kept}
    return replace(options, fixed_output=True, **changed)


def seen_of(run: StoredRun) -> ObservedServer:
    """Cards are this machine's, where the endpoint is."""
    cards = tuple(str(gpu["name"]) for gpu in run.host.get("gpus") or ()) if _is_here(run.url) else None
    return _seen(run.model, run.engine, run.simulated, cards)


def _seen(model: str, told: Mapping[str, Any], simulated: bool, cards: tuple[str, ...] | None) -> ObservedServer:
    words = [told.get("engine"), told.get("build"), told.get("server")]
    named = next((str(word) for word in words if word), None)
    return ObservedServer(model, named, simulated, cards)


def _is_here(url: str) -> bool:
    return parse_url(url)[0].host in LOOPBACK


def here_of(run: StoredRun) -> RunEnvironment:
    """As far as it can be known through a URL: the driver is this machine's where the endpoint is."""
    driver = run.host.get("driver_version") if _is_here(run.url) else None
    engine = run.engine.get("engine")
    return RunEnvironment(engine_version=str(engine) if engine else None, driver_version=driver, env=os.environ)


def print_verdict(verdict: PresetComparison) -> None:
    columns = ">figure|>C|>published|metric|clock|>measured|95 %|>of it"
    print_table(columns, [_cells(row) for row in verdict.rows])
    for row in verdict.rows:
        if row.why is not None:
            what = "not compared" if row.ratio is None else "not quite the same"
            note(f"figure {row.row} ({_figure(row)}): {what}: {row.why}")
    note(headline(verdict))


def headline(verdict: PresetComparison) -> str:
    best = verdict.best
    if best is not None:
        return f"you get {_share(best)} of it: {number(best.measured)} of the published {_figure(best)}"
    rated = [row for row in verdict.rows if row.ratio is not None]
    if not rated:
        return f"none of the published figures of {verdict.preset} can be compared with this run"
    most = max(rated, key=lambda row: row.published.tok_s)
    return f"{_share(most)} of the published {_figure(most)}, under other conditions: see figure {most.row} above"


def verdict_json(verdict: PresetComparison) -> dict[str, Any]:
    """Return the documented form: docs/json.md."""
    return {
        "preset": verdict.preset,
        "shape": asdict(verdict.shape) if verdict.shape else None,
        "differences": list(verdict.differences),
        "figures": [_row_json(row) for row in verdict.rows],
    }


def _row_json(row: FigureComparison) -> Mapping[str, Any]:
    return {
        "figure": row.row,
        "published": asdict(row.published),
        "measured": row.measured,
        "interval": asdict(row.interval) if row.interval else None,
        "runs": list(row.runs),
        "clock": row.clock,
        "ratio": row.ratio,
        "ratio_interval": asdict(row.ratio_interval) if row.ratio_interval else None,
        "fair": row.fair,
        "why": row.why,
    }


def _cells(row: FigureComparison) -> list[str]:
    figure = row.published
    return [
        str(row.row),
        str(figure.concurrency),
        number(figure.tok_s),
        figure.metric,
        figure.clock or "not said",
        number(row.measured),
        range_text(row.interval, row.runs),
        "–" if row.ratio is None else f"{100 * row.ratio:.0f} %" if row.fair else f"({100 * row.ratio:.0f} %)",
    ]


def _share(row: FigureComparison) -> str:
    spread = row.ratio_interval
    told = f" ({100 * spread.low:.0f} to {100 * spread.high:.0f} %)" if spread else ""
    return f"{100 * (row.ratio or 0.0):.0f} %{told}"


def _figure(row: FigureComparison) -> str:
    figure = row.published
    version = f", {figure.engine_version}" if figure.engine_version else ""
    return f"{figure.tok_s:g} tok/s {figure.metric} at C={figure.concurrency}{version}"
