"""`skep bench quality`: options to a plan and a bank, a trial with progress, a table and what may be said."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.cli.bench import MixedOptions, QualityOptions
from skep.cli.options import EndpointOptions, run_measuring
from skep.cli.sweep import level_view, levels_of, meter_for, seed_of
from skep.errors import EndpointError, UserError
from skep.host.facts import read_host
from skep.host.power import gpu_memory_in_use
from skep.paths import LOOPBACK, user_paths
from skep.quality.banks import Bank, choose_bank, makes_its_items
from skep.quality.judging import Judge, check_packages, needs_sandbox
from skep.quality.mixed_figures import LEVEL_NAMES, TEMPERATURE, MixedSummary
from skep.quality.mixed_run import MixedPlan, ReadMemory, items_of, run_mixed
from skep.quality.trial import QualityTrial, TrialPlan
from skep.quality.trial_figures import LEAST_DELTA, MOST_DELTA, POWER, QualitySummary, outlook
from skep.report.mixed import spot_words, tables_of
from skep.report.quality import (
    exit_code,
    headline,
    late_levels,
    note_level,
    print_quality,
    quality_json,
)
from skep.report.tables import print_tables
from skep.report.terminal import byte_progress, note, print_json
from skep.sandbox.runner import open_sandbox
from skep.stats.noninferiority import items_needed
from skep.store.database import open_store
from skep.store.verdicts import Verdict
from skep.units import parse_int_list, parse_positive_seconds

MOST_DRILLS = 2000  # made without being asked for so many
MOST_ITEMS = 100_000


def run_quality_command(options: QualityOptions) -> int:
    """0: every level asked for holds; 4: one is worse; 1: neither could be shown."""
    plan = plan_of(options)
    bank = bank_of(options, plan)
    summary = run_measuring(lambda: measure(plan, bank, options))
    if options.as_json:
        print_json(quality_json(summary))
    else:
        print_quality(summary)
        note(*late_levels(summary.run_id))
        note(f"stored as run {summary.run_id}; `skep runs report {summary.run_id}` writes the report")
    return exit_code(summary)


def plan_of(options: QualityOptions) -> TrialPlan:
    return TrialPlan(
        concurrency=levels_of(options.concurrency, "--concurrency"),
        delta=delta_of(options.delta),
        repeats=options.repeats,
        temperature=options.temperature,
        timeout_s=parse_positive_seconds(options.timeout, "--timeout", "15m"),
        seed=seed_of(options.seed),
    )


def delta_of(text: str) -> float:
    """Points, with or without a percent sign: "3" is 0.03."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = float("nan")
    if not LEAST_DELTA <= value <= MOST_DELTA:
        hint = f"points from {LEAST_DELTA:g} to {MOST_DELTA:g}: 3 is from 60 % to 57 %"
        raise UserError(f"--delta `{text}` is not a loss that can be tested", hint=hint)
    return value / 100


def bank_of(options: QualityOptions, plan: TrialPlan) -> Bank:
    """Take as many items as are needed where the bank generates them, else all it has."""
    count = options.items
    if count is not None and count > MOST_ITEMS:
        raise UserError(f"--items {count} is too large", hint=f"at most {MOST_ITEMS:,}")
    if count is None and makes_its_items(options.bank):
        needed = max(items_needed(plan.delta, repeats=plan.repeats, power=POWER), plan.levels[-1])
        count = min(needed, MOST_DRILLS)
        if needed > count:
            note(f"{needed:,} items are needed; {count:,} are made unless you set --items")
    with byte_progress(f"fetching {options.bank}") as progress:
        cache = user_paths(os.environ).cache
        bank = choose_bank(options.bank, seed=plan.seed, count=count, cache_dir=cache, progress=progress)
    if len(bank.items) < plan.levels[-1]:
        hint = "ask more items, or a smaller --concurrency"
        raise UserError(f"{len(bank.items)} items cannot keep {plan.levels[-1]} agents busy", hint=hint)
    if options.max_tokens is not None:
        longer = tuple(replace(item, max_tokens=options.max_tokens) for item in bank.items)
        bank = replace(bank, items=longer)
    if options.items is not None and len(bank.items) < options.items:
        note(f"{bank.name} has {len(bank.items):,} items, not {options.items:,}: all are asked")
    return bank


async def measure(plan: TrialPlan, bank: Bank, target: EndpointOptions) -> QualitySummary:
    check_packages(bank.items)
    sandbox = open_sandbox() if needs_sandbox(bank.items) else None
    try:
        endpoint = await target.find()
        simulated = " (simulated)" if endpoint.simulated else ""
        note(f"{endpoint.model}{simulated} at {endpoint.url}: {headline(plan, bank)}")
        note(*outlook(len(bank.items), plan.delta, plan.repeats, available=bank.available))
        meter = meter_for(endpoint)
        with open_store(user_paths(os.environ).store) as store, level_view() as show:
            trial = QualityTrial(plan, bank, endpoint, store, read_host(), Judge(sandbox), show, note_level, meter)
            return await trial.run()
    finally:
        if sandbox is not None:
            await sandbox.close()


def run_mixed_command(options: MixedOptions) -> None:
    """A model that gave no answers ends it with an error; how good they are does not."""
    plan = mixed_plan_of(options)
    check_packages(items_of(plan.levels))
    sandbox = open_sandbox()

    async def run() -> MixedSummary:
        try:
            endpoint = await options.find()
            note(mixed_headline(plan, endpoint))
            with open_store(user_paths(os.environ).store) as store, level_view() as show:
                meter, memory = meter_for(endpoint), memory_reader(endpoint)
                return await run_mixed(plan, endpoint, store, read_host(), sandbox, show, meter=meter, memory=memory)
        finally:
            await sandbox.close()

    summary = run_measuring(run)
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        rows = [row for row in store.requests(summary.run_id) if row.level]
        verdicts = store.verdicts(summary.run_id)
    if not any(row.ok for row in rows):
        hint = f"docs/errors.md says what each kind means; the rows are in the store, run {summary.run_id}"
        raise EndpointError(f"all {len(rows)} requests failed, the first by {rows[0].error_kind}", hint=hint)
    if options.as_json:
        print_json({"runs": [{**to_builtins(summary), "verdicts": to_builtins(verdicts)}]})
    else:
        print_mixed(summary, verdicts)
        note(f"stored as run {summary.run_id}; `skep runs report {summary.run_id}` writes the page")


def memory_reader(endpoint: Endpoint) -> ReadMemory:
    """Return what reads this machine's GPUs, if they are the ones that serve."""
    serves_here = endpoint.origin.host in LOOPBACK and not endpoint.simulated
    return gpu_memory_in_use if serves_here else lambda: None


def mixed_plan_of(options: MixedOptions) -> MixedPlan:
    levels = parse_int_list(options.levels, name="--concurrency")
    unknown = [level for level in levels if level not in LEVEL_NAMES]
    if unknown:
        names = ", ".join(f"{level} ({name})" for level, name in LEVEL_NAMES.items())
        hint = f"choose from {names}"
        raise UserError(f"--concurrency `{options.levels}`: there is no level {unknown[0]}", hint=hint)
    timeout_s = parse_positive_seconds(options.timeout, "--timeout", "15m")
    return MixedPlan(repeats=options.repeats, levels=levels, seed=seed_of(options.seed), timeout_s=timeout_s)


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
