"""Words of command lines and files, quoted for those who read them: a shell, Compose's YAML, systemd. Pure text.

A value of a preset is somebody's own text: it may hold quotes, dollars and line ends, and comes out as it went in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

_VARIABLE = re.compile(r"\$(?:\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
WIDTH = 110


@dataclass(frozen=True, slots=True)
class Path:
    """A path of the machine it will run on: `~` at its beginning and `$NAME` stand for what they are there."""

    text: str
    before: str = ""  # literal, of the same word
    after: str = ""


Word = str | Path


def comment(text: str) -> str:
    """Every line of it behind a `#`: no value ends a comment."""
    return "\n".join(f"# {line}".rstrip() for line in re.split(r"[\r\n\x0b\x0c\x85\u2028\u2029]+", text))


def comments(lines: Iterable[str]) -> str:
    return "".join(f"{comment(line)}\n" for line in lines)


def shell_word(word: Word) -> str:
    if isinstance(word, str):
        return shlex.quote(word)
    found = _path(word.text, _shell_text, home='"$HOME"', variable=lambda name: f'"{name}"')
    return (_shell_text(word.before) + found + _shell_text(word.after)) or "''"


def systemd_word(word: Word, *, dollars: bool = True) -> str:
    """`dollars`: of a command line, where `$` would begin a variable; not so in Environment=."""
    if isinstance(word, str):
        return _systemd_quoted(_systemd_text(word, dollars=dollars))

    def braced(name: str) -> str:
        return f"${{{name.strip('${}')}}}"

    found = _path(word.text, lambda text: _systemd_text(text, dollars=dollars), home="%h", variable=braced)
    both = (_systemd_text(text, dollars=dollars) for text in (word.before, word.after))
    return _systemd_quoted(found.join(both))


def yaml_word(word: Word) -> str:
    """A double-quoted scalar. Compose puts variables in: a dollar that means itself is doubled."""
    if isinstance(word, str):
        return f'"{_yaml_text(word)}"'

    def wanted(name: str) -> str:
        bare = name.strip("${}")
        return f"${{{bare}}}" if bare == "HOME" else f"${{{bare}:?say in .env where it lies}}"

    found = _path(word.text, _yaml_text, home="${HOME}", variable=wanted)
    return f'"{_yaml_text(word.before)}{found}{_yaml_text(word.after)}"'


def shell_lines(words: Sequence[Word], *, indent: str = "  ") -> str:
    """One command, over several lines where it is long."""
    return folded([shell_word(word) for word in words], indent=indent)


def folded(quoted: Sequence[str], *, indent: str = "  ") -> str:
    """Broken where a line grows long, but not between an option and its value."""
    pieces: list[str] = []
    for word in quoted:
        alone = pieces and pieces[-1].startswith("-") and " " not in pieces[-1]
        if alone and not word.startswith("-"):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(piece) < WIDTH:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"{indent if lines else ''}{piece}")
    return " \\\n".join(lines)


def wrapped(text: str) -> list[str]:
    """A sentence for a comment; its later lines stand further in."""
    return wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [""]


def _path(text: str, literal: Callable[[str], str], *, home: str, variable: Callable[[str], str]) -> str:
    begin = ""
    if text == "~" or text.startswith("~/"):
        begin, text = home, text[1:]
    parts, last = [begin], 0
    for found in _VARIABLE.finditer(text):
        parts += [literal(text[last : found.start()]), variable(found.group())]
        last = found.end()
    return "".join((*parts, literal(text[last:])))


def _shell_text(text: str) -> str:
    return shlex.quote(text) if text else ""


def _systemd_text(text: str, *, dollars: bool) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    text = text.replace("$", "$$") if dollars else text
    return _UNPRINTABLE.sub(_escaped, text)


def _systemd_quoted(text: str) -> str:
    """A lone `;` would end the command."""
    return text if _PLAIN.fullmatch(text.replace("$", "").replace("{", "").replace("}", "")) else f'"{text}"'


def _escaped(found: re.Match[str]) -> str:
    """What no reader of YAML or of a unit takes as it is, in an escape that both know."""
    return {"\n": "\\n", "\t": "\\t"}.get(found.group(), f"\\u{ord(found.group()):04x}")


def _yaml_text(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return _UNPRINTABLE.sub(_escaped, text)
