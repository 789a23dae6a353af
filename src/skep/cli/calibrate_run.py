"""What the commands of `skep calibrate` do: fit the planner to an endpoint, list what was found,
validate it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skep.report.terminal import note, print_json

if TYPE_CHECKING:
    from skep.report.liveview import Line, Page
import os
import random

from skep.bench.calibration import (
    CalibrationPlan,
    Described,
    SetupFlags,
    describe,
    discard,
    fitted_record,
    measure,
)
from skep.catalog.gpus import HostFacts
from skep.cli.calibrate import CalibrateOptions
from skep.cli.options import Interrupted, run_measuring
from skep.cli.sweep import level_view, levels_of, maker_for
from skep.deploy.stored_calibration import calibration_json, host_key, is_sweep
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.report.catalog import print_calibration, print_validation
from skep.report.terminal import day_and_time, print_list, print_table
from skep.store.database import Store, open_store, read_store
from skep.store.records import CalibrationRecord
from skep.units import format_seconds, number, parse_positive_seconds

MOST_LEVEL = 8  # of the higher level, unless a flag says so


def run_calibration(options: CalibrateOptions) -> None:
    budget_s = parse_positive_seconds(options.budget, "--budget", "5m")
    _ = options.address  # an error here, before anything is stored
    host = read_host()
    seed = random.SystemRandom().randrange(2**31)
    with open_store(user_paths(os.environ).store) as store:
        try:
            calibration = run_measuring(lambda: _calibrate(options, host, store, budget_s, seed))
            store.append_calibration(calibration)
        except BaseException as error:
            discard(store, seed)
            if isinstance(error, Interrupted):
                error.hint = "nothing was stored"
            raise
    if options.as_json:
        print_json(calibration_json(calibration))
        return
    print_calibration(calibration)
    note(f"stored as calibration {calibration.id}; plans for this machine use it from now on")


async def _calibrate(
    options: CalibrateOptions, host: HostFacts, store: Store, budget_s: float, seed: int
) -> CalibrationRecord:
    endpoint = await options.find()
    flags = SetupFlags(**{name: getattr(options, name) for name in SetupFlags.__struct_fields__})
    described = describe(flags, endpoint, host)
    plan = _plan(options, described, budget_s, seed)
    note(*described.notes)
    setup = described.setup
    rig = described.rig
    levels = ",".join(map(str, plan.levels))
    note(
        f"{endpoint.model} at {endpoint.url}: {setup.model.id} {setup.quant.title}, "
        f"{setup.layout} on "
        f"{rig.title}, as {setup.engine}; C={levels}, then prompts of {plan.prompt_tokens}; "
        f"{format_seconds(budget_s)} at most"
    )
    with level_view() as show:
        taken = await measure(plan, endpoint, store, host, maker_for, show)
    calibration, warnings = fitted_record(endpoint, described, taken, host)
    note(*warnings)
    return calibration


def _plan(
    options: CalibrateOptions, described: Described, budget_s: float, seed: int
) -> CalibrationPlan:
    capacity = described.capacity
    setup = described.setup
    if options.levels is None:
        widest = min(MOST_LEVEL, capacity or MOST_LEVEL)
        levels: tuple[int, ...] = (1, widest) if widest > 1 else (1,)
    else:
        levels = levels_of(options.levels, "--concurrency")
    if levels[0] != 1 or len(levels) > 2:
        hint = "write --concurrency 1,8"
        raise UserError(
            f"--concurrency `{options.levels}` is not 1 and one higher level", hint=hint
        )
    beyond = next((level for level in levels if capacity is not None and level > capacity), None)
    if beyond is not None:
        message = (
            f"C={beyond} is beyond the {capacity} slots of `{setup.model.id}`: queueing would "
            "spoil the fit"
        )
        raise UserError(message, hint=f"choose {capacity} at most")
    crowd = levels[1] if len(levels) > 1 else None
    return CalibrationPlan(crowd, budget_s, options.prompt_tokens, seed)


def print_calibrations(*, as_json: bool) -> None:
    this_machine = host_key(read_host())

    def cells(row: CalibrationRecord) -> list[str]:
        if row.simulated:
            where = "simulated"
        else:
            where = "here" if row.host == this_machine else row.host
        where += ", by a sweep" if is_sweep(row) else ""
        factors = [number(factor, digits=2) for factor in (row.decode, row.batch, row.prompt)]
        setup = [row.model, row.quant, row.engine, row.layout, row.rig]
        return [row.id, day_and_time(row.created_at), where, *setup, *factors]

    columns = "CALIBRATION|WHEN|WHERE|MODEL|QUANT|ENGINE|LAYOUT|ON|>STEPS|>FURTHER|>PROMPTS"
    none_yet = "there are no calibrations yet; `skep calibrate` makes one"
    print_list(
        _kept(),
        partial(print_table, columns, cells),
        calibration_json,
        as_json=as_json,
        none_yet=none_yet,
    )


def show_calibration(name: str, *, as_json: bool) -> None:
    row = _named(name)
    if as_json:
        print_json(calibration_json(row))
    else:
        print_calibration(row)
        note(
            f"measured at {row.document.get('url')}, runs "
            f"{', '.join(row.document.get('runs', []))}"
        )


def forget_calibration(name: str) -> None:
    row = _named(name)
    with open_store(user_paths(os.environ).store) as store:
        store.delete_calibrations([row.id])
    note(f"calibration {row.id} of {row.model} ({row.engine}) is deleted")


def _kept() -> list[CalibrationRecord]:
    with read_store(user_paths(os.environ).store) as store:
        return store.calibrations()


def _named(name: str) -> CalibrationRecord:
    rows = _kept()
    if name == "last":
        records = rows[:1]
    else:
        records = [row for row in rows if name and row.id.startswith(name)]
    if len(records) == 1:
        return records[0]
    hint = "`skep calibrate list` shows them all"
    if records:
        raise UserError(
            f"calibration `{name}` could be {' or '.join(f'`{row.id}`' for row in records[:3])}",
            hint=hint,
        )
    raise UserError(
        f"there is no calibration `{name}`" if rows else "there are no calibrations yet", hint=hint
    )


def validate(points: Path, as_json: bool) -> None:
    from skep.files import read_user_text
    from skep.planner.validation import read_rows
    from skep.planner.validation import validate as compare
    from skep.report.liveview import progress_bar, progress_view

    rows = read_rows(read_user_text(points), str(points))

    def bar(done: int, _page: Page) -> list[Line]:
        return [[(f"predicting  {progress_bar(done, len(rows))}  {done}/{len(rows)}", "")]]

    with progress_view(lambda _done: None, bar) as tick:
        report = compare(rows, tick=tick)
    if as_json:
        print_json(report.document())
    else:
        print_validation(report, points.name)
