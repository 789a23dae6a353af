"""From settings to replicas: names, cards, ports, weights, and every engine asked whether it could
start them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device, HostFacts
from skep.catalog.models import checkpoint_of, find_pullable
from skep.config.keys import has_keys
from skep.config.settings import OWN_ENGINES, Serve, Settings
from skep.engines.adapter import adapter_of
from skep.engines.base import DEFAULT_SHARES, Launch, engine_named
from skep.engines.discovery import bare_words, engine_kinds, find_program, is_installed
from skep.errors import DoesNotFit, SkepError, UserError
from skep.host.facts import (
    GpuCard,
    NvidiaReport,
    count_busy_cores,
    read_gpu_memory,
    read_host,
    visible_gpus,
)
from skep.paths import LOOPBACK, Paths
from skep.units import format_bytes, parse_bytes
from skep.weights.gguf import check_file, geometry_of
from skep.weights.hub import cached, gguf_parts, hub_cache, parse_hub_source, pull_hub
from skep.weights.pull import installed, pull
from skep.wire.heads import parse_url

PullProgress = Callable[[int, int | None], None]

RAM = "ram"
MOST_LISTED = 8  # replicas, in an error
SHARE_STEP = 0.01
LEAST_SHARE = 0.5  # of a card that is left: below it the weights hardly fit, and it is not offered
# llama.cpp then keeps part in memory
NOT_ON_CARDS = {
    "-ngl", "--gpu-layers", "--n-gpu-layers", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe",
    "-nkvo", "--no-kv-offload", "-ot", "--override-tensor",
}  # fmt: skip
SHOWN_PORT = "PORT"  # in a preview: engines get free ones
REMOTE = "remote"  # the engine of a launch that skep does not start
READ_GGUF = ("embedded", "llamacpp")  # their weights are one file, fetched and checked here
FROM_HUB = ("vllm", "sglang")  # they read folders of the hub's form
NO_WEIGHTS = ("fake", "simulated")
# what a launch has as its table says it
_ALIKE = (
    "engine", "slots", "context_tokens", "extra", "reserve", "soft_slots", "about", "options",
    "env", "binary", "pinned", "idle_unload_s", "preset",
)  # fmt: skip
KV_BYTES = {
    "f32": 4.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}  # a value


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
    room = machine_resources(cards, host.memory_bytes)
    busy = count_busy_cores(host.cpu_cores)
    return LocalMachine(host.cpu_cores, cards, room, _devices(host, cards), busy)


def _devices(host: HostFacts, cards: Sequence[GpuCard]) -> tuple[Device, ...]:
    """Return the cards as the catalogue has them; none where one is not in it: no failure is
    predicted then.
    """
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
    settings: Settings,
    paths: Paths,
    progress: PullProgress = lambda _done, _total: None,
    *,
    running: Sequence[Launch] = (),
    machine: LocalMachine | None = None,
    starting: bool = True,
    engine_key: str = "",
) -> tuple[Launch, ...]:
    """Return all replicas, checked.

    May download weights. `starting`: nothing runs yet, so cards must have room now.
    """
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
        # Ollama and llama.cpp spread one model over all cards they see, unless they are told
        # otherwise.
        alone = (
            serve.replicas == 1
            and serve.options.cards == 1
            and not serve.gpus
            and serve.options.split is None
        )
        divides_itself = (
            serve.engine in ("ollama", "llamacpp") and alone and len(machine.cards) > 1
        )
        if on_cards(serve) and not divides_itself:
            placed = assign_cards(
                serve.replicas, serve.options.cards, serve.gpus, machine.cards, taken
            )
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
    check_together(launches, dict(machine.room))
    check_pinned(launches, settings.max_loaded)
    if starting:
        check_free(launches, machine.cards)
    check_aliases(settings.aliases, launches)
    return tuple(_with_weights(launch, progress) for launch in launches)


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
        if (
            model not in models and "" not in models
        ):  # the name of an upstream's model may be still to be asked
            what = f"the alias `{alias}` stands for `{model}`, which is not served"
            raise UserError(what, hint=f"served: {', '.join(sorted(models))}")


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
        alike = msgspec.structs.asdict(upstream) | {"model": upstream.model or ""}
        launches.append(Launch(engine=REMOTE, weights=None, context_tokens=0, threads=0, **alike))
    return tuple(launches)


def check_known_failures(launch: Launch, cards: Sequence[Device]) -> None:
    """Raise where the launch is certain to fail on these cards. Empty: the cards are not known."""
    from skep.engines.remedies import predict_failure  # loads the planner

    found = predict_failure(launch, cards) if cards else None
    if found is not None:
        raise UserError(f"`{launch.name}` would not start: {found.cause}", hint=found.remedy)


def on_cards(serve: Serve) -> bool:
    """The embedded engine is built for the CPU; what needs no weights needs no card."""
    if serve.engine in ("embedded", *NO_WEIGHTS):
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
    if serve.engine_port and (
        last_port > 65535 or serve.engine_port <= settings.gateway.port <= last_port
    ):
        hint = (
            f"they would use ports {serve.engine_port} to {last_port}, the gateway uses "
            f"{settings.gateway.port}"
        )
        raise UserError(
            f"--engine-port {serve.engine_port} does not fit {serve.replicas} replicas", hint=hint
        )
    # Its threads wait for each other.
    busy = machine.busy if serve.engine == "embedded" else 0
    cores = machine.cores - busy
    threads = serve.threads or max(1, cores // sum(other.replicas for other in settings.serve))
    # one replica more is no reason to restart the others
    if serve.threads:
        known = {}
    else:
        known = {launch.name: launch.threads for launch in running}
    size = size_of(weights) if weights is not None else None
    launches = []
    for number in range(serve.replicas):
        name = f"{stem_of(serve)}-{number}"
        launch = launch_of(serve, name, weights, checkpoint, threads=known.get(name, threads))
        port = serve.engine_port + number if serve.engine_port else 0
        launch = replace(launch, port=port, gpus=placed[number] if placed else ())
        if serve.room is not None:
            room = spread(parse_bytes(serve.room), launch)
        else:
            room = room_of(launch, machine.cards, weights=size, cache=cache)
        launches.append(replace(launch, room=room))
    return launches


def stem_of(serve: Serve) -> str:
    """Return the beginning of its replicas' names."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", serve.model_id).strip("-.") or "model"


