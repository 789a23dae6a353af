"""Probes of a target as the monitor stores them, with figures of known levels."""

from random import Random

from skep.monitor import records

START = 20_750 * records.DAY_S  # midnight in UTC, on Saturday 24 October 2026
KEY = records.SeriesKey(
    "box", records.Heat.HOT, records.ProbeShape.SHORT, 1, records.SeriesMetric.TOK_S
)


def noisy(*levels, cv=0.01, seed=1):
    """Of (level, how many)."""
    rng = Random(seed)
    return [level * rng.gauss(1, cv) for level, many in levels for _ in range(many)]


def add_probes(
    series,
    values,
    *,
    target="box",
    start=START,
    every_s=records.HOUR_S,
    heat=records.Heat.HOT,
    figures=None,
    **probed,
):
    """One probe with one sample for each value, and other figures beside its speed."""
    for number, value in enumerate(values):
        at = start + number * every_s
        probe = records.Probe(
            target, 0, int(at // every_s), at, at + 1, records.ProbeOutcome.DONE, at, **probed
        )
        series.append_probe(
            probe,
            [
                records.ProbeSample(
                    at, heat, records.ProbeShape.SHORT, 1, tok_s=value, **(figures or {})
                )
            ],
        )
