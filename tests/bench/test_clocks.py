"""Client and engine on the same requests: when they differ, and what is said to be the cause."""

from dataclasses import replace

import pytest

from skep.bench.metrics import disagreements
from skep.bench.records import Clock
from skep.store.records import EngineTimings, Request

ENGINE = EngineTimings(prompt_tokens=10, prompt_ms=100.0, output_tokens=11, decode_ms=1000.0)


def row(arrivals=tuple(0.1 + n / 10 for n in range(11)), tokens=11, engine=ENGINE, **fields):
    """Eleven tokens from 0.1 s on, one every 0.1 s: just what the engine says."""
    return Request(
        level=1,
        repeat=0,
        index=0,
        kind="fix",
        started_s=0.0,
        ended_s=arrivals[-1],
        first_token_s=arrivals[0],
        last_token_s=arrivals[-1],
        output_tokens=tokens,
        arrivals_s=tuple(arrivals),
        engine=engine,
        **fields,
    )


def only(*rows, **how):
    (found,) = disagreements(rows, **how)
    return found


def test_clocks_that_agree_are_not_mentioned():
    """The engine's time is that of ten tokens: the first one is its prompt's."""
    assert disagreements([row(), row()]) == ()


def test_an_engine_that_says_nothing_is_not_doubted():
    assert disagreements([row(engine=EngineTimings())]) == ()
    assert disagreements([]) == ()


def test_slower_tokens_at_the_client_waited_on_the_way():
    found = only(row(arrivals=[0.1 + n / 8 for n in range(11)]))
    assert (found.clock, found.client, found.engine) == (Clock.DECODE, pytest.approx(8.0), pytest.approx(10.0))
    assert "proxy" in found.cause


def test_quicker_tokens_at_the_client_that_came_together_say_so():
    together = [0.1 + n // 4 / 10 for n in range(11)]
    found = only(row(arrivals=together))
    assert (found.clock, found.client > found.engine) == (Clock.DECODE, True)
    assert found.cause == "several tokens came in one read"


def test_a_first_token_that_came_later_than_the_prompt_took_was_waiting():
    late = [0.5 + n / 10 for n in range(11)]
    found = only(row(arrivals=late))
    assert (found.clock, found.client, found.engine) == (Clock.FIRST_TOKEN, 500.0, 100.0)
    assert "waited" in found.cause


def test_the_gateways_queue_is_named_with_its_share():
    late = [0.5 + n / 10 for n in range(11)]
    assert only(row(arrivals=late, queued_ms=390.0)).cause == "390 ms of it in the gateway's queue"
    assert "the rest" in only(row(arrivals=late, queued_ms=50.0)).cause


def test_a_late_client_counts_from_when_the_request_was_due():
    found = only(replace(row(), scheduled_s=-1.0))
    assert (found.clock, found.client) == (Clock.FIRST_TOKEN, 1100.0)


def test_a_few_milliseconds_are_the_network():
    assert disagreements([row(arrivals=[0.119 + n / 10 for n in range(11)])]) == ()


def test_usage_and_the_engines_count_may_differ_by_the_end_token():
    by_one, by_many = ({one.clock for one in disagreements([row(tokens=count)])} for count in (12, 30))
    assert (Clock.TOKENS in by_one, Clock.TOKENS in by_many) == (False, True)


def test_failed_requests_are_not_held_against_the_engine():
    assert disagreements([row(), row(arrivals=[5.0, 90.0], error_kind="timeout")]) == ()


def test_counters_speak_where_the_engine_says_nothing_of_a_request():
    silent = row(engine=EngineTimings())
    assert disagreements([silent], {"tpot_s": 0.1, "ttft_s": 0.1}) == ()
    slow = only(silent, counters={"tpot_s": 0.05})
    assert (slow.clock, slow.engine) == (Clock.DECODE, pytest.approx(20.0))
    waited = only(silent, counters={"ttft_s": 0.01})
    assert (waited.clock, waited.client, waited.engine) == (Clock.FIRST_TOKEN, pytest.approx(100.0), 10.0)


def test_counters_are_not_asked_where_the_engine_tells_each_request():
    assert disagreements([row()], {"tpot_s": 9.0, "ttft_s": 9.0}) == ()
