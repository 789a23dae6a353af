"""From settings to replicas: names, ports, weights, and every engine asked whether it could start
them.

Which cards they get is decided in `gpu_assignment`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import EMBEDDED, kind_of
from skep.catalog.gpus import Device
from skep.config.settings import Serve, Settings
from skep.deploy.gpu_assignment import (
    LocalMachine,
    assign_cards,
    check_free,
    check_pinned,
    check_together,
    read_machine,
    room_of,
    spread,
)
from skep.engines.base import Launch, engine_named
from skep.engines.discovery import find_program
from skep.errors import SkepError, UserError
from skep.paths import LOOPBACK, Paths
from skep.units import parse_bytes
from skep.weights.gguf import check_file, geometry_of
from skep.weights.hub import gguf_parts, parse_hub_source, pull_hub
from skep.weights.pull import pull
from skep.wire.heads import parse_url

PullProgress = Callable[[int, int | None], None]

REMOTE = "remote"  # the engine of a launch that skep does not start
# Fields that a launch takes over from its [[serve]] table.
_FIELDS_OF_TABLE = (
    "engine", "slots", "context_tokens", "extra", "reserve", "soft_slots", "about", "options",
    "env", "binary", "pinned", "idle_unload_s", "preset",
)  # fmt: skip
# of a value in the cache
KV_BYTES = {
    "f32": 4.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}


def plan_launches(
    settings: Settings,
    paths: Paths,
    progress: PullProgress = lambda _done, _total: None,
    *,
    running: Sequence[Launch] = (),
    machine: LocalMachine | None = None,
    starting: bool = True,
    engine_key: str = "",
) -> tuple[Launch, ...]:
    """Return all replicas, checked. May download weights.

    `starting`: nothing runs yet, so cards must have room now.
    """
    machine = machine or read_machine()
    if running or not starting:
        machine = replace(machine, busy=0)  # with replicas of our own
    served: list[Launch] = []
    for serve in settings.serve:
        taken = {gpu for launch in served for gpu in launch.gpus}
        placed = _placed(serve, machine, taken)
        replicas = _launches(serve, settings, paths, progress, running, machine, placed)
        served += [replace(launch, api_key=engine_key) for launch in replicas]
    launches = (*served, *remote_launches(settings))
    check_names(launches)
    _check_ports(launches)
    _check_starts(launches, machine)
    check_together(launches, dict(machine.room))
    check_pinned(launches, settings.max_loaded)
    if starting:
        check_free(launches, machine.cards)
    check_aliases(settings.aliases, launches)
    return tuple(_with_weights(launch, progress) for launch in launches)


def _placed(serve: Serve, machine: LocalMachine, taken: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the cards of each replica; empty where skep chooses no cards for them."""
    if not kind_of(serve.engine).part_of_skep:
        engine_named(serve.engine)
        find_program(serve.engine, serve.binary)  # before weights are fetched for it
    if not on_cards(serve):
        return []
    leaves_cards_open = (
        serve.replicas == 1
        and serve.options.cards == 1
        and not serve.gpus
        and serve.options.split is None
    )
    if kind_of(serve.engine).divides_itself and leaves_cards_open and len(machine.cards) > 1:
        return []
    return assign_cards(serve.replicas, serve.options.cards, serve.gpus, machine.cards, taken)


def _check_ports(launches: Sequence[Launch]) -> None:
    ports = [launch.port for launch in launches if launch.port]
    for port in ports:
        if ports.count(port) > 1:
            hint = "set `engine_port` further apart, or leave it out"
            raise UserError(f"two replicas are given port {port}", hint=hint)


def _check_starts(launches: Sequence[Launch], machine: LocalMachine) -> None:
    """Raise where an engine would refuse its launch, or is certain to fail on its cards."""
    numbers = [card.index for card in machine.cards]
    for launch in launches:
        if launch.engine == REMOTE:
            continue
        engine_named(launch.engine).check(launch)
        gpus = launch.gpus if machine.devices else ()
        check_known_failures(launch, [machine.devices[numbers.index(gpu)] for gpu in gpus])


