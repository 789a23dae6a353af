"""The monitor as a process: the loop of `skep monitor run` with its store, its lock and its alerts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from skep.config.settings import Monitor
from skep.files import hold_lock, lock_holder
from skep.monitor.alerts import AlertWatcher, free_bytes_of
from skep.monitor.loop import Loop, prober_with
from skep.monitor.store import SeriesStore
from skep.paths import Paths
from skep.store.database import open_store

ANOTHER_RUNS_S = 30.0  # between two looks whether the other loop is gone
READY_LOOK_S = 0.5
END_S = 5.0


def monitor_lock(paths: Paths) -> Path:
    return paths.state / "monitor.lock"


def hold_monitor_lock(paths: Paths) -> contextlib.AbstractContextManager[None]:
    """One loop for a store."""
    hint = "`skep monitor status` shows what it found; targets that are added now are probed by it"
    return hold_lock(monitor_lock(paths), "the monitor", hint)


def monitor_pid(paths: Paths) -> int | None:
    """Return the pid of the running loop, None where none runs."""
    return lock_holder(monitor_lock(paths))


def begin_with(parent_fd: int, paths: Paths, phase: Callable[[], str | None]) -> bool:
    """Wait while another process runs the loop or the hive loads its models. Return False where the parent ended."""
    alone = wait_while(lambda: monitor_pid(paths) is not None, parent_fd, ANOTHER_RUNS_S)
    if not alone or not wait_while(lambda: phase() == "starting", parent_fd, READY_LOOK_S):
        return False

    def end_with_parent() -> None:
        os.read(parent_fd, 1)  # the pipe closes however the parent ends
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_S)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return True


def wait_while(waits: Callable[[], bool], parent_fd: int, look_s: float) -> bool:
    """Return False where the parent process has ended meanwhile."""
    while waits():
        if select.select([parent_fd], [], [], look_s)[0]:
            return False
    return True


def log_on_stderr(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that writes a dated line to stderr. A closed stderr is ignored."""

    def say(line: str) -> None:
        if quiet and line.startswith("monitor.probed") and " outcome=done" in line:
            return
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError):
            print(now, line, file=sys.stderr, flush=True)  # noqa: T201

    return say


def probe_turns(paths: Paths) -> Path:
    """Return the folder that the loop and probes by hand share."""
    return paths.state / "probing"


def run_monitor(
    wanted: Monitor, paths: Paths, say: Callable[[str], None], *, env: Mapping[str, str], once: bool = False
) -> None:
    """Probe what is due until SIGTERM or Ctrl-C. Raises EngineError where another one does already."""
    with hold_monitor_lock(paths), open_store(paths.store) as store:
        series = SeriesStore(store)

        async def watch_over() -> None:
            """What waits to be told when it ends gets a moment."""
            free = partial(free_bytes_of, store.path)
            async with AlertWatcher(series, wanted, env=env, log=say, free_bytes=free) as watch:
                watcher = Loop(series, prober_with(env), say=say, watch=watch, turns=probe_turns(paths))
                watching = asyncio.ensure_future(watcher.run(once=once))
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    asyncio.get_running_loop().add_signal_handler(number, watching.cancel)
                with contextlib.suppress(asyncio.CancelledError):
                    await watching

        say(f"monitor.begins targets={len(series.targets())} pid={os.getpid()}")
        asyncio.run(watch_over())
    say("monitor.ends")
