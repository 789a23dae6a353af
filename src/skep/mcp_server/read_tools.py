"""What this server stands on, and the tools that look: capacity, status, plans, benchmarks. Nothing is changed by them.

Planner and benchmarks are loaded when they are asked for: clients wait for a server to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from pydantic import Field

from skep.bench.endpoint import api_of, models_of
from skep.bench.metrics import SweepSummary
from skep.errors import EndpointError, SkepError, UserError
from skep.mcp_server.worker import key_of
from skep.paths import Paths
from skep.store.database import Store, open_store, read_store
from skep.store.records import RunState, StoredRun
from skep.supervisor.control import NotRunning, ask, socket_of
from skep.swarm.client import URL_VARIABLE
from skep.swarm.records import SwarmRun, SwarmRunState
from skep.swarm.store import SwarmStore, as_it_stands
from skep.wire.client import WireFailure, fetch_once

Answer = dict[str, Any]  # of a tool: what is unknown is None in it, and left out on the wire


class ServerContext(msgspec.Struct, frozen=True):
    paths: Paths
    env: Mapping[str, str]
    url: str | None = None  # None: what SKEP_URL says, or the hive that runs here
    model: str | None = None  # None: the only one that is served
    key_env: str | None = None
    files: bool = False  # the client is this machine's user, who may name files
    clock: Callable[[], float] = time.time

    def named_url(self) -> str | None:
        return self.url or self.env.get(URL_VARIABLE) or None

    def endpoint_url(self) -> str:
        """Raises NotRunning where no URL was given and no hive runs."""
        return self.named_url() or str(self.hive_status()["url"])

    def key(self, url: str) -> str | None:
        return key_of(url, self.key_env, self.env, self.paths)

    def hive_status(self) -> dict[str, object]:
        """What the running supervisor tells. Raises NotRunning."""
        return ask(socket_of(self.paths.lock, self.paths.socket), {"op": "status"})

    def reading(self) -> Store:
        """The store, for reading. Raises UserError where nothing has been stored yet."""
        if not self.paths.store.exists():
            raise UserError("no run is stored here yet", hint="swarm_dispatch makes the first run")
        return open_store(self.paths.store, read_only=True)

    @contextmanager
    def runs(self) -> Iterator[SwarmStore]:
        """The runs of swarms, for reading."""
        with self.reading() as store:
            yield SwarmStore(store)

    def newest_runs(self, limit: int) -> list[SwarmRun]:
        """Of swarms; none where nothing has been stored yet."""
        with read_store(self.paths.store) as store:
            return SwarmStore(store).runs(limit)


if TYPE_CHECKING:
    from skep.deploy.plan_request import PlanAnswer

ANSWER_S = 5.0
LOOKED_AT = 30  # stored runs, newest first, for one of a model
MOST_LAYOUTS = 5
NEWEST_SWARMS = 20
_PREDICTED = ("effective_tok_s", "low", "high", "task_tok_s", "ttft_ms")
KEPT = ("name", "kind", "state", "slots", "busy", "queued", "model", "restarts", "simulated", "why")


async def ask_models(url: str, key: str | None) -> dict[str, dict[str, Any]]:
    """Return what is told of each model. Raises EndpointError where no OpenAI-compatible server answers."""
    origin, base, headers = api_of(url, key)
    try:
        answer = await fetch_once(origin, "GET", f"{base}/models", headers=headers, timeout_s=ANSWER_S)
    except WireFailure as failure:
        hint = f"is a server running at {url}? `skep up -d` on the shell starts one"
        raise EndpointError(str(failure), hint=hint) from None
    told = ((name, entry.get("skep")) for name, entry in models_of(answer, url, key_given=bool(key)).items())
    return {name: facts if isinstance(facts, dict) else {} for name, facts in told}


class ReadTools:
    def __init__(self, place: ServerContext) -> None:
        self._place = place

    async def capacity(self) -> Answer:
        """Capacity of the local endpoint: its models, how many tasks each runs at once (slots), how many run and wait
        now, and the speed by number of agents if it was benchmarked. Call it before you decide whether and how finely
        to split work."""
        place = self._place
        url = await asyncio.to_thread(place.endpoint_url)
        served = await ask_models(url, place.key(url))
        told = await asyncio.to_thread(self._status)
        gateway = (told.get("gateway") or {}) if told is not None and str(told["url"]) == url else {}
        figures = gateway.get("models", {})

        def describe(name: str, facts: dict[str, Any]) -> Answer:
            levels, run_id = self._measured(name, simulated=bool(facts.get("simulated")))
            told = {key: facts.get(key) for key in ("slots", "replicas", "engine", "simulated", "state")}
            load = {key: figures.get(name, {}).get(key) for key in ("busy", "queued")}
            return {"model": name, **told, **load, "measured": levels or None, "measured_run": run_id}

        slots = [facts["slots"] for facts in served.values() if facts.get("slots") is not None]
        models = [await asyncio.to_thread(describe, name, facts) for name, facts in served.items()]
        suggested = "dispatch all tasks in one call: skep finds out how many the endpoint takes at once"
        if slots:
            at_once = f"{max(slots)} tasks run at once"
            suggested = f"{at_once}; dispatch all tasks in one call, the others wait in the queue"
        return {"url": url, "models": models, "suggested": suggested}

    def status(self) -> Answer:
        """What runs on this machine: the replicas of the deployment with their states, slots and load, as `skep ps`
        shows them, and the swarm runs in progress. If nothing runs, it says how to start the deployment."""
        newest = [as_it_stands(self._place.paths, run) for run in self._place.newest_runs(NEWEST_SWARMS)]
        swarms = [short_progress(run) for run in newest if run.state is SwarmRunState.RUNNING]
        told = self._status()
        if told is None:
            elsewhere = self._place.named_url()
            hint = "start it with `skep up -d` on the shell"
            where = f"no deployment runs here; tasks go to {elsewhere}" if elsewhere else hint
            return {"running": False, "next": where, "rows": [], "runs": swarms}
        gateway = told.get("gateway") or {}
        return {
            "running": True,
            "next": "capacity says how many tasks run at once; swarm_dispatch sends tasks",
            "url": told["url"],
            "phase": told["phase"],
            "queued": gateway.get("queued"),
            "in_flight": gateway.get("in_flight"),
            "rows": [{key: row[key] for key in KEPT if row.get(key) not in (None, "")} for row in told["rows"]],
            "runs": swarms,
        }

    def plan_model(
        self,
        model: Annotated[
            str, Field(description="Model name, such as qwen3-30b-a3b; over stdio also the path of a GGUF file.")
        ],
        gpu: Annotated[
            str | None, Field(description='GPUs, such as "2x rtx-3090" (default: the GPUs of this machine).')
        ] = None,
        agents: Annotated[int, Field(ge=1, le=4096, description="Number of tasks at once.")] = 4,
        input_tokens: Annotated[int | None, Field(ge=1, description="Tokens of a prompt (default: 16384).")] = None,
        output_tokens: Annotated[int | None, Field(ge=1, description="Tokens of an answer (default: 1024).")] = None,
        quant: Annotated[str | None, Field(description="Pin the weight format: awq, fp8, bf16, q4_k_m.")] = None,
        context: Annotated[int | None, Field(ge=64, description="Pin the maximum sequence length in tokens.")] = None,
    ) -> Answer:
        """Plan a model on given GPUs: whether it fits, and the best layouts with the tok/s that the planner predicts
        for this number of agents; the best one with the command that starts it. Predictions, not measurements."""
        from skep.deploy.plan_request import PlanFlags, answer_plan, nothing_fits

        lengths: dict[str, Any] = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        flags = PlanFlags(model, (gpu,) if gpu else (), agents=agents, quant=quant, context=context, **lengths)
        found = answer_plan(flags, self._place.paths.store, files=self._place.files)
        if (error := nothing_fits(found)) is not None:
            raise error
        return {
            "model": found.model.geometry.id,
            "agents": agents,
            "layouts": [_layout(found, place) for place in range(min(MOST_LAYOUTS, len(found.ranked)))],
            "more": max(0, len(found.ranked) - MOST_LAYOUTS),
            "notes": found.notes,
        }

    def benchmarks(self, limit: Annotated[int, Field(ge=1, le=50)] = 10) -> Answer:
        """List the newest stored benchmark runs of this machine, without those of tunings: id, model, best measured
        speed. `benchmark` returns one run in full."""
        with read_store(self._place.paths.store) as store:
            runs = [_benchmark(store, run, best=True) for run in islice(_own(store), limit)]
        following = "benchmark(run) returns all levels" if runs else "`skep bench sweep` on the shell makes a run"
        return {"runs": runs, "next": following}

    def benchmark(
        self, run: Annotated[str, Field(description="Id of a benchmark run, its beginning, or `last`.")]
    ) -> Answer:
        """Return one benchmark run: effective tok/s, time to first token and failures by number of agents, knee, cliff
        and speedup over one agent."""
        with self._place.reading() as store:
            return _benchmark(store, store.run(run), best=False)

    def _status(self) -> dict[str, Any] | None:
        try:
            return self._place.hive_status()
        except NotRunning:
            return None

    def _measured(self, model: str, *, simulated: bool) -> tuple[list[Answer], str | None]:
        """Of the newest finished run of that model whose levels are numbers of agents, simulated as it is itself."""
        from skep.bench.stored_run import JUDGED, TIMED, load_run

        with read_store(self._place.paths.store) as store:
            for run in islice(_own(store), LOOKED_AT):
                fits = run.model == model and run.state is RunState.DONE and run.kind not in (*TIMED, *JUDGED)
                if fits and run.simulated == simulated:
                    with contextlib.suppress(SkepError):  # nothing was measured
                        if levels := _levels(load_run(store, run.id)[1]):
                            return levels, run.id
        return [], None


def _own(store: Store) -> Iterator[StoredRun]:
    """Newest first, without what tunings tried: those are many, and of configurations that nobody serves."""
    from skep.bench.stored_run import OF_A_TUNING

    return (run for run in store.runs() if run.kind not in OF_A_TUNING)


def _levels(summary: SweepSummary) -> list[Answer]:
    """`tok_s`: of all agents together."""
    return [
        {
            "agents": level.concurrency,
            "tok_s": round(level.effective_tok_s, 1),
            "ttft_ms": round(level.ttft_ms.p50, 1) if level.ttft_ms is not None else None,
            "failed": level.failed,
        }
        for level in summary.levels
        if level.effective_tok_s is not None
    ]


def _layout(found: PlanAnswer, place: int) -> Answer:
    """The best one has its command and reasons; speeds are predictions, of all agents together."""
    from skep.deploy.commands import plan_document

    choice, plan = found.ranked[place]
    told = plan_document(found, choice, plan)
    at: dict[str, Any] = next((one for one in told["predicted"] if one["concurrency"] == found.goal.agents), {})
    return {
        **{key: told[key] for key in ("rig", "engine", "topology", "quant", "kv_dtype", "slots", "context")},
        "launch": told["launch"] if place == 0 else [],
        "why": told["why"] if place == 0 else [],
        **{key.removeprefix("effective_"): round(at[key], 1) for key in _PREDICTED if key in at},
    }


def _benchmark(store: Store, run: StoredRun, *, best: bool) -> Answer:
    """`best`: with its fastest level alone."""
    from skep.bench.stored_run import JUDGED, TIMED, TUNE_QUALITY, load_run

    engine = run.engine.get("engine")
    answer: Answer = {
        "run": run.id,
        "state": run.state.value,
        "when": datetime.fromtimestamp(run.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **{key: getattr(run, key) for key in ("kind", "model", "requests", "simulated", "error")},
        "failed": sum(not row.ok for row in store.requests(run.id)),
        "engine": engine if isinstance(engine, str) else None,
        "levels": [],
    }
    if run.kind in JUDGED:
        shows = f"`skep runs report {run.id} -o report.html` shows the verdicts"
        return {**answer, "conclusion": f"this run judged answers: {shows}"}
    if run.kind == TUNE_QUALITY:
        return {**answer, "conclusion": "this run judged answers for a tuning; it does not measure speed"}
    try:
        _, summary, _ = load_run(store, run.id)
    except UserError:
        return answer  # nothing was measured
    levels = _levels(summary)
    answer["levels"] = [max(levels, key=lambda level: level["tok_s"])] if best and levels else levels
    answer["speedup"] = round(summary.speedup, 2) if summary.speedup is not None else None
    if summary.turning is not None:
        answer |= {"knee": summary.turning.knee, "cliff": summary.turning.cliff}
    if run.kind in TIMED:
        answer["conclusion"] = f"the levels of a run of kind {run.kind} are not numbers of agents"
    return answer


def short_progress(run: SwarmRun) -> Answer:
    """What the run's row tells, without what to do next: it is one of many."""
    output = run.config.get("output")
    return {
        "run": run.id,
        "state": run.state.value,  # or "starting"
        **{name: getattr(run.counts, name) for name in ("total", "done", "failed", "left")},
        "name": run.name or None,
        "simulated": run.simulated,
        "error": run.error,
        "output": output if isinstance(output, str) else None,
    }
