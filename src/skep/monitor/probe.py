"""One probe of one target: read its load, send a first request (the cold run), then the timed hot
runs.

Any failure becomes a failed probe with an error kind and one line of text; only cancellation is
raised. Uses the load generator's own sender: times are those of network reads, tokens come from
`usage`."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
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
LOOKS = 5  # after the last request: an engine may need a moment to let go of its slot
BETWEEN_LOOKS_S = 0.1
TOKENS_OF_CHANCE = 8  # more than these beyond one's own, and a twentieth: somebody else's

# What runs and what waits, in the order of who stands in front of whom.
_GAUGES = (
    ("skep_slots_busy", "skep_queue_length"),
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
_FRONTS = {
    "skep_slots_busy": "skep_slots"
}  # a gauge without values is zero where this one is there
_TOKENS = (
    "skep_output_tokens_total",
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
)


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
        load = TargetLoad() if samples is None else load_of(samples)
        if load.running is None:
            busy = await fetch_state(pool, "/slots", count_busy, headers=headers, timeout_s=ASK_S)
            return replace(load, running=busy, waiting=None)
    except WireFailure:
        return TargetLoad()
    return load


async def read_load_after(pool: Pool, headers: Mapping[str, str]) -> TargetLoad:
    """Read the load after one's own requests: wait a moment for their slots to be released."""
    for _ in range(LOOKS - 1):
        load = await read_load(pool, headers)
        if not (load.running or load.waiting):
            return load
        await asyncio.sleep(BETWEEN_LOOKS_S)
    return await read_load(pool, headers)


def load_of(counters: Mapping[str, float]) -> TargetLoad:
    told = next(
        (pair for pair in _GAUGES if pair[0] in counters or _FRONTS.get(pair[0]) in counters), None
    )
    if told:
        values = [counters.get(name, 0.0) for name in told]
    else:
        values = [math.nan, math.nan]
    running, waiting = (round(value) if 0 <= value < math.inf else None for value in values)
    tokens = next((counters[name] for name in _TOKENS if name in counters), None)
    return TargetLoad(running, waiting, tokens, counters.get("process_start_time_seconds"))


def other_requests(
    before: TargetLoad, after: TargetLoad, own_tokens: int | None
) -> tuple[int | None, int | None]:
    """Return the most requests of others that ran and waited.

    `own_tokens` is None where not all are known.
    """
    both = ((before.running, after.running), (before.waiting, after.waiting))
    running, waiting = (max((n for n in pair if n is not None), default=None) for pair in both)
    if (
        not running
        and own_tokens is not None
        and before.tokens_total is not None
        and after.tokens_total is not None
    ):
        others = after.tokens_total - before.tokens_total - own_tokens
        if others > max(TOKENS_OF_CHANCE, own_tokens / 20):
            running = 1  # at least
    return running, waiting


def fresh_prompt(rng: Random, tokens: int) -> Prompt:
    """Return a prompt that no cache has seen, of about the length asked for, or the shortest
    possible one.
    """
    fewest = math.ceil(FEWEST_PIECES * CHARS_PER_PIECE / TokenCalibration().chars_per_token)
    return next(coding_prompts(rng, tokens=max(tokens, fewest)))


HERE = "here"
BEGAN_AT = "process_began_at"  # in a probe's `host`
_VERSION_PATHS = {"vllm": "/version", "ollama": "/api/version", "sglang": "/get_server_info"}


def machine_of(url: str) -> str:
    """Return which machine a target runs on, so that two probes do not disturb each other
    there.
    """
    try:
        host = parse_url(url)[0].host.lower()
    except UserError:
        return url  # its probe will fail, and say so
    if host in ("localhost", "") or host.endswith(".localhost"):
        return HERE
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_loopback or address.is_unspecified:
        return HERE
    return host


async def read_versions(
    endpoint: Endpoint, pool: Pool, nvidia: NvidiaReport | None
) -> dict[str, str]:
    """`nvidia`: of this machine, where the target runs here. What is not told is not there."""
    told = endpoint.engine
    found: dict[str, object] = {"skep": __version__, "model": endpoint.model}
    if isinstance(told.get("model_path"), str):
        found["model"] = PurePath(told["model_path"].replace("\\", "/")).name or endpoint.model
    meta = told.get("meta")
    if isinstance(meta, Mapping):
        found["weights_bytes"] = meta.get("size")
    found |= {name: told.get(name) for name in ("engine", "build", "server")}
    if endpoint.api == "ollama":
        engine = "ollama"
    else:
        engine = str(told.get("engine", "")).lower()
    if engine in _VERSION_PATHS and "build" not in told:
        headers = dict(endpoint.headers)
        answer = await fetch_if_there(
            pool, "GET", _VERSION_PATHS[engine], headers=headers, timeout_s=ASK_S
        )
        version = answer.document().get("version") if answer else None
        found["build"] = version if isinstance(version, str) else None
    if nvidia is not None:
        found |= {"driver": nvidia.driver_version, "cuda": nvidia.cuda_version}
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


