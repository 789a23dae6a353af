"""What `skep up` would fetch and start, found out without doing either: `skep up --dry-run`."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Any

from msgspec.structs import replace

from skep.catalog.engines import engine_kinds, kind_of
from skep.catalog.models import checkpoint_of, find_pullable
from skep.config.keys import has_keys
from skep.config.settings import Serve, Settings
from skep.deploy.launches import launch_of, stem_of, weights_named
from skep.engines.adapter import adapter_of
from skep.engines.base import engine_named
from skep.engines.discovery import bare_words, is_installed
from skep.errors import UserError
from skep.paths import Paths
from skep.weights.hub import cached, hub_cache, parse_hub_source
from skep.weights.pull import installed

SHOWN_PORT = "PORT"  # in a preview: engines get free ones


def preview(settings: Settings, paths: Paths) -> dict[str, Any]:
    """Return the document of `skep up --dry-run --json`."""
    gateway = settings.gateway
    scheme = "https" if gateway.tls_certificate else "http"
    return {
        "openai_base_url": f"{scheme}://{gateway.host}:{gateway.port}/v1",
        "serve": [_served(serve, paths) for serve in settings.serve],
        "upstream": [upstream.url for upstream in settings.upstream],
        "keyed": has_keys(settings, paths),
    }


def _served(serve: Serve, paths: Paths) -> dict[str, Any]:
    is_own = kind_of(serve.engine).part_of_skep
    is_here = is_own or is_installed(serve.engine, serve.binary)
    return {
        "model": serve.model,
        "engine": serve.engine,
        "version": engine_named(serve.engine, serve.binary).version() if is_here else None,
        "install": None if is_here else engine_kinds()[serve.engine].install,
        "replicas": serve.replicas,
        "slots": serve.slots,
        "context": serve.context_tokens,
        "gpus": serve.gpus,
        "weights": _weights_shown(serve, paths),
        "commands": [] if is_own else _commands(serve),
    }


def _weights_shown(serve: Serve, paths: Paths) -> dict[str, Any]:
    """Return the weights of the preview.

    `there`: nothing has to be fetched; None: not known. `bytes` None: the size is not known here.
    """
    named = serve.checkpoint or serve.model
    if kind_of(serve.engine).weights == "store":
        return {
            "source": f"`{named}` of {kind_of(serve.engine).title}'s own store",
            "there": None,
            "bytes": None,
            "free_bytes": None,
        }
    path = os.path.expanduser(named)  # noqa: PTH111
    if not kind_of(serve.engine).needs_weights or os.path.exists(path):  # noqa: PTH110
        return {"source": named, "there": True, "bytes": None, "free_bytes": None}
    source = parse_hub_source(named)
    if source is None:
        is_here = find_pullable(named) is not None and installed(named, paths.cache) is not None
        return {"source": named, "there": is_here, "bytes": None, "free_bytes": None}
    snapshot = cached(source)
    checkpoint = checkpoint_of(named)
    if snapshot is not None:
        size = snapshot.bytes
    elif checkpoint and checkpoint.disk_gb:
        size = int(checkpoint.disk_gb * 1e9)
    else:
        size = None
    folder = next(path for path in (hub_cache(), *hub_cache().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    return {
        "source": str(source),
        "there": snapshot is not None,
        "bytes": size,
        "free_bytes": free,
    }


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
            gpus = serve.gpus[number * cards : (number + 1) * cards]
            launch = replace(launch, gpus=gpus or serve.gpus)  # all share them
        for refusal, instead in adapter.refusals(launch):
            raise UserError(f"{adapter.name}: {refusal}", hint=instead)
        variables = [
            f"{name}={shlex.quote(value)}" for name, value in adapter.environment(launch).items()
        ]
        words = [*bare_words(serve.engine, serve.binary), *adapter.arguments(launch)]
        if not launch.port and "--port" in words:
            words[words.index("--port") + 1] = SHOWN_PORT
        lines.append(" ".join([*variables, shlex.join(words)]))
    return lines
