"""What the gateway saw, hour by hour: closed once, by the end of each request."""

from itertools import count

import pytest

from skep.monitor.records import DAY_S, HOUR_S, PROBES_FLOW, Heat, ProbeShape, SeriesKey, SeriesMetric, SpanKind

DAY = 20_000 * DAY_S
ALWAYS = (float("-inf"), float("inf"))


@pytest.fixture
def served(store, a_gateway_request):
    """served(at, ended_s=..., ...): one request that arrived so many seconds after midnight."""
    numbers = count()

    def append(at: float, **changes) -> None:
        store.append_gateway_requests([a_gateway_request(f"a-{next(numbers)}", arrived_at=DAY + at, **changes)])

    return append


def key(metric: SeriesMetric, model: str = "smol") -> SeriesKey:
    return SeriesKey(f"gateway:{model}", Heat.SEEN, ProbeShape.ANY, 0, metric)


def told(
    series, metric: SeriesMetric, kind: SpanKind = SpanKind.HOUR, model: str = "smol"
) -> list[tuple[float, float]]:
    """Hours after midnight, and the median."""
    return [((span.start - DAY) / HOUR_S, span.median) for span in series.spans(key(metric, model), kind, *ALWAYS)]


def test_an_hour_is_closed_once_two_minutes_after_its_end_without_the_requests_of_probes(series, served):
    """Rows are written when a request ends, a moment later at most; one that comes later than can be is left out."""
    assert series.summarise_gateway(DAY) == 0
    served(10.0)
    served(11.0, flow=PROBES_FLOW)
    assert series.summarise_gateway(DAY + HOUR_S + 119.0) == 0
    assert series.keys() == []
    assert series.summarise_gateway(DAY + HOUR_S + 120.0) == 1
    served(20.0)
    assert series.summarise_gateway(DAY + 2 * HOUR_S) == 0
    assert series.summarise_gateway(DAY + 9 * HOUR_S) == 0
    assert told(series, SeriesMetric.REQUESTS) == [(0.0, 1.0)]


def test_a_request_belongs_to_the_hour_it_ended_in(series, served):
    """An answer may take two hours, and its row is not there before: it is counted then, and not lost."""
    served(10.0)
    assert series.summarise_gateway(DAY + HOUR_S + 300.0) == 1
    served(3000.0, ended_s=2 * HOUR_S)
    served(1.5 * HOUR_S)
    assert series.summarise_gateway(DAY + 5 * HOUR_S) == 2
    assert told(series, SeriesMetric.REQUESTS) == [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0)]


def test_long_answers_are_counted_once_whether_hours_are_closed_at_once_or_one_by_one(series, served, store):
    """Over the midnight, too; a day is what its hours were."""
    for number in range(40):
        served(number * 2700.0, ended_s=1.0 + (number * 977) % 9000, first_byte_s=0.25 + number / 100)
    for hour in range(1, 45):
        series.summarise_gateway(DAY + hour * HOUR_S + 200.0)
    query = "SELECT * FROM spans ORDER BY series, kind, start"
    one_by_one = [tuple(row) for row in store.read(query)]
    with store.transaction() as connection:
        connection.execute("DELETE FROM watermarks")
        connection.execute("DELETE FROM spans")
    assert series.summarise_gateway(DAY + 44 * HOUR_S + 200.0) > 24
    assert [tuple(row) for row in store.read(query)] == one_by_one
    assert sum(value for _, value in told(series, SeriesMetric.REQUESTS)) == 40
    days = series.spans(key(SeriesMetric.TTFT_MS), SpanKind.DAY, *ALWAYS)
    assert [day.start for day in days] == [DAY, DAY + DAY_S]
    assert sum(day.count for day in days) == 40


def test_the_figures_are_those_of_streamed_answers(series, served):
    """What came in one piece has no first token, a handful of tokens no speed, a failure neither."""
    served(1.0, first_byte_s=0.5, ended_s=2.5, output_tokens=100)
    served(2.0, first_byte_s=0.7, ended_s=2.7, output_tokens=7)
    served(3.0, first_byte_s=0.9, ended_s=2.9, output_tokens=None)
    served(4.0, streamed=False, first_byte_s=9.0, ended_s=9.0)
    served(5.0, outcome="broken", first_byte_s=9.0, ended_s=19.0)
    served(6.0, outcome="refused", status=429, replica=None, first_byte_s=None, output_tokens=None)
    served(7.0, status=502, first_byte_s=8.0)
    served(8.0, outcome="hung_up", status=None, first_byte_s=None)
    assert series.summarise_gateway(DAY + 2 * HOUR_S) == 1
    (ttft,) = series.spans(key(SeriesMetric.TTFT_MS), SpanKind.HOUR, *ALWAYS)
    (speed,) = series.spans(key(SeriesMetric.TOK_S), SpanKind.HOUR, *ALWAYS)
    assert (ttft.count, ttft.median) == (3, 700.0)
    assert (speed.count, speed.median) == (1, 50.0)
    assert told(series, SeriesMetric.REQUESTS) == [(0.0, 8.0)]
    assert told(series, SeriesMetric.FAILED) == [(0.0, 3.0)]


def test_a_day_has_a_median_hour(series, served):
    """Numbers of requests are by the hour there as well; hours without a request say nothing."""
    for at in (1.0, 2.0, 3.0, HOUR_S, 2 * HOUR_S, 2 * HOUR_S + 1):
        served(at)
    series.summarise_gateway(DAY + 10 * HOUR_S)
    (day,) = series.spans(key(SeriesMetric.REQUESTS), SpanKind.DAY, *ALWAYS)
    assert (day.count, day.low, day.median, day.high) == (3, 1.0, 2.0, 3.0)


def test_points_of_a_passive_series_are_its_hours(series, served):
    """It has no samples of its own."""
    served(1.0, first_byte_s=0.5)
    served(HOUR_S, first_byte_s=0.25)
    series.summarise_gateway(DAY + DAY_S)
    found = series.points(key(SeriesMetric.TTFT_MS), *ALWAYS)
    assert [(point.at - DAY, point.value) for point in found] == [(0.0, 500.0), (HOUR_S, 250.0)]
    assert [point.value for point in series.points(key(SeriesMetric.TTFT_MS), *ALWAYS, limit=1)] == [250.0]


def test_names_that_clients_make_up_open_no_series(series, served):
    """A model that no replica ever served is counted with those that named none."""
    lost = {"outcome": "refused", "status": 404, "replica": None, "first_byte_s": None}
    served(1.0)
    for number in range(5):
        served(2.0 + number, model=f"made-up-{number}", **lost)
    served(9.0, model=None, **lost)
    served(HOUR_S, **lost)  # known from the hour before: now it is down
    series.summarise_gateway(DAY + DAY_S)
    assert {one.target for one in series.keys()} == {"gateway:smol", "gateway:(none)"}  # noqa: SIM118
    assert told(series, SeriesMetric.REQUESTS, model="(none)") == [(0.0, 6.0)]
    assert told(series, SeriesMetric.FAILED) == [(0.0, 0.0), (1.0, 1.0)]


def test_a_clock_that_was_wrong_for_a_moment_closes_nothing_for_good_and_empty_years_are_passed_over(series, served):
    """It said the year 2100; the hours until then are still to come. Before: a row of 1970 and one of today."""
    served(-DAY + 5.0)
    served(1.0)
    assert series.summarise_gateway(DAY + 30_000 * DAY_S) == 2
    served(HOUR_S + 5.0)
    assert series.summarise_gateway(DAY + 3 * HOUR_S) == 1
