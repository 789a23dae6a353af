"""`skep bench mixed`: one model, or several that skep loads one after the other and compares."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from msgspec import to_builtins

from skep.bench.endpoint import Endpoint, chosen_model, served_models
from skep.cli.bench import MixedOptions
from skep.cli.options import Interrupted, ask_hive, run_measuring, running_url
from skep.cli.sweep import level_view, meter_for, seed_of
from skep.errors import EndpointError, SkepError, UserError
from skep.host.facts import read_host
from skep.host.power import gpu_memory_in_use
from skep.paths import LOOPBACK, user_paths
from skep.quality.judging import check_packages
from skep.quality.mixed_compare import MixedSide, load_mixed
from skep.quality.mixed_figures import LEVEL_NAMES, TEMPERATURE, MixedSummary
from skep.quality.mixed_run import MixedPlan, ReadMemory, items_of, run_mixed
from skep.report.mixed import spot_words, tables_of
from skep.report.mixed_comparison import JudgedMixed, judged_comparison, print_comparison
from skep.report.tables import print_tables
from skep.report.terminal import note, print_json
from skep.sandbox.runner import open_sandbox
from skep.store.database import open_store
from skep.store.verdicts import Verdict
from skep.units import format_seconds, parse_int_list, parse_positive_seconds
from skep.wire.heads import parse_url

MOST_MODELS = 8  # that a page draws beside each other


def run_mixed_command(options: MixedOptions) -> None:
    """A model that gave no answers ends it with an error; how good they are does not."""
    plan = mixed_plan_of(options)
    check_packages(items_of(plan.levels))
    if options.models is not None:
        run_models(options, plan)
        return
    side = measure_model(options, plan)
    if options.as_json:
        print_json({"runs": [run_document(side)]})
    else:
        print_mixed(side.summary, side.verdicts)
        note(f"stored as run {side.run.id}; `skep runs report {side.run.id}` writes the page")


def measure_model(options: MixedOptions, plan: MixedPlan) -> MixedSide:
    sandbox = open_sandbox()

    async def run() -> MixedSummary:
        try:
            endpoint = await options.find()
            note(mixed_headline(plan, endpoint))
            with open_store(user_paths(os.environ).store) as store, level_view() as show:
                meter = meter_for(endpoint)
                memory = memory_reader(endpoint)
                return await run_mixed(
                    plan, endpoint, store, read_host(), sandbox, show, meter=meter, memory=memory
                )
        finally:
            await sandbox.close()

    run_id = run_measuring(run).run_id
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        side = load_mixed(store, store.run(run_id))
    rows = [row for row in side.rows if row.level]
    if not any(row.ok for row in rows):
        hint = f"docs/errors.md says what each kind means; the rows are in the store, run {run_id}"
        raise EndpointError(
            f"all {len(rows)} requests failed, the first by {rows[0].error_kind}", hint=hint
        )
    return side


def run_models(options: MixedOptions, plan: MixedPlan) -> None:
    """Measure each model with the others of them unloaded, where skep serves them here, and
    compare.

    One that cannot be loaded or gives no answer does not end the others; it is told, and the
    command fails at its end."""
    asyncio.run(open_sandbox().close())  # what is missing is said before a model is loaded
    models = models_of(options)
    if serves_here(options.address):
        loader = ModelSwitch(models)
    else:
        loader = None
    if loader is None:
        note(
            f"{options.address} is not the gateway of a `skep up` on this machine: its "
            "server loads the models itself"
        )
    sides: list[MixedSide] = []
    failures: list[SkepError] = []
    try:
        for model in models:
            try:
                if loader is not None:
                    loader.load_alone(model)
                sides.append(measure_model(replace(options, model=model, models=None), plan))
            except Interrupted:
                raise
            except SkepError as error:
                failures.append(error)
                note(f"{model} was not measured: {error}")
    finally:
        if loader is not None:
            loader.restore()
    tell_models(options, sides)
    if failures:
        raise EndpointError(
            f"{len(failures)} of {len(models)} models were not measured: {failures[0]}"
        ) from None


def tell_models(options: MixedOptions, sides: Sequence[MixedSide]) -> None:
    """Print the comparison of two, the tables of more,
    and of a single one that is left its own.
    """
    judged = comparable(sides)
    if options.as_json:
        document: dict[str, Any] = {"runs": [run_document(side) for side in sides]}
        print_json(document if judged is None else {**document, "comparison": judged.document()})
        return
    if len(sides) == 1:
        print_mixed(sides[0].summary, sides[0].verdicts)
    elif sides:
        print_comparison(sides, judged)
    if sides:
        ids = " ".join(side.run.id for side in sides)
        note(f"stored as {ids}; `skep runs report {ids}` writes the page")


def comparable(sides: Sequence[MixedSide]) -> JudgedMixed | None:
    if len(sides) == 2:
        return judged_comparison(sides[0], sides[1])
    return None


def run_document(side: MixedSide) -> dict[str, Any]:
    return {**to_builtins(side.summary), "verdicts": to_builtins(side.verdicts)}


def models_of(options: MixedOptions) -> list[str]:
    """Return the models that are named. Raise UserError where one is not served, before any is
    measured.
    """
    text = options.models or ""
    models = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if options.model is not None:
        raise UserError(
            "--model and --models were both given", hint="name all models with --models"
        )
    if not 2 <= len(models) <= MOST_MODELS:
        hint = f"name two to {MOST_MODELS} models, as in --models qwen3-coder,gpt-oss-20b"
        raise UserError(f"--models `{text}` names {len(models)} different models", hint=hint)
    served = asyncio.run(served_models(options.address, key=options.key()))
    return [chosen_model(served, model, options.address) for model in models]


def serves_here(address: str) -> bool:
    """Return whether the address is the gateway of the hive that runs on this machine."""
    try:
        hive = parse_url(running_url(otherwise=None))[0]
    except SkepError:
        return False
    origin = parse_url(address)[0]
    return origin.port == hive.port and (
        origin.host == hive.host or {origin.host, hive.host} <= {*LOOPBACK}
    )


class ModelSwitch:
    """Loads one of several models of the hive at a time, and at last those again that were loaded
    at first.

    It knows the models that have replicas of skep's own; servers that skep only asks are left
    alone."""

    def __init__(self, models: Sequence[str]) -> None:
        self._before = {
            model: loaded for model, loaded in loaded_models().items() if model in models
        }

    def load_alone(self, model: str) -> None:
        if model not in self._before:
            return
        for loaded_model, loaded in loaded_models().items():
            if loaded_model in self._before and loaded_model != model and loaded:
                note(f"unloading {loaded_model}")
                ask_hive({"op": "unload", "model": loaded_model, "wait": True}, None)
        note(f"loading {model}")
        began_s = time.monotonic()
        ask_hive({"op": "load", "model": model, "wait": True}, None)
        note(f"{model} is loaded after {format_seconds(time.monotonic() - began_s)}")

    def restore(self) -> None:
        """Begin to load what was loaded before; what keeps that from going well is told by `skep
        ps`.
        """
        with suppress(SkepError):
            now = loaded_models()
            for model, loaded in self._before.items():
                if loaded and not now.get(model):
                    note(f"loading {model} again, as before")
                    ask_hive({"op": "load", "model": model, "wait": False})


def loaded_models() -> dict[str, bool]:
    """Return the models with replicas of the hive's own, and whether they are loaded or about to
    be.
    """
    rows = [row for row in ask_hive({"op": "status"})["rows"] if row["kind"] == "replica"]
    models = dict.fromkeys(row["model"] for row in rows)
    return {
        model: any(row["model"] == model and row["state"] != "unloaded" for row in rows)
        for model in models
    }


def memory_reader(endpoint: Endpoint) -> ReadMemory:
    """Return what reads this machine's GPUs, if they are the ones that serve."""
    serves_here = endpoint.origin.host in LOOPBACK and not endpoint.simulated
    if serves_here:
        return gpu_memory_in_use
    return lambda: None


