"""Tasks in, results out: many at once, none lost. The names below are `skep.swarm.api`'s, loaded when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skep.swarm.api import Failure, Options, Run, SwarmError, map, map_sync, run, run_sync  # noqa: A004

__all__ = ["Failure", "Options", "Run", "SwarmError", "map", "map_sync", "run", "run_sync"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("skep.swarm.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
