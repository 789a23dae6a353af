"""`skep monitor export`, `thin` and `grafana`: what leaves the store, and what goes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TextIO

from skep.cli.monitor_words import moment_of, series_to_read, series_to_write
from skep.cli.output import note
from skep.errors import UserError
from skep.monitor.exporting import POINT_COLUMNS, SAMPLE_COLUMNS, point_rows, sample_rows, write_csv, write_json
from skep.places import user_paths
from skep.series import DAY_S, SeriesKey
from skep.store.database import open_store
from skep.store.series import SeriesStore
from skep.units import parse_seconds


def export_samples(
    target: str | None, since: str | None, key: str | None, output: Path | None, *, as_csv: bool, as_json: bool
) -> None:
    if as_csv and as_json:
        raise UserError("--csv and --json contradict each other", hint="leave one of them out")
    start = None if since is None else moment_of(since, time.time(), option="--since")
    write = write_json if as_json else write_csv
    with series_to_read() as series, open_store(user_paths(os.environ).store, read_only=True) as store:
        if key is not None:
            wanted = known_key(series, key)
            columns: tuple[str, ...] = POINT_COLUMNS
            rows = point_rows(series, wanted, start)
        else:
            name = None if target is None else known_target(series, target)
            columns, rows = SAMPLE_COLUMNS, sample_rows(store, target=name, since=start)
        with _opened(output) as file:
            count = write(columns, rows, file)
    note(f"{count} row{'' if count == 1 else 's'}" + (f" in {output}" if output else ""))


def known_target(series: SeriesStore, name: str) -> str:
    """Also one that was removed: its history is there. Raises UserError for an unknown one."""
    if series.keys(name):
        return name  # what others asked of the gateway has no target either
    return series.target(name, removed=True).name


def known_key(series: SeriesStore, text: str) -> SeriesKey:
    try:
        key = SeriesKey.parse(text)
    except ValueError:
        hint = "write it as box/hot/short/c1/tok_s; `skep monitor series --all` lists them"
        raise UserError(f"`{text}` is not the name of a series", hint=hint) from None
    known = series.keys(key.target)
    if key not in known:
        listed = ", ".join(map(str, known[:6])) or "none of that target"
        raise UserError(f"there is no series `{text}`", hint=f"there are: {listed}")
    return key


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    try:
        with output.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise UserError(f"`{output}` cannot be written: {error.strerror}", hint="check the path") from None


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
    note(f"{gone} samples are gone; `skep gc` gives their space back")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UserError("`skep monitor thin` asks before it deletes", hint="add --yes where nobody can be asked")
    note("go on? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_dashboard() -> None:
    sys.stdout.write(files("skep.monitor").joinpath("grafana.json").read_text(encoding="utf-8"))
