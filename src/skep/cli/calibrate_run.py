"""What `skep calibrate` does: describe what answers, measure it, fit, keep, and say what was found."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from skep.bench.calibration import CalibrationPlan, CalibrationRuns, discard, measure
from skep.bench.endpoint import Endpoint
from skep.catalog.gpus import HostFacts
from skep.catalog.models import find_geometry
from skep.catalog.pullable import find_pullable
from skep.cli.bench_common import Interrupted, level_view, maker_for, positive_seconds, run_measuring
from skep.cli.calibrate import CalibrateOptions
from skep.cli.output import day_and_time, note, number, print_json, print_list, print_table
from skep.cli.sweep import levels_of
from skep.deploy.plan_request import ModelFound, PlanFlags, pins_of, read_model
from skep.deploy.stored_calibration import (
    calibration_for,
    fitted_now,
    host_key,
    measured_of,
    rig_of,
    setup_of,
)
from skep.errors import UserError
from skep.host.facts import memory_bandwidth_gbs, read_host
from skep.paths import LOOPBACK, user_paths
from skep.planner.calibration import CalibrationData, Fitted, before_and_after, fit, speed_model_maker
from skep.planner.constants import published_constants
from skep.planner.memory import has_pool
from skep.planner.quants import KV_TYPES, QUANTS
from skep.planner.rigs import ResolvedRig, cpu_rig, parse_rig, rig_of_host
from skep.planner.setup import Layout, Rig, Setup
from skep.store.database import Store, open_store
from skep.store.records import CalibrationRecord
from skep.store.writer_process import new_suffix
from skep.units import format_seconds
from skep.weights.pull import installed

ENGINES = ("vllm", "sglang", "llamacpp", "ik_llamacpp", "ollama", "trtllm")
# What a hive with `--simulate` says of itself.
_SIMULATED = re.compile(
    r"simulated: (?P<model>\S+) (?P<quant>.+?), KV (?P<kv>.+?)(?:, (?P<method>\w+) n=(?P<depth>\d+))?, "
    r"(?:\d+ x )?TP=(?P<tp>\d+)(?: \+ PP=(?P<pp>\d+))?(?: \+ EP=(?P<ep>\d+))? on (?P<gpu>.+), as (?P<engine>\w+)"
)


@dataclass(frozen=True, slots=True)
class Described:
    setup: Setup
    rig: Rig
    capacity: int | None  # slots of all replicas; None: it does not say
    notes: tuple[str, ...]


def describe(options: CalibrateOptions, endpoint: Endpoint, host: HostFacts) -> Described:
    """What the endpoint does not tell and no flag says is assumed and said, or asked for."""
    options, ep = _as_simulated(options, endpoint)
    engine = _engine(options, endpoint.engine)
    model, model_notes = _model(options, endpoint)
    pins = pins_of(PlanFlags(endpoint.model, quant=options.quant, kv=options.kv, spec=options.spec), model)
    if pins.quant is None:
        hint = "say it with --quant, such as --quant awq or --quant bf16"
        raise UserError(f"how the weights of `{endpoint.model}` are quantized is not known", hint=hint)
    replicas, capacity = _count(endpoint.engine, "replicas") or 1, _count(endpoint.engine, "slots")
    rig = _rig(options, endpoint, host, replicas)
    layout = _layout(options, rig.rig, replicas, engine, ep)
    slots = None if capacity is None else max(1, capacity // replicas)
    setup = Setup(
        model.geometry, pins.quant, pins.kv or KV_TYPES["bf16"], engine, layout, slots=slots,
        graphs=not options.no_graphs, spec=pins.spec,
    )  # fmt: skip
    return Described(setup, rig.rig, capacity, (*model_notes, *rig.notes))


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    return value if isinstance(value, int) and value > 0 else None


def _as_simulated(options: CalibrateOptions, endpoint: Endpoint) -> tuple[CalibrateOptions, int]:
    """A simulated hive tells its setup in words; flags win over them. Gives the expert-parallel size too."""
    match = _SIMULATED.search(str(endpoint.engine.get("engine", ""))) if endpoint.simulated else None
    if match is None:
        return options, 1
    said: dict[str, Any] = {
        "geometry": match["model"],
        "quant": next((quant.id for quant in QUANTS.values() if quant.title == match["quant"]), None),
        "kv": next((kv.id for kv in KV_TYPES.values() if kv.title == match["kv"]), None),
        "spec": f"{match['method']}:{match['depth']}" if match["method"] else None,
        "gpu": match["gpu"],
        "engine": match["engine"],
        "tp": int(match["tp"]),
        "pp": int(match["pp"] or 1),
    }
    wanted = {name: value for name, value in said.items() if getattr(options, name) is None}
    return replace(options, **wanted), int(match["ep"] or 1)


def _engine(options: CalibrateOptions, told: Mapping[str, Any]) -> str:
    if options.engine is not None:
        name = options.engine.strip().lower().replace("llama.cpp", "llamacpp")
        if name not in ENGINES:
            raise UserError(f"--engine `{options.engine}` is not known", hint=f"known: {', '.join(ENGINES)}")
        return name
    words = f"{told.get('engine', '')} {told.get('server', '')} {told.get('build', '')}".lower().replace(".", "")
    for word, name in (("ollama", "ollama"), ("llamacpp", "llamacpp"), ("vllm", "vllm"), ("sglang", "sglang")):
        if word in words:
            return name
    hint = f"say it with --engine; known: {', '.join(ENGINES)}"
    raise UserError("the endpoint does not say which engine it is", hint=hint)


def _model(options: CalibrateOptions, endpoint: Endpoint) -> tuple[ModelFound, tuple[str, ...]]:
    """By --geometry, else by the name it is served as; a file that lies here tells its format as well."""
    file = _file_here(endpoint)
    if options.geometry is not None:
        found = read_model(options.geometry)
        return found, found.notes
    known = find_geometry(endpoint.model)
    if file is not None:
        read = read_model(file)
        return (replace(read, geometry=known) if known else read), (() if options.quant else read.notes)
    if known is None:
        hint = "say what it is with --geometry: a name of `skep catalog models`, its config.json or its GGUF file"
        raise UserError(f"no model of the catalogue is called `{endpoint.model}`", hint=hint)
    found = read_model(endpoint.model)
    return found, (() if options.quant else found.notes)


def _file_here(endpoint: Endpoint) -> str | None:
    """Return the GGUF file that llama.cpp names, or the one that was pulled, where it is this machine that serves."""
    if endpoint.origin.host not in LOOPBACK or endpoint.simulated:
        return None
    named = endpoint.engine.get("model_path")
    if isinstance(named, str) and named.endswith(".gguf") and os.path.isfile(named):  # noqa: PTH113
        return named
    if find_pullable(endpoint.model) is None:
        return None
    path = installed(endpoint.model, user_paths(os.environ).cache)
    return None if path is None else str(path)


def _rig(options: CalibrateOptions, endpoint: Endpoint, host: HostFacts, replicas: int) -> ResolvedRig:
    if options.gpu is not None:
        return ResolvedRig(parse_rig(options.gpu, options.link))
    if endpoint.origin.host not in LOOPBACK:
        hint = 'say which cards it has, such as --gpu "2x rtx-3090"'
        raise UserError(f"{endpoint.url} is not on this machine", hint=hint)
    if endpoint.simulated:
        raise UserError("which cards are simulated is not known", hint='say it with --gpu, such as --gpu "2x rtx-3090"')
    if host.gpus:
        return rig_of_host(host, options.link)
    bandwidth = options.bandwidth or memory_bandwidth_gbs(host.cpu_cores)
    rig = cpu_rig(host, bandwidth, measured=options.bandwidth is None, replicas=replicas)
    how = "" if options.bandwidth else ", memory measured by copying"
    return ResolvedRig(rig, (f"no GPU here: {rig.title}{how}",))


def _layout(options: CalibrateOptions, rig: Rig, replicas: int, engine: str, ep: int) -> Layout:
    """All cards work, unless a flag says otherwise: side by side in llama.cpp, as one in the others."""
    each = max(1, len(rig.cards) // replicas)
    if options.tp is None and options.pp is None:
        tp, pp = (each, 1) if has_pool(engine) else (1, each)
    elif options.tp is None:
        tp, pp = 1, options.pp or 1
    else:
        tp, pp = options.tp, options.pp or 1
    layout = Layout(tp, pp, ep, replicas)
    if layout.cards > len(rig.cards):
        has = f"{len(rig.cards)} {'card' if len(rig.cards) == 1 else 'cards'}"
        hint = "check --gpu, --tp and --pp: TP x PP x replicas cards are wanted"
        raise UserError(f"{layout} takes {layout.cards} cards, `{rig.title}` has {has}", hint=hint)
    return layout


MOST_LEVEL = 8  # of the higher level, unless a flag says so


def run_calibration(options: CalibrateOptions) -> None:
    budget_s = positive_seconds(options.budget, "--budget", "5m")
    _ = options.address  # an error here, before anything is stored
    host, seed = read_host(), random.SystemRandom().randrange(2**31)
    with open_store(user_paths(os.environ).store) as store:
        try:
            found = run_measuring(lambda: _calibrate(options, host, store, budget_s, seed))
            store.append_calibration(found)
        except Interrupted as error:
            discard(store, seed)
            error.hint = "nothing was stored"
            raise
        except BaseException:
            discard(store, seed)
            raise
    _tell(found, as_json=options.as_json)


async def _calibrate(
    options: CalibrateOptions, host: HostFacts, store: Store, budget_s: float, seed: int
) -> CalibrationRecord:
    endpoint = await options.find()
    described = describe(options, endpoint, host)
    plan = _plan(options, described, budget_s, seed)
    note(*described.notes)
    setup, rig = described.setup, described.rig
    levels = ",".join(map(str, plan.levels))
    simulated = " (simulated)" if endpoint.simulated else ""
    note(
        f"{endpoint.model}{simulated} at {endpoint.url}: {setup.model.id} {setup.quant.title}, {setup.layout} on "
        f"{rig.title}, as {setup.engine}; C={levels}, then prompts of {plan.prompt_tokens}; "
        f"{format_seconds(budget_s)} at most"
    )
    with level_view() as show:
        taken = await measure(plan, endpoint, store, host, maker_for, show)
    return _fitted_row(endpoint, described, taken, host)


def _plan(options: CalibrateOptions, described: Described, budget_s: float, seed: int) -> CalibrationPlan:
    capacity, setup = described.capacity, described.setup
    if options.levels is None:
        widest = min(MOST_LEVEL, capacity or MOST_LEVEL)
        levels: tuple[int, ...] = (1, widest) if widest > 1 else (1,)
    else:
        levels = levels_of(options.levels, "--levels")
    held_back = levels_of(options.check, "--check") if options.check else ()
    if levels[0] != 1 or len(levels) > 2:
        raise UserError(f"--levels `{options.levels}` is not 1 and one more", hint="write it as --levels 1,8")
    beyond = next((level for level in (*levels, *held_back) if capacity is not None and level > capacity), None)
    if beyond is not None:
        what = f"C={beyond} is beyond the {capacity} slots of `{setup.model.id}`: queueing would spoil the fit"
        raise UserError(what, hint=f"choose {capacity} at most")
    crowd = levels[1] if len(levels) > 1 else None
    held_back = tuple(level for level in held_back if level not in levels)
    return CalibrationPlan(crowd, held_back, budget_s, options.prompt_tokens, seed)


def _fitted_row(endpoint: Endpoint, described: Described, taken: CalibrationRuns, host: HostFacts) -> CalibrationRecord:
    setup, rig, measured = described.setup, described.rig, taken.measured
    fitted = fit(speed_model_maker(setup, rig, published_constants(), measured), measured)
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


def _tell(row: CalibrationRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(document(row))
        return
    print_one(row)
    used = "simulated: plans do not use it" if row.simulated else "plans for this machine use it from now on"
    note(f"kept as calibration {row.id}; {used}")


def print_one(row: CalibrationRecord) -> None:
    fitted = fitted_now(row)
    print(f"{row.model} {row.quant}, {row.layout} on {row.rig}, {row.engine}: {fitted}")  # noqa: T201
    rows = [
        [
            level["concurrency"],
            level["runs"],
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
    print_table(">C|>RUNS|>tok/s EACH|>±|>BEFORE|>AFTER|>OFF|>tok/s ALL|>AFTER ALL|", rows)
    prompts = measured_of(row.document).prompts
    spread = 100 * prompts.ttft_s.half_width
    print(f"first token of {prompts.input_tokens:.0f} tokens: {1000 * prompts.ttft_s.estimate:.0f} ms ± {spread:.0f} %")  # noqa: T201


def document(row: CalibrationRecord) -> dict[str, Any]:
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


def levels_json(row: CalibrationRecord, fitted: Fitted) -> list[dict[str, Any]]:
    """Return each level as it was measured, and as it is predicted without and with the calibration."""
    setup, rig, measured = setup_of(row.document), rig_of(row.document), measured_of(row.document)
    return [] if rig is None else _levels(setup, rig, measured, fitted)


def _levels(setup: Setup, rig: Rig, measured: CalibrationData, fitted: Fitted) -> list[dict[str, Any]]:
    foresee = speed_model_maker(setup, rig, published_constants(), measured)
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
    here = host_key(read_host())

    def cells(row: CalibrationRecord) -> list[str]:
        where = "simulated" if row.simulated else "here" if row.host == here else row.host
        factors = [number(factor, 2) for factor in (row.decode, row.batch, row.prompt)]
        what = [row.model, row.quant, row.engine, row.layout, row.rig]
        return [row.id, day_and_time(row.created_at), where, *what, *factors]

    columns = "CALIBRATION|WHEN|WHERE|MODEL|QUANT|ENGINE|LAYOUT|ON|>STEPS|>FURTHER|>PROMPTS"
    none_yet = "nothing was calibrated yet; `skep calibrate` does it"
    print_list(_kept(), columns, cells, document, as_json=as_json, none_yet=none_yet)


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


def _kept() -> list[CalibrationRecord]:
    path = user_paths(os.environ).store
    if not path.exists():
        return []
    with open_store(path, read_only=True) as store:
        return store.calibrations()


def _named(name: str) -> CalibrationRecord:
    rows = _kept()
    found = rows[:1] if name == "last" else [row for row in rows if name and row.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    hint = "`skep calibrations list` shows them all"
    if found:
        raise UserError(f"calibration `{name}` could be {' or '.join(f'`{row.id}`' for row in found[:3])}", hint=hint)
    raise UserError(f"there is no calibration `{name}`" if rows else "nothing was calibrated yet", hint=hint)
