"""Asks a cluster for its nodes, through a child process that imports ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from skep.cluster import ray_subprocess
from skep.cluster.connect import checked_connection, require_ray
from skep.cluster.values import ClusterSurvey
from skep.wire.json_pipe import from_document

SURVEY_S = 90.0
SPARED_S = 15.0  # for a survey that is not essential
SLOW_S = 2.0
KEPT_S = 5.0


def survey(
    address: str,
    *,
    paths: Sequence[str] = (),
    hive: str | None = None,
    slow: Callable[[], None] = lambda: None,
    wait_s: float = SURVEY_S,
) -> ClusterSurvey:
    """Return the nodes as they are now. `slow` is called once if it takes long.

    A task on each node also checks whether `paths` exist there. With `hive`, its running replicas are included.
    """
    require_ray()
    checked_connection(address)
    words = [address, *(["--hive", hive] if hive is not None else [])]
    words += [word for path in paths for word in ("--path", path)]
    who, hint = f"the cluster at {address}", "`skep cluster status` may say more"
    teller = threading.Timer(SLOW_S, slow)
    teller.daemon = True
    teller.start()
    try:
        told = ray_subprocess.send("skep.cluster.discover_process", words, asked=who, wait_s=wait_s, hint=hint)
    finally:
        teller.cancel()
    found: ClusterSurvey = from_document(told["survey"], ClusterSurvey)
    return found


class SurveyCache:
    """The last survey, kept for a few seconds so that all attempts at one change see the same cluster."""

    def __init__(self, kept_s: float = KEPT_S, survey: Callable[..., ClusterSurvey] = survey) -> None:
        self._kept_s = kept_s
        self._survey = survey
        self._newest: tuple[float, tuple[Any, ...], ClusterSurvey] | None = None

    def look(self, address: str, *, paths: Sequence[str], hive: str, wait_s: float = SURVEY_S) -> ClusterSurvey:
        asked = (address, tuple(paths), hive)
        newest = self._newest
        if newest is None or newest[1] != asked or time.monotonic() - newest[0] > self._kept_s:
            found = self._survey(address, paths=paths, hive=hive, wait_s=wait_s)
            self._newest = newest = (time.monotonic(), asked, found)
        return newest[2]

    def forget(self) -> None:
        """Drop the survey once a change is made: it takes what was free."""
        self._newest = None
