"""Asks what a cluster is, through a child that imports ray in our place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from skep.cluster.joining import checked_way, require_ray
from skep.cluster.values import Survey, survey_of
from skep.errors import DoesNotFit, EngineError, SkepError, UserError

SURVEY_S = 90.0
SLOW_S = 2.0
KEPT_S = 5.0
_IMPATIENT = {
    "RAY_gcs_server_request_timeout_seconds": "8"
}  # for the child: a machine that is no node is told after it
_BY_EXIT_CODE: dict[int, type[SkepError]] = {2: UserError, 3: DoesNotFit}


def survey(
    address: str,
    *,
    look: bool = True,
    paths: Sequence[str] = (),
    hive: str | None = None,
    slow: Callable[[], None] = lambda: None,
) -> Survey:
    """The nodes at this moment. `slow` is called once if it takes long.

    `look`: each is asked by a task of its own, also whether it has `paths`; `hive`: which replicas of it stand there.
    """
    require_ray()
    checked_way(address)
    argv = [sys.executable, "-m", "skep.cluster.surveyor", address, *([] if look else ["--no-look"])]
    argv += ["--hive", hive] if hive is not None else []
    argv += [word for path in paths for word in ("--path", path)]
    teller = threading.Timer(SLOW_S, slow)
    teller.daemon = True
    teller.start()
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SURVEY_S, check=False,
            env={**_IMPATIENT, **os.environ},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"the cluster at {address} did not answer within {SURVEY_S:g} s", hint="`skep cluster status` says more"
        ) from None
    finally:
        teller.cancel()
    return _answer(address, done)


class Surveys:
    """For one change that is tried in several ways: all of them look at the same cluster."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._newest: tuple[float, tuple[Any, ...], Survey] | None = None

    def look(self, address: str, *, look: bool, paths: Sequence[str], hive: str) -> Survey:
        asked = (address, look, tuple(paths), hive)
        newest = self._newest
        if newest is None or newest[1] != asked or time.monotonic() - newest[0] > self._kept_s:
            found = survey(address, look=look, paths=paths, hive=hive)
            self._newest = newest = (time.monotonic(), asked, found)
        return newest[2]


def _answer(address: str, done: subprocess.CompletedProcess[bytes]) -> Survey:
    try:
        document = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        what = f"the cluster at {address} cannot be asked: {lines[-1][:200]}"
        raise EngineError(what, hint="`skep cluster status` may say more") from None
    if "error" in document:
        raise _BY_EXIT_CODE.get(document["exit_code"], EngineError)(document["error"], hint=document["hint"])
    return survey_of(document["survey"])
