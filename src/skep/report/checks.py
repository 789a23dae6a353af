"""What speaks for and against the figures of a sweep, in sentences: two clocks, drift, cache, the client itself.

A sentence is left out where what it would say is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.records import Clock, Disagreement, LevelSummary, SweepSummary, Turning
from skep.report.figures import known, milliseconds, number, percent
from skep.report.levels import COLD
from skep.report.markup import Markup, join, section, table, tag, text

WARM = 0.5
FULL = 0.97  # in flight, as a share of C
WELL_KNOWN = 0.01  # of a run's wall time, left open by the clocks of several machines


def turning_sentence(turning: Turning | None) -> str | None:
    """Knee and cliff in words, with their brackets and how sure they are."""
    if turning is None:
        return None
    if turning.knee is None and turning.cliff is None:
        return "No knee: effective tok/s still grows at the largest level."
    parts = []
    if turning.knee is not None:
        parts.append(f"Past C = {turning.knee} nothing is gained (the knee{_bracket(turning.knee_bracket)})")
    if turning.cliff is not None:
        fall = f" by {percent(turning.drop_pct)}" if known(turning.drop_pct) else ""
        parts.append(f"past C = {turning.cliff} it falls{fall} (the cliff{_bracket(turning.cliff_bracket)})")
    sentence = "; ".join(parts)
    sure = "" if turning.sure else ". Estimate only: the intervals of the levels overlap"
    return f"{sentence[0].upper()}{sentence[1:]}{sure}."


def drift_sentence(summary: SweepSummary) -> str | None:
    drift = summary.drift
    if drift is None or not known(drift.estimate):
        return None
    figures = f"{drift.estimate:.2f} ({drift.low:.2f}..{drift.high:.2f})"
    if drift.contains(1.0):
        verdict = "no drift to be seen"
    else:
        verdict = f"the machine grew {'slower' if drift.high < 1 else 'faster'} while it was measured"
    return f"C=1 at the end was {figures} of the beginning: {verdict}."


def cache_sentence(levels: Sequence[LevelSummary]) -> str | None:
    """What share of the prompts' tokens the engine had not to read, over all levels, and where it had most."""
    told = [(level, level.cached_prompt_share) for level in levels if level.cached_prompt_share is not None]
    if not told:
        return None
    weighed = all(level.prompt_tokens is not None for level, _ in told)
    weights = [level.requests * ((level.prompt_tokens or 0.0) if weighed else 1.0) for level, _ in told]
    shares = [share for _, share in told]
    total = sum(weights)
    share = sum(w * s for w, s in zip(weights, shares, strict=True)) / total if total else max(shares)
    verdict = "the prompts were cold" if share < COLD else "the prompts were not all cold, so TTFT flatters"
    if share >= WARM:
        verdict = "most of what was asked had been read before, so TTFT flatters"
    fullest, most = max(told, key=lambda pair: pair[1])
    where = f" ({percent(100 * most)} at C = {fullest.concurrency})" if most - share > 0.02 else ""
    return f"The engine's cache held {percent(100 * share)} of the prompts' tokens{where}: {verdict}."


def delivered_sentence(levels: Sequence[LevelSummary]) -> str | None:
    """Whether as many requests were in flight as the level says."""
    told = [(level.concurrency, level.delivered) for level in levels if level.delivered is not None]
    short = [f"{percent(100 * share)} at C = {c}" for c, share in told if share < FULL]
    if not told:
        return None
    if not short:
        return "While a level was full, as many requests were in flight as it asked for."
    return f"Fewer requests were in flight than asked for: {', '.join(short)} of C."


def workers_sentence(levels: Sequence[LevelSummary]) -> str | None:
    """Who made the load, where it was not this machine, and what their clocks leave open."""
    told = [(level, level.workers) for level in levels if level.workers is not None]
    if not told:
        return None
    nodes = sorted({node for _, workers in told for node in workers.nodes})
    worst = max((workers for _, workers in told), key=lambda workers: workers.clock_error_share)
    share = percent(100 * worst.clock_error_share, digits=2)
    count = max(workers.number for _, workers in told)
    made = f"{count} worker{'s' if count > 1 else ''} on {', '.join(nodes)} made the load"
    clocks = f"their clocks leave up to {worst.clock_error_ms:.1f} ms open, {share} of a run's wall time"
    if worst.clock_error_share > WELL_KNOWN:
        clocks = f"warning: {clocks}, so effective tok/s is known no better"
    return f"{made}; {clocks}."


def clock_section(levels: Sequence[LevelSummary]) -> Markup | None:
    """What client and engine say of the same requests; None where the engine says nothing of itself."""
    told = [level for level in levels if known(level.engine_tok_s) or level.clocks]
    if not told:
        return None
    rows = [_clock_row(level, one) for level in told for one in level.clocks]
    agreeing = [str(level.concurrency) for level in told if not level.clocks]
    if not rows:
        sentence = "Client and engine agree at every level."
        return section("clocks", "Two clocks", tag("p", text(sentence), class_="below"))
    names = (("C", None), ("Figure", "left"), ("Client", None), ("Engine", None), ("Client against engine", None))
    head = tag("tr", *(tag("th", text(name), class_=style) for name, style in (*names, ("Likely cause", "left"))))
    below = f"At C = {', '.join(agreeing)} client and engine agree." if agreeing else None
    return section(
        "clocks",
        "Two clocks",
        table("Where client and engine disagree", [head], rows),
        tag("p", text(below), class_="below") if below else None,
    )


def check_list(summary: SweepSummary) -> Markup | None:
    sentences = (
        turning_sentence(summary.turning),
        drift_sentence(summary),
        cache_sentence(summary.levels),
        delivered_sentence(summary.levels),
        workers_sentence(summary.levels),
    )
    told = [tag("li", text(sentence)) for sentence in sentences if sentence]
    return tag("ul", join(told), class_="checks") if told else None


def clock_figure(clock: Clock, value: float) -> str:
    match clock:
        case Clock.DECODE:
            return f"{number(value)} tok/s"
        case Clock.FIRST_TOKEN:
            return milliseconds(value)
        case Clock.TOKENS:
            return number(value, digits=0)


def _clock_row(level: LevelSummary, one: Disagreement) -> Markup:
    change = 100 * (one.client / one.engine - 1) if one.engine else None
    sign = "+" if change is not None and change > 0 else ""
    return tag(
        "tr",
        tag("th", text(level.concurrency), scope="row"),
        tag("td", text(one.clock.value), class_="left"),
        tag("td", text(clock_figure(one.clock, one.client))),
        tag("td", text(clock_figure(one.clock, one.engine))),
        tag("td", text(sign + percent(change))),
        tag("td", text(one.cause), class_="wide"),
    )


def _bracket(bracket: tuple[int, int] | None) -> str:
    return "" if bracket is None else f", between {bracket[0]} and {bracket[1]}"
