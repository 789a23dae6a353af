"""From an answer's text to what is judged: reasoning kept apart, code taken out of its fences and
its prose.

Knows nothing of what the code is for and never runs it. Every function goes over the text a fixed
number of times: 200 KB of backticks take no longer than 200 KB of prose."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import msgspec

_DEFINED = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
# Lines that prose does not begin with. `[^\n]` is bounded by the line, and no two parts can match
# the same text.
_STRONG = re.compile(
    r"from [.\w]+ import |import [\w.]+(?: as \w+)?(?:, ?[\w.]+(?: as \w+)?)*\s*(?:#.*)?$"
    r"|(?:async )?def \w+ ?\(|class \w+ ?(?:\(|:\s*(?:#.*)?$)|@\w[\w.]*(?:\(|\s*$)"
    r"|[A-Za-z_][\w.]*(?:\[[^\]\n]*\])? ?(?:: ?[\w\[\], .|\"']+)? ?[-+*/|]?=(?!=) ?\S|if "
    r"__name__ ?=="
)
_WEAK = re.compile(
    r"(?:if|elif|while|with|async with|except|match) .*:\s*(?:#.*)?$|(?:async )?for .* in "
    r".*:\s*(?:#.*)?$"
    r"|(?:else|try|finally|except):\s*(?:#.*)?$"
    r"|(?:return|raise|yield|await|assert|del|global|nonlocal) ?\S"
    r"|(?:return|pass|break|continue)\s*(?:#.*)?$|[A-Za-z_][\w.]*\(.*$|[)\]}]+[,:]?\s*(?:->.*)?$"
    r"|#|\"\"\"|'''"
)


def looks_like_code(text: str) -> bool:
    """Return whether a line is such as only code has, and at least half of the lines are code."""
    lines = _lines(text)
    strong = sum(1 for line in lines if _STRONG.match(line[:400]))
    weak = sum(1 for line in lines if _WEAK.match(line[:400]))
    return bool(strong or (weak and weak == len(lines))) and 2 * (strong + weak) >= len(lines)


def code_run(text: str) -> str | None:
    """Return the longest run of lines that look like code, without fences.

    The body of a function stays indented.
    """
    best: list[str] = []
    run: list[str] = []
    best_size = 0
    for line in [*text.split("\n"), "."]:
        if _goes_on(line, run):
            run.append(line)
            continue
        if (size := sum(map(len, run))) > best_size and looks_like_code("\n".join(run)):
            best = run
            best_size = size
        run = []
    while best and (not best[-1].strip() or best[-1].startswith("#")):
        best.pop()
    if not best:
        return None
    code = "\n".join(best).strip("\n") + "\n"
    dedented = textwrap.dedent(code)
    if _DEFINED.search(dedented):
        return dedented
    return code


def _goes_on(line: str, run: list[str]) -> bool:
    if not line.strip():
        return bool(run)
    if line[0] in " \t":
        return bool(run) or bool(
            _STRONG.match(line.strip()[:400]) or _WEAK.match(line.strip()[:400])
        )
    return bool(
        _STRONG.match(line[:400])
        or (_WEAK.match(line[:400]) and (run or not line.startswith("#")))
    )


# Tags of DeepSeek, Qwen and others, Mistral's, Gemma's
_THINKING = re.compile(
    r"<(/?)(?:think|thinking|thought|reasoning)>"
    r"|\[(/?)THINK\]"
    r"|<\|channel>(?:thought\b)?|(<)channel\|>",
    re.IGNORECASE,
)
# OpenAI's harmony:
# <|channel|>analysis<|message|>...<|end|>
# <|start|>assistant<|channel|>final<|message|>...<|return|>
_MARK = re.compile(r"<\|(start|channel|message|constrain|end|return|call)\|>")
_WINDOW = 65_536  # characters that are searched in one call
_LONGEST_MARK = 64  # characters of a tag or a mark, and more

_FENCE = re.compile(
    r"(?P<lead>[ \t]*(?:[-*+][ \t]+|\d{1,4}[.)][ \t]+)?)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$"
)
_PYTHON = frozenset(
    {
        "python",
        "python3",
        "python2",
        "py",
        "py3",
        "pycon",
        "ipython",
        "ipython3",
        "python-repl",
        "gyp",
    }
)
_UNSAID = frozenset({"", "code", "snippet"})
# columns: a fence so much deeper than the opening one is part of the code, in a docstring for
# example
_DEEPER = 4


class SplitAnswer(msgspec.Struct, frozen=True):
    text: str
    reasoning: str


class Block(msgspec.Struct, frozen=True):
    """`language` is in lower case, with `python` for every spelling of Python, and "" where none
    is given.
    """

    language: str
    code: str


def split_answer(answer: str, reasoning: str | None) -> SplitAnswer:
    """Separate an answer from its thinking: unclosed, that swallows the rest; a closing tag alone
    means that the prompt opened it.
    """
    parts: list[str] = []
    thoughts = [_whole(reasoning)] if reasoning else []
    text = _by_channel(_whole(answer), thoughts)
    start = 0
    inside = False
    for tag in _matches(_THINKING, text):
        closes = any(tag.groups())
        if closes and not inside and not parts and start == 0:
            thoughts.append(text[: tag.start()])
        elif closes or not inside:
            (thoughts if inside else parts).append(text[start : tag.start()])
        else:
            continue  # opened once more: part of the thinking
        start = tag.end()
        inside = not closes
    (thoughts if inside else parts).append(text[start:])
    visible_text = "".join(parts)
    if thoughts:
        visible_text = visible_text.strip()
    return SplitAnswer(visible_text, "\n".join(filter(None, map(str.strip, thoughts))))


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Find what `finditer` finds, window by window: a search of 64 MiB in one call stops every
    other thread.
    """
    at = 0
    while at < len(text):
        edge = at + _WINDOW
        match = pattern.search(text, at, edge + _LONGEST_MARK)
        if match is None or match.start() >= edge:
            at = edge
        else:
            yield match
            at = match.end()