def launch_of(
    serve: Serve, name: str, weights: Path | None, checkpoint: str | None, *, threads: int
) -> Launch:
    """Return one replica, wherever it runs."""
    alike = {field: getattr(serve, field) for field in _ALIKE}
    on_demand = serve.on_demand and not serve.pinned
    model = serve.model_id
    return Launch(
        name=name,
        model=model,
        weights=weights,
        checkpoint=checkpoint,
        threads=threads,
        on_demand=on_demand,
        **alike,
    )


def weights_named(serve: Serve) -> str | None:
    """Where the engine finds its weights itself.

    A path that is not there is found here, not by a dying engine.
    """
    if serve.engine in NO_WEIGHTS:
        return None
    named = serve.checkpoint or serve.model
    path = Path(named).expanduser()
    if serve.engine == "ollama" or not named.startswith(("/", "./", "../", "~")):
        if serve.engine == "ollama" or not path.is_dir():
            return named
        return str(path.absolute())
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
    """Return it with the folder of a hub's checkpoint, fetched if need be: an engine would do so
    without a word.
    """
    if launch.checkpoint and launch.engine in FROM_HUB:
        source = parse_hub_source(launch.checkpoint)
    else:
        source = None
    if source is None or os.environ.get("VLLM_USE_MODELSCOPE"):
        return launch
    return replace(launch, checkpoint=str(pull_hub(source, progress).path))


