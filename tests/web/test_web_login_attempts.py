"""Guessing a key takes longer than it is worth; whoever is in already is not kept out by it."""

import pytest
from running_site import folders, running

from skep.paths import user_paths
from skep.web.auth import MOST_SOURCES, MOST_WRONG, WITHIN_S, LoginThrottle
from skep.web.context import Site

KEY = "the-right-key-0123456789"


@pytest.fixture
def ask(tmp_path):
    with running(Site(user_paths(folders(tmp_path)), guarded=True, api_key=KEY)) as asked:
        yield asked


def log_in(ask, key):
    return ask("/login", "POST", form={"key": key}, headers={"origin": ask.origin})


def test_after_too_many_wrong_keys_even_the_right_one_has_to_wait(ask):
    inside = log_in(ask, KEY)[0].headers["set-cookie"].partition(";")[0]
    for _ in range(MOST_WRONG):
        assert log_in(ask, "wrong")[0].status in (401, 429)
    response, page = log_in(ask, KEY)
    assert response.status == 429
    assert 0 < int(response.headers["retry-after"]) <= WITHIN_S
    assert "Too many wrong keys" in page
    assert ask("/", headers={"cookie": inside})[0].status == 200


def test_keys_of_programs_count_as_well(ask):
    for _ in range(MOST_WRONG):
        ask("/api/now.json", headers={"authorization": "Bearer wrong"})
    response, _ = ask("/api/now.json", headers={"authorization": f"Bearer {KEY}"})
    assert response.status == 429
    assert response.headers["retry-after"]


def test_a_client_cannot_say_that_it_is_another_one(ask):
    """Whoever tells another address with each key would never have to wait."""
    for number in range(MOST_WRONG):
        said = {"x-forwarded-for": f"10.0.0.{number}", "forwarded": f"for=10.0.0.{number}"}
        ask("/api/now.json", headers={"authorization": "Bearer wrong", **said})
    response, _ = ask("/api/now.json", headers={"authorization": f"Bearer {KEY}", "x-forwarded-for": "10.0.1.1"})
    assert response.status == 429


def test_a_source_may_go_on_once_its_wrong_keys_are_old():
    attempts = LoginThrottle()
    for second in range(MOST_WRONG):
        attempts.add_wrong_key("10.0.0.1", second)
    assert attempts.wait_s("10.0.0.1", MOST_WRONG) == WITHIN_S - MOST_WRONG
    assert attempts.wait_s("10.0.0.2", MOST_WRONG) == 0.0
    assert attempts.wait_s("10.0.0.1", WITHIN_S) == 0.0


def test_one_network_is_one_source_and_sources_are_not_kept_without_end():
    attempts = LoginThrottle()
    for last in range(MOST_WRONG):
        attempts.add_wrong_key(f"2001:db8:1:2:3::{last:x}", 0.0)
    assert attempts.wait_s("2001:db8:1:2:ffff::1", 1.0) > 0
    for place in range(MOST_SOURCES):
        attempts.add_wrong_key(f"host-{place}", 1.0)
    assert attempts.wait_s("2001:db8:1:2:ffff::1", 1.0) == 0.0
