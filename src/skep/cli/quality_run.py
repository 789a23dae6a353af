"""`skep bench quality`: options to a plan and a bank, a trial with progress, a table and what may
be said.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from skep.cli.bench import QualityOptions
from skep.cli.options import run_measuring
from skep.cli.sweep import level_view, levels_of, meter_for, seed_of
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.quality.banks import Bank, choose_bank, has_tools, makes_its_items
from skep.quality.judging import Judge, check_packages, needs_sandbox
from skep.quality.kv_type import kv_words, named_kv, served_kv
from skep.quality.tool_bank import ReadyTools, ready_tools
from skep.quality.trial import QualityTrial, TrialPlan
from skep.quality.trial_figures import LEAST_DELTA, MOST_DELTA, POWER, QualitySummary, outlook
from skep.report.quality import (
    exit_code,
    headline,
    late_levels,
    note_level,
    print_quality,
    quality_json,
)
from skep.report.terminal import byte_progress, note, print_json
from skep.sandbox.runner import open_sandbox
from skep.stats.noninferiority import items_needed
from skep.store.database import open_store
from skep.units import parse_positive_seconds

MOST_DRILLS = 2000  # made without being asked for so many
MOST_ITEMS = 100_000
USUAL_DELTA = "3"  # points
# Of a bank of tools, whose tasks take several turns each: 272 are needed instead of 678.
USUAL_DELTA_WITH_TOOLS = "5"


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
        note(
            f"stored as run {summary.run_id}; `skep runs report {summary.run_id}` writes "
            "the report"
        )
    return exit_code(summary)


def plan_of(options: QualityOptions) -> TrialPlan:
    return TrialPlan(
        concurrency=levels_of(options.concurrency, "--concurrency"),
        delta=delta_of(options.delta or usual_delta(options.bank)),
        repeats=options.repeats,
        temperature=options.temperature,
        timeout_s=parse_positive_seconds(options.timeout, "--timeout", "15m"),
        seed=seed_of(options.seed),
    )


def usual_delta(bank: str) -> str:
    return USUAL_DELTA_WITH_TOOLS if has_tools(bank) else USUAL_DELTA


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
        bank = choose_bank(
            options.bank, seed=plan.seed, count=count, cache_dir=cache, progress=progress
        )
    if len(bank.items) < plan.levels[-1]:
        hint = "ask more items, or a smaller --concurrency"
        raise UserError(
            f"{len(bank.items)} items cannot keep {plan.levels[-1]} agents busy", hint=hint
        )
    if options.max_tokens is not None:
        longer = tuple(replace(item, max_tokens=options.max_tokens) for item in bank.items)
        bank = replace(bank, items=longer)
    if options.items is not None and len(bank.items) < options.items:
        note(f"{bank.name} has {len(bank.items):,} items, not {options.items:,}: all are asked")
    return bank


async def measure(plan: TrialPlan, bank: Bank, options: QualityOptions) -> QualitySummary:
    check_packages(bank.items)
    sandbox = open_sandbox() if needs_sandbox(bank.items) else None
    try:
        endpoint = await options.find()
        ready = ReadyTools(bank, {})
        if has_tools(bank.name):
            ready = await ready_tools(
                endpoint,
                bank.name,
                seed=plan.seed,
                count=len(bank.items),
                max_tokens=options.max_tokens,
            )
            bank = ready.bank
        simulated = " (simulated)" if endpoint.simulated else ""
        note(f"{endpoint.model}{simulated} at {endpoint.url}: {headline(plan, bank)}")
        note(*ready.left_out)
        kv = named_kv(options.kv) or await served_kv(endpoint)
        if has_tools(bank.name):
            note(f"tasks with tools after {', '.join(ready.histories)} of context; {kv_words(kv)}")
        note(*outlook(len(bank.items), plan.delta, plan.repeats, available=bank.available))
        meter = meter_for(endpoint)
        with open_store(user_paths(os.environ).store) as store, level_view() as show:
            trial = QualityTrial(
                plan,
                bank,
                endpoint,
                store,
                read_host(),
                Judge(sandbox),
                show,
                note_level,
                meter,
                histories=ready.histories,
                kv=kv,
            )
            return await trial.run()
    finally:
        if sandbox is not None:
            await sandbox.close()
