"""From raw request rows to what people compare. Pure: the same rows give the same figures,
whenever it is run.

An engine may put several tokens into one event, and the network several events into one read. Only
reads have times; tokens are known in sum. So a request's tokens are spread evenly over its events,
and those of one read came at once."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby, pairwise
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
    why: str = ""  # the client was the limit
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
    """Client and engine say different things of the same requests, with the likely cause."""

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
    thinking: bool = (
        False  # agents in conversation, who pause between turns: fewer than C are in flight
    )
    effective_interval: Interval | None = (
        None  # 95 %, of the mean over runs; None with fewer than three
    )
    ttft_interval: Interval | None = None  # 95 %, of the runs' medians, in ms
    tpot_interval: Interval | None = None
    plateau_tok_s: float | None = (
        None  # while at least 95 % of C were in flight; None: that was never so
    )
    gap_ms: Percentiles | None = None  # between two tokens, over all tokens of all requests
    total_ms: Percentiles | None = None  # from sending (or when it was due) to the end
    queued_ms: Percentiles | None = None  # in skep's gateway
    prompt_tokens: float | None = None  # mean of a request
    output_tokens_each: float | None = None  # mean of a request
    delivered: float | None = (
        None  # requests really in flight while the level was full, as a share of C
    )
    finish_reasons: tuple[tuple[str, int], ...] = ()
    errors: tuple[tuple[str, int], ...] = ()  # by kind
    energy: Energy | None = None
    clocks: tuple[Disagreement, ...] = ()
    combined_tok_s: float | None = (
        None  # prompt and output tokens over the wall time; None: prompts were not counted
    )
    prompt_tok_s: float | None = (
        None  # prompt tokens that no cache had over the time to the first token, median
    )

    @property
    def counted(self) -> tuple[RepeatSummary, ...]:
        """The runs that its figures are made of."""
        return tuple(repeat for repeat in self.repeats if repeat.counted)

    @property
    def left_out(self) -> tuple[RepeatSummary, ...]:
        return tuple(repeat for repeat in self.repeats if not repeat.counted)


class Speedup(msgspec.Struct, frozen=True):
    """The same tasks one after the other and all at once, by wall time and by tokens, as answers
    differ in length.
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
    serial_wall_interval: Interval | None = (
        None  # 95 %, of a serial side that was scaled from a sample
    )
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
    beyond: int | None = (
        None  # no level above this one was 5 % faster; None: tok/s still grew, or it is not known
    )


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


FULL = 0.95  # of C in flight: the plateau
CHANGING_S = (
    0.005  # between the end of one request and the start of the next, the level counts as full
)
TOLERATED = 0.05  # of the engine's figure
TOLERATED_MS = 20.0  # of a time to first token: the network and a loaded machine take some
Key = tuple[int, int]  # a level and which of its runs


def tpot_ms(row: Request) -> float | None:
    """(last - first) / (n - 1): what everybody means by it, also where the first read brought
    several tokens.
    """
    if (
        not row.ok
        or row.first_token_s is None
        or row.last_token_s is None
        or row.last_token_s <= row.first_token_s
    ):
        return None
    tokens = row.output_tokens or 0
    if tokens > 1:
        return (row.last_token_s - row.first_token_s) * 1000 / (tokens - 1)
    return None


def gaps_ms(row: Request) -> Iterator[float]:
    """From token to token; those of one read share the time since the read before it."""
    if not row.ok or not row.output_tokens or not row.arrivals_s:
        return
    each = row.output_tokens / len(row.arrivals_s)
    if len(set(row.arrivals_s)) == len(row.arrivals_s):  # one event to a read, as mostly
        scale = 1000 / each
        yield from [(at - before) * scale for before, at in pairwise(row.arrivals_s)]
        return
    before = row.arrivals_s[0]
    for at, together in groupby(row.arrivals_s):
        events = sum(1 for _ in together)
        if at > before:
            gap = (at - before) * 1000 / (events * each)
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
        if in_flight >= FULL * concurrency:
            since = at if since is None else since
        elif since is not None:
            if spans and since - spans[-1][1] <= CHANGING_S:
                spans[-1] = (spans[-1][0], at)
            elif at > since:
                spans.append((since, at))
            since = None
    return spans