def _whole(text: str) -> str:
    """Make halves of characters whole, or replace them: some servers send such, which cannot be
    written to a file.
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _by_channel(text: str, thoughts: list[str]) -> str:
    """Return the text of the final channel, to which all text before any mark belongs; add that of
    other channels to `thoughts`.
    """
    final_parts: list[str] = []
    channel = "final"
    expects = "message"
    start = 0
    for mark in _matches(_MARK, text):
        piece = text[start : mark.start()]
        kind = mark.group(1)
        if expects == "message":
            (final_parts if channel == "final" else thoughts).append(piece)
        elif expects == "channel":
            channel = (piece.split() or ["final"])[0]
        expects = {"channel": "channel", "message": "message", "end": "message"}.get(kind, "role")
        if kind in ("end", "return", "call", "start"):
            channel = "final"
        start = mark.end()
    if expects == "message":
        (final_parts if channel == "final" else thoughts).append(text[start:])
    return "".join(final_parts)


def code_blocks(text: str) -> list[Block]:
    """Return fenced blocks in order, without the indentation of their opening line.

    A fence with a language inside an open block begins a new one: the other was never closed.
    """
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        match = _FENCE.match(line)
        if match and (opened is None or _ends(match, opened)):
            if opened is not None:
                blocks.append(_block(opened, lines))
            if opened is None or match["info"].strip():
                opened = match
            else:
                opened = None
            lines = []
        elif opened is not None:
            lines.append(line)
    if opened is not None and any(line.strip() for line in lines):
        blocks.append(_block(opened, lines))
    return blocks


def _ends(match: re.Match[str], opened: re.Match[str]) -> bool:
    alike = match["fence"].startswith(opened["fence"]) and not match["lead"].strip()
    return alike and len(match["lead"]) < len(opened["lead"]) + _DEEPER


def _block(opened: re.Match[str], lines: list[str]) -> Block:
    column = len(opened["lead"])
    code = "".join(line[min(column, len(line) - len(line.lstrip())) :] + "\n" for line in lines)
    return Block(language_of(opened["info"]), code)


def language_of(info: str) -> str:
    """Return the first word of what stands behind a fence: `Python3 title="a.py"`, `{.python}`,
    `py:main.py`, `main.py`; every spelling of Python as `python`.
    """
    words = re.split(r"[\s,:;{}=(]+", info.strip()[:200].strip("{}. \t").lower(), maxsplit=1)
    word = words[0].strip(".")
    if word in _PYTHON or word.endswith(".py"):
        return "python"
    return word


def python_blocks(text: str) -> list[str]:
    """Return the Python code that the answer gives, block by block; without blocks, the longest
    run of code lines.
    """
    if blocks := code_blocks(text):
        return [block.code for block in blocks if _is_python(block)]
    alone = code_run(text.replace("\r\n", "\n"))
    return [] if alone is None else [alone]


def _is_python(block: Block) -> bool:
    if block.language in _UNSAID:
        return looks_like_code(block.code)
    return block.language == "python" and bool(block.code.strip())


def _lines(code: str) -> list[str]:
    return [line.strip() for line in code.split("\n") if line.strip()]
