"""Tokens of the simulated engine: what a prompt is made of, and the names of its blocks.

Four bytes are a token, a word of a simulated answer is one. A conversation that goes on begins
with the tokens of its earlier turns, answers among them, so that a prefix cache finds them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

TOKEN_BYTES = 4  # what is not written in Latin letters takes more tokens a character
MARK = "[simulated]"
_STORY = """
bees leave the skep at first light and carry word of clover beyond the hedge
a drone waits by the entrance while wax is warmed and drawn into even cells
nectar is passed from mouth to mouth and fanned until the water has gone
the queen walks the comb and leaves an egg in every cell that is clean
smoke drifts over the frames and the keeper lifts them one after the other
"""
_CYCLE = tuple(
    ("\n\n" if place == 0 else " ") + word
    for line in _STORY.strip().splitlines()
    for place, word in enumerate(line.split())
)
# Each message has tokens beside its text: its role before it, and one behind it.
_ROLE_TOKENS = 3
_ANSWERER = "assistant"


class Message(msgspec.Struct):
    role: str
    content: Any = ""
    tool_calls: Any = None


def word(seed: int, place: int) -> str:
    if place == 0:
        return MARK
    return _CYCLE[(seed + place) % len(_CYCLE)]


def text_of(messages: Sequence[Message]) -> str:
    return "\n".join(_text(part) for message in messages for part in _parts(message))


def _parts(message: Message) -> list[Any]:
    return [part for part in (message.content, message.tool_calls) if part]


def _text(part: Any) -> str:
    return part if isinstance(part, str) else json.dumps(part)


def prompt_stream(messages: Sequence[Message], tools: Any = None) -> bytes:
    """Return the tokens of a prompt, each as four bytes: the tools, the messages, and the role of
    the one that answers.
    """
    pieces: list[bytes] = []
    if tools:
        pieces.append(_whole_tokens(json.dumps(tools)))
    for message in messages:
        pieces.append(_role(message.role))
        texts = [_text(part) for part in _parts(message)]
        pieces += [_tokens(text) for text in texts]
        # The last bytes of a text make no whole token. The digest tells apart texts that differ
        # only there.
        pieces.append(_digest("\n".join(texts).encode("utf-8", "replace")))
    pieces.append(_role(_ANSWERER))
    return b"".join(pieces)


def answer_stream(seed: int, tokens: int) -> bytes:
    """Return the tokens of an answer, as they stand in the prompt of the next turn."""
    if not tokens:
        return b""
    first = (seed + 1) % len(_CYCLE)  # the word behind the mark
    repeats = (first + tokens) // len(_CYCLE) + 1
    words = _cycle_stream() * repeats
    begin = first * TOKEN_BYTES
    return _word_token(MARK) + words[begin : begin + (tokens - 1) * TOKEN_BYTES]


@cache
def _cycle_stream() -> bytes:
    return b"".join(map(_word_token, _CYCLE))


def _tokens(text: str) -> bytes:
    if text.startswith(MARK):
        return b"".join(map(_word_token, text.split()))
    return _whole_tokens(text)


def _whole_tokens(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    return encoded[: len(encoded) // TOKEN_BYTES * TOKEN_BYTES]


def _word_token(text: str) -> bytes:
    return text.strip().encode()[:TOKEN_BYTES].ljust(TOKEN_BYTES)


def _role(role: str) -> bytes:
    size = _ROLE_TOKENS * TOKEN_BYTES
    return role.encode("utf-8", "replace")[:size].ljust(size)


def _digest(text: bytes) -> bytes:
    return zlib.crc32(text).to_bytes(TOKEN_BYTES)


def block_names(stream: bytes, block_tokens: int) -> tuple[int, ...]:
    """Return the names of the full blocks: two are equal where all tokens up to their ends are."""
    size = block_tokens * TOKEN_BYTES
    names: list[int] = []
    name = 0
    for end in range(size, len(stream) + 1, size):
        name = hash((name, stream[end - size : end]))
        names.append(name)
    return tuple(names)
