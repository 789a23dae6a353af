"""Tools that look: capacity, status, plans, benchmarks. Nothing is changed by them.

Planner and benchmarks are loaded when they are asked for: clients wait for a server to start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from skep.bench.endpoint import models_of
from skep.bench.records import SweepSummary
from skep.errors import EndpointError, SkepError, UserError
from skep.mcp_server.context import ServerContext
from skep.mcp_server.format import short_progress
from skep.mcp_server.schemas import (
    Benchmark,
    BenchmarkLevel,
    Benchmarks,
    Capacity,
    HiveStatus,
    ModelCapacity,
    PlanList,
    PlannedLayout,
)
from skep.store.database import Store
from skep.store.records import RunState, StoredRun
from skep.supervisor.control import NotRunning
from skep.swarm.journal import as_it_stands
from skep.swarm.records import SwarmRunState as SwarmState
from skep.wire.client import WireFailure
from skep.wire.fetch import fetch_once
from skep.wire.heads import parse_url

if TYPE_CHECKING:
    from skep.deploy.plan_request import PlanAnswer


ANSWER_S = 5.0


async def ask_models(url: str, key: str | None) -> dict[str, dict[str, Any]]:
    """Return what is told of each model. Raises EndpointError where no OpenAI-compatible server answers."""
    origin, path = parse_url(url)
    target = f"{path if path.endswith('/v1') else f'{path}/v1'}/models"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = await fetch_once(origin, "GET", target, headers=headers, timeout_s=ANSWER_S)
    except WireFailure as failure:
        hint = f"is something serving at {url}? `skep up -d` on the shell starts one"
        raise EndpointError(str(failure), hint=hint) from None
    told = ((name, entry.get("skep")) for name, entry in models_of(answer, url, key_given=bool(key)).items())
    return {name: facts if isinstance(facts, dict) else {} for name, facts in told}


LOOKED_AT = 30  # stored runs, newest first, for one of a model
MOST_LAYOUTS = 5
NEWEST_SWARMS = 20
_PREDICTED = ("effective_tok_s", "low", "high", "task_tok_s", "ttft_ms")
KEPT = ("name", "kind", "state", "slots", "busy", "queued", "model", "restarts", "simulated", "why")


class ReadTools:
    def __init__(self, place: ServerContext) -> None:
        self._place = place

    async def capacity(self) -> Capacity:
        """What the local endpoint can take: its models, how many tasks each runs at once (slots), how many run and
        wait now, and the measured speed by number of agents where it was benchmarked. Ask before deciding whether and
        how finely to split work."""
        place = self._place
        url = await asyncio.to_thread(place.endpoint_url)
        served = await ask_models(url, place.key(url))
        told = await asyncio.to_thread(self._status)
        figures = _figures(told) if told is not None and str(told["url"]) == url else {}

        def described() -> tuple[ModelCapacity, ...]:
            return tuple(self._described(name, facts, figures.get(name, {})) for name, facts in served.items())

        slots = [facts["slots"] for facts in served.values() if facts.get("slots") is not None]
        return Capacity(url=url, models=await asyncio.to_thread(described), suggested=_suggested(slots))

    def status(self) -> HiveStatus:
        """What runs on this machine: the hive's replicas with their states, slots and load, as `skep ps` shows them,
        and the swarm runs under way. Says how to start it where nothing runs."""
        swarms = self._swarms()
        told = self._status()
        if told is None:
            hint = "start it with `skep up -d` on the shell"
            elsewhere = self._place.named_url()
            where = f"no hive runs here; tasks go to {elsewhere}" if elsewhere else hint
            return HiveStatus(running=False, next=where, runs=swarms)
        gateway = told.get("gateway") or {}
        rows = tuple({key: row[key] for key in KEPT if row.get(key) not in (None, "")} for row in told["rows"])
        return HiveStatus(
            running=True,
            next="capacity says how many tasks it takes at once; swarm_dispatch sends them",
            url=told["url"],
            phase=told["phase"],
            queued=gateway.get("queued"),
            in_flight=gateway.get("in_flight"),
            rows=rows,
            runs=swarms,
        )

    def plan_model(
        self,
        model: Annotated[
            str, Field(description="Name such as qwen3-30b-a3b; over stdio also the path of a GGUF file.")
        ],
        gpu: Annotated[
            str | None, Field(description='Cards such as "2x rtx-3090"; left out: the cards of this machine.')
        ] = None,
        agents: Annotated[int, Field(ge=1, le=4096, description="How many tasks at once.")] = 4,
        input_tokens: Annotated[int, Field(ge=1, description="Of a task's prompt.")] = 1024,
        output_tokens: Annotated[int, Field(ge=1, description="Of a task's answer.")] = 512,
        quant: Annotated[str | None, Field(description="Pin the weights' format: awq, fp8, bf16, q4_k_m.")] = None,
        context: Annotated[int | None, Field(ge=64, description="Pin the tokens of the longest sequence.")] = None,
    ) -> PlanList:
        """Whether a model fits on given GPUs, in which layout, and how fast it would be with so many agents: the
        planner's best layouts with predicted tok/s and the command that starts each. Predictions, not measurements."""
        from skep.deploy.plan_request import PlanFlags, answer_plan, nothing_fits

        flags = PlanFlags(
            model,
            (gpu,) if gpu else (),
            agents=agents,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            quant=quant,
            context=context,
        )
        found = answer_plan(flags, self._place.paths.store, files=self._place.files)
        if (error := nothing_fits(found)) is not None:
            raise error
        ranked = found.ranked
        return PlanList(
            model=found.model.geometry.id,
            agents=agents,
            layouts=tuple(_layout(found, place) for place in range(min(MOST_LAYOUTS, len(ranked)))),
            more=max(0, len(ranked) - MOST_LAYOUTS),
            notes=found.notes,
        )

    def benchmarks(self, limit: Annotated[int, Field(ge=1, le=50)] = 10) -> Benchmarks:
        """The newest stored benchmark runs of this machine, those of a tuning left out: id, model, best measured speed.
        `benchmark` has one in full."""
        runs: tuple[Benchmark, ...] = ()
        if self._place.paths.store.exists():
            with self._place.reading() as store:
                runs = tuple(_benchmark(store, run, best=True) for run in islice(_own(store), limit))
        return Benchmarks(
            runs=runs,
            next="benchmark(run) has all levels of one" if runs else "`skep bench sweep` on the shell makes one",
        )

    def benchmark(
        self, run: Annotated[str, Field(description="Id of a benchmark run, its beginning, or `last`.")]
    ) -> Benchmark:
        """One benchmark run: effective tok/s, time to first token and failures by number of agents, knee, cliff and
        speedup over one agent."""
        with self._place.reading() as store:
            return _benchmark(store, store.run(run), best=False)

    def _status(self) -> dict[str, Any] | None:
        try:
            return self._place.hive_status()
        except NotRunning:
            return None

    def _swarms(self) -> tuple[Any, ...]:
        if not self._place.paths.store.exists():
            return ()
        with self._place.runs() as runs:
            found = runs.runs(NEWEST_SWARMS)
        standing = (as_it_stands(self._place.paths, run) for run in found)
        return tuple(short_progress(run) for run in standing if run.state is SwarmState.RUNNING)

    def _described(self, name: str, facts: dict[str, Any], figures: dict[str, Any]) -> ModelCapacity:
        levels, run_id = self._measured(name, simulated=bool(facts.get("simulated")))
        told = {key: facts.get(key) for key in ("slots", "replicas", "engine", "simulated", "state")}
        load = {key: figures.get(key) for key in ("busy", "queued")}
        return ModelCapacity(model=name, **told, **load, measured=levels or None, measured_run=run_id)

    def _measured(self, model: str, *, simulated: bool) -> tuple[tuple[BenchmarkLevel, ...], str | None]:
        """Of the newest finished run of that model whose levels are numbers of agents, simulated as it is itself."""
        if not self._place.paths.store.exists():
            return (), None
        from skep.bench.stored_run import JUDGED, TIMED, load_run

        with self._place.reading() as store:
            for run in islice(_own(store), LOOKED_AT):
                fits = run.model == model and run.state is RunState.DONE and run.kind not in (*TIMED, *JUDGED)
                if fits and run.simulated == simulated:
                    with contextlib.suppress(SkepError):  # nothing was measured
                        if levels := _levels(load_run(store, run.id)[1]):
                            return levels, run.id
        return (), None


