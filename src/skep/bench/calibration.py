"""Measures an endpoint for a calibration, finds out what answers there, and fits the planner's
constants to it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, engine_in
from skep.bench.metrics import (
    SweepSummary,
    by_repeat,
    repeat_of,
    tpot_ms,
    tpot_values,
    ttft_values,
)
from skep.bench.session import OnProgress
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import Sender, TaskMaker, Workload
from skep.catalog.gpus import HostFacts
from skep.catalog.models import find_geometry, find_pullable
from skep.config.rigs import ResolvedRig, cpu_rig, parse_rig, rig_of_host
from skep.deploy.plan_request import ModelFound, PlanFlags, pins_of, read_model
from skep.deploy.stored_calibration import calibration_for, host_key
from skep.errors import EndpointError, UserError
from skep.host.facts import memory_bandwidth_gbs
from skep.paths import LOOPBACK, user_paths
from skep.planner.calibration import CalibrationData, MeasuredLevel, fit, speed_model_maker
from skep.planner.memory import has_pool
from skep.planner.setup import KV_TYPES, Layout, Rig, Setup, known_kv, known_quant
from skep.planner.step import published_constants
from skep.stats.percentiles import mean_t_interval
from skep.store.database import Store
from skep.store.records import CalibrationRecord, Request
from skep.store.rows import new_suffix
from skep.units import Interval
from skep.weights.pull import installed
from skep.wire.client import Pool

KIND = "calibrate"
ANSWER_TOKENS = (
    192  # long against their prompts: those of others hardly show in the time per token
)
LEAST_ANSWER_TOKENS = 32  # of a slow engine, where the budget does not hold longer ones
FEW_TASKS = 4  # in a run of a slow engine; a level has as many as agents at least
PACE_TOKENS = 16
LONG_TOKENS = 1024
LONG_ANSWER_TOKENS = 4
LONG_TASKS = 4
LEAST_TOKENS = 256
PROMPTS_SHARE = 0.25  # of the budget
QUEUED_SHARE = 0.05  # of a request's time, at most
CACHED_SHARE = 0.05  # of prompts whose time counts, at most

MakerFor = Callable[[Workload, Endpoint], Awaitable[TaskMaker]]
ENGINES = ("vllm", "sglang", "llamacpp", "ik_llamacpp", "ollama")


class CalibrationPlan(msgspec.Struct, frozen=True):
    crowd: int | None  # the higher level that is fitted to
    budget_s: float = 300.0
    prompt_tokens: int = LONG_TOKENS
    seed: int = 0
    precision: float = 0.02
    most_runs: int = 6
    answer_tokens: int = ANSWER_TOKENS
    tasks: int | None = None  # of a run; None: as a sweep has them
    timeout_s: float = 900.0

    @property
    def levels(self) -> tuple[int, ...]:
        return (1, self.crowd) if self.crowd else (1,)

    def paced(self, tpot_s: float) -> CalibrationPlan:
        """Answers as long as the budget holds for about five runs of each level; fewer tasks where
        those are short.
        """
        tokens = (1 - PROMPTS_SHARE) * self.budget_s / (5 * tpot_s)
        whole = tokens / (6 + 6 * (len(self.levels) - 1))
        few = tokens / (FEW_TASKS + 4 * (len(self.levels) - 1))
        if whole >= min(self.answer_tokens, ANSWER_TOKENS / 2):
            return replace(self, answer_tokens=min(self.answer_tokens, int(whole)))
        longest = min(self.answer_tokens, max(LEAST_ANSWER_TOKENS, int(few)))
        return replace(self, answer_tokens=longest, tasks=FEW_TASKS)

    def decoding(self) -> SweepPlan:
        load = Workload(max_tokens=self.answer_tokens, fixed_output=True, seed=self.seed)
        return self._sweep(self.levels, load, 1 - PROMPTS_SHARE, tasks=self.tasks)

    def prompts(self, token_s: float) -> SweepPlan:
        """`token_s`: of a token of a prompt, by the short ones.

        Where the budget is too short, so are the prompts.
        """
        # Five runs and the warm-up.
        held = PROMPTS_SHARE * self.budget_s / (7 * self.prompt_tokens * token_s)
        tokens = min(self.prompt_tokens, max(LEAST_TOKENS, int(self.prompt_tokens * held)))
        load = Workload(
            prompt_tokens=tokens, max_tokens=LONG_ANSWER_TOKENS, fixed_output=True, seed=self.seed
        )
        tasks = max(1, min(LONG_TASKS, int(held)))
        return replace(self._sweep((1,), load, PROMPTS_SHARE, tasks=tasks), quick_warm_up=True)

    def _sweep(
        self, levels: tuple[int, ...], load: Workload, share: float, tasks: int | None
    ) -> SweepPlan:
        return SweepPlan(
            concurrency=levels,
            tasks=tasks,
            precision=self.precision,
            most_runs=self.most_runs,
            budget_s=share * self.budget_s,
            workload=load,
            timeout_s=self.timeout_s,
            keep_text=False,
            kind=KIND,
        )


class CalibrationRuns(msgspec.Struct, frozen=True):
    measured: CalibrationData
    run_ids: tuple[str, ...]
    drift: Interval | None


async def measure(
    plan: CalibrationPlan,
    endpoint: Endpoint,
    store: Store,
    host: HostFacts,
    maker_for: MakerFor,
    on_progress: OnProgress = lambda _: None,
) -> CalibrationRuns:
    plan = plan.paced(await pace(endpoint, plan))

    async def take(sweep: SweepPlan) -> tuple[SweepSummary, dict[int, MeasuredLevel]]:
        maker = await maker_for(sweep.workload, endpoint)
        summary = await run_sweep(sweep, endpoint, store, host, on_progress, maker=maker)
        rows = [row for row in store.requests(summary.run_id) if row.level]
        check(sweep, summary, rows)
        return summary, {level: _seen(sweep, summary, level, rows) for level in sweep.concurrency}

    decoded, levels = await take(plan.decoding())
    short = levels[1]
    try:
        computed, prompts = await take(
            plan.prompts(short.ttft_s.estimate / max(1.0, short.input_tokens))
        )
    except EndpointError as error:
        error.hint = (
            f"these were the long prompts: try fewer --prompt-tokens than {plan.prompt_tokens}"
        )
        raise
    crowd = levels[plan.crowd] if plan.crowd else None
    measured = CalibrationData(levels[1], crowd, prompts[1])
    return CalibrationRuns(measured, (decoded.run_id, computed.run_id), decoded.drift)


async def pace(endpoint: Endpoint, plan: CalibrationPlan) -> float:
    """Return seconds a token, from one short answer after another that warms up: enough to choose
    lengths by.
    """
    load = Workload(max_tokens=PACE_TOKENS, fixed_output=True, seed=plan.seed)
    pool = Pool(endpoint.origin)
    try:
        sender = Sender(endpoint, pool, time.monotonic(), timeout_s=plan.timeout_s)
        for task in TaskMaker(load, salt="pace").tasks(0, 0, 2):
            row, _ = await sender.ask(task)
    finally:
        await pool.close()
    found = tpot_ms(row)
    if found is None:
        why = row.error or "its tokens came in one piece, or none did"
        raise EndpointError(
            f"{endpoint.url} gave no answer to measure: {why}", hint="it must stream its answers"
        )
    return found / 1000


def discard(store: Store, seed: int) -> None:
    """The runs of a calibration that came to nothing.

    The seed is drawn anew for each, so others' runs stay.
    """
    doomed = [
        run.id
        for run in store.runs(20)
        if run.kind == KIND and run.config["workload"]["seed"] == seed
    ]
    store.delete_runs(doomed)


def check(plan: SweepPlan, summary: SweepSummary, rows: Sequence[Request]) -> None:
    failed = [row for row in rows if not row.ok]
    if failed:
        what = f"{len(failed)} of {len(rows)} requests failed: {failed[0].error}"
        raise EndpointError(
            what, hint="skep cannot calibrate an endpoint whose requests fail: check its log"
        )
    measured = {level.concurrency: level for level in summary.levels}
    for wanted in plan.concurrency:
        level = measured.get(wanted)
        whole = len(whole_runs(plan, rows, wanted))
        if level is None or whole < 2:
            times = "once" if whole else "never"
            what = (
                f"the budget ended before C={wanted} was measured twice: it was measured {times}"
            )
            raise UserError(
                what, hint="give a longer --budget: repeats show how certain a figure is"
            )
        if level.client_limited:
            hint = "run it from another machine, or when this one has less to do"
            raise EndpointError(
                f"the client was the limit at C={wanted}: the engine's speed is not known",
                hint=hint,
            )
        if (
            level.queued_ms
            and level.total_ms
            and level.queued_ms.p50 > QUEUED_SHARE * level.total_ms.p50
        ):
            hint = "choose a lower --concurrency, or let other clients finish first"
            raise EndpointError(
                f"requests at C={wanted} waited for a slot: queueing spoils the fit", hint=hint
            )
        if not level.tpot_ms or not level.ttft_ms:
            hint = "it must stream its answers"
            raise EndpointError(
                f"{plan.workload.max_tokens} tokens at C={wanted} came in one piece", hint=hint
            )


def whole_runs(plan: SweepPlan, rows: Sequence[Request], level: int) -> dict[int, list[Request]]:
    """Return the runs that the budget did not cut: at the end of a cut run fewer agents were at
    work.
    """
    runs = by_repeat(row for row in rows if row.level == level)
    return {repeat: some for repeat, some in runs.items() if len(some) >= plan.tasks_at(level)}


def _seen(
    plan: SweepPlan, summary: SweepSummary, concurrency: int, rows: Sequence[Request]
) -> MeasuredLevel:
    level = next(level for level in summary.levels if level.concurrency == concurrency)
    runs = whole_runs(plan, rows, concurrency)
    return MeasuredLevel(
        concurrency=concurrency,
        input_tokens=level.prompt_tokens or 0.0,
        output_tokens=level.output_tokens_each or 0.0,
        tpot_s=_over(runs.values(), lambda some: median(tpot_values(some)) / 1000),
        ttft_s=_over(runs.values(), lambda some: median(ttft_values(some)) / 1000),
        effective_tok_s=_over(
            runs.values(), lambda some: repeat_of(0, some, None).effective_tok_s
        ),
        runs=len(runs),
        cached_share=level.cached_prompt_share or 0.0,
    )


def _over(runs: Iterable[list[Request]], figure: Callable[[list[Request]], float]) -> Interval:
    found = mean_t_interval([figure(run) for run in runs])
    assert found is not None  # two runs at least: checked
    return Interval(max(0.0, found.low), found.estimate, found.high)


def calibration_from_sweep(
    plan: SweepPlan,
    endpoint: Endpoint,
    summary: SweepSummary,
    rows: Sequence[Request],
    host: HostFacts,
) -> CalibrationRecord | None:
    """Return a sweep of a deployment of skep on this machine as a calibration; None: it does not
    tell enough.

    It needs one agent alone, measured twice, and requests that neither failed nor waited for a
    slot."""
    if not endpoint.engine.get("setup") or plan.workload.shape != "steady":
        return None
    try:
        described = describe(SetupFlags(), endpoint, host)
    except UserError:
        return None
    usable = [level for level in plan.concurrency if level <= (described.capacity or 1)]
    seen: dict[int, MeasuredLevel] = {}
    for level in usable:
        try:
            check(
                replace(plan, concurrency=(level,)),
                summary,
                [row for row in rows if row.level == level],
            )
        except (EndpointError, UserError):
            continue
        seen[level] = _seen(plan, summary, level, rows)
    if (alone := seen.pop(1, None)) is None:
        return None
    crowd = seen.pop(max(seen)) if seen else None
    if alone.input_tokens >= LEAST_TOKENS and alone.cached_share < CACHED_SHARE:
        prompts = alone
    else:
        prompts = None
    measured = CalibrationData(alone, crowd, prompts, tuple(seen.values()))
    taken = CalibrationRuns(measured, (summary.run_id,), summary.drift)
    record, _ = fitted_record(endpoint, described, taken, host)
    document = {**record.document, "by": "sweep"}
    if document["fitted"]["at_limit"]:
        return None
    return replace(record, document=document)


class SetupFlags(msgspec.Struct, frozen=True):
    """What a user says of an endpoint; None: by what it tells of itself."""

    geometry: str | None = None
    gpu: str | None = None
    link: str | None = None
    engine: str | None = None
    quant: str | None = None
    kv: str | None = None
    tp: int | None = None
    pp: int | None = None
    spec: str | None = None
    no_graphs: bool = False


class Described(msgspec.Struct, frozen=True):
    setup: Setup
    rig: Rig
    capacity: int | None  # slots of all replicas; None: it does not say
    notes: tuple[str, ...]


def describe(flags: SetupFlags, endpoint: Endpoint, host: HostFacts) -> Described:
    """What the endpoint does not tell and no flag says is assumed and said, or asked for."""
    if endpoint.simulated:
        raise UserError(
            "a simulated endpoint has the plan's own speed", hint="calibrate one that runs a model"
        )
    flags = _as_started(flags, endpoint)
    engine = _engine(flags, endpoint.engine)
    model, model_notes = _model(flags, endpoint)
    pins = pins_of(
        PlanFlags(endpoint.model, quant=flags.quant, kv=flags.kv, spec=flags.spec), model
    )
    if pins.quant is None:
        hint = "name the format with --quant, such as --quant awq or --quant bf16"
        raise UserError(
            f"skep does not know how the weights of `{endpoint.model}` are quantized", hint=hint
        )
    replicas = _count(endpoint.engine, "replicas") or 1
    capacity = _count(endpoint.engine, "slots")
    rig = _rig(flags, endpoint, host, replicas)
    layout = _layout(flags, rig.rig, replicas, engine)
    slots = None if capacity is None else max(1, capacity // replicas)
    setup = Setup(
        model.geometry,
        pins.quant,
        pins.kv or KV_TYPES["bf16"],
        engine,
        layout,
        slots=slots,
        graphs=not flags.no_graphs,
        spec=pins.spec,
    )
    return Described(setup, rig.rig, capacity, (*model_notes, *rig.notes))


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    if isinstance(value, int) and value > 0:
        return value
    return None


def _as_started(flags: SetupFlags, endpoint: Endpoint) -> SetupFlags:
    """A deployment of skep tells how it was started; flags win over that."""
    told = endpoint.engine.get("setup")
    if not isinstance(told, dict):
        return flags
    quant = known_quant(str(told.get("quant")))
    kv = known_kv(str(told.get("kv")))
    said = {"quant": quant and quant.id, "kv": kv and kv.id, "spec": told.get("spec")}
    said |= {name: told.get(name, 1) for name in ("tp", "pp")}
    missing = {name: value for name, value in said.items() if getattr(flags, name) is None}
    return replace(flags, **missing, no_graphs=flags.no_graphs or told.get("graphs") is False)


def _engine(flags: SetupFlags, told: Mapping[str, Any]) -> str:
    if flags.engine is not None:
        name = flags.engine.strip().lower().replace("llama.cpp", "llamacpp")
        if name not in ENGINES:
            raise UserError(
                f"--engine `{flags.engine}` is not known", hint=f"known: {', '.join(ENGINES)}"
            )
        return name
    found = engine_in(f"{told.get('engine', '')} {told.get('server', '')} {told.get('build', '')}")
    if found is None:
        hint = f"name it with --engine; known: {', '.join(ENGINES)}"
        raise UserError("the endpoint does not say which engine it is", hint=hint)
    return found


def _model(flags: SetupFlags, endpoint: Endpoint) -> tuple[ModelFound, tuple[str, ...]]:
    """By --geometry, else by the name it is served as; a file that lies here tells its format as
    well.
    """
    file = _file_here(endpoint)
    if flags.geometry is not None:
        model = read_model(flags.geometry)
        return model, model.notes
    geometry = find_geometry(endpoint.model)
    if (file := file or (endpoint.engine.get("setup") or {}).get("checkpoint")) is not None:
        read = read_model(file)
        return (replace(read, geometry=geometry) if geometry else read), (
            () if flags.quant else read.notes
        )
    if geometry is None:
        hint = (
            "describe it with --geometry: a name from `skep catalog models`, its config.json or "
            "its GGUF file"
        )
        raise UserError(f"the catalogue has no model `{endpoint.model}`", hint=hint)
    model = read_model(endpoint.model)
    return model, (() if flags.quant else model.notes)


def _file_here(endpoint: Endpoint) -> str | None:
    """Return the GGUF file that llama.cpp names, or the one that was pulled, where it is this
    machine that serves.
    """
    if endpoint.origin.host not in LOOPBACK:
        return None
    named = endpoint.engine.get("model_path")
    if isinstance(named, str) and named.endswith(".gguf") and os.path.isfile(named):  # noqa: PTH113
        return named
    if find_pullable(endpoint.model) is None:
        return None
    path = installed(endpoint.model, user_paths(os.environ).cache)
    return None if path is None else str(path)


def _rig(flags: SetupFlags, endpoint: Endpoint, host: HostFacts, replicas: int) -> ResolvedRig:
    if flags.gpu is not None:
        return ResolvedRig(parse_rig(flags.gpu, flags.link))
    if endpoint.origin.host not in LOOPBACK:
        hint = 'name its cards, such as --gpu "2x rtx-3090"'
        raise UserError(
            f"{endpoint.url} is not on this machine, so skep cannot see its cards", hint=hint
        )
    if host.gpus:
        return rig_of_host(host, flags.link)
    rig = cpu_rig(host, memory_bandwidth_gbs(host.cpu_cores), replicas=replicas)
    return ResolvedRig(rig, (f"no GPU here: {rig.title}, memory measured by copying",))


def _layout(flags: SetupFlags, rig: Rig, replicas: int, engine: str) -> Layout:
    """All cards work, unless a flag says otherwise: side by side in llama.cpp, as one in the
    others.
    """
    tp = flags.tp or 1
    pp = flags.pp or 1
    if flags.tp is None and flags.pp is None:
        each = max(1, len(rig.cards) // replicas)
        tp, pp = (each, 1) if has_pool(engine) else (1, each)
    layout = Layout(tp, pp, 1, replicas)
    if layout.cards > len(rig.cards):
        has = f"{len(rig.cards)} {'card' if len(rig.cards) == 1 else 'cards'}"
        hint = "check --gpu, --tp and --pp: the layout needs TP x PP x replicas cards"
        raise UserError(f"{layout} takes {layout.cards} cards, `{rig.title}` has {has}", hint=hint)
    return layout


def fitted_record(
    endpoint: Endpoint, described: Described, taken: CalibrationRuns, host: HostFacts
) -> tuple[CalibrationRecord, list[str]]:
    """Return the fit as it is stored, and what to be warned of."""
    setup = described.setup
    rig = described.rig
    measured = taken.measured
    fitted = fit(speed_model_maker(setup, rig, published_constants(), measured), measured)
    warnings = []
    if taken.drift is not None and not taken.drift.contains(1.0):
        drift = f"{taken.drift.estimate:.2f} times as fast at the end as at the beginning"
        warnings.append(f"warning: a single agent was {drift}")
    warnings += [
        (
            f"warning: the factor on {name} was cut to its limit; check that --gpu, --quant and "
            "--engine are what runs"
        )
        for name in fitted.at_limit
    ]
    at = time.time()
    record = calibration_for(
        setup,
        rig,
        measured,
        fitted,
        host,
        name=f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{new_suffix()}",
        at=at,
        where=host_key(host) if endpoint.origin.host in LOOPBACK else str(endpoint.origin),
        simulated=False,
        more={"url": endpoint.url, "runs": list(taken.run_ids), "engine": dict(endpoint.engine)},
    )
    return record, warnings
