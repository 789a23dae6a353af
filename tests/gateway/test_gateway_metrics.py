"""The metrics' text, read as strictly as Prometheus reads it, and their page."""

import math
import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from skep.gateway.request_accounting import SECOND_BUCKETS, Metrics
from skep.wire.prometheus import LABEL_SETS, OTHER, Counter, Gauge, Histogram

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(
    rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (NaN|[+-]Inf|-?[0-9.]+(?:e[+-]?[0-9]+)?)"
)
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


def parsed(text):
    """{name: (kind, {(sample name, labels): value})}; an AssertionError where it is not the text
    format, 0.0.4.
    """
    assert text.endswith(b"\n")
    families = {}
    kind = None
    name = None
    for line in text.decode("utf-8").split("\n")[:-1]:
        if match := re.fullmatch(rf"# HELP ({NAME}) ([^\\\n]*)", line):
            name = match[1]
            kind = None
            assert name not in families, "all of a metric stands together"
            continue
        if match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line):
            assert match[1] == name
            kind = match[2]
            families[name] = (kind, {})
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert kind is not None
        assert match[1] in [name + suffix for suffix in SUFFIXES[kind]], line
        labels = tuple(
            (label, re.sub(r"\\.", lambda escape: ESCAPES[escape[0]], value))
            for label, value in re.findall(LABEL, match[2] or "")
        )
        assert len(dict(labels)) == len(labels), "a label is there once"
        samples = families[name][1]
        assert (match[1], labels) not in samples, "a series is there once"
        samples[match[1], labels] = float(match[7].replace("Inf", "inf"))
    return families


def text_of(*metrics):
    whole = Metrics()
    for name in list(vars(whole)):
        delattr(whole, name)
    for place, metric in enumerate(metrics):
        setattr(whole, f"m{place}", metric)
    return whole.text()


labels = st.tuples(st.text(max_size=8), st.text('a"\\\nä{},= ', max_size=6))
amounts = st.floats(0, 1e12) | st.integers(0, 10**9)


@given(st.lists(st.tuples(labels, amounts), max_size=20))
@settings(deadline=None)
def test_counters_and_gauges_say_what_was_counted_whatever_their_labels_are(events):
    counter = Counter("c_total", "C.", ("a", "b"))
    gauge = Gauge("g", "G.", ("a", "b"))
    sums = {}
    for values, amount in events:
        counter.add(values, amount)
        sums[values] = sums.get(values, 0) + amount
    gauge.set_all(sums)
    families = parsed(text_of(counter, gauge))
    for name in ("c_total", "g"):
        totals = {
            tuple(value for _, value in pairs): total
            for (_, pairs), total in families[name][1].items()
        }
        assert totals == pytest.approx(sums)


@given(st.lists(st.tuples(labels, st.floats(0, 2000)), max_size=40))
@settings(deadline=None)
def test_a_histograms_buckets_are_cumulative_and_end_at_its_count(observations):
    histogram = Histogram("h", "H.", ("a", "b"), SECOND_BUCKETS)
    for values, value in observations:
        histogram.observe(values, value)
    samples = parsed(text_of(histogram))["h"][1]
    series = {}
    for (name, pairs), value in samples.items():
        series.setdefault(pairs[:2], {})[name, dict(pairs).get("le")] = value
    for pairs, numbers in series.items():
        assert [name for name, _ in pairs] == ["a", "b"]
        labels_of_series = [value for _, value in pairs]
        check_series(
            numbers, [value for values, value in observations if list(values) == labels_of_series]
        )


def check_series(numbers, values):
    bounds = [bound for name, bound in numbers if name == "h_bucket"]
    assert bounds == [*bounds[:-1], "+Inf"]
    assert [float(bound) for bound in bounds[:-1]] == list(SECOND_BUCKETS)
    for bound in bounds:
        assert numbers["h_bucket", bound] == sum(value <= float(bound) for value in values)
    assert numbers["h_bucket", "+Inf"] == numbers["h_count", None] == len(values)
    assert numbers["h_sum", None] == pytest.approx(sum(values))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (True, "1"),
        (1e15, "1000000000000000"),
        (0.1, "0.1"),
        (1e-7, "1e-07"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers_are_written_as_prometheus_reads_them_and_bounds_belong_to_buckets(value, text):
    gauge = Gauge("g", "G.", ())
    gauge.set_all({(): value})
    assert list(gauge.lines()) == [f"g {text}"]
    parsed(text_of(gauge))
    histogram = Histogram("h", "H.", (), (1.0, 2.0))
    for observed in (1.0, 1.0000001, 2.0, 3.0):
        histogram.observe((), observed)
    assert list(histogram.lines())[:3] == [
        'h_bucket{le="1"} 1',
        'h_bucket{le="2"} 3',
        'h_bucket{le="+Inf"} 4',
    ]


def test_label_sets_are_bounded_and_nothing_counted_is_lost_or_spoiled():
    """Names that clients choose must not fill the memory."""
    counter = Counter("c_total", "C.", ("a",))
    histogram = Histogram("h", "H.", ("a",), (1.0,))
    for name in ["\ud800", *map(str, range(LABEL_SETS + 39)), "3"]:
        counter.add((name,))
        histogram.observe((name,), 0.5)
    families = parsed(text_of(counter, histogram))
    counts = {
        pairs: value for (name, pairs), value in families["h"][1].items() if name == "h_count"
    }
    for counted in (
        {pairs: value for (_, pairs), value in families["c_total"][1].items()},
        counts,
    ):
        assert len(counted) == LABEL_SETS + 1
        assert (counted[("a", "?"),], counted[("a", OTHER),], counted[("a", "3"),]) == (1, 40, 2)
        assert sum(counted.values()) == LABEL_SETS + 41


def test_names_and_labels_follow_prometheus_rules():
    for metric in vars(Metrics()).values():
        assert re.fullmatch(r"skep_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert not metric.name.endswith(("_bucket", "_sum", "_count"))
        assert metric.help.endswith(".")
        assert all(re.fullmatch(r"[a-z]+", label) and label != "le" for label in metric.labels)


# The page


def test_every_metric_has_its_heading_with_kind_and_labels_and_no_other_has_one():
    metrics = [*vars(Metrics()).values()]
    kinds = {name: kind for name, (kind, _) in parsed(Metrics().text()).items()}
    assert kinds == {metric.name: metric.kind for metric in metrics}
    assert sorted(re.findall(r"^### `([^`]+)`$", PAGE, re.MULTILINE)) == sorted(kinds)
    for metric in metrics:
        _, _, rest = PAGE.partition(f"### `{metric.name}`\n")
        kind, _, named = rest.partition("\n")[0].partition("; ")
        assert (kind.lower(), tuple(re.findall(r"`([^`]+)`", named))) == (
            metric.kind,
            metric.labels,
        )


def test_the_queries_of_the_page_ask_for_metrics_and_labels_that_exist():
    queries = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)
    assert len(queries) >= 3
    metrics = {metric.name: metric for metric in vars(Metrics()).values()}
    for query in queries:
        used = re.findall(r"skep_[a-z_]+", query)
        assert used
        for name in used:
            metric = metrics.get(name) or metrics[re.sub(r"_(bucket|sum|count)$", "", name)]
            for labels in re.findall(r"by \(([^)]*)\)", query):
                assert {label.strip() for label in labels.split(",")} <= {*metric.labels, "le"}, (
                    name
                )
