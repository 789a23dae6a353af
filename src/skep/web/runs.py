"""The page of runs: every stored benchmark with its key figures, each with its report, two of them side by side.

An ended run is final, so all is worked out once: runs are kept in memory, figures there and in files, pages and
pictures in files, since drawing one takes up to a second.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from markupsafe import Markup
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from skep import __version__
from skep.bench.records import LevelSummary
from skep.bench.stored_run import (
    JUDGED,
    OF_A_TUNING,
    QUALITY,
    TIMED,
    TUNE_QUALITY,
    check_drawn_together,
    load_run,
)
from skep.errors import SkepError, UserError
from skep.files import write_whole
from skep.quality.words import conclusion
from skep.report.columns import Column, documents
from skep.report.levels import LEVEL_COLUMNS
from skep.report.stored import drawn, mixed_of, quality_of
from skep.report.svg import alive
from skep.store.database import Store
from skep.store.records import RunState, StoredRun
from skep.web.context import Site, is_near
from skep.web.layout import page, render
from skep.web.responses import NotFound, csv_records, json_answer, report_answer, svg_answer

# What a hive with `--simulate` says of itself.
_SIMULATED = re.compile(
    r"simulated: .+?, (?:KV [^,]+, )?(?:[^,]+, )?"
    r"(?P<layout>(?:\d+ x )?TP=.+?) on (?P<rig>.+), as (?P<engine>\w+)"
)
_LONGEST = 400  # letters of such a sentence
_MAKERS = re.compile(r"^(NVIDIA |AMD |Intel\(R\) )(GeForce |Radeon )?")


def machine_of(run: StoredRun) -> str:
    """Return the cards, or the CPU where there is none. Of a far endpoint only its address is known."""
    if found := _simulated(run):
        return found["rig"]
    if run.simulated:
        return "no machine: simulated"
    if is_near(run.url):
        return host_words(run.host)
    try:
        return urlsplit(run.url).hostname or run.url
    except ValueError:
        return "unknown machine"


def host_words(host: Mapping[str, Any]) -> str:
    cards = host.get("gpus")
    if isinstance(cards, list) and cards:
        names = Counter(str(card.get("name", "?")) for card in cards if isinstance(card, dict))
        return " + ".join(f"{many}x {_MAKERS.sub('', name)}" for name, many in names.items())
    cpu, cores = host.get("cpu_model") or host.get("machine"), host.get("cpu_cores")
    return f"{cpu}, {cores} cores" if cpu and cores else str(cpu or "unknown machine")


def engine_of(run: StoredRun) -> str:
    """Return its name and version, as the endpoint told."""
    if found := _simulated(run):
        return f"{found['engine']} (simulated)"
    names = (run.engine.get(key) for key in ("engine", "server", "measured_by"))
    told = str(next(filter(None, names), "unknown engine"))
    version = run.engine.get("version") or run.engine.get("build")
    return told if not version or str(version) in told or "unknown" in str(version) else f"{told} {version}"


def layout_of(run: StoredRun) -> str:
    """Replicas and slots, where the endpoint told; of a simulated rig how its cards are divided."""
    if found := _simulated(run):
        return found["layout"]
    replicas, slots = run.engine.get("replicas"), run.engine.get("slots")
    if not isinstance(slots, int):
        return ""
    return f"{replicas} replicas, {slots} slots" if isinstance(replicas, int) and replicas > 1 else f"{slots} slots"


def _simulated(run: StoredRun) -> re.Match[str] | None:
    told = run.engine.get("engine")
    return _SIMULATED.match(told[:_LONGEST]) if run.simulated and isinstance(told, str) else None


_MOST = 20_000
_A_REQUEST_S = 0.0004  # what the figures of a run take for each of its requests, about
_FEW = 20  # runs that are read one by one
_ENDED = (RunState.DONE, RunState.FAILED, RunState.INTERRUPTED)  # what is worked out of them stays true
PATIENCE_S = 0.05  # for figures that are not known yet, before a list is shown without them


class RunFigures(msgspec.Struct, frozen=True):
    """What a list tells of a run. None: not measured, or not of that kind."""

    best_tok_s: float | None = None  # effective
    best_at: int | None = None  # the C it was reached at; None: its levels are no concurrencies
    ttft_ms: float | None = None  # p50 at C=1
    failed: int = 0
    client_limited: bool = False  # at the best level: a lower bound
    conclusion: str = ""  # of judged runs


class RunCache:
    """One for a dashboard. Safe to be asked by several threads. Keeps what is of ended runs, by their ids."""

    def __init__(self, site: Site, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = FileCache(site.paths.cache / "web" / "figures", most=_MOST)
        self._clock = clock
        self._runs: dict[str, StoredRun] = {}
        self._figures: dict[str, RunFigures] = {}
        self._levels: dict[str, tuple[LevelSummary, ...]] = {}
        self._making = threading.Lock()  # figures: two that ask at once share what is worked out

    def runs(self, store: Store) -> list[StoredRun]:
        ids = [row[0] for row in store.read("SELECT id FROM runs ORDER BY created_at DESC, rowid DESC")]
        known = {name: run for name in ids if (run := self._runs.get(name)) is not None}
        missing = [name for name in ids if name not in known]
        if len(missing) > _FEW:
            known |= {run.id: run for run in store.runs() if run.id not in known}
        else:
            for name in missing:
                with suppress(SkepError):  # deleted between two reads
                    known[name] = store.run(name)
        self._runs = {name: run for name, run in known.items() if run.state in _ENDED}
        return [known[name] for name in ids if name in known]

    def figures(
        self, store: Store, runs: Sequence[StoredRun], patience_s: float | None = None
    ) -> dict[str, RunFigures]:
        """By run. With a patience, those that would take longer are left out, and found the next time."""
        found: dict[str, RunFigures] = {}
        began = self._clock()
        for run in runs:
            known, wait = self._known(run), _A_REQUEST_S * run.requests
            if known is None and (patience_s is None or self._clock() - began + wait < patience_s):
                with self._making:
                    known = self._known(run) or figures_of(store, run)
                    if run.state in _ENDED and run.id not in self._figures:
                        self._figures[run.id] = known
                        self._files.put(f"{run.id}.json", msgspec.json.encode(known).decode())
            if known is not None:
                found[run.id] = known
        return found

    def levels(self, store: Store, run: StoredRun) -> tuple[LevelSummary, ...]:
        """Of one run, as measured; empty where nothing was."""
        if (known := self._levels.get(run.id)) is not None:
            return known
        try:
            found = tuple(load_run(store, run.id)[1].levels)
        except SkepError:
            found = ()
        if run.state in _ENDED:
            self._levels[run.id] = found
        return found

    def _known(self, run: StoredRun) -> RunFigures | None:
        if run.state not in _ENDED:
            return None
        if run.id not in self._figures and (stored := self._files.get(f"{run.id}.json")):
            with suppress(msgspec.MsgspecError):
                self._figures[run.id] = msgspec.json.decode(stored, type=RunFigures)
        return self._figures.get(run.id)


def figures_of(store: Store, run: StoredRun) -> RunFigures:
    try:
        if run.kind in JUDGED:
            found = store.read("SELECT count(*) FROM requests WHERE run_id = ? AND error_kind IS NOT NULL", run.id)
            if run.kind == QUALITY:
                words = conclusion(quality_of(store, run))
            else:
                spot = mixed_of(store, run).advice.concurrency
                words = "no sweet spot" if spot is None else f"sweet spot at C = {spot}"
            return RunFigures(failed=int(found[0][0]), conclusion=words)
        _, summary, rows = load_run(store, run.id)
    except SkepError:
        return RunFigures()  # nothing was measured
    failed = sum(not row.ok for row in rows)
    if run.kind == TUNE_QUALITY:
        return RunFigures(failed=failed, conclusion="answers judged for a tuning")
    measured = [level for level in summary.levels if level.effective_tok_s is not None]
    if not measured:
        return RunFigures(failed=failed)
    best = max(measured, key=lambda level: level.effective_tok_s or 0.0)
    closed = run.kind not in TIMED
    alone = next((level for level in summary.levels if closed and level.concurrency == 1), None)
    at, ttft_ms = best.concurrency if closed else None, alone.ttft_ms.p50 if alone and alone.ttft_ms else None
    return RunFigures(best.effective_tok_s, at, ttft_ms, failed, best.client_limited)


_PRUNED_EVERY = 50  # looking through the folder takes longer than writing one file
_FILE = re.compile(r"[\w+-][\w+.-]{0,250}", re.ASCII)
_STACKED = ' style="display:grid;gap:16px"'
_STYLED = re.compile(r' style="[^"]*"')  # headings that begin a little lower
_LEAD = re.compile(r'<p class="lead">.*?</p>', re.DOTALL)


class FileCache:
    """Texts in files of one folder, by name. What cannot be written is only not kept; now and then the oldest go."""

    def __init__(self, folder: Path, most: int = 400) -> None:
        self.folder = folder / __version__
        self._most = most
        self._put = 0

    def get(self, name: str) -> str | None:
        if not _FILE.fullmatch(name):
            return None
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, name: str, body: str) -> None:
        if not _FILE.fullmatch(name):
            return  # of a run whose id is none of skep's own
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.folder / name, body, 0o600)
            self._put += 1
            if self._put % min(_PRUNED_EVERY, self._most) == 1:
                files = [entry for entry in os.scandir(self.folder) if entry.is_file()]
                files.sort(key=lambda entry: entry.stat().st_mtime)
                for entry in files[: len(files) - self._most * 3 // 4] if len(files) > self._most else ():
                    Path(entry.path).unlink(missing_ok=True)


class Pictures:
    """What is drawn of stored runs for one dashboard. A public one has reports without texts and addresses."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._files = FileCache(site.paths.cache / "web" / "pages")

    def document(self, store: Store, runs: Sequence[StoredRun], kind: str) -> str:
        """Return the HTML (`html`) or SVG (`svg`) document that `skep runs report` writes."""
        return self._kept(runs, kind, lambda: drawn(store, runs, as_picture=kind == "svg"))

    def body(self, store: Store, runs: Sequence[StoredRun]) -> Markup:
        """Return what a page of the dashboard shows of a report: the sentence above its first figure, its main part."""

        def make() -> str:
            with alive():
                report = drawn(store, runs, as_picture=False)
            lead = _LEAD.search(report.partition("<main>")[0])
            main = report.partition("<main>")[2].rpartition("</main>")[0]
            plain = _STYLED.sub("", main.replace(_STACKED, ' class="stack"'))  # the headers forbid inline styles
            return f'{lead[0] if lead else ""}<div class="report">{plain}</div>'

        return Markup(self._kept(runs, "body", make))  # noqa: S704

    def ready(self, run: StoredRun) -> Markup | None:
        """Return the body, where it was drawn before and cannot change any more."""
        found = self._files.get(self._name([run], "body")) if run.state in _ENDED else None
        return Markup(found) if found else None  # noqa: S704

    def _kept(self, runs: Sequence[StoredRun], kind: str, make: Callable[[], str]) -> str:
        """Only what is of ended runs is kept."""
        name, final = self._name(runs, kind), all(run.state in _ENDED for run in runs)
        if final and (found := self._files.get(name)) is not None:
            return found
        made = make()
        if final:
            self._files.put(name, made)
        return made

    def _name(self, runs: Sequence[StoredRun], kind: str) -> str:
        return "+".join(run.id for run in runs) + ("-public" if self._site.public else "") + f".{kind}"


