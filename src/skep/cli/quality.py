"""`skep bench quality`: wishes to a plan and a bank, a trial with progress, a table and what may be said."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from skep.cli import bench_common as of
from skep.cli.bench import bench
from skep.cli.bench_common import Target, meter_for, positive_seconds, run_measuring
from skep.cli.output import byte_progress, note, number, print_json, print_table
from skep.cli.serve import JsonOption
from skep.cli.summaries import milliseconds
from skep.cli.sweep import levels_of
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.quality.banks import Bank, choose_bank, makes_its_items
from skep.quality.judging import Judge, missing_packages, needs_sandbox
from skep.quality.records import ArmFigures, LevelQuality, QualitySummary
from skep.quality.run_session import TrialProgress
from skep.quality.trial import noise_words, outlook, remarks, run_trial, signed
from skep.quality.trial_figures import POWER
from skep.quality.trial_plan import AGAIN, BASE, LEAST_DELTA, LOAD, MOST_DELTA, TrialPlan
from skep.quality.words import claim_words, conclusion
from skep.sandbox.detect import open_sandbox
from skep.stats.noninferiority import Claim, items_needed
from skep.store.database import open_store
from skep.store.verdicts import Outcome
from skep.units import format_seconds

MOST_DRILLS = 2000  # made without being asked for so many
MOST_ITEMS = 100_000
EXIT_OK, EXIT_UNSHOWN, EXIT_LOST = 0, 1, 4
BAR = 24


@dataclass(frozen=True, slots=True)
class QualityWishes:
    target: Target
    bank: str
    concurrency: str
    delta: str
    items: int | None
    repeats: int
    temperature: float
    budget: str | None
    seed: int | None
    timeout: str
    max_tokens: int | None = None  # instead of each item's own


def run_quality_command(wishes: QualityWishes, *, as_json: bool) -> int:
    """0: every level asked for holds; 4: one is worse; 1: neither could be shown."""
    plan = plan_of(wishes)
    bank = bank_of(wishes, plan)
    summary = run_measuring(lambda: measure(plan, bank, wishes.target))
    if as_json:
        print_json(quality_json(summary))
    else:
        print_quality(summary)
        for line in late_levels(summary.run_id):
            note(line)
        note(f"stored as run {summary.run_id}; `skep report {summary.run_id}` writes the pictures")
    return exit_code(summary)


def plan_of(wishes: QualityWishes) -> TrialPlan:
    return TrialPlan(
        concurrency=levels_of(wishes.concurrency, "--concurrency"),
        delta=delta_of(wishes.delta),
        repeats=wishes.repeats,
        temperature=wishes.temperature,
        timeout_s=positive_seconds(wishes.timeout, "--timeout", "15m"),
        seed=random.SystemRandom().randrange(2**31) if wishes.seed is None else wishes.seed,
        budget_s=None if wishes.budget is None else positive_seconds(wishes.budget, "--budget", "30m"),
    )


def delta_of(text: str) -> float:
    """Points, with or without a percent sign: "3" is 0.03."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = float("nan")
    if not LEAST_DELTA <= value <= MOST_DELTA:
        hint = f"points from {LEAST_DELTA:g} to {MOST_DELTA:g}: 3 is from 60 % to 57 %"
        raise UserError(f"--delta `{text}` is no loss that could be tested", hint=hint)
    return value / 100


def bank_of(wishes: QualityWishes, plan: TrialPlan) -> Bank:
    """As many items as are needed where the bank makes them; else those it has."""
    count = wishes.items
    if count is not None and count > MOST_ITEMS:
        raise UserError(f"--items {count} is too large", hint=f"at most {MOST_ITEMS:,}")
    if count is None and makes_its_items(wishes.bank):
        needed = max(items_needed(plan.delta, repeats=plan.repeats, power=POWER), plan.levels[-1])
        count = min(needed, MOST_DRILLS)
        if needed > count:
            note(f"{needed:,} items would be needed; {count:,} are made unless --items says otherwise")
    with byte_progress(f"fetching {wishes.bank}") as progress:
        cache = user_paths(os.environ).cache
        bank = choose_bank(wishes.bank, seed=plan.seed, count=count, cache_dir=cache, progress=progress)
    if len(bank.items) < plan.levels[-1]:
        hint = "ask more items, or a smaller --concurrency"
        raise UserError(f"{len(bank.items)} items cannot keep {plan.levels[-1]} agents busy", hint=hint)
    if wishes.max_tokens is not None:
        longer = tuple(replace(item, max_tokens=wishes.max_tokens) for item in bank.items)
        bank = replace(bank, items=longer)
    if wishes.items is not None and len(bank.items) < wishes.items:
        note(f"{bank.name} has {len(bank.items):,} items, not {wishes.items:,}: all are asked")
    return bank


