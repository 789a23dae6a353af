"""Parse and format times and percentages, and open the store of the series, for `skep monitor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from skep.cli.run_list import existing
from skep.errors import SkepError, UserError
from skep.monitor.store import SeriesStore
from skep.paths import user_paths
from skep.store.database import open_store
from skep.units import format_seconds, parse_seconds

NOTHING_YET = "`skep monitor add NAME --url URL` adds a target"


@contextmanager
def series_to_read() -> Iterator[SeriesStore]:
    """Open the store read-only. Raise UserError where there is no store yet."""
    with existing("nothing is watched yet", NOTHING_YET) as store:
        yield SeriesStore(store)


@contextmanager
def series_if_any() -> Iterator[SeriesStore | None]:
    """Open the store read-only; None where there is no store yet, and none is made."""

    if not user_paths(os.environ).store.exists():
        yield None
        return
    with series_to_read() as series:
        yield series


@contextmanager
def series_to_write() -> Iterator[SeriesStore]:
    with open_store(user_paths(os.environ).store) as store:
        yield SeriesStore(store)


def loop_pid() -> int | None:
    """Return the pid of the running loop, None where none runs: the lock file names it, and it has that file open.

    The lock itself is not tried: a loop that starts at that moment would find it taken.
    """
    from skep.monitor.main import monitor_lock

    path = monitor_lock(user_paths(os.environ))
    try:
        pid = int(path.read_text().split()[0])
        return pid if any(_is_same(path, opened) for opened in Path(f"/proc/{pid}/fd").iterdir()) else None
    except (OSError, ValueError, IndexError):
        return None


def runs_with_up() -> bool:
    """Return whether `skep up` starts the loop; False where skep.toml cannot be read."""
    from skep.config.load import find_config, load_settings

    paths = user_paths(os.environ)
    try:
        return load_settings(find_config(None, paths), paths, os.environ).monitor.with_up
    except SkepError:
        return False


def _is_same(path: Path, opened: Path) -> bool:
    try:
        return path.samefile(opened)
    except OSError:  # closed meanwhile
        return False


def moment_of(text: str, now: float, *, option: str) -> float:
    """Parse `7d` as that long ago, `2026-11-15` or `2026-11-15 14:30` as local time. Clamped to 1970."""
    try:
        return max(0.0, datetime.fromisoformat(text.strip()).timestamp())
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return max(0.0, now - parse_seconds(text))
    except UserError:
        hint = f"write it as `{option} 7d` (7 days ago) or `{option} 2026-11-15T14:30`"
        raise UserError(f"{option} `{text}` is not a time", hint=hint) from None


def ago(seconds: float) -> str:
    return "just now" if seconds < 1 else f"{_rough(seconds)} ago"


def ahead(seconds: float) -> str:
    return "now" if seconds < 1 else f"in {_rough(seconds)}"


def percent(ratio: float | None) -> str:
    """Return a ratio as a change: 0.959 is "-4.1 %"."""
    return "–" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def parse_percent(text: str, *, option: str) -> float:
    """Parse `10%` or `10` as 10.0."""
    try:
        value = float(text.strip().removesuffix("%").strip())
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise UserError(f"{option} `{text}` is not a share between 0 and 100 %", hint=f"write it as `{option} 10%`")
    return value


def _rough(seconds: float) -> str:
    return format_seconds(seconds if seconds >= 99.95 else round(seconds)).replace(".0 s", " s")
