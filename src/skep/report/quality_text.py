"""What `skep bench quality` and `skep bench mixed` say: before, meanwhile and of the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.session import SessionProgress
from skep.paths import user_paths
from skep.quality.banks import Bank
from skep.quality.mixed_run import MixedPlan
from skep.quality.records import MixedSummary, QualitySummary
from skep.quality.trial import TrialPlan, noise_words, outlook, remarks
from skep.quality.trial_figures import AGAIN, BASE, LOAD
from skep.quality.words import claim_words, conclusion
from skep.report.liveview import progress_bar
from skep.report.quality import print_quality_tables
from skep.report.terminal import note, plain
from skep.sandbox.runner import Sandbox
from skep.stats.noninferiority import Claim
from skep.store.database import open_store
from skep.store.verdicts import Verdict
from skep.units import format_seconds, number
from skep.workload.coding_tasks import LEVEL_NAMES, PRIMARY, SIDE, TEMPERATURE


def headline(plan: TrialPlan, bank: Bank) -> str:
    requests = len(bank.items) * plan.repeats * (2 * len(plan.levels) + 1)
    budget = f", {format_seconds(plan.budget_s)} at most" if plan.budget_s else ""
    repeats = f", {plan.repeats} times each" if plan.repeats > 1 else ""
    return (
        f"{bank.name}, {len(bank.items):,} items{repeats}; C={','.join(map(str, plan.levels))} against C=1; "
        f"temperature {plan.temperature:g}; {requests:,} requests if every level holds{budget}; seed {plan.seed}"
    )


def level_notes(plan: TrialPlan, bank: Bank) -> Callable[[QualitySummary], None]:
    """Say after each level what was found; after the first also what it takes, by the verdicts that changed there."""
    said: set[str] = set()

    def show(summary: QualitySummary) -> None:
        if not summary.levels:
            return
        level = summary.levels[-1]
        note(f"C={level.concurrency}: {claim_words(level, summary.delta)}")
        goes_on = level.claim is Claim.HOLDS and level.concurrency != plan.levels[-1]
        if goes_on and "needs" not in said:
            said.add("needs")
            note(*outlook(len(bank.items), plan.delta, plan.repeats, seen=level, available=bank.available))

    return show


def quality_json(summary: QualitySummary) -> dict[str, Any]:
    """Return all figures, with what was asked of whom; the answers and their verdicts are those of the run."""
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        run = store.run(summary.run_id)
    asked = {name: run.config.get(name) for name in ("seed", "temperature", "repeats")}
    document: dict[str, Any] = {"model": run.model, "url": run.url, **asked}
    document |= plain(asdict(summary)) | {"conclusion": conclusion(summary)}
    document["by_family"] = [
        {"family": family, "items": items, "base_rate": rate} for family, items, rate in summary.by_family
    ]
    for level, shown in zip(summary.levels, document["levels"], strict=True):
        shown["claim_in_words"] = claim_words(level, summary.delta)
        for arm in ("base", "load"):
            shown[arm]["outcomes"] = dict(getattr(level, arm).outcomes)
    return document


def print_quality(summary: QualitySummary) -> None:
    if summary.levels:
        print_quality_tables(summary)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    noise = noise_words(summary)
    for line in (*([noise] if noise else []), *remarks(summary)):
        note(line)
    print(conclusion(summary))  # noqa: T201


def stage_lines() -> Callable[[SessionProgress], None]:
    said: set[str] = set()

    def show(progress: SessionProgress) -> None:
        key = where(progress)
        if key not in said and progress.stage != "warming up":
            said.add(key)
            what = "answers" if progress.stage == "judging" else "requests"
            note(f"{key}: {progress.total:,} {what}" if progress.total else f"{key}: until the conversation ends")

    return show


def now_line(progress: SessionProgress) -> str:
    if not progress.total or progress.stage == "warming up":
        return where(progress)
    bar = progress_bar(progress.done, progress.total)
    told = f"{where(progress)}  {bar}  {progress.done:,}/{progress.total:,}"
    if progress.stage == "judging":
        return told
    speed = f" · {number(progress.tok_s, digits=1)} tok/s now" if progress.tok_s else ""
    left = f" · about {format_seconds(progress.left_s)} left of this level" if progress.left_s is not None else ""
    return f"{told}{speed} · {progress.in_flight} in flight · {progress.failed} failed{left}"


def where(progress: SessionProgress) -> str:
    if not progress.level:
        return progress.stage
    if progress.stage == "judging":
        return f"C={progress.level}: judging"
    return (
        f"C={progress.level} and C=1 in turns"
        if progress.label in (BASE, AGAIN, LOAD)
        else f"C={progress.level}, {progress.label}"
    )


def mixed_headline(plan: MixedPlan, endpoints: Sequence[Endpoint], sandbox: Sandbox) -> str:
    models = ", ".join(f"{one.model}{' (simulated)' if one.simulated else ''}" for one in endpoints)
    levels = ", ".join(LEVEL_NAMES[level] for level in sorted(plan.levels))
    side = {"published": "side tasks once", "sustained": "side tasks again and again until the conversation ends"}[
        plan.form
    ]
    limits = f"up to {PRIMARY[0].max_tokens} and {SIDE[0].max_tokens} tokens out"
    return (
        f"{models} at {endpoints[0].url}: {levels}; {side}; {plan.repeats} time{'s' if plan.repeats > 1 else ''}; "
        f"temperature {TEMPERATURE:g}, {limits}; answers are executed in {sandbox.name}; seed {plan.seed}"
    )


def mixed_json(summary: MixedSummary, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return all figures, and every verdict."""
    judged = [{**asdict(one), "outcome": one.outcome.value} for one in verdicts]
    return {**asdict(summary), "verdicts": judged}


EXIT_OK, EXIT_UNSHOWN, EXIT_LOST = 0, 1, 4


def late_levels(run_id: str) -> list[str]:
    """Levels at which this client, and not the server, was mostly the limit."""
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        samples = store.client_samples(run_id)
    late: dict[int, list[bool]] = {}
    for sample in samples:
        late.setdefault(sample.level, []).append(sample.client_limited)
    return [
        f"warning: the client was the limit at C={level}: fewer were in flight, and latency is better than it looks"
        for level, found in sorted(late.items())
        if 2 * sum(found) > len(found)
    ]


def exit_code(summary: QualitySummary) -> int:
    if any(level.claim is Claim.LOST for level in summary.levels):
        return EXIT_LOST
    held = summary.levels and all(level.claim is Claim.HOLDS for level in summary.levels)
    return EXIT_OK if held and not summary.skipped else EXIT_UNSHOWN