def mixed_plan_of(options: MixedOptions) -> MixedPlan:
    levels = parse_int_list(options.levels, name="--concurrency")
    unknown = [level for level in levels if level not in LEVEL_NAMES]
    if unknown:
        names = ", ".join(f"{level} ({name})" for level, name in LEVEL_NAMES.items())
        hint = f"choose from {names}"
        raise UserError(
            f"--concurrency `{options.levels}`: there is no level {unknown[0]}", hint=hint
        )
    timeout_s = parse_positive_seconds(options.timeout, "--timeout", "15m")
    return MixedPlan(
        repeats=options.repeats, levels=levels, seed=seed_of(options.seed), timeout_s=timeout_s
    )


def mixed_headline(plan: MixedPlan, endpoint: Endpoint) -> str:
    simulated = " (simulated)" if endpoint.simulated else ""
    levels = ", ".join(LEVEL_NAMES[level] for level in sorted(plan.levels))
    return (
        f"{endpoint.model}{simulated} at {endpoint.url}: {levels}; {plan.repeats} times; "
        f"temperature {TEMPERATURE:g}; answers are executed in a sandbox; seed {plan.seed}"
    )


def print_mixed(summary: MixedSummary, verdicts: Sequence[Verdict]) -> None:
    print(f"{summary.model}, run {summary.run_id}: {spot_words(summary)}")  # noqa: T201
    for reason in summary.advice.reasons:
        print(f"  {reason}")  # noqa: T201
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    print_tables(tables_of(summary, verdicts))
