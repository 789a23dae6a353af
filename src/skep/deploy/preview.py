"""What `skep up` would fetch and start, found out without doing either: `skep up --dry-run`."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Any

from msgspec.structs import replace

from skep.catalog.models import checkpoint_of as known_checkpoint
from skep.catalog.models import find_pullable
from skep.config.keys import keys_path, read_keys
from skep.config.settings import OWN_ENGINES, Serve, Settings
from skep.deploy.commands import adapter_of
from skep.deploy.launches import NO_WEIGHTS, checkpoint_of, launch_of, stem_of
from skep.engines.base import engine_named
from skep.engines.discovery import bare_words, engine_kinds, is_installed
from skep.errors import UserError
from skep.paths import Paths
from skep.weights.hub import cached, hub_cache, parse_hub_source
from skep.weights.pull import installed

SHOWN_PORT = "PORT"  # engines get free ones


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


def has_keys(settings: Settings, paths: Paths) -> bool:
    """Whether clients need a key."""
    return settings.gateway.api_key is not None or bool(read_keys(keys_path(paths)))


def _served(serve: Serve, paths: Paths) -> dict[str, Any]:
    own = serve.engine in OWN_ENGINES
    here = own or is_installed(serve.engine, serve.binary)
    return {
        "model": serve.model, "engine": serve.engine,
        "version": engine_named(serve.engine, serve.binary).version() if here else None,
        "install": None if here else engine_kinds()[serve.engine].install,
        "replicas": serve.replicas, "slots": serve.slots, "context": serve.context_tokens, "gpus": serve.gpus,
        "weights": _weights(serve, paths),
        "commands": [] if own else _commands(serve),
    }  # fmt: skip


def _weights(serve: Serve, paths: Paths) -> dict[str, Any]:
    """`there`: nothing has to be fetched; None: not known. `bytes` None: how large it is, is not known here."""
    named = serve.checkpoint or serve.model
    if serve.engine == "ollama":
        return {"source": f"`{named}` of Ollama's own store", "there": None, "bytes": None, "free_bytes": None}
    if serve.engine in NO_WEIGHTS or os.path.exists(os.path.expanduser(named)):  # noqa: PTH110, PTH111
        return {"source": named, "there": True, "bytes": None, "free_bytes": None}
    source = parse_hub_source(named)
    if source is None:
        there = find_pullable(named) is not None and installed(named, paths.cache) is not None
        return {"source": named, "there": there, "bytes": None, "free_bytes": None}
    found, known = cached(source), known_checkpoint(named)
    size = found.bytes if found is not None else int(known.disk_gb * 1e9) if known and known.disk_gb else None
    folder = next(one for one in (hub_cache(), *hub_cache().parents) if one.exists())
    free = shutil.disk_usage(folder).free
    return {"source": str(source), "there": found is not None, "bytes": size, "free_bytes": free}


def _commands(serve: Serve) -> list[str]:
    """Return one line a replica, as somebody would type it."""
    adapter, lines = adapter_of(serve.engine), []
    each = serve.options.cards
    for number in range(serve.replicas):
        launch = launch_of(serve, f"{stem_of(serve.model)}-{number}", None, checkpoint_of(serve), threads=0)
        launch = replace(launch, port=serve.engine_port + number if serve.engine_port else 0)
        if serve.gpus:
            launch = replace(launch, gpus=serve.gpus[number * each : (number + 1) * each] or serve.gpus)  # or shared
        for what, instead in adapter.refusals(launch):
            raise UserError(f"{adapter.name}: {what}", hint=instead)
        variables = [f"{name}={shlex.quote(value)}" for name, value in adapter.environment(launch).items()]
        words = [*bare_words(serve.engine, serve.binary), *adapter.arguments(launch)]
        if not launch.port and "--port" in words:
            words[words.index("--port") + 1] = SHOWN_PORT
        lines.append(" ".join([*variables, shlex.join(words)]))
    return lines
