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
    LevelSummary,
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
from skep.catalog.engines import gguf_engine, kind_of, measured_engines
from skep.catalog.gpus import HostFacts
from skep.catalog.models import find_geometry, find_pullable
from skep.config.rigs import ResolvedRig, cpu_rig, parse_rig, rig_of_host
from skep.deploy.plan_request import PlanFlags, ResolvedModel, pins_of, read_model
from skep.deploy.stored_calibration import calibration_for, host_key
from skep.errors import EndpointError, UserError
from skep.host.facts import memory_bandwidth_gbs
from skep.paths import LOOPBACK, user_paths
from skep.planner.calibration import CalibrationData, MeasuredLevel, fit, speed_model_maker
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
# Long against their prompts: those of other requests hardly show in the time per token.
ANSWER_TOKENS = 192
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


class CalibrationPlan(msgspec.Struct, frozen=True):
    """What is measured for a calibration, and how long that may take."""

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
        """Return the plan with answers so long that the budget holds for about five runs of each
        level, and with fewer tasks where those would be short.
        """
        tokens = (1 - PROMPTS_SHARE) * self.budget_s / (5 * tpot_s)
        higher_levels = len(self.levels) - 1
        with_all_tasks = tokens / (6 + 6 * higher_levels)
        with_few_tasks = tokens / (FEW_TASKS + 4 * higher_levels)
        if with_all_tasks >= min(self.answer_tokens, ANSWER_TOKENS / 2):
            return replace(self, answer_tokens=min(self.answer_tokens, int(with_all_tasks)))
        longest = min(self.answer_tokens, max(LEAST_ANSWER_TOKENS, int(with_few_tasks)))
        return replace(self, answer_tokens=longest, tasks=FEW_TASKS)

    def decoding(self) -> SweepPlan:
        load = Workload(max_tokens=self.answer_tokens, fixed_output=True, seed=self.seed)
        return self._sweep(self.levels, load, 1 - PROMPTS_SHARE, tasks=self.tasks)

    def prompts(self, token_s: float) -> SweepPlan:
        """Return the sweep of long prompts; a short budget makes them shorter.

        `token_s`: seconds for a token of a prompt, measured on short ones.
        """
        # Tasks that fit into the budget, for five runs and the warm-up.
        fitting_tasks = PROMPTS_SHARE * self.budget_s / (7 * self.prompt_tokens * token_s)
        tokens = min(
            self.prompt_tokens, max(LEAST_TOKENS, int(self.prompt_tokens * fitting_tasks))
        )
        load = Workload(
            prompt_tokens=tokens, max_tokens=LONG_ANSWER_TOKENS, fixed_output=True, seed=self.seed
        )
        tasks = max(1, min(LONG_TASKS, int(fitting_tasks)))
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
    """What was measured, and in which runs."""

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
        levels = {
            level: _measured_level(sweep, summary, level, rows) for level in sweep.concurrency
        }
        return summary, levels

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
    """Return seconds a token, of a short answer after another one that warms the engine up.

    That is enough to choose lengths by.
    """
    load = Workload(max_tokens=PACE_TOKENS, fixed_output=True, seed=plan.seed)
    pool = Pool(endpoint.origin)
    try:
        sender = Sender(endpoint, pool, time.monotonic(), timeout_s=plan.timeout_s)
        for task in TaskMaker(load, salt="pace").tasks(0, 0, 2):
            row, _ = await sender.ask(task)
    finally:
        await pool.close()
    ms_per_token = tpot_ms(row)
    if ms_per_token is None:
        why = row.error or "its tokens came in one piece, or none did"
        raise EndpointError(
            f"{endpoint.url} gave no answer to measure: {why}", hint="it must stream its answers"
        )
    return ms_per_token / 1000


def discard(store: Store, seed: int) -> None:
    """Delete the runs of a calibration that failed.

    The seed is drawn anew for each calibration, so the runs of others stay.
    """
    failed_runs = [
        run.id
        for run in store.runs(20)
        if run.kind == KIND and run.config["workload"]["seed"] == seed
    ]
    store.delete_runs(failed_runs)


def check(plan: SweepPlan, summary: SweepSummary, rows: Sequence[Request]) -> None:
    """Raise an error where a sweep cannot be fitted to."""
    failed = [row for row in rows if not row.ok]
    if failed:
        message = f"{len(failed)} of {len(rows)} requests failed: {failed[0].error}"
        raise EndpointError(
            message, hint="skep cannot calibrate an endpoint whose requests fail: check its log"
        )
    measured = {level.concurrency: level for level in summary.levels}
    for concurrency in plan.concurrency:
        level = measured.get(concurrency)
        runs = len(whole_runs(plan, rows, concurrency))
        if level is None or runs < 2:
            times = "once" if runs else "never"
            raise UserError(
                f"the budget ended before C={concurrency} was measured twice: "
                f"it was measured {times}",
                hint="give a longer --budget: repeats show how certain a figure is",
            )
        _check_level(level, plan.workload.max_tokens)


