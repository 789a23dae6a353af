"""What speaks for and against the figures of a sweep, in sentences: two clocks, drift, cache, the client itself.

A sentence is left out where what it would say is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.bench.records import Clock, Disagreement, LevelSummary, SweepSummary
from skep.report.levels import COLD
from skep.report.markup import Markup, join, section, tag, text, text_table
from skep.stats.turning import Turning
from skep.units import known, milliseconds, number, percent

WARM = 0.5
FULL = 0.97  # in flight, as a share of C


def turning_sentence(turning: Turning) -> str:
    """Knee and cliff in words, with their brackets; what the runs leave open is said instead."""
    parts = []
    if turning.knee is not None:
        parts.append(f"past C = {turning.knee} nothing is gained (the knee{_bracket(turning.knee_bracket)})")
    if turning.cliff is not None:
        fall = f" by {percent(turning.drop_pct)}" if known(turning.drop_pct) else ""
        parts.append(f"past C = {turning.cliff} it falls{fall} (the cliff{_bracket(turning.cliff_bracket)})")
    if not parts and turning.sure:
        parts.append("no knee: effective tok/s still grows at the largest level")
    if (unclear := unclear_words(turning)) is not None:
        parts.append(unclear)
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def has_curve(levels: Sequence[LevelSummary]) -> bool:
    """Two levels or more that the client did not limit: of fewer, knee and cliff are no question."""
    return sum(not level.client_limited for level in levels) > 1


def unclear_words(turning: Turning) -> str | None:
    """Return which levels their runs do not tell apart, and what to do about it; None where nothing is left open."""
    if turning.sure:
        return None
    if not turning.unclear:
        return "knee and cliff are not known: no level was run twice, measure each three times or more (--runs 3)"
    missing = [name for name, at in (("knee", turning.knee), ("cliff", turning.cliff)) if at is None]
    names = [f"C={level}" for level in turning.unclear]
    levels = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    told = f"{levels} cannot be told apart: their runs differ too much"
    what = f", so {' and '.join(missing)} are not known" if len(missing) > 1 else f", so the {missing[0]} is not known"
    return f"{told}{what if missing else ''}; measure more runs of each level (--runs 5)"


def left_out_sentences(levels: Sequence[LevelSummary], names: Sequence[str] = ()) -> list[str]:
    """Return the runs that are in no figure, each with its speed and the reason.

    `names` of the levels, where they are no concurrencies.
    """
    titles = names or [f"C={level.concurrency}" for level in levels]
    return [
        f"left out: {title} run {one.repeat + 1}, {number(one.effective_tok_s)} tok/s: "
        f"the client was the limit ({one.why})"
        for title, level in zip(titles, levels, strict=True)
        for one in level.left_out
    ]


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
    """Return what share of the prompts' tokens the engine had not to read, over all levels, and where it had most."""
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
    """Return whether as many requests were in flight as the level says."""
    told = [(level.concurrency, level.delivered) for level in levels if level.delivered is not None]
    short = [f"{percent(100 * share)} at C = {c}" for c, share in told if share < FULL]
    if not told:
        return None
    if not short:
        return "While a level was full, as many requests were in flight as it asked for."
    return f"Fewer requests were in flight than asked for: {', '.join(short)} of C."


def clock_section(levels: Sequence[LevelSummary]) -> Markup | None:
    """Return what client and engine say of the same requests; None where the engine says nothing of itself."""
    told = [level for level in levels if known(level.engine_tok_s) or level.clocks]
    if not told:
        return None
    rows = [_clock_row(level, one) for level in told for one in level.clocks]
    agreeing = [str(level.concurrency) for level in told if not level.clocks]
    if not rows:
        sentence = "Client and engine agree at every level."
        return section("clocks", "Two clocks", tag("p", text(sentence), class_="below"))
    columns = ("C", ("Figure", "left"), "Client", "Engine", "Client against engine", ("Likely cause", "wide"))
    below = f"At C = {', '.join(agreeing)} client and engine agree." if agreeing else None
    return section(
        "clocks",
        "Two clocks",
        text_table("Where client and engine disagree", columns, rows),
        tag("p", text(below), class_="below") if below else None,
    )


def check_list(summary: SweepSummary) -> Markup | None:
    sentences = (
        turning_sentence(summary.turning) if summary.turning and has_curve(summary.levels) else None,
        drift_sentence(summary),
        cache_sentence(summary.levels),
        delivered_sentence(summary.levels),
    )
    return listed([*left_out_sentences(summary.levels), *filter(None, sentences)])


def listed(sentences: Sequence[str]) -> Markup | None:
    told = [tag("li", text(sentence)) for sentence in sentences]
    return tag("ul", join(told), class_="checks") if told else None


def clock_figure(clock: Clock, value: float) -> str:
    match clock:
        case Clock.DECODE:
            return f"{number(value)} tok/s"
        case Clock.FIRST_TOKEN:
            return milliseconds(value)
        case Clock.TOKENS:
            return number(value, digits=0)


def _clock_row(level: LevelSummary, one: Disagreement) -> tuple[object, ...]:
    change = 100 * (one.client / one.engine - 1) if one.engine else None
    sign = "+" if change is not None and change > 0 else ""
    both = (clock_figure(one.clock, value) for value in (one.client, one.engine))
    return (level.concurrency, one.clock.value, *both, sign + percent(change), one.cause)


def _bracket(bracket: tuple[int, int] | None) -> str:
    return "" if bracket is None or not bracket[0] else f", between {bracket[0]} and {bracket[1]}"
