"""`skep bench presets`: several presets started, measured and stopped in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

from skep.bench.sweep import SweepPlan
from skep.catalog.presets import Preset
from skep.cli.bench import PresetsOptions
from skep.cli.options import Interrupted, run_measuring
from skep.cli.sweep import AUTO, level_view, maker_for, meter_for, plan_of
from skep.config.presets import preset, presets_folder
from skep.config.rigs import find_rig
from skep.errors import EngineError, UserError
from skep.files import HTML
from skep.host.facts import read_host
from skep.paths import Paths, user_paths
from skep.report.preset_table import (
    measured,
    presets_document,
    presets_page,
    presets_words,
    print_presets,
)
from skep.report.terminal import byte_progress, note, print_json
from skep.store.database import Store, open_store
from skep.tuner.preset_sweep import MeasuredPreset, PresetSweeps
from skep.tuner.running import running_service
from skep.tuner.trial_server import TrialServers, tuner_lock


def run_presets_command(options: PresetsOptions) -> None:
    paths = user_paths(os.environ)
    plan = plan_of(options)
    output = options.output.checked(suffixes=HTML)
    presets = presets_of(options.presets, paths)
    if plan.finds_knee:
        levels = AUTO
    else:
        levels = ",".join(map(str, plan.concurrency))
    rig = rig_to_simulate(options.gpu, simulate=options.simulate)
    note(f"{presets_words(len(presets))}, C={levels}, {plan.budget_s:g} s each at most")
    results: list[MeasuredPreset] = []
    with (
        nullcontext() if options.simulate else tuner_lock(paths),
        open_store(paths.store) as store,
    ):
        if not options.simulate:
            _check_free(paths)
        opened = preset_sweeps(
            paths, store, plan, "preset-sweeps", simulate=options.simulate, rig=rig
        )
        interrupted = _measured_until(presets, opened, results)
        if measured(results):
            page = presets_page(store, results)
        else:
            page = None
    if page is not None:
        output.write(page)
    if options.as_json:
        print_json(
            presets_document(
                results, simulated=options.simulate, report=str(output) if page else None
            )
        )
    elif results:
        print_presets(results, () if plan.finds_knee else plan.concurrency)
    if page is not None:
        note(f"pictures: {output}")
    if interrupted is not None:
        raise Interrupted(_left_words(presets, results), hint=interrupted.hint)
    if page is None:
        hint = (
            "`skep presets show NAME` has its needs; `skep bench presets --help` explains "
            "--simulate"
        )
        raise EngineError("no preset was measured", hint=hint)


def _measured_until(
    presets: Sequence[Preset],
    opened: AbstractContextManager[PresetSweeps],
    results: list[MeasuredPreset],
) -> Interrupted | None:
    """Measure all presets into `results`; return the interruption that ended it before."""
    try:
        with opened as sweeps:
            run_measuring(partial(_measure_all, presets, sweeps, results))
    except Interrupted as error:
        return error
    return None


def _left_words(presets: Sequence[Preset], results: Sequence[MeasuredPreset]) -> str:
    unmeasured = len(presets) - sum(not result.interrupted for result in results)
    verb = "is" if unmeasured == 1 else "are"
    return f"stopped, {unmeasured} of {presets_words(len(presets))} {verb} not measured to the end"


def presets_of(names: Sequence[str], paths: Paths) -> list[Preset]:
    """Return the presets, each once. A name that is none is told before anything is started."""
    if not names:
        raise UserError("no preset is named", hint="`skep presets` lists them")
    folder = presets_folder(paths)
    return [preset(name, folder) for name in dict.fromkeys(names)]


def _check_free(paths: Paths) -> None:
    service = running_service(paths)
    if service is None:
        return
    if service.gpus:
        raise EngineError(
            f"the GPUs are in use: {service}", hint="`skep down` first; --simulate needs no GPU"
        )
    note(f"warning: {service}; its requests slow down what is measured here")


async def _measure_all(
    presets: Sequence[Preset], sweeps: PresetSweeps, results: list[MeasuredPreset]
) -> None:
    for number, measured_preset in enumerate(presets, 1):
        simulated = "SIMULATED " if sweeps.simulate else ""
        rig = sweeps.rig or measured_preset.hardware
        note(f"{number}/{len(presets)} {measured_preset.name}: starting {simulated}on {rig}")
        with level_view() as on_progress:
            result = await sweeps.measure(measured_preset, on_progress, results.append)
        results.append(result)
        if result.failure is not None:
            note(f"{measured_preset.name} {result.failure.title}")


@contextmanager
def preset_sweeps(
    paths: Paths, store: Store, plan: SweepPlan, folder: str, *, simulate: bool, rig: str | None
) -> Iterator[PresetSweeps]:
    """Yield what measures presets. `folder`: under the state, for logs of engines that failed."""
    work = paths.state / folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    with byte_progress("downloading the weights") as progress, _removed_if_empty(work):
        yield PresetSweeps(
            paths=paths,
            servers=TrialServers(paths, work, progress=progress),
            store=store,
            host=read_host(),
            plan=plan,
            maker_for=maker_for,
            meter_for=meter_for,
            say=note,
            simulate=simulate,
            rig=rig,
        )


def rig_to_simulate(gpu: str | None, *, simulate: bool) -> str | None:
    """Return the rig that is named, which is known."""
    if gpu is None:
        return None
    if not simulate:
        raise UserError(
            "--gpu needs --simulate",
            hint="add --simulate; without it, this machine's GPUs are measured",
        )
    find_rig(gpu)
    return gpu


@contextmanager
def _removed_if_empty(folder: Path) -> Iterator[None]:
    """Make a folder for engines' logs. Logs of those that failed stay in it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for place in (folder, folder.parent):
            with suppress(OSError):
                place.rmdir()