MOST_COMPARED = 8


def runs_named(names: str) -> list[str]:
    """Of `runs=A,B`. Raises UserError where there are too few or too many to stand beside each other."""
    ids = list(dict.fromkeys(one.strip() for one in names.split(",") if one.strip()))
    if not 2 <= len(ids) <= MOST_COMPARED:
        raise UserError(f"`runs={names}` names {len(ids)} runs", hint=f"name two to {MOST_COMPARED}, as in runs=A,B")
    return ids


def found_runs(store: Store | None, ids: Sequence[str]) -> list[StoredRun]:
    if store is None:
        raise UserError(f"there is no run `{ids[0]}`", hint="no run is stored yet; `skep bench sweep` makes one")
    runs = [store.run(name) for name in ids]
    check_drawn_together(runs)
    return runs


def levels_of(store: Store, run: StoredRun) -> Sequence[LevelSummary]:
    return () if run.kind in JUDGED else load_run(store, run.id)[1].levels


PAGE = 50
_CHOICES = {"yes": "simulated only", "no": "measured only"}
SORTS = {"": "newest first", "best": "best tok/s first"}
Listed = tuple[StoredRun, RunFigures | None]


class RunsQuery(msgspec.Struct, frozen=True):
    """All of it is in the address. `page` counts from 1; 0: all of them, for files."""

    kind: str = ""
    model: str = ""
    state: str = ""
    simulated: str = ""
    text: str = ""
    page: int = 1
    sort: str = ""  # "best": by effective tok/s

    def query(self, **changed: Any) -> str:
        told = {**msgspec.structs.asdict(self), **changed}
        told = {**told, "q": told.pop("text"), "page": "" if told["page"] == 1 else told["page"]}
        return urlencode({name: value for name, value in told.items() if value != ""})

    def address(self, **changed: Any) -> str:
        query = self.query(**changed)
        return f"/runs?{query}" if query else "/runs"

    def takes(self, run: StoredRun) -> bool:
        """Runs of tunings are many and small: they are listed where their kind, or words of them, are asked for."""
        if run.kind in OF_A_TUNING and not (self.kind or self.text):
            return False
        if self.simulated and run.simulated is not (self.simulated == "yes"):
            return False
        exact = ((self.kind, run.kind), (self.model, run.model), (self.state, run.state.value))
        if any(wanted and wanted != has for wanted, has in exact):
            return False
        told = (run.id, run.model, run.kind, run.fingerprint, where_of(run), run.url, run.error or "")
        return all(word in " ".join(told).lower() for word in self.text.lower().split())


