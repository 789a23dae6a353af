"""When tokens came: speeds, gaps and the plateau, from the arrivals of one request or of many. Pure.

An engine may put several tokens into one event, and the network several events into one read. Only reads have times;
tokens are known in sum. So a request's tokens are spread evenly over its events, and those of one read came at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from skep.store.records import Request

FULL = 0.95  # of C in flight: the plateau
CHANGING_S = 0.005  # between the end of one request and the start of the next, the level counts as full


def tpot_ms(row: Request) -> float | None:
    """(last - first) / (n - 1): what everybody means by it, also where the first read brought several tokens."""
    if not row.ok or row.first_token_s is None or row.last_token_s is None or row.last_token_s <= row.first_token_s:
        return None
    tokens = row.output_tokens or 0
    return (row.last_token_s - row.first_token_s) * 1000 / (tokens - 1) if tokens > 1 else None


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
    """The times in which at least 95 % of `concurrency` were in flight."""
    steps = sorted([(row.started_s, 1) for row in rows] + [(row.ended_s, -1) for row in rows])
    spans: list[tuple[float, float]] = []
    in_flight, since = 0, None
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
    tokens = 0.0
    for row in rows:
        if row.ok and row.output_tokens:
            arrivals = row.arrivals_s or (row.ended_s,)  # tokens that no event showed, such as hidden reasoning
            tokens += row.output_tokens * _inside(arrivals, edges) / len(arrivals)
    return tokens / whole


def _inside(arrivals: Sequence[float], edges: Sequence[float]) -> int:
    """How many lie in the spans whose edges these are."""
    first, last = bisect_right(edges, arrivals[0]), bisect_right(edges, arrivals[-1])
    if first == last and first % 2:
        return len(arrivals)
    return sum(_is_inside(at, edges) for at in arrivals)


def _is_inside(at: float, edges: Sequence[float]) -> bool:
    """The end of a span belongs to it: the last token comes with the end of its request."""
    place = bisect_right(edges, at)
    return place % 2 == 1 or (place > 0 and edges[place - 1] == at)


def delivered(rows: Sequence[Request], concurrency: int) -> float | None:
    """In flight on average from the first request to the last one's start, as a share of what was asked for.

    Below one, the client was late with the next request; it must not pass for a slow server. Needs more requests than
    `concurrency`, or there is no next one.
    """
    begin, end = min((row.started_s for row in rows), default=0.0), max((row.started_s for row in rows), default=0.0)
    if len(rows) <= concurrency or end <= begin:
        return None
    busy = sum(min(row.ended_s, end) - row.started_s for row in rows if row.started_s < end)
    return busy / (end - begin) / concurrency