async def measure(plan: TrialPlan, bank: Bank, target: Target) -> QualitySummary:
    if missing := missing_packages(bank.items):
        hint = "pip install 'skep[quality]'"
        raise UserError(f"answers may use what is not installed: {', '.join(missing)}", hint=hint)
    sandbox = open_sandbox() if needs_sandbox(bank.items) else None
    try:
        endpoint = await target.find()
        simulated = " (simulated)" if endpoint.simulated else ""
        note(f"{endpoint.model}{simulated} at {endpoint.url}: {headline(plan, bank)}")
        for line in outlook(len(bank.items), plan.delta, plan.repeats, available=bank.available):
            note(line)
        meter, told = meter_for(endpoint), Telling(plan, bank)
        with open_store(user_paths(os.environ).store) as store, progress_view() as show:
            return await run_trial(
                plan, bank, endpoint, store, read_host(), Judge(sandbox), show, on_level=told, meter=meter
            )
    finally:
        if sandbox is not None:
            await sandbox.close()


def headline(plan: TrialPlan, bank: Bank) -> str:
    requests = len(bank.items) * plan.repeats * (2 * len(plan.levels) + 1)
    budget = f", {format_seconds(plan.budget_s)} at most" if plan.budget_s else ""
    repeats = f", {plan.repeats} times each" if plan.repeats > 1 else ""
    return (
        f"{bank.name}, {len(bank.items):,} items{repeats}; C={','.join(map(str, plan.levels))} against C=1; "
        f"temperature {plan.temperature:g}; {requests:,} requests if every level holds{budget}; seed {plan.seed}"
    )


class Telling:
    """Says after each level what was found; after the first also what it takes, by the verdicts that changed there."""

    def __init__(self, plan: TrialPlan, bank: Bank) -> None:
        self._plan = plan
        self._bank = bank
        self._said_needs = False

    def __call__(self, summary: QualitySummary) -> None:
        if not summary.levels:
            return
        level = summary.levels[-1]
        note(f"C={level.concurrency}: {claim_words(level, summary.delta)}")
        goes_on = level.claim is Claim.HOLDS and level.concurrency != self._plan.levels[-1]
        if goes_on and not self._said_needs:
            self._said_needs = True
            expected = outlook(
                len(self._bank.items),
                self._plan.delta,
                self._plan.repeats,
                seen=level,
                available=self._bank.available,
            )
            for line in expected:
                note(line)


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


def quality_json(summary: QualitySummary) -> dict[str, Any]:
    """All figures, with what was asked of whom; the answers and their verdicts are those of the run."""
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


