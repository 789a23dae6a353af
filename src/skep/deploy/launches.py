"""From settings to replicas: names, cards, ports, weights, and every engine asked whether it could start them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device, HostFacts
from skep.catalog.names import model_id
from skep.config.settings import OWN_ENGINES, Serve, Settings
from skep.deploy import gpus
from skep.engines.base import Launch, engine_named
from skep.engines.discovery import find_program
from skep.errors import SkepError, UserError
from skep.host.facts import count_busy_cores, read_host
from skep.host.nvidia import GpuCard, NvidiaReport, read_gpu_memory, visible_gpus
from skep.paths import LOOPBACK, Paths
from skep.units import parse_bytes
from skep.weights.config_json import read_config
from skep.weights.gguf import check_file
from skep.weights.gguf_geometry import geometry_of
from skep.weights.hub import parse_hub_source, pull_hub
from skep.weights.pull import pull
from skep.wire.heads import parse_url

PullProgress = Callable[[int, int | None], None]

REMOTE = "remote"  # the engine of a launch that skep does not start
READ_GGUF = ("embedded", "llamacpp")  # their weights are one file, fetched and checked here
FROM_HUB = ("vllm", "sglang")  # they read folders of the hub's form
NO_WEIGHTS = ("fake", "simulated")
_ALIKE = ("engine", "slots", "context_tokens", "extra", "reserve", "soft_slots", "about", "options", "env", "binary",
          "pinned", "idle_unload_s")  # fmt: skip  # what a launch has as its table says it
KV_BYTES = {"f32": 4.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
            "iq4_nl": 18 / 32}  # fmt: skip  # a value


class LocalMachine(msgspec.Struct, frozen=True):
    """The machine that replicas are placed on."""

    cores: int
    cards: tuple[GpuCard, ...] = ()
    room: tuple[tuple[str, int], ...] = ()
    devices: tuple[Device, ...] = ()  # what the cards are, in the same order; empty: not known
    busy: int = 0  # of the cores, with the work of others


def read_machine() -> LocalMachine:
    """Read cores, memory and the cards that CUDA_VISIBLE_DEVICES leaves visible."""
    cards = visible_gpus(read_gpu_memory(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    host = read_host() if cards else read_host(NvidiaReport())
    room, busy = gpus.machine_resources(cards, host.memory_bytes), count_busy_cores(host.cpu_cores)
    return LocalMachine(host.cpu_cores, cards, room, _devices(host, cards), busy)


def _devices(host: HostFacts, cards: Sequence[GpuCard]) -> tuple[Device, ...]:
    """Return the cards as the catalogue has them; none where one is not in it: no failure is predicted then."""
    from skep.config.rigs import rig_of_host

    numbers = [gpu.index for gpu in host.gpus]
    if not cards or not {card.index for card in cards} <= set(numbers):
        return ()
    try:
        known = rig_of_host(host).rig.cards
    except UserError:
        return ()
    return tuple(known[numbers.index(card.index)] for card in cards)


def plan_launches(
    settings: Settings, paths: Paths, progress: PullProgress = lambda _done, _total: None, *,
    running: Sequence[Launch] = (), machine: LocalMachine | None = None, starting: bool = True, engine_key: str = "",
) -> tuple[Launch, ...]:  # fmt: skip
    """Return all replicas, checked. May download weights. `starting`: nothing runs yet, so cards must have room now."""
    machine = machine or read_machine()
    if running or not starting:
        machine = replace(machine, busy=0)  # with work of our own
    served: list[Launch] = []
    for serve in settings.serve:
        if serve.engine not in OWN_ENGINES:
            engine_named(serve.engine)
            find_program(serve.engine, serve.binary)  # before weights are fetched for it
        taken = {gpu for launch in served for gpu in launch.gpus}
        placed: list[tuple[int, ...]] = []
        # Ollama and llama.cpp spread one model over all cards they see, unless they are told otherwise.
        alone = serve.replicas == 1 and serve.options.cards == 1 and not serve.gpus and serve.options.split is None
        divides_itself = serve.engine in ("ollama", "llamacpp") and alone and len(machine.cards) > 1
        if on_cards(serve) and not divides_itself:
            placed = gpus.assign_cards(serve.replicas, serve.options.cards, serve.gpus, machine.cards, taken)
        made = _launches(serve, settings, paths, progress, running, machine, placed)
        served += [replace(launch, api_key=engine_key) for launch in made]
    launches = (*served, *remote_launches(settings))
    check_names(launches)
    ports = [launch.port for launch in launches if launch.port]
    for port in ports:
        if ports.count(port) > 1:
            hint = "set `engine_port` further apart, or leave it out"
            raise UserError(f"two replicas are given port {port}", hint=hint)
    for launch in launches:
        if launch.engine != REMOTE:
            engine_named(launch.engine).check(launch)
            numbers = [card.index for card in machine.cards]
            known = launch.gpus if machine.devices else ()
            check_known_failures(launch, [machine.devices[numbers.index(gpu)] for gpu in known])
    gpus.check_together(launches, dict(machine.room))
    gpus.check_on_demand(launches, dict(machine.room), settings.max_loaded)
    if starting:
        gpus.check_free(launches, machine.cards)
    check_aliases(settings.aliases, launches)
    return tuple(_with_weights(launch, progress) for launch in launches)


def check_names(launches: Sequence[Launch]) -> None:
    """Raise where two replicas share a name, or a reserve exceeds the slots."""
    names = [launch.name for launch in launches]
    for launch in launches:
        if names.count(launch.name) > 1:
            hint = "give one [[serve]] table more `replicas`, or an [[upstream]] a `name` of its own"
            raise UserError(f"two replicas are named `{launch.name}`", hint=hint)
        if launch.reserve >= launch.slots:
            hint = "leave at least one slot for the others"
            raise UserError(f"`{launch.name}`: `reserve` = {launch.reserve} takes all {launch.slots} slots", hint=hint)
        if launch.soft_slots is not None and launch.soft_slots > launch.slots:
            hint = "leave it out to use all of them"
            raise UserError(f"`{launch.name}`: `soft_slots` = {launch.soft_slots} of {launch.slots} slots", hint=hint)


def check_aliases(aliases: Mapping[str, str], launches: Sequence[Launch]) -> None:
    models = {launch.model for launch in launches}
    for alias, model in aliases.items():
        if model not in models and "" not in models:  # the name of an upstream's model may be still to be asked
            what = f"the alias `{alias}` stands for `{model}`, which is not served"
            raise UserError(what, hint=f"served: {', '.join(sorted(models))}")


def remote_launches(settings: Settings) -> tuple[Launch, ...]:
    launches, gateway = [], settings.gateway
    for upstream in settings.upstream:
        origin, _ = parse_url(upstream.url, name="upstream")
        if origin.port == gateway.port and origin.host in (*LOOPBACK, gateway.host):
            hint = "choose another --port for the gateway"
            raise UserError(f"upstream `{upstream.url}` is the gateway's own address", hint=hint)
        if upstream.key_env is not None and not os.environ.get(upstream.key_env):
            hint = f"export {upstream.key_env}=KEY where skep is started, or leave `key_env` out"
            raise UserError(f"the key of upstream `{upstream.name}` is not in the environment", hint=hint)
        alike = msgspec.structs.asdict(upstream) | {"model": upstream.model or ""}
        launches.append(Launch(engine=REMOTE, weights=None, context_tokens=0, threads=0, **alike))
    return tuple(launches)


def check_known_failures(launch: Launch, cards: Sequence[Device]) -> None:
    """Raise where the launch is certain to fail on these cards. Empty: the cards are not known."""
    _check_heads(launch)
    from skep.engines.preflight import predict_failure  # loads the planner

    found = predict_failure(launch, cards) if cards else None
    if found is not None and found.final:
        raise UserError(f"`{launch.name}` would not start: {found.cause}", hint=found.remedy)


def _check_heads(launch: Launch) -> None:
    """Of a folder, which says how many it has: vLLM takes half a minute to find out."""
    tp, folder = launch.options.tp, Path(launch.checkpoint or "")
    if tp < 2 or launch.engine not in ("vllm", "sglang") or not (folder / "config.json").is_file():
        return
    heads = read_config(folder).heads
    if heads % tp:
        fits = ", ".join(str(n) for n in range(1, 17) if heads % n == 0)
        hint = f"tp must divide the heads: {fits}"
        raise UserError(f"tp = {tp} does not divide the {heads} attention heads of `{launch.model}`", hint=hint)


def on_cards(serve: Serve) -> bool:
    """The embedded engine is built for the CPU; what needs no weights needs no card."""
    if serve.engine in ("embedded", *NO_WEIGHTS):
        if serve.gpus or serve.options.cards > 1:
            hint = "--engine llamacpp or vllm (`engine` in skep.toml) uses cards"
            raise UserError(f"the {serve.engine} engine runs on the CPU, but `{serve.model}` asks for GPUs", hint=hint)
        return False
    return True


def _launches(
    serve: Serve, settings: Settings, paths: Paths, progress: PullProgress, running: Sequence[Launch],
    machine: LocalMachine, placed: Sequence[tuple[int, ...]],
) -> list[Launch]:  # fmt: skip
    weights, cache = _weights(serve, paths, progress)
    checkpoint = str(weights) if weights is not None else checkpoint_of(serve)
    last_port = serve.engine_port + serve.replicas - 1
    if serve.engine_port and (last_port > 65535 or serve.engine_port <= settings.gateway.port <= last_port):
        hint = f"they would use ports {serve.engine_port} to {last_port}, the gateway uses {settings.gateway.port}"
        raise UserError(f"--engine-port {serve.engine_port} does not fit {serve.replicas} replicas", hint=hint)
    cores = machine.cores - (machine.busy if serve.engine == "embedded" else 0)  # its threads wait for each other
    threads = serve.threads or max(1, cores // sum(other.replicas for other in settings.serve))
    # one replica more is no reason to restart the others
    known = {} if serve.threads else {launch.name: launch.threads for launch in running}
    size = size_of(weights) if weights is not None else None
    launches = []
    for number in range(serve.replicas):
        name = f"{stem_of(serve.model)}-{number}"
        launch = launch_of(serve, name, weights, checkpoint, threads=known.get(name, threads))
        port = serve.engine_port + number if serve.engine_port else 0
        launch = replace(launch, port=port, gpus=placed[number] if placed else ())
        if serve.room is not None:
            room = gpus.spread(parse_bytes(serve.room), launch)
        else:
            room = gpus.room_of(launch, machine.cards, weights=size, cache=cache)
        launches.append(replace(launch, room=room))
    return launches


def stem_of(model: str) -> str:
    """Return the beginning of its replicas' names."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model_id(model)).strip("-.") or "model"


