"""One probe of one target: read its load, send a first request (the cold run), then the timed hot
runs.

Any failure becomes a failed probe with an error kind and one line of text; only cancellation is
raised. Requests are sent by the load generator's sender: times are those of network reads, tokens
come from `usage`. A probe knows neither the store nor the schedule."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from random import Random
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from skep import __version__
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.metrics import tpot_ms
from skep.bench.tasks import BenchTask, Sender
from skep.catalog.engines import engine_kinds, engine_named_in, kind_of
from skep.errors import EndpointError, SkepError, UserError
from skep.host.facts import NvidiaReport, read_nvidia
from skep.host.power import PowerMeter, open_meter
from skep.monitor.records import (
    BUSY,
    PROBES_FLOW,
    Heat,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
)
from skep.monitor.schedule import Due
from skep.store.records import Request
from skep.units import one_line
from skep.wire.client import Pool, WireFailure, fetch_if_there
from skep.wire.engine_state import fetch_state
from skep.wire.heads import parse_url
from skep.wire.prometheus import count_busy, parse_metrics
from skep.workload.filling import CHARS_PER_PIECE
from skep.workload.prompts import FEWEST_PIECES, Prompt, TokenCalibration, coding_prompts

ASK_S = 5.0
LOOKS_AT_SLOTS = 5  # after the last request: an engine may need a moment to let go of its slot
BETWEEN_LOOKS_S = 0.1
# Output tokens beyond the probe's own, more than these and a twentieth, are somebody else's.
TOKENS_OF_CHANCE = 8

# What runs and what waits at a gateway, which comes before the engines that may stand behind it.
_OF_GATEWAY = ("skep_slots_busy", "skep_queue_length")
# A gauge without values is zero where the other one is present.
_FRONTS = {"skep_slots_busy": "skep_slots"}
_TOKENS_OF_GATEWAY = "skep_output_tokens_total"


class TargetLoad(msgspec.Struct, frozen=True):
    """The load of a target. None: the target does not report it."""

    running: int | None = None
    waiting: int | None = None
    tokens_total: float | None = None  # of output, since its process began
    process_began_at: float | None = None


async def read_load(pool: Pool, headers: Mapping[str, str]) -> TargetLoad:
    """Read the load from `/metrics`, else from llama.cpp's `/slots`; empty where a target has
    neither.
    """
    try:
        samples = await fetch_state(
            pool, "/metrics", parse_metrics, headers=headers, timeout_s=ASK_S
        )
        if samples is None:
            load = TargetLoad()
        else:
            load = load_of(samples)
        if load.running is None:
            busy = await fetch_state(pool, "/slots", count_busy, headers=headers, timeout_s=ASK_S)
            return replace(load, running=busy, waiting=None)
    except WireFailure:
        return TargetLoad()
    return load


async def read_load_after(pool: Pool, headers: Mapping[str, str]) -> TargetLoad:
    """Read the load after the probe's own requests, whose slots may take a moment to be freed."""
    for _ in range(LOOKS_AT_SLOTS - 1):
        load = await read_load(pool, headers)
        if not (load.running or load.waiting):
            return load
        await asyncio.sleep(BETWEEN_LOOKS_S)
    return await read_load(pool, headers)


def load_of(counters: Mapping[str, float]) -> TargetLoad:
    """Return the load that the counters of `/metrics` show, by the first family that is there."""
    running = waiting = None
    kinds = engine_kinds().values()
    gauges = [_OF_GATEWAY, *((kind.running_metric, kind.waiting_metric) for kind in kinds)]
    totals = [_TOKENS_OF_GATEWAY, *(kind.tokens_metric for kind in kinds)]
    for running_name, waiting_name in gauges:
        if running_name in counters or _FRONTS.get(running_name) in counters:
            running = _count(counters.get(running_name, 0.0))
            waiting = _count(counters.get(waiting_name, 0.0))
            break
    return TargetLoad(
        running=running,
        waiting=waiting,
        tokens_total=next((counters[name] for name in totals if name in counters), None),
        process_began_at=counters.get("process_start_time_seconds"),
    )


