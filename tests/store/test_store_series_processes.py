"""A monitor that is killed, and readers beside one that writes: real processes on one file."""

from __future__ import annotations

from skep.monitor.records import Heat, ProbeShape, SeriesKey, SeriesMetric, SpanKind
from skep.monitor.store import SeriesStore
from skep.store.database import open_store

KEY = SeriesKey("box", Heat.HOT, ProbeShape.LONG, 1, SeriesMetric.TOK_S)
ALWAYS = (float("-inf"), float("inf"))


def look(series: SeriesStore) -> tuple[int, int]:
    """Days and samples as of one instant: nothing that the one tells of may be missing in the other."""
    with_figures = """
    SELECT (SELECT sum(spans.count) FROM spans JOIN series ON series.id = spans.series WHERE spans.kind = 'day'),
        (SELECT count(*) FROM samples), (SELECT count(*) FROM probes)
    """
    in_days, samples, probes = (value or 0 for value in series.store.read(with_figures)[0])
    assert in_days == samples == 3 * probes
    return probes, samples


def test_a_killed_monitor_leaves_whole_probes(path, child):
    """What was acknowledged is there once; two readers beside it see probes with all their samples and days."""
    open_store(path).close()
    with (
        child("series_process.py", path) as process,
        open_store(path, read_only=True) as first,
        open_store(path, read_only=True) as second,
    ):
        readers = (SeriesStore(first), SeriesStore(second))
        try:
            acknowledged = []
            for _ in range(60):
                acknowledged.append(int(process.stdout.readline()))
                assert all(look(reader)[0] >= len(acknowledged) for reader in readers)
        finally:
            process.kill()
        process.wait()
        acknowledged += map(int, process.stdout)
    with open_store(path) as store:
        series = SeriesStore(store)
        probes, _ = look(series)
        assert probes - len(acknowledged) in (0, 1)  # the last commit may have come before its line
        assert [probe.slot for probe in reversed(series.probes("box", *ALWAYS))] == list(range(probes))
        assert sum(hour.count for hour in series.spans(KEY, SpanKind.HOUR, *ALWAYS)) == probes
        assert series.last_slots() == {"box": (0, probes - 1)}
