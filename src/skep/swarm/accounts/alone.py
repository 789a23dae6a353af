"""Requests that ran alone, found in the store: of this run's own sample, of benchmarks, of the monitor's probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from skep.records import Request, Run, RunState
from skep.report.figures import moment
from skep.report.swarm_story import SerialSource
from skep.series import Heat, ProbeOutcome, Sample, Shape
from skep.store.database import Store
from skep.store.series import SeriesStore
from skep.store.swarm import SwarmStore
from skep.swarm.accounts.serial import Solo
from skep.swarm.accounts.times import Fact

_KINDS = ("sweep", "serial-vs-swarm")  # whose level 1 is one agent alone
_NEWEST = 400  # runs looked at, and probes
_PROBES = 12
_MOSTLY_NEW = 0.5  # of a prompt: what comes from the cache tells nothing of reading it


def sampled(facts: Sequence[Fact], crowd_s: Mapping[str, float]) -> list[Solo]:
    """Of the run's own tasks repeated alone; those that failed are left out."""
    found = [fact for _, name, _, fact in facts if name == "serial" and fact.get("error_kind") is None]
    solos = []
    for fact in found:
        seconds = _number(fact, "seconds")
        if seconds is None:
            continue
        queued = (_number(fact, "queued_ms") or 0.0) / 1000
        first = _number(fact, "first_token_s")
        prompt, output = _number(fact, "prompt_tokens"), _number(fact, "output_tokens")
        solos.append(
            Solo(
                seconds=max(0.0, seconds - queued),
                first_s=None if first is None else max(0.0, first - queued),
                prompt_tokens=None if prompt is None else int(prompt),
                output_tokens=None if output is None else int(output),
                crowd_s=crowd_s.get(str(fact.get("task"))),
            )
        )
    return solos


def stored_alone(
    store: Store, *, url: str, model: str, at: float, simulated: bool
) -> tuple[SerialSource, str, list[Solo]] | None:
    """Of the same model and endpoint: the sample of an earlier run or a benchmark of one agent; else probes."""
    return (
        _of_swarm(store, url, model, at, simulated=simulated)
        or _of_bench(store, url, model, at, simulated=simulated)
        or _of_monitor(store, url, model, simulated=simulated)
    )


def _of_swarm(
    store: Store, url: str, model: str, at: float, *, simulated: bool
) -> tuple[SerialSource, str, list[Solo]] | None:
    """The newest of the runs before this one that has a sample."""
    swarm = SwarmStore(store)
    for run in swarm.runs(_NEWEST):
        fits = run.model == model and run.simulated is simulated and same_place(run.url, url)
        if run.created_at < at and fits and (solos := sampled(swarm.facts(run.id, "serial"), {})):
            return SerialSource.EARLIER, f"{_repeated(len(solos))} of run {run.id} of {moment(run.created_at)}", solos
    return None


def _repeated(tasks: int) -> str:
    return "1 task repeated alone" if tasks == 1 else f"{tasks} tasks repeated alone"


def _of_bench(
    store: Store, url: str, model: str, at: float, *, simulated: bool
) -> tuple[SerialSource, str, list[Solo]] | None:
    fitting = [
        run
        for run in store.runs(_NEWEST)
        if run.kind in _KINDS
        and run.state is RunState.DONE
        and run.model == model
        and run.simulated is simulated
        and same_place(run.url, url)
    ]
    for run in sorted(fitting, key=lambda run: abs(run.created_at - at)):
        solos = [solo for row in store.requests(run.id) if (solo := _of_request(row)) is not None]
        if solos:
            return SerialSource.BENCH, _bench_words(run), solos
    return None


def _of_request(row: Request) -> Solo | None:
    if row.level != 1 or not row.ok or row.first_token_s is None or not row.prompt_tokens or not row.output_tokens:
        return None
    new = row.prompt_tokens - (row.engine.cached_tokens or 0)
    if new < _MOSTLY_NEW * row.prompt_tokens:
        return None
    queued = (row.queued_ms or 0.0) / 1000
    return Solo(
        seconds=max(0.0, row.ended_s - row.started_s - queued),
        first_s=max(0.0, row.first_token_s - row.started_s - queued),
        prompt_tokens=new,
        output_tokens=row.output_tokens,
    )


def _bench_words(run: Run) -> str:
    return f"one agent alone in benchmark {run.id} of {moment(run.created_at)}"


def _of_monitor(store: Store, url: str, model: str, *, simulated: bool) -> tuple[SerialSource, str, list[Solo]] | None:
    series = SeriesStore(store)
    for target in series.targets():
        if not same_place(target.url, url):
            continue
        probes = [
            probe
            for probe in series.probes(target.name, float("-inf"), float("inf"), _NEWEST)
            if probe.outcome is ProbeOutcome.DONE
            and not probe.busy
            and probe.simulated is simulated
            and model in (probe.model, target.model)
        ][:_PROBES]
        samples = [one for probe in probes if probe.id is not None for one in series.probe(probe.id)[1]]
        solos = [solo for one in samples if (solo := _of_probe(one)) is not None]
        if solos:
            return SerialSource.MONITOR, f"the newest {len(probes)} probes of target {target.name}", solos
    return None


def _of_probe(sample: Sample) -> Solo | None:
    plain = sample.concurrency == 1 and sample.heat is Heat.HOT and sample.shape in (Shape.SHORT, Shape.LONG)
    if not plain or sample.error_kind is not None or not sample.tok_s or sample.ttft_ms is None:
        return None
    if not sample.prompt_tokens or not sample.output_tokens or sample.output_tokens < 2:
        return None
    first = sample.ttft_ms / 1000
    rest = (sample.output_tokens - 1) / sample.tok_s
    return Solo(first + rest, first, sample.prompt_tokens, sample.output_tokens)


def same_place(one: str, other: str) -> bool:
    """Whether two addresses are of the same endpoint: a `/v1` at the end and the loopback's name make no difference."""
    return _place(one) == _place(other)


def _place(url: str) -> tuple[str, str, int | None, str]:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return "", url, None, ""
    port = port or {"http": 80, "https": 443}.get(parts.scheme)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return parts.scheme, "127.0.0.1" if host in ("localhost", "::1") else host, port, path


def _number(fact: Mapping[str, Any], name: str) -> float | None:
    value = fact.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