def _count(value: float) -> int | None:
    """Return a gauge as a count; None for a value that is none."""
    if 0 <= value < math.inf:
        return round(value)
    return None


def other_requests(
    before: TargetLoad, after: TargetLoad, own_tokens: int | None
) -> tuple[int | None, int | None]:
    """Return how many requests of others ran and waited at most, before or after the probe.

    `own_tokens`: of the probe's output; None: not all are known.
    """
    running = _largest(before.running, after.running)
    waiting = _largest(before.waiting, after.waiting)
    if running or own_tokens is None:
        return running, waiting
    if before.tokens_total is None or after.tokens_total is None:
        return running, waiting
    tokens_of_others = after.tokens_total - before.tokens_total - own_tokens
    if tokens_of_others > max(TOKENS_OF_CHANCE, own_tokens / 20):
        running = 1  # at least
    return running, waiting


def _largest(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def fresh_prompt(rng: Random, tokens: int) -> Prompt:
    """Return a prompt that no cache holds, of about this length, or the shortest possible one."""
    fewest = math.ceil(FEWEST_PIECES * CHARS_PER_PIECE / TokenCalibration().chars_per_token)
    return next(coding_prompts(rng, tokens=max(tokens, fewest)))


THIS_MACHINE = "here"
BEGAN_AT = "process_began_at"  # in a probe's `host`


def machine_of(url: str) -> str:
    """Return the machine of a target, so that two probes do not disturb each other there."""
    try:
        host = parse_url(url)[0].host.lower()
    except UserError:
        return url  # its probe will fail with this error
    if host in ("localhost", "") or host.endswith(".localhost"):
        return THIS_MACHINE
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_loopback or address.is_unspecified:
        return THIS_MACHINE
    return host


async def read_versions(
    endpoint: Endpoint, pool: Pool, nvidia: NvidiaReport | None
) -> dict[str, str]:
    """Return the versions of model, engine and driver, without those that are not reported.

    `nvidia`: of this machine, where the target runs here.
    """
    facts = endpoint.engine
    versions: dict[str, object] = {"skep": __version__, "model": endpoint.model}
    if isinstance(facts.get("model_path"), str):
        versions["model"] = PurePath(facts["model_path"].replace("\\", "/")).name or endpoint.model
    meta = facts.get("meta")
    if isinstance(meta, Mapping):
        versions["weights_bytes"] = meta.get("size")
    versions |= {name: facts.get(name) for name in ("engine", "build", "server")}
    if endpoint.api == "ollama":
        engine = "ollama"
    else:
        engine = str(facts.get("engine", "")).lower()
    version_path = kind_of(engine).version_path
    if version_path and "build" not in facts:
        headers = dict(endpoint.headers)
        answer = await fetch_if_there(pool, "GET", version_path, headers=headers, timeout_s=ASK_S)
        build = answer.document().get("version") if answer else None
        if isinstance(build, str):
            versions["build"] = build
    if nvidia is not None:
        versions |= {"driver": nvidia.driver_version, "cuda": nvidia.cuda_version}
    return {name: str(value) for name, value in versions.items() if value not in (None, "")}


FIND_S = 10.0  # to learn which models it serves
TIMEOUTS_A_PROBE = 2.0  # a probe takes at most so many times a request's timeout
FEWEST_TOKENS = 8  # of an answer: fewer have no speed
FEWEST_READS = 4  # of an answer: one that a proxy held back and sent at once has no speed for us


def _knows_fixed_output(endpoint: Endpoint) -> bool:
    """Return whether it generates up to `max_tokens` when asked to: another server may refuse a
    field that it does not know.
    """
    name = str(endpoint.engine.get("engine", ""))
    kind = kind_of(engine_named_in(name) or "")
    return kind.fixed_output or name in ("skep", "skep-fake") or "build" in endpoint.engine


async def probe_target(
    due: Due,
    *,
    key: str | None = None,
    clock: Callable[[], float] = time.time,
    nvidia: Callable[[], NvidiaReport] = read_nvidia,
    meter: Callable[[], PowerMeter | None] = open_meter,
    nonce: str | None = None,
) -> tuple[Probe, list[ProbeSample]]:
    """Probe a target once. Return the probe and a sample for each of its runs.

    `key`: the value of the variable `target.key_env`. `nvidia` and `meter` read this machine's
    GPUs and power, for a target that runs on it.
    """
    target = due.target
    started_at = clock()
    began_s = time.monotonic()
    fault: ProbeFault | None = None
    probe_run = _ProbeRun(target, clock, Random(nonce or secrets.token_hex(8)))
    whole_s = FIND_S + TIMEOUTS_A_PROBE * target.timeout_s
    try:
        if target.key_env and not key:
            raise ProbeFault("auth", f"the variable `{target.key_env}` with its key is not set")
        async with asyncio.timeout(whole_s):
            await probe_run.run(key, nvidia, meter)
    except TimeoutError:
        fault = ProbeFault("timeout", f"the whole probe was not done within {whole_s:g} s")
    except Exception as error:  # nothing that a target answers may end the monitor
        fault = fault_of(error).without(key)
    running, waiting = other_requests(probe_run.before, probe_run.after, probe_run.own_tokens)
    endpoint = probe_run.endpoint
    probe = Probe(
        target=target.name,
        era=due.era,
        slot=due.slot,
        due_at=due.at,
        # By the monotonic clock: the wall clock may have been set meanwhile.
        ended_at=started_at + time.monotonic() - began_s,
        outcome=ProbeOutcome.DONE if fault is None else ProbeOutcome.FAILED,
        started_at=started_at,
        running=running,
        waiting=waiting,
        model=target.model if endpoint is None else endpoint.model,
        versions=probe_run.versions,
        host=probe_run.host,
        simulated=endpoint is not None and endpoint.simulated,
        **_fault_fields(fault),
    )
    return probe, probe_run.samples


def _fault_fields(fault: ProbeFault | None) -> dict[str, Any]:
    """Return the fields of a probe or a sample that describe a fault."""
    if fault is None:
        return {}
    return {"error_kind": fault.kind, "error": fault.text}


class _ProbeRun:
    """The requests of a probe and its results so far, which are kept where it fails later."""

    def __init__(self, target: ProbeTarget, clock: Callable[[], float], rng: Random) -> None:
        self._target = target
        self._clock = clock
        self._rng = rng
        self._key: str | None = None
        self._fixed_output = True  # ask for exactly `max_tokens`
        self.endpoint: Endpoint | None = None
        self.before = TargetLoad()
        self.after = TargetLoad()
        self.versions = {"skep": __version__}
        self.host: dict[str, Any] = {}
        self.samples: list[ProbeSample] = []
        self.own_tokens: int | None = 0  # None: not all are known

    async def run(
        self,
        key: str | None,
        read_gpus: Callable[[], NvidiaReport],
        open_power: Callable[[], PowerMeter | None],
    ) -> None:
        target = self._target
        self._key = key
        endpoint = await find_endpoint(
            target.url, target.model, key=key, api=target.api, timeout_s=FIND_S
        )
        if target.kind == "gateway":
            endpoint = replace(endpoint, headers={**endpoint.headers, "x-skep-agent": PROBES_FLOW})
        self.endpoint = endpoint
        self._fixed_output = _knows_fixed_output(endpoint) or target.kind != "endpoint"
        nvidia = None
        meter = None
        if machine_of(target.url) == THIS_MACHINE:
            nvidia = await asyncio.to_thread(read_gpus)
            meter = await asyncio.to_thread(open_power)
        pool = Pool(endpoint.origin, max_idle=max(4, target.concurrency))
        try:
            self.versions = await read_versions(endpoint, pool, nvidia)
            self.before = await read_load(pool, endpoint.headers)
            sender = Sender(endpoint, pool, time.monotonic(), timeout_s=target.timeout_s)
            await self._runs(sender, meter)
            self.after = await read_load_after(pool, endpoint.headers)
            if self.after.process_began_at is not None:
                self.host[BEGAN_AT] = self.after.process_began_at
        finally:
            await pool.close()
            if meter is not None:
                await asyncio.to_thread(meter.close)

    async def _runs(self, sender: Sender, meter: PowerMeter | None) -> None:
        target = self._target
        await self._timed(sender, Heat.COLD, ProbeShape.SHORT, 1)
        if meter is not None:
            await asyncio.to_thread(meter.begin)
        await self._timed(sender, Heat.HOT, ProbeShape.SHORT, 1)
        if target.long_tokens:
            await self._timed(sender, Heat.HOT, ProbeShape.LONG, 1)
        if target.concurrency > 1:
            await self._timed(sender, Heat.HOT, ProbeShape.SHORT, target.concurrency)
        if meter is not None:
            self.host |= _power_fields(await asyncio.to_thread(meter.end))

    async def _timed(
        self, sender: Sender, heat: Heat, shape: ProbeShape, concurrency: int
    ) -> None:
        if shape is ProbeShape.LONG:
            tokens = self._target.long_tokens
        else:
            tokens = self._target.short_tokens
        prompts = [fresh_prompt(self._rng, self._target.prompt_tokens) for _ in range(concurrency)]
        tasks = [
            BenchTask(1, 0, place, prompt.kind, prompt.messages, tokens, self._fixed_output)
            for place, prompt in enumerate(prompts)
        ]
        await sender.pool.prepare(concurrency)  # the time to connect is not the engine's
        at = self._clock()
        rows = [row for row, _ in await asyncio.gather(*(sender.ask(task) for task in tasks))]
        self._keep(rows, sample_of(rows, at, heat, shape, concurrency))

    def _keep(self, rows: Sequence[Request], sample: ProbeSample) -> None:
        """Keep the sample. Raise the first fault of its requests.

        A fault ends the probe, so that a target that hangs is not waited for again and again.
        """
        counts = [self.own_tokens, *(row.output_tokens for row in rows)]
        self.own_tokens = None if None in counts else _sum(counts)
        fault = first_fault(rows)
        if fault is None:
            self.samples.append(sample)
            return
        self.samples.append(replace(sample, **_fault_fields(fault.without(self._key))))
        raise fault


def sample_of(
    rows: Sequence[Request], at: float, heat: Heat, shape: ProbeShape, concurrency: int
) -> ProbeSample:
    """Return the figures of a run.

    Those of a stream are medians over the streams that succeeded; the effective speed is all their
    tokens over the wall time of the run.
    """
    good = [row for row in rows if row.ok]
    with_speed = [row for row in good if (row.output_tokens or 0) >= FEWEST_TOKENS]
    output_tokens = _sum(row.output_tokens for row in good)
    effective_tok_s = None
    wall_s = max(row.ended_s for row in rows) - min(row.due_s for row in rows)
    if output_tokens and wall_s > 0 and len(with_speed) == len(good):
        effective_tok_s = output_tokens / wall_s
    return ProbeSample(
        at=at,
        heat=heat,
        shape=shape,
        concurrency=concurrency,
        tok_s=_client_tok_s(with_speed),
        engine_tok_s=_median(row.engine.decode_tok_s or None for row in with_speed),
        effective_tok_s=effective_tok_s,
        ttft_ms=_median(_ttft_ms(row) for row in good),
        prompt_tokens=_sum(row.prompt_tokens for row in good),
        output_tokens=output_tokens,
        **_fault_fields(first_fault(rows)),
    )


def _client_tok_s(rows: Sequence[Request]) -> float | None:
    """Return the median speed of a stream by our clock, of answers that came in several reads."""
    streamed = [
        row for row in rows if not row.arrivals_s or len(set(row.arrivals_s)) >= FEWEST_READS
    ]
    gap_ms = _median(tpot_ms(row) or None for row in streamed)
    return None if gap_ms is None else 1000 / gap_ms


def _ttft_ms(row: Request) -> float | None:
    if row.first_token_s is None:
        return None
    return (row.first_token_s - row.due_s) * 1000


def first_fault(rows: Sequence[Request]) -> ProbeFault | None:
    return next((fault for row in rows if (fault := fault_of_row(row))), None)


def _power_fields(power: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the GPUs did during the hot runs; empty where nothing was measured."""
    if power is None:
        return {}
    gpus = power["gpus"]
    figures = {
        name: power[name]
        for name in ("mean_w", "max_w", "joules", "seconds", "throttled", "source")
    }
    figures["gpus"] = len(gpus)
    for name, extreme in (("temperature_max_c", max), ("sm_clock_min_mhz", min)):
        figures[name] = extreme((gpu[name] for gpu in gpus if gpu[name] is not None), default=None)
    return {name: value for name, value in figures.items() if value is not None}


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of the values that are known; None: none is."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values else None


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None: none is."""
    known_values = [value for value in values if value is not None]
    return median(known_values) if known_values else None


_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_MARKUP = re.compile(r"<\s*(?:!doctype|html|head|title)", re.IGNORECASE)


@dataclass(unsafe_hash=True)
class ProbeFault(Exception):
    """Why a probe failed.

    `kind`: url, connect, timeout, closed, protocol, auth, busy, http, not_json, no_model,
    no_usage, ...
    """

    kind: str
    text: str

    def without(self, secret: str | None) -> ProbeFault:
        """Return the fault without a key: a server may repeat the one that it refuses."""
        if secret:
            return ProbeFault(self.kind, self.text.replace(secret, "***"))
        return self


def fault_of(error: Exception) -> ProbeFault:
    """Return the fault that stands for an error."""
    if isinstance(error, ProbeFault):
        return error
    if isinstance(error, SkepError):
        text = error.message
    else:
        text = f"{type(error).__name__}: {error}"
    kind = "error"
    if isinstance(error, WireFailure):
        kind = error.kind
        text = str(error)
    elif isinstance(error, EndpointError) and isinstance(error.__context__, WireFailure):
        kind = error.__context__.kind
    elif isinstance(error, EndpointError):
        status = _STATUS.search(text)
        if status:
            kind = _kind_of_status(int(status[1]))
        else:
            kind = "not_json"
    elif isinstance(error, UserError):
        kind = _kind_of_user_error(text)
    return ProbeFault(kind, one_line(text))


def _kind_of_user_error(text: str) -> str:
    if "URL" in text:
        return "url"
    if "serve" in text:
        return "no_model"
    return "settings"


def probe_error(probe: Probe) -> EndpointError:
    """Return the error of a failed probe that somebody asked for."""
    hint = f"`skep monitor status` shows it; it counts as a failed probe of `{probe.target}`"
    if probe.error_kind == BUSY:
        hint = "the target answered that it is busy; this does not count as an outage"
    return EndpointError(f"{probe.target}: {probe.error or probe.error_kind}", hint=hint)


def fault_of_row(row: Request) -> ProbeFault | None:
    """Return the fault of a request; None: it succeeded."""
    if row.error_kind is None:
        return None
    kind = row.error_kind
    text = row.error or row.error_kind
    if kind.startswith("http_"):
        if _MARKUP.search(text):
            text = "a page instead of JSON"
        status = row.status or 0
        if status == 404 and "model" in text.lower():
            kind = "no_model"
        else:
            kind = _kind_of_status(status)
        text = f"HTTP {status}: {text}"
    if kind == "garbage":
        kind = "not_json"
    return ProbeFault(kind, one_line(text))


def _kind_of_status(status: int) -> str:
    if status in (401, 403):
        return "auth"
    return BUSY if status == 429 else "http"
