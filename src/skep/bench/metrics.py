"""From raw request rows to the figures that people compare. Pure: the same rows always give the
same figures.

An engine may put several tokens into one event, and the network several events into one read. Only
reads have times, and of the tokens only the sum is known. So a request's tokens are spread evenly
over its events, and the tokens of one read count as arriving at the same moment."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, groupby, pairwise
from statistics import fmean, median
from typing import Literal

import msgspec
from msgspec.structs import replace

from skep.stats.percentiles import Percentiles, percentiles, runs_interval
from skep.stats.turning import Turning
from skep.stats.versus import Judgement
from skep.store.records import Request
from skep.units import Interval


class RepeatSummary(msgspec.Struct, frozen=True):
    """One run of one level."""

    repeat: int
    wall_s: float
    output_tokens: int
    effective_tok_s: float
    plateau_tok_s: float | None = None
    client_limited: bool = False
    counted: bool = True  # False: left out of the level's figures
    why: str = ""  # why the client was the limit
    requests: int = 0


class Energy(msgspec.Struct, frozen=True):
    """Energy that the GPUs used while a level ran. Absent where nothing measures it."""

    joules: float
    seconds: float
    joules_per_token: float | None
    mean_w: float
    max_w: float
    throttled: tuple[str, ...] = ()  # reasons seen: "power cap", "thermal", ...
    source: str = "NVML"  # "NVML power samples"; in older runs perhaps "NVML energy counter"


class Clock(Enum):
    """Which of the engine's figures stands against which of the client's."""

    DECODE = "decode speed"
    FIRST_TOKEN = "time to first token"  # noqa: S105
    TOKENS = "output tokens"


class Disagreement(msgspec.Struct, frozen=True):
    """A figure in which client and engine differ for the same requests, with the likely cause."""

    clock: Clock
    client: float
    engine: float
    cause: str


class LevelSummary(msgspec.Struct, frozen=True):
    """All runs of one level together.

    Figures are of the runs that count; `wall_s` is the sum over them.
    """

    concurrency: int
    requests: int
    failed: int
    output_tokens: int
    wall_s: float
    effective_tok_s: float | None  # None: not one request succeeded
    effective_low: float | None  # slowest and fastest run of the level: the spread
    effective_high: float | None
    task_tok_s: float | None  # median over tasks of tokens / (last - first token)
    contention_pct: float | None  # None without C=1
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    # The engine's own decode speed per stream, median; None: it does not say.
    engine_tok_s: float | None
    cached_prompt_share: float | None
    truncated: int  # answers that ended at the token limit
    client_limited: bool
    repeats: tuple[RepeatSummary, ...] = ()
    # Agents in conversation, who pause between turns: fewer than C are in flight.
    thinking: bool = False
    # 95 %, of the mean over runs; None with fewer than three.
    effective_interval: Interval | None = None
    ttft_interval: Interval | None = None  # 95 %, of the runs' medians, in ms
    tpot_interval: Interval | None = None
    # While at least 95 % of C were in flight; None: that was never so.
    plateau_tok_s: float | None = None
    gap_ms: Percentiles | None = None  # between two tokens, over all tokens of all requests
    total_ms: Percentiles | None = None  # from sending (or when it was due) to the end
    queued_ms: Percentiles | None = None  # in skep's gateway
    prompt_tokens: float | None = None  # mean of a request
    output_tokens_each: float | None = None  # mean of a request
    # Requests really in flight while the level was full, as a share of C.
    delivered: float | None = None
    finish_reasons: tuple[tuple[str, int], ...] = ()
    errors: tuple[tuple[str, int], ...] = ()  # by kind
    energy: Energy | None = None
    clocks: tuple[Disagreement, ...] = ()
    # Prompt and output tokens over the wall time; None: prompts were not counted.
    combined_tok_s: float | None = None
    # Prompt tokens that no cache had, over the time to the first token; the median.
    prompt_tok_s: float | None = None

    @property
    def counted(self) -> tuple[RepeatSummary, ...]:
        """Return the runs that its figures are made of."""
        return tuple(repeat for repeat in self.repeats if repeat.counted)

    @property
    def left_out(self) -> tuple[RepeatSummary, ...]:
        return tuple(repeat for repeat in self.repeats if not repeat.counted)


class Speedup(msgspec.Struct, frozen=True):
    """The same tasks one after the other and all at once.

    By wall time and by tokens, as answers differ in length.
    """

    tasks: int  # of one run
    concurrency: int
    serial_wall_s: float  # of one run, the mean
    swarm_wall_s: float
    by_wall: float
    by_tokens: float | None  # ratio of effective tok/s
    truncated_serial: int
    truncated_swarm: int
    tokens_serial: int
    tokens_swarm: int
    sampled: int | None = None  # tasks that really ran one at a time; None: all of them
    # 95 %, of a serial side that was scaled from a sample.
    serial_wall_interval: Interval | None = None
    by_wall_interval: Interval | None = None
    combined_serial_tok_s: float | None = None  # prompt and output tokens together
    combined_swarm_tok_s: float | None = None


class Promise(msgspec.Struct, frozen=True):
    """Which levels kept the limits asked for.

    `safe`: the highest C that did, with none below it that did not.
    """

    limits: str
    highest_met: int | None
    lowest_failed: int | None
    safe: int | None


class Comparison(msgspec.Struct, frozen=True):
    """One figure of one level in two runs.

    `ratio` is B over A; better and worse know which way is up.
    """

    concurrency: int
    metric: str  # "effective tok/s", "TTFT p50", ...
    a: float | None
    b: float | None
    ratio: Interval | None
    judgement: Judgement
    why: str = ""  # where it is not comparable
    higher_is_better: bool = True


class SearchEnd(msgspec.Struct, frozen=True):
    """Where the search for the knee stopped, and why."""

    at: int  # the largest C that was measured
    reason: Literal["past the knee", "client", "most", "budget"]
    # No level above this one was 5 % faster; None: tok/s still grew, or it is not known.
    beyond: int | None = None


class SweepSummary(msgspec.Struct, frozen=True):
    run_id: str
    levels: tuple[LevelSummary, ...]
    client_limited: bool
    turning: Turning | None = None
    speedups: Speedup | None = None
    promise: Promise | None = None
    drift: Interval | None = None  # C=1 at the end over C=1 at the beginning: 1 means none
    simulated: bool = False  # no model ran: the speed is made up or predicted
    unfinished_level: int | None = None  # the run was broken off in it, and no level was finished
    search: SearchEnd | None = None  # of a run that found its levels itself


PLATEAU_SHARE = 0.95  # of C in flight: the plateau
CHANGING_S = 0.005  # so long after the end of a request the level still counts as full
ENGINE_TOLERANCE = 0.05  # of the engine's figure
TOLERATED_MS = 20.0  # of a time to first token: the network and a loaded machine take some
Key = tuple[int, int]  # a level and which of its runs


def tpot_ms(row: Request) -> float | None:
    """Return (last - first) / (n - 1), as everybody defines it; also where the first read brought
    several tokens.
    """
    if not row.ok or row.first_token_s is None or row.last_token_s is None:
        return None
    tokens = row.output_tokens or 0
    if row.last_token_s <= row.first_token_s or tokens <= 1:
        return None
    return (row.last_token_s - row.first_token_s) * 1000 / (tokens - 1)


def gaps_ms(row: Request) -> Iterator[float]:
    """Yield the times from token to token.

    Tokens of one read share the time since the read before it.
    """
    if not row.ok or not row.output_tokens or not row.arrivals_s:
        return
    tokens_per_event = row.output_tokens / len(row.arrivals_s)
    if len(set(row.arrivals_s)) == len(row.arrivals_s):  # one event to a read, as mostly
        scale = 1000 / tokens_per_event
        yield from [(at - before) * scale for before, at in pairwise(row.arrivals_s)]
        return
    before = row.arrivals_s[0]
    for at, events_of_read in groupby(row.arrivals_s):
        events = sum(1 for _ in events_of_read)
        if at > before:
            gap = (at - before) * 1000 / (events * tokens_per_event)
            yield from (gap for _ in range(events))
        before = at


def full_spans(rows: Iterable[Request], concurrency: int) -> list[tuple[float, float]]:
    """Return the times in which at least 95 % of `concurrency` were in flight."""
    steps = sorted([(row.started_s, 1) for row in rows] + [(row.ended_s, -1) for row in rows])
    spans: list[tuple[float, float]] = []
    in_flight = 0
    since = None
    for at, change in steps:
        in_flight += change
        if in_flight >= PLATEAU_SHARE * concurrency:
            if since is None:
                since = at
        elif since is not None:
            if spans and since - spans[-1][1] <= CHANGING_S:
                spans[-1] = (spans[-1][0], at)
            elif at > since:
                spans.append((since, at))
            since = None
    return spans


def plateau_tok_s(rows: Sequence[Request], concurrency: int) -> float | None:
    """Return the tokens that arrived while the level was full, over that time.

    None: it never was full.
    """
    spans = full_spans(rows, concurrency)
    full_s = sum(end - begin for begin, end in spans)
    if full_s <= 0:
        return None
    edges = [edge for span in spans for edge in span]
    tokens = 0.0
    for row in rows:
        if row.ok and row.output_tokens:
            # Tokens that no event showed, such as hidden reasoning, count with the request's end.
            arrivals = row.arrivals_s or (row.ended_s,)
            tokens += row.output_tokens * _count_inside(edges, arrivals) / len(arrivals)
    return tokens / full_s


def _count_inside(edges: Sequence[float], arrivals: Sequence[float]) -> int:
    """Return how many arrivals lie in a span. `edges`: begin and end of each span, in order.

    The end of a span belongs to it: the last token comes with the end of its request.
    """

    def is_inside(at: float) -> bool:
        place = bisect_right(edges, at)
        return place % 2 == 1 or (place > 0 and edges[place - 1] == at)

    first = bisect_right(edges, arrivals[0])
    last = bisect_right(edges, arrivals[-1])
    if first == last and first % 2:  # all of them lie in the same span
        return len(arrivals)
    return sum(map(is_inside, arrivals))


def delivered(rows: Sequence[Request], concurrency: int) -> float | None:
    """Return the requests in flight on average until the start of the last one, as a share of
    `concurrency`. Below 1 the client was late.
    """
    begin = min((row.started_s for row in rows), default=0.0)
    end = max((row.started_s for row in rows), default=0.0)
    if len(rows) <= concurrency or end <= begin:
        return None
    busy = sum(min(row.ended_s, end) - row.started_s for row in rows if row.started_s < end)
    return busy / (end - begin) / concurrency


def disagreements(
    rows: Sequence[Request], counters: Mapping[str, float] | None = None
) -> tuple[Disagreement, ...]:
    """Return the figures in which client and engine differ by more than the tolerance.

    `counters`: of engines that say nothing of a single request.
    """
    answered = [row for row in rows if row.ok]
    candidates = [_decode(answered), _first_token(answered), _tokens(answered)]
    if counters and not any(row.engine.decode_ms for row in answered):
        candidates += [
            _decode_by_counters(answered, counters),
            _first_token_by_counters(answered, counters),
        ]
    return tuple(candidate for candidate in candidates if candidate is not None)


def _decode_by_counters(
    answered: Sequence[Request], counters: Mapping[str, float]
) -> Disagreement | None:
    client_ms = tpot_values(answered)
    engine_s = counters.get("tpot_s")
    if not client_ms or not engine_s:
        return None
    return _decode_verdict(fmean(client_ms), engine_s * 1000, answered)


def _first_token_by_counters(
    answered: Sequence[Request], counters: Mapping[str, float]
) -> Disagreement | None:
    client_ms = ttft_values(answered)
    engine_s = counters.get("ttft_s")
    if not client_ms or not engine_s:
        return None
    queued_ms = fmean(row.queued_ms or 0.0 for row in answered)
    # The engine's figure includes its own queue.
    return _first_token_verdict(fmean(client_ms), engine_s * 1000, queued_ms, 0.0)


def _decode(rows: Sequence[Request]) -> Disagreement | None:
    """Compare milliseconds a token.

    Engines count the time from the first token on, so both sides divide by one token less.
    """
    pairs = [
        (client_ms, row.engine.decode_ms / (count - 1))
        for row in rows
        if (client_ms := tpot_ms(row)) is not None
        and row.engine.decode_ms
        and (count := row.engine.output_tokens or 0) > 1
    ]
    if not pairs:
        return None
    client = median(client_ms for client_ms, _ in pairs)
    engine = median(engine_ms for _, engine_ms in pairs)
    return _decode_verdict(client, engine, rows)


def _decode_verdict(client: float, engine: float, rows: Sequence[Request]) -> Disagreement | None:
    if abs(client - engine) <= ENGINE_TOLERANCE * engine:
        return None
    events = sum(len(row.arrivals_s) for row in rows)
    if client >= engine:
        cause = "tokens waited on the way: the client, a proxy or the network"
    elif sum(len(set(row.arrivals_s)) for row in rows) < 0.9 * events:
        cause = "several tokens came in one read"
    else:
        cause = "the engine counts time it does not stream in"
    return Disagreement(Clock.DECODE, 1000 / client, 1000 / engine, cause)


def _first_token(rows: Sequence[Request]) -> Disagreement | None:
    """Compare times to the first token. The engine counts from when it began with the prompt; the
    time before that is waiting.
    """
    timed = [
        row for row in rows if row.engine.prompt_ms is not None and row.first_token_s is not None
    ]
    if not timed:
        return None
    return _first_token_verdict(
        client=median(ttft_values(timed)),
        engine=median(row.engine.prompt_ms or 0.0 for row in timed),
        queued=median(row.queued_ms or 0.0 for row in timed),
        inside=median(row.engine.queue_ms or 0.0 for row in timed),
    )


def _first_token_verdict(
    client: float, engine: float, queued: float, inside: float
) -> Disagreement | None:
    """Return the disagreement with its cause, if it is beyond the tolerance.

    `queued`: in the gateway, `inside`: in the engine's own queue, all in milliseconds.
    """
    ahead = client - engine
    if abs(ahead) <= max(TOLERATED_MS, ENGINE_TOLERANCE * engine):
        return None
    if ahead < 0:
        cause = (
            "the engine's clock counts more than the wait for the first token, "
            "or other requests too"
        )
    elif max(queued, inside) >= 0.5 * ahead:
        if queued >= inside:
            where = "the gateway's queue"
        else:
            where = "the engine's own queue"
        cause = f"{max(queued, inside):,.0f} ms of it in {where}"
    else:
        cause = (
            "requests waited inside the engine or on the way: the client, a proxy or the network"
        )
    return Disagreement(Clock.FIRST_TOKEN, client, engine, cause)


def _tokens(rows: Sequence[Request]) -> Disagreement | None:
    counted = [
        row
        for row in rows
        if row.output_tokens is not None and row.engine.output_tokens is not None
    ]
    client = sum(row.output_tokens or 0 for row in counted)
    engine = sum(row.engine.output_tokens or 0 for row in counted)
    # One token of each answer: some count the end token, some do not.
    tolerated = max(len(counted), ENGINE_TOLERANCE * engine)
    if not counted or abs(client - engine) <= tolerated:
        return None
    return Disagreement(Clock.TOKENS, client, engine, "`usage` and the engine's own count differ")


class RunMarks(msgspec.Struct, frozen=True):
    """Facts of the runs of each level beside their rows."""

    limited: Mapping[Key, str] = {}  # the client was the limit, and why
    left_out: frozenset[Key] = frozenset()  # of the figures; they are named among the runs
    energy: Mapping[int, Energy] = {}
    counters: Mapping[int, Mapping[str, float]] = {}


def levels_of(
    rows: Sequence[Request], marks: RunMarks | None = None, *, closed: bool = True
) -> tuple[LevelSummary, ...]:
    """Return the levels in order of C, without the warm-up. `closed`: levels count agents."""
    marks = marks or RunMarks()
    by_level: dict[int, list[Request]] = {}
    for row in rows:
        if row.level > 0:
            by_level.setdefault(row.level, []).append(row)
    alone = (row for row in by_level.get(1, ()) if (1, row.repeat) not in marks.left_out)
    serial_speed = task_tok_s(alone) if closed else None
    summaries = (
        _level(level, by_level[level], serial_speed, marks, closed=closed)
        for level in sorted(by_level)
    )
    return tuple(level for level in summaries if level is not None)


def task_tok_s(rows: Iterable[Request]) -> float | None:
    """Return the median over tasks of output tokens over the time from the first token to the
    last.
    """
    speeds = [
        row.output_tokens / (row.last_token_s - row.first_token_s)
        for row in rows
        if row.ok and row.output_tokens and row.first_token_s is not None
        if row.last_token_s is not None and row.last_token_s > row.first_token_s
    ]
    return _median(speeds)


def ttft_values(rows: Iterable[Request]) -> list[float]:
    """Return the milliseconds from sending, or from when the request was due, to the first bytes
    of content, reasoning or a tool call.
    """
    return [
        (row.first_token_s - row.due_s) * 1000
        for row in rows
        if row.ok and row.first_token_s is not None
    ]


def tpot_values(rows: Iterable[Request]) -> list[float]:
    return [value for row in rows if (value := tpot_ms(row)) is not None]


def total_values(rows: Iterable[Request]) -> list[float]:
    """Return the milliseconds from sending, or from when the request was due, to its end."""
    return [(row.ended_s - row.due_s) * 1000 for row in rows if row.ok]


def count_truncated(rows: Iterable[Request]) -> int:
    """Return how many answers ended at the token limit."""
    return sum(row.finish_reason == "length" for row in rows)


def by_repeat(rows: Iterable[Request]) -> dict[int, list[Request]]:
    repeats: dict[int, list[Request]] = {}
    for row in rows:
        repeats.setdefault(row.repeat, []).append(row)
    return dict(sorted(repeats.items()))


def _level(
    concurrency: int,
    requests: Sequence[Request],
    serial_speed: float | None,
    marks: RunMarks,
    *,
    closed: bool,
) -> LevelSummary | None:
    """Return the figures of the runs that count, beside all runs; None: none of them counts."""
    rows = [row for row in requests if (concurrency, row.repeat) not in marks.left_out]
    if not rows:
        return None
    answered = [row for row in rows if row.ok]
    runs = _runs_of(concurrency, requests, marks, closed=closed)
    counted = [run for run in runs if run.counted]
    totals = _totals_of(counted)
    task_speed = task_tok_s(rows)
    in_conversation = any(row.session is not None for row in rows)
    counters = marks.counters.get(concurrency, {})
    return LevelSummary(
        concurrency=concurrency,
        requests=len(rows),
        failed=len(rows) - len(answered),
        output_tokens=totals.output_tokens,
        wall_s=totals.wall_s,
        effective_tok_s=_rate(totals.output_tokens, totals.wall_s),
        effective_low=min(totals.speeds, default=None),
        effective_high=max(totals.speeds, default=None),
        task_tok_s=task_speed,
        contention_pct=_contention_pct(task_speed, serial_speed),
        ttft_ms=percentiles(ttft_values(rows)),
        tpot_ms=percentiles(tpot_values(rows)),
        engine_tok_s=_engine_tok_s(answered, counters),
        cached_prompt_share=cached_share(rows, counters),
        truncated=count_truncated(rows),
        client_limited=totals.client_limited,
        repeats=tuple(runs),
        thinking=in_conversation,
        effective_interval=runs_interval(totals.speeds),
        ttft_interval=_interval_of_medians(rows, ttft_values),
        tpot_interval=_interval_of_medians(rows, tpot_values),
        plateau_tok_s=totals.plateau_tok_s,
        gap_ms=percentiles(list(chain.from_iterable(map(gaps_ms, rows)))),
        total_ms=percentiles(total_values(rows)),
        queued_ms=percentiles(_known(row.queued_ms for row in rows)),
        prompt_tokens=_mean(row.prompt_tokens for row in answered),
        output_tokens_each=_mean(row.output_tokens for row in answered),
        delivered=_delivered_share(rows, concurrency) if closed and not in_conversation else None,
        finish_reasons=_counts(row.finish_reason or "none" for row in answered),
        errors=_counts(row.error_kind for row in rows if row.error_kind),
        energy=marks.energy.get(concurrency),
        clocks=disagreements(rows, counters),
        combined_tok_s=_rate(combined_tokens(rows), totals.wall_s),
        prompt_tok_s=prompt_tok_s(rows),
    )


class _RunTotals(msgspec.Struct, frozen=True):
    """Figures of the runs of a level that count, over all of them."""

    output_tokens: int
    wall_s: float
    speeds: tuple[float, ...]  # effective tok/s of each; none if no run has a token
    plateau_tok_s: float | None
    client_limited: bool


def _totals_of(runs: Sequence[RepeatSummary]) -> _RunTotals:
    tokens = sum(run.output_tokens for run in runs)
    speeds: tuple[float, ...] = ()
    if tokens:
        speeds = tuple(run.effective_tok_s for run in runs)
    return _RunTotals(
        output_tokens=tokens,
        wall_s=sum(run.wall_s for run in runs),
        speeds=speeds,
        plateau_tok_s=_median(run.plateau_tok_s for run in runs),
        client_limited=any(run.client_limited for run in runs),
    )


def _runs_of(
    concurrency: int, requests: Sequence[Request], marks: RunMarks, *, closed: bool
) -> list[RepeatSummary]:
    """Return the summary of every run of a level, also of those that do not count."""
    runs = []
    for number, rows in by_repeat(requests).items():
        key = (concurrency, number)
        why = marks.limited.get(key, "")
        summary = repeat_of(number, rows, concurrency if closed else None)
        runs.append(
            replace(summary, counted=key not in marks.left_out, client_limited=bool(why), why=why)
        )
    return runs


def _rate(tokens: int | None, wall_s: float) -> float | None:
    """Return tokens a second; None without tokens or time."""
    if not tokens or wall_s <= 0:
        return None
    return tokens / wall_s


def _contention_pct(speed: float | None, serial_speed: float | None) -> float | None:
    """Return by how many per cent a task is slower than a task alone."""
    if not speed or not serial_speed:
        return None
    return 100 * (1 - speed / serial_speed)


def _engine_tok_s(answered: Iterable[Request], counters: Mapping[str, float]) -> float | None:
    """Return the decode speed of a stream that the engine tells of its requests, else of all."""
    speeds = [row.engine.decode_tok_s for row in answered if row.engine.decode_tok_s]
    if speeds:
        return median(speeds)
    if counters.get("tpot_s"):
        return 1 / counters["tpot_s"]
    return None


def _delivered_share(rows: Sequence[Request], concurrency: int) -> float | None:
    """Return the median over runs of the share of `concurrency` that was in flight."""
    return _median(delivered(run_rows, concurrency) for run_rows in by_repeat(rows).values())


def _counts(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return each name with how often it is there, the most frequent first."""
    return tuple(Counter(names).most_common())


