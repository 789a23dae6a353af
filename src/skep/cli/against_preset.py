"""`skep bench sweep --against-preset`: the published shape run again, and how much of the figures is had here."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import click

from skep.bench.against_preset import (
    Rerun,
    check_model,
    differences,
    environment_of,
    judge,
    observed,
    observed_run,
    rerun_of,
)
from skep.bench.compare import ComparedRun
from skep.bench.stored_run import load_run
from skep.catalog.presets import Preset, missing_needs
from skep.cli.bench import SweepOptions
from skep.cli.options import EndpointOptions, existing, run_measuring
from skep.cli.sweep import measure, plan_of, show, workload_of
from skep.config.presets import preset, presets_folder
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.report.sweep_text import print_against, shortfalls
from skep.report.terminal import note


def sweep(context: click.Context, options: SweepOptions) -> None:
    """Carry out `skep bench sweep --against-preset`. What the user gave stays as it is."""
    if options.against_preset is None:
        raise UserError("--shape-of goes with --against-preset", hint="name the preset whose figure it is")
    sources = {name: context.get_parameter_source(name) for name in context.params}
    own = frozenset(name for name, source in sources.items() if source and source.name == "COMMANDLINE")
    found = preset(options.against_preset, presets_folder(user_paths(os.environ)))
    rerun = rerun_of(found, options.shape_of)
    plan = plan_of(rerun_options(options, rerun, own))
    note(*(f"warning: {line}" for line in beforehand(found, options)))
    note(f"{found.name}: {rerun.shape}, C={','.join(map(str, rerun.levels))} as published ({found.source})")
    summary = measure(plan, options)
    note(*shortfalls(plan, summary))
    with existing() as store:
        run, _, rows = load_run(store, summary.run_id)
    missing = missing_needs(found, environment_of(run, os.environ))
    verdict = judge(found, ComparedRun(summary, rows), observed_run(run), missing)
    more = {"against_preset": verdict.document()}
    show(summary, price=options.price, as_json=options.as_json, more=more, then=lambda: print_against(verdict))


def beforehand(found: Preset, target: EndpointOptions) -> list[str]:
    """Return what stands against a comparison, before minutes are spent on it. Another model is refused."""
    endpoint = run_measuring(target.find)
    check_model(found, endpoint.model, endpoint.url)
    cards = [gpu.name for gpu in read_host().gpus]
    seen = observed(endpoint.model, endpoint.engine, endpoint.url, cards, simulated=endpoint.simulated)
    return differences(found, seen)


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
