"""Quality under load in tables."""

from __future__ import annotations

from collections.abc import Sequence

from skep.report.figures import UNKNOWN, milliseconds, number, percent, seconds
from skep.report.levels import counted
from skep.report.markup import Markup, join, table, tag, text
from skep.report.quality_words import claim_words
from skep.verdicts import Claim, PairedDifference, QualitySummary

_STYLES = {Claim.HOLDS: "wide up", Claim.LOST: "wide bad", Claim.UNSHOWN: "wide"}


def level_table(summary: QualitySummary) -> Markup:
    """One row a level; the first is C = 1 against itself."""
    names = (
        "items", "pairs", "passed at C = 1", "passed at C", "difference", "bounds", "lost", "gained", "texts changed",
        "what may be said",
    )  # fmt: skip
    head = tag(
        "tr",
        *(tag("th", text(name), scope="col", class_="left" if name == names[-1] else None) for name in ("C", *names)),
    )
    rows = []
    if summary.noise is not None:
        words = "the noise floor: what changes by itself"
        rows.append(_row("1 and 1", summary.noise, summary.noise_texts_changed, words, "note"))
    for level in summary.levels:
        said = claim_words(level, summary.delta)
        rows.append(_row(str(level.concurrency), level.difference, level.texts_changed, said, _STYLES[level.claim]))
    stopped = any(level.claim is not Claim.HOLDS for level in summary.levels)
    why = "not walked, as a level below does not hold" if stopped else "not walked: the run ended before"
    for skipped in summary.skipped:
        note = tag("td", text(why), class_="note", colspan=str(len(names)))
        rows.append(tag("tr", tag("th", text(skipped), scope="row"), note))
    return table("Difference against C = 1", [head], rows)


def latency_table(summary: QualitySummary) -> Markup:
    """Of the same requests, arm by arm."""
    names = ("arm", "TTFT p50", "TTFT p95", "total p50", "total p95", "eff. tok/s", "cached", "keywords", "outcomes")
    head = _head("C", *names, left=("arm", "outcomes"))
    rows = []
    for level in summary.levels:
        for arm, name in ((level.base, "C = 1"), (level.load, f"C = {level.concurrency}")):
            cells = (
                milliseconds(arm.ttft_p50_ms),
                milliseconds(arm.ttft_p95_ms),
                seconds(arm.total_p50_s),
                seconds(arm.total_p95_s),
                number(arm.effective_tok_s),
                _share(arm.cached_share),
                _share(arm.keyword_rate),
            )
            rows.append(
                tag(
                    "tr",
                    tag("th", text(level.concurrency), scope="row"),
                    tag("td", text(name), class_="left"),
                    *(tag("td", text(cell)) for cell in cells),
                    tag("td", text(counted(arm.outcomes)), class_="note"),
                )
            )
    return table("Latency and outcomes of the same requests", [head], rows)


def family_table(summary: QualitySummary) -> Markup | None:
    """None where the bank has one family only."""
    if len(summary.by_family) < 2:
        return None
    head = tag(
        "tr", tag("th", text("family"), scope="col"), tag("th", text("items")), tag("th", text("passed at C = 1"))
    )
    rows = [
        tag(
            "tr",
            tag("th", text(family or "unnamed"), scope="row"),
            tag("td", text(f"{items:,}")),
            tag("td", text(percent(100 * rate))),
        )
        for family, items, rate in summary.by_family
    ]
    below = "An item that always passes or never does says little about load: those in between carry the test."
    return join([table("Items by family", [head], rows), tag("p", text(below), class_="below")])


def _head(*names: str, left: Sequence[str] = ()) -> Markup:
    styles = ["left" if name in left else None for name in names]
    return tag("tr", *(tag("th", text(n), scope="col", class_=style) for n, style in zip(names, styles, strict=True)))


def _row(name: str, found: PairedDifference, changed: float | None, words: str, style: str) -> Markup:
    cells = (
        f"{found.items:,}",
        f"{found.pairs:,}",
        percent(100 * found.base_rate, digits=1),
        percent(100 * found.rate, digits=1),
        _signed(found.difference),
        f"{_signed(found.low)} .. {_signed(found.high)}",
        f"{found.lost:,}",
        f"{found.gained:,}",
        _share(changed),
    )
    return tag(
        "tr",
        tag("th", text(name), scope="row"),
        *(tag("td", text(cell)) for cell in cells),
        tag("td", text(words), class_=style),
    )


def _signed(share: float) -> str:
    shown = number(100 * share, digits=1)
    return f"+{shown}" if share > 0 and shown != "0.0" else shown


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else percent(100 * value)
