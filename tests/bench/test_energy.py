"""Energy in the words of who pays for it."""

import pytest

from skep.bench.records import Energy
from skep.bench.summary import cost_per_million_tokens, energy_words, has_energy, price


def energy(per_token=1.1, throttled=()):
    return Energy(6907.0, 10.0, per_token, 690.7, 756.551, throttled, "NVML energy counter")


def test_a_million_tokens_at_3600_joules_are_a_thousand_kilowatt_hours():
    assert cost_per_million_tokens(3600.0, 0.30) == pytest.approx(300.0)


def test_the_cost_names_its_price_and_no_currency():
    words = energy_words(energy(3.72), 0.30)
    assert (words.per_token, words.cost) == ("3.72 J/token", "0.310 per million tokens at 0.30/kWh")


def test_without_a_price_there_is_no_cost():
    assert energy_words(energy()).cost is None


def test_without_tokens_there_is_neither_cost_nor_joules_per_token():
    words = energy_words(energy(None), 0.30)
    assert (words.per_token, words.cost) == (None, None)
    assert words.power == "691 W on average, 757 W at most"


def test_throttling_is_named_where_there_was_some():
    assert energy_words(energy(throttled=("power cap", "thermal"))).throttled == "power cap, thermal"
    assert energy_words(energy()).throttled is None


@pytest.mark.parametrize(
    ("joules", "shown"), [(0.312, "0.312 J/token"), (14.7, "14.70 J/token"), (0.0000123, "1.23e-05 J/token")]
)
def test_small_figures_keep_their_digits(joules, shown):
    assert energy_words(energy(joules)).per_token == shown


@pytest.mark.parametrize(("value", "shown"), [(0.3, "0.30"), (0.2875, "0.2875"), (12.0, "12.00"), (0.0, "0.00")])
def test_a_price_is_shown_as_it_was_given(value, shown):
    assert price(value) == shown


def test_columns_exist_only_where_something_measured():
    assert not has_energy([None, None])
    assert has_energy([None, energy()])
