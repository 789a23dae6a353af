"""The end of the supervisor's process that nothing can put off."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import sys
import threading
import time

from skep.host.processes import kill_descendants, kill_marked


class EndDeadline:
    """Ends this process and everything below it hard, unless it has ended by itself in time.

    A thread does it, so that neither a task that ignores its cancellation nor an event loop that
    hangs is in its way. `mark` is in the environment of the engines, which are found by it where
    their guard is gone."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._due = math.inf
        self._timer: threading.Timer | None = None

    def set(self, left_s: float) -> None:
        """End the process hard in so many seconds, unless an earlier deadline is set."""
        due = time.monotonic() + left_s
        if due >= self._due:
            return
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(left_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk takes no last words
            print(  # noqa: T201
                "error: skep did not end in time; it is killed with all it started",
                file=sys.stderr,
            )
            faulthandler.dump_traceback()
        kill_descendants(os.getpid())
        kill_marked(self._mark)
        os._exit(1)
