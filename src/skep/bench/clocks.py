"""Two clocks: what the engine said of its requests against what the client saw, and what a difference means. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from skep.bench.records import Clock, Disagreement
from skep.bench.tokens import tpot_ms
from skep.store.records import Request

TOLERATED = 0.05  # of the engine's figure
TOLERATED_MS = 20.0  # of a time to first token: the network and a loaded machine take some


def disagreements(rows: Sequence[Request], counters: Mapping[str, float] | None = None) -> tuple[Disagreement, ...]:
    """Only what is beyond the tolerance; empty also where the engine says nothing of itself.

    `counters`: the engine's own over the same time, for those that say nothing of a single request.
    """
    answered = [row for row in rows if row.ok]
    found = [_decode(answered), _first_token(answered), _tokens(answered)]
    if counters and not any(row.engine.decode_ms for row in answered):
        found += [_decode_by_counters(answered, counters), _first_token_by_counters(answered, counters)]
    return tuple(one for one in found if one is not None)


def _decode_by_counters(rows: Sequence[Request], counters: Mapping[str, float]) -> Disagreement | None:
    seen, told = [value for row in rows if (value := tpot_ms(row)) is not None], counters.get("tpot_s")
    if not seen or not told:
        return None
    return _decode_verdict(fmean(seen), told * 1000, rows)


def _first_token_by_counters(rows: Sequence[Request], counters: Mapping[str, float]) -> Disagreement | None:
    """The engine counts from the arrival of a request on, its own queue included."""
    seen = [(row.first_token_s - row.due_s) * 1000 for row in rows if row.first_token_s is not None]
    told = counters.get("ttft_s")
    if not seen or not told:
        return None
    client, engine = fmean(seen), told * 1000
    if abs(client - engine) <= max(TOLERATED_MS, TOLERATED * engine):
        return None
    cause = "time before the engine had the request, or after it sent the token: client, proxy or network"
    if client < engine:
        cause = "the engine counts other requests too, or its first token was no content"
    return Disagreement(Clock.FIRST_TOKEN, client, engine, cause)


def _decode(rows: Sequence[Request]) -> Disagreement | None:
    """Milliseconds a token. Engines count the time from the first token on, so it is one token less here as there."""
    pairs = [
        (seen, row.engine.decode_ms / (count - 1))
        for row in rows
        if (seen := tpot_ms(row)) is not None and row.engine.decode_ms and (count := row.engine.output_tokens or 0) > 1
    ]
    if not pairs:
        return None
    return _decode_verdict(median(pair[0] for pair in pairs), median(pair[1] for pair in pairs), rows)


def _decode_verdict(client: float, engine: float, rows: Sequence[Request]) -> Disagreement | None:
    if abs(client - engine) <= TOLERATED * engine:
        return None
    if client < engine:
        cause = (
            "several tokens came in one read" if _coalesced(rows) else "the engine counts time it does not stream in"
        )
    else:
        cause = "tokens waited on the way: the client, a proxy or the network"
    return Disagreement(Clock.DECODE, 1000 / client, 1000 / engine, cause)


def _first_token(rows: Sequence[Request]) -> Disagreement | None:
    """The engine counts from when it began with the prompt; what was before is waiting."""
    known = [row for row in rows if row.engine.prompt_ms is not None and row.first_token_s is not None]
    pairs = [((row.first_token_s or 0.0) - row.due_s) * 1000 for row in known]
    if not pairs:
        return None
    client, engine = median(pairs), median(row.engine.prompt_ms or 0.0 for row in known)
    ahead = client - engine
    if abs(ahead) <= max(TOLERATED_MS, TOLERATED * engine):
        return None
    queued = median(row.queued_ms or 0.0 for row in known)
    inside = median(row.engine.queue_ms or 0.0 for row in known)
    if ahead < 0:
        cause = "the engine's clock counts more than the wait for the first token"
    elif queued >= 0.5 * ahead:
        cause = f"{queued:,.0f} ms of it in the gateway's queue"
    elif inside >= 0.5 * ahead:
        cause = f"{inside:,.0f} ms of it in the engine's own queue"
    elif queued:
        cause = f"{queued:,.0f} ms of it in the gateway's queue, the rest before the engine began with the prompt"
    else:
        cause = "requests waited inside the engine or on the way before it began with the prompt"
    return Disagreement(Clock.FIRST_TOKEN, client, engine, cause)


def _tokens(rows: Sequence[Request]) -> Disagreement | None:
    known = [row for row in rows if row.output_tokens is not None and row.engine.output_tokens is not None]
    client, engine = sum(row.output_tokens or 0 for row in known), sum(row.engine.output_tokens or 0 for row in known)
    if not known or abs(client - engine) <= max(
        len(known), TOLERATED * engine
    ):  # some count the end token, some do not
        return None
    return Disagreement(Clock.TOKENS, client, engine, "`usage` and the engine's own count differ")


def _coalesced(rows: Sequence[Request]) -> bool:
    """Whether reads commonly brought more than one event."""
    events = sum(len(row.arrivals_s) for row in rows)
    return events > 0 and sum(len(set(row.arrivals_s)) for row in rows) < 0.9 * events
