"""The page of one run: who, where and when at once, and then what `skep report` draws of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams

from skep.errors import UserError
from skep.records import Request, Run, RunState
from skep.report.figures import UNKNOWN, milliseconds, moment, number, shortened
from skep.report.markup import Markup, banner, card, join, section, table, tag, text
from skep.web.pictures import fetched, report_parts
from skep.web.runs_book import Figures
from skep.web.runs_list import run_document, tuning_of
from skep.web.runs_words import engine_of, layout_of, machine_of
from skep.web.site import Site

ROWS = 50
_SPOKEN = 4_000  # letters of a prompt or an answer that are shown
REQUEST_COLUMNS = (
    "level", "repeat", "index", "kind", "started_s", "ttft_ms", "total_ms", "prompt_tokens", "output_tokens", "status",
    "error_kind", "finish_reason", "replica",
)  # fmt: skip


def run_body(run: Run, figures: Figures | None, site: Site, report: str | None) -> Markup:
    """With the report where it is there already; else it is fetched once the page is shown."""
    if report is not None:
        drawn = report_parts(report)
    else:
        whole = f"/runs/{run.id}?whole=1"
        drawn = fetched(f"/runs/{run.id}/body", whole, "the report", _cards(run, figures))
    return join([_facts(run, site), *_banners(run), drawn])


def links(run: Run, site: Site) -> Markup:
    """The ways on from a run."""
    entries = [
        ("Every request" if not site.public else "Requests", f"/runs/{run.id}/requests", None),
        ("Report as one file", f"/runs/{run.id}/report.html", f"skep-{run.id}.html"),
        ("JSON", f"/api/run.json?id={run.id}", f"skep-{run.id}.json"),
        ("CSV", f"/api/run.csv?id={run.id}", f"skep-{run.id}.csv"),
    ]
    if run.kind not in ("open", "classes", "replay"):
        entries.insert(2, ("Picture", f"/runs/{run.id}/picture.svg", None))
    if tuning := tuning_of(run):
        entries.insert(0, ("Its tuning", f"/tuning/{quote(tuning)}", None))
    made = [tag("a", text(name), href=address, download=file) for name, address, file in entries]
    return tag("p", *made, class_="ways")


def _facts(run: Run, site: Site) -> Markup:
    where = " · ".join(filter(None, (machine_of(run, public=site.public), engine_of(run), layout_of(run))))
    address = "" if site.public else f"{site.hide(run.url)} · "
    return join(
        [
            tag("p", text(f"{run.kind} · {address}{moment(run.created_at)}"), class_="where"),
            tag("p", text(where), class_="where"),
            links(run, site),
        ]
    )


def _banners(run: Run) -> list[Markup]:
    told = []
    if run.state is RunState.RUNNING:
        told.append(banner("note", "Still running", f"{run.requests} requests are stored so far."))
    elif run.state is not RunState.DONE:
        why = f" {shortened(run.error, 300)}" if run.error else ""
        told.append(banner("incomplete", "Incomplete", f"This run is {run.state.value}.{why}"))
    if run.simulated:
        told.append(banner("simulated", "Simulated", "No model ran: these figures are a prediction, served in time."))
    return told


def _cards(run: Run, figures: Figures | None) -> Markup:
    """Shown while the report is drawn."""
    if figures is None or (figures.best_tok_s is None and not figures.conclusion):
        return text("")
    if figures.conclusion:
        return tag("p", text(figures.conclusion), class_="lead")
    at = "over all traffic" if figures.best_at is None else f"at C = {figures.best_at}"
    return tag(
        "dl",
        card(number(figures.best_tok_s), "Best effective tok/s", at),
        card(milliseconds(figures.ttft_ms), "TTFT p50", "alone, C = 1"),
        card(number(run.requests, digits=0), "Requests", f"{figures.failed} failed"),
        class_="cards",
    )


def run_json(run: Run, figures: Figures | None, site: Site, levels: Sequence[Any]) -> dict[str, Any]:
    """`/api/run.json`: the run as the list tells it, its configuration and every level's figures."""
    return {**run_document(run, figures, site), "config": run.config, "host": run.host, "engine_facts": run.engine,
            "levels": list(levels)}  # fmt: skip