def combined_tokens(rows: Sequence[Request]) -> int | None:
    """Return the prompt and output tokens of the answered requests; None where a prompt was not
    counted.
    """
    answered = [row for row in rows if row.ok]
    if not answered or any(row.prompt_tokens is None for row in answered):
        return None
    return sum((row.prompt_tokens or 0) + (row.output_tokens or 0) for row in answered)


def prompt_tok_s(rows: Sequence[Request]) -> float | None:
    """Return the median over tasks of prompt tokens that no cache had, over the time to the first
    token.
    """
    speeds = [
        (row.prompt_tokens - (row.engine.cached_tokens or 0)) / (row.first_token_s - row.due_s)
        for row in rows
        if row.ok
        and row.prompt_tokens
        and row.first_token_s is not None
        and row.first_token_s > row.due_s
    ]
    return _median(speeds)


def repeat_of(
    number: int, rows: Sequence[Request], concurrency: int | None, *, limited: bool = False
) -> RepeatSummary:
    """Return the summary of one run.

    Failed requests count with their time, not with their tokens: what a swarm got for its wait.
    """
    wall_s = max(row.ended_s for row in rows) - min(row.due_s for row in rows)
    tokens = sum(row.output_tokens or 0 for row in rows if row.ok)
    return RepeatSummary(
        repeat=number,
        wall_s=wall_s,
        output_tokens=tokens,
        effective_tok_s=tokens / wall_s if wall_s > 0 else 0.0,
        plateau_tok_s=plateau_tok_s(rows, concurrency) if concurrency else None,
        client_limited=limited,
        requests=len(rows),
    )