def _weights(serve: Serve, paths: Paths, progress: PullProgress) -> tuple[Path | None, int | None]:
    """The file, pulled if need be and checked: a damaged one is found here and not by a dying
    engine. And its cache.
    """
    if serve.engine not in READ_GGUF:
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
    """Return a file that is here, held against what is asked of it.

    How much cache it takes; None: not known.
    """
    header = check_file(path)
    trained = header.context_length
    if trained is not None and serve.context_tokens > trained:
        what = (
            f"--context {serve.context_tokens} is beyond the {trained} tokens `{serve.model}` "
            "was trained for"
        )
        raise UserError(what, hint=f"--context is per slot; use {trained} at most")
    try:
        each = geometry_of(header).kv_bytes_per_token(KV_BYTES.get(serve.options.kv or "f16", 2.0))
    except SkepError:
        return None  # llama.cpp may know an architecture that is not known here
    return int(each * serve.slots * (serve.context_tokens or trained or 0))


def size_of(weights: Path) -> int:
    """Return the size of the weights, with all parts where the file is the first of several."""
    parts = (weights.with_name(name) for name in gguf_parts(weights.name))
    return sum(path.stat().st_size for path in parts if path.exists())


def assign_cards(
    replicas: int,
    each: int,
    gpus: Sequence[int],
    cards: Sequence[GpuCard],
    taken: Iterable[int] = (),
) -> list[tuple[int, ...]]:
    """Return the cards of each replica: those named, in order; else those free of earlier models
    first.
    """
    present = [card.index for card in cards]
    wanted = replicas * each
    if gpus:
        missing = next((gpu for gpu in gpus if gpu not in present), None)
        if missing is not None:
            if present:
                here = f"this machine has {', '.join(map(str, present))}"
            else:
                here = "this machine has none"
            raise UserError(
                f"there is no GPU {missing}: {here}",
                hint="`skep doctor` lists them with their numbers",
            )
        if len(set(gpus)) < len(gpus):
            raise UserError(
                f"`gpus` (--gpus) = {list(gpus)} names a card twice", hint="name each card once"
            )
        if len(gpus) not in (each, wanted):
            if replicas > 1:
                each_words = f"{replicas} replicas of {each}"
            else:
                each_words = str(each)
            raise UserError(
                f"`gpus` (--gpus) = {list(gpus)} names {len(gpus)} cards for {each_words}",
                hint=f"name {wanted}, or {each} for all replicas to share",
            )
        return [
            tuple(gpus[n * each : (n + 1) * each]) if len(gpus) == wanted else tuple(gpus)
            for n in range(replicas)
        ]
    if not present:
        if each > 1:
            raise DoesNotFit(
                f"a replica needs {each} GPUs, this machine has none",
                hint="leave tp, pp and dp out, or run it on the machine with the cards",
            )
        return [()] * replicas
    if wanted > len(present):
        if each > 1:
            what = f"{replicas} replicas of {each}"
        else:
            what = f"{replicas} replicas"
        raise DoesNotFit(
            f"{what} need {wanted} GPUs, this machine has {len(present)}",
            hint="lower --replicas or --tp, or name cards to share with `gpus` (--gpus)",
        )
    free = [index for index in present if index not in set(taken)]
    pool = free if len(free) >= wanted else present
    return [tuple(pool[n * each : (n + 1) * each]) for n in range(replicas)]


def room_of(
    launch: Launch, cards: Sequence[GpuCard], *, weights: int | None, cache: int | None
) -> tuple[tuple[str, int], ...]:
    """What a launch takes, by resource; empty where it cannot be told.

    `weights` and `cache` are of the whole model.
    """
    totals = {card.index: card.total_bytes for card in cards}
    if launch.engine in DEFAULT_SHARES and launch.gpus:
        share = launch.options.memory_share or DEFAULT_SHARES[launch.engine]
        known = [(gpu, totals.get(gpu)) for gpu in launch.gpus]
        return tuple(
            (f"gpu{gpu}", int(total * share)) for gpu, total in known if total is not None
        )
    if weights is None or (cards and not launch.gpus and launch.engine != "embedded"):
        return ()  # it divides itself over all cards
    if NOT_ON_CARDS & {word.partition("=")[0] for word in launch.extra}:
        return ()  # part of it stays in memory, and how much is the engine's to know
    return spread(weights + (cache or 0), launch)


