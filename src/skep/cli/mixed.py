"""`skep bench mixed`: wishes to a plan, one run a model, then tables or JSON."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from skep.bench.endpoint import Endpoint
from skep.cli.bench_common import Target, meter_for, positive_seconds, run_measuring
from skep.cli.output import note, print_json, print_table
from skep.cli.quality import progress_view
from skep.errors import EndpointError, UserError
from skep.host.facts import read_host
from skep.places import user_paths
from skep.quality.judging import missing_packages
from skep.quality.mixed_figures import side_by_side
from skep.quality.mixed_run import Form, MixedPlan, items_of, run_mixed
from skep.report.mixed import spot_words, tables_of
from skep.sandbox.detect import open_sandbox
from skep.sandbox.runner import Sandbox
from skep.store.database import Store, open_store
from skep.store.quality_rows import Verdict
from skep.units import parse_int_list
from skep.verdicts import MixedSummary
from skep.workload.coding_tasks import LEVEL_NAMES, PRIMARY, SIDE, TEMPERATURE

MOST_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class MixedWishes:
    url: str
    models: tuple[str, ...]  # none: the only one that is served there
    key_env: str | None
    form: str
    repeats: int
    levels: str
    seed: int | None
    timeout: str


def run_mixed_command(wishes: MixedWishes, *, as_json: bool) -> int:
    """0 when answers came, however good they are; a model that gave none ends it with an error, after the others."""
    plan = plan_of(wishes)
    targets = targets_of(wishes)
    need_packages(missing_packages(items_of(plan.levels)))
    sandbox = open_sandbox()

    async def run() -> list[MixedSummary | EndpointError]:
        try:
            endpoints = [await _found(target) for target in targets]
            note(headline(plan, endpoints, sandbox))
            return [await _measured(plan, endpoint, sandbox) for endpoint in endpoints]
        finally:
            await sandbox.close()

    found = run_measuring(run)
    summaries = side_by_side([one for one in found if isinstance(one, MixedSummary)])
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        _show(summaries, store, as_json=as_json)
    for fault in found:
        if isinstance(fault, EndpointError):
            raise fault
    return 0


def plan_of(wishes: MixedWishes) -> MixedPlan:
    levels = parse_int_list(wishes.levels, name="--levels")
    unknown = [level for level in levels if level not in LEVEL_NAMES]
    if unknown:
        names = ", ".join(f"{level} ({name})" for level, name in LEVEL_NAMES.items())
        raise UserError(f"--levels `{wishes.levels}`: there is no level {unknown[0]}", hint=f"choose from {names}")
    if wishes.form not in get_args(Form):
        raise UserError(f"--form `{wishes.form}` is unknown", hint=f"choose {' or '.join(get_args(Form))}")
    if not 1 <= wishes.repeats <= MOST_REPEATS:
        raise UserError(f"--repeats {wishes.repeats} is out of range", hint=f"from 1 to {MOST_REPEATS:,}")
    return MixedPlan(
        form=wishes.form,  # type: ignore[arg-type]
        repeats=wishes.repeats,
        levels=levels,
        seed=random.SystemRandom().randrange(2**31) if wishes.seed is None else wishes.seed,
        timeout_s=positive_seconds(wishes.timeout, "--timeout", "15m"),
    )


def targets_of(wishes: MixedWishes) -> list[Target]:
    twice = next((model for model in wishes.models if wishes.models.count(model) > 1), None)
    if twice is not None:
        raise UserError(f"--model `{twice}` is given twice", hint="each model is measured once; see --repeats")
    return [Target(wishes.url, model, wishes.key_env) for model in wishes.models or (None,)]


async def _found(target: Target) -> Endpoint:
    """Where several models are served and none was chosen, the hint is that several can be."""
    try:
        return await target.find()
    except UserError as error:
        if target.model is None and "--model" in (error.hint or ""):
            hint = "choose with --model; given several times, the models are measured in turn and shown side by side"
            raise UserError(error.message, hint=hint) from None
        raise


def need_packages(missing: Sequence[str]) -> None:
    """Said before anything is measured: without them a verdict would blame the model."""
    if missing:
        lack = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise UserError(f"the answers cannot be executed: {lack}", hint="pip install 'skep[quality]'")


def headline(plan: MixedPlan, endpoints: Sequence[Endpoint], sandbox: Sandbox) -> str:
    models = ", ".join(f"{one.model}{' (simulated)' if one.simulated else ''}" for one in endpoints)
    levels = ", ".join(LEVEL_NAMES[level] for level in sorted(plan.levels))
    side = {
        "published": "side tasks once",
        "sustained": "side tasks again and again until the conversation ends",
    }[plan.form]
    limits = f"up to {PRIMARY[0].max_tokens} and {SIDE[0].max_tokens} tokens out"
    return (
        f"{models} at {endpoints[0].url}: {levels}; {side}; {plan.repeats} time{'s' if plan.repeats > 1 else ''}; "
        f"temperature {TEMPERATURE:g}, {limits}; answers are executed in {sandbox.name}; seed {plan.seed}"
    )


async def _measured(plan: MixedPlan, endpoint: Endpoint, sandbox: Sandbox) -> MixedSummary | EndpointError:
    """An endpoint's fault is kept for the end: other models may have answered."""
    note(f"{endpoint.model}:")
    try:
        with open_store(user_paths(os.environ).store) as store, progress_view() as show:
            summary = await run_mixed(plan, endpoint, store, read_host(), sandbox, show, meter=meter_for(endpoint))
            rows = [row for row in store.requests(summary.run_id) if row.level]
    except EndpointError as fault:
        return fault
    failed = [row for row in rows if not row.ok]
    if len(failed) == len(rows):
        why = f"all {len(rows)} requests for {endpoint.model} failed, the first by {failed[0].error_kind}"
        hint = f"docs/errors.md says what each kind means; the rows are in the store, run {summary.run_id}"
        return EndpointError(f"{why}: {failed[0].error}", hint=hint)
    return summary


def _show(summaries: Sequence[MixedSummary], store: Store, *, as_json: bool) -> None:
    verdicts = {summary.run_id: store.verdicts(summary.run_id) for summary in summaries}
    if as_json:
        if summaries:
            print_json({"runs": [mixed_json(one, verdicts[one.run_id]) for one in summaries]})
        return
    if not summaries:
        return
    for place, one in enumerate(summaries):
        letter = f"{chr(ord('A') + place)}  " if len(summaries) > 1 else ""
        print(f"{letter}{one.model}, side tasks {one.form}, run {one.run_id}: {spot_words(one)}")  # noqa: T201
        for reason in one.advice.reasons:
            print(f"  {reason}")  # noqa: T201
        if one.simulated:
            note("SIMULATED: no model ran, these figures are a prediction")
    for table in tables_of(summaries, verdicts):
        print(f"\n{table.title}")  # noqa: T201
        print_table(table.head, table.rows, right=[name for name in table.head if name not in table.left])
    ids = " ".join(one.run_id for one in summaries)
    note(f"stored as run{'s' if len(summaries) > 1 else ''} {ids}; `skep report {ids}` writes the page")


def mixed_json(summary: MixedSummary, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """All figures, and every verdict."""
    judged = [{**asdict(one), "outcome": one.outcome.value} for one in verdicts]
    return {**asdict(summary), "verdicts": judged}
