"""A replica's weights on the node where it stands: a path that the nodes share, or a file pulled once a node.

Two replicas of one node pull at the same time and one of them waits: `skep.weights` holds a lock for each model.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from skep.engines.base import Launch
from skep.errors import WeightsError
from skep.places import user_paths
from skep.weights.pull import pull


def localized(launch: Launch, progress: Callable[[int, int | None], None]) -> Launch:
    """The launch with its weights as they lie here. Raises WeightsError where there are none to be had."""
    source = launch.place.source if launch.place is not None else None
    if launch.weights is not None:
        if launch.weights.is_file() and (source is None or source.startswith(("/", "~"))):
            return launch
        if source is None:
            raise _missing(str(launch.weights))
    elif source is None:
        _check_shared(launch)
        return launch
    assert source is not None
    path = pull(source, cache_dir=user_paths(os.environ).cache, progress=progress).path
    return replace(launch, weights=path, checkpoint=str(path))


def is_pulled(launch: Launch) -> bool:
    """Whether what is missing here may be there another time: a network, a proxy, room on the disk."""
    return launch.place is not None and launch.place.source is not None


def _check_shared(launch: Launch) -> None:
    """A folder that engines read themselves; hub names are their own business."""
    named = launch.checkpoint or ""
    if named.startswith(("/", "~")) and not Path(named).expanduser().exists():
        raise _missing(named)


def _missing(path: str) -> WeightsError:
    hint = "put it on a folder that all nodes share under the same path, or name a model that can be pulled"
    return WeightsError(f"`{path}` is not on this node", hint=hint)