def check_names(launches: Sequence[Launch]) -> None:
    """Raise where two replicas share a name, or a reserve exceeds the slots."""
    names = [launch.name for launch in launches]
    for launch in launches:
        if names.count(launch.name) > 1:
            hint = (
                "give one [[serve]] table more `replicas`, or an [[upstream]] a `name` of its own"
            )
            raise UserError(f"two replicas are named `{launch.name}`", hint=hint)
        if launch.reserve >= launch.slots:
            hint = "leave at least one slot for the others"
            raise UserError(
                f"`{launch.name}`: `reserve` = {launch.reserve} takes all {launch.slots} slots",
                hint=hint,
            )
        if launch.soft_slots is not None and launch.soft_slots > launch.slots:
            hint = "leave it out to use all of them"
            raise UserError(
                f"`{launch.name}`: `soft_slots` = {launch.soft_slots} of {launch.slots} slots",
                hint=hint,
            )


def check_aliases(aliases: Mapping[str, str], launches: Sequence[Launch]) -> None:
    models = {launch.model for launch in launches}
    for alias, model in aliases.items():
        # "": an upstream that has not been asked yet for the name of its model.
        if model not in models and "" not in models:
            text = f"the alias `{alias}` stands for `{model}`, which is not served"
            raise UserError(text, hint=f"served: {', '.join(sorted(models))}")


def remote_launches(settings: Settings) -> tuple[Launch, ...]:
    launches = []
    gateway = settings.gateway
    for upstream in settings.upstream:
        origin, _ = parse_url(upstream.url, name="upstream")
        if origin.port == gateway.port and origin.host in (*LOOPBACK, gateway.host):
            hint = "choose another --port for the gateway"
            raise UserError(f"upstream `{upstream.url}` is the gateway's own address", hint=hint)
        if upstream.key_env is not None and not os.environ.get(upstream.key_env):
            hint = f"export {upstream.key_env}=KEY where skep is started, or leave `key_env` out"
            raise UserError(
                f"the key of upstream `{upstream.name}` is not in the environment", hint=hint
            )
        fields = msgspec.structs.asdict(upstream) | {"model": upstream.model or ""}
        launches.append(Launch(engine=REMOTE, weights=None, context_tokens=0, threads=0, **fields))
    return tuple(launches)


def check_known_failures(launch: Launch, cards: Sequence[Device]) -> None:
    """Raise where the launch is certain to fail on these cards; without cards, never."""
    if not cards:
        return
    from skep.engines.remedies import predict_failure  # loads the planner

    failure = predict_failure(launch, cards)
    if failure is not None:
        raise UserError(f"`{launch.name}` would not start: {failure.cause}", hint=failure.remedy)


def on_cards(serve: Serve) -> bool:
    """Return whether the engine uses cards: the embedded engine is built for the CPU, and what
    needs no weights needs no card.
    """
    if kind_of(serve.engine).part_of_skep:
        if serve.gpus or serve.options.cards > 1:
            hint = "--engine llamacpp or vllm (`engine` in skep.toml) uses cards"
            raise UserError(
                f"the {serve.engine} engine runs on the CPU, but `{serve.model}` asks for GPUs",
                hint=hint,
            )
        return False
    return True


