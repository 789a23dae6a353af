"""From an answer's text to what is judged: reasoning kept apart, code taken out of its fences and its prose.

Knows nothing of what the code is for and never runs it. Every function goes over the text a fixed number of times:
200 KB of backticks take no longer than 200 KB of prose.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

import msgspec

_DEFINED = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_PROMPT = re.compile(r"(?:>>>|\.\.\.)(?: |$)")
# Lines that prose does not begin with. `[^\n]` is bounded by the line, and no two parts can match the same text.
_STRONG = re.compile(
    r"from [.\w]+ import |import [\w.]+(?: as \w+)?(?:, ?[\w.]+(?: as \w+)?)*\s*(?:#.*)?$"
    r"|(?:async )?def \w+ ?\(|class \w+ ?(?:\(|:\s*(?:#.*)?$)|@\w[\w.]*(?:\(|\s*$)"
    r"|[A-Za-z_][\w.]*(?:\[[^\]\n]*\])? ?(?:: ?[\w\[\], .|\"']+)? ?[-+*/|]?=(?!=) ?\S|if __name__ ?=="
)
_WEAK = re.compile(
    r"(?:if|elif|while|with|async with|except|match) .*:\s*(?:#.*)?$|(?:async )?for .* in .*:\s*(?:#.*)?$"
    r"|(?:else|try|finally|except):\s*(?:#.*)?$|(?:return|raise|yield|await|assert|del|global|nonlocal) ?\S"
    r"|(?:return|pass|break|continue)\s*(?:#.*)?$|[A-Za-z_][\w.]*\(.*\)?[,:]?\s*(?:#.*)?$|[)\]}]+[,:]?\s*(?:->.*)?$"
    r"|#|\"\"\"|'''"
)


def top_level_names(code: str) -> frozenset[str]:
    """Functions and classes that begin in the first column."""
    return frozenset(_DEFINED.findall(code))


def looks_like_code(text: str) -> bool:
    """At least one line that only code has, and as many lines of code as others."""
    lines = _lines(text)
    strong = sum(1 for line in lines if _STRONG.match(line[:400]))
    weak = sum(1 for line in lines if _WEAK.match(line[:400]))
    return bool(strong or (weak and weak == len(lines))) and 2 * (strong + weak) >= len(lines)


def is_session(code: str) -> bool:
    """Of an interpreter: its first line has the prompt."""
    return code.lstrip().startswith(">>>")


def session_code(code: str) -> str:
    """Return what was typed, without the prompts and without what was printed. Other code is left as it is."""
    if not is_session(code):
        return code
    typed = [line.strip() for line in code.split("\n")]
    return "\n".join(line[4:] for line in typed if _PROMPT.match(line)) + "\n"


def code_run(text: str) -> str | None:
    """The longest run of lines that look like code, without fences. The body of a function stays indented."""
    best: list[str] = []
    run: list[str] = []
    best_size = 0
    for line in [*session_code(text).split("\n"), "."]:
        if _goes_on(line, run):
            run.append(line)
            continue
        if (size := sum(map(len, run))) > best_size and looks_like_code("\n".join(run)):
            best, best_size = run, size
        run = []
    while best and (not best[-1].strip() or best[-1].startswith("#")):
        best.pop()
    if not best:
        return None
    code = "\n".join(best).strip("\n") + "\n"
    dedented = textwrap.dedent(code)
    return dedented if top_level_names(dedented) else code


def _goes_on(line: str, run: list[str]) -> bool:
    if not line.strip():
        return bool(run)
    if line[0] in " \t":
        return bool(run) or bool(_STRONG.match(line.strip()[:400]) or _WEAK.match(line.strip()[:400]))
    return bool(_STRONG.match(line[:400]) or (_WEAK.match(line[:400]) and (run or not line.startswith("#"))))


# Tags of DeepSeek, Qwen and others, Mistral's, Gemma's
_THINKING = re.compile(
    r"<(/?)(?:think|thinking|thought|reasoning)>|\[(/?)THINK\]|<\|channel>(?:thought\b)?|(<)channel\|>", re.IGNORECASE
)
# OpenAI's harmony: <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
_MARK = re.compile(r"<\|(start|channel|message|constrain|end|return|call)\|>")

_OPENING = re.compile(r"(?P<lead>(?:[ \t]|>|[-*+][ \t]|\d{1,4}[.)][ \t])*)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_QUOTED = re.compile(r"[ \t]{0,3}>[ \t]?")
_PYTHON = frozenset({"python", "python3", "python2", "py", "py3", "pycon", "ipython", "ipython3", "python-repl", "gyp"})
_UNSAID = frozenset({"", "code", "snippet"})
_NESTING = frozenset({"markdown", "md"})
_STRING = re.compile(r'"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'')
_DOTS = re.compile(r"[ \t]+(?:\.\.\.|…)[ \t]*(?:#.*)?$")
_STUB = re.compile(r"(?:async )?def \w+ ?\(.*: *(?:\.\.\.|…)[ \t]*(?:#.*)?$")
_HEADER = re.compile(r"(?:async )?def |\)")  # in the first column: where a function begins
_GAP_REMARK = re.compile(
    r"[ \t]*#[ \t]*(?:(?:\.\.\.|…)[ \t]*(?:$|\(?(?:the )?(?:rest|existing|same|unchanged|remaining|other|previous)\b)"
    r"|(?:the )?(?:rest of the|existing code|same as before|remaining code|unchanged code)\b)",
    re.IGNORECASE,
)
_DEEPER = 4  # columns: a fence so much deeper than the opening one is part of the code, in a docstring for example


class SplitAnswer(msgspec.Struct, frozen=True):
    text: str
    reasoning: str


class Block(msgspec.Struct, frozen=True):
    """`language` is in lower case, every spelling of Python is `python`; "" where none is given."""

    language: str
    code: str
    closed: bool = True  # False: the answer ended inside it


def split_answer(answer: str, reasoning: str | None) -> SplitAnswer:
    """Without its thinking: unclosed, that swallows the rest; a closing tag alone means that the prompt opened it."""
    parts: list[str] = []
    thoughts = [_whole(reasoning)] if reasoning else []
    text = _by_channel(_whole(answer), thoughts)
    start, inside = 0, False
    for tag in _THINKING.finditer(text):
        closes = any(tag.groups())
        if closes and not inside and not parts and start == 0:
            thoughts.append(text[: tag.start()])
        elif closes or not inside:
            (thoughts if inside else parts).append(text[start : tag.start()])
        else:
            continue  # opened once more: part of the thinking
        start, inside = tag.end(), not closes
    (thoughts if inside else parts).append(text[start:])
    said = "".join(parts)
    return SplitAnswer(said.strip() if thoughts else said, "\n".join(filter(None, map(str.strip, thoughts))))


def _whole(text: str) -> str:
    """Halves of characters, which some servers send, cannot be written to a file: made whole, or replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _by_channel(text: str, thoughts: list[str]) -> str:
    """Return what the final channel said. What comes before any mark was said aloud."""
    said: list[str] = []
    channel, expects, start = "final", "message", 0
    for mark in _MARK.finditer(text):
        piece, kind = text[start : mark.start()], mark.group(1)
        if expects == "message":
            (said if channel == "final" else thoughts).append(piece)
        elif expects == "channel":
            channel = (piece.split() or ["final"])[0]
        expects = {"channel": "channel", "message": "message", "end": "message"}.get(kind, "role")
        if kind in ("end", "return", "call", "start"):
            channel = "final"
        start = mark.end()
    if expects == "message":
        (said if channel == "final" else thoughts).append(text[start:])
    return "".join(said)