def _check_level(level: LevelSummary, answer_tokens: int) -> None:
    """Raise EndpointError where the figures of a level say nothing of the engine's speed."""
    at = f"at C={level.concurrency}"
    if level.client_limited:
        raise EndpointError(
            f"the client was the limit {at}: the engine's speed is not known",
            hint="run it from another machine, or when this one has less to do",
        )
    if (
        level.queued_ms
        and level.total_ms
        and level.queued_ms.p50 > QUEUED_SHARE * level.total_ms.p50
    ):
        raise EndpointError(
            f"requests {at} waited for a slot: queueing spoils the fit",
            hint="choose a lower --concurrency, or let other clients finish first",
        )
    if not level.tpot_ms or not level.ttft_ms:
        raise EndpointError(
            f"{answer_tokens} tokens {at} came in one piece", hint="it must stream its answers"
        )


def whole_runs(plan: SweepPlan, rows: Sequence[Request], level: int) -> dict[int, list[Request]]:
    """Return the runs that the budget did not cut: at the end of a cut run fewer agents were at
    work.
    """
    runs = by_repeat(row for row in rows if row.level == level)
    return {repeat: run for repeat, run in runs.items() if len(run) >= plan.tasks_at(level)}


def _measured_level(
    plan: SweepPlan, summary: SweepSummary, concurrency: int, rows: Sequence[Request]
) -> MeasuredLevel:
    level = next(level for level in summary.levels if level.concurrency == concurrency)
    runs = whole_runs(plan, rows, concurrency)
    return MeasuredLevel(
        concurrency=concurrency,
        input_tokens=level.prompt_tokens or 0.0,
        output_tokens=level.output_tokens_each or 0.0,
        tpot_s=_mean_over(runs.values(), lambda run: median(tpot_values(run)) / 1000),
        ttft_s=_mean_over(runs.values(), lambda run: median(ttft_values(run)) / 1000),
        effective_tok_s=_mean_over(
            runs.values(), lambda run: repeat_of(0, run, None).effective_tok_s
        ),
        runs=len(runs),
        cached_share=level.cached_prompt_share or 0.0,
    )


def _mean_over(
    runs: Iterable[list[Request]], figure: Callable[[list[Request]], float]
) -> Interval:
    """Return the mean of a figure over runs, with its interval."""
    interval = mean_t_interval([figure(run) for run in runs])
    assert interval is not None  # `check` has seen to two runs at least
    return Interval(max(0.0, interval.low), interval.estimate, interval.high)


def calibration_from_sweep(
    plan: SweepPlan,
    endpoint: Endpoint,
    summary: SweepSummary,
    rows: Sequence[Request],
    host: HostFacts,
) -> CalibrationRecord | None:
    """Return a sweep of a deployment of skep on this machine as a calibration; None: it does not
    say enough.

    It needs one agent alone, measured twice, and requests that neither failed nor waited for a
    slot.
    """
    if not endpoint.engine.get("setup") or plan.workload.shape != "steady":
        return None
    try:
        described = describe(SetupFlags(), endpoint, host)
    except UserError:
        return None
    usable = [level for level in plan.concurrency if level <= (described.capacity or 1)]
    measured_levels: dict[int, MeasuredLevel] = {}
    for level in usable:
        try:
            check(
                replace(plan, concurrency=(level,)),
                summary,
                [row for row in rows if row.level == level],
            )
        except (EndpointError, UserError):
            continue
        measured_levels[level] = _measured_level(plan, summary, level, rows)
    if (alone := measured_levels.pop(1, None)) is None:
        return None
    crowd = measured_levels.pop(max(measured_levels)) if measured_levels else None
    prompts = None
    if alone.input_tokens >= LEAST_TOKENS and alone.cached_share < CACHED_SHARE:
        prompts = alone
    measured = CalibrationData(alone, crowd, prompts, tuple(measured_levels.values()))
    taken = CalibrationRuns(measured, (summary.run_id,), summary.drift)
    record, _ = fitted_record(endpoint, described, taken, host)
    document = {**record.document, "by": "sweep"}
    if document["fitted"]["at_limit"]:
        return None
    return replace(record, document=document)