FIND_S = 10.0  # to tell which models it serves
WHOLE = 2.0  # a probe takes at most so many times a request's timeout
FEWEST_TOKENS = 8  # of an answer: fewer have no speed
FEWEST_READS = 4  # it came in: what a proxy held back and sent at once has none on our clock
# These go on to `max_tokens` when asked to; a server of others may refuse a field that it does not
# know.
_KNOWS_FIXED_OUTPUT = ("llamacpp", "llama.cpp", "vllm", "sglang", "skep", "skep-fake")


async def probe_target(
    due: Due,
    *,
    key: str | None = None,
    clock: Callable[[], float] = time.time,
    nvidia: Callable[[], NvidiaReport] = read_nvidia,
    meter: Callable[[], PowerMeter | None] = open_meter,
    nonce: str | None = None,
) -> tuple[Probe, list[ProbeSample]]:
    """`key`: the value of the variable `target.key_env`.
    `nvidia` and `meter` read this machine's GPUs and power, for a target that runs on it."""
    target = due.target
    started_at = clock()
    began_s = time.monotonic()
    fault: ProbeFault | None = None
    probe_run = _ProbeRun(target, clock, Random(nonce or secrets.token_hex(8)))
    whole_s = FIND_S + WHOLE * target.timeout_s
    try:
        if target.key_env and not key:
            raise ProbeFault("auth", f"the variable `{target.key_env}` with its key is not set")
        async with asyncio.timeout(whole_s):
            await probe_run.run(key, nvidia, meter)
    except TimeoutError:
        fault = ProbeFault("timeout", f"the whole probe was not done within {whole_s:g} s")
    except Exception as error:  # nothing that a target says may end the watch over it
        fault = fault_of(error).without(key)
    running, waiting = other_requests(probe_run.before, probe_run.after, probe_run.own_tokens)
    # A clock that is set meanwhile does not bend it.
    ended_at = started_at + time.monotonic() - began_s
    if fault is None:
        outcome = ProbeOutcome.DONE
    else:
        outcome = ProbeOutcome.FAILED
    probe = Probe(
        *(target.name, due.era, due.slot, due.at, ended_at, outcome, started_at),
        **_told(fault),
        running=running,
        waiting=waiting,
        model=target.model if probe_run.endpoint is None else probe_run.endpoint.model,
        versions=probe_run.versions,
        host=probe_run.host,
        simulated=probe_run.endpoint is not None and probe_run.endpoint.simulated,
    )
    return probe, probe_run.samples


def _told(fault: ProbeFault | None) -> dict[str, Any]:
    """Return what a probe or a sample says of a fault."""
    if fault is None:
        return {}
    return {"error_kind": fault.kind, "error": fault.text}


class _ProbeRun:
    """The requests of a probe, and its results so far, which are kept where it fails later."""

    def __init__(self, target: ProbeTarget, clock: Callable[[], float], rng: Random) -> None:
        self._target = target
        self._clock = clock
        self._rng = rng
        self._key: str | None = None
        self._fixed = True
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
        engine = str(endpoint.engine.get("engine", "")).lower()
        known = engine in _KNOWS_FIXED_OUTPUT or "build" in endpoint.engine
        self._fixed = known or target.kind != "endpoint"
        is_here = machine_of(target.url) == HERE
        if is_here:
            nvidia = await asyncio.to_thread(read_gpus)
        else:
            nvidia = None
        if is_here:
            meter = await asyncio.to_thread(open_power)
        else:
            meter = None
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
            self.host |= _host_of(await asyncio.to_thread(meter.end))

    async def _timed(
        self, sender: Sender, heat: Heat, shape: ProbeShape, concurrency: int
    ) -> None:
        if shape is ProbeShape.LONG:
            tokens = self._target.long_tokens
        else:
            tokens = self._target.short_tokens
        prompts = [fresh_prompt(self._rng, self._target.prompt_tokens) for _ in range(concurrency)]
        numbered = enumerate(prompts)
        tasks = [
            BenchTask(1, 0, place, one.kind, one.messages, tokens, self._fixed)
            for place, one in numbered
        ]
        await sender.pool.prepare(concurrency)  # the time to connect is not the engine's
        at = self._clock()
        rows = [row for row, _ in await asyncio.gather(*(sender.ask(task) for task in tasks))]
        self._keep(rows, sample_of(rows, at, heat, shape, concurrency))

    def _keep(self, rows: Sequence[Request], sample: ProbeSample) -> None:
        """Keep the sample.

        The first fault ends the probe: a target that hangs is not waited for again and
        again.
        """
        counts = [self.own_tokens, *(row.output_tokens for row in rows)]
        self.own_tokens = None if None in counts else _sum(counts)
        fault = first_fault(rows)
        self.samples.append(replace(sample, **_told(fault and fault.without(self._key))))
        if fault is not None:
            raise fault


