"""A look at the bodies of requests: which model one wants, how its conversation begins, whether it
wants a stream.

It reads, and changes no byte but those of a model's name. Knows nothing of answers.

Small bodies are decoded (unknown fields are skipped over, not built). Of large ones only the
beginning and the end are read, where these suffice: decoding 100 KB would cost more than the rest
of the gateway's work. Two things make that safe. No key can be forged from inside a string: there
every quote has a backslash before it. And what follows a key up to the end of the body is, with a
brace before it, JSON of its own exactly if that key is the document's own. So is what stands
before the key, with a brace behind it.

Of several `model` keys the last counts, as it does for engines. A large body that begins with one
is not searched for another: whoever sends two is routed by one and answered by an engine that may
have read the other.

A body over `LONG_BYTES` is never decoded whole: decoding holds the interpreter's lock for its
whole time, so not even a thread would keep the other requests going. Its model is found if it
stands in the first or the last `LONG_BYTES`, and its engine says whether the body is valid."""

from __future__ import annotations

import json
import re
import zlib
from itertools import islice
from typing import Annotated, TypeVar

import msgspec

from skep.gateway.session_names import session_digest

T = TypeVar("T")
DECODE_BYTES = 16_384
LONG_BYTES = 1 << 20  # a longer body is looked at in a thread
BEGINNING = 1024  # bytes of a conversation's first user message that tell it from others
PROMPT_BEGINNING = 512  # the same of a bare prompt, which grows at its end
LONGEST_NAME = 1024  # characters of a model's name: names are repeated in answers, logs and rows
_HEAD_BYTES = 4096
_FORM_BYTES = 65_536
# of a message's parts, searched for its text
_PARTS_BYTES = 65_536
_PARTS_TOKENS = 256
_TRIES = 8  # words `user` looked at before a search is given up
# the same for keys `model`, and for those whose end of the body is decoded
_FINDS = 256
_PROOFS = 8
_BACKSLASH = ord("\\")
_BOM = b"\xef\xbb\xbf"

_FLAT = rb'\s*+"[^"\\]*+"\s*+:\s*+(?:"[^"\\]*+"|[-+.\w]++)\s*+'  # a pair that needs no decoding
# Groups are atomic, not possessive: Python before 3.11.5 matches those wrongly (gh-106052).
_HEAD = re.compile(
    rb"\s*+\{(?>(?:" + _FLAT + rb',)*)\s*+"(messages|input|prompt)"\s*+:\s*+(?=["\[])'
)
_STRING = re.compile(rb'[^"\\]*+(?>(?:\\.[^"\\]*+)*)', re.DOTALL)
_MODEL = re.compile(rb'"model"\s*+:\s*+(?P<name>"' + _STRING.pattern + rb'")', re.DOTALL)
_BEGINNING = re.compile(rb"\s*+\{(?:" + _FLAT + rb",)*\s*+" + _MODEL.pattern, re.DOTALL)
_ROLE = re.compile(rb'"role"\s*+:\s*+\Z')
_CONTENT = re.compile(
    rb'\s*+(?>(?:,(?!\s*+"content")' + _FLAT + rb')*),\s*+"content"\s*+:\s*+(?=["\[])'
)
# A string that does not end in the window is one token up to there. Else each quote in it would be
# tried in turn.
_TOKEN = re.compile(
    rb'"(text)"\s*+:\s*+"|"' + _STRING.pattern + rb'(?:"|\\?\Z)|([\[{])|([\]}])', re.DOTALL
)
_SESSION_KEYS = (b'"prompt_cache_key"', b'"user_id"')
_NAME = re.compile(rb'\s*+:\s*+("' + _STRING.pattern + rb'")', re.DOTALL)
_NAME_WINDOW = 2048  # bytes at each end of a large body that are searched for a session's name
# At the end of a body, which tell it from others of the same session and length.
_FINGERPRINT_BYTES = 512
# Claude Code begins its system prompt with a line that changes with every request.
_BILLING = re.compile(rb'x-anthropic-billing-header:[^"\\]*+')
_BILLING_WINDOW = 2048
_STREAMS_EARLY = re.compile(rb"\s*+\{(?:" + _FLAT + rb',)*\s*+"stream"\s*+:\s*+true\s*+[,}]')
_FIELD = re.compile(
    rb'(?<!\w)name="model"\r\n(?:[^\r\n]{1,200}\r\n){0,4}\r\n([^\r\n]{1,1024})\r\n'
)