class RunListing(msgspec.Struct, frozen=True):
    asked: RunsQuery
    runs: tuple[StoredRun, ...]
    total: int  # of those asked for
    stored: int  # in all
    models: tuple[str, ...]
    kinds: tuple[str, ...]
    aside: int = 0  # runs of tunings that are not listed
    figures: Mapping[str, RunFigures] = {}

    @property
    def pages(self) -> int:
        return page_count(self.total)

    @property
    def rows(self) -> list[Listed]:
        return [(run, self.figures.get(run.id)) for run in self.runs]


def page_count(total: int) -> int:
    return max(1, -(-total // PAGE))


def read_query(query: QueryParams) -> RunsQuery:
    state, simulated, sort = (query.get(name, "") for name in ("state", "simulated", "sort"))
    states = [one.value for one in RunState]
    if state and state not in states:
        raise UserError(f"`state={state}` is not a state of a run", hint=f"one of {', '.join(states)}")
    if simulated and simulated not in _CHOICES:
        raise UserError(f"`simulated={simulated}` is neither yes nor no", hint="leave it out for both")
    if sort not in SORTS:
        raise UserError(f"`sort={sort}` is unknown", hint="sort=best, or leave it out for the newest first")
    return RunsQuery(query.get("kind", ""), query.get("model", ""), state, simulated, query.get("q", "").strip()[:200],
                 0 if query.get("page") == "all" else _page(query), sort)  # fmt: skip


def listed(runs: Sequence[StoredRun], asked: RunsQuery, figures: Mapping[str, RunFigures] | None = None) -> RunListing:
    """`runs` are newest first. `figures` decide the order where the best are asked for."""
    found = [run for run in runs if asked.takes(run)]
    if asked.sort:

        def rank(run: StoredRun) -> tuple[bool, bool, float]:
            """Simulated runs come after measured ones, and last what has not ended well or has no figure."""
            told = (figures or {}).get(run.id) if run.state is RunState.DONE else None
            best = None if told is None else told.best_tok_s
            return best is None, run.simulated, -(best or 0.0)

        found.sort(key=rank)
    asked = replace(asked, page=min(asked.page, page_count(len(found))))
    shown = found if asked.page == 0 else found[(asked.page - 1) * PAGE : asked.page * PAGE]
    models = tuple(sorted({run.model for run in runs}))
    kinds = tuple(sorted({run.kind for run in runs}))
    aside = 0 if asked.kind or asked.text else sum(run.kind in OF_A_TUNING for run in runs)
    return RunListing(asked, tuple(shown), len(found), len(runs) - aside, models, kinds, aside, figures or {})


def where_of(run: StoredRun) -> str:
    return " · ".join(filter(None, (machine_of(run), engine_of(run), layout_of(run))))


def tuning_of(run: StoredRun) -> str | None:
    told = run.config.get("tuning")
    return told if run.kind in OF_A_TUNING and isinstance(told, str) and told else None


def run_columns(site: Site) -> list[Column[Listed]]:
    def of_run(key: str, value: Callable[[StoredRun], Any] | None = None) -> Column[Listed]:
        return Column(key, key, lambda pair: value(pair[0]) if value else getattr(pair[0], key))

    def figure(key: str) -> Column[Listed]:
        return Column(key, key, lambda pair: getattr(pair[1], key) if pair[1] else None)

    return [
        *map(of_run, ("id", "created_at", "ended_at", "kind")),
        of_run("state", lambda run: run.state.value),
        of_run("model", lambda run: site.label(run.model)),
        of_run("machine", machine_of),
        of_run("engine", engine_of),
        of_run("layout", layout_of),
        *map(of_run, ("simulated", "requests")),
        *map(figure, ("failed", "best_tok_s", "best_at", "ttft_ms", "client_limited")),
        Column("conclusion", "conclusion", lambda pair: (pair[1] and pair[1].conclusion) or None),
        of_run("url", lambda run: None if site.public else site.hide(run.url)),
        *map(of_run, ("fingerprint", "skep_version", "error")),
    ]


def _page(query: QueryParams) -> int:
    said = query.get("page") or "1"
    if not said.isdecimal() or not 1 <= int(said[:9]) <= 10**8:
        raise UserError(f"`page={said}` is not a page", hint="pages count from 1")
    return int(said[:9])


class RunsPages:
    """The handlers, with what they keep between two of them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = RunCache(site)
        self.pictures = Pictures(site)
        self.columns = run_columns(site)

    def listing(self, request: Request) -> Response:
        found = self._found(request, PATIENCE_S)
        if not found.models:
            return page(self.site, "runs.html", found=None)
        wanted = found.total if found.asked.sort else len(found.runs)
        return page(
            self.site,
            "runs.html",
            found=found,
            asked=found.asked,
            models=[("", "all models"), *((name, self.site.label(name)) for name in found.models)],
            kinds=[("", "all kinds"), *((name, name) for name in found.kinds)],
            states=[("", "all states"), *((one.value, one.value) for one in RunState)],
            both=[("", "measured and simulated"), *_CHOICES.items()],
            SORTS=SORTS,
            rows=self._rows(found),
            waiting=f"/runs/rows?{found.asked.query()}" if len(found.figures) < wanted else None,
        )

    def rows(self, request: Request) -> Response:
        """Return the same table rows with every figure, for the script."""
        return HTMLResponse(self._rows(self._found(request)))

    def as_json(self, request: Request) -> Response:
        found = self._found(request)
        pages = {"total": found.total, "page": found.asked.page, "pages": found.pages}
        return json_answer({**pages, "runs": documents(self.columns, found.rows)})

    def as_csv(self, request: Request) -> Response:
        return csv_records("runs", self.columns, self._found(request).rows)

    def one(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            report = self.pictures.ready(run)
            if request.query_params.get("whole") == "1":
                with suppress(UserError):
                    report = self.pictures.body(store, [run])
            figures = None if report else self.book.figures(store, [run], PATIENCE_S).get(run.id)
        where: dict[str, Any] = {"where": where_of(run), "tuning": tuning_of(run), "has_picture": run.kind not in TIMED}
        return page(self.site, "run.html", run=run, **where, figures=figures, report=report)

    def body(self, request: Request) -> Response:
        """Return the drawn part of a run's page, for the script."""
        with self._stored(request.path_params["id"]) as (store, run):
            try:
                return HTMLResponse(self.pictures.body(store, [run]))
            except UserError as error:
                return HTMLResponse(render("run_nothing.html", error=error))

    def report(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            return report_answer(self.pictures.document(store, [run], "html"))

    def picture(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            return svg_answer(self.pictures.document(store, [run], "svg"), final=run.state.is_final)

    def requests(self, request: Request) -> Response:
        with self._stored(request.path_params["id"]) as (store, run):
            rows = store.requests(run.id)
        query = request.query_params
        text, failed = query.get("level", ""), query.get("failed") == "yes"
        if text and not text.isdecimal():
            raise UserError(f"`level={text}` is not a level", hint="levels are numbers, as in level=4")
        level = int(text[:9]) if text else None
        found = [row for row in rows if level in (None, row.level) and not (failed and row.ok)]
        pages = page_count(len(found))
        number = min(_page(query), pages)

        def address(page: int) -> str:
            told = {"level": level, "failed": "yes" if failed else None, "page": page}
            chosen = urlencode({name: value for name, value in told.items() if value is not None})
            return f"/runs/{run.id}/requests?{chosen}"

        values: dict[str, Any] = {
            "asked": {"level": level, "failed": failed, "page": number, "address": address},
            "rows": found[(number - 1) * PAGE : number * PAGE],
            "levels": sorted({row.level for row in rows}),
            "any_failed": any(not row.ok for row in rows),
        }
        return page(self.site, "run_requests.html", run=run, total=len(found), pages=pages, **values)

    def run_json(self, request: Request) -> Response:
        """Return the run as the list tells it, its configuration and every level's figures."""
        with self._stored(request.query_params.get("id", "")) as (store, run):
            figures = self.book.figures(store, [run]).get(run.id)
            levels = levels_of(store, run)
        (told,) = documents(self.columns, [(run, figures)])
        facts = {"config": run.config, "host": run.host, "engine_facts": run.engine}
        return json_answer({**told, **facts, "levels": levels})

    def run_csv(self, request: Request) -> Response:
        """Return a row a level, as `skep export` writes it."""
        with self._stored(request.query_params.get("id", "")) as (store, run):
            return csv_records(f"run-{run.id}", LEVEL_COLUMNS, levels_of(store, run))

    def compare(self, request: Request) -> Response:
        """From the ticked boxes to the page that compares: its address holds the two runs."""
        ids = list(dict.fromkeys(one for one in request.query_params.getlist("run") if one))
        if not 2 <= len(ids) <= MOST_COMPARED:
            hint = f"tick two runs of the list, or up to {MOST_COMPARED}, then press Compare"
            raise UserError(f"{len(ids)} runs cannot be compared", hint=hint)
        return RedirectResponse(f"/compare?runs={quote(','.join(ids), safe=',')}", status_code=303)

    def comparison(self, request: Request) -> Response:
        """Return one picture of several runs, for a page that shows them side by side."""
        ids = runs_named(request.query_params.get("runs", ""))
        with self.site.store() as store:
            runs = found_runs(store, ids)
            assert store is not None
            drawn = self.pictures.document(store, runs, "svg")
        return svg_answer(drawn, final=all(run.state.is_final for run in runs))

    def leaderboard(self, request: Request) -> Response:
        """Was a page of its own: its address leads to the best runs."""
        return RedirectResponse(RunsQuery(model=request.query_params.get("model", ""), sort="best").address())

    def _found(self, request: Request, patience_s: float | None = None) -> RunListing:
        """Return one page of runs with their figures; of all that are asked for, where the figures decide the order."""
        asked = read_query(request.query_params)
        with self.site.store() as store:
            if store is None:
                return listed([], asked)
            runs = self.book.runs(store)
            if asked.sort:
                figures = self.book.figures(store, [run for run in runs if asked.takes(run)], patience_s)
                return listed(runs, asked, figures)
            found = listed(runs, asked)
            return replace(found, figures=self.book.figures(store, found.runs, patience_s))

    @contextmanager
    def _stored(self, name: str) -> Iterator[tuple[Store, StoredRun]]:
        """The run of that name, while the store is open. One that is not there is told as such."""
        with self.site.store() as store:
            try:
                if store is None:
                    raise UserError("there are no runs yet")
                run = store.run(name)
            except UserError as error:
                raise NotFound(error.message, hint=error.hint) from None
            yield store, run

    def _rows(self, found: RunListing) -> str:
        values = {"runs": found.runs, "figures": found.figures, "tuning_of": tuning_of, "where": where_of}
        return render("runs_rows.html", site=self.site, **values)


def routes(site: Site) -> list[BaseRoute]:
    pages = RunsPages(site)
    shown = {
        "/runs": pages.listing, "/leaderboard": pages.leaderboard, "/runs/rows": pages.rows,
        "/runs/compare": pages.compare, "/runs/compare.svg": pages.comparison, "/runs/{id}": pages.one,
        "/runs/{id}/body": pages.body, "/runs/{id}/report.html": pages.report, "/runs/{id}/picture.svg": pages.picture,
        "/runs/{id}/requests": pages.requests, "/api/runs.json": pages.as_json, "/api/runs.csv": pages.as_csv,
        "/api/run.json": pages.run_json, "/api/run.csv": pages.run_csv,
    }  # fmt: skip
    return [Route(path, answer) for path, answer in shown.items()]