def _launches(
    serve: Serve,
    settings: Settings,
    paths: Paths,
    progress: PullProgress,
    running: Sequence[Launch],
    machine: LocalMachine,
    placed: Sequence[tuple[int, ...]],
) -> list[Launch]:
    weights, cache = _weights(serve, paths, progress)
    if weights is not None:
        checkpoint: str | None = str(weights)
    else:
        checkpoint = weights_named(serve)
    last_port = serve.engine_port + serve.replicas - 1
    meets_gateway = serve.engine_port <= settings.gateway.port <= last_port
    if serve.engine_port and (last_port > 65535 or meets_gateway):
        hint = (
            f"they would use ports {serve.engine_port} to {last_port}, the gateway uses "
            f"{settings.gateway.port}"
        )
        raise UserError(
            f"--engine-port {serve.engine_port} does not fit {serve.replicas} replicas", hint=hint
        )
    cores = machine.cores
    if serve.engine == EMBEDDED:  # its threads wait for each other
        cores -= machine.busy
    threads = serve.threads or max(1, cores // sum(table.replicas for table in settings.serve))
    running_threads = {}
    if not serve.threads:  # one replica more is no reason to restart the others
        running_threads = {launch.name: launch.threads for launch in running}
    size = size_of(weights) if weights is not None else None
    launches = []
    for number in range(serve.replicas):
        name = f"{stem_of(serve)}-{number}"
        launch = launch_of(
            serve, name, weights, checkpoint, threads=running_threads.get(name, threads)
        )
        port = serve.engine_port + number if serve.engine_port else 0
        launch = replace(launch, port=port, gpus=placed[number] if placed else ())
        if serve.room is not None:
            room = spread(parse_bytes(serve.room), launch)
        else:
            room = room_of(launch, machine.cards, weights=size, cache=cache)
        launches.append(replace(launch, room=room))
    return launches


def stem_of(serve: Serve) -> str:
    """Return the beginning of the names of the table's replicas."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", serve.model_id).strip("-.") or "model"


def launch_of(
    serve: Serve, name: str, weights: Path | None, checkpoint: str | None, *, threads: int
) -> Launch:
    """Return one replica, wherever it runs."""
    fields = {field: getattr(serve, field) for field in _FIELDS_OF_TABLE}
    on_demand = serve.on_demand and not serve.pinned
    model = serve.model_id
    return Launch(
        name=name,
        model=model,
        weights=weights,
        checkpoint=checkpoint,
        threads=threads,
        on_demand=on_demand,
        **fields,
    )


def weights_named(serve: Serve) -> str | None:
    """Return what the engine is told to load; None where it has no weights.

    A path that does not exist is found here, not by a dying engine.
    """
    if not kind_of(serve.engine).needs_weights:
        return None
    named = serve.checkpoint or serve.model
    if kind_of(serve.engine).weights == "store":
        return named
    path = Path(named).expanduser()
    if not named.startswith(("/", "./", "../", "~")):
        return str(path.absolute()) if path.is_dir() else named
    if not path.exists():
        raise UserError(
            f"the model path `{named}` does not exist",
            hint="check the path of the model or --checkpoint",
        )
    if path.is_dir() and not (path / "config.json").is_file():
        hint = "name the folder that holds config.json and the weights"
        raise UserError(f"`{named}` has no config.json", hint=hint)
    return str(path.absolute())


def _with_weights(launch: Launch, progress: PullProgress) -> Launch:
    """Return the launch with the folder of a hub's checkpoint, fetched if need be: an engine would
    fetch it without a word.
    """
    if not launch.checkpoint or kind_of(launch.engine).weights != "checkpoint":
        return launch
    source = parse_hub_source(launch.checkpoint)
    if source is None or os.environ.get("VLLM_USE_MODELSCOPE"):
        return launch
    return replace(launch, checkpoint=str(pull_hub(source, progress).path))


def _weights(serve: Serve, paths: Paths, progress: PullProgress) -> tuple[Path | None, int | None]:
    """Return the GGUF file, pulled if need be and checked, and the bytes of its KV cache.

    A damaged file is found here and not by a dying engine.
    """
    if kind_of(serve.engine).weights != "gguf":
        return None, None
    named = serve.checkpoint or serve.model
    if (
        named.endswith(".gguf")
        and ":" not in named
        and not os.path.exists(os.path.expanduser(named))  # noqa: PTH110, PTH111
    ):
        raise UserError(
            f"the model file `{named}` does not exist",
            hint="check the path of the model or --checkpoint",
        )
    path = pull(named, cache_dir=paths.cache, progress=progress).path
    return path, check_gguf(serve, path)


def check_gguf(serve: Serve, path: Path) -> int | None:
    """Return the bytes of cache that the launch needs with this file; None: not known.

    Raise where the file is damaged, or was trained for fewer tokens than are asked for.
    """
    header = check_file(path)
    trained = header.context_length
    if trained is not None and serve.context_tokens > trained:
        text = (
            f"--context {serve.context_tokens} is beyond the {trained} tokens `{serve.model}` "
            "was trained for"
        )
        raise UserError(text, hint=f"--context is per slot; use {trained} at most")
    try:
        token_bytes = geometry_of(header).kv_bytes_per_token(
            KV_BYTES.get(serve.options.kv or "f16", 2.0)
        )
    except SkepError:
        return None  # llama.cpp may know an architecture that is not known here
    return int(token_bytes * serve.slots * (serve.context_tokens or trained or 0))


def size_of(weights: Path) -> int:
    """Return the size of the weights, with all parts where the file is the first of several."""
    parts = (weights.with_name(name) for name in gguf_parts(weights.name))
    return sum(path.stat().st_size for path in parts if path.exists())
