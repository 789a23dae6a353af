"""The figures at the top of a sweep's page, each with the level it belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from skep.records import LevelSummary, SweepSummary
from skep.report.charts import by_wall, walls
from skep.report.figures import UNKNOWN, known, milliseconds, number, percent, seconds, times
from skep.report.levels import best_level
from skep.report.markup import Markup, card, tag, text

NO_GAIN = 1.05


def lead(levels: Sequence[LevelSummary]) -> Markup | None:
    """The finding in one sentence, only where all of its figures are known."""
    best, alone = best_level(levels), _alone(levels)
    if best is None or alone is None or best is alone or not best.effective_tok_s or not alone.effective_tok_s:
        return None
    gain = best.effective_tok_s / alone.effective_tok_s
    if gain < NO_GAIN:
        sentence = (
            f"More agents at once gain nothing here: {number(alone.effective_tok_s)} tok/s for one alone, "
            f"{number(best.effective_tok_s)} for {best.concurrency} together"
        )
        return tag("p", text(f"{sentence}."), class_="lead")
    sentence = (
        f"{best.concurrency} agents at once get {number(best.effective_tok_s)} tok/s together, "
        f"{number(gain)} times what one agent gets alone"
    )
    if known(best.task_tok_s):
        sentence += f"; each of them streams at {number(best.task_tok_s)} tok/s"
    return tag("p", text(f"{sentence}."), class_="lead")


def cards(summary: SweepSummary) -> Markup:
    best, widest = best_level(summary.levels), _widest(summary.levels)
    remark = "the best of all levels"
    if best is None:
        best, remark = _fastest(summary.levels), "client-limited: a lower bound"
    elif summary.client_limited:
        remark = "the best of the levels that the client did not limit"
    ttft = widest.ttft_ms if widest else None
    return tag(
        "dl",
        card(number(best.effective_tok_s if best else None), "Effective tok/s", _at(best, remark)),
        _gain_card(summary, best),
        card(percent(widest.contention_pct if widest else None), "Contention", _at(widest, "the largest level")),
        card(milliseconds(ttft.p50 if ttft else None), "TTFT p50", _at(widest) + _solo_ttft(summary.levels)),
        class_="cards",
    )


def _gain_card(summary: SweepSummary, best: LevelSummary | None) -> Markup:
    """The speedup where serial and swarm did the same tasks; else what concurrency gained in tokens a second."""
    serial, swarm = walls(summary)
    if known(serial) and known(swarm):
        return card(times(by_wall(summary)), "Swarm speedup", _walls(summary))
    alone = _alone(summary.levels)
    of_best, of_one = best.effective_tok_s if best else None, alone.effective_tok_s if alone else None
    gain = of_best / of_one if of_best and of_one else None
    return card(times(gain), "Gain in tok/s", f"{_at(best)} over one agent alone")


def comparable(summary: SweepSummary) -> bool:
    """Whether serial and swarm did the same work: both walls without a speedup mean that some of it was not done."""
    serial, swarm = walls(summary)
    return by_wall(summary) is not None or not (known(serial) and known(swarm))


def _walls(summary: SweepSummary) -> str:
    if not comparable(summary):
        return "not comparable: not all requests were answered"
    serial, swarm = walls(summary)
    note = f"{seconds(serial)} serial, {seconds(swarm)} swarm"
    forms = summary.speedups
    if forms is None or not (forms.truncated_serial or forms.truncated_swarm) or forms.by_wall_whole is None:
        return note
    return f"{note}; {times(forms.by_wall_whole)} without tasks cut at the token limit"


def _solo_ttft(levels: Sequence[LevelSummary]) -> str:
    alone = _alone(levels)
    if alone is None or alone.ttft_ms is None or alone is _widest(levels):
        return ""
    return f"; {milliseconds(alone.ttft_ms.p50)} {_at(alone)}"


def _fastest(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    measured = [level for level in levels if known(level.effective_tok_s)]
    return max(measured, key=lambda level: level.effective_tok_s or 0.0, default=None)


def _widest(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    return max(levels, key=lambda level: level.concurrency, default=None)


def _alone(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    return next((level for level in levels if level.concurrency == 1), None)


def _at(level: LevelSummary | None, remark: str = "") -> str:
    if level is None:
        return UNKNOWN
    return f"at C\u00a0=\u00a0{level.concurrency}" + (f", {remark}" if remark else "")
