"""Who may look: beyond loopback a key, sent by a program or entered once in a browser."""

import json
import logging
import socket
from itertools import islice

import pytest
from running_site import folders, running
from starlette.requests import Request

from skep.config.keys import KeySpec, add_entry, checked, digest_of, keys_path, remove_entry
from skep.errors import UserError
from skep.paths import user_paths
from skep.web.auth import (
    COOKIE,
    MOST_SESSIONS,
    MOST_SOURCES,
    MOST_WRONG,
    SESSION_S,
    WITHIN_S,
    Authenticator,
    LoginThrottle,
)
from skep.web.context import Site, make_site

KEY = "sk-skep-0123456789"


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """One guarded dashboard for all: each test brings keys and sessions of its own."""
    paths = user_paths(folders(tmp_path_factory.mktemp("guarded")))
    add_entry(keys_path(paths), checked(KeySpec("laptop", digest_of(KEY))))
    site = Site(paths, guarded=True, api_key="from-the-environment")
    with running(site) as guarded:
        yield guarded


def cookie_of(response):
    return response.headers["set-cookie"].partition(";")[0]


def log_in(ask, key=KEY, **fields):
    return ask("/login", "POST", form={"key": key, **fields}, headers={"origin": ask.origin})


def test_beyond_loopback_there_must_be_a_key(env):
    paths = user_paths(env)
    with pytest.raises(UserError, match="without an API key"):
        make_site(paths, host="0.0.0.0")
    assert make_site(paths, host="0.0.0.0", api_key="k").guarded
    assert make_site(paths, host="127.0.0.2", api_key="k").guarded, "for a proxy on this machine"
    assert not make_site(paths, host="0.0.0.0", public=True).guarded
    assert not make_site(paths, host="::1").guarded


@pytest.mark.parametrize("key", [KEY, "from-the-environment"])
def test_a_program_sends_its_key_with_each_request(ask, key):
    for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
        assert ask("/api/now.json", headers=headers)[0].status == 200
    assert ask("/", headers={"authorization": f"Bearer {key}x"})[0].status == 303


def test_without_a_key_a_program_gets_401_and_a_browser_the_form(ask):
    for path in ("/api/now.json", "/live", "/metrics"):
        response, body = ask(path)
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert "key" in json.loads(body)["error"]["message"]
    response, body = ask("/runs?model=a%20b")
    assert (response.status, response.headers["location"]) == (
        303,
        "/login?next=%2Fruns%3Fmodel%3Da%2520b",
    )
    assert ask("/login")[0].status == 200
    assert ask("/static/skep.css")[0].status == 200


def test_a_program_with_the_key_of_an_admin_may_write_a_note(ask):
    headers = {"authorization": "Bearer from-the-environment"}
    assert ask("/notes", "POST", form={"text": "new fan"}, headers=headers)[0].status == 303
    assert ask("/notes", "POST", form={"text": "new fan"})[0].status == 403


def test_a_key_entered_once_opens_a_session(ask):
    response, _ = log_in(ask, next="/runs?model=x")
    assert (response.status, response.headers["location"]) == (303, "/runs?model=x")
    answer, page = ask("/", headers={"cookie": cookie_of(response)})
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    assert "Log out" in page


def test_the_cookie_of_a_session_is_for_this_site_alone_and_holds_no_key(ask):
    cookie = log_in(ask)[0].headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert KEY not in cookie


def test_a_session_that_was_left_opens_nothing(ask):
    session = {"cookie": cookie_of(log_in(ask)[0])}
    assert ask("/logout", "POST", headers=session | {"origin": ask.origin})[0].status == 303
    assert ask("/", headers=session)[0].status == 303


def test_who_enters_a_key_is_never_led_to_another_site(ask):
    assert log_in(ask, next="//evil.example/")[0].headers["location"] == "/"


@pytest.mark.parametrize(("scheme", "secure"), [("https", True), ("http", False)])
def test_a_session_begun_with_tls_is_never_sent_without(ask, scheme, secure):
    """The browser says by which scheme it came; a proxy's headers may be anybody's."""
    headers = {
        "host": "box.example",
        "origin": f"{scheme}://box.example",
        "x-forwarded-proto": "https",
    }
    response, _ = ask("/login", "POST", form={"key": KEY}, headers=headers)
    assert ("secure" in response.headers["set-cookie"].lower()) is secure


