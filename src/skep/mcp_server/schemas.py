"""What the tools answer. What is unknown is None here and left out on the wire."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class ToolAnswer(BaseModel):
    model_config = ConfigDict(frozen=True)


class DispatchedRun(ToolAnswer):
    run: str
    tasks: int
    model: str
    simulated: bool
    next: str
    at_once: int | None = None  # slots of the endpoint, or the cap that was asked for


class TaskFailure(ToolAnswer):
    task: str
    error: str


class RunProgress(ToolAnswer):
    """How a run stands."""

    run: str
    state: str  # starting, running, done, stopped, cancelled
    total: int
    done: int
    failed: int
    left: int
    next: str | None = None
    name: str | None = None
    seconds: float | None = None  # since it was dispatched; of an ended one, how long it took
    left_s: float | None = None  # estimate
    tok_s: float | None = None  # output tokens a second, over this session
    simulated: bool | None = None
    error: str | None = None
    output: str | None = None
    failures: tuple[TaskFailure, ...] | None = None  # the newest


class ResultRow(ToolAnswer):
    """One result, shortened. `value`: of a task with a schema."""

    id: str
    ok: bool
    answer: str | None = None
    value: Any = None
    error: str | None = None
    cut: int | None = None  # characters of the whole answer, where it was shortened: swarm_result has it


class ResultPage(ToolAnswer):
    run: str
    state: str
    results: tuple[ResultRow, ...]
    page: int
    pages: int
    matching: int  # results of the kind that was asked for
    left: int  # tasks without a result yet
    next_page: int | None = None


class FullResult(ToolAnswer):
    run: str
    id: str
    ok: bool
    tries: int
    seconds: float
    answer: str | None = None
    characters: int | None = None  # of the whole answer
    value: Any = None
    error: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    replica: str | None = None
    next_from: int | None = None  # the rest begins there


class RunList(ToolAnswer):
    runs: tuple[RunProgress, ...]


class BenchmarkLevel(ToolAnswer):
    agents: int
    tok_s: float  # effective: all agents together
    ttft_ms: float | None = None
    failed: int = 0


class ModelCapacity(ToolAnswer):
    model: str
    slots: int | None = None
    replicas: int | None = None
    busy: int | None = None
    queued: int | None = None
    engine: str | None = None
    simulated: bool | None = None
    state: str | None = None  # of one that is loaded on demand
    measured: tuple[BenchmarkLevel, ...] | None = None
    measured_run: str | None = None


class Capacity(ToolAnswer):
    url: str
    models: tuple[ModelCapacity, ...]
    suggested: str


class HiveStatus(ToolAnswer):
    running: bool
    next: str
    url: str | None = None
    phase: str | None = None
    queued: int | None = None
    in_flight: int | None = None
    rows: tuple[dict[str, Any], ...] = ()
    runs: tuple[RunProgress, ...] = ()  # of swarms, that somebody works on


class PlannedLayout(ToolAnswer):
    """One plan."""

    rig: str
    engine: str
    topology: dict[str, int]
    quant: str
    kv_dtype: str
    slots: int
    context: int
    launch: tuple[str, ...] = ()  # of the best one only
    why: tuple[str, ...] = ()
    tok_s: float | None = None  # predicted, all agents together
    low: float | None = None
    high: float | None = None
    task_tok_s: float | None = None
    ttft_ms: float | None = None


class PlanList(ToolAnswer):
    model: str
    agents: int
    layouts: tuple[PlannedLayout, ...]  # best first
    more: int
    notes: tuple[str, ...] = ()


class Benchmark(ToolAnswer):
    run: str
    kind: str
    state: str
    when: str
    model: str
    requests: int
    failed: int
    simulated: bool
    levels: tuple[BenchmarkLevel, ...] = ()
    knee: int | None = None
    cliff: int | None = None
    speedup: float | None = None
    engine: str | None = None
    conclusion: str | None = None
    error: str | None = None


class Benchmarks(ToolAnswer):
    runs: tuple[Benchmark, ...]
    next: str
