"""Decodes the values of a GGUF header from a file, within bounds. Knows nothing of what the keys mean."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 18
_TEXT = 8
_ARRAY = 9
_SMALL_ARRAY = 64
_MAX_TEXT_BYTES = 64 << 20  # kept from one header, all texts together
_MAX_STEPS = 1 << 22
_NESTED_STEPS = 16  # no model known nests arrays; each costs an object
_MAX_DEPTH = 4


class Damaged(Exception):
    """What is wrong with the file, as the end of a sentence about it."""

    def __init__(self, what: str, *, hint: str = "delete it and pull it again") -> None:
        super().__init__(what)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """An array that was passed over; read the header with `keep_arrays=True` to have it."""

    count: int


class Reader:
    """Reads forward only. Each key, text and array element is a step; steps are limited for the whole header."""

    def __init__(self, file: BinaryIO, size: int, *, keep_arrays: bool) -> None:
        self._file = file
        self._size = size
        self._keep_arrays = keep_arrays
        self._steps_left = _MAX_STEPS
        self._text_bytes_left = _MAX_TEXT_BYTES

    def __repr__(self) -> str:
        return f"<Reader at {self.position} of {self._size}, {self._steps_left} steps left>"

    @property
    def position(self) -> int:
        return self._file.tell()

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self._take(width), "little")

    def count(self, what: str, limit: int, *, bytes_each: int) -> int:
        """A number of things that follow: rejected when the rest of the file cannot hold that many."""
        count = self.unsigned(8)
        if count > limit:
            raise Damaged(f"its header is damaged: it claims {count} {what}")
        self._need(count * bytes_each)
        return count

    def text(self) -> str:
        self._spend(1)
        length = self.unsigned(8)
        self._need(length)
        self._text_bytes_left -= length
        if self._text_bytes_left < 0:
            raise Damaged(f"its header is damaged: it claims a text of {length} bytes")
        return self._take(length).decode("utf-8", errors="replace")

    def value(self) -> Any:
        self._spend(1)
        return self._value(self.unsigned(4), depth=0)

    def _value(self, type_id: int, depth: int) -> Any:
        if type_id == _TEXT:
            return self.text()
        if type_id == _ARRAY:
            return self._array(depth + 1)
        layout = _layout(type_id)
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _array(self, depth: int) -> tuple[Any, ...] | SkippedArray:
        if depth > _MAX_DEPTH:
            raise Damaged("its header is damaged: arrays are nested too deep")
        type_id, count = self.unsigned(4), self.unsigned(8)
        kept = self._keep_arrays or count <= _SMALL_ARRAY
        if type_id == _TEXT:
            self._spend(count)
            return self._texts(count) if kept else self._skip_texts(count)
        if type_id == _ARRAY:
            self._spend(count * _NESTED_STEPS)
            return tuple(self._array(depth + 1) for _ in range(count))
        layout = _layout(type_id)
        self._need(count * struct.calcsize(layout))
        return self._scalars(layout, count) if kept else self._skip_scalars(layout, count)

    def _texts(self, count: int) -> tuple[str, ...]:
        self._need(count * 8)
        return tuple(self.text() for _ in range(count))

    def _skip_texts(self, count: int) -> SkippedArray:
        """The slow part of a header: a vocabulary has 262,144 words, so they are walked in large pieces."""
        self._need(count * 8)
        start, at, piece = self.position, 0, b""
        for _ in range(count):
            if at + 8 > len(piece):
                start, at, piece = start + at, 0, self._piece(start + at)
            at += 8 + _LENGTH.unpack_from(piece, at)[0]
        if start + at > self._size:
            raise self._cut()
        self._file.seek(start + at)
        return SkippedArray(count)

    def _piece(self, position: int) -> bytes:
        if position + 8 > self._size:
            raise self._cut()
        self._file.seek(position)
        piece = self._file.read(_PIECE_BYTES)
        if len(piece) < 8:
            raise self._cut()
        return piece

    def _scalars(self, layout: str, count: int) -> tuple[Any, ...]:
        self._spend(count)
        return struct.unpack(f"<{count}{layout[1]}", self._take(count * struct.calcsize(layout)))

    def _skip_scalars(self, layout: str, count: int) -> SkippedArray:
        self._file.seek(count * struct.calcsize(layout), 1)
        return SkippedArray(count)

    def _take(self, length: int) -> bytes:
        self._need(length)
        taken = self._file.read(length)
        if len(taken) < length:  # the file shrank while it was read
            raise self._cut()
        return taken

    def _need(self, length: int) -> None:
        if length > self._size - self.position:
            raise self._cut()

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise Damaged("its header is damaged: it holds more values than any model needs")

    def _cut(self) -> Damaged:
        return Damaged(f"it has {self._size} bytes and ends inside its own header, so it is truncated or damaged")


def _layout(type_id: int) -> str:
    try:
        return _SCALARS[type_id]
    except KeyError:
        raise Damaged(f"its header is damaged: value type {type_id} is not known") from None