def plain(value: Any) -> Any:
    """Tuples and enums as JSON knows them."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return getattr(value, "value", value)


def print_quality(summary: QualitySummary) -> None:
    if summary.levels:
        print_levels(summary)
        print()  # noqa: T201
        print_outcomes(summary.levels)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    noise = noise_words(summary)
    for line in (*([noise] if noise else []), *remarks(summary)):
        note(line)
    print(conclusion(summary))  # noqa: T201


def print_levels(summary: QualitySummary) -> None:
    """Narrow enough for most terminals; the claims are said in full below it and in the report."""
    columns = ["C", "items", "at C=1", "at C", "points", "95 % bounds", "lost", "gained", "texts", "TTFT p50", "p95"]
    columns += ["tok/s", "claim"]
    first = summary.levels[0]
    rows = [
        ["1", str(first.difference.items), percent(first.difference.base_rate), *["–"] * 6, *speeds(first.base), ""]
    ]
    for level in summary.levels:
        found = level.difference
        rows.append([
            str(level.concurrency),
            str(found.items),
            percent(found.base_rate),
            percent(found.rate),
            signed(found.difference),
            f"{signed(found.low)} .. {signed(found.high)}",
            str(found.lost),
            str(found.gained),
            "–" if level.texts_changed is None else f"{100 * level.texts_changed:.0f} %",
            *speeds(level.load),
            level.claim.value,
        ])  # fmt: skip
    print_table(columns, rows, right=columns[:-1])


def speeds(arm: ArmFigures) -> list[str]:
    return [milliseconds(arm.ttft_p50_ms), milliseconds(arm.ttft_p95_ms), number(arm.effective_tok_s)]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def print_outcomes(levels: Sequence[LevelQuality]) -> None:
    """Each kind of failure apart, for both arms of every level."""
    arms = [(f"{arm.concurrency} beside {level.concurrency}" if arm is level.base else str(arm.concurrency), arm)
            for level in levels for arm in (level.base, level.load)]  # fmt: skip
    seen = {name for _, arm in arms for name, _ in arm.outcomes}
    names = [outcome.value for outcome in Outcome if outcome.value in seen or outcome is Outcome.PASSED]
    with_words = any(arm.keyword_rate is not None for _, arm in arms)
    columns = ("C", "requests", *names, *(("keywords found",) if with_words else ()))
    rows = []
    for title, arm in arms:
        counts = dict(arm.outcomes)
        words = ["–" if arm.keyword_rate is None else percent(arm.keyword_rate)] if with_words else []
        rows.append([title, str(arm.requests), *(str(counts.get(name, 0)) for name in names), *words])
    print_table(columns, rows, right=columns)


@contextmanager
def progress_view() -> Iterator[Callable[[TrialProgress], None]]:
    """A line that redraws itself on a terminal; a line for each stage of a level elsewhere."""
    if not sys.stderr.isatty():
        yield stage_lines()
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
        yield lambda progress: live.update(Text(now_line(progress)))


def stage_lines() -> Callable[[TrialProgress], None]:
    said: set[str] = set()

    def show(progress: TrialProgress) -> None:
        key = where(progress)
        if key not in said and (progress.total or progress.level):
            said.add(key)
            what = "answers" if progress.stage == "judging" else "requests"
            note(f"{key}: {progress.total:,} {what}" if progress.total else f"{key}: until the conversation ends")

    return show


def now_line(progress: TrialProgress) -> str:
    if not progress.total:
        return where(progress)
    filled = min(BAR, round(BAR * progress.done / progress.total))
    told = f"{where(progress)}  {'━' * filled}{'─' * (BAR - filled)}  {progress.done:,}/{progress.total:,}"
    if progress.stage == "judging":
        return told
    speed = f" · {number(progress.tok_s)} tok/s now" if progress.tok_s else ""
    left = f" · about {format_seconds(progress.left_s)} left of this level" if progress.left_s is not None else ""
    return f"{told}{speed} · {progress.in_flight} in flight · {progress.failed} failed{left}"


def where(progress: TrialProgress) -> str:
    if not progress.level:
        return progress.stage
    if progress.stage == "judging":
        return f"C={progress.level}: judging"
    return (
        f"C={progress.level} and C=1 in turns"
        if progress.arm in (BASE, AGAIN, LOAD)
        else f"C={progress.level}, {progress.arm}"
    )


def register(_app: typer.Typer) -> None:
    bench.command(epilog="Example: skep bench mixed --form sustained --repeats 5")(mixed)
    bench.command(epilog="Example: skep bench quality --bank drills:1 --concurrency 1,4,8")(quality)


def mixed(
    url: of.Url = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Default: the only one that is served there; several: side by side.")
    ] = None,
    form: Annotated[
        str, typer.Option(help="published: each side task once; sustained: again and again until the primary ends.")
    ] = "published",
    repeats: Annotated[int, typer.Option(min=1, help="Of every level, in turns.")] = 3,
    levels: Annotated[
        str, typer.Option(help="Of 1, 2, 3 and 5: the primary with 0, 1, 2 or 4 side tasks.")
    ] = "1,2,3,5",
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    as_json: JsonOption = False,
) -> None:
    """A coding conversation with side tasks beside it; every answer is executed, not grepped."""
    from skep.cli.quality_run import MixedWishes, run_mixed_command

    wishes = MixedWishes(
        url=url or of.running_url(),
        models=tuple(model or ()),
        key_env=key_env,
        form=form,
        repeats=repeats,
        levels=levels,
        seed=seed,
        timeout=timeout,
    )
    raise typer.Exit(run_mixed_command(wishes, as_json=as_json))


def quality(
    url: of.Url = None,
    model: of.Model = None,
    bank: Annotated[
        str, typer.Option(help="humaneval, drills, drills:1 (easy) to drills:5, or a JSONL file: docs/quality.md.")
    ] = "drills",
    concurrency: of.Concurrency = "1,4,8",
    delta: Annotated[str, typer.Option(help="The loss that would matter, in points: 3 is from 60 % to 57 %.")] = "3",
    items: Annotated[int | None, typer.Option(min=1, help="How many of the bank; default: as many as needed.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of every item in every arm.")] = 1,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, instead of each item's own: models that think aloud.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0: greedy.")] = 0.0,
    budget: Annotated[str | None, typer.Option(help="Time for all of it; what is not done then is left out.")] = None,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    as_json: JsonOption = False,
) -> None:
    """Are answers as good at C=N as at C=1? The same items in both, judged by execution, with a bound on the loss."""
    from skep.cli.bench_common import Target

    wishes = QualityWishes(
        target=Target(url or of.running_url(), model, key_env),
        bank=bank,
        concurrency=concurrency,
        delta=delta,
        items=items,
        repeats=repeats,
        temperature=temperature,
        budget=budget,
        seed=seed,
        timeout=timeout,
        max_tokens=max_tokens,
    )
    raise typer.Exit(run_quality_command(wishes, as_json=as_json))
