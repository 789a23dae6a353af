"""Request and answer bodies: what is found without decoding is what a JSON parser finds.

Three bytes stand for fillers that make a body large: 0 for letters inside of a text, 1 for blanks,
2 for so many letters that the body is never decoded whole."""

import json
import math

from fuzz.pieces import split_input
from skep.gateway.answer_tokens import MOST_TOKENS, tokens_of
from skep.gateway.body_inspection import (
    DECODE_BYTES,
    LONG_BYTES,
    LONGEST_NAME,
    NotAnObject,
    inspect_body,
    model_of_form,
    wants_stream,
    with_model,
)

FILLERS = {
    b"\0": b"x" * (DECODE_BYTES + 1),
    b"\1": b" " * (DECODE_BYTES + 1),
    b"\2": b"x" * (LONG_BYTES + 1),
}
SEEDS = [
    b'{"model":"a","messages":[{"role":"user","content":"hi"}],"stream":true}',
    b'{"messages":[{"role":"system","content":"s"},{"role":"user","content":"\0"}],"model":"b"}',
    b'{"model":"a","prompt":"\0","stream":false}',
    b'{"input":[{"role":"user","content":[{"type":"text","text":"hi"}]}],\1"model":"c\\u0041"}',
    b'{"a":{"model":"no"},"model":"yes","pad":"\2"}',
    b'{"pad":"\2","a":"\\"model\\":\\"b\\"","model":"z"}',
    b'\xef\xbb\xbf{"model":"a"}',
    b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\ndata: [DONE]\n\n',
    (
        b'{"usage":{"prompt_tokens":3,"completion_tokens":4,'
        b'"prompt_tokens_details":{"cached_tokens":1}}}'
    ),
    b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--',
]
WORDS = [
    b'"model"',
    b'"model":',
    b'"mod\\u0065l":"a"',
    b'"messages":[',
    b'"role":"user"',
    b'"content":"',
    b'"stream":true',
    b'"input":',
    b'"prompt":',
    b"\\",
    b'\\"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"null",
    b"\0",
    b"\1",
    b"\2",
    b"\xef\xbb\xbf",
    b'"usage":{',
    b'"timings":{',
    b"1e999",
    b'"\\ud800"',
    b'name="model"\r\n\r\n',
    b"message_start",
    b'"prompt_tokens":',
]


class TwiceTheSame(ValueError):
    """A key of the document itself stands twice: which of the two counts is nobody's to say."""


def check(data):
    _, body = split_input(data)
    for mark, filler in FILLERS.items():
        if body.count(mark) > 1:
            return
        body = body.replace(mark, filler)
    check_model(body)
    model_of_form(body)
    for streamed in (False, True):
        usage = tokens_of(body[:100], [body], streamed=streamed)
        counts = (usage.prompt, usage.cached, usage.output, usage.reasoning)
        assert all(count is None or 0 <= count <= 3 * MOST_TOKENS for count in counts), usage


def check_model(body):
    try:
        document = parsed(body)
    except TwiceTheSame:
        document = None
        inspect_or_refuse(body)
        return
    inspection = inspect_or_refuse(body)
    is_object = isinstance(document, dict)
    assert wants_stream(body) == (is_object and document.get("stream") is True) or not is_object
    if not is_object:
        return
    model = document.get("model")
    if inspection is None:
        assert may_be_refused(document, body), document
        return
    if inspection.model is not None or len(body) <= LONG_BYTES:
        assert inspection.model == model, (inspection.model, model)
    if inspection.model is not None:
        check_replaced(body, document, inspection)


def inspect_or_refuse(body):
    """None: it was refused."""
    try:
        return inspect_body(body)
    except NotAnObject:
        return None


def may_be_refused(document, body):
    """What an engine could not read either, or would take for a mistake."""
    model = document.get("model")
    if not (model is None or isinstance(model, str)) or len(model or "") > LONGEST_NAME:
        return True
    half_a_character = b"\\ud" in body.lower()
    far_away = len(body) - len(body.lstrip()) > DECODE_BYTES
    return half_a_character or far_away or has_infinity(document)


def has_infinity(value):
    """Whether a number in it is too large for any reader: the standard library takes it for
    infinity.
    """
    if isinstance(value, dict):
        return any(map(has_infinity, value.values()))
    if isinstance(value, list):
        return any(map(has_infinity, value))
    return isinstance(value, float) and math.isinf(value)


def check_replaced(body, document, inspection):
    changed = with_model(body, inspection.model, "new", inspection.name_at)
    if changed is not None:
        assert parsed(changed) == {**document, "model": "new"}


def parsed(body):
    """As the standard library reads it; None where it is not JSON."""
    try:
        text = body.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=once_each, parse_constant=refuse_constant)
    except TwiceTheSame:
        raise
    except (ValueError, RecursionError):
        return None


def once_each(pairs):
    document = dict(pairs)
    if len(document) != len(pairs):
        raise TwiceTheSame
    return document


def refuse_constant(name):
    raise ValueError(name)
