"""`skep check`: a preset started, measured with the load of its published figures, and stopped."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial

from msgspec import to_builtins

from skep.bench.endpoint import Endpoint
from skep.bench.metrics import SweepSummary
from skep.bench.published import PresetCheck, checked_figure
from skep.bench.stored_run import kept_words
from skep.bench.sweep import SweepPlan
from skep.bench.tasks import Workload
from skep.catalog.presets import Preset, Published
from skep.cli.options import Interrupted, run_measuring
from skep.cli.preset_sweep import preset_sweeps, rig_to_simulate
from skep.cli.presets import CheckOptions
from skep.cli.sweep import fail_for, level_view, levels_of, measure, seed_of
from skep.config.presets import preset, presets_folder, serve_of
from skep.deploy.preset_plan import load_lengths, planned_figures
from skep.deploy.resolve import about_preset, check_cards
from skep.errors import EngineError, UserError
from skep.paths import Paths, user_paths
from skep.report.preset_check import check_remarks, print_check
from skep.report.sweep_text import print_summary, shortfalls
from skep.report.terminal import note, print_json
from skep.store.database import open_store
from skep.tuner.preset_sweep import MeasuredPreset
from skep.tuner.running import running_service
from skep.tuner.trial_server import tuner_lock
from skep.units import one_line, parse_positive_seconds, parse_share


def run_check(options: CheckOptions) -> None:
    """Raise EndpointError where requests failed, EngineError where the preset does not start."""
    paths = user_paths(os.environ)
    checked = preset(options.preset, presets_folder(paths))
    rig = rig_to_simulate(options.gpu, simulate=options.simulate)
    figures = _figures_of(checked, options)
    plan = _plan_of(figures, load_lengths(checked, figures[0]), options)
    # Before what is measured now is stored.
    planned = planned_figures(checked, paths.store) if rig is None else {}
    if options.simulate:
        if options.url is not None:
            raise UserError(
                "--simulate starts a simulated rig, and --url names an endpoint",
                hint="leave one out",
            )
        summary = _measure_started(checked, plan, options, paths, rig)
    elif options.url is not None or running_service(paths) is not None:
        summary = measure(plan, partial(_served, checked, options), as_json=options.as_json)
    else:
        note(*about_preset(checked, serve_of(checked)))
        check_cards(checked)
        summary = _measure_started(checked, plan, options, paths, rig)
    checked_figures = tuple(
        checked_figure(figure, planned.get(figure), summary) for figure in figures
    )
    preset_check = PresetCheck(
        checked.name,
        checked.source,
        checked.hardware,
        summary.run_id,
        simulated=summary.simulated,
        figures=checked_figures,
        rig=rig,
    )
    note(*shortfalls(plan, summary))
    if options.as_json:
        print_json(to_builtins(preset_check))
    else:
        print_check(preset_check)
    note(*check_remarks(preset_check))
    fail_for(summary)


def _figures_of(checked: Preset, options: CheckOptions) -> list[Published]:
    """Return the figures of the lengths that most of them have, in order of C."""
    if not checked.published and checked.broken is not None:
        message = f"`{checked.name}` has no published figures: its author could not start it"
        raise UserError(message, hint=f"what was seen: {checked.broken}")
    if not checked.published:
        raise UserError(
            f"`{checked.name}` has no published figures", hint="`skep bench sweep` measures it"
        )
    lengths = Counter(load_lengths(checked, figure) for figure in checked.published).most_common(
        1
    )[0][0]
    figures = [figure for figure in checked.published if load_lengths(checked, figure) == lengths]
    figures.sort(key=lambda figure: figure.concurrency)
    if options.concurrency is None:
        return figures
    levels = levels_of(options.concurrency, "--concurrency")
    published_levels = ", ".join(
        str(level) for level in sorted({figure.concurrency for figure in figures})
    )
    chosen = [figure for figure in figures if figure.concurrency in levels]
    if not chosen:
        raise UserError(
            f"`{checked.name}` has no figure at C={options.concurrency}",
            hint=f"it has some at C={published_levels}",
        )
    return chosen


def _plan_of(
    figures: list[Published], lengths: tuple[int, int], options: CheckOptions
) -> SweepPlan:
    prompt, answer = lengths
    return SweepPlan(
        concurrency=tuple(sorted({figure.concurrency for figure in figures})),
        runs=options.runs,
        precision=parse_share(options.precision, "--precision"),
        budget_s=parse_positive_seconds(options.budget, "--budget", "15m"),
        workload=Workload(
            prompt_tokens=prompt, max_tokens=answer, fixed_output=True, seed=seed_of(None)
        ),
        timeout_s=parse_positive_seconds(options.timeout, "--timeout", "15m"),
    )


def _measure_started(
    checked: Preset, plan: SweepPlan, options: CheckOptions, paths: Paths, rig: str | None
) -> SweepSummary:
    """Start, measure and stop it. On Ctrl-C, print what there is of the run, unless as JSON, and
    raise Interrupted.
    """
    results: list[MeasuredPreset] = []
    if options.simulate:
        simulated = f"SIMULATED on {rig or checked.hardware}"
    else:
        simulated = ""
    note(f"starting {checked.name} {simulated}".rstrip() + "; it is stopped when it is measured")
    lock = nullcontext() if options.simulate else tuner_lock(paths)

    async def run() -> MeasuredPreset:
        with level_view() as show:
            return await sweeps.measure(checked, show, results.append)

    with lock, open_store(paths.store) as store:
        try:
            with preset_sweeps(
                paths, store, plan, "checks", simulate=options.simulate, rig=rig
            ) as sweeps:
                result = run_measuring(run)
        except Interrupted:
            raise _interrupted(results, as_json=options.as_json) from None
    if (failure := result.failure) is not None:
        message = f"`{checked.name}` cannot be checked, it {failure.title}: {failure.cause}"
        raise EngineError(one_line(message, 600), hint=failure.remedy)
    assert result.summary is not None
    return result.summary


def _interrupted(results: Sequence[MeasuredPreset], *, as_json: bool) -> Interrupted:
    summary = results[0].summary if results else None
    if summary is None:
        return Interrupted("interrupted before anything was measured", hint=None)
    if not as_json:
        print_summary(summary)
    return Interrupted(hint=kept_words(summary))


@asynccontextmanager
async def _served(checked: Preset, options: CheckOptions) -> AsyncIterator[Endpoint]:
    """Yield the endpoint that is named, else what `skep up` serves."""
    endpoint = await options.find()
    if endpoint.engine.get("preset") != checked.name:
        _say_other(checked, endpoint, options)
    yield endpoint


def _say_other(checked: Preset, endpoint: Endpoint, options: CheckOptions) -> None:
    if options.url is None:
        message = f"skep is up, but {endpoint.url} does not serve the preset `{checked.name}`"
        raise UserError(
            message, hint="run `skep down` first: `skep check` starts the preset itself"
        )
    note(f"warning: {endpoint.url} does not say that it serves {checked.name}")