def code_blocks(text: str) -> list[Block]:
    """Fenced blocks in order, as CommonMark has them, without the indentation and quote marks of their opening line.

    A fence with a language inside an open block begins a new one: the other was never closed. In Markdown it nests.
    """
    found: list[Block] = []
    opened: _OpenBlock | None = None
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        bare = _QUOTED.sub("", line, count=1) if opened and opened.quoted else line
        match = _OPENING.match(bare) if "```" in bare or "~~~" in bare else None
        if opened is None:
            if match and not _is_inline(match, found):
                opened = _OpenBlock.at(match)
        elif match and (step := opened.step(match)):
            if step == "in":
                opened.depth += 1
            elif step == "out" and opened.depth:
                opened.depth -= 1
            else:
                found.append(opened.block(closed=step == "out"))
                opened = _OpenBlock.at(match) if step == "new" else None
                continue
            opened.lines.append(bare)
        else:
            opened.lines.append(bare)
    if opened is not None and any(line.strip() for line in opened.lines):
        found.append(opened.block(closed=False))
    return found


@dataclass(slots=True)
class _OpenBlock:
    fence: str
    language: str
    column: int
    quoted: bool
    lines: list[str]
    depth: int = 0

    @classmethod
    def at(cls, match: re.Match[str]) -> _OpenBlock:
        lead = match["lead"]
        return cls(match["fence"], language_of(match["info"]), len(lead.expandtabs(4)), ">" in lead, [])

    def step(self, match: re.Match[str]) -> str | None:
        """out: it ends here, new: another begins, in: one inside it begins; None: a line like any other."""
        fence, info, lead = match["fence"], match["info"].strip(), match["lead"]
        if fence[0] != self.fence[0] or len(fence) < len(self.fence) or lead.strip():
            return None
        if len(lead.expandtabs(4)) >= self.column + _DEEPER:
            return None
        if not info:
            return "out"
        if fence[0] in info:
            return None
        return "in" if self.language in _NESTING else "new"

    def block(self, *, closed: bool) -> Block:
        """Without the indentation of the opening line."""
        lines = self.lines
        if self.column and not self.quoted:
            lines = [line.expandtabs(4) if "\t" in line[: self.column] else line for line in lines]
            lines = [line[min(self.column, _indent(line)) :] for line in lines]
        return Block(self.language, "\n".join(lines) + ("\n" if lines else ""), closed)


