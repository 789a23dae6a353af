"""`skep monitor status` and `skep monitor check`: how it stands, and what is wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from skep.cli.monitor_series import notes_in_words
from skep.cli.monitor_words import (
    NOTHING_YET,
    ago,
    ahead,
    day_and_time,
    loop_pid,
    percent,
    runs_with_up,
    series_if_any,
    series_to_read,
)
from skep.cli.output import note, number, print_json, print_table
from skep.errors import Regression, UserError
from skep.monitor.standing import Reading, Standing, State, alert_document, standings
from skep.places import user_paths
from skep.series import Alert, Metric, ProbeOutcome


def show_status(*, as_json: bool) -> None:
    now = time.time()
    with series_if_any() as series:
        found = standings(series, now) if series else []
        alerts = series.alerts(open_only=True) if series else []
        notes = notes_in_words(series, now) if series else []
    pid = loop_pid()
    if as_json:
        loop = {"running": pid is not None, "pid": pid}
        targets = [standing.document() for standing in found]
        print_json(
            {
                "at": now,
                "loop": loop,
                "targets": targets,
                "alerts": [alert_document(one) for one in alerts],
                "notes": notes,
            }
        )
        return
    if not found:
        note(f"no target is watched; {NOTHING_YET}")
        return
    columns = ("TARGET", "STATE", "NOW", "7 D MEDIAN", "CHANGE", "TTFT", "PROBED", "NEXT", "COVERED", "ALERTS")
    right = ("NOW", "7 D MEDIAN", "CHANGE", "TTFT", "COVERED", "ALERTS")
    print_table(columns, [_cells(standing, now, running=pid is not None) for standing in found], right=right)
    _say_why(found, alerts)
    for line in notes:
        note(line)
    if pid is None:
        also = ", and `skep up` does" if runs_with_up() else ""
        note(f"the loop is not running: `skep monitor run` starts it{also}")


def _cells(standing: Standing, now: float, *, running: bool) -> list[str]:
    speed = next((one for one in standing.readings if one.key.metric.unit == "tok/s"), None)
    ttft = next((one for one in standing.readings if one.key.metric is Metric.TTFT_MS), None)
    covered = standing.covered
    return [
        standing.target.name,
        str(standing.state),
        _latest(speed, "tok/s"),
        "–" if speed is None or speed.week is None else number(speed.week.median),
        percent(None if speed is None else speed.ratio),
        _latest(ttft, "ms"),
        "never" if standing.last is None else ago(now - standing.last.ended_at),
        ahead(standing.due_at - now) if running else "–",
        "–" if covered is None else f"{100 * covered:.0f} %",
        str(len(standing.alerts)),
    ]


def _latest(reading: Reading | None, unit: str) -> str:
    known = reading is not None and reading.latest is not None
    return f"{number(reading.latest.value)} {unit}" if known else "–"  # type: ignore[union-attr]


def _say_why(found: list[Standing], alerts: list[Alert]) -> None:
    for standing in found:
        last = standing.last
        if last is not None and last.outcome is ProbeOutcome.FAILED and standing.state is not State.SILENT:
            note(f"{standing.target.name}: {last.error or last.error_kind or 'the last probe failed'}")
        elif standing.state is State.BUSY:
            note(f"{standing.target.name}: others were there during the last probe; its figures are no regression")
        elif standing.state is State.SILENT and last is not None:
            note(f"{standing.target.name}: not probed since {day_and_time(last.ended_at)}")
    for alert in alerts:
        note(f"alert: {alert.message} (since {day_and_time(alert.opened_at)})")


def check_now(config: Path | None, *, as_json: bool) -> None:
    """Raises Regression, exit code 4, while something is wrong."""
    from skep.configfile import find_config, load_settings
    from skep.monitor.watchdog import check_document

    paths = user_paths(os.environ)
    settings = load_settings(find_config(config, paths), paths, os.environ)
    with series_to_read() as series:
        if not series.targets():  # cron may run as somebody else: nothing watched is not the same as all well
            raise UserError("nothing is watched here", hint=NOTHING_YET)
        document: dict[str, Any] = check_document(
            series, settings.monitor, time.time(), paths.store, running=loop_pid() is not None
        )
    wrong = document["wrong"]
    if as_json:
        print_json(document)
    else:
        for one in wrong:
            print(one["message"])  # noqa: T201
        if not wrong:
            note("nothing is wrong")
    if wrong:
        raise Regression(f"{len(wrong)} thing{'s are' if len(wrong) > 1 else ' is'} wrong", hint=None)
