"""What it is that answers, in the planner's terms: by the flags, by what the endpoint tells, by this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.planning import Flags, ModelFound, pins_of, read_model
from skep.catalog.models import find_geometry
from skep.catalog.pullable import find_pullable
from skep.errors import UserError
from skep.host.bandwidth import memory_bandwidth_gbs
from skep.places import LOOPBACK, user_paths
from skep.planner.cpu_rig import cpu_rig
from skep.planner.memory_facts import has_pool
from skep.planner.quants import KV_TYPES, QUANTS
from skep.planner.rig_words import Found, parse_rig, rig_of_host
from skep.planner.setup import Layout, Rig, Setup
from skep.records import HostFacts
from skep.weights.pull import installed

ENGINES = ("vllm", "sglang", "llamacpp", "ik_llamacpp", "ollama", "trtllm")
# What a hive with `--simulate` says of itself.
_SIMULATED = re.compile(
    r"simulated: (?P<model>\S+) (?P<quant>.+?), KV (?P<kv>.+?)(?:, (?P<method>\w+) n=(?P<depth>\d+))?, "
    r"(?:\d+ x )?TP=(?P<tp>\d+)(?: \+ PP=(?P<pp>\d+))?(?: \+ EP=(?P<ep>\d+))? on (?P<gpu>.+), as (?P<engine>\w+)"
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """The flags of `skep calibrate`, as they were typed."""

    url: str | None = None
    model: str | None = None
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
    levels: str | None = None
    check: str | None = None
    prompt_tokens: int = 1024
    budget: str = "5m"
    key_env: str | None = None


@dataclass(frozen=True, slots=True)
class Described:
    setup: Setup
    rig: Rig
    capacity: int | None  # slots of all replicas; None: it does not say
    notes: tuple[str, ...]


def describe(wishes: Wishes, endpoint: Endpoint, host: HostFacts) -> Described:
    """What the endpoint does not tell and no flag says is assumed and said, or asked for."""
    wishes, ep = _as_simulated(wishes, endpoint)
    engine = _engine(wishes, endpoint.engine)
    model, model_notes = _model(wishes, endpoint)
    pins = pins_of(Flags(endpoint.model, quant=wishes.quant, kv=wishes.kv, spec=wishes.spec), model)
    if pins.quant is None:
        hint = "say it with --quant, such as --quant awq or --quant bf16"
        raise UserError(f"how the weights of `{endpoint.model}` are quantized is not known", hint=hint)
    replicas, capacity = _count(endpoint.engine, "replicas") or 1, _count(endpoint.engine, "slots")
    rig = _rig(wishes, endpoint, host, replicas)
    layout = _layout(wishes, rig.rig, replicas, engine, ep)
    slots = None if capacity is None else max(1, capacity // replicas)
    setup = Setup(
        model.geometry, pins.quant, pins.kv or KV_TYPES["bf16"], engine, layout, slots=slots,
        graphs=not wishes.no_graphs, spec=pins.spec,
    )  # fmt: skip
    return Described(setup, rig.rig, capacity, (*model_notes, *rig.notes))


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    return value if isinstance(value, int) and value > 0 else None


def _as_simulated(wishes: Wishes, endpoint: Endpoint) -> tuple[Wishes, int]:
    """A simulated hive tells its setup in words; flags win over them. Gives the expert-parallel size too."""
    match = _SIMULATED.search(str(endpoint.engine.get("engine", ""))) if endpoint.simulated else None
    if match is None:
        return wishes, 1
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
    wanted = {name: value for name, value in said.items() if getattr(wishes, name) is None}
    return replace(wishes, **wanted), int(match["ep"] or 1)


def _engine(wishes: Wishes, told: Mapping[str, Any]) -> str:
    if wishes.engine is not None:
        name = wishes.engine.strip().lower().replace("llama.cpp", "llamacpp")
        if name not in ENGINES:
            raise UserError(f"--engine `{wishes.engine}` is not known", hint=f"known: {', '.join(ENGINES)}")
        return name
    words = f"{told.get('engine', '')} {told.get('server', '')} {told.get('build', '')}".lower().replace(".", "")
    for word, name in (("ollama", "ollama"), ("llamacpp", "llamacpp"), ("vllm", "vllm"), ("sglang", "sglang")):
        if word in words:
            return name
    hint = f"say it with --engine; known: {', '.join(ENGINES)}"
    raise UserError("the endpoint does not say which engine it is", hint=hint)


def _model(wishes: Wishes, endpoint: Endpoint) -> tuple[ModelFound, tuple[str, ...]]:
    """By --geometry, else by the name it is served as; a file that lies here tells its format as well."""
    file = _file_here(endpoint)
    if wishes.geometry is not None:
        found = read_model(wishes.geometry)
        return found, found.notes
    known = find_geometry(endpoint.model)
    if file is not None:
        read = read_model(file)
        return (replace(read, geometry=known) if known else read), (() if wishes.quant else read.notes)
    if known is None:
        hint = "say what it is with --geometry: a name of `skep catalog models`, its config.json or its GGUF file"
        raise UserError(f"no model of the catalogue is called `{endpoint.model}`", hint=hint)
    found = read_model(endpoint.model)
    return found, (() if wishes.quant else found.notes)


def _file_here(endpoint: Endpoint) -> str | None:
    """The GGUF file that llama.cpp names, or the one that was pulled, where it is this machine that serves."""
    if endpoint.origin.host not in LOOPBACK or endpoint.simulated:
        return None
    named = endpoint.engine.get("model_path")
    if isinstance(named, str) and named.endswith(".gguf") and os.path.isfile(named):  # noqa: PTH113
        return named
    if find_pullable(endpoint.model) is None:
        return None
    path = installed(endpoint.model, user_paths(os.environ).cache)
    return None if path is None else str(path)


def _rig(wishes: Wishes, endpoint: Endpoint, host: HostFacts, replicas: int) -> Found:
    if wishes.gpu is not None:
        return Found(parse_rig(wishes.gpu, wishes.link))
    if endpoint.origin.host not in LOOPBACK:
        hint = 'say which cards it has, such as --gpu "2x rtx-3090"'
        raise UserError(f"{endpoint.url} is not on this machine", hint=hint)
    if endpoint.simulated:
        raise UserError("which cards are simulated is not known", hint='say it with --gpu, such as --gpu "2x rtx-3090"')
    if host.gpus:
        return rig_of_host(host, wishes.link)
    bandwidth = wishes.bandwidth or memory_bandwidth_gbs(host.cpu_cores)
    rig = cpu_rig(host, bandwidth, measured=wishes.bandwidth is None, replicas=replicas)
    how = "" if wishes.bandwidth else ", memory measured by copying"
    return Found(rig, (f"no GPU here: {rig.title}{how}",))


def _layout(wishes: Wishes, rig: Rig, replicas: int, engine: str, ep: int) -> Layout:
    """All cards work, unless a flag says otherwise: side by side in llama.cpp, as one in the others."""
    each = max(1, len(rig.cards) // replicas)
    if wishes.tp is None and wishes.pp is None:
        tp, pp = (each, 1) if has_pool(engine) else (1, each)
    elif wishes.tp is None:
        tp, pp = 1, wishes.pp or 1
    else:
        tp, pp = wishes.tp, wishes.pp or 1
    layout = Layout(tp, pp, ep, replicas)
    if layout.cards > len(rig.cards):
        has = f"{len(rig.cards)} {'card' if len(rig.cards) == 1 else 'cards'}"
        hint = "check --gpu, --tp and --pp: TP x PP x replicas cards are wanted"
        raise UserError(f"{layout} takes {layout.cards} cards, `{rig.title}` has {has}", hint=hint)
    return layout
