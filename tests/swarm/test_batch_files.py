"""The input file of a batch, and the form it is uploaded with."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.gateway.batch.files import MOST_ERRORS, body_of, boundary_of, check_lines, parts_of

ENDPOINT = "/v1/chat/completions"


def line(name="a", **fields):
    request = {
        "custom_id": name,
        "method": "POST",
        "url": ENDPOINT,
        "body": {"model": "m"},
        **fields,
    }
    return json.dumps(request).encode() + b"\n"


def found(*lines, **limits):
    return [
        (fault.code, fault.line) for fault in check_lines(lines, ENDPOINT, served, **limits).faults
    ]


def served(model):
    if model == "m":
        return None
    return f"there is no {model}"


def test_a_request_is_found_again_by_its_place_in_the_file():
    """Blank lines, a byte order mark, Windows line ends and a missing last one are nobody's
    fault.
    """
    lines = [
        b"\xef\xbb\xbf" + line("a"),
        b"\n",
        line("b").replace(b"\n", b"\r\n"),
        line("c").strip(),
    ]
    file = b"".join(lines)
    checked = check_lines(lines, ENDPOINT, served)
    assert (checked.faults, checked.model) == ((), "m")
    assert [request.custom_id for request in checked.requests] == ["a", "b", "c"]
    for request in checked.requests:
        assert (
            json.loads(file[request.start : request.start + request.length])["custom_id"]
            == request.custom_id
        )


def test_a_body_is_sent_as_it_was_written():
    body = b'{"model":  "m", "odd": [1.50, "\\u00e9 \xc3\xa9"],"n":1e400}'
    text = (
        b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": '
        + body
        + b"}\n"
    )
    assert not check_lines([text], ENDPOINT, served).faults
    assert body_of(text) == body
    with pytest.raises(ValueError, match="JSON"):
        body_of(text[5:])


def test_every_fault_is_told_with_its_line():
    lines = [
        line("a"),
        b"{\n",
        line("a"),
        line("b", url="/v1/x"),
        line("c", body={"model": "n"}),
        b"\xff\n",
    ]
    assert found(*lines) == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("url_mismatch", 4),
        ("model_mismatch", 5),
        ("invalid_json_line", 6),
    ]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (line(body=[1]), "invalid_request"),
        (line(body={"model": 1}), "invalid_request"),
        (line(body={"model": "m", "stream": True}), "invalid_request"),
        (line(body={"model": "m", "x": "?"}).replace(b"?", b"\xff"), "invalid_json_line"),
        (line(body={"model": "?"}).replace(b"?", b"\xff"), "invalid_json_line"),
        (line(custom_id=1), "invalid_custom_id"),
        (line(custom_id="x" * 513), "invalid_custom_id"),
        (line(custom_id=""), "invalid_custom_id"),
        (line(method="GET"), "invalid_method"),
        (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}\n',
            "missing_required_parameter",
        ),
        (b'{"custom_id": "\\ud800"}\n', "invalid_json_line"),
        (b'{"x": ' + b"[" * 100_000 + b"\n", "invalid_json_line"),
        (b"null\n", "invalid_request"),
    ],
)
def test_a_line_that_is_no_request_says_why(wrong, code):
    assert found(wrong) == [(code, 1)]


def test_a_file_has_so_many_requests_and_so_many_faults_at_most():
    assert found() == [("empty_file", None)]
    assert found(line("a"), line("b"), line("c"), max_requests=2) == [("too_many_tasks", 3)]
    assert len(found(*([b"{\n"] * 500))) == MOST_ERRORS
    assert found(b"\n", *(line(name, body={"model": "n"}) for name in "abc")) == [
        ("model_not_found", 2)
    ]


@given(st.lists(st.binary(max_size=60)))
def test_no_bytes_break_the_check(lines):
    checked = check_lines([line + b"\n" for line in lines], ENDPOINT, served)
    assert checked.faults or checked.requests


def form(*parts, boundary=b"xYz"):
    whole = b"".join(
        b"--" + boundary + b"\r\n" + head + b"\r\n\r\n" + body + b"\r\n" for head, body in parts
    )
    return whole + b"--" + boundary + b"--\r\n"


def test_a_form_is_taken_apart_with_every_byte_of_its_file():
    content = b"\r\n--xY\r\n\x00\xff--xYz\r\n\r\n"
    body = form(
        (b'Content-Disposition: form-data; name="purpose"', b"batch"),
        (
            (
                b'content-disposition: form-data; filename="a\\"b; name=c.jsonl"; '
                b'name="file"\r\ncontent-type: text/x'
            ),
            content,
        ),
        (b"Content-Disposition: form-data; name=empty", b""),
    )
    parts = parts_of(body, b"xYz")
    assert [(part.name, part.filename, bytes(part.content)) for part in parts] == [
        ("purpose", None, b"batch"),
        ("file", 'a"b; name=c.jsonl', content),
        ("empty", None, b""),
    ]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"nothing",
        b"--xYz",
        b"--xYz\r\n",
        b'--xYz\r\nContent-Disposition: form-data; name="a"\r\n\r\ncut off',
        b"--xYz\r\n\r\nno name\r\n--xYz--",
        b"--xYz\r\nA: b\r\n\r\nno name\r\n--xYz--",
        form(*[(b"Content-Disposition: form-data; name=a", b"")] * 65),
    ],
)
def test_what_is_no_whole_form_is_said_to_be_none(broken):
    with pytest.raises(ValueError, match="form"):
        parts_of(broken, b"xYz")


@given(st.binary(max_size=200))
def test_no_bytes_break_a_form(rest):
    with contextlib.suppress(ValueError):
        parts_of(b"--x\r\n" + rest, b"x")


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; Boundary="a b"', b"a b"),
        ("multipart/form-data", None),
        ("application/json; boundary=abc", None),
        ("", None),
    ],
)
def test_the_boundary_stands_in_the_content_type(content_type, boundary):
    assert boundary_of(content_type) == boundary
