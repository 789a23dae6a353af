"""Serial against swarm: the bars and, beneath them, each form of the speedup with what it is made of."""

from __future__ import annotations

from skep.records import Speedup, SweepSummary
from skep.report import charts
from skep.report.figures import UNKNOWN, number, seconds, times
from skep.report.headline import comparable
from skep.report.markup import Markup, join, table, tag, text
from skep.report.svg import chart_figure


def speedup_part(summary: SweepSummary) -> Markup | None:
    """None where serial or swarm was not measured."""
    speedups, walls = summary.speedups, charts.wall_chart(summary)
    if walls is None:
        return None
    drawn = [chart_figure(walls, "Wall time", _wall_note(summary))]
    if speedups is not None:
        cut = speedups.truncated_serial + speedups.truncated_swarm
        note = (
            "Green: without the tasks that were cut at the token limit in either batch." if cut else "No task was cut."
        )
        drawn.append(chart_figure(charts.speedup_chart(speedups), "Speedup in each of its forms", note))
    beneath = None if speedups is None else speedup_table(speedups)
    return join([tag("div", *drawn, class_="charts"), *([beneath] if beneath else [])])


def speedup_table(speedups: Speedup) -> Markup:
    serial = speedups.tokens_serial, speedups.truncated_serial
    swarm = speedups.tokens_swarm, speedups.truncated_swarm
    facts = (
        ("Serial", "1", seconds(speedups.serial_wall_s), *serial),
        ("Swarm", str(speedups.concurrency), seconds(speedups.swarm_wall_s), *swarm),
    )
    batches = [_row(how, c, wall, number(tokens, digits=0), str(cut)) for how, c, wall, tokens, cut in facts]
    forms = (
        ("By wall time", speedups.by_wall, speedups.by_wall_whole),
        ("By tokens (ratio of effective tok/s)", speedups.by_tokens, speedups.by_tokens_whole),
    )
    ratios = [_row(name, _exactly(of_all), _exactly(whole)) for name, of_all, whole in forms]
    return join(
        [
            table(
                "The two batches", [_head(f"{speedups.tasks} tasks", "C", "Wall time", "Output tokens", "Cut")], batches
            ),
            table("The speedup", [_head("Speedup", "All tasks", "Without tasks cut in either batch")], ratios),
            tag("p", text(_TOKENS), class_="below"),
        ]
    )


_TOKENS = (
    "With natural stop the two batches differ in length, and one answer that runs into the token limit can make "
    "either wall time; so the speedup is given in each form, and nothing is deleted."
)


def _exactly(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value, digits=2)}×" if value < 100 else times(value)


def _head(*names: str) -> Markup:
    return tag("tr", *(tag("th", text(name), class_=None if i else "left") for i, name in enumerate(names)))


def _row(name: str, *cells: str) -> Markup:
    return tag("tr", tag("th", text(name), scope="row"), *(tag("td", text(cell)) for cell in cells))


def _wall_note(summary: SweepSummary) -> str:
    note = "The same tasks at C = 1 and at the largest C."
    return note if comparable(summary) else f"{note} Not comparable: requests failed."
