"""`skep check`: a preset started, measured with the load of its published figures, and stopped."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from msgspec import to_builtins

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.published import PresetCheck, checked_figure
from skep.bench.sweep import SweepPlan
from skep.bench.tasks import Workload
from skep.catalog.presets import Preset, Published
from skep.cli.presets import CheckOptions
from skep.cli.sweep import fail_for, levels_of, measure, seed_of
from skep.config.presets import preset, presets_folder, serve_of
from skep.deploy.preset_plan import load_lengths, planned_figures
from skep.deploy.resolve import about_preset, check_cards
from skep.errors import EngineError, UserError
from skep.paths import Paths, user_paths
from skep.report.preset_check import check_remarks, print_check
from skep.report.sweep_text import shortfalls
from skep.report.terminal import byte_progress, note, print_json
from skep.tuner.records import ConfigFailed
from skep.tuner.running import running_service
from skep.tuner.trial_server import TrialServers, tuner_lock
from skep.units import one_line, parse_positive_seconds, parse_share


def run_check(options: CheckOptions) -> None:
    """Raise EndpointError where requests failed, EngineError where the preset does not start."""
    paths = user_paths(os.environ)
    checked = preset(options.preset, presets_folder(paths))
    figures = _figures_of(checked, options)
    plan = _plan_of(figures, load_lengths(checked, figures[0]), options)
    planned = planned_figures(checked, paths.store)  # before what is measured now is stored, and corrects it
    summary = measure(plan, partial(_served, checked, options, paths), as_json=options.as_json)
    told = tuple(checked_figure(figure, planned.get(figure), summary) for figure in figures)
    found = PresetCheck(
        checked.name, checked.source, checked.hardware, summary.run_id, simulated=summary.simulated, figures=told
    )
    note(*shortfalls(plan, summary))
    if options.as_json:
        print_json(to_builtins(found))
    else:
        print_check(found)
    note(*check_remarks(found))
    fail_for(summary)


def _figures_of(checked: Preset, options: CheckOptions) -> list[Published]:
    """Return the figures of the lengths that most of them have, in order of C."""
    if not checked.published:
        raise UserError(f"`{checked.name}` has no published figures", hint="`skep bench sweep` measures it")
    lengths = Counter(load_lengths(checked, figure) for figure in checked.published).most_common(1)[0][0]
    figures = [figure for figure in checked.published if load_lengths(checked, figure) == lengths]
    figures.sort(key=lambda figure: figure.concurrency)
    if options.concurrency is None:
        return figures
    levels = levels_of(options.concurrency, "--concurrency")
    known = ", ".join(str(level) for level in sorted({figure.concurrency for figure in figures}))
    chosen = [figure for figure in figures if figure.concurrency in levels]
    if not chosen:
        raise UserError(f"`{checked.name}` has no figure at C={options.concurrency}", hint=f"it has some at C={known}")
    return chosen


def _plan_of(figures: list[Published], lengths: tuple[int, int], options: CheckOptions) -> SweepPlan:
    prompt, answer = lengths
    return SweepPlan(
        concurrency=tuple(sorted({figure.concurrency for figure in figures})),
        runs=options.runs,
        precision=parse_share(options.precision, "--precision"),
        budget_s=parse_positive_seconds(options.budget, "--budget", "15m"),
        workload=Workload(prompt_tokens=prompt, max_tokens=answer, fixed_output=True, seed=seed_of(None)),
        timeout_s=parse_positive_seconds(options.timeout, "--timeout", "15m"),
    )


@asynccontextmanager
async def _served(checked: Preset, options: CheckOptions, paths: Paths) -> AsyncIterator[Endpoint]:
    """Yield the endpoint that is named, else what `skep up` serves, else one that is started for this alone."""
    if options.url is not None or running_service(paths) is not None:
        endpoint = await options.find()
        if endpoint.engine.get("preset") != checked.name:
            _say_other(checked, endpoint, options)
        yield endpoint
        return
    check_cards(checked)
    note(*about_preset(checked, serve_of(checked)))
    note(f"starting {checked.name}; it is stopped when it is measured")
    with tuner_lock(paths), byte_progress("downloading the weights") as progress:
        try:
            async with TrialServers(paths, paths.state / "checks", progress=progress).open(checked) as server:
                yield await find_endpoint(server.url, server.model)
        except ConfigFailed as failed:
            failure = failed.failure
            what = f"`{checked.name}` cannot be checked, it {failure.title}: {failure.cause}"
            raise EngineError(one_line(what, 600), hint=failure.remedy) from None


def _say_other(checked: Preset, endpoint: Endpoint, options: CheckOptions) -> None:
    if options.url is None:
        what = f"skep is up, but {endpoint.url} does not serve the preset `{checked.name}`"
        raise UserError(what, hint="run `skep down` first: `skep check` starts the preset itself")
    note(f"warning: {endpoint.url} does not say that it serves {checked.name}")