def plateau_tok_s(rows: Sequence[Request], concurrency: int) -> float | None:
    """Tokens that came in while the level was full, over that time. None: it never was."""
    spans = full_spans(rows, concurrency)
    whole = sum(end - begin for begin, end in spans)
    if whole <= 0:
        return None
    edges = [edge for span in spans for edge in span]

    def is_inside(at: float) -> bool:
        """The end of a span belongs to it: the last token comes with the end of its request."""
        place = bisect_right(edges, at)
        return place % 2 == 1 or (place > 0 and edges[place - 1] == at)

    tokens = 0.0
    for row in rows:
        if row.ok and row.output_tokens:
            # Tokens that no event showed, such as hidden reasoning.
            arrivals = row.arrivals_s or (row.ended_s,)
            first = bisect_right(edges, arrivals[0])
            last = bisect_right(edges, arrivals[-1])
            if first == last and first % 2:
                inside = len(arrivals)
            else:
                inside = sum(map(is_inside, arrivals))
            tokens += row.output_tokens * inside / len(arrivals)
    return tokens / whole


def delivered(rows: Sequence[Request], concurrency: int) -> float | None:
    """In flight on average until the last request's start, as a share of `concurrency`; below 1
    the client was late.
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
    """Only what is beyond the tolerance.

    `counters`: of engines that say nothing of a single request.
    """
    answered = [row for row in rows if row.ok]
    found = [_decode(answered), _first_token(answered), _tokens(answered)]
    if counters and not any(row.engine.decode_ms for row in answered):
        if (seen := tpot_values(answered)) and (told := counters.get("tpot_s")):
            found.append(_decode_verdict(fmean(seen), told * 1000, answered))
        if (seen := ttft_values(answered)) and (
            told := counters.get("ttft_s")
        ):  # its own queue included
            queued = fmean(row.queued_ms or 0.0 for row in answered)
            found.append(_first_token_verdict(fmean(seen), told * 1000, queued, 0.0))
    return tuple(one for one in found if one is not None)


def _decode(rows: Sequence[Request]) -> Disagreement | None:
    """Milliseconds a token.

    Engines count the time from the first token on, so it is one token less here as there.
    """
    pairs = [
        (seen, row.engine.decode_ms / (count - 1))
        for row in rows
        if (seen := tpot_ms(row)) is not None
        and row.engine.decode_ms
        and (count := row.engine.output_tokens or 0) > 1
    ]
    if not pairs:
        return None
    return _decode_verdict(
        median(pair[0] for pair in pairs), median(pair[1] for pair in pairs), rows
    )


def _decode_verdict(client: float, engine: float, rows: Sequence[Request]) -> Disagreement | None:
    if abs(client - engine) <= TOLERATED * engine:
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
    """The engine counts from when it began with the prompt; what was before is waiting."""
    known = [
        row for row in rows if row.engine.prompt_ms is not None and row.first_token_s is not None
    ]
    if not known:
        return None
    waited = (
        median(row.queued_ms or 0.0 for row in known),
        median(row.engine.queue_ms or 0.0 for row in known),
    )
    return _first_token_verdict(
        median(ttft_values(known)), median(row.engine.prompt_ms or 0.0 for row in known), *waited
    )


def _first_token_verdict(
    client: float, engine: float, queued: float, inside: float
) -> Disagreement | None:
    """`queued`: in the gateway, `inside`: in the engine's own queue, all in milliseconds."""
    ahead = client - engine
    if abs(ahead) <= max(TOLERATED_MS, TOLERATED * engine):
        return None
    if ahead < 0:
        cause = (
            "the engine's clock counts more than the wait for the first token, or other "
            "requests too"
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
    known = [
        row
        for row in rows
        if row.output_tokens is not None and row.engine.output_tokens is not None
    ]
    client = sum(row.output_tokens or 0 for row in known)
    engine = sum(row.engine.output_tokens or 0 for row in known)
    tolerated = max(len(known), TOLERATED * engine)  # some count the end token, some do not
    if not known or abs(client - engine) <= tolerated:
        return None
    return Disagreement(Clock.TOKENS, client, engine, "`usage` and the engine's own count differ")


class RunMarks(msgspec.Struct, frozen=True):
    """What is known of the runs of each level beside their rows."""

    limited: Mapping[Key, str] = {}  # the client was the limit, and why
    left_out: frozenset[Key] = frozenset()  # of the figures; they are named among the runs
    energy: Mapping[int, Energy] = {}
    counters: Mapping[int, Mapping[str, float]] = {}


def levels_of(
    rows: Sequence[Request], marks: RunMarks | None = None, *, closed: bool = True
) -> tuple[LevelSummary, ...]:
    """In order of C, without the warm-up. `closed`: levels count agents."""
    marks = marks or RunMarks()
    by_level: dict[int, list[Request]] = {}
    for row in rows:
        if row.level > 0:
            by_level.setdefault(row.level, []).append(row)
    alone = (row for row in by_level.get(1, ()) if (1, row.repeat) not in marks.left_out)
    serial_speed = task_tok_s(alone) if closed else None
    found = (
        _level(level, by_level[level], serial_speed, marks, closed=closed)
        for level in sorted(by_level)
    )
    return tuple(level for level in found if level is not None)


def task_tok_s(rows: Iterable[Request]) -> float | None:
    """Median over tasks of output tokens over the time from the first token to the last."""
    speeds = [
        row.output_tokens / (row.last_token_s - row.first_token_s)
        for row in rows
        if row.ok and row.output_tokens and row.first_token_s is not None
        if row.last_token_s is not None and row.last_token_s > row.first_token_s
    ]
    return median(speeds) if speeds else None


def ttft_values(rows: Iterable[Request]) -> list[float]:
    """Milliseconds from sending (or when due) to the first content,
    reasoning or tool-call bytes.
    """
    return [
        (row.first_token_s - row.due_s) * 1000
        for row in rows
        if row.ok and row.first_token_s is not None
    ]


def tpot_values(rows: Iterable[Request]) -> list[float]:
    return [value for row in rows if (value := tpot_ms(row)) is not None]


def by_repeat(rows: Iterable[Request]) -> dict[int, list[Request]]:
    found: dict[int, list[Request]] = {}
    for row in rows:
        found.setdefault(row.repeat, []).append(row)
    return dict(sorted(found.items()))


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
    runs = []
    for number, some in by_repeat(requests).items():
        repeat = repeat_of(number, some, concurrency if closed else None)
        why = marks.limited.get((concurrency, number), "")
        is_counted = (concurrency, number) not in marks.left_out
        runs.append(replace(repeat, counted=is_counted, client_limited=bool(why), why=why))
    repeats = [run for run in runs if run.counted]
    counters = marks.counters.get(concurrency, {})
    tokens = sum(repeat.output_tokens for repeat in repeats)
    wall_s = sum(repeat.wall_s for repeat in repeats)
    speed = task_tok_s(rows)
    speeds = [repeat.effective_tok_s for repeat in repeats]
    plateaus = [repeat.plateau_tok_s for repeat in repeats if repeat.plateau_tok_s is not None]
    thinking = any(row.session is not None for row in rows)
    if closed and not thinking:
        steady: Iterable[Sequence[Request]] = by_repeat(rows).values()
    else:
        steady = ()
    shares = [share for some in steady if (share := delivered(some, concurrency)) is not None]
    engine = [row.engine.decode_tok_s for row in rows if row.ok and row.engine.decode_tok_s]
    if not engine and counters.get("tpot_s"):
        engine = [1 / counters["tpot_s"]]
    answered = [row for row in rows if row.ok]
    return LevelSummary(
        concurrency=concurrency,
        requests=len(rows),
        failed=len(rows) - len(answered),
        output_tokens=tokens,
        wall_s=wall_s,
        effective_tok_s=tokens / wall_s if tokens and wall_s > 0 else None,
        effective_low=min(speeds, default=None) if tokens else None,
        effective_high=max(speeds, default=None) if tokens else None,
        task_tok_s=speed,
        contention_pct=100 * (1 - speed / serial_speed) if speed and serial_speed else None,
        ttft_ms=percentiles(ttft_values(rows)),
        tpot_ms=percentiles(tpot_values(rows)),
        engine_tok_s=median(engine) if engine else None,
        cached_prompt_share=cached_share(rows, counters),
        truncated=sum(row.finish_reason == "length" for row in rows),
        client_limited=any(repeat.client_limited for repeat in repeats),
        repeats=tuple(runs),
        thinking=thinking,
        effective_interval=runs_interval(speeds) if tokens else None,
        ttft_interval=_of_medians(rows, ttft_values),
        tpot_interval=_of_medians(rows, tpot_values),
        plateau_tok_s=median(plateaus) if plateaus else None,
        gap_ms=percentiles([gap for row in rows for gap in gaps_ms(row)]),
        total_ms=percentiles([(row.ended_s - row.due_s) * 1000 for row in answered]),
        queued_ms=percentiles([row.queued_ms for row in rows if row.queued_ms is not None]),
        prompt_tokens=_mean(row.prompt_tokens for row in answered),
        output_tokens_each=_mean(row.output_tokens for row in answered),
        delivered=median(shares) if shares else None,
        finish_reasons=tuple(
            Counter(row.finish_reason or "none" for row in answered).most_common()
        ),
        errors=tuple(Counter(row.error_kind for row in rows if row.error_kind).most_common()),
        energy=marks.energy.get(concurrency),
        clocks=disagreements(rows, counters),
        combined_tok_s=combined / wall_s
        if (combined := combined_tokens(rows)) and wall_s > 0
        else None,
        prompt_tok_s=prompt_tok_s(rows),
    )


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
    return median(speeds) if speeds else None


def repeat_of(
    number: int, rows: Sequence[Request], concurrency: int | None, *, limited: bool = False
) -> RepeatSummary:
    """Failed requests count with their time, not with tokens: what a swarm got for its wait."""
    wall_s = max(row.ended_s for row in rows) - min(row.due_s for row in rows)
    tokens = sum(row.output_tokens or 0 for row in rows if row.ok)
    if concurrency:
        plateau = plateau_tok_s(rows, concurrency)
    else:
        plateau = None
    speed = tokens / wall_s if wall_s > 0 else 0.0
    return RepeatSummary(number, wall_s, tokens, speed, plateau, limited, requests=len(rows))


def _of_medians(
    rows: Sequence[Request], values: Callable[[Sequence[Request]], list[float]]
) -> Interval | None:
    found = [values(some) for some in by_repeat(rows).values()]
    return runs_interval([median(some) for some in found if some])


def _mean(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def cached_share(
    rows: Sequence[Request], counters: Mapping[str, float] | None = None
) -> float | None:
    """From what the engine says of each request;
    else from its own count of looks into the cache.
    """
    counters = counters or {}
    asked = counters.get("cache_queries") or counters.get("prompt_tokens")
    if asked and "cached_tokens" in counters and not any(row.engine.cached_tokens for row in rows):
        return counters["cached_tokens"] / asked
    known = [row for row in rows if row.engine.cached_tokens is not None and row.prompt_tokens]
    prompt = sum(row.prompt_tokens or 0 for row in known)
    if prompt:
        return sum(row.engine.cached_tokens or 0 for row in known) / prompt
    return None