@pytest.mark.parametrize("foreign_cookie", ['seen={"tour":1}', "name=a b", "=x", "caf\xe9=1"])
def test_cookies_of_other_programs_on_the_machine_do_not_hide_the_session(ask, foreign_cookie):
    """Cookies know no ports: whatever else runs there is sent along, before ours."""
    session = cookie_of(log_in(ask)[0])
    assert ask("/", headers={"cookie": f"{foreign_cookie}; {session}"})[0].status == 200


@pytest.mark.parametrize("host", ["x/login?", "x/static/#", "x/healthz?"])
def test_a_host_header_does_not_pass_for_a_page_that_is_open_to_all(ask, host):
    assert ask("/api/now.json", headers={"host": host})[0].status == 401


def test_a_wrong_key_opens_nothing_and_a_form_of_another_site_neither(ask):
    for key in ("", "wrong", "x" * 5000, "ключ"):
        response, page = log_in(ask, key)
        assert response.status == 401
        assert "set-cookie" not in response.headers
        assert "This key is not valid here." in page
    assert ask("/", headers={"cookie": f"{COOKIE}=guessed"})[0].status == 303
    assert ask("/", headers={"cookie": "\xff;;=,"})[0].status == 303
    response, _ = ask(
        "/login", "POST", form={"key": KEY}, headers={"origin": "https://evil.example"}
    )
    assert response.status == 403


def test_a_session_ends_by_itself_and_there_are_not_too_many(env):
    now = 1000.0
    site = Site(user_paths(env), guarded=True, api_key=KEY, clock=lambda: now)
    authenticator = Authenticator(site)

    def request(token):
        return Request({"type": "http", "headers": [(b"cookie", f"{COOKIE}={token}".encode())]})

    first = authenticator.enter(KEY, "10.0.0.1")
    assert authenticator.visitor(request(first))
    tokens = [authenticator.enter(KEY, "10.0.0.1") for _ in range(MOST_SESSIONS)]
    assert not authenticator.visitor(request(first))
    assert authenticator.visitor(request(tokens[-1]))
    now += SESSION_S + 1
    assert not authenticator.visitor(request(tokens[-1]))


# Keys that come and go while the dashboard runs


@pytest.fixture
def keys(tmp_path):
    """The file of keys, with one for a laptop and one for a phone."""
    path = keys_path(user_paths(folders(tmp_path)))
    for name in ("laptop", "phone"):
        add_entry(path, checked(KeySpec(name, digest_of(f"sk-{name}"))))
    return path


@pytest.fixture
def guarded(keys, tmp_path):
    with running(make_site(user_paths(folders(tmp_path)), host="0.0.0.0")) as ask:
        yield ask


def test_a_key_that_was_removed_opens_nothing_any_more(guarded, keys):
    lost, remaining = (
        {"cookie": cookie_of(log_in(guarded, f"sk-{name}")[0])} for name in ("laptop", "phone")
    )
    assert guarded("/", headers=lost)[0].status == 200
    remove_entry(keys, "laptop")
    assert guarded("/", headers=lost)[0].status == 303
    assert guarded("/api/now.json", headers={"authorization": "Bearer sk-laptop"})[0].status == 401
    assert log_in(guarded, "sk-laptop")[0].status == 401
    assert guarded("/", headers=remaining)[0].status == 200


@pytest.mark.parametrize("replaced_by", ["another of the same name", "none at all"])
def test_a_key_that_is_gone_does_not_leave_its_sessions_behind(guarded, keys, replaced_by):
    session = {"cookie": cookie_of(log_in(guarded, "sk-laptop")[0])}
    if replaced_by == "none at all":
        keys.unlink()
    else:
        remove_entry(keys, "laptop")
        add_entry(keys, checked(KeySpec("laptop", digest_of("sk-another"))))
        assert log_in(guarded, "sk-another")[0].status == 303
    assert guarded("/", headers=session)[0].status == 303
    assert log_in(guarded, "sk-laptop")[0].status == 401


