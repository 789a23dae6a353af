"""`skep bench compare` and `ab`: is B an improvement?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skep.bench.ab import Duel, run_ab
from skep.bench.compare import Side, compare, is_higher_better, regressions
from skep.bench.loaded import JUDGED, TIMED, load_run
from skep.bench.sweep import Progress, SweepPlan
from skep.bench.tasks import Workload
from skep.cli.benching import Target, maker_for, positive_seconds, run_measuring
from skep.cli.liveview import live_view
from skep.cli.output import note, number, print_json, print_table
from skep.cli.results import check_output, existing, write_whole
from skep.cli.spreading import joined, load_from
from skep.cli.sweep import levels_of, most_streams, share_of
from skep.errors import Regression, UserError
from skep.host.facts import read_host
from skep.places import user_paths
from skep.records import Comparison, Judgement, Run, SweepSummary
from skep.store.database import open_store

WORKLOAD = (
    "shape", "size", "prompt_tokens", "max_tokens", "fixed_output", "temperature", "turns", "think_s", "tasks", "rates",
    "arrivals", "for_s", "classes", "trace", "speed",
)  # fmt: skip


def run_compare_command(
    store_path: Path, a: str, b: str, *, threshold: str, output: Path | None, as_json: bool
) -> None:
    """Exit code 4 where B is worse by more than the threshold."""
    allowed = share_of(threshold, "--threshold")
    if output is not None:
        check_output(output)
    with existing(store_path) as store:
        run_a, summary_a, rows_a = load_run(store, a)
        run_b, summary_b, rows_b = load_run(store, b)
    check_kinds(run_a, run_b)
    sides = Side(summary_a, rows_a), Side(summary_b, rows_b)
    found = compare(*sides)
    if not found:
        raise UserError(
            f"`{run_a.id}` and `{run_b.id}` have no level in common", hint="measure both with the same --concurrency"
        )
    for line in differences(run_a, run_b):
        note(f"warning: {line}")
    if output is not None:
        write_page([(run_a, summary_a), (run_b, summary_b)], found, output)
    tell(found, regressions(*sides, allowed), (run_a.id, run_b.id), allowed, as_json=as_json)


def check_kinds(a: Run, b: Run) -> None:
    """Levels of an open load, a mix or a trace are no concurrencies: they stand for what the run says."""
    for run in (a, b):
        if run.kind in JUDGED:
            hint = f"`skep report {a.id} {b.id}` puts two mixed runs side by side; a quality run has its own test in it"
            raise UserError(f"`{run.id}` ({run.kind}) is about answers, not about levels of speed", hint=hint)
    if a.kind != b.kind and {a.kind, b.kind} & {*TIMED}:
        raise UserError(f"`{a.id}` is of the kind {a.kind}, `{b.id}` {b.kind}", hint="compare runs of one kind")
    if a.kind == "open" and a.config.get("rates") != b.config.get("rates"):
        rates = [", ".join(f"{rate:g}" for rate in run.config.get("rates", ())) for run in (a, b)]
        raise UserError(f"the rates differ: {rates[0]} and {rates[1]}", hint="measure both with the same --rate")


def run_ab_command(
    targets: tuple[Target, Target],
    workload: Workload,
    limits: tuple[str, int | None, int | None, str, str, str],
    *,
    cluster: str | None = None,
    processes: int | None = None,
    threshold: str,
    as_json: bool,
) -> None:
    concurrency, tasks, runs, precision, budget, timeout = limits
    allowed = share_of(threshold, "--threshold")
    plan = SweepPlan(
        concurrency=levels_of(concurrency, "--concurrency", most_streams(cluster)),
        tasks=tasks,
        runs=runs,
        precision=share_of(precision, "--precision"),
        budget_s=positive_seconds(budget, "--budget", "15m"),
        workload=workload,
        timeout_s=positive_seconds(timeout, "--timeout", "15m"),
        processes=processes,
    )

    async def run() -> Duel:
        a, b = await targets[0].find(), await targets[1].find()
        note(f"A {a.model} at {a.url}, B {b.model} at {b.url}: C={concurrency} in turns; seed {workload.seed}")
        makers = (await maker_for(workload, a, salt="a"), await maker_for(workload, b, salt="b"))
        async with load_from(cluster, processes) as reaching:
            crowd = await reaching(a, b)
            with open_store(user_paths(os.environ).store) as store, live_view() as show:

                def show_side(name: str, progress: Progress) -> None:
                    show(replace(progress, label=f"{name} C={progress.level}"))

                return await run_ab(plan, (a, b), store, read_host(), makers, show_side, crowd=crowd)

    with joined(cluster):
        duel = run_measuring(run)
    worse = regressions(duel.a, duel.b, allowed, paired=True)
    tell(duel.comparisons, worse, (duel.a.summary.run_id, duel.b.summary.run_id), allowed, as_json=as_json)


def tell(
    found: Sequence[Comparison],
    worse: Sequence[Comparison],
    runs: tuple[str, str],
    allowed: float,
    *,
    as_json: bool,
) -> None:
    a, b = runs
    if as_json:
        document = {
            "a": a,
            "b": b,
            "threshold": allowed,
            "comparisons": [comparison_json(one) for one in found],
            "regressions": len(worse),
        }
        print_json(document)
    else:
        columns = ("C", "figure", "A", "B", "B / A", "95 %", "B is")
        print_table(columns, [_cells(one) for one in found], right=columns[:1] + columns[2:6])
        note(f"A is run {a}, B is run {b}; TTFT and TPOT in ms; each figure is judged on its own, at 95 %")
    if worse:
        first = worse[0]
        ratio = first.ratio.estimate if first.ratio else 1.0
        size = abs(1 - ratio) * 100
        what = f"{first.metric} at C={first.concurrency} is {size:.1f} % worse"
        more = f", and {len(worse) - 1} more" if len(worse) > 1 else ""
        raise Regression(f"B is worse than A: {what}{more}", hint=f"beyond --threshold {allowed:.0%}")


def comparison_json(one: Comparison) -> dict[str, Any]:
    return {**asdict(one), "judgement": one.judgement.value, "higher_is_better": is_higher_better(one.metric)}


def differences(a: Run, b: Run) -> list[str]:
    """What makes the two hard to compare."""
    found = []
    if a.kind != b.kind:
        found.append(f"one is of the kind {a.kind}, the other {b.kind}")
    changed = [key for key in WORKLOAD if _setting(a, key) != _setting(b, key)]
    if changed:
        found.append(f"the workloads differ in {', '.join(changed)}")
    if a.simulated != b.simulated:
        found.append("one of the two is simulated")
    if a.model != b.model:
        found.append(f"the models differ: {a.model} and {b.model}")
    if a.host.get("cpu_model") != b.host.get("cpu_model") or a.host.get("gpus") != b.host.get("gpus"):
        found.append("they were measured from different machines")
    return found


def _setting(run: Run, key: str) -> Any:
    inner = run.config.get("workload")
    return inner[key] if isinstance(inner, dict) and key in inner else run.config.get(key)


def write_page(entries: list[tuple[Run, SweepSummary]], found: Sequence[Comparison], output: Path) -> None:
    from skep.report.comparison import comparison_page, comparison_picture

    text = comparison_picture(entries) if output.suffix == ".svg" else comparison_page(entries, found)
    write_whole(output, text)
    note(f"written to {output}")


def _cells(one: Comparison) -> list[str]:
    verdict = one.judgement.value
    if one.judgement is Judgement.UNKNOWN and one.why:
        verdict = f"{verdict}: {one.why}"
    ratio = one.ratio
    return [
        str(one.concurrency),
        one.metric,
        number(one.a),
        number(one.b),
        "–" if ratio is None else f"{ratio.estimate:.3f}",
        "–" if ratio is None else f"{ratio.low:.3f}..{ratio.high:.3f}",
        verdict,
    ]