def launch_of(serve: Serve, name: str, weights: Path | None, checkpoint: str | None, *, threads: int) -> Launch:
    """Return one replica, wherever it runs."""
    alike = {field: getattr(serve, field) for field in _ALIKE}
    on_demand, model = serve.on_demand and not serve.pinned, model_id(serve.model)
    return Launch(
        name=name, model=model, weights=weights, checkpoint=checkpoint, threads=threads, on_demand=on_demand, **alike
    )


def checkpoint_of(serve: Serve) -> str | None:
    """Where the engine finds its weights itself. A path that is not there is found here, not by a dying engine."""
    if serve.engine in NO_WEIGHTS:
        return None
    named = serve.checkpoint or serve.model
    path = Path(named).expanduser()
    if serve.engine == "ollama" or not named.startswith(("/", "./", "../", "~")):
        return named if serve.engine == "ollama" or not path.is_dir() else str(path.absolute())
    if not path.exists():
        raise UserError(f"the model path `{named}` does not exist", hint="check the path of the model or --checkpoint")
    if path.is_dir() and not (path / "config.json").is_file():
        hint = "name the folder that holds config.json and the weights"
        raise UserError(f"`{named}` has no config.json", hint=hint)
    return str(path.absolute())


def _with_weights(launch: Launch, progress: PullProgress) -> Launch:
    """Return it with the folder of a hub's checkpoint, fetched if need be: an engine would do so without a word."""
    source = parse_hub_source(launch.checkpoint) if launch.checkpoint and launch.engine in FROM_HUB else None
    if source is None or os.environ.get("VLLM_USE_MODELSCOPE"):
        return launch
    return replace(launch, checkpoint=str(pull_hub(source, progress).path))


