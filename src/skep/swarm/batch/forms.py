"""A multipart form (RFC 7578) as clients upload files with it. Works on bytes that are there whole; does no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_PARTS = 64
_HEAD_BYTES = 16_384
_PIECE = 1_048_576
_PARAMETER = re.compile(r';\s*([\w*-]+)=(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))')
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,200})"|([^;\s"]{1,200}))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    filename: str | None  # None: a plain field
    content: memoryview

    @property
    def text(self) -> str:
        return bytes(self.content).decode("utf-8", "replace")


def boundary_of(content_type: str) -> bytes | None:
    """None: it is no multipart form."""
    kind, _, parameters = content_type.partition(";")
    found = _BOUNDARY.search(";" + parameters)
    if kind.strip().lower() != "multipart/form-data" or found is None:
        return None
    return (found[1] or found[2]).encode("latin-1", "replace")


def parts_of(body: bytes, boundary: bytes) -> list[Part]:
    """In their order. Raises ValueError for what is no form, or not a whole one."""
    mark = b"--" + boundary
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    if at < 2 and not body.startswith(mark):
        raise ValueError("the form does not begin with its boundary")
    view, parts = memoryview(body), list[Part]()
    at += len(mark)
    while body[at : at + 2] != b"--":
        if len(parts) == MOST_PARTS:
            raise ValueError(f"the form has more than {MOST_PARTS} parts")
        begin = body.find(b"\r\n", at) + 2
        # A part without any header begins with the blank line itself.
        end_of_head = begin - 2 if body[begin : begin + 2] == b"\r\n" else body.find(b"\r\n\r\n", begin)
        if begin < 2 or end_of_head < 0 or end_of_head - begin > _HEAD_BYTES:
            raise ValueError("a part of the form has no end of its headers")
        end = _find(body, b"\r\n" + mark, end_of_head + 2)
        if end < 0:
            raise ValueError("the form is cut off: its last boundary is missing")
        name, filename = _names(body[begin : max(begin, end_of_head)])
        parts.append(Part(name, filename, view[end_of_head + 4 : max(end, end_of_head + 4)]))
        at = end + 2 + len(mark)
    return parts


def _find(body: bytes, mark: bytes, start: int) -> int:
    """Piece by piece: one search through a large file would keep every other thread waiting for its whole length."""
    for at in range(start, len(body), _PIECE):
        found = body.find(mark, at, at + _PIECE + len(mark) - 1)
        if found >= 0:
            return found
    return -1


def _names(head: bytes) -> tuple[str, str | None]:
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            told = {name.lower(): _plain(quoted or bare) for name, quoted, bare in _PARAMETER.findall(_text(value))}
            return told.get("name", ""), told.get("filename")
    raise ValueError("a part of the form has no Content-Disposition")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _plain(text: str) -> str:
    """Quotes and line ends inside a name are percent-encoded by browsers, and escaped with a backslash by others."""
    text = re.sub(r"\\([\"\\])", r"\1", text)
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")
