"""Which headers of a client reach a replica."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from skep.gateway.request_policy import KEY_HEADERS, sort_headers
from skep.wire.heads import HOP_BY_HOP

STAY = {b"origin"} | HOP_BY_HOP | {b"host", b"content-length", b"expect"}
token = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.!", min_size=1, max_size=12).map(str.encode)
name = (
    token
    | st.sampled_from(sorted(STAY | KEY_HEADERS | {b"content-type", b"origin", b"accept", b"cookie", b"x-skep-"}))
    | token.map(b"x-skep-".__add__)
)
value = st.lists(st.sampled_from([byte for byte in range(256) if byte not in b"\r\n\0"]), max_size=20).map(bytes)
header = st.tuples(name, value) | st.tuples(st.just(b"connection"), st.lists(name, max_size=3).map(b" , ".join))


def lines(headers, *, hide_keys=False):
    return sort_headers(headers, hide_keys=hide_keys).lines


def named_by_connection(headers):
    values = b",".join(value for key, value in headers if key == b"connection")
    return {part.strip().lower() for part in values.split(b",")}


@given(st.lists(header, max_size=12), st.booleans())
@example([(b"connection", b"x-a"), (b"connection", b"X-B"), (b"x-a", b"1"), (b"x-b", b"2"), (b"x-c", b"3")], False)
@settings(deadline=None)
def test_all_headers_but_those_of_this_hop_go_on_as_they_are_and_in_their_order(headers, hide_keys):
    gone = STAY | named_by_connection(headers) | (KEY_HEADERS if hide_keys else set())
    kept = [(key, value) for key, value in headers if key not in gone and not key.startswith(b"x-skep-")]
    assert lines(headers, hide_keys=hide_keys) == b"".join(key + b": " + value + b"\r\n" for key, value in kept)


@pytest.mark.parametrize(
    "connections",
    [[b"x-a, x-b"], [b"x-a", b"x-b"], [b"close, X-A", b"keep-alive", b"X-b"], [b"X-A,,x-B ,"], [b"\tx-a\t,\tx-b"]],
)
def test_what_a_connection_header_names_stays_here_however_it_is_written(connections):
    headers = [(b"x-a", b"1"), *((b"connection", named) for named in connections), (b"x-b", b"2"), (b"x-c", b"3")]
    assert lines(headers) == b"x-c: 3\r\n"


def test_keys_stay_here_only_where_they_are_the_gateways():
    """Without keys of its own the gateway stands before engines that may want one."""
    keys = [(b"authorization", b"Bearer k"), (b"x-api-key", b"k"), (b"api-key", b"k")]
    assert lines(keys, hide_keys=True) == b""
    assert lines(keys, hide_keys=False) == b"authorization: Bearer k\r\nx-api-key: k\r\napi-key: k\r\n"
    assert lines([(b"proxy-authorization", b"Basic k")], hide_keys=False) == b""


def test_the_gateways_own_headers_are_told_apart_and_never_go_on():
    found = sort_headers(
        [(b"x-skep-priority", b"batch"), (b"x-skep-agent", b"\xc3\xa4"), (b"x-skep", b"no"), (b"x-skep-agent", b"b")],
        hide_keys=False,
    )
    assert found.own == {b"priority": b"batch", b"agent": b"b"}
    assert found.lines == b"x-skep: no\r\n"


def test_a_client_cannot_hide_its_origin_by_naming_it_in_connection():
    """The check of web pages reads it from here."""
    headers = [(b"connection", b"origin, content-type, x-skep-agent"), (b"origin", b"https://a"),
               (b"content-type", b"text/plain"), (b"x-skep-agent", b"a")]  # fmt: skip
    found = sort_headers(headers, hide_keys=False)
    assert (found.origin, found.content_type, found.own) == (b"https://a", b"text/plain", {b"agent": b"a"})
    assert found.lines == b""
