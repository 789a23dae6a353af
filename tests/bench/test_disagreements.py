"""Client and engine on the same requests: when they differ, and the cause that is named."""

import pytest
from msgspec.structs import replace
from sample_rows import evenly, request

from skep.bench.metrics import Clock, disagreements
from skep.store.records import EngineTimings

ENGINE = EngineTimings(prompt_tokens=10, prompt_ms=100.0, output_tokens=11, decode_ms=1000.0)


AGREED = evenly(0.1, 1.1, 11)


def row(arrivals=AGREED, tokens=11, engine=ENGINE, **fields):
    """Return a request with eleven tokens from 0.1 s on, one every 0.1 s, as the engine says."""
    return request(*arrivals, tokens=tokens, engine=engine, **fields)


def only(*rows, **how):
    (disagreement,) = disagreements(rows, **how)
    return disagreement


LATE = evenly(0.5, 1.5, 11)


@pytest.mark.parametrize(
    ("rows", "counters"),
    [
        ([row(), row()], None),
        ([row(engine=EngineTimings())], None),
        ([], None),
        ([row(arrivals=evenly(0.119, 1.119, 11))], None),
        ([row(), row(arrivals=[5.0, 90.0], error_kind="timeout")], None),
        ([row()], {"tpot_s": 9.0, "ttft_s": 9.0}),
        ([row(engine=EngineTimings())], {"tpot_s": 0.1, "ttft_s": 0.1}),
    ],
    ids=[
        *(
            "they agree",
            "the engine says nothing",
            "no requests",
            "a few milliseconds are the network",
        ),
        *(
            "a failed request",
            "counters, where the engine tells each request",
            "counters that agree",
        ),
    ],
)
def test_clocks_that_agree_are_not_mentioned(rows, counters):
    """The engine's time is that of ten tokens: the first one belongs to its prompt."""
    assert disagreements(rows, counters) == ()


@pytest.mark.parametrize(
    ("answered", "clock", "client", "engine", "cause"),
    [
        (row(arrivals=evenly(0.1, 1.35, 11)), Clock.DECODE, 8.0, 10.0, "proxy"),
        (row(arrivals=LATE), Clock.FIRST_TOKEN, 500.0, 100.0, "waited"),
        (
            row(arrivals=LATE, queued_ms=390.0),
            Clock.FIRST_TOKEN,
            500.0,
            100.0,
            "390 ms of it in the gateway's queue",
        ),
        (replace(row(), scheduled_s=-1.0), Clock.FIRST_TOKEN, 1100.0, 100.0, ""),
    ],
    ids=["slower tokens", "a late first token", "in the gateway's queue", "a late client"],
)
def test_what_the_client_saw_later_has_its_cause(answered, clock, client, engine, cause):
    disagreement = only(answered)
    assert (disagreement.clock, disagreement.client, disagreement.engine) == (
        clock,
        pytest.approx(client),
        pytest.approx(engine),
    )
    assert cause in disagreement.cause


def test_quicker_tokens_at_the_client_that_came_together_say_so():
    disagreement = only(row(arrivals=[0.1 + n // 4 / 10 for n in range(11)]))
    assert (disagreement.clock, disagreement.client > disagreement.engine) == (Clock.DECODE, True)
    assert disagreement.cause == "several tokens came in one read"


def test_usage_and_the_engines_count_may_differ_by_the_end_token():
    by_one, by_many = (
        {disagreement.clock for disagreement in disagreements([row(tokens=count)])}
        for count in (12, 30)
    )
    assert (Clock.TOKENS in by_one, Clock.TOKENS in by_many) == (False, True)


@pytest.mark.parametrize(
    ("fields", "counters", "clock", "client", "engine", "cause"),
    [
        ({}, {"tpot_s": 0.05}, Clock.DECODE, 10.0, 20.0, ""),
        ({}, {"ttft_s": 0.01}, Clock.FIRST_TOKEN, 100.0, 10.0, ""),
        (
            {"arrivals": LATE, "queued_ms": 390.0},
            {"ttft_s": 0.1},
            Clock.FIRST_TOKEN,
            500.0,
            100.0,
            "390 ms of it in the gateway's queue",
        ),
    ],
)
def test_counters_speak_where_the_engine_says_nothing_of_a_request(
    fields, counters, clock, client, engine, cause
):
    disagreement = only(row(engine=EngineTimings(), **fields), counters=counters)
    assert (disagreement.clock, disagreement.client, disagreement.engine) == (
        clock,
        pytest.approx(client),
        pytest.approx(engine),
    )
    assert cause in disagreement.cause
