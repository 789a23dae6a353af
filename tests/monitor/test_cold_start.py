"""What the first request after a pause costs, in one sentence."""

from monitor_samples import START, add_probes

from skep.monitor.cold_start import cold_start_of
from skep.monitor.overview import monitor_status
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Heat,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
)

NOW = START + 2 * DAY_S


def put(series, name, *, cold, hot):
    """Hourly probes; each side is (ms to the first token, tok/s)."""
    series.put_target(ProbeTarget(name, f"http://{name}", added_at=START))
    for hour in range(48):
        at = START + hour * HOUR_S
        samples = [
            ProbeSample(
                at,
                heat,
                ProbeShape.SHORT,
                1,
                tok_s=tok_s * (1 + 0.01 * (hour % 3 - 1)),
                ttft_ms=ttft_ms,
            )
            for heat, (ttft_ms, tok_s) in ((Heat.COLD, cold), (Heat.HOT, hot))
        ]
        series.append_probe(
            Probe(name, 0, int(at // HOUR_S), at, at + 1, ProbeOutcome.DONE, at), samples
        )


def test_a_target_that_is_slow_after_a_pause_is_told_in_one_sentence(series):
    put(series, "cloud", cold=(3500.0, 12.1), hot=(800.0, 33.8))
    expected = (
        "cloud after a pause (probed every 1 h): first token after 3.5 s instead of 800 ms, "
        "12.1 tok/s instead of 33.8"
    )
    assert cold_start_of(series, "cloud", START, NOW).sentence == f"{expected} (2-day medians)"
    assert f"{expected} (7-day medians)" in monitor_status(series, NOW).sentences()


def test_a_target_that_keeps_its_speed_is_told_when_asked_alone(series):
    put(series, "box", cold=(120.0, 73.7), hot=(120.0, 73.7))
    start = cold_start_of(series, "box", START, NOW)
    expected = (
        "box after a pause (probed every 1 h): first token after 120 ms, 73.7 tok/s, not to be "
        "told apart from hot runs"
    )
    assert start.sentence == f"{expected} (2-day medians)"
    assert monitor_status(series, NOW).sentences() == []


def test_nothing_is_said_without_cold_runs(series):
    series.put_target(ProbeTarget("box", "http://box", added_at=START))
    add_probes(series, [73.7] * 10, figures={"ttft_ms": 120.0})
    assert cold_start_of(series, "box", START, NOW) is None