def spread(room: int, launch: Launch) -> tuple[tuple[str, int], ...]:
    """Return a number the user gave, over the cards of the launch."""
    if not launch.gpus:
        return ((RAM, room),)
    return tuple((f"gpu{gpu}", room // len(launch.gpus)) for gpu in launch.gpus)


def machine_resources(cards: Sequence[GpuCard], ram: int | None) -> tuple[tuple[str, int], ...]:
    """Return what the machine has of each resource, as far as it is known."""
    own = [(card.name, card.total_bytes) for card in cards] + [(RAM, ram)]
    return tuple((name, total) for name, total in own if total is not None)


def _resource_words(resource: str) -> str:
    if resource == RAM:
        return "memory"
    return f"GPU {resource.removeprefix('gpu')}"


def check_together(launches: Sequence[Launch], has: Mapping[str, int]) -> None:
    """Those that run at the same time must fit together: two engines that profile one card for
    themselves do not.
    """
    always = [launch for launch in launches if not launch.on_demand]
    for resource, total in has.items():
        takers = [
            (launch, dict(launch.room)[resource])
            for launch in always
            if resource in dict(launch.room)
        ]
        if sum(room for _, room in takers) <= total:
            continue
        what = _resource_words(resource)
        if len(takers) == 1:
            launch, room = takers[0]
            raise DoesNotFit(
                (
                    f"`{launch.name}` needs {format_bytes(room)} of {what}, which has "
                    f"{format_bytes(total)}"
                ),
                hint="use fewer slots, a shorter context or a smaller quantization",
            )
        listed = ", ".join(
            f"{launch.name} {format_bytes(room)}" for launch, room in takers[:MOST_LISTED]
        )
        listed += f" and {len(takers) - MOST_LISTED} more" if len(takers) > MOST_LISTED else ""
        raise DoesNotFit(
            (
                f"{len(takers)} replicas do not fit together on {what} of "
                f"{format_bytes(total)}: {listed}"
            ),
            hint=_apart(takers, resource),
        )


def check_pinned(launches: Sequence[Launch], max_loaded: int | None) -> None:
    """Whether a model is left to be loaded on demand beside those that always are."""
    kept = sorted({launch.model for launch in launches if launch.pinned})
    least = len(kept) + any(launch.on_demand for launch in launches)
    if max_loaded is not None and least > max_loaded:
        what = (
            f"max_loaded = {max_loaded} is too low for {', '.join(kept)} (pinned) and one model "
            "on demand"
        )
        raise UserError(what, hint=f"set max_loaded = {least}, or pin fewer")


def check_free(launches: Sequence[Launch], cards: Sequence[GpuCard]) -> None:
    """Whether the cards have free now what the first of their engines wants.

    For a start, not for a reload.
    """
    for card in cards:
        takers = [
            launch
            for launch in launches
            if not launch.on_demand and card.name in dict(launch.room)
        ]
        if card.total_bytes is None or card.used_bytes is None or not takers:
            continue
        free = card.total_bytes - card.used_bytes
        wanted = sum(dict(launch.room)[card.name] for launch in takers)
        if wanted <= free:
            continue
        first = takers[0]
        hint = (
            "`nvidia-smi` shows which process uses it; end it, or choose other cards with "
            "`gpus` (--gpus)"
        )
        if (
            first.engine in DEFAULT_SHARES
            and len(takers) == 1
            and free / card.total_bytes >= LEAST_SHARE
        ):
            share = int((free / card.total_bytes - SHARE_STEP) / SHARE_STEP) * SHARE_STEP
            hint += f"; or set memory_share (--memory-share) to {share:.2f}"
        left = f"{format_bytes(free)} of {format_bytes(card.total_bytes)} are free"
        raise DoesNotFit(
            f"GPU {card.index} is busy: {left}, `{first.name}` needs {format_bytes(wanted)}",
            hint=hint,
        )


def _apart(takers: Sequence[tuple[Launch, int]], resource: str) -> str:
    if resource == RAM:
        return "serve fewer at once: `on_demand = true` loads a model when a request asks for it"
    if all(launch.engine in DEFAULT_SHARES for launch, _ in takers):
        share = int(0.95 / len(takers) / SHARE_STEP) * SHARE_STEP
        return (
            f"give each its own card with `gpus`; memory_share = {share:.2f} for each, if the "
            "weights fit in it"
        )
    return "give each its own card with `gpus`, or load them `on_demand`"


# What `skep up` would fetch and start, found out without doing either: `skep up --dry-run`


def preview(settings: Settings, paths: Paths) -> dict[str, Any]:
    """Return the document of `skep up --dry-run --json`."""
    gateway = settings.gateway
    scheme = "https" if gateway.tls_certificate else "http"
    return {
        "openai_base_url": f"{scheme}://{gateway.host}:{gateway.port}/v1",
        "serve": [_served(serve, paths) for serve in settings.serve],
        "upstream": [one.url for one in settings.upstream],
        "keyed": has_keys(settings, paths),
    }


def _served(serve: Serve, paths: Paths) -> dict[str, Any]:
    own = serve.engine in OWN_ENGINES
    here = own or is_installed(serve.engine, serve.binary)
    return {
        "model": serve.model,
        "engine": serve.engine,
        "version": engine_named(serve.engine, serve.binary).version() if here else None,
        "install": None if here else engine_kinds()[serve.engine].install,
        "replicas": serve.replicas,
        "slots": serve.slots,
        "context": serve.context_tokens,
        "gpus": serve.gpus,
        "weights": _weights_shown(serve, paths),
        "commands": [] if own else _commands(serve),
    }


def _weights_shown(serve: Serve, paths: Paths) -> dict[str, Any]:
    """`there`: nothing has to be fetched; None: not known.

    `bytes` None: how large it is, is not known here.
    """
    named = serve.checkpoint or serve.model
    if serve.engine == "ollama":
        return {
            "source": f"`{named}` of Ollama's own store",
            "there": None,
            "bytes": None,
            "free_bytes": None,
        }
    if serve.engine in NO_WEIGHTS or os.path.exists(os.path.expanduser(named)):  # noqa: PTH110, PTH111
        return {"source": named, "there": True, "bytes": None, "free_bytes": None}
    source = parse_hub_source(named)
    if source is None:
        there = find_pullable(named) is not None and installed(named, paths.cache) is not None
        return {"source": named, "there": there, "bytes": None, "free_bytes": None}
    found = cached(source)
    checkpoint = checkpoint_of(named)
    if found is not None:
        size = found.bytes
    elif checkpoint and checkpoint.disk_gb:
        size = int(checkpoint.disk_gb * 1e9)
    else:
        size = None
    folder = next(one for one in (hub_cache(), *hub_cache().parents) if one.exists())
    free = shutil.disk_usage(folder).free
    return {"source": str(source), "there": found is not None, "bytes": size, "free_bytes": free}


def _commands(serve: Serve) -> list[str]:
    """Return one line a replica, as somebody would type it."""
    adapter = adapter_of(serve.engine)
    lines = []
    cards = serve.options.cards
    for number in range(serve.replicas):
        launch = launch_of(
            serve, f"{stem_of(serve)}-{number}", None, weights_named(serve), threads=0
        )
        launch = replace(launch, port=serve.engine_port + number if serve.engine_port else 0)
        if serve.gpus:
            # Or shared.
            launch = replace(
                launch, gpus=serve.gpus[number * cards : (number + 1) * cards] or serve.gpus
            )
        for what, instead in adapter.refusals(launch):
            raise UserError(f"{adapter.name}: {what}", hint=instead)
        variables = [
            f"{name}={shlex.quote(value)}" for name, value in adapter.environment(launch).items()
        ]
        words = [*bare_words(serve.engine, serve.binary), *adapter.arguments(launch)]
        if not launch.port and "--port" in words:
            words[words.index("--port") + 1] = SHOWN_PORT
        lines.append(" ".join([*variables, shlex.join(words)]))
    return lines