def test_a_file_of_keys_that_cannot_be_read_changes_nothing(guarded, keys, caplog):
    """As with the gateway: half an edit neither locks everybody out nor lets anybody in."""
    whole = keys.read_text()
    with caplog.at_level(logging.ERROR, "skep.config.access"):
        keys.write_text(whole + "[[key")
        assert (
            guarded("/api/now.json", headers={"authorization": "Bearer sk-phone"})[0].status == 200
        )
        assert (
            guarded("/api/now.json", headers={"authorization": "Bearer sk-other"})[0].status == 401
        )
    (message,) = caplog.messages
    assert "keys.unreadable" in message


@pytest.mark.parametrize("end", ["logout", "key removed", "key of a program removed"])
def test_a_live_stream_ends_with_the_session_or_the_key_that_opened_it(guarded, keys, end):
    session = {"cookie": cookie_of(log_in(guarded, "sk-laptop")[0]), "origin": guarded.origin}
    if "program" in end:
        credential = "Authorization: Bearer sk-laptop"
    else:
        credential = f"Cookie: {session['cookie']}"
    with (
        socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as ended,
        socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as lasting,
    ):
        ended.sendall(f"GET /live HTTP/1.1\r\nHost: x\r\n{credential}\r\n\r\n".encode())
        lasting.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-phone\r\n\r\n")
        watched = ended.makefile("rb")
        others = lasting.makefile("rb")
        assert next_event(watched)
        assert next_event(others)
        if end == "logout":
            assert guarded("/logout", "POST", headers=session)[0].status == 303
        else:
            remove_entry(keys, "laptop")
        events = list(islice(iter(lambda: next_event(watched), False), 5))
        assert len(events) < 5  # one comes each second
        assert next_event(others)


def next_event(stream):
    """Read up to the next event of a stream. False: it ended, with its last chunk as it should."""
    return next(line != b"0\r\n" for line in stream if line.startswith((b"data:", b"0\r\n")))


# Guessing a key takes longer than it is worth; whoever is in already is not kept out by it.


@pytest.fixture
def unguessed(tmp_path):
    """A dashboard that nobody has given a wrong key yet."""
    with running(Site(user_paths(folders(tmp_path)), guarded=True, api_key=KEY)) as guarded:
        yield guarded


def test_after_too_many_wrong_keys_even_the_right_one_has_to_wait(unguessed):
    inside = log_in(unguessed)[0].headers["set-cookie"].partition(";")[0]
    for _ in range(MOST_WRONG):
        assert log_in(unguessed, "wrong")[0].status in (401, 429)
    response, page = log_in(unguessed)
    assert response.status == 429
    assert 0 < int(response.headers["retry-after"]) <= WITHIN_S
    assert "Too many wrong keys" in page
    assert unguessed("/", headers={"cookie": inside})[0].status == 200


@pytest.mark.parametrize(
    "claims", [{}, {"x-forwarded-for": "10.0.0.{}", "forwarded": "for=10.0.0.{}"}]
)
def test_keys_of_programs_count_as_well_wherever_they_say_that_they_come_from(unguessed, claims):
    """Whoever tells another address with each key would never have to wait."""

    def ask(key, number):
        headers = {name: value.format(number) for name, value in claims.items()}
        return unguessed("/api/now.json", headers={"authorization": f"Bearer {key}", **headers})[0]

    for number in range(MOST_WRONG):
        ask("wrong", number)
    assert ask(KEY, 200).status == 429
    assert ask(KEY, 201).headers["retry-after"]


def test_a_source_may_go_on_once_its_wrong_keys_are_old():
    attempts = LoginThrottle()
    for second in range(MOST_WRONG):
        attempts.add_wrong_key("10.0.0.1", second)
    assert attempts.wait_s("10.0.0.1", MOST_WRONG) == WITHIN_S - MOST_WRONG
    assert attempts.wait_s("10.0.0.2", MOST_WRONG) == 0.0
    assert attempts.wait_s("10.0.0.1", WITHIN_S) == 0.0


def test_a_network_is_one_source_and_sources_are_not_kept_without_end():
    attempts = LoginThrottle()
    for last in range(MOST_WRONG):
        attempts.add_wrong_key(f"2001:db8:1:2:3::{last:x}", 0.0)
    assert attempts.wait_s("2001:db8:1:2:ffff::1", 1.0) > 0
    for place in range(MOST_SOURCES):
        attempts.add_wrong_key(f"host-{place}", 1.0)
    assert attempts.wait_s("2001:db8:1:2:ffff::1", 1.0) == 0.0
