"""Weights of a replica that stands on some node: by a path that all nodes share, or by a name that each pulls itself.

Knows this machine's files only; whether a node has a path is the survey's to say.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from skep.catalog.pullable import find_pullable
from skep.launching import NO_WEIGHTS, READ_GGUF, PullProgress, check_gguf, checkpoint_of, size_of
from skep.places import Paths
from skep.settings import Serve
from skep.weights.pull import installed, parse_hub_source, pull

_LOCAL = ("/", "./", "../", "~")


@dataclass(frozen=True, slots=True)
class Weights:
    """`memory_bytes`: of weights and cache, where they stay in the node's memory. None: not known."""

    path: Path | None = None
    checkpoint: str | None = None
    source: str | None = None
    memory_bytes: int | None = None


def path_of(serve: Serve) -> str | None:
    """Where its weights lie on every node, if it is named by a path."""
    if serve.engine in NO_WEIGHTS or serve.engine == "ollama":
        return None
    named = serve.checkpoint or serve.model
    file = named.endswith(".gguf") and ":" not in named
    path = Path(os.path.expanduser(named))  # noqa: PTH111 - leaves `~nobody` as it is
    if file or named.startswith(_LOCAL) or (serve.engine not in READ_GGUF and path.is_dir()):
        return str(path.absolute())
    return None


def weights_of(serve: Serve, paths: Paths, progress: PullProgress, *, pulls: bool) -> Weights:
    """`pulls`: this machine may serve it, so that its file is wanted here. A file that is here is looked into."""
    if serve.engine in NO_WEIGHTS:
        return Weights()
    named, shared = serve.checkpoint or serve.model, path_of(serve)
    here = shared is not None and Path(shared).exists()
    if serve.engine not in READ_GGUF:
        return Weights(checkpoint=checkpoint_of(serve) if here or shared is None else shared)
    if shared is not None:
        path = Path(shared)
        return Weights(path, shared, memory_bytes=_held(serve, path) if here else None)
    model = find_pullable(named)
    if model is None and not pulls and parse_hub_source(named) is not None:
        return Weights(checkpoint=named, source=named)
    own = None if pulls or model is None else installed(model.id, paths.cache)
    if pulls or model is None:  # a name that nobody knows is refused here
        own = pull(named, cache_dir=paths.cache, progress=progress).path
    memory = _held(serve, own) if own is not None else model.gguf_bytes if model is not None else None
    return Weights(checkpoint=named, source=named, memory_bytes=memory)


def _held(serve: Serve, path: Path) -> int:
    cache = check_gguf(serve, path)
    return size_of(path) + (cache or 0)