def _weights(serve: Serve, paths: Paths, progress: PullProgress) -> tuple[Path | None, int | None]:
    """The file, pulled if need be and checked: a damaged one is found here and not by a dying engine. And its cache."""
    if serve.engine not in READ_GGUF:
        return None, None
    named = serve.checkpoint or serve.model
    if named.endswith(".gguf") and ":" not in named and not os.path.exists(os.path.expanduser(named)):  # noqa: PTH110, PTH111
        raise UserError(f"the model file `{named}` does not exist", hint="check the path of the model or --checkpoint")
    path = pull(named, cache_dir=paths.cache, progress=progress).path
    return path, check_gguf(serve, path)


def check_gguf(serve: Serve, path: Path) -> int | None:
    """Return a file that is here, held against what is asked of it. How much cache it takes; None: not known."""
    header = check_file(path)
    trained = header.context_length
    if trained is not None and serve.context_tokens > trained:
        what = f"--context {serve.context_tokens} is beyond the {trained} tokens `{serve.model}` was trained for"
        raise UserError(what, hint=f"--context is per slot; use {trained} at most")
    try:
        each = geometry_of(header).kv_bytes_per_token(KV_BYTES.get(serve.options.kv or "f16", 2.0))
    except SkepError:
        return None  # llama.cpp may know an architecture that is not known here
    return int(each * serve.slots * (serve.context_tokens or trained or 0))


def size_of(weights: Path) -> int:
    """Return the size of the weights, with all parts where the file is the first of several."""
    part = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", weights.name)
    if part is None:
        return weights.stat().st_size
    parts = (weights.with_name(f"{part[1]}-{n:05}-of-{part[2]}.gguf") for n in range(1, int(part[2]) + 1))
    return sum(path.stat().st_size for path in parts if path.exists())