def _interval_of_medians(
    rows: Sequence[Request], values: Callable[[Sequence[Request]], list[float]]
) -> Interval | None:
    repeats = [values(repeat_rows) for repeat_rows in by_repeat(rows).values()]
    return runs_interval([median(repeat_values) for repeat_values in repeats if repeat_values])


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None if there are none."""
    known_values = _known(values)
    return median(known_values) if known_values else None


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None if there are none."""
    known_values = _known(values)
    return fmean(known_values) if known_values else None


def cached_share(
    rows: Sequence[Request], counters: Mapping[str, float] | None = None
) -> float | None:
    """Return the share of prompt tokens that came from a cache.

    By what the engine says of each request, else by its own count of cache lookups.
    """
    counters = counters or {}
    lookups = counters.get("cache_queries") or counters.get("prompt_tokens")
    is_told_by_request = any(row.engine.cached_tokens for row in rows)
    if lookups and "cached_tokens" in counters and not is_told_by_request:
        return counters["cached_tokens"] / lookups
    counted = [row for row in rows if row.engine.cached_tokens is not None and row.prompt_tokens]
    prompt_tokens = sum(row.prompt_tokens or 0 for row in counted)
    if prompt_tokens:
        return sum(row.engine.cached_tokens or 0 for row in counted) / prompt_tokens
    return None