def _is_inline(match: re.Match[str], found: list[Block]) -> bool:
    """Fence, code and fence on one line are a block as well; any other backtick behind the fence makes it none."""
    info, fence = match["info"].rstrip(), match["fence"]
    if fence[0] != "`" or "`" not in info:
        return False
    inner = info.removesuffix(fence)
    if inner != info and "`" not in inner and inner.strip():
        word, _, rest = inner.partition(" ")
        language = language_of(word) if rest and language_of(word) == "python" else ""
        found.append(Block(language, (rest if language else inner).strip() + "\n"))
    return True


def language_of(info: str) -> str:
    """The first word of what stands behind a fence: `Python3 title="a.py"`, `{.python}`, `py:main.py`, `main.py`."""
    words = re.split(r"[\s,:;{}=(]+", info.strip()[:200].strip("{}. \t").lower(), maxsplit=1)
    word = words[0].strip(".")
    return "python" if word in _PYTHON or word.endswith(".py") else word


def python_blocks(text: str, given: str = "") -> list[str]:
    """Return the Python code that the answer gives, block by block; `given` is what the answer was told.

    Left out: a block whose functions are all defined again later, or before and here only hinted at or quoted; one that
    quotes lines of a larger one; sessions with `>>>` beside other code. Without blocks: the longest run of code lines.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = code_blocks(text)
    if not any(map(_is_python, blocks)):  # a whole document in a block: what is fenced inside it
        nested = [inner for block in blocks if block.language in _NESTING for inner in code_blocks(block.code)]
        blocks = nested or blocks
    codes = [block.code for block in blocks if _is_python(block)]
    plain = [code for code in codes if not is_session(code)]
    codes = plain or [session_code(code) for code in codes]
    if codes:
        return _meant(_complete(codes, given))
    alone = None if blocks else code_run(text)
    return [] if alone is None else [alone]


def _is_python(block: Block) -> bool:
    if block.language in _UNSAID:
        return is_session(block.code) or looks_like_code(block.code)
    return block.language == "python" and bool(block.code.strip())


def _complete(codes: list[str], given: str) -> list[str]:
    """Without later blocks that take the place of nothing: with gaps, or as it was before it was mended."""
    kept: list[str] = []
    whole: set[str] = set()
    told = "\n".join(_lines(given))
    for code in codes:
        names = top_level_names(code)
        partial = bool(names) and (has_gaps(code) or (bool(told) and "\n".join(_lines(code)) in told))
        if partial and names <= whole:
            continue
        kept.append(code)
        if not partial:
            whole |= names
    return kept


def has_gaps(code: str) -> bool:
    """Whether lines are left out for `...` or a remark. A method or class that is nothing but `...` is whole."""
    lines = [line.expandtabs(4) for line in _STRING.sub("", code).split("\n") if line.strip()]
    for place, line in enumerate(lines):
        if _STUB.match(line) or _GAP_REMARK.match(line):
            return True
        if not _DOTS.match(line):
            continue
        before = lines[place - 1] if place else ""
        after = lines[place + 1] if place + 1 < len(lines) else ""
        alone = before.split("#")[0].rstrip().endswith(":") and _indent(after) < _indent(line)
        if not alone or _HEADER.match(before):
            return True
    return False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _meant(codes: list[str]) -> list[str]:
    kept: list[str] = []
    later: set[str] = set()  # names that a later block defines
    lines: set[str] = set()  # of later blocks
    for code in reversed(codes):
        names = top_level_names(code)
        own = set(_lines(code))
        if (names and names <= later) or own <= lines:
            continue
        kept.append(code)
        later |= names
        lines |= own
    kept.reverse()
    shown: set[str] = set()  # lines of earlier blocks: a fragment of those is a quotation
    meant: list[str] = []
    for code in kept:
        own = set(_lines(code))
        if not meant or top_level_names(code) or not own <= shown:
            meant.append(code)
        shown |= own
    return meant


def _lines(code: str) -> list[str]:
    return [line.strip() for line in code.split("\n") if line.strip()]
