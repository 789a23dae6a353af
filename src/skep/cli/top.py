"""`skep top`: a live view of a running hive."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated

from skep.cli.options import ROOT, JsonOption, command, option
from skep.errors import SkepError
from skep.paths import user_paths
from skep.report.hive_text import frame
from skep.report.liveview import Page
from skep.report.terminal import note, print_json
from skep.supervisor.hive_status import HiveReadings
from skep.units import parse_seconds

ONCE_S = 1.0  # between the two readings of `--once` and `--json`
SHORTEST_S = 0.1
ANSWER_S = 3.0


@command(ROOT, "skep top --every 2s")
def top(
    every: Annotated[str, option("Time between two readings, at least 100ms.")] = "1s",
    once: Annotated[
        bool, option("Print one frame and exit (the default without a terminal).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch slots, queues and tokens per second of a running deployment. Press q to quit."""
    from rich.console import Console

    from skep.report.liveview import can_draw, drawn
    from skep.supervisor.hive_status import HiveReadings, read_status

    every_s = max(SHORTEST_S, parse_seconds(every))
    readings = HiveReadings()
    paths = user_paths(os.environ)

    def read() -> None:
        readings.take(read_status(paths, ANSWER_S), time.monotonic())

    read()
    if not (once or as_json) and can_draw(sys.stdout):
        with contextlib.suppress(KeyboardInterrupt):
            _watch(readings, read, every_s)
        return
    time.sleep(ONCE_S)
    read()
    if as_json:
        print_json({**readings.status, "rates": readings.rates()})
    else:
        console = Console(highlight=False)
        console.print(drawn(frame(readings, Page(console.width))))


def _watch(readings: HiveReadings, read: Callable[[], None], every_s: float) -> None:
    """Draw frames until q or the end of the hive. If the hive does not answer, keep the last
    figures.
    """
    from skep.report.liveview import live_view
    from skep.supervisor.control import NotRunning

    trouble: str | None = None
    with live_view(lambda page: frame(readings, page, trouble), whole_screen=True) as pause:
        while not pause(every_s):
            try:
                read()
                trouble = None
            except NotRunning:
                break
            except SkepError as error:
                trouble = error.message
        else:
            return
    note("skep is down")
