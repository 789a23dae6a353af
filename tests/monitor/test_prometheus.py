"""The series in Prometheus' text form, read as strictly as Prometheus reads it and its page."""

import re
from pathlib import Path

import pytest

from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Alert,
    AlertRule,
    Heat,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
)
from skep.monitor.status import METRIC_NAMES, metrics_page

NOW = 1_794_700_000.0
PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)")


def parsed(text):
    """{name with labels: value}; an AssertionError where it is not the text format, 0.0.4."""
    families = set()
    values = {}
    name = None
    for line in text.decode().splitlines():
        if head := re.fullmatch(rf"# HELP ({NAME}) [^\\]*", line):
            name = head[1]
            assert name not in families, "all of a metric stands together"
            families.add(name)
        elif line.startswith("#"):
            assert line == f"# TYPE {name} gauge"
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample[1] == name
            key = f"{sample[1]}{{{sample[2] or ''}}}"
            assert key not in values, "a series is there once"
            values[key] = float(sample[3])
    return values


@pytest.fixture
def box(series):
    series.put_target(ProbeTarget("box", "http://127.0.0.1:1", added_at=NOW - 9 * DAY_S))


def probed(series, hours_ago, *, target="box", running=0, **figures):
    at = NOW - hours_ago * HOUR_S
    probe = Probe(
        target, 0, int(at // HOUR_S), at, at + 5, ProbeOutcome.DONE, started_at=at, running=running
    )
    series.append_probe(probe, [ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 1, **figures)])


def of_box(metric):
    return f'{metric}{{target="box",heat="hot",shape="short",concurrency="1"}}'


def test_the_last_value_and_the_median_of_seven_days_are_told(series, box):
    # The first one is too old.
    for hours, speed in (200, 1.0), (30, 80.0), (20, 90.0), (10, 100.0), (1, 70.0):
        probed(series, hours, tok_s=speed, ttft_ms=250.0)
    values = parsed(metrics_page(series, NOW))
    assert values[of_box("skep_monitor_tokens_per_second")] == 70
    assert values[of_box("skep_monitor_tokens_per_second_median_7d")] == 85
    assert values[of_box("skep_monitor_tokens_per_second_mad_7d")] == 10
    assert values[of_box("skep_monitor_ttft_seconds")] == 0.25
    assert values['skep_monitor_target_state{target="box",state="ok"}'] == 1
    assert values['skep_monitor_target_state{target="box",state="failing"}'] == 0
    assert values['skep_monitor_probes_7d{target="box",outcome="done"}'] == 4


def test_what_is_old_or_unknown_has_no_line(series, box):
    """A value of yesterday is not the latest one, and a zero would be a lie."""
    probed(series, 20, tok_s=70.0)
    values = parsed(metrics_page(series, NOW))
    assert of_box("skep_monitor_tokens_per_second") not in values
    assert values[of_box("skep_monitor_tokens_per_second_median_7d")] == 70
    assert not [key for key in values if "engine" in key or "alerts" in key]
    assert values['skep_monitor_target_state{target="box",state="silent"}'] == 1


def test_busy_samples_are_not_in_the_median(series, box):
    probed(series, 3, tok_s=80.0)
    probed(series, 1, running=3, tok_s=20.0)
    values = parsed(metrics_page(series, NOW))
    assert values[of_box("skep_monitor_tokens_per_second_median_7d")] == 80
    assert values['skep_monitor_target_state{target="box",state="busy"}'] == 1


def test_a_removed_target_is_not_told_and_alerts_are_counted(series, box):
    series.put_target(ProbeTarget("gone", "http://127.0.0.1:1", added_at=NOW - DAY_S))
    probed(series, 1, target="gone", tok_s=80.0)
    series.remove_target("gone", NOW)
    series.open_alert(Alert(AlertRule.DISK, None, NOW, 'the disk "fills"'))
    series.open_alert(Alert(AlertRule.DOWN, "box", NOW, "it is down"))
    values = parsed(metrics_page(series, NOW))
    assert not [key for key in values if "gone" in key]
    assert values['skep_monitor_alerts_open{target="",rule="disk"}'] == 1
    assert values['skep_monitor_alerts_open{target="box",rule="down"}'] == 1


def test_an_empty_store_is_no_error(series):
    assert parsed(metrics_page(series, NOW)) == {}


def test_the_page_names_every_metric_and_no_other(series, box):
    probed(series, 1, tok_s=50.0)
    series.open_alert(Alert(AlertRule.DOWN, "box", NOW, "it is down"))
    names = {key.partition("{")[0] for key in parsed(metrics_page(series, NOW))}
    names = {re.sub(r"_(median|mad)_7d$", "", name) for name in names} | {
        name for name, _ in METRIC_NAMES.values()
    }
    assert set(re.findall(r"^\| `(skep_monitor_[a-z0-9_]+)`", PAGE, re.MULTILINE)) == names