class BodySummary(msgspec.Struct, frozen=True):
    model: str | None  # None: the body names none
    conversation: int | None = None
    # Where a body that was not decoded has the name, with its quotes.
    name_at: tuple[int, int] | None = None
    # The digest of its session's name: of `prompt_cache_key`, else of `metadata.user_id`.
    session: int | None = None


NOTHING_READ = BodySummary(None)


class NotAnObject(ValueError):
    """The body is not a JSON object, or its `model` is not a string."""


class PromptFields(msgspec.Struct):
    """What a model is to read, in a body of any dialect."""

    messages: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


class _RequestBody(PromptFields):
    model: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)] | None = None
    prompt_cache_key: msgspec.Raw = msgspec.Raw(b"")
    metadata: msgspec.Raw = msgspec.Raw(b"")


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _StreamField(msgspec.Struct):
    stream: object = None


class _ModelField(msgspec.Struct):
    model: str | None = None


_decoder = msgspec.json.Decoder(_RequestBody)
_names = msgspec.json.Decoder(_ModelField)
_streams = msgspec.json.Decoder(_StreamField)
_metadata = msgspec.json.Decoder(_Metadata)
_texts = msgspec.json.Decoder(str)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def inspect_body(body: bytes, *, conversation: bool = True, session: bool = True) -> BodySummary:
    """Return what a body says. Raises NotAnObject.

    `conversation`: its digest too, which few need where one replica serves the model. `session`:
    the name of its session too, which a header may have told already.
    """
    if len(body) > DECODE_BYTES:
        summary = _inspect_ends(body, conversation=conversation, session=session)
        if summary is not None:
            return summary
    try:
        fields = _decoder.decode(body)
    except _UNREADABLE as error:
        if body.startswith(_BOM):
            return inspect_body(body[len(_BOM) :], conversation=conversation, session=session)
        raise NotAnObject(str(error)) from None
    name = _session_of_fields(fields) if session else None
    begins = conversation or name is not None
    digest = conversation_of(fields) if begins else None
    return BodySummary(fields.model, conversation=digest, session=name)


def _session_of_fields(fields: _RequestBody) -> int | None:
    if not fields.prompt_cache_key and not fields.metadata:
        return None
    key = None
    if fields.prompt_cache_key:
        key = _decoded(_texts, bytes(fields.prompt_cache_key))
    if key is None and fields.metadata:
        metadata = _decoded(_metadata, bytes(fields.metadata))
        key = metadata.user_id if metadata is not None else None
    if key:
        return session_digest(key.encode("utf-8", "replace"))
    return None


def _session_of_ends(body: bytes) -> int | None:
    """Return the digest of the session's name that stands at the end or the beginning of a large
    body. No string holds such a key: its quotes would have backslashes before them.
    """
    last = max(0, len(body) - _NAME_WINDOW)
    for key in _SESSION_KEYS:
        # Searched for as it stands: an expression would look at each byte, which takes longer than
        # all the rest.
        at = body.find(key, last)
        if at < 0:
            at = body.find(key, 0, _NAME_WINDOW)
        if at <= 0 or body[at - 1] == _BACKSLASH:
            continue
        match = _NAME.match(body, at + len(key))
        text = _decoded(_texts, match[1]) if match is not None else None
        if text:
            return session_digest(text.encode("utf-8", "replace"))
    return None


def model_of_form(body: bytes) -> str | None:
    """Return the field `model` of a multipart form, as audio and image endpoints take it: before
    or behind the file.
    """
    field = _FIELD.search(body, 0, _FORM_BYTES)
    if field is None and len(body) > _FORM_BYTES:
        field = _FIELD.search(body, len(body) - _FORM_BYTES)
    if field:
        return field[1].decode("utf-8", "replace")
    return None


def with_model(
    body: bytes, old: str, new: str, name_at: tuple[int, int] | None = None
) -> bytes | None:
    """Return the body with the value of its own `model` replaced and every other byte kept.

    None: not found.
    """
    if name_at is not None:
        return _with_name(body, name_at, new)
    name_match = _own_model(body) or _BEGINNING.match(body, 0, _HEAD_BYTES)
    if name_match is None or _decoded(_texts, name_match["name"]) != old:
        return None
    changed = _with_name(body, name_match.span("name"), new)
    fields = _decoded(_names, changed.removeprefix(_BOM))
    if fields is not None and fields.model == new:
        return changed
    return None


