"""Carry out the commands of `skep monitor` that show, compare, note and export series."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import msgspec

from skep.cli.options import existing
from skep.cli.output import day_and_time, note, print_json
from skep.errors import UserError
from skep.monitor.compare import compare_targets
from skep.monitor.compare import write_note as store_note
from skep.monitor.export import export_rows, write_csv, write_json
from skep.monitor.history import history_of
from skep.monitor.records import DAY_S
from skep.monitor.store import SeriesStore
from skep.monitor.targets import chosen_keys
from skep.paths import user_paths
from skep.report.columns import print_records
from skep.report.monitor import WINDOWS, comparison_columns
from skep.store.database import open_store
from skep.units import parse_seconds

NOTHING_YET = "`skep monitor add NAME --url URL` adds a target"


def series_to_read() -> SeriesStore:
    """Open the store read-only. Raise UserError where there is no store yet."""
    return SeriesStore(existing("nothing is watched yet", NOTHING_YET))


def series_if_any() -> AbstractContextManager[SeriesStore | None]:
    """Open the store read-only; None where there is no store yet, and none is made."""
    return series_to_read() if user_paths(os.environ).store.exists() else nullcontext()


def series_to_write() -> SeriesStore:
    return SeriesStore(open_store(user_paths(os.environ).store))


def moment_of(text: str, now: float, *, option: str) -> float:
    """Parse `7d` as that long ago, `2026-11-15` or `2026-11-15 14:30` as local time. Clamped to 1970."""
    with suppress(ValueError, OverflowError, OSError):
        return max(0.0, datetime.fromisoformat(text.strip()).timestamp())
    with suppress(UserError):
        return max(0.0, now - parse_seconds(text))
    hint = f"write it as `{option} 7d` (7 days ago) or `{option} 2026-11-15T14:30`"
    raise UserError(f"{option} `{text}` is not a time", hint=hint)


def parse_percent(text: str, *, option: str) -> float:
    """Parse `10%` or `10` as 10.0."""
    with suppress(ValueError):
        if 0 < (value := float(text.strip().removesuffix("%").strip())) < 100:
            return value
    raise UserError(f"{option} `{text}` is not a share between 0 and 100 %", hint=f"write it as `{option} 10%`")


def export_samples(
    target: str | None, since: str | None, key: str | None, output: Path | None, *, as_csv: bool, as_json: bool
) -> None:
    if as_csv and as_json:
        raise UserError("--csv and --json contradict each other", hint="leave one of them out")
    start = None if since is None else moment_of(since, time.time(), option="--since")
    with series_to_read() as series:
        columns, rows = export_rows(series, target, key, start)
        try:
            with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8", newline="") as file:
                count = (write_json if as_json else write_csv)(columns, rows, file)
        except OSError as error:
            if output is None:
                raise
            raise UserError(f"`{output}` cannot be written: {error.strerror}", hint="check the path") from None
    note(f"{count} row{'' if count == 1 else 's'}" + (f" in {output}" if output else ""))


def thin_samples(older: str, *, yes: bool) -> None:
    """Asks first: what goes cannot be had again."""
    age_s = parse_seconds(older)
    if age_s < DAY_S:
        raise UserError(f"--older {older} is less than a day", hint="whole days are thinned: --older 90d")
    before = max(0.0, time.time() - age_s) // DAY_S * DAY_S  # whole days of UTC
    with series_to_read() as series:
        total = series.count_samples()
    day = datetime.fromtimestamp(before, UTC).date()
    note(f"raw samples before {day}, midnight UTC, go ({total} are stored); the summary of each day stays")
    if not yes and not _agreed():
        note("nothing was changed")
        return
    with series_to_write() as series:
        gone = series.thin(before)
    note(f"{gone} samples are gone; `skep store gc` gives their space back")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UserError("`skep monitor thin` asks before it deletes", hint="add --yes where nobody can be asked")
    note("go on? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_dashboard() -> None:
    sys.stdout.write(files("skep.monitor").joinpath("grafana.json").read_text(encoding="utf-8"))


def show_series(wanted: str | None, since: str, *, everything: bool, as_json: bool) -> None:
    now = time.time()
    start = moment_of(since, now, option="--since")
    with series_to_read() as series:
        found = [history_of(series, key, start, now) for key in chosen_keys(series, wanted, everything=everything)]
    if as_json:
        print_json([history.document() for history in found])
        return
    if not found:
        note("there is no series yet: a target's first probe makes one")
        return
    print_records(WINDOWS, [(history.key, *window) for history in found for window in history.stats.items()])
    for history in found:
        for sentence in history.sentences:
            print(f"{history.key}: {sentence}")  # noqa: T201


def compare_two(a: str, b: str, since: str, *, as_json: bool) -> None:
    now = time.time()
    start = moment_of(since, now, option="--since")
    with series_to_read() as series:
        found = compare_targets(series, a, b, start, now)
    if as_json:
        print_json(found.document())
        return
    if not found.rows:
        note(f"`{a}` and `{b}` have no kind of run in common since {day_and_time(start)}")
        return
    print_records(comparison_columns(a, b), found.rows)
    for sentence in found.sentences:
        print(sentence)  # noqa: T201


def write_note(text: str, target: str | None, at: str | None, *, as_json: bool) -> None:
    now = time.time()
    moment = None if at is None else moment_of(at, now, option="--at")
    with series_to_write() as series:
        event, found = store_note(series, text, target, now, moment)
    if as_json:
        print_json({"event": msgspec.to_builtins(event), "around": [one.document() for one in found]})
        return
    note(f"written down for {target or 'all targets'} at {day_and_time(event.at)}")
    for one in found:
        print(f"{one.key}: {one.sentence}")  # noqa: T201
    if not found:
        note("before and after are compared once probes have followed: `skep monitor status` shows it")
