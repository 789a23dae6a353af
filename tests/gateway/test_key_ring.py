"""The keys' decider: no file, no clock, no sleeping."""

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings

from skep.config.keys import (
    KeyRefusal,
    KeyRing,
    KeySpec,
    RateLimit,
    RefusalCode,
    class_for,
    digest_of,
    given_keys,
)


def spec(name="ci", key=None, **limits):
    return KeySpec(name, digest_of(key or f"sk-{name}"), **limits)


def test_a_key_is_found_by_its_digest_and_of_two_names_for_one_key_the_later_counts():
    """Every digest is compared, also after a match; so a key of the file may narrow the one of the
    environment.
    """
    ring = KeyRing([spec("a"), spec("b"), spec("env", "same"), spec("file", "same")])
    assert [ring.find(key).name for key in (b"sk-a", b"sk-b", b"same")] == ["a", "b", "file"]
    assert [ring.find(key) for key in (b"sk-d", b"", digest_of("sk-a").encode())] == [None] * 3, (
        "a digest opens nothing"
    )
    assert KeyRing().find(b"sk-a") is None


# Headers


@pytest.mark.parametrize(
    ("headers", "keys"),
    [
        ([(b"authorization", b"Bearer k1")], [b"k1"]),
        ([(b"authorization", b"bEARER \t k1 ")], [b"k1"]),
        ([(b"authorization", b"Basic k1")], []),
        ([(b"authorization", b"Bearer")], []),
        ([(b"authorization", b"Bearer ")], []),
        ([(b"authorization", b"k1")], []),
        ([(b"authorization", b"")], []),
        ([(b"x-api-key", b" k1 ")], [b"k1"]),
        ([(b"x-api-key", b" ")], []),
        ([(b"api-key", b"k1")], [b"k1"]),
        ([(b"host", b"k1"), (b"cookie", b"k2")], []),
        ([(b"x-api-key", b"k1"), (b"authorization", b"Bearer k2")], [b"k1", b"k2"]),
        ([(b"x-api-key", b"k1"), (b"authorization", b"Bearer k1")], [b"k1"]),
        ([(b"x-api-key", b"k%d" % i) for i in range(9)], [b"k0", b"k1", b"k2", b"k3"]),
    ],
)
def test_keys_are_read_where_clients_put_them(headers, keys):
    """Several are candidates, each once: some clients send a placeholder in one header and the key
    in the other.
    """
    assert given_keys(headers) == keys


@given(
    st.lists(
        st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"api-key", b"a"]), st.binary())
    )
)
def test_no_header_is_too_odd(headers):
    keys = given_keys(headers)
    assert len(keys) <= 4
    assert all(keys)
    assert len(set(keys)) == len(keys)


# Classes


@pytest.mark.parametrize(
    ("key_class", "asked_class", "expected"),
    [
        (None, None, "normal"),
        (None, "interactive", "interactive"),
        (None, "batch", "batch"),
        ("batch", None, "batch"),
        ("batch", "interactive", "batch"),
        ("normal", "interactive", "normal"),
        ("normal", "normal", "normal"),
        ("interactive", "batch", "batch"),
        ("interactive", None, "interactive"),
        ("interactive", " Interactive ", "interactive"),
    ],
)
def test_a_keys_class_is_a_ceiling(key_class, asked_class, expected):
    assert class_for(spec(priority=key_class), asked_class) == expected
    assert key_class or class_for(None, asked_class) == expected, (
        "without a key the client chooses"
    )


@pytest.mark.parametrize("asked_class", ["", "urgent", "0", "x" * 10_000])
def test_an_unknown_class_is_named_with_the_known_ones(asked_class):
    with pytest.raises(ValueError, match="interactive, normal, batch") as caught:
        class_for(spec(priority="batch"), asked_class)
    assert len(str(caught.value)) < 120


# The bucket


rates = st.floats(1e-4, 1e4)
starts = st.floats(0, 1e8)  # a monotonic clock after three years


@given(rates, st.integers(1, 50), starts, st.lists(st.floats(0, 100), max_size=60))
@example(3.0, 1, 1e8, [1 / 3] * 20)
@settings(max_examples=100)
def test_no_window_passes_more_than_burst_and_rate(rate, burst, start, steps):
    bucket = RateLimit(rate, burst)
    now = start
    taken = []
    for step in steps:
        now += step
        if bucket.take(now) == 0.0:
            taken.append(now)
    for i, first in enumerate(taken):
        for j in range(i, len(taken)):
            assert j - i + 1 <= burst + rate * (taken[j] - first + 2e-6) + 1e-6


@given(rates, st.integers(1, 50), starts, st.integers(0, 120))
@settings(max_examples=100)
def test_who_waits_as_told_is_let_in(rate, burst, start, impatient):
    """However often it was refused meanwhile: a refusal takes nothing. And never before."""
    bucket = RateLimit(rate, burst)
    for _ in range(burst):
        assert bucket.take(start) == 0.0
    wait_s = bucket.take(start)
    assert wait_s == pytest.approx(1 / rate, abs=1e-6)
    for _ in range(impatient):
        assert bucket.take(start + wait_s / 2) > 0
    assert bucket.take(start + wait_s) == 0.0


@given(rates, st.integers(1, 10), st.lists(st.floats(-100, 100), max_size=40))
def test_a_clock_that_jumps_back_gives_nothing_away(rate, burst, times):
    bucket = RateLimit(rate, burst)
    taken = sum(bucket.take(now) == 0.0 for now in times)
    latest = max(times, default=0.0)
    first = min(times, default=0.0)
    assert taken <= burst + rate * (latest - first + 2e-6) + 1e-6


# Entering and leaving


def test_a_refusal_by_number_takes_no_token_and_one_by_rate_no_place():
    ring = KeyRing([spec(max_concurrent=1, rate="2/s"), spec("other")])
    assert ring.enter("ci", 0.0) is None
    assert ring.enter("ci", 0.0) == KeyRefusal(RefusalCode.TOO_MANY)
    assert ring.enter("other", 0.0) is None, "one key's limit is not another's"
    assert repr(ring) == "<KeyRing 2 keys, 2 in flight>"
    ring.leave("ci")
    assert ring.enter("ci", 0.0) is None
    ring.leave("ci")
    assert ring.enter("ci", 0.0) == KeyRefusal(RefusalCode.RATE_LIMITED, 0.5)
    assert ring.in_flight("ci") == 0


def test_a_key_that_is_removed_is_refused_and_its_answers_still_end():
    ring = KeyRing([spec(max_concurrent=1)])
    ring.enter("ci", 0.0)
    ring.replace([])
    assert (len(ring), ring.find(b"sk-ci"), ring.in_flight("ci")) == (0, None, 1)
    assert ring.enter("ci", 0.0).code == "invalid_api_key"
    ring.replace([spec(max_concurrent=1)])
    assert ring.enter("ci", 0.0).code is RefusalCode.TOO_MANY, (
        "back again, and the old answer is still under way"
    )
    ring.leave("ci")
    assert ring.enter("ci", 0.0) is None


def test_a_reload_does_not_fill_a_bucket_unless_its_rate_changed():
    limited = spec(rate="1/s")
    ring = KeyRing([limited])
    ring.enter("ci", 0.0)
    ring.replace([msgspec.structs.replace(limited, priority="batch"), spec("new")])
    assert ring.enter("ci", 0.0) is not None
    ring.replace([msgspec.structs.replace(limited, rate="2/s")])
    assert ring.enter("ci", 0.0) is None
    ring.replace([spec()])
    assert [ring.enter("ci", 0.0) for _ in range(9)] == [None] * 9
