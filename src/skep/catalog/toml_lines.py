"""Where in a TOML text each value stands, so that a complaint can name the line.

Expects text that `tomllib` has read: what is wrong with it as TOML was said before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Place = tuple[str | int, ...]
_BLANK = " \t"
_SPACE = " \t\r\n"
_ENDS_VALUE = ",]}#\r\n"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\"}


def toml_lines(text: str) -> dict[Place, int]:
    """The line of every key, table and array element by its path: `("published", 0, "tok_s")`."""
    return _Walk(text).lines


def written(value: object) -> str:
    """A value as it stands in a file: `true`, not Python's `True`; of a table or a list, that it is one."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)


def line_of(place: Sequence[str | int], lines: Mapping[Place, int]) -> int:
    """Of the value itself, or of the nearest thing around it: a missing key has no line of its own."""
    path = tuple(place)
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Walk:
    """One pass over the text. `lines` is full when the constructor returns."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {}
        self._text = text
        self._at = 0
        self._tables: dict[Place, int] = {}  # arrays of tables: how many there are so far
        here: Place = ()
        while self._skip(_SPACE) < len(text):
            if self._peek() == "[":
                here = self._header()
            else:
                self._pair(here)

    def _header(self) -> Place:
        """`[a.b]` or `[[a.b]]`; names that stand for an array of tables mean its last one."""
        line, doubled = self._line(), self._text.startswith("[[", self._at)
        self._at += 2 if doubled else 1
        path: Place = ()
        *parents, last = self._key()
        for name in parents:
            path = (*path, name)
            path = (*path, self._tables[path] - 1) if path in self._tables else path
        path = (*path, last)
        if doubled:
            self.lines.setdefault(path, line)
            number = self._tables.get(path, 0)
            self._tables[path] = number + 1
            path = (*path, number)
        self.lines[path] = line
        self._skip(_BLANK)
        self._at += 2 if doubled else 1
        return path

    def _pair(self, table: Place) -> None:
        line, path = self._line(), table
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self._skip(_BLANK)
        self._at += 1  # =
        self._value(path)

    def _key(self) -> list[str]:
        names = []
        while True:
            self._skip(_BLANK)
            if self._peek() in "\"'":
                names.append(self._string())
            else:
                start = self._at
                while self._at < len(self._text) and (self._peek().isalnum() or self._peek() in "-_"):
                    self._at += 1
                names.append(self._text[start : self._at])
            self._skip(_BLANK)
            if self._peek() != ".":
                return names
            self._at += 1

    def _value(self, path: Place) -> None:
        self._skip(_BLANK)
        first = self._peek()
        if first == "[":
            self._many("]", path, keyed=False)
        elif first == "{":
            self._many("}", path, keyed=True)
        elif first in "\"'":
            self._string()
        else:
            while self._at < len(self._text) and self._peek() not in _ENDS_VALUE:
                self._at += 1

    def _many(self, end: str, path: Place, *, keyed: bool) -> None:
        """What stands between brackets, over as many lines as it takes."""
        self._at += 1
        number = 0
        while self._skip(_SPACE) < len(self._text) and self._peek() != end:
            if keyed:
                self._pair(path)
            else:
                self.lines[*path, number] = self._line()
                self._value((*path, number))
            number += 1
            self._skip(_SPACE)
            if self._peek() == ",":
                self._at += 1
        self._at += 1

    def _string(self) -> str:
        quote = self._peek()
        if self._text.startswith(quote * 3, self._at):
            quote *= 3
        self._at += len(quote)
        said = []
        while self._at < len(self._text) and not self._text.startswith(quote, self._at):
            letter = self._peek()
            if letter == "\\" and quote[0] == '"':
                self._at += 1
                letter = _ESCAPES.get(self._peek(), self._peek())
            said.append(letter)
            self._at += 1
        self._at += len(quote)
        while len(quote) == 3 and self._at < len(self._text) and self._peek() == quote[0]:
            self._at += 1  # a long string may end with quotes of its own
        return "".join(said)

    def _skip(self, what: str) -> int:
        """Over blanks and, where lines may end, over comments."""
        while self._at < len(self._text):
            if self._peek() == "#" and "\n" in what:
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._peek() in what:
                self._at += 1
            else:
                break
        return self._at

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1] or "\n"

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1
