"""JSON with comments and trailing commas, as editors write settings: reads its values, and changes
single members without touching the rest of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_BLANK = re.compile(r"[ \t\r\n]+")
_SCALAR = re.compile(r"[^\s,\]}/]+")


class JsonValue:
    """A value and its place in the text.

    `members` of an object: where each key begins, and its value.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.value: Any = None
        self.members: dict[str, tuple[int, JsonValue]] | None = None
        self.trailing_comma: int | None = None  # where it stands

    def member(self, key: str) -> JsonValue | None:
        """Return the value of a key; None: this is no object, or it has no such key."""
        if self.members is None or key not in self.members:
            return None
        _, member = self.members[key]
        return member


def parse_json(text: str) -> Any:
    return _read(text).value


def _read(text: str) -> JsonValue:
    mark_length = 1 if text.startswith("\ufeff") else 0
    place = _skip(text, mark_length)
    root = _read_value(text, place)
    end = _skip(text, root.end)
    if end != len(text):
        raise _error_at(text, root.end, "more than one value")
    return root


def _error_at(text: str, place: int, message: str) -> ValueError:
    lines_above = text.count("\n", 0, place)
    line = lines_above + 1
    return ValueError(f"line {line}: {message}")


def _skip(text: str, place: int) -> int:
    """Return where blanks and comments end."""
    while place < len(text):
        blank = _BLANK.match(text, place)
        if blank is not None:
            place = blank.end()
        elif text.startswith("//", place):
            end = text.find("\n", place)
            if end < 0:
                end = len(text)
            place = end
        elif text.startswith("/*", place):
            end = text.find("*/", place)
            if end < 0:
                raise _error_at(text, place, "a comment does not end")
            place = end + 2
        else:
            break
    return place


def _read_value(text: str, place: int) -> JsonValue:
    node = JsonValue(place)
    if text.startswith("{", place):
        _read_object(text, node)
    elif text.startswith("[", place):
        _read_array(text, node)
    elif text.startswith('"', place):
        node.value, node.end = _read_string(text, place)
    else:
        _read_scalar(text, node)
    return node


def _read_scalar(text: str, node: JsonValue) -> None:
    scalar = _SCALAR.match(text, node.start)
    if scalar is None:
        raise _error_at(text, node.start, "a value is missing")
    node.end = scalar.end()
    try:
        node.value = json.loads(scalar.group())
    except ValueError:
        word = scalar.group()[:40]
        raise _error_at(text, node.start, f"`{word}` is no value") from None


def _read_string(text: str, place: int) -> tuple[str, int]:
    try:
        decoder = json.JSONDecoder()
        value, end = decoder.raw_decode(text, place)
    except ValueError:
        raise _error_at(text, place, "a string does not end") from None
    return value, end


def _read_object(text: str, node: JsonValue) -> None:
    node.value = {}
    node.members = {}
    place = _skip(text, node.start + 1)
    while not text.startswith("}", place):
        if not text.startswith('"', place):
            raise _error_at(text, place, "a key in quotes is missing")
        begin = place
        key, place = _read_string(text, place)
        place = _skip(text, place)
        if not text.startswith(":", place):
            raise _error_at(text, place, "a colon is missing")
        place = _skip(text, place + 1)
        member = _read_value(text, place)
        node.value[key] = member.value
        node.members[key] = (begin, member)
        place = _after_part(text, node, member.end, "}")
    node.end = place + 1


def _read_array(text: str, node: JsonValue) -> None:
    node.value = []
    place = _skip(text, node.start + 1)
    while not text.startswith("]", place):
        part = _read_value(text, place)
        node.value.append(part.value)
        place = _after_part(text, node, part.end, "]")
    node.end = place + 1


