"""Tasks in, results out: many at once, none lost.

The names below are `skep.swarm.api`'s, loaded when used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skep.swarm.api import Failure, Options, SwarmError, map, map_sync  # noqa: A004

__all__ = ["Failure", "Options", "SwarmError", "map", "map_sync"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("skep.swarm.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
