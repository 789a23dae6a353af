"""Stored runs side by side: the pictures of `skep report A B`, and for two runs whether B is better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from skep.bench.compare import Side, compare
from skep.bench.loaded import JUDGED, TIMED, check_drawn_together, load_run
from skep.errors import UserError
from skep.quality.drawing import bare_rows, without_texts
from skep.records import Comparison, Run
from skep.report.comparison import comparison_table
from skep.report.figures import moment
from skep.report.markup import Markup, section, tag, text
from skep.store.database import Store
from skep.web.pictures import Pictures, body_of
from skep.web.site import Site

MOST_RUNS = 8
CSV_COLUMNS = ("concurrency", "metric", "a", "b", "ratio", "ratio_low", "ratio_high", "judgement", "why")


def runs_named(names: str) -> list[str]:
    """Of `runs=A,B`. Raises UserError where there are too few or too many to stand beside each other."""
    ids = list(dict.fromkeys(one.strip() for one in names.split(",") if one.strip()))
    if not 2 <= len(ids) <= MOST_RUNS:
        raise UserError(f"`runs={names}` names {len(ids)}", hint=f"two to {MOST_RUNS}, as in runs=A,B")
    return ids


def found_runs(store: Store | None, ids: Sequence[str]) -> list[Run]:
    if store is None:
        raise UserError(f"there is no run `{ids[0]}`", hint="nothing was measured yet; `skep bench` does")
    runs = [store.run(name) for name in ids]
    check_drawn_together(runs)
    return runs


def comparisons_of(store: Store, runs: Sequence[Run]) -> list[Comparison]:
    """Of the second against the first; empty where their levels are not of one kind, or there are more than two."""
    if len(runs) != 2 or any(run.kind in JUDGED for run in runs):
        return []
    a, b = runs
    if a.kind != b.kind and {a.kind, b.kind} & {*TIMED}:
        return []
    if a.kind == "open" and a.config.get("rates") != b.config.get("rates"):
        return []
    sides = [Side(summary, rows) for _, summary, rows in (load_run(store, run.id) for run in runs)]
    return compare(*sides)


def runs_parts(site: Site, store: Store, runs: Sequence[Run]) -> Iterator[Markup]:
    """The figures first: drawing the pictures for the first time takes a second."""
    yield _names(site, runs)
    found = comparisons_of(store, runs)
    if found:
        yield section("judgement", "B against A", comparison_table(found))
    yield body_of(Pictures(site).comparison(store, runs))


def runs_document(site: Site, store: Store, runs: Sequence[Run]) -> dict[str, Any]:
    shown = [without_texts(run) if site.public else run for run in runs]
    levels = {
        run.id: load_run(store, run.id, as_read=bare_rows if site.public else None)[1].levels
        for run in runs
        if run.kind not in JUDGED
    }
    return {
        "runs": [
            {
                "id": run.id,
                "kind": run.kind,
                "model": site.label(run.model),
                "created_at": run.created_at,
                "simulated": run.simulated,
                "config": run.config,
                "levels": levels.get(run.id, ()),
            }
            for run in shown
        ],
        "comparisons": [{**asdict(one), "judgement": one.judgement.value} for one in comparisons_of(store, runs)],
    }


def runs_rows(store: Store, runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for one in comparisons_of(store, runs):
        ratio = one.ratio
        known = (None, None, None) if ratio is None else (ratio.estimate, ratio.low, ratio.high)
        rows.append((one.concurrency, one.metric, one.a, one.b, *known, one.judgement.value, one.why))
    return rows


def _names(site: Site, runs: Sequence[Run]) -> Markup:
    links = [
        tag(
            "li",
            tag("b", text(f"{chr(ord('A') + place)} ")),
            tag("a", text(f"{site.label(run.model)}, {moment(run.created_at)}"), href=f"/runs/{run.id}"),
        )
        for place, run in enumerate(runs)
    ]
    return tag("ul", *links, class_="told")