def _after_part(text: str, node: JsonValue, place: int, end: str) -> int:
    """Return where the next member or value begins, or the sign that ends them."""
    place = _skip(text, place)
    node.trailing_comma = None
    if text.startswith(",", place):
        node.trailing_comma = place
        return _skip(text, place + 1)
    if not text.startswith(end, place):
        raise _error_at(text, place, f"a comma or `{end}` is missing")
    return place


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with another value at the path; missing objects are made."""
    if not text.strip():
        text = "{}\n"
    inner = _read(text)
    rest = list(path)
    while rest:
        member = inner.member(rest[0])
        if member is None:
            break
        inner = member
        rest.pop(0)
    if not rest:
        indent = _indent_at(text, inner.start)
        replacement = _written(value, indent)
        return _replaced(text, inner.start, inner.end, replacement)
    if inner.members is None:
        raise ValueError("no object to put it in")
    new_key, *keys_within = rest
    for key in reversed(keys_within):
        value = {key: value}
    return _with_member(text, inner, new_key, value)


def _with_member(text: str, inner: JsonValue, key: str, value: Any) -> str:
    """Return the text with one more member in an object, written as its last one is."""
    assert inner.members is not None
    if not inner.members:
        return _with_first_member(text, inner, key, value)
    members = list(inner.members.values())
    begin, last = members[-1]
    indent = _indent_at(text, begin)
    member = _written_member(key, value, indent)
    line = _line_before(text, begin)
    has_own_line = not line.strip()
    gap = f"\n{indent}" if has_own_line else " "
    if inner.trailing_comma is None:
        return _inserted(text, last.end, f",{gap}{member}")
    place = inner.trailing_comma + 1
    return _inserted(text, place, f"{gap}{member},")


def _with_first_member(text: str, inner: JsonValue, key: str, value: Any) -> str:
    outer_indent = _indent_at(text, inner.start)
    indent = outer_indent + "  "
    begin = inner.start + 1
    end = inner.end - 1
    comments = text[begin:end].rstrip()
    member = _written_member(key, value, indent)
    content = f"{comments}\n{indent}{member}\n{outer_indent}"
    return _replaced(text, begin, end, content)


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the value at the path, and without the objects that are empty
    then.
    """
    nodes = [_read(text)]
    for key in path:
        member = nodes[-1].member(key)
        if member is None:
            return text
        nodes.append(member)
    depth = len(path) - 1
    while depth > 0 and len(nodes[depth].value) == 1:
        depth -= 1
    return _without_member(text, nodes[depth], path[depth])


def _without_member(text: str, inner: JsonValue, key: str) -> str:
    """Return the text without a member of an object; the last one takes the comma before it
    along.
    """
    assert inner.members is not None
    keys = list(inner.members)
    if len(keys) == 1:
        return _replaced(text, inner.start, inner.end, "{}")
    begin, member = inner.members[key]
    place = keys.index(key)
    is_last = place == len(keys) - 1
    if not is_last:
        next_key = keys[place + 1]
        next_begin, _ = inner.members[next_key]
        return _replaced(text, begin, next_begin, "")
    previous_key = keys[place - 1]
    _, previous = inner.members[previous_key]
    return _replaced(text, previous.end, member.end, "")


def _inserted(text: str, place: int, addition: str) -> str:
    return _replaced(text, place, place, addition)


def _replaced(text: str, begin: int, end: int, replacement: str) -> str:
    before = text[:begin]
    after = text[end:]
    return before + replacement + after


def _indent_at(text: str, place: int) -> str:
    """Return the blanks at the beginning of the line."""
    line = _line_before(text, place)
    content = line.lstrip(" \t")
    return line.removesuffix(content)


def _line_before(text: str, place: int) -> str:
    """Return the line up to a place."""
    start = text.rfind("\n", 0, place) + 1
    return text[start:place]


def _written_member(key: str, value: Any, indent: str) -> str:
    written_key = json.dumps(key, ensure_ascii=False)
    written_value = _written(value, indent)
    return f"{written_key}: {written_value}"


def _written(value: Any, indent: str) -> str:
    lines = json.dumps(value, indent=2, ensure_ascii=False)
    return lines.replace("\n", f"\n{indent}")
