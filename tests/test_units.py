import pytest

from skep.errors import UserError
from skep.units import (
    GIB,
    MIB,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_int_list,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (98362432, "93.8 MiB"),
        (24 * GIB, "24.0 GiB"),
    ],
)
def test_bytes_are_shown_with_one_decimal(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.85, "850 ms"),
        (12.34, "12.3 s"),
        (99.96, "1 min 39 s"),
        (245, "4 min 05 s"),
        (7800, "2 h 10 min"),
        (3e5, "3 d 11 h"),
    ],
)
def test_seconds_are_shown_as_people_say_them(value, text):
    assert format_seconds(value) == text


def test_sizes_and_durations_are_read_with_their_units():
    assert parse_bytes("512MiB") == 512 * MIB
    assert parse_bytes("2 GB") == 2_000_000_000
    assert parse_seconds("500ms") == 0.5
    assert parse_seconds("90") == 90
    assert parse_seconds("1.5h") == 5400


@pytest.mark.parametrize("text", ["", "abc", "5x", "-3s", "1,5s"])
def test_a_duration_that_is_none_is_named_with_an_example(text):
    with pytest.raises(UserError) as caught:
        parse_seconds(text)
    assert f"`{text}`" in caught.value.message
    assert "90s" in caught.value.hint


@pytest.mark.parametrize("text", ["", "0,1", "a", "1,,x", "-1"])
def test_a_concurrency_list_is_sorted_without_repeats_and_refused_where_it_is_none(text):
    assert parse_int_list("8,1,2,2", name="--concurrency") == (1, 2, 8)
    with pytest.raises(UserError, match="--concurrency"):
        parse_int_list(text, name="--concurrency")
