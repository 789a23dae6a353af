"""The pages of tunings: all of them, and one with its ladder and its pictures. A running one goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from skep.errors import UserError
from skep.report.tuning import ladder_picture, tuning_banners, tuning_main, tuning_page
from skep.tuner import summary
from skep.tuner.documents import curve_of, tuning_json
from skep.tuner.records import CurvePoint, CurveResult, TuneStage, Tuning
from skep.tuner.store import SavedTuning, TuningState, TuningStore
from skep.web.context import Site
from skep.web.layout import page, render
from skep.web.pictures import svg_answer
from skep.web.responses import NotFound, csv_answer, json_answer

MOST = 200  # that the page lists; JSON and CSV have all
COLUMNS = (
    "id", "created_at", "state", "model", "machine", "simulated", "engine", "goal", "shape", "metric", "concurrency",
    "input_tokens", "output_tokens", "slo", "baseline", "best", "gain", "gain_low", "gain_high", "step", "stages",
    "accepted", "measured_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TuningEntry:
    """A stored tuning with its stages."""

    kept: SavedTuning
    stages: tuple[TuneStage, ...]

    @property
    def group(self) -> tuple[object, ...]:
        """Equal for those that may stand beside each other."""
        tuning = self.kept.tuning
        return tuning.simulated, tuning.model, tuning.rig, tuning.aim.shape


def read_tunings(tunings: TuningStore, model: str = "", limit: int | None = None) -> list[TuningEntry]:
    """Newest first; of one model, where one is named."""
    found = [one for one in tunings.tunings() if not model or one.tuning.model == model]
    return [TuningEntry(one, tuple(tunings.stages(one.id))) for one in found[:limit]]


def grouped(found: Sequence[TuningEntry]) -> list[list[TuningEntry]]:
    """Measured ones before simulated ones, then by model, machine and shape."""
    groups: dict[tuple[object, ...], list[TuningEntry]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one)
    return [groups[key] for key in sorted(groups, key=lambda key: tuple(map(str, key)))]


def tuning_row(one: TuningEntry, site: Site) -> dict[str, Any]:
    """Return one tuning of `/api/tuning.json`: the names of COLUMNS."""
    tuning, stages = one.kept.tuning, one.stages
    base, best = summary.baseline_of(stages), summary.best_of(stages)
    gain = summary.total_gain(stages)
    won = summary.accepted(stages)
    return {
        "id": tuning.id, "created_at": tuning.created_at, "state": one.kept.state.value,
        "model": site.label(tuning.model), "machine": tuning.rig, "simulated": tuning.simulated,
        "engine": tuning.engine, "goal": str(tuning.aim), "shape": tuning.aim.shape, "metric": tuning.aim.metric,
        "concurrency": tuning.aim.concurrency, "input_tokens": tuning.aim.input_tokens,
        "output_tokens": tuning.aim.output_tokens, "slo": tuning.aim.slo,
        "baseline": base.figure.estimate if base and base.figure else None,
        "best": best.figure.estimate if best and best.figure else None,
        "gain": gain.estimate if gain else None, "gain_low": gain.low if gain else None,
        "gain_high": gain.high if gain else None, "step": won[-1].title if won else None, "stages": len(stages),
        "accepted": len(won), "measured_s": one.kept.measured_s,
    }  # fmt: skip


STAGE_COLUMNS = (
    "number", "change", "decision", "why", "figure", "figure_low", "figure_high", "ratio", "ratio_low", "ratio_high",
    "predicted_ratio", "ttft_ms", "tpot_ms", "starts", "readings", "seconds", "failure", "log_line", "remedy",
)  # fmt: skip
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class TuningDetails:
    """All that is stored of one, as it may be shown here."""

    kept: SavedTuning
    stages: list[TuneStage]
    curve: CurveResult | None

    @property
    def tuning(self) -> Tuning:
        return self.kept.tuning

    @property
    def running(self) -> bool:
        return self.kept.state is TuningState.RUNNING

    def body(self) -> str:
        """Return everything below the title."""
        return render(
            "tuning_body.html",
            kept=self.kept,
            running=self.running,
            banners=tuning_banners(self.tuning, self.stages, state=self._state),
            headline=summary.headline(self.tuning, self.stages),
            main=tuning_main(self.tuning, self.stages, self._points()),
        )

    def page(self) -> str:
        return tuning_page(self.tuning, self.stages, self._points(), state=self._state)

    @property
    def _state(self) -> str | None:
        return None if self.kept.state is TuningState.ENDED else self.kept.state.value

    def _points(self) -> tuple[CurvePoint, ...]:
        return self.curve.points if self.curve is not None else ()


class TuningPages:
    def __init__(self, site: Site) -> None:
        self.site = site

    def __repr__(self) -> str:
        return f"<TuningPages {self.site.paths.store}>"

    def listing(self, request: Request) -> Response:
        found = self._found(request, MOST)
        query, full = str(request.url.query), len(found) >= MOST
        return page(
            self.site, "tunings.html", groups=grouped(found), query=query, full=full, most=MOST, summary=summary
        )

    def as_json(self, request: Request) -> Response:
        return json_answer({"tunings": [tuning_row(one, self.site) for one in self._found(request)]})

    def as_csv(self, request: Request) -> Response:
        rows = [tuning_row(one, self.site) for one in self._found(request)]
        return csv_answer("tuning", COLUMNS, [[row[name] for name in COLUMNS] for row in rows])

    def one(self, request: Request) -> Response:
        with self._stored(request) as whole:
            return page(self.site, "tuning.html", tuning=whole.tuning, running=whole.running, body=whole.body())

    def body(self, request: Request) -> Response:
        """Return what changes while it runs, for the script."""
        with self._stored(request) as whole:
            return HTMLResponse(whole.body(), headers={"cache-control": "no-store"})

    def report(self, request: Request) -> Response:
        """Return one file, that allows itself no script and no other file."""
        with self._stored(request) as whole:
            return HTMLResponse(whole.page(), headers={"content-security-policy": _POLICY})

    def picture(self, request: Request) -> Response:
        with self._stored(request) as whole:
            final = whole.kept.state is TuningState.ENDED
            return svg_answer(ladder_picture(whole.tuning, whole.stages), final=final)

    def one_json(self, request: Request) -> Response:
        with self._stored(request) as whole:
            kept = whole.kept
            told = tuning_json(whole.tuning, whole.stages, whole.curve, state=kept.state, measured_s=kept.measured_s)
        return json_answer(told)

    def one_csv(self, request: Request) -> Response:
        """Return a row a stage."""
        with self._stored(request) as whole:
            return csv_answer(f"tuning-{whole.tuning.id}", STAGE_COLUMNS, [_stage_cells(one) for one in whole.stages])

    def _found(self, request: Request, limit: int | None = None) -> list[TuningEntry]:
        with self.site.store() as store:
            if store is None:
                return []
            return read_tunings(TuningStore(store), request.query_params.get("model", ""), limit)

    @contextmanager
    def _stored(self, request: Request) -> Iterator[TuningDetails]:
        """The tuning that the address names. One that is not there is told as such."""
        with self.site.store() as store:
            try:
                if store is None:
                    raise UserError("there are no tunings yet")
                tunings = TuningStore(store)
                kept = tunings.find(request.path_params["id"])
            except UserError as error:
                raise NotFound(error.message, hint=error.hint) from None
            shown = replace(kept.tuning, model=self.site.label(kept.tuning.model))
            curve = curve_of(tunings.answers(kept.id, "curve"))
            yield TuningDetails(replace(kept, tuning=shown), tunings.stages(kept.id), curve)


def _stage_cells(stage: TuneStage) -> list[object]:
    bounds = [
        value
        for one in (stage.figure, stage.ratio)
        for value in ((one.estimate, one.low, one.high) if one is not None else (None, None, None))
    ]
    failure = stage.failure
    dead = (failure.cause, failure.evidence, failure.remedy) if failure is not None else (None, None, None)
    return [
        stage.number, stage.title, stage.decision.value, stage.why, *bounds, stage.predicted, stage.ttft_ms,
        stage.tpot_ms, stage.starts, stage.readings, stage.seconds, *dead,
    ]  # fmt: skip


def routes(site: Site) -> list[BaseRoute]:
    pages = TuningPages(site)
    return [
        Route("/tuning", pages.listing),
        Route("/tuning/{id}", pages.one),
        Route("/tuning/{id}/body", pages.body),
        Route("/tuning/{id}/report.html", pages.report),
        Route("/tuning/{id}/picture.svg", pages.picture),
        Route("/api/tuning.json", pages.as_json),
        Route("/api/tuning.csv", pages.as_csv),
        Route("/api/tuning/{id}.json", pages.one_json),
        Route("/api/tuning/{id}.csv", pages.one_csv),
    ]