def _figures(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = (status.get("gateway") or {}).get("models", {})
    return found


def _suggested(slots: list[int]) -> str:
    if not slots:
        return "dispatch as many tasks as there are: the pace is found by trying"
    return f"{max(slots)} tasks run at once; dispatch as many as there are in one call, the rest wait their turn"


def _own(store: Store) -> Iterator[StoredRun]:
    """Newest first, without what tunings tried: those are many, and of configurations that nobody serves."""
    from skep.bench.stored_run import OF_A_TUNING

    return (run for run in store.runs() if run.kind not in OF_A_TUNING)


def _levels(summary: SweepSummary) -> tuple[BenchmarkLevel, ...]:
    return tuple(
        BenchmarkLevel(
            agents=level.concurrency,
            tok_s=round(level.effective_tok_s, 1),
            ttft_ms=round(level.ttft_ms.p50, 1) if level.ttft_ms is not None else None,
            failed=level.failed,
        )
        for level in summary.levels
        if level.effective_tok_s is not None
    )


def _layout(found: PlanAnswer, place: int) -> PlannedLayout:
    from skep.deploy.plan_request import plan_document

    choice, plan = found.ranked[place]
    told = plan_document(found, choice, plan)
    at: dict[str, Any] = next((one for one in told["predicted"] if one["concurrency"] == found.goal.agents), {})
    return PlannedLayout(
        **{key: told[key] for key in ("rig", "engine", "topology", "quant", "kv_dtype", "slots", "context")},
        launch=tuple(told["launch"]) if place == 0 else (),
        why=tuple(told["why"]) if place == 0 else (),
        **{key.removeprefix("effective_"): round(at[key], 1) for key in _PREDICTED if key in at},
    )


def _benchmark(store: Store, run: StoredRun, *, best: bool) -> Benchmark:
    """`best`: with its fastest level alone."""
    from skep.bench.stored_run import JUDGED, TIMED, TUNE_QUALITY, load_run

    figures: dict[str, Any] = {}
    failed = sum(not row.ok for row in store.requests(run.id))
    if run.kind in JUDGED:
        figures["conclusion"] = f"answers were judged: `skep runs report {run.id} -o report.html` shows the verdicts"
    elif run.kind == TUNE_QUALITY:
        figures["conclusion"] = "answers were judged for a tuning: no measure of speed"
    else:
        try:
            _, summary, _ = load_run(store, run.id)
        except UserError:
            pass  # nothing was measured
        else:
            levels = _levels(summary)
            if best and levels:
                levels = (max(levels, key=lambda level: level.tok_s),)
            figures["levels"] = levels
            figures["speedup"] = round(summary.speedup, 2) if summary.speedup is not None else None
            if summary.turning is not None:
                figures["knee"], figures["cliff"] = summary.turning.knee, summary.turning.cliff
            if run.kind in TIMED:
                figures["conclusion"] = f"levels are no numbers of agents: it is a run of the kind {run.kind}"
    engine = run.engine.get("engine")
    told = {key: getattr(run, key) for key in ("kind", "model", "requests", "simulated", "error")}
    return Benchmark(
        run=run.id,
        state=run.state.value,
        when=datetime.fromtimestamp(run.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        failed=failed,
        engine=engine if isinstance(engine, str) else None,
        **told,
        **figures,
    )
