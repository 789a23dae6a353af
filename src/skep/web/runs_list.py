"""The list of runs: what an address asks for, and the table that answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams

from skep.bench.stored_run import OF_A_TUNING
from skep.errors import UserError
from skep.report.markup import Markup, join, tag, text
from skep.store.records import RunState, StoredRun
from skep.units import UNKNOWN, milliseconds, moment, number, shortened
from skep.web.context import Site
from skep.web.layout import void
from skep.web.run_cache import RunFigures, engine_of, layout_of, machine_of

PAGE = 50
_CHOICES = {"yes": "simulated only", "no": "measured only"}
SORTS = {"": "newest first", "best": "best tok/s first"}
COLUMNS = (
    "id", "created_at", "ended_at", "kind", "state", "model", "machine", "engine", "layout", "simulated", "requests",
    "failed", "best_tok_s", "best_at", "ttft_ms", "client_limited", "conclusion", "url", "fingerprint", "skep_version",
    "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """All of it is in the address. `page` counts from 1; 0: all of them, for files."""

    kind: str = ""
    model: str = ""
    state: str = ""
    simulated: str = ""
    text: str = ""
    page: int = 1
    sort: str = ""  # "best": by effective tok/s

    def query(self, **changed: Any) -> str:
        asked = replace(self, **changed)
        told = (("kind", asked.kind), ("model", asked.model), ("state", asked.state), ("simulated", asked.simulated),
                ("q", asked.text), ("sort", asked.sort),
                ("page", "" if asked.page == 1 else str(asked.page)))  # fmt: skip
        return urlencode([(name, value) for name, value in told if value])

    def address(self, **changed: Any) -> str:
        query = self.query(**changed)
        return f"/runs?{query}" if query else "/runs"

    def takes(self, run: StoredRun, *, public: bool = False) -> bool:
        """Runs of tunings are many and small: they are listed where their kind, or words of them, are asked for."""
        if run.kind in OF_A_TUNING and not (self.kind or self.text):
            return False
        if self.simulated and run.simulated is not (self.simulated == "yes"):
            return False
        exact = ((self.kind, run.kind), (self.model, run.model), (self.state, run.state.value))
        if any(wanted and wanted != has for wanted, has in exact):
            return False
        words = self.text.lower().split()
        return not words or all(word in _haystack(run, public=public) for word in words)


@dataclass(frozen=True, slots=True)
class RunListing:
    """One page of the runs that were asked for."""

    asked: RunsQuery
    runs: tuple[StoredRun, ...]
    total: int  # of those asked for
    stored: int  # in all
    models: tuple[str, ...]
    kinds: tuple[str, ...]
    aside: int = 0  # runs of tunings that are not listed

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // PAGE))


def read_query(query: QueryParams) -> RunsQuery:
    state, simulated = query.get("state", ""), query.get("simulated", "")
    states = [one.value for one in RunState]
    if state and state not in states:
        raise UserError(f"`state={state}` is no state of a run", hint=f"one of {', '.join(states)}")
    if simulated and simulated not in _CHOICES:
        raise UserError(f"`simulated={simulated}` is neither yes nor no", hint="leave it out for both")
    sort = query.get("sort", "")
    if sort not in SORTS:
        raise UserError(f"`sort={sort}` is unknown", hint="sort=best, or leave it out for the newest first")
    return RunsQuery(query.get("kind", ""), query.get("model", ""), state, simulated, query.get("q", "").strip()[:200],
                 _page(query.get("page", "")), sort)  # fmt: skip


def listed(
    runs: Sequence[StoredRun],
    asked: RunsQuery,
    figures: Mapping[str, RunFigures] | None = None,
    *,
    public: bool = False,
) -> RunListing:
    """`runs` are newest first. `figures` decide the order where the best are asked for."""
    found = [run for run in runs if asked.takes(run, public=public)]
    if asked.sort:
        found.sort(key=lambda run: _rank(run, (figures or {}).get(run.id)))
    pages = max(1, -(-len(found) // PAGE))
    asked = replace(asked, page=min(asked.page, pages))
    shown = found if asked.page == 0 else found[(asked.page - 1) * PAGE : asked.page * PAGE]
    models = tuple(sorted({run.model for run in runs}))
    kinds = tuple(sorted({run.kind for run in runs}))
    aside = 0 if asked.kind or asked.text else sum(run.kind in OF_A_TUNING for run in runs)
    return RunListing(asked, tuple(shown), len(found), len(runs) - aside, models, kinds, aside)


def filter_form(found: RunListing, site: Site) -> Markup:
    asked = found.asked
    models = [("", "every model"), *((name, site.label(name)) for name in found.models)]
    kinds = [("", "every kind"), *((name, name) for name in found.kinds)]
    states = [("", "every state"), *((one.value, one.value) for one in RunState)]
    both = [("", "measured and simulated"), *_CHOICES.items()]
    search = void("input", type="search", name="q", value=asked.text, placeholder="words: engine, card, id, note",
                  aria_label="Words that a run must have")  # fmt: skip
    clear = tag("a", text("Show all"), href="/runs") if asked.query(page=1) else None
    return tag(
        "form",
        search,
        select("model", "Model", models, asked.model),
        select("kind", "Kind", kinds, asked.kind),
        select("state", "State", states, asked.state),
        select("simulated", "Simulated or measured", both, asked.simulated),
        select("sort", "Order", SORTS.items(), asked.sort),
        tag("button", text("Filter")),
        clear,
        method="get",
        action="/runs",
        class_="filters",
        role="search",
    )


def select(name: str, label: str, options: Iterable[tuple[str, str]], chosen: str) -> Markup:
    made = join(
        tag("option", text(shown), value=value or "", selected="" if value == chosen else None)
        for value, shown in options
    )
    return tag("select", made, name=name, aria_label=label)


def table_rows(found: RunListing, figures: Mapping[str, RunFigures], site: Site) -> Markup:
    return join(_row(run, figures.get(run.id), site) for run in found.runs)


def tuning_of(run: StoredRun) -> str | None:
    """The id of the tuning that it was made for."""
    told = run.config.get("tuning")
    return told if run.kind in OF_A_TUNING and isinstance(told, str) and told else None


def kind_words(run: StoredRun) -> Markup:
    """With the way to the tuning, where it is of one."""
    tuning = tuning_of(run)
    return text(run.kind) if tuning is None else tag("a", text(run.kind), href=f"/tuning/{quote(tuning)}")


def minute(unix_time: float) -> str:
    """As `moment`, without the seconds: a list of runs needs none."""
    return moment(unix_time)[: len("2026-11-15 20:52")]


def pager(found: RunListing) -> Markup | None:
    if found.pages == 1 or found.asked.page == 0:
        return None
    here = found.asked.page
    back, on = ("← Better", "Next →") if found.asked.sort else ("← Newer", "Older →")
    newer = tag("a", text(back), href=found.asked.address(page=here - 1), rel="prev") if here > 1 else None
    older = tag("a", text(on), href=found.asked.address(page=here + 1), rel="next")
    place = tag("span", text(f"page {here} of {found.pages}"))
    return tag("nav", newer, place, older if here < found.pages else None, class_="pager", aria_label="More runs")


def run_document(run: StoredRun, figures: RunFigures | None, site: Site) -> dict[str, Any]:
    """One run of `/api/runs.json`: the names of COLUMNS."""
    told = figures or RunFigures()
    error = "error" if site.public and run.error else run.error
    return {
        "id": run.id, "created_at": run.created_at, "ended_at": run.ended_at, "kind": run.kind,
        "state": run.state.value, "model": site.label(run.model), "machine": machine_of(run, public=site.public),
        "engine": engine_of(run), "layout": layout_of(run), "simulated": run.simulated, "requests": run.requests,
        "failed": told.failed if figures else None, "best_tok_s": told.best_tok_s, "best_at": told.best_at,
        "ttft_ms": told.ttft_ms, "client_limited": told.client_limited if figures else None,
        "conclusion": told.conclusion or None, "url": None if site.public else site.hide(run.url),
        "fingerprint": run.fingerprint, "skep_version": run.skep_version, "error": error,
    }  # fmt: skip


def _row(run: StoredRun, figures: RunFigures | None, site: Site) -> Markup:
    tick = void("input", type="checkbox", name="run", value=run.id, aria_label=f"Compare run {run.id}")
    when = tag("a", text(minute(run.created_at)), href=f"/runs/{run.id}", title=moment(run.created_at))
    flags = [tag("span", text("simulated"), class_="flag sky") if run.simulated else None]
    if run.state is not RunState.DONE:
        flags.append(tag("span", text(run.state.value), class_="flag bad"))
    where = " · ".join(filter(None, (machine_of(run, public=site.public), engine_of(run), layout_of(run))))
    return tag(
        "tr",
        tag("td", tick, class_="tick"),
        tag("th", when, scope="row", data_label="When"),
        labelled(
            "Model", join([text(shortened(site.label(run.model), 60)), *(flag for flag in flags if flag)]), "left"
        ),
        labelled("Kind", kind_words(run), "left"),
        *_figure_cells(figures),
        labelled("Requests", text(number(run.requests, digits=0)), None),
        labelled("Where", text(shortened(where, 90)), "left soft wrap"),
        data_pending="" if figures is None else None,
    )


def _figure_cells(figures: RunFigures | None) -> list[Markup]:
    if figures is None:
        return [labelled(name, text("…"), "soft") for name in ("Best tok/s", "TTFT p50, C = 1", "Failed")]
    if figures.conclusion:
        best = tag("span", text(figures.conclusion.split(":")[0]), class_="words", title=figures.conclusion)
    elif figures.best_tok_s is None:
        best = text(UNKNOWN)
    else:
        at = "" if figures.best_at is None else f" at C = {figures.best_at}"
        at += ", client-limited" if figures.client_limited else ""
        best = tag("span", tag("b", text(number(figures.best_tok_s))), tag("small", text(at)))
    return [
        labelled("Best tok/s", best, None),
        labelled("TTFT p50, C = 1", text(milliseconds(figures.ttft_ms)), None),
        labelled("Failed", text(figures.failed), "bad" if figures.failed else "soft"),
    ]


def labelled(label: str, shown: Markup, style: str | None) -> Markup:
    """Its content is one element: on a phone the label stands beside it, in two columns."""
    return tag("td", tag("span", shown), class_=style, data_label=label)


def _rank(run: StoredRun, figures: RunFigures | None) -> tuple[bool, bool, float]:
    """Simulated runs come after measured ones, and last what has not ended well or has no figure."""
    best = figures.best_tok_s if figures and run.state is RunState.DONE else None
    return best is None, run.simulated, -(best or 0.0)


def _page(said: str) -> int:
    if said == "all":
        return 0
    if said and (not said.isdecimal() or not 1 <= int(said[:9]) <= 10**8):
        raise UserError(f"`page={said}` is no page", hint="pages count from 1")
    return int(said[:9]) if said else 1


def _haystack(run: StoredRun, *, public: bool) -> str:
    """In public, words find nothing that is not shown."""
    where = (machine_of(run, public=public), engine_of(run), layout_of(run))
    hidden = () if public else (run.url, run.error or "")
    return " ".join((run.id, run.model, run.kind, run.fingerprint, *where, *hidden)).lower()