def chosen_rows(rows: Sequence[Request], query: QueryParams) -> tuple[list[Request], int | None, bool, int]:
    """Those of a level, or those that failed; which page of them."""
    said, page = query.get("level", ""), query.get("page", "1")
    if said and not said.isdecimal():
        raise UserError(f"`level={said}` is no level", hint="levels are numbers, as in level=4")
    if not page.isdecimal() or int(page[:9]) < 1:
        raise UserError(f"`page={page}` is no page", hint="pages count from 1")
    level, failed = int(said[:9]) if said else None, query.get("failed") == "yes"
    found = [row for row in rows if (level is None or row.level == level) and not (failed and row.ok)]
    return found, level, failed, int(page[:9])


def requests_body(run: Run, rows: Sequence[Request], query: QueryParams, site: Site) -> Markup:
    """What became of each request; what was asked and answered only where the dashboard is not public."""
    found, level, failed, page = chosen_rows(rows, query)
    pages = max(1, -(-len(found) // ROWS))
    page = min(page, pages)
    shown = found[(page - 1) * ROWS : page * ROWS]
    here = f"/runs/{run.id}/requests"
    levels = sorted({row.level for row in rows})
    ways = [tag("a", text("all levels"), href=here, aria_current="true" if level is None and not failed else None)]
    ways += [
        tag("a", text(f"C = {one}" if one else "warm-up"), href=f"{here}?level={one}",
            aria_current="true" if level == one else None)
        for one in levels
    ]  # fmt: skip
    if any(not row.ok for row in rows):
        ways.append(tag("a", text("failed"), href=f"{here}?failed=yes", aria_current="true" if failed else None))
    back = tag("p", tag("a", text(f"← run {run.id}"), href=f"/runs/{run.id}"), class_="where")
    left = ("task", "end", "asked and answered")
    head = tag("tr", *(tag("th", text(name), scope="col", class_="left" if name in left else None) for name in _HEAD))
    body = [_row(row, site) for row in shown]
    made = table(f"{len(found)} requests", [head], body)
    listed = tag("div", made, class_="stacked") if body else tag("p", text("None."), class_="empty")
    query_of = {"level": "" if level is None else str(level), "failed": "yes" if failed else ""}
    return join([back, tag("p", *ways, class_="ways"), listed, _pages(here, page, pages, query_of)])


_HEAD = ("level", "task", "first token", "whole", "tokens in", "tokens out", "end", "asked and answered")


def _row(row: Request, site: Site) -> Markup:
    first = None if row.first_token_s is None else 1000 * (row.first_token_s - row.due_s)
    whole = 1000 * (row.ended_s - row.due_s)
    end = (row.finish_reason or "done") if row.ok else str(row.error_kind)
    task = f"{row.kind} {row.index + 1}" + (f", run {row.repeat + 1}" if row.repeat else "")
    cells = (milliseconds(first), milliseconds(whole), number(row.prompt_tokens, digits=0),
             number(row.output_tokens, digits=0))  # fmt: skip
    return tag(
        "tr",
        tag("th", text(f"{row.level or 'warm-up'}"), scope="row", data_label=_HEAD[0]),
        tag("td", text(task), class_="left", data_label=_HEAD[1]),
        *(tag("td", text(cell), data_label=name) for name, cell in zip(_HEAD[2:6], cells, strict=True)),
        tag("td", text(end), class_="left" if row.ok else "left bad", data_label=_HEAD[6]),
        tag("td", tag("div", _words(row, site)), class_="left note", data_label=_HEAD[7]),
    )


def _words(row: Request, site: Site) -> Markup:
    if site.public:
        return text(UNKNOWN)
    told = (("asked", row.prompt), ("thought", row.reasoning), ("answered", row.answer), ("error", row.error))
    parts = [
        tag("h4", text(name)) + tag("pre", text(shortened(said, _SPOKEN))) for name, said in told if said is not None
    ]
    if not parts:
        return text("not kept")
    first = next(said for _, said in told if said is not None)
    return tag("details", tag("summary", text(shortened(first, 60))), *(Markup(part) for part in parts))


def _pages(here: str, page: int, pages: int, query: dict[str, str]) -> Markup:
    def way(to: int) -> str:
        return f"{here}?{urlencode({**{k: v for k, v in query.items() if v}, 'page': to})}"

    if pages == 1:
        return text("")
    before = tag("a", text("← Before"), href=way(page - 1), rel="prev") if page > 1 else None
    after = tag("a", text("Next →"), href=way(page + 1), rel="next") if page < pages else None
    return tag("nav", before, tag("span", text(f"page {page} of {pages}")), after, class_="pager", aria_label="More")


def not_drawn(error: UserError) -> Markup:
    """In the place of a report that cannot be made."""
    return section("nothing", "Nothing to draw", tag("p", text(error.message)), tag("p", text(error.hint or "")))
