"""What `skep calibrate` does: describe what answers, measure it, fit, keep, and say what was found."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime
from typing import Any

from skep.bench.calibration import CalibrationPlan, Taken, discard, measure
from skep.bench.endpoint import Endpoint
from skep.bench.stored_tuning import (
    calibration_for,
    fitted_now,
    host_key,
    measured_of,
    rig_of,
    setup_of,
)
from skep.cli.bench_options import running_url
from skep.cli.benching import Interrupted, Target, maker_for, positive_seconds, run_measuring
from skep.cli.calibration_setup import Described, Wishes, describe
from skep.cli.liveview import live_view
from skep.cli.output import note, number, print_json, print_table
from skep.cli.sweep import levels_of
from skep.errors import UserError
from skep.host.facts import read_host
from skep.places import LOOPBACK, user_paths
from skep.planner.calibration import Fitted, Measured, before_and_after, fit, foresight
from skep.planner.constants import published_constants
from skep.planner.setup import Rig, Setup
from skep.records import HostFacts
from skep.store.calibrations import Calibration
from skep.store.database import Store, open_store
from skep.store.ids import new_suffix
from skep.units import format_seconds

MOST_LEVEL = 8  # of the higher level, unless a flag says so


def run_calibration(wishes: Wishes, *, as_json: bool) -> None:
    budget_s = positive_seconds(wishes.budget, "--budget", "5m")
    target = Target(wishes.url or running_url(None), wishes.model, wishes.key_env)
    host, seed = read_host(), random.SystemRandom().randrange(2**31)
    with open_store(user_paths(os.environ).store) as store:
        try:
            found = run_measuring(lambda: _calibrate(wishes, target, host, store, budget_s, seed))
            store.append_calibration(found)
        except Interrupted as error:
            discard(store, seed)
            error.hint = "nothing was stored"
            raise
        except BaseException:
            discard(store, seed)
            raise
    _tell(found, as_json=as_json)


async def _calibrate(
    wishes: Wishes, target: Target, host: HostFacts, store: Store, budget_s: float, seed: int
) -> Calibration:
    endpoint = await target.find()
    described = describe(wishes, endpoint, host)
    plan = _plan(wishes, described, budget_s, seed)
    for line in described.notes:
        note(line)
    setup, rig = described.setup, described.rig
    levels = ",".join(map(str, plan.levels))
    simulated = " (simulated)" if endpoint.simulated else ""
    note(
        f"{endpoint.model}{simulated} at {endpoint.url}: {setup.model.id} {setup.quant.title}, {setup.layout} on "
        f"{rig.title}, as {setup.engine}; C={levels}, then prompts of {plan.prompt_tokens}; "
        f"{format_seconds(budget_s)} at most"
    )
    with live_view() as show:
        taken = await measure(plan, endpoint, store, host, maker_for, show)
    return _fitted_row(endpoint, described, taken, host)


def _plan(wishes: Wishes, described: Described, budget_s: float, seed: int) -> CalibrationPlan:
    capacity, setup = described.capacity, described.setup
    if wishes.levels is None:
        widest = min(MOST_LEVEL, capacity or MOST_LEVEL)
        levels: tuple[int, ...] = (1, widest) if widest > 1 else (1,)
    else:
        levels = levels_of(wishes.levels, "--levels")
    held_back = levels_of(wishes.check, "--check") if wishes.check else ()
    if levels[0] != 1 or len(levels) > 2:
        raise UserError(f"--levels `{wishes.levels}` is not 1 and one more", hint="write it as --levels 1,8")
    beyond = next((level for level in (*levels, *held_back) if capacity is not None and level > capacity), None)
    if beyond is not None:
        what = f"C={beyond} is beyond the {capacity} slots of `{setup.model.id}`: queueing would spoil the fit"
        raise UserError(what, hint=f"choose {capacity} at most")
    crowd = levels[1] if len(levels) > 1 else None
    held_back = tuple(level for level in held_back if level not in levels)
    return CalibrationPlan(crowd, held_back, budget_s, wishes.prompt_tokens, seed)


def _fitted_row(endpoint: Endpoint, described: Described, taken: Taken, host: HostFacts) -> Calibration:
    setup, rig, measured = described.setup, described.rig, taken.measured
    fitted = fit(foresight(setup, rig, published_constants(), measured), measured)
    if taken.drift is not None and not taken.drift.contains(1.0):
        note(f"warning: one agent alone was {taken.drift.estimate:.2f} times as fast at the end as at the beginning")
    for name in fitted.at_limit:
        note(f"warning: the factor on {name} was cut to its limit; are --gpu, --quant and --engine what really runs?")
    at = time.time()
    here = endpoint.origin.host in LOOPBACK
    return calibration_for(
        setup, rig, measured, fitted, host,
        name=f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{new_suffix()}",
        at=at,
        where=host_key(host) if here else str(endpoint.origin),
        simulated=endpoint.simulated,
        more={"url": endpoint.url, "runs": list(taken.run_ids), "engine": dict(endpoint.engine)},
    )  # fmt: skip


def _tell(row: Calibration, *, as_json: bool) -> None:
    if as_json:
        print_json(document(row))
        return
    print_one(row)
    used = "simulated: plans do not use it" if row.simulated else "plans for this machine use it from now on"
    note(f"kept as calibration {row.id}; {used}")


def print_one(row: Calibration) -> None:
    fitted = fitted_now(row)
    print(f"{row.model} {row.quant}, {row.layout} on {row.rig}, {row.engine}: {fitted}")  # noqa: T201
    columns = ("C", "RUNS", "tok/s EACH", "±", "BEFORE", "AFTER", "OFF", "tok/s ALL", "AFTER ALL", "")
    rows = [
        [
            str(level["concurrency"]),
            str(level["runs"]),
            number(level["task_tok_s"]),
            f"{100 * level['spread']:.1f} %",
            number(level["predicted_before"]),
            number(level["predicted_after"]),
            f"{100 * (level['predicted_after'] / level['task_tok_s'] - 1):+.1f} %",
            number(level["effective_tok_s"]),
            number(level["effective_after"]),
            "" if level["fitted"] else "not fitted to",
        ]
        for level in levels_json(row, fitted)
    ]
    print_table(columns, rows, right=columns[:-1])
    prompts = measured_of(row.document).prompts
    spread = 100 * prompts.ttft_s.half_width
    print(f"first token of {prompts.input_tokens:.0f} tokens: {1000 * prompts.ttft_s.estimate:.0f} ms ± {spread:.0f} %")  # noqa: T201


def document(row: Calibration) -> dict[str, Any]:
    fitted = fitted_now(row)
    names = ("id", "created_at", "host", "model", "engine", "quant", "layout", "rig", "simulated", "skep_version")
    tuning = fitted.tuning
    return {
        **{name: getattr(row, name) for name in names},
        "url": row.document.get("url"),
        "runs": row.document.get("runs", []),
        "tuning": {"decode": tuning.decode, "batch": tuning.batch if fitted.batch else None, "prompt": tuning.prompt},
        "intervals": {
            name: [found.low, found.high] if found else None
            for name, found in (("decode", fitted.decode), ("batch", fitted.batch), ("prompt", fitted.prompt))
        },
        "words": str(fitted),
        "at_limit": list(fitted.at_limit),
        "levels": levels_json(row, fitted),
    }


def levels_json(row: Calibration, fitted: Fitted) -> list[dict[str, Any]]:
    """Each level as it was measured, and as it is predicted without and with the calibration."""
    setup, rig, measured = setup_of(row.document), rig_of(row.document), measured_of(row.document)
    return [] if rig is None else _levels(setup, rig, measured, fitted)


def _levels(setup: Setup, rig: Rig, measured: Measured, fitted: Fitted) -> list[dict[str, Any]]:
    foresee = foresight(setup, rig, published_constants(), measured)
    held_back = {seen.concurrency for seen in measured.held_back}
    rows = []
    for seen in measured.levels:
        before, after = before_and_after(foresee, fitted, seen)
        rows.append(
            {
                "concurrency": seen.concurrency,
                "runs": seen.runs,
                "fitted": seen.concurrency not in held_back,
                "task_tok_s": 1 / seen.tpot_s.estimate,
                "spread": seen.tpot_s.half_width,
                "predicted_before": 1 / before.tpot_s,
                "predicted_after": 1 / after.tpot_s,
                "effective_tok_s": seen.effective_tok_s.estimate,
                "effective_after": after.effective_tok_s,
                "ttft_ms": 1000 * seen.ttft_s.estimate,
                "ttft_ms_after": 1000 * after.ttft_s,
            }
        )
    return rows


def print_calibrations(*, as_json: bool) -> None:
    rows = _kept()
    if as_json:
        print_json([document(row) for row in rows])
        return
    if not rows:
        note("nothing was calibrated yet; `skep calibrate` does it")
        return
    here = host_key(read_host())
    columns = (
        "CALIBRATION",
        "WHEN",
        "WHERE",
        "MODEL",
        "QUANT",
        "ENGINE",
        "LAYOUT",
        "ON",
        "STEPS",
        "FURTHER",
        "PROMPTS",
    )
    cells = [
        [
            row.id, datetime.fromtimestamp(row.created_at).astimezone().strftime("%Y-%m-%d %H:%M"),
            "simulated" if row.simulated else "here" if row.host == here else row.host, row.model, row.quant,
            row.engine, row.layout, row.rig, number(row.decode, 2), number(row.batch, 2), number(row.prompt, 2),
        ]
        for row in rows
    ]  # fmt: skip
    print_table(columns, cells, right=("STEPS", "FURTHER", "PROMPTS"))


def show_calibration(name: str, *, as_json: bool) -> None:
    row = _named(name)
    if as_json:
        print_json(document(row))
    else:
        print_one(row)
        note(f"measured at {row.document.get('url')}, runs {', '.join(row.document.get('runs', []))}")


def forget_calibration(name: str) -> None:
    row = _named(name)
    with open_store(user_paths(os.environ).store) as store:
        store.delete_calibrations([row.id])
    note(f"calibration {row.id} of {row.model} ({row.engine}) is forgotten")


def _kept() -> list[Calibration]:
    path = user_paths(os.environ).store
    if not path.exists():
        return []
    with open_store(path, read_only=True) as store:
        return store.calibrations()


def _named(name: str) -> Calibration:
    rows = _kept()
    found = rows[:1] if name == "last" else [row for row in rows if name and row.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    hint = "`skep calibrations list` shows them all"
    if found:
        raise UserError(f"calibration `{name}` could be {' or '.join(f'`{row.id}`' for row in found[:3])}", hint=hint)
    raise UserError(f"there is no calibration `{name}`" if rows else "nothing was calibrated yet", hint=hint)
