"""The compare page: targets on one axis with the ratio of their medians, or stored runs side by
side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skep.monitor.describe import in_words
from skep.monitor.history import SeriesHistory, history_of
from skep.monitor.overview import TargetPair, pair_of
from skep.monitor.records import SeriesKey
from skep.monitor.store import SeriesStore
from skep.report import theme
from skep.report.series_chart import Picture, when, zone_name
from skep.report.stored import comparison_document
from skep.store.database import Store
from skep.store.records import StoredRun
from skep.web.context import Site
from skep.web.history import (
    HistoryQuery,
    chosen_key,
    how_probed,
    known_targets,
    labelled,
    read_query,
    shown_values,
    track_of,
)
from skep.web.layout import page, render_macro, streamed
from skep.web.responses import json_answer
from skep.web.run_cache import RunCache, found_runs, report_body, runs_named


def runs_parts(site: Site, store: Store, runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield the names first: drawing the pictures for the first time takes a second."""
    yield _part("run_names", site=site, runs=runs)
    yield report_body(store, runs)


def runs_document(site: Site, store: Store, runs: Sequence[StoredRun]) -> dict[str, Any]:
    run_documents = []
    for run in runs:
        same = {
            name: getattr(run, name)
            for name in ("id", "kind", "created_at", "simulated", "config")
        }
        run_documents.append(
            {**same, "model": site.label(run.model), "levels": RunCache().levels(store, run)}
        )
    document = {"runs": run_documents}
    if len(runs) == 2:
        return {**document, **comparison_document(store, runs)}
    return {**document, "comparisons": []}


def shared_keys(series: SeriesStore, query: HistoryQuery) -> list[SeriesKey]:
    """Return the series that every picked target has, as those of the first; first what stands for
    one of them.
    """
    keys_of_targets = [chosen_key(series, name, None)[1] for name in query.targets]
    kinds = [key.kind for keys in keys_of_targets for key in keys[:1]]
    shared = [
        key
        for key in keys_of_targets[0]
        if all(key.kind in {key.kind for key in keys} for keys in keys_of_targets)
    ]
    return sorted(shared, key=lambda key: key.kind not in kinds)


def target_parts(site: Site, series: SeriesStore, query: HistoryQuery) -> Iterator[str]:
    """Yield the picture first; the figures of each pair as they are worked out."""
    histories = _histories(series, query)
    if any(series.is_simulated(name, query.since, query.until) for name in query.targets):
        yield _part("told_simulated")
    if histories:
        since = min([query.until, *(row[0] for history in histories for row in history.band[:1])])
        caption = (
            f"{when(since, now=query.until)} to {when(query.until)}, {zone_name(query.until)}"
        )
        yield _part("figure", picture=_picture(query, since, histories), caption=caption)
    for place, pair in enumerate(pairs(site, series, query)):
        yield _part(
            "pair_of",
            pair=pair.comparison,
            headline=pair.headline,
            starts=pair.cold_starts,
            place=place,
        )
    if len(query.targets) < 2:
        yield _part("alone")


def _part(macro: str, **values: Any) -> str:
    return render_macro("compare_parts.html", macro, **values)


def pairs(site: Site, series: SeriesStore, query: HistoryQuery) -> Iterator[TargetPair]:
    for other_target in query.targets[1:]:
        pair = pair_of(series, query.targets[0], other_target, query.since, query.until)
        compared = pair.comparison
        models = [
            None if model is None else site.label(model)
            for model in (compared.model_a, compared.model_b)
        ]
        compared = replace(compared, model_a=models[0], model_b=models[1])
        yield replace(
            pair, comparison=compared, headline=pair.headline and labelled(site, pair.headline)
        )


def targets_document(site: Site, series: SeriesStore, query: HistoryQuery) -> dict[str, Any]:
    histories = _histories(series, query)
    targets = [
        {"series": str(history.key), "unit": history.key.metric.unit, **shown_values(history)}
        for history in histories
    ]
    compared = [pair.document() for pair in pairs(site, series, query)]
    return {"since": query.since, "until": query.until, "targets": targets, "pairs": compared}


def _histories(series: SeriesStore, query: HistoryQuery) -> list[SeriesHistory]:
    """Return the same series of each target; none where they share none."""
    shared = shared_keys(series, query)
    chosen = next((key for key in shared if key.kind == query.series), next(iter(shared), None))
    if chosen is None:
        keys = []
    else:
        keys = [replace(chosen, target=name) for name in query.targets]
    return [history_of(series, key, query.since, query.until) for key in keys]


def _picture(query: HistoryQuery, since: float, histories: Sequence[SeriesHistory]) -> Picture:
    key = histories[0].key
    words = f"{', '.join(query.targets)} on one axis."
    tracks = [track_of(*of) for of in zip(histories, cycle(theme.SERIES), strict=False)]
    return Picture(in_words(key), words, key.metric.unit, since, query.until, tracks)


_AT_FIRST = 3  # targets shown where none were picked


def routes(site: Site) -> list[Route]:
    def show(request: Request) -> Response:
        if names := request.query_params.get("runs"):
            ids = runs_named(names)
            with site.store() as store:
                title = f"Compare {len(found_runs(store, ids))} runs"
            frame = page(site, "compare.html", title=title, runs=ids, asked=None)
            return streamed(
                site, frame, lambda store: runs_parts(site, store, found_runs(store, ids))
            )
        with site.series() as series:
            targets, query = _asked(series, read_query(request.query_params, site.clock()))
            probing = how_probed(series, query.targets)
            if query.targets:
                choices = [(key.kind, in_words(key)) for key in shared_keys(series, query)]
            else:
                choices = []
        if len(query.targets) > 1:
            title = f"Compare {' and '.join(query.targets)}"
        else:
            title = "Compare"
        frame = page(
            site,
            "compare.html",
            title=title,
            runs=(),
            asked=query,
            known=targets,
            series=choices,
            probing=probing,
        )
        if not query.targets:
            return frame
        return streamed(site, frame, lambda store: target_parts(site, SeriesStore(store), query))

    def as_json(request: Request) -> Response:
        with site.store() as store:
            if names := request.query_params.get("runs"):
                return json_answer(
                    runs_document(site, store, found_runs(store, runs_named(names)))
                )
            series = SeriesStore(store)
            _, query = _asked(series, read_query(request.query_params, site.clock()))
            return json_answer(
                targets_document(site, series, query)
                if query.targets
                else {"targets": [], "pairs": []}
            )

    return [Route("/compare", show), Route("/api/compare.json", as_json)]


def _asked(series: SeriesStore, query: HistoryQuery) -> tuple[list[str], HistoryQuery]:
    """Return all targets, and what is asked with targets: those that were named, else the first
    that have figures.
    """
    targets = known_targets(series, query)
    if query.targets:
        return targets, query
    measured = {key.target for key in series.keys()}  # noqa: SIM118
    return targets, query.of(
        *[name for name in targets if name in measured][:_AT_FIRST], series=query.series
    )
