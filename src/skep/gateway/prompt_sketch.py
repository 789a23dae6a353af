"""A sketch of a prompt: digests of its blocks, by which a later prompt of the same conversation is
compared with it. It holds no text, and none can be read from it.

The parts stand in the order in which engines see them: tools, system prompt, messages. Small
prompts have no sketch: an engine that reads one again loses no time."""

from __future__ import annotations

import re
import struct
from itertools import chain
from zlib import crc32

import msgspec

from skep.gateway.body_inspection import LONG_BYTES, PromptFields, conversation_of

SKETCHED_BYTES = 8192  # of a body; a smaller one has no sketch
# Of bodies that are sketched: at four ticks a second that takes 2 % of a processor.
BYTES_A_TICK = 2 << 20
BURST_BYTES = 8 << 20  # that may be sketched at once, after a time without any
FINE_BYTES = 32_768  # of a prompt, in blocks of FINE_BLOCK; the rest is in blocks of COARSE_BLOCK
FINE_BLOCK = 512
COARSE_BLOCK = 4096
FINE_BLOCKS = FINE_BYTES // FINE_BLOCK
_DIGEST_BYTES = 4
_BACKSLASH = ord("\\")
_MOST_MARKS = 16  # of a prompt; more are left in it
# A mark for Anthropic's cache, which its client moves from message to message. No model sees it.
_MARK_KEY = b'"cache_control"'
_MARK = re.compile(rb'"cache_control"\s*+:\s*+(?:\{[^{}]*+\}|null)\s*+')


class PromptSketch(msgspec.Struct, frozen=True, array_like=True):
    digests: bytes  # of the blocks, four bytes of each
    length: int  # bytes of the prompt

    def __repr__(self) -> str:
        return f"<PromptSketch {len(self.digests) // _DIGEST_BYTES} blocks, {self.length} bytes>"

    def changed_at(self, later: PromptSketch) -> int | None:
        """Return the first byte of the first block in which a later prompt differs; None: it goes
        on where this one ends.
        """
        whole = self._whole_blocks()
        if later.digests.startswith(whole):
            return None
        blocks = zip(_cut(whole), _cut(later.digests), strict=False)
        equal = 0
        for block, later_block in blocks:
            if block != later_block:
                break
            equal += 1
        return min(offset_of(equal), later.length)

    def ends_inside(self, later: PromptSketch) -> bool:
        """Return whether the last blocks stand at the same place in a later prompt: it is the same
        conversation, whatever its beginning says now.
        """
        whole = self._whole_blocks()
        last = whole[-4 * _DIGEST_BYTES :]
        return bool(last) and later.digests[len(whole) - len(last) : len(whole)] == last

    def _whole_blocks(self) -> bytes:
        """Return the digests without the last one: its block holds the end of the document."""
        return self.digests[:-_DIGEST_BYTES]


class SketchBudget:
    """How many bytes of prompts may still be sketched. A gateway through which more passes than
    engines can read needs its processor for other work.
    """

    def __init__(self) -> None:
        self._left_bytes = BURST_BYTES

    def __repr__(self) -> str:
        return f"<SketchBudget {self._left_bytes} bytes>"

    def take(self, length: int) -> bool:
        """Return whether a body of that length may be sketched; if so, its bytes are spent."""
        if not SKETCHED_BYTES <= length <= min(LONG_BYTES, self._left_bytes):
            return False
        self._left_bytes -= length
        return True

    def refill(self) -> None:
        """Add what one tick of the clock allows."""
        self._left_bytes = min(BURST_BYTES, self._left_bytes + BYTES_A_TICK)


class PromptLook(msgspec.Struct, frozen=True):
    sketch: PromptSketch
    conversation: int | None  # the digest of its beginning


class _PromptBody(PromptFields):
    tools: msgspec.Raw = msgspec.Raw(b"")


_decoder = msgspec.json.Decoder(_PromptBody)


def look_at_prompt(body: bytes) -> PromptLook | None:
    """Return the sketch of a body's prompt; None: there is none in it."""
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    messages = bytes(fields.messages) or bytes(fields.input) or bytes(fields.prompt)
    if not messages:
        return None
    text = b"".join((fields.tools, fields.system, fields.instructions, messages))
    return PromptLook(sketch_of(_without_marks(text)), conversation_of(fields))


def sketch_of(text: bytes) -> PromptSketch:
    view = memoryview(text)
    length = len(text)
    fine_end = min(length, FINE_BYTES)
    fine = (view[at : at + FINE_BLOCK] for at in range(0, fine_end, FINE_BLOCK))
    coarse = (view[at : at + COARSE_BLOCK] for at in range(FINE_BYTES, length, COARSE_BLOCK))
    digests = [*map(crc32, chain(fine, coarse))]
    return PromptSketch(struct.pack(f">{len(digests)}I", *digests), length)


def offset_of(block: int) -> int:
    """Return the first byte of a block, by its number."""
    if block <= FINE_BLOCKS:
        return block * FINE_BLOCK
    return FINE_BYTES + (block - FINE_BLOCKS) * COARSE_BLOCK


def _cut(digests: bytes) -> list[bytes]:
    return [digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES)]


def _without_marks(text: bytes) -> bytes:
    """Return the prompt without the marks for a cache, and without the comma of each."""
    parts: list[bytes] = []
    begin = 0
    at = 0
    for _ in range(_MOST_MARKS):
        at = text.find(_MARK_KEY, at)
        if at < 0:
            break
        mark = _MARK.match(text, at)
        if mark is None or text[at - 1] == _BACKSLASH:
            at += len(_MARK_KEY)
            continue
        before = text[begin:at].rstrip()
        begin = at = mark.end()
        if before.endswith(b","):
            parts.append(before[:-1])
        else:  # it is the first of its object
            parts.append(before)
            begin += text.startswith(b",", begin)
    return b"".join((*parts, text[begin:])) if parts else text