class SetupFlags(msgspec.Struct, frozen=True):
    """Facts of an endpoint that a user states; None: by what the endpoint tells of itself."""

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
    """Model, engine and cards of an endpoint, as the planner names them."""

    setup: Setup
    rig: Rig
    capacity: int | None  # slots of all replicas; None: it does not say
    notes: tuple[str, ...]


def describe(flags: SetupFlags, endpoint: Endpoint, host: HostFacts) -> Described:
    """Return what an endpoint runs, by the flags and by what it tells of itself.

    What neither says is assumed, with a note, or a UserError asks for it.
    """
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


def _count(engine_facts: Mapping[str, Any], name: str) -> int | None:
    value = engine_facts.get(name)
    if isinstance(value, int) and value > 0:
        return value
    return None


def _as_started(flags: SetupFlags, endpoint: Endpoint) -> SetupFlags:
    """Return the flags, filled in with how a deployment of skep was started."""
    started_as = endpoint.engine.get("setup")
    if not isinstance(started_as, dict):
        return flags
    quant = known_quant(str(started_as.get("quant")))
    kv = known_kv(str(started_as.get("kv")))
    settings = {"quant": quant and quant.id, "kv": kv and kv.id, "spec": started_as.get("spec")}
    settings |= {name: started_as.get(name, 1) for name in ("tp", "pp")}
    missing = {name: value for name, value in settings.items() if getattr(flags, name) is None}
    return replace(
        flags, **missing, no_graphs=flags.no_graphs or started_as.get("graphs") is False
    )


def _engine(flags: SetupFlags, engine_facts: Mapping[str, Any]) -> str:
    if flags.engine is not None:
        name = flags.engine.strip().lower().replace("llama.cpp", gguf_engine())
        if name not in measured_engines():
            raise UserError(
                f"--engine `{flags.engine}` is not known",
                hint=f"known: {', '.join(measured_engines())}",
            )
        return name
    words = (str(engine_facts.get(name, "")) for name in ("engine", "server", "build"))
    engine = engine_in(" ".join(words))
    if engine is None:
        hint = f"name it with --engine; known: {', '.join(measured_engines())}"
        raise UserError("the endpoint does not say which engine it is", hint=hint)
    return engine


def _model(flags: SetupFlags, endpoint: Endpoint) -> tuple[ResolvedModel, tuple[str, ...]]:
    """Return the model, and notes on it: by --geometry, else by the name it is served as.

    A file that lies here tells its format as well.
    """
    if flags.geometry is not None:
        model = read_model(flags.geometry)
        return model, model.notes
    geometry = find_geometry(endpoint.model)
    file = _file_here(endpoint) or (endpoint.engine.get("setup") or {}).get("checkpoint")
    if file is not None:
        model = read_model(file)
        notes = () if flags.quant else model.notes
        if geometry:
            model = replace(model, geometry=geometry)
        return model, notes
    if geometry is None:
        hint = (
            "describe it with --geometry: a name from `skep catalog models`, its config.json or "
            "its GGUF file"
        )
        raise UserError(f"the catalogue has no model `{endpoint.model}`", hint=hint)
    model = read_model(endpoint.model)
    return model, (() if flags.quant else model.notes)


def _file_here(endpoint: Endpoint) -> str | None:
    """Return the GGUF file that llama.cpp names, or the one that was pulled; None where another
    machine serves.
    """
    if endpoint.origin.host not in LOOPBACK:
        return None
    named = endpoint.engine.get("model_path")
    if not isinstance(named, str):
        named = ""
    if named.endswith(".gguf") and os.path.isfile(named):  # noqa: PTH113
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
    """Return the layout that uses all cards, unless a flag says otherwise: by layers in llama.cpp,
    by tensors in the others.
    """
    tp = flags.tp or 1
    pp = flags.pp or 1
    if flags.tp is None and flags.pp is None:
        cards_per_replica = max(1, len(rig.cards) // replicas)
        if kind_of(engine).has_pool:
            tp = cards_per_replica
        else:
            pp = cards_per_replica
    layout = Layout(tp, pp, 1, replicas)
    if layout.cards > len(rig.cards):
        cards = "card" if len(rig.cards) == 1 else "cards"
        hint = "check --gpu, --tp and --pp: the layout needs TP x PP x replicas cards"
        raise UserError(
            f"{layout} takes {layout.cards} cards, `{rig.title}` has {len(rig.cards)} {cards}",
            hint=hint,
        )
    return layout


def fitted_record(
    endpoint: Endpoint, described: Described, taken: CalibrationRuns, host: HostFacts
) -> tuple[CalibrationRecord, list[str]]:
    """Return the fit as it is stored, and warnings about it."""
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
        extra={"url": endpoint.url, "runs": list(taken.run_ids), "engine": dict(endpoint.engine)},
    )
    return record, warnings