def _with_name(body: bytes, name_at: tuple[int, int], new: str) -> bytes:
    return b"%b%b%b" % (body[: name_at[0]], json.dumps(new).encode(), body[name_at[1] :])


def _decoded(decoder: msgspec.json.Decoder[T], text: bytes) -> T | None:
    """Return what the text holds; None: it cannot be read as what the decoder is for."""
    try:
        return decoder.decode(text)
    except _UNREADABLE:
        return None


def _own_model(body: bytes) -> re.Match[bytes] | None:
    """Return the document's own last `model`, proven by what follows it, or in a long body by what
    stands before it.
    """
    at = len(body)
    proofs = 0
    last = len(body) - LONG_BYTES
    for _ in range(_FINDS):
        at = body.rfind(b'"model"', max(0, last), at)
        if at <= 0 or proofs == _PROOFS:
            break
        match = _MODEL.match(body, at)
        if match is None or body[at - 1] == _BACKSLASH:
            continue
        proofs += 1
        fields = _decoded(_names, b"{" + body[at:])
        if fields is not None:
            # Another name than this one's: a later key is spelled with escapes.
            if fields.model is not None and fields.model == _decoded(_texts, match["name"]):
                return match
            return None
    if last <= 0:
        return None
    for match in islice(_MODEL.finditer(body, 0, LONG_BYTES), _PROOFS):
        before = body[: match.start()].removeprefix(_BOM)
        is_key = before[-1:] != b"\\"
        if is_key and _decoded(_names, before + b'"":0}') is not None:
            return match
    return None


def _inspect_ends(body: bytes, *, conversation: bool, session: bool) -> BodySummary | None:
    """Look at the beginning and the end of a large body.

    None: it has to be decoded, and is short enough for that.
    """
    is_long = len(body) > LONG_BYTES
    start = len(_BOM) if body.startswith(_BOM) else 0
    if is_long and not body[start : start + _HEAD_BYTES].lstrip().startswith(b"{"):
        raise NotAnObject("it does not begin with a brace")
    head = _HEAD.match(body, start, start + _HEAD_BYTES)
    digest = None
    if head is not None and conversation:
        digest = _digest_of_head(body, head, guess=is_long)
    lacks_digest = head is None or (conversation and digest is None)
    if lacks_digest and not is_long:
        return None
    model = _model_of_ends(body, start, head)
    session_name = _session_of_ends(body) if session else None
    if model is not None:
        name, name_at = model
        return BodySummary(name, digest, name_at, session_name)
    if is_long:
        return BodySummary(None, digest, session=session_name)
    return None


def _model_of_ends(
    body: bytes, start: int, head: re.Match[bytes] | None
) -> tuple[str, tuple[int, int]] | None:
    """Return the name of the model, and where it stands with its quotes; None: it is not found."""
    match = None
    if head is not None:
        match = _BEGINNING.match(body, start, head.end())
    if match is None:
        match = _own_model(body)
    if match is None:
        return None
    name = _decoded(_texts, match["name"])
    if name is None:
        return None
    if len(name) > LONGEST_NAME:
        raise NotAnObject(f"the name of its `model` is longer than {LONGEST_NAME} characters")
    return name, match.span("name")


def _digest_of_head(body: bytes, head: re.Match[bytes], *, guess: bool) -> int | None:
    """Return the digest that `conversation_of` gives, of OpenAI's `messages` that begin with the
    system's. Other bodies may have the system's words in a field anywhere: None, or a `guess` that
    they have not.
    """
    start = head.end()
    if guess and body[start : start + 1] == b'"':
        return zlib.crc32(body[start : start + PROMPT_BEGINNING])
    user = _first_user(body, start, start + LONG_BYTES)
    if user < 0:
        return None
    if not guess:
        has_system = (
            body.find(b'"system"', start, user) >= 0 or body.find(b'"developer"', start, user) >= 0
        )
        if not has_system or head[1] != b"messages":
            return None
    return _digest_at(body, start, user, 0)


