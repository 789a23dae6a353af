"""The figures of a sweep's levels, each described once for terminals, pages and files, and what is
said of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup, escape
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.metrics import Clock, LevelSummary, Promise, SearchEnd, Speedup, SweepSummary
from skep.bench.published import PublishedShare
from skep.bench.summary import FEWEST_TASKS_EACH, cost_per_million_tokens
from skep.bench.sweep import SweepPlan
from skep.report.columns import Column, as_count, as_percent, at, chosen, print_records
from skep.report.terminal import note
from skep.stats.turning import Turning
from skep.store.records import Request
from skep.units import (
    UNKNOWN,
    Interval,
    format_seconds,
    known,
    milliseconds,
    number,
    percent,
    seconds,
)

SHOWN_CACHED_SHARE = 0.05  # the share of the prompts' tokens that a cache held
_LevelColumn = Column[LevelSummary]


def _figure(
    name: str, title: str, key: str = "", text: Callable[[Any], str] = number, **options: Any
) -> _LevelColumn:
    return Column(key or name, title, lambda level: getattr(level, name), text, **options)


def _percentiles(name: str, title: str, **options: Any) -> Iterator[_LevelColumn]:
    for part in ("p50", "p95", "p99", "mean"):
        group = (title[0].upper() + title[1:], part)
        value = at(f"{name}_ms.{part}")
        key = f"{name}_{part}_ms"
        yield Column(key, f"{title} {part}", value, number, unit=" ms", group=group, **options)


def _bounds(name: str, key: str) -> Iterator[_LevelColumn]:
    for part in ("low", "high"):
        yield Column(key.format(part), f"95 % {part}", at(f"{name}_interval.{part}"))


def _energy(
    part: str, title: str, text: Callable[[Any], str] = number, **options: Any
) -> _LevelColumn:
    return Column(
        part, title, at(f"energy.{part}"), text, group=("GPUs", title), optional=True, **options
    )


def _listed(counts: Sequence[tuple[str, int]]) -> str:
    return ";".join(f"{name}={count}" for name, count in counts)


LEVEL_COLUMNS: tuple[_LevelColumn, ...] = (
    _figure("concurrency", "C", text=str),
    _figure("requests", "requests", text=as_count, group=("Requests", "sent")),
    _figure("failed", "failed", text=as_count, group=("Requests", "failed"), style="bad"),
    _figure("truncated", "cut", text=as_count),
    Column("runs", "runs", lambda level: len(level.counted)),
    Column("runs_left_out", "runs left out", lambda level: len(level.left_out)),
    _figure("wall_s", "wall", text=seconds, group=("Wall", "time")),
    _figure("output_tokens", "tokens", text=as_count),
    _figure("effective_tok_s", "eff tok/s", group=("Effective tok/s", "all runs"), style="strong"),
    _figure("combined_tok_s", "in+out tok/s", group=("Prompt + output", "tok/s"), optional=True),
    _figure("prompt_tok_s", "prompt tok/s", group=("Prompt", "tok/s"), optional=True),
    _figure("effective_low", "slowest run", "effective_low_tok_s"),
    _figure("effective_high", "fastest run", "effective_high_tok_s"),
    *_bounds("effective", "effective_ci95_{}_tok_s"),
    _figure("plateau_tok_s", "plateau", group=("Effective tok/s", "plateau"), optional=True),
    _figure("task_tok_s", "task tok/s", group=("Per task", "tok/s")),
    _figure("contention_pct", "contention", text=percent, group=("Per task", "contention")),
    _figure("engine_tok_s", "engine tok/s", group=("Engine", "tok/s")),
    *_percentiles("ttft", "TTFT"),
    *_bounds("ttft", "ttft_median_ci95_{}_ms"),
    *_percentiles("tpot", "TPOT"),
    *_bounds("tpot", "tpot_median_ci95_{}_ms"),
    *_percentiles("gap", "gap", optional=True),
    *_percentiles("total", "total", optional=True),
    *_percentiles("queued", "queued", optional=True),
    _figure(
        "prompt_tokens",
        "tokens in",
        "prompt_tokens_mean",
        group=("Tokens, mean", "in"),
        optional=True,
    ),
    _figure(
        "output_tokens_each",
        "tokens out",
        "output_tokens_mean",
        group=("Tokens, mean", "out"),
        optional=True,
    ),
    _figure(
        "cached_prompt_share",
        "cached",
        text=as_percent,
        group=("Cached", "of prompt"),
        optional=True,
    ),
    _figure(
        "delivered",
        "in flight",
        "delivered_share",
        as_percent,
        group=("In flight", "of C"),
        optional=True,
    ),
    _figure("client_limited", "client-limited", text=str),
    Column("finish_reasons", "ended by", lambda level: _listed(level.finish_reasons), right=False),
    Column("errors", "failed by", lambda level: _listed(level.errors), right=False),
    _energy("joules", "J"),
    _energy("joules_per_token", "J/token", partial(number, digits=2)),
    _energy("mean_w", "mean W"),
    _energy("max_w", "max W"),
    Column(
        "throttled",
        "throttled",
        lambda level: None if level.energy is None else ";".join(level.energy.throttled),
    ),
    Column(
        "disagreements",
        "clocks",
        lambda level: "; ".join(f"{clock.clock.value}: {clock.cause}" for clock in level.clocks),
    ),
)


def range_text(interval: Interval | None, runs: Sequence[float]) -> str:
    """Return a 95 % interval; of two runs, which have none, the two values, marked so."""
    if interval is not None:
        return f"{number(interval.low)}..{number(interval.high)}"
    if len(runs) > 1:
        return f"{number(min(runs))}..{number(max(runs))} ({len(runs)} runs)"
    return UNKNOWN


def spread_text(level: LevelSummary) -> str:
    if known(level.effective_tok_s):
        speeds = [repeat.effective_tok_s for repeat in level.counted]
    else:
        speeds = []
    return range_text(level.effective_interval, speeds)


def interval_text(interval: Interval | None) -> str:
    if interval is None or not (known(interval.low) and known(interval.high)):
        return UNKNOWN
    return f"{number(interval.low)}–{number(interval.high)}"


def runs_text(level: LevelSummary) -> str:
    """Return how many runs its figures are of; "1 of 2" where some were left out."""
    counted = len(level.counted)
    repeats = len(level.repeats)
    if counted == repeats:
        return str(counted)
    return f"{counted} of {repeats}"


def counted(counts: Sequence[tuple[str, int]]) -> str:
    """Return "stop 40, length 8"; a dash where there are none."""
    return ", ".join(f"{name} {count}" for name, count in counts) or UNKNOWN


def _notes(level: LevelSummary) -> Markup:
    if level.client_limited:
        flag = Markup('<span class="flag">client-limited</span>')
    else:
        flag = Markup()
    notes = []
    if level.left_out:
        notes.append(
            f"{len(level.left_out)} run{'s' if len(level.left_out) > 1 else ''} left out: "
            "client-limited"
        )
    if level.truncated:
        notes.append(f"{level.truncated} cut at the token limit")
    if level.cached_prompt_share is not None and level.cached_prompt_share >= SHOWN_CACHED_SHARE:
        notes.append(f"{percent(100 * level.cached_prompt_share)} of prompt cached")
    return flag + escape(", ".join(notes))


_words = partial(Column, right=False, optional=True)
# Several figures in one cell: only people read them.
_IN_WORDS: tuple[_LevelColumn, ...] = (
    Column(
        "spread",
        "95 %",
        spread_text,
        group=("Effective tok/s", "95 %"),
        style="soft",
        optional=True,
    ),
    Column("counted", "runs", runs_text, group=("Runs", "counted")),
    _words(
        "ended",
        "ended by",
        lambda level: counted(level.finish_reasons),
        group=("Ended", "by reason"),
    ),
    _words(
        "failed_by", "failed by", lambda level: counted(level.errors), group=("Failed", "by kind")
    ),
    _words(
        "slowed",
        "throttled",
        lambda level: level.energy and (", ".join(level.energy.throttled) or "no"),
        group=("GPUs", "throttled"),
    ),
    _words("measured_by", "measured by", at("energy.source"), group=("GPUs", "measured by")),
    Column("notes", "Notes", lambda _: "", style="note", right=False, html=_notes),
)


def level_columns(keys: str) -> list[_LevelColumn]:
    return chosen((*LEVEL_COLUMNS, *_IN_WORDS), keys)


def best_level(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    """Return the fastest level that the client did not limit: the others are lower bounds, and are
    not ranked.
    """
    ranked = [
        level for level in levels if known(level.effective_tok_s) and not level.client_limited
    ]
    return max(ranked, key=lambda level: level.effective_tok_s or 0.0, default=None)


def turning_sentence(turning: Turning) -> str:
    """Return knee and cliff in words, with their brackets; what the runs leave open is said
    instead.
    """
    parts = []
    if turning.knee is not None:
        knee = f"the knee{_bracket(turning.knee_bracket)}"
        parts.append(f"tok/s no longer grow above C = {turning.knee} ({knee})")
    if turning.cliff is not None:
        if known(turning.drop_pct):
            fall = f" by {percent(turning.drop_pct)}"
        else:
            fall = ""
        cliff = f"the cliff{_bracket(turning.cliff_bracket)}"
        parts.append(f"above C = {turning.cliff} tok/s fall{fall} ({cliff})")
    if not parts and turning.sure:
        parts.append("no knee: effective tok/s still grows at the largest level")
    if turning.unclear or not (turning.sure or turning.few):
        parts.append(_unclear_words(turning))
    if turning.few:
        parts.append(_few_words(turning.few))
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}."


_SEARCH_ENDS = {
    "past the knee": "no level above C = {beyond} was 5 % faster",
    "client": (
        "the client was the limit there; measure from another machine, or when this one has "
        "less to do"
    ),
    "most": "one client sends no more streams",
    "budget": (
        "the budget ended before two levels past the knee were measured; use a longer --budget"
    ),
}


def search_sentence(end: SearchEnd) -> str:
    """Return where the search for the knee stopped, and why."""
    why = _SEARCH_ENDS[end.reason].format(beyond=end.beyond)
    if end.reason == "most" and end.at > 1:
        if end.beyond is None:
            why += ", and tok/s still grew"
        else:
            why += f"; no level above C = {end.beyond} was 5 % faster"
    return f"The search stopped at C = {end.at}: {why}."


def has_curve(levels: Sequence[LevelSummary]) -> bool:
    """Return whether two levels or more were not limited by the client: of fewer, knee and cliff
    are no question.
    """
    return sum(not level.client_limited for level in levels) > 1


def _unclear_words(turning: Turning) -> str:
    """Return which levels their runs do not tell apart, and what to do about it."""
    if turning.unclear:
        levels = ", ".join(f"C={level}" for level in turning.unclear)
        return (
            f"{levels} cannot be told apart: their runs differ too much; measure more runs of "
            "each level (--runs 5)"
        )
    return (
        "knee and cliff are not known: no level was run twice, measure each three times or more "
        "(--runs 3)"
    )


def _few_words(levels: Sequence[int]) -> str:
    """Return which levels had too few tasks to tell anything of knee and cliff."""
    named = ", ".join(f"C={level}" for level in levels)
    remedy = (
        f"--tasks {FEWEST_TASKS_EACH * levels[-1]} and a longer --budget, or --runs 3 of a burst"
    )
    return (
        f"{named} had fewer than three tasks an agent, too few for a knee or a cliff: use {remedy}"
    )


def left_out_sentences(
    levels: Sequence[LevelSummary], name: Callable[[int], str] = "C={}".format
) -> list[str]:
    """Return the runs that are in no figure, and why; `name` of a level, where it is no
    concurrency.
    """
    return [
        f"left out: {name(level.concurrency)} run {repeat.repeat + 1}, "
        f"{number(repeat.effective_tok_s)} tok/s: "
        f"the client was the limit ({repeat.why})"
        for level in levels
        for repeat in level.left_out
    ]


def drift_sentence(summary: SweepSummary) -> str | None:
    drift = summary.drift
    if drift is None or not known(drift.estimate):
        return None
    figures = f"{drift.estimate:.2f} ({drift.low:.2f}..{drift.high:.2f})"
    if drift.contains(1.0):
        verdict = "no drift"
    elif drift.high < 1:
        verdict = "the machine became slower during the run"
    else:
        verdict = "the machine became faster during the run"
    return f"C=1 at the end was {figures} of the beginning: {verdict}."


def cache_sentence(levels: Sequence[LevelSummary]) -> str | None:
    """Return what share of the prompts' tokens the engine had not to read, over all levels, and
    where it had most.
    """
    shares = [
        (level, level.cached_prompt_share)
        for level in levels
        if level.cached_prompt_share is not None
    ]
    if not shares:
        return None
    weights = [level.requests * (level.prompt_tokens or 1.0) for level, _ in shares]
    held = sum(weight * share for weight, (_, share) in zip(weights, shares, strict=True))
    mean_share = held / (sum(weights) or 1.0)
    fullest, largest_share = max(shares, key=lambda pair: pair[1])
    if largest_share < SHOWN_CACHED_SHARE:
        cold = "the prompts were cold"
    else:
        cold = "not all prompts were cold, so TTFT looks better than it is"
    where = ""
    if largest_share - mean_share > 0.02:
        where = f" ({percent(100 * largest_share)} at C = {fullest.concurrency})"
    return (
        f"The engine's cache held {percent(100 * mean_share)} of the prompts' tokens{where}: "
        f"{cold}."
    )


def check_sentences(summary: SweepSummary) -> list[str]:
    """Return what a page says of how far the figures may be trusted."""
    sentences = left_out_sentences(summary.levels)
    if summary.turning and has_curve(summary.levels):
        sentences.append(turning_sentence(summary.turning))
    if summary.search:
        sentences.append(search_sentence(summary.search))
    others = (drift_sentence(summary), cache_sentence(summary.levels))
    return [*sentences, *filter(None, others)]


def clock_figure(clock: Clock, value: float) -> str:
    if clock is Clock.FIRST_TOKEN:
        return milliseconds(value)
    if clock is Clock.DECODE:
        return f"{number(value)} tok/s"
    return number(value, digits=0)


def _bracket(bracket: tuple[int, int] | None) -> str:
    if bracket is None or not bracket[0]:
        return ""
    return f" lies between C = {bracket[0]} and C = {bracket[1]}"


# The rank behind a key: in a narrow terminal the highest goes first.
LEVEL_KEYS = (
    "effective_tok_s spread~1 plateau_tok_s~7 combined_tok_s~11 prompt_tok_s~10 "
    "task_tok_s~1 contention_pct~2 "
    "ttft_p50_ms ttft_p95_ms~5 tpot_p50_ms~4 engine_tok_s~8 cached_prompt_share~9 counted~6 "
    "wall_s~6 failed "
    "joules_per_token~3"
)


def print_summary(
    summary: SweepSummary,
    *,
    price: float | None = None,
    title: str = "C",
    names: Sequence[str] = (),
) -> None:
    """Print a row a level, and what is to be said of them.

    `title` and `names` of the levels, where they are no concurrencies.
    """

    def name(level: LevelSummary) -> str:
        if names:
            level_name = _name_in(names, level.concurrency)
        else:
            level_name = str(level.concurrency)
        return f"{level_name}{'*' if level.client_limited else ''}"

    def cost(level: LevelSummary) -> float | None:
        if price is None or level.energy is None or level.energy.joules_per_token is None:
            return None
        return cost_per_million_tokens(level.energy.joules_per_token, price)

    columns = [replace(level_column, optional=True) for level_column in level_columns(LEVEL_KEYS)]
    columns.append(
        Column("cost", "cost per M", cost, partial(number, digits=2), rank=3, optional=True)
    )
    print_records([Column[LevelSummary]("concurrency", title, name), *columns], summary.levels)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    note(*remarks(summary, names))


def remarks(summary: SweepSummary, names: Sequence[str] = ()) -> list[str]:
    """Return the sentences below the table. `names`: of the levels, where these are not numbers of
    agents.
    """
    name_of: Callable[[int], str] = "C={}".format
    if names:
        name_of = partial(_name_in, names)
    sentences = left_out_sentences(summary.levels, name_of)
    if summary.speedups is not None:
        sentences.extend(speedup_sentences(summary.speedups))
    if summary.promise is not None:
        sentences.append(_promise(summary.promise))
    if summary.turning is not None and len(summary.levels) > 2 and has_curve(summary.levels):
        sentences.append(turning_sentence(summary.turning))
    if summary.search is not None:
        sentences.append(search_sentence(summary.search))
    if summary.drift is not None and not summary.drift.contains(1.0):
        sentences.append(f"warning: {drift_sentence(summary)}")
    for level in summary.levels:
        sentences.extend(_level_remarks(level))
    if summary.client_limited:
        sentences.append(
            "warning: the client was the limit at some level (marked *); its figures are a "
            "lower bound"
        )
    return sentences


def _name_in(names: Sequence[str], level: int) -> str:
    return names[level - 1]


def _level_remarks(level: LevelSummary) -> Iterator[str]:
    """Yield why the GPUs were slow, and where client and engine measured different things."""
    if level.energy is not None and level.energy.throttled:
        reasons = ", ".join(level.energy.throttled)
        yield f"C={level.concurrency}: the GPU was slowed down: {reasons}"
    for disagreement in level.clocks:
        clock = disagreement.clock
        client = clock_figure(clock, disagreement.client)
        engine = clock_figure(clock, disagreement.engine)
        readings = f"{clock.value} is {client} by the client and {engine} by the engine"
        yield f"C={level.concurrency}: {readings}: {disagreement.cause}"


def speedup_sentences(speedup: Speedup) -> list[str]:
    serial = format_seconds(speedup.serial_wall_s)
    gain = f"{speedup.by_wall:.2f}x by wall time"
    if speedup.sampled is not None:
        serial += (
            f" ({_times_range(speedup.serial_wall_interval)}scaled from {speedup.sampled} of "
            f"{speedup.tasks} tasks)"
        )
    if (between := speedup.by_wall_interval) is not None:
        gain += f" ({between.low:.2f}x to {between.high:.2f}x)"
    tokens = (
        f"{number(speedup.by_tokens, digits=2)}x by tokens ({speedup.tokens_serial:,} and "
        f"{speedup.tokens_swarm:,})"
    )
    swarm = f"{speedup.concurrency} at once {format_seconds(speedup.swarm_wall_s)}"
    sentences = [f"one at a time {serial}, {swarm}: {gain}, {tokens}"]
    if speedup.combined_serial_tok_s is not None and speedup.combined_swarm_tok_s is not None:
        alone = number(speedup.combined_serial_tok_s)
        swarm = number(speedup.combined_swarm_tok_s)
        sentences.append(
            f"prompt + output: {alone} tok/s one at a time, {swarm} tok/s with "
            f"{speedup.concurrency} at once"
        )
    if speedup.truncated_serial or speedup.truncated_swarm:
        sentences.append(
            f"{speedup.truncated_serial} and {speedup.truncated_swarm} answers "
            "reached the token limit"
        )
    return sentences


def _times_range(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{format_seconds(interval.low)} to {format_seconds(interval.high)}, "


def _promise(promise: Promise) -> str:
    if promise.highest_met is None:
        return f"{promise.limits} is not met, not even by one agent alone"
    if promise.lowest_failed is not None:
        failed = f"; not at C={promise.lowest_failed}"
    else:
        failed = "; no level failed"
    if promise.safe != promise.highest_met:
        return (
            f"{promise.limits} is met up to C={promise.safe or 'none'}, and again at "
            f"C={promise.highest_met}{failed}"
        )
    return f"{promise.limits} is met up to C={promise.safe}{failed}"


def shortfalls(plan: SweepPlan, summary: SweepSummary) -> list[str]:
    """Return sentences about what the budget left undone."""
    if plan.runs is not None:
        return []
    measured = {level.concurrency: level for level in summary.levels}
    required_levels = () if plan.finds_knee else plan.concurrency
    missing = ", ".join(str(level) for level in required_levels if level not in measured)
    if missing:
        sentences = [f"the budget ended before C={missing} was measured; use a longer --budget"]
    else:
        sentences = []
    for concurrency, level in measured.items():
        if (effective_interval := level.effective_interval) is None:
            sentences.append(
                f"C={concurrency} has {runs_text(level)} runs that count: an interval needs three"
            )
        elif effective_interval.upper_width > plan.precision:
            width = f"{100 * effective_interval.upper_width:.1f} %"
            goal = f"{100 * plan.precision:g} % was asked for"
            sentences.append(
                f"the tok/s of C={concurrency} may be off by {width} ({goal}); use a longer "
                "--budget"
            )
    return sentences


def cut_answers(plan: SweepPlan, summary: SweepSummary) -> list[str]:
    """Return how many answers ended at the limit of their length, where they could have ended by
    themselves.
    """
    cut = sum(level.truncated for level in summary.levels)
    if plan.workload.fixed_output or not (cut or plan.quick):
        return []
    answers = sum(level.requests for level in summary.levels)
    cut_words = f"{cut} of {answers} answers were cut at {plan.workload.max_tokens:,} tokens"
    if plan.quick:
        if not cut:
            return [f"quick: {cut_words}"]
        longer = "real answers are longer and fill the KV cache: leave --quick out to measure them"
        return [f"quick: {cut_words}; {longer}"]
    return [f"{cut_words}; --output-tokens N lets them be longer"]


def published_words(preset: str, shares: Sequence[PublishedShare], *, simulated: bool) -> str:
    """Return in one line what share of a preset's published figures was reached."""
    share_words = ", ".join(
        f"{percent(100 * share.share)} of {number(share.figure.tok_s)} "
        f"at C={share.figure.concurrency}"
        for share in shares
    )
    words = (
        f"{'SIMULATED ' if simulated else ''}share of the tok/s that {preset} has published: "
        f"{share_words}"
    )
    odd = next((share for share in shares if not share.same_lengths), None)
    if odd is None:
        return words
    lengths = (odd.figure.input_tokens, odd.figure.output_tokens)
    published = " and ".join(UNKNOWN if length is None else f"{length:,}" for length in lengths)
    measured = " and ".join(
        number(length, digits=0) for length in (odd.input_tokens, odd.output_tokens)
    )
    repeat = f"`skep check {preset}` repeats its load"
    return f"{words}; its lengths are {published} tokens in and out, here {measured}: {repeat}"


