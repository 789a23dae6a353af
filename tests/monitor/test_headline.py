"""Which target is faster, in one sentence."""

import pytest
from monitor_samples import START, add_probes

from skep.monitor.headline import in_percent
from skep.monitor.overview import monitor_status
from skep.monitor.records import DAY_S, ProbeTarget, TargetKind

NOW = START + 7 * DAY_S
WEEK = 7 * 24


def put(
    series,
    name,
    level,
    *,
    kind=TargetKind.ENDPOINT,
    spread=0.01,
    count=WEEK,
    short_tokens=64,
    **probed,
):
    series.put_target(
        ProbeTarget(name, f"http://{name}", kind=kind, short_tokens=short_tokens, added_at=START)
    )
    values = [level * (1 + spread * (place % 3 - 1)) for place in range(count)]
    add_probes(series, values, target=name, **probed)


def lines(series, now=NOW):
    return [headline.line for headline in monitor_status(series, now).headlines]


def test_an_own_machine_is_set_against_each_server_of_somebody_else(series):
    put(series, "box", 73.7, kind=TargetKind.GATEWAY, model="m")
    put(series, "replica", 73.7, kind=TargetKind.REPLICA, model="m")
    put(series, "cloud", 33.8, model="m")
    put(series, "other-cloud", 90.0, model="n")
    first, second = lines(series)
    assert first.startswith(
        "box is 118 % faster than cloud (7-day medians 73.7 and 33.8); hot, short answer: "
        "tok/s; ratio"
    )
    assert "different models" not in first
    assert second.startswith("box is 18 % slower than other-cloud")
    assert "different models, m and n" in second


def test_a_gateway_is_not_set_against_its_own_replicas(series):
    put(series, "box", 73.7, kind=TargetKind.GATEWAY)
    put(series, "replica", 90.0, kind=TargetKind.REPLICA)
    assert lines(series) == []


def test_where_all_are_of_one_kind_the_fastest_goes_before_the_others(series):
    put(series, "slow", 10.0)
    put(series, "fast", 400.0)
    (line,) = lines(series)
    assert line.startswith("fast is 40.0 times as fast as slow")


def test_what_cannot_be_told_apart_or_compared_is_said_to_be_so(series):
    put(series, "box", 50.0, kind=TargetKind.REPLICA, spread=0.2)
    put(series, "cloud", 50.0, spread=0.2)
    put(series, "long", 90.0, short_tokens=512)
    same, unlike = lines(series)
    assert same.startswith("box and cloud cannot be told apart (7-day medians")
    assert unlike.startswith(
        "box and long are not compared: their probes ask for different lengths"
    )


def test_a_simulated_target_and_one_without_figures_now_are_named(series):
    put(series, "box", 73.7, kind=TargetKind.GATEWAY, simulated=True)
    put(series, "cloud", 33.8, count=100)
    (line,) = lines(series)
    assert line.endswith("box simulated; cloud without figures now")


def test_nothing_is_said_of_one_target_or_of_one_without_values(series):
    put(series, "box", 73.7)
    put(series, "new", 33.8, count=1)
    assert lines(series) == []


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(2.18, "118 % faster than"), (1.041, "4.1 % faster than"), (0.46, "54 % slower than")],
)
def test_a_ratio_is_told_in_percent(ratio, words):
    assert in_percent(ratio) == words