def conversation_of(fields: PromptFields) -> int | None:
    """Return a digest of everything up to and including the (beginning of the) first user message.

    System prompts are shared by many agents, so they alone do not tell a conversation. The digest
    must not change as the conversation grows: it covers the text of that message and nothing
    behind it. Only its text, because clients move marks (`cache_control`) from message to message.
    """
    prompt = bytes(fields.messages) or bytes(fields.input) or bytes(fields.prompt)
    if prompt in (b"", b"null", b"[]"):
        return None
    system = _without_billing(bytes(fields.system))
    seed = zlib.crc32(fields.instructions, zlib.crc32(system))
    user = _first_user(prompt, 0) if prompt.startswith(b"[") else -1
    if user >= 0:
        return _digest_at(prompt, 0, user, seed)
    return zlib.crc32(prompt[:PROMPT_BEGINNING], seed)


def _without_billing(text: bytes) -> bytes:
    """Return the text without the line that changes with every request, where it begins with
    that.
    """
    if b"x-anthropic-billing-header:" not in text[:_BILLING_WINDOW]:
        return text
    return _BILLING.sub(b"", text, count=1)


def _first_user(text: bytes, start: int, end: int | None = None) -> int:
    """Return where the first `"user"` stands that is a role; -1: nowhere near."""
    at = start
    for _ in range(_TRIES):
        at = text.find(b'"user"', at, end)
        if at < 0 or _ROLE.search(text, max(start, at - 24), at):
            return at
        at += 6
    return -1


def _digest_at(text: bytes, start: int, user: int, seed: int) -> int:
    """Return the digest of messages: the text has them from `start`, the first user's role at
    `user`, and the words of that user behind the role or before it.
    """
    before = memoryview(text)[start:user]
    window_end = min(user, start + _BILLING_WINDOW)
    if text.find(b"x-anthropic-billing-header:", start, window_end) >= 0:
        before = memoryview(_without_billing(text[start:user]))
    digest = zlib.crc32(before, seed)
    content = _CONTENT.match(text, user + 6)
    if content is not None:
        return _digest_of_content(text, content.end(), digest)
    return digest


def _digest_of_content(text: bytes, at: int, digest: int) -> int:
    """Return the digest with the content at `at`: a string, or a list of parts of which the texts
    count.
    """
    if text[at : at + 1] == b'"':
        end = _end_of_string(text, at + 1, BEGINNING)
        return zlib.crc32(text[at + 1 : end], digest)
    depth = 0
    remaining = BEGINNING
    end = at + _PARTS_BYTES
    for _ in range(_PARTS_TOKENS):
        token = _TOKEN.search(text, at, end)
        if token is None:
            break
        at = token.end()
        opens = token[2] is not None
        closes = token[3] is not None
        depth += opens - closes
        if depth <= 0:
            break
        if token[1] is not None:
            behind = _end_of_string(text, at, remaining)
            digest = zlib.crc32(text[at:behind], digest)
            remaining -= behind - at
            at = behind + 1
            if remaining <= 0 or text[behind:at] != b'"':
                break  # there is more of it than counts
    return digest


def _end_of_string(text: bytes, at: int, limit: int) -> int:
    """Return where the string ends whose first character is at `at`, or how far it counts."""
    end = text.find(b'"', at, at + limit)
    if end == at or (end > at and text[end - 1] != _BACKSLASH):
        return end
    match = _STRING.match(text, at, at + limit)
    return match.end() if match is not None else at


def wants_stream(body: bytes) -> bool:
    """Return whether a request asks for a stream: by the document's own last `stream`, proven by
    what follows it; in a long body also at its beginning.
    """
    at = len(body)
    first = max(0, at - LONG_BYTES)
    for _ in range(_TRIES):
        at = body.rfind(b'"stream"', first, at)
        if at <= 0:
            break
        if body[at - 1] == _BACKSLASH:
            continue
        fields = _decoded(_streams, b"{" + body[at:])
        if fields is not None:
            return fields.stream is True
    if first:
        return _STREAMS_EARLY.match(body, 0, _HEAD_BYTES) is not None
    if at < 0:
        return False
    fields = _decoded(_streams, body.removeprefix(_BOM))
    return fields is not None and fields.stream is True


def fingerprint_of(body: bytes) -> int:
    """Return a digest that is the same when a client sends the same again: of its end, and of its
    length.
    """
    return zlib.crc32(body[-_FINGERPRINT_BYTES:], len(body))