def headline(plan: SweepPlan, endpoint: Endpoint) -> str:
    """Return what is measured, of whom, how often and for how long."""
    load = plan.workload
    if plan.finds_knee:
        levels = "1,2,4 and on"
    else:
        levels = ",".join(map(str, plan.concurrency))
    model = f"{endpoint.model} (simulated)" if endpoint.simulated else endpoint.model
    lengths = _lengths_words(plan)
    return (
        f"{model} at {endpoint.url}: C={levels}; {load.shape}, {lengths}; "
        f"{_runs_words(plan)}; seed {load.seed}"
    )


def _lengths_words(plan: SweepPlan) -> str:
    load = plan.workload
    words = f"{load.prompt_tokens} tokens in, " if load.prompt_tokens else ""
    words += f"{load.max_tokens:,} out" if load.fixed_output else f"up to {load.max_tokens:,} out"
    if plan.quick:
        words += " (quick)"
    return words


def _runs_words(plan: SweepPlan) -> str:
    if plan.runs:
        return f"{plan.runs} run{'s' if plan.runs > 1 else ''} per level"
    words = f"each level until ± {100 * plan.precision:g} %"
    if plan.budget_s:
        words += f", {format_seconds(plan.budget_s)} at most"
    return words


def failure_reasons(rows: Sequence[Request]) -> str:
    """Return "3x http_500 (out of memory), 1x timeout": each kind once, with the first message."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row.error_kind or "", []).append(row.error or "")
    return ", ".join(f"{len(texts)}x {kind} ({texts[0]})" for kind, texts in kinds.items())
