"""What the series of `skep monitor` say, the store that has them, and their times and percentages in words."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from skep.cli.options import existing
from skep.cli.output import day_and_time, note, number, print_json, print_table
from skep.errors import SkepError, UserError
from skep.monitor.compare import AroundEvent, TargetComparison, around_event, compare_targets, versus_document
from skep.monitor.export import POINT_COLUMNS, SAMPLE_COLUMNS, point_rows, sample_rows, write_csv, write_json
from skep.monitor.history import SeriesHistory, history_of, primary_keys
from skep.monitor.records import DAY_S, EventKind, MonitorEvent, SeriesChange, SeriesKey
from skep.monitor.store import SeriesStore
from skep.paths import user_paths
from skep.stats.rolling import WindowStats
from skep.store.database import open_store
from skep.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from skep.stats.versus import SeriesComparison


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


LONGEST_NOTE = 500
NOTES_SHOWN = 3


def show_series(wanted: str | None, since: str, *, everything: bool, as_json: bool) -> None:
    now = time.time()
    start = moment_of(since, now, option="--since")
    with series_to_read() as series:
        found = [history_of(series, key, start, now) for key in _keys(series, wanted, everything=everything)]
    if as_json:
        print_json([history_document(history) for history in found])
        return
    if not found:
        note("there is no series yet: a target's first probe makes one")
        return
    rows = [_row(history.key, name, stats) for history in found for name, stats in history.stats.items()]
    print_table("SERIES|OVER|>VALUES|>MEDIAN|UNIT|>MAD|>CV|>P05|>P95|>LOW|>HIGH", rows)
    for history in found:
        for sentence in history.sentences:
            print(f"{history.key}: {sentence}")  # noqa: T201


def _keys(series: SeriesStore, wanted: str | None, *, everything: bool) -> list[SeriesKey]:
    if wanted is not None and "/" in wanted and not series.keys(wanted):  # `gateway:org/model` is a target too
        return [known_key(series, wanted)]
    names = [target.name for target in series.targets()] if wanted is None else [known_target(series, wanted)]
    if everything:
        return series.keys() if wanted is None else series.keys(names[0])
    return [key for name in names for key in primary_keys(series, name)]


def _row(key: SeriesKey, name: str, stats: WindowStats | None) -> list[str]:
    if stats is None:
        return [str(key), name, "0", "–", key.metric.unit, *["–"] * 6]
    digits = 2 if key.metric.unit == "" else 1
    spread = [number(value, digits) for value in (stats.p05, stats.p95, stats.low, stats.high)]
    cv = "–" if stats.cv is None else f"{100 * stats.cv:.1f} %"
    middle = [number(stats.median, digits), key.metric.unit, number(stats.mad, digits), cv]
    return [str(key), name, str(stats.count), *middle, *spread]


def compare_two(a: str, b: str, since: str, *, as_json: bool) -> None:
    now = time.time()
    start = moment_of(since, now, option="--since")
    if a == b:
        raise UserError(f"`{a}` is compared with itself", hint="name two targets; `skep monitor list` shows them")
    with series_to_read() as series:
        found = compare_targets(series, known_target(series, a), known_target(series, b), start, now)
    if as_json:
        print_json(comparison_document(found))
        return
    if not found.rows:
        note(f"`{a}` and `{b}` have no kind of run in common since {day_and_time(start)}")
        return
    rows = [
        [
            f"{row.heat} {row.shape} c{row.concurrency} {row.metric}", row.metric.unit, *_side(row.versus.a),
            *_side(row.versus.b), *_ratio(row.versus), row.versus.judgement.value,
        ]
        for row in found.rows
    ]  # fmt: skip
    print_table(f"RUN|UNIT|>{a.upper()}|>RANGE|>CV|>{b.upper()}|>RANGE |>CV |>RATIO|>95 %|JUDGEMENT", rows)
    for sentence in found.sentences:
        print(sentence)  # noqa: T201


def _side(stats: WindowStats | None) -> list[str]:
    if stats is None:
        return ["–", "–", "–"]
    cv = "–" if stats.cv is None else f"{100 * stats.cv:.1f} %"
    return [number(stats.median), f"{number(stats.low)} .. {number(stats.high)}", cv]


def _ratio(found: SeriesComparison) -> list[str]:
    """B over A."""
    if found.ratio is None:
        return ["–", "–"]
    return [number(found.ratio.estimate, 3), f"{found.ratio.low:.3f} .. {found.ratio.high:.3f}"]


def write_note(text: str, target: str | None, at: str | None, *, as_json: bool) -> None:
    now = time.time()
    moment = now if at is None else moment_of(at, now, option="--at")
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    if not words or len(words) > LONGEST_NOTE:
        raise UserError(f"a note has 1 to {LONGEST_NOTE} characters", hint='skep monitor note "driver 580 installed"')
    if moment == 0:
        raise UserError(f"--at {at} is before 1970", hint="write it as `--at 2h` or `--at 2026-11-15T14:30`")
    if moment > now:
        raise UserError(f"--at {at} is in the future", hint="write it down when it has happened")
    with series_to_write() as series:
        name = None if target is None else known_target(series, target)
        event = MonitorEvent(moment, EventKind.NOTE, words, name)
        event = replace(event, id=series.append_event(event))
        found = around_note(series, event)
    if as_json:
        print_json({"event": event_document(event), "around": [around_document(one) for one in found]})
        return
    note(f"written down for {name or 'all targets'} at {day_and_time(moment)}")
    for one in found:
        print(f"{one.key}: {one.sentence}")  # noqa: T201
    if not found:
        note("before and after are compared once probes have followed: `skep monitor status` shows it")


def around_note(series: SeriesStore, event: MonitorEvent) -> list[AroundEvent]:
    """Return the first series of each target that has values on both sides of it."""
    names = [target.name for target in series.targets()] if event.target is None else [event.target]
    found = [around_event(series, event, key) for name in names for key in primary_keys(series, name)[:1]]
    return [one for one in found if one.versus.ratio is not None]


def notes_in_words(series: SeriesStore, now: float) -> list[str]:
    """Return what the newest notes of 7 days have brought, for `skep monitor status`."""
    notes = [event for event in series.events(now - 7 * DAY_S, now) if event.kind is EventKind.NOTE]
    return [f"{one.key}: {one.sentence}" for event in notes[-NOTES_SHOWN:] for one in around_note(series, event)]


def history_document(history: SeriesHistory) -> dict[str, Any]:
    return {
        "series": str(history.key),
        "unit": history.key.metric.unit,
        "since": history.since,
        "until": history.until,
        "stats": {name: None if stats is None else asdict(stats) for name, stats in history.stats.items()},
        "changes": [change_document(change) for change in history.changes],
        "drifts": [asdict(drift) for drift in history.drifts],
        "events": [event_document(event) for event in history.events],
        "coverage": dict(history.coverage),
        "busy": history.busy,
        "late": None if history.late is None else versus_document(history.late),
        "sentences": list(history.sentences),
    }


def change_document(change: SeriesChange) -> dict[str, Any]:
    return {**asdict(change), "key": str(change.key), "between": list(change.between), "ratio": change.ratio}


def event_document(event: MonitorEvent) -> dict[str, Any]:
    return {**asdict(event), "kind": str(event.kind), "detail": dict(event.detail)}


def comparison_document(found: TargetComparison) -> dict[str, Any]:
    models = {"model_a": found.model_a, "model_b": found.model_b, "same_model": found.same_model}
    window = {"since": found.since, "until": found.until}
    rows = [row.document() for row in found.rows]
    return {"a": found.a, "b": found.b, **window, **models, "rows": rows, "sentences": list(found.sentences)}


def around_document(found: AroundEvent) -> dict[str, Any]:
    windows = {"before": list(found.before), "after": list(found.after)}
    return {"series": str(found.key), **windows, **versus_document(found.versus), "sentence": found.sentence}


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
