"""What a calibration is made of: which model, engine, format and cards answer at an endpoint, and the fit to them.

What the endpoint does not tell and no flag says is assumed and said, or asked for.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from skep.bench.calibration import CalibrationRuns
from skep.bench.endpoint import Endpoint
from skep.catalog.gpus import HostFacts
from skep.catalog.models import find_geometry
from skep.catalog.pullable import find_pullable
from skep.deploy.plan_request import ModelFound, PlanFlags, pins_of, read_model
from skep.deploy.stored_calibration import calibration_for, host_key
from skep.errors import UserError
from skep.host.facts import memory_bandwidth_gbs
from skep.paths import LOOPBACK, user_paths
from skep.planner.calibration import fit, speed_model_maker
from skep.planner.constants import published_constants
from skep.planner.memory import has_pool
from skep.planner.quants import KV_TYPES, QUANTS
from skep.planner.rigs import ResolvedRig, cpu_rig, parse_rig, rig_of_host
from skep.planner.setup import Layout, Rig, Setup
from skep.store.records import CalibrationRecord
from skep.store.writer_process import new_suffix
from skep.weights.pull import installed

ENGINES = ("vllm", "sglang", "llamacpp", "ik_llamacpp", "ollama", "trtllm")
# What a hive with `--simulate` says of itself.
_SIMULATED = re.compile(
    r"simulated: (?P<model>\S+) (?P<quant>.+?), KV (?P<kv>.+?)(?:, (?P<method>\w+) n=(?P<depth>\d+))?, "
    r"(?:\d+ x )?TP=(?P<tp>\d+)(?: \+ PP=(?P<pp>\d+))?(?: \+ EP=(?P<ep>\d+))? on (?P<gpu>.+), as (?P<engine>\w+)"
)


@dataclass(frozen=True, slots=True)
class SetupFlags:
    """What a user says of an endpoint; None: by what it tells of itself."""

    geometry: str | None = None
    gpu: str | None = None
    link: str | None = None
    bandwidth: float | None = None
    engine: str | None = None
    quant: str | None = None
    kv: str | None = None
    tp: int | None = None
    pp: int | None = None
    spec: str | None = None
    no_graphs: bool = False


@dataclass(frozen=True, slots=True)
class Described:
    setup: Setup
    rig: Rig
    capacity: int | None  # slots of all replicas; None: it does not say
    notes: tuple[str, ...]


def describe(flags: SetupFlags, endpoint: Endpoint, host: HostFacts) -> Described:
    """What the endpoint does not tell and no flag says is assumed and said, or asked for."""
    flags, ep = _as_simulated(flags, endpoint)
    engine = _engine(flags, endpoint.engine)
    model, model_notes = _model(flags, endpoint)
    pins = pins_of(PlanFlags(endpoint.model, quant=flags.quant, kv=flags.kv, spec=flags.spec), model)
    if pins.quant is None:
        hint = "say it with --quant, such as --quant awq or --quant bf16"
        raise UserError(f"how the weights of `{endpoint.model}` are quantized is not known", hint=hint)
    replicas, capacity = _count(endpoint.engine, "replicas") or 1, _count(endpoint.engine, "slots")
    rig = _rig(flags, endpoint, host, replicas)
    layout = _layout(flags, rig.rig, replicas, engine, ep)
    slots = None if capacity is None else max(1, capacity // replicas)
    setup = Setup(
        model.geometry, pins.quant, pins.kv or KV_TYPES["bf16"], engine, layout, slots=slots,
        graphs=not flags.no_graphs, spec=pins.spec,
    )  # fmt: skip
    return Described(setup, rig.rig, capacity, (*model_notes, *rig.notes))


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    return value if isinstance(value, int) and value > 0 else None


def _as_simulated(flags: SetupFlags, endpoint: Endpoint) -> tuple[SetupFlags, int]:
    """A simulated hive tells its setup in words; flags win over them. Gives the expert-parallel size too."""
    match = _SIMULATED.search(str(endpoint.engine.get("engine", ""))) if endpoint.simulated else None
    if match is None:
        return flags, 1
    said: dict[str, Any] = {
        "geometry": match["model"],
        "quant": next((quant.id for quant in QUANTS.values() if quant.title == match["quant"]), None),
        "kv": next((kv.id for kv in KV_TYPES.values() if kv.title == match["kv"]), None),
        "spec": f"{match['method']}:{match['depth']}" if match["method"] else None,
        "gpu": match["gpu"],
        "engine": match["engine"],
        "tp": int(match["tp"]),
        "pp": int(match["pp"] or 1),
    }
    wanted = {name: value for name, value in said.items() if getattr(flags, name) is None}
    return replace(flags, **wanted), int(match["ep"] or 1)


def _engine(flags: SetupFlags, told: Mapping[str, Any]) -> str:
    if flags.engine is not None:
        name = flags.engine.strip().lower().replace("llama.cpp", "llamacpp")
        if name not in ENGINES:
            raise UserError(f"--engine `{flags.engine}` is not known", hint=f"known: {', '.join(ENGINES)}")
        return name
    words = f"{told.get('engine', '')} {told.get('server', '')} {told.get('build', '')}".lower().replace(".", "")
    for word, name in (("ollama", "ollama"), ("llamacpp", "llamacpp"), ("vllm", "vllm"), ("sglang", "sglang")):
        if word in words:
            return name
    hint = f"say it with --engine; known: {', '.join(ENGINES)}"
    raise UserError("the endpoint does not say which engine it is", hint=hint)


def _model(flags: SetupFlags, endpoint: Endpoint) -> tuple[ModelFound, tuple[str, ...]]:
    """By --geometry, else by the name it is served as; a file that lies here tells its format as well."""
    file = _file_here(endpoint)
    if flags.geometry is not None:
        found = read_model(flags.geometry)
        return found, found.notes
    known = find_geometry(endpoint.model)
    if file is not None:
        read = read_model(file)
        return (replace(read, geometry=known) if known else read), (() if flags.quant else read.notes)
    if known is None:
        hint = "say what it is with --geometry: a name of `skep catalog models`, its config.json or its GGUF file"
        raise UserError(f"no model of the catalogue is called `{endpoint.model}`", hint=hint)
    found = read_model(endpoint.model)
    return found, (() if flags.quant else found.notes)


def _file_here(endpoint: Endpoint) -> str | None:
    """Return the GGUF file that llama.cpp names, or the one that was pulled, where it is this machine that serves."""
    if endpoint.origin.host not in LOOPBACK or endpoint.simulated:
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
        hint = 'say which cards it has, such as --gpu "2x rtx-3090"'
        raise UserError(f"{endpoint.url} is not on this machine", hint=hint)
    if endpoint.simulated:
        raise UserError("which cards are simulated is not known", hint='say it with --gpu, such as --gpu "2x rtx-3090"')
    if host.gpus:
        return rig_of_host(host, flags.link)
    bandwidth = flags.bandwidth or memory_bandwidth_gbs(host.cpu_cores)
    rig = cpu_rig(host, bandwidth, measured=flags.bandwidth is None, replicas=replicas)
    how = "" if flags.bandwidth else ", memory measured by copying"
    return ResolvedRig(rig, (f"no GPU here: {rig.title}{how}",))


def _layout(flags: SetupFlags, rig: Rig, replicas: int, engine: str, ep: int) -> Layout:
    """All cards work, unless a flag says otherwise: side by side in llama.cpp, as one in the others."""
    each = max(1, len(rig.cards) // replicas)
    if flags.tp is None and flags.pp is None:
        tp, pp = (each, 1) if has_pool(engine) else (1, each)
    elif flags.tp is None:
        tp, pp = 1, flags.pp or 1
    else:
        tp, pp = flags.tp, flags.pp or 1
    layout = Layout(tp, pp, ep, replicas)
    if layout.cards > len(rig.cards):
        has = f"{len(rig.cards)} {'card' if len(rig.cards) == 1 else 'cards'}"
        hint = "check --gpu, --tp and --pp: TP x PP x replicas cards are wanted"
        raise UserError(f"{layout} takes {layout.cards} cards, `{rig.title}` has {has}", hint=hint)
    return layout


def fitted_record(
    endpoint: Endpoint, described: Described, taken: CalibrationRuns, host: HostFacts
) -> tuple[CalibrationRecord, list[str]]:
    """Return the fit as it is stored, and what to be warned of."""
    setup, rig, measured = described.setup, described.rig, taken.measured
    fitted = fit(speed_model_maker(setup, rig, published_constants(), measured), measured)
    warnings = []
    if taken.drift is not None and not taken.drift.contains(1.0):
        drift = f"{taken.drift.estimate:.2f} times as fast at the end as at the beginning"
        warnings.append(f"warning: one agent alone was {drift}")
    warnings += [
        f"warning: the factor on {name} was cut to its limit; are --gpu, --quant and --engine what really runs?"
        for name in fitted.at_limit
    ]
    at = time.time()
    record = calibration_for(
        setup, rig, measured, fitted, host,
        name=f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{new_suffix()}",
        at=at,
        where=host_key(host) if endpoint.origin.host in LOOPBACK else str(endpoint.origin),
        simulated=endpoint.simulated,
        more={"url": endpoint.url, "runs": list(taken.run_ids), "engine": dict(endpoint.engine)},
    )  # fmt: skip
    return record, warnings