def sample_of(
    rows: Sequence[Request], at: float, heat: Heat, shape: ProbeShape, concurrency: int
) -> ProbeSample:
    """Of a stream: medians over those that succeeded.

    Of the run: all their tokens over its wall time.
    """
    good = [row for row in rows if row.ok]
    whole = [row for row in good if (row.output_tokens or 0) >= FEWEST_TOKENS]
    bit_by_bit = [
        row for row in whole if not row.arrivals_s or len(set(row.arrivals_s)) >= FEWEST_READS
    ]
    gaps = [gap for row in bit_by_bit if (gap := tpot_ms(row))]
    engine = [row.engine.decode_tok_s for row in whole if row.engine.decode_tok_s]
    first = [
        (row.first_token_s - row.due_s) * 1000 for row in good if row.first_token_s is not None
    ]
    wall_s = max(row.ended_s for row in rows) - min(row.due_s for row in rows)
    tokens = _sum(row.output_tokens for row in good)
    return ProbeSample(
        *(at, heat, shape, concurrency),
        tok_s=1000 / median(gaps) if gaps else None,
        engine_tok_s=median(engine) if engine else None,
        effective_tok_s=tokens / wall_s
        if tokens and wall_s > 0 and len(whole) == len(good)
        else None,
        ttft_ms=median(first) if first else None,
        prompt_tokens=_sum(row.prompt_tokens for row in good),
        output_tokens=tokens,
        **_told(first_fault(rows)),
    )


def first_fault(rows: Sequence[Request]) -> ProbeFault | None:
    return next((fault for row in rows if (fault := fault_of_row(row))), None)


def _host_of(drawn: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the cards did during the hot runs; empty where nothing was measured."""
    if drawn is None:
        return {}
    gpus = drawn["gpus"]
    found = {
        name: drawn[name]
        for name in ("mean_w", "max_w", "joules", "seconds", "throttled", "source")
    }
    found["gpus"] = len(gpus)
    for name, extreme in (("temperature_max_c", max), ("sm_clock_min_mhz", min)):
        found[name] = extreme((gpu[name] for gpu in gpus if gpu[name] is not None), default=None)
    return {name: value for name, value in found.items() if value is not None}


def _sum(values: Any) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_MARKUP = re.compile(r"<\s*(?:!doctype|html|head|title)", re.IGNORECASE)


@dataclass(unsafe_hash=True)
class ProbeFault(Exception):
    """`kind`: url, connect, timeout, closed, protocol, auth, busy, http, not_json, no_model,
    no_usage, ...
    """

    kind: str
    text: str

    def without(self, secret: str | None) -> ProbeFault:
        """A server may repeat the key that it refuses."""
        if secret:
            return ProbeFault(self.kind, self.text.replace(secret, "***"))
        return self


def fault_of(error: Exception) -> ProbeFault:
    """Of whatever ended a probe before its requests were made."""
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
        if "URL" in text:
            kind = "url"
        else:
            kind = "no_model" if "serve" in text else "settings"
    return ProbeFault(kind, one_line(text))


def probe_error(probe: Probe) -> EndpointError:
    """Return the error of a failed probe that somebody asked for."""
    hint = f"`skep monitor status` shows it; it counts as a failed probe of `{probe.target}`"
    if probe.error_kind == BUSY:
        hint = "the target answered that it is busy; this does not count as an outage"
    return EndpointError(f"{probe.target}: {probe.error or probe.error_kind}", hint=hint)


def fault_of_row(row: Request) -> ProbeFault | None:
    """Of a request; None: it succeeded."""
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
    return ProbeFault("not_json" if kind == "garbage" else kind, one_line(text))


def _kind_of_status(status: int) -> str:
    if status in (401, 403):
        return "auth"
    return BUSY if status == 429 else "http"
